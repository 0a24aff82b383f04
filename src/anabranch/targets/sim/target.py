"""SimTarget: knows what a recorded GPU is and how long its kernels take, and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from anabranch.cache import Cache
from anabranch.costs.kernel_model import FittedKernels, Modelled, load_kernel_model
from anabranch.costs.recorded import Profile, load_profile
from anabranch.errors import TargetError
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, Probe
from anabranch.ir.schedule import Timeline
from anabranch.ir.task import Kernel
from anabranch.kernels.expected_resources import expected_resources
from anabranch.kernels.kernel_terms import terms_of
from anabranch.targets.calibrations import CALIBRATIONS
from anabranch.trace import Trace

PROFILES = Path(__file__).parent / "profiles"
SUFFIX, MODEL_SUFFIX = ".json", ".kernels.json"


def open_sim(name: str, tf32: bool) -> SimTarget:
    """The simulated GPU of a profile: `h200`, which ships with the package, or the path of one that
    `anabranch record` wrote. TargetError if it cannot be read, or is no GPU's."""
    path = Path(name) if name.endswith(SUFFIX) else PROFILES / f"{name}{SUFFIX}"
    profile = load_profile(path)
    if profile.spec.kind != "cuda":
        raise TargetError(
            f"cannot plan for the profile {name}",
            f"it is of {profile.spec.name}, which is no GPU",
            "record one on a GPU, or use target='cpu'",
        )
    beside = model_path(path)
    return SimTarget(profile, tf32, load_kernel_model(beside) if beside.exists() else None)


def model_path(profile: Path) -> Path:
    """Where the model of the kernels that a profile lacks lies: beside it."""
    return profile.with_name(profile.name.removesuffix(SUFFIX) + MODEL_SUFFIX)


class SimTarget:
    """A GPU as `anabranch record` saw it. `estimates`: what answers for kernels that it did not
    see, None without a model of them; `expected`: what they are expected to take of it."""

    def __init__(
        self, profile: Profile, tf32: bool = False, model: FittedKernels | None = None
    ) -> None:
        self.profile = profile
        calibration = profile.spec.calibration or CALIBRATIONS.get(profile.spec.capability)
        self.spec = replace(profile.spec, tf32=tf32, simulated=True, calibration=calibration)
        self.estimates = Modelled(model, terms_of, self.spec) if model is not None else None
        self.expected = expected_resources
        self.device = torch.device("meta")

    def prepare(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> None:
        """Nothing is built ahead here."""

    def load(
        self,
        plan: Plan,
        repeat: int = 1,
        contents: Mapping[str, torch.Tensor] | None = None,
        beside: Executable | None = None,
        states: Mapping[str, torch.Tensor] | None = None,
    ) -> Executable:
        """TargetError, always: a plan for a simulated GPU is saved, and loaded where there is
        one."""
        raise self._absent("run a plan")

    def again(self, run: Executable, plan: Plan) -> Executable:
        """TargetError, as `load`."""
        raise self._absent("run a plan")

    def give_back(self) -> int:
        """Nothing was loaded."""
        return 0

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        """TargetError: costs of a simulated GPU come from its profile (`costs.recorded`), not from
        running."""
        raise self._absent("measure a plan")

    def probe(self, run: Executable) -> dict[str, Probe]:
        """TargetError: what is known of kernels is what the profile recorded."""
        raise self._absent("profile a plan")

    def timeline(self, run: Executable) -> Timeline | None:
        """TargetError: the forecast (`costs.forecast`) draws one instead."""
        raise self._absent("profile a plan")

    def time_call(self, call: Callable[[], object], budget: float) -> Cost:
        """TargetError: nothing runs here that could be called."""
        raise self._absent("time a call")

    def beside_model(
        self, run: Executable, model: Callable[[], object], budget: float
    ) -> tuple[Cost, Cost]:
        """TargetError: the model runs on no simulated GPU either."""
        raise self._absent("time the model")

    def own_precision(self) -> AbstractContextManager[None]:
        """Changes nothing: meta tensors hold no numbers to round."""
        return nullcontext()

    def full_precision(self, lean: bool = False) -> AbstractContextManager[None]:
        """Changes nothing, as `own_precision`."""
        return nullcontext()

    def _absent(self, what: str) -> TargetError:
        return TargetError(
            f"cannot {what} on a simulated {self.spec.name}",
            "the simulation has recorded times, and no device",
            "use the plan, its timeline and its report; run with target='cpu' or on the GPU itself",
        )
