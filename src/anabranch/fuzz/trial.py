"""A DrawnModel -> a TrialOutcome: compiled end to end, run, and compared; or captured, taken from
graph to graph by rules, and compared with what was captured (`random_rewrites`).

status     means
equal      every output is what the model returns, within what its dtype allows
unequal    something differs, or the compiler's own comparison refused the plan
failed     compiling, running or a rule raised what no user should see
refused    the compiler says that it cannot take the model
"""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from anabranch.errors import CaptureError, NumericsError
from anabranch.fuzz import script_prelude
from anabranch.fuzz.drawing import DrawnModel, built_model
from anabranch.fuzz.random_rewrites import walked
from anabranch.fuzz.sizes import size_differences
from anabranch.fuzz.substitute import Crash, Substitution
from anabranch.fuzz.training_trial import training_differences
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS, scheduler
from anabranch.search.result import Path

Status = Literal["equal", "unequal", "failed", "refused"]
EXACT = 0.25
"""The share of graphs that are compiled exactly, and called with what is not finite as well."""
DRAWN = "drawn"
"""In place of a scheduler's name: the seed says which."""


@dataclass(frozen=True, slots=True)
class TrialSetting:
    """What drawings are compiled for. `options`: of `anabranch.compile`, as given. `steps`: so many
    substitutions are drawn instead, and nothing is compiled. `sizes`: an axis of the inputs varies,
    and calls of several sizes are compared. `training`: the model is trained for three steps."""

    target: str = "cpu"
    dtype: torch.dtype = torch.float32
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    sizes: bool = False
    training: bool = False

    def told(self, seed: int) -> dict[str, Any]:
        """The options for one seed."""
        told = dict(self.options)
        if told.get("scheduler") == DRAWN:
            names = ["best", *SCHEDULERS]
            told["scheduler"] = random.Random(f"scheduler {seed}").choice(names)
        if not self.steps and random.Random(f"exact {seed}").random() < EXACT:
            told.setdefault("exact", True)
        return told


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How one drawing fared; `details` says what is wrong, `sort` what kind of failure it is.
    `done`: the substitutions that led to the graph that was compared; `cut_short`: whether the
    search for it ended before its work was done; `shown`: the graphs around the wrong one."""

    drawing: DrawnModel
    status: Status
    sort: str = ""
    details: tuple[str, ...] = ()
    seconds: float = field(compare=False, default=0.0)
    done: tuple[Substitution, ...] = ()
    cut_short: bool = False
    shown: str = field(compare=False, default="")


def attempt(drawing: DrawnModel, setting: TrialSetting) -> TrialOutcome:
    """Do it, compare. Nothing but an interruption gets out."""
    start = time.perf_counter()
    status: Status = "failed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = (_walked if setting.steps else _compiled)(drawing, setting)
        return replace(outcome, seconds=time.perf_counter() - start)
    except NumericsError as error:
        status, sort, details = "unequal", "refused plan", str(error)
    except CaptureError as error:
        status, sort, details = "refused", "CaptureError", str(error)
    except Crash as error:
        why = error.__cause__
        sort = f"{type(why).__name__} in {error.done.rule}"
        said = f"{error.done.text}: {type(why).__name__}: {str(why).partition(chr(10))[0]}"
        details = "".join(traceback.format_exception(why)) + said
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        sort = f"{type(error).__name__} in {last.name}"
        details = "".join(traceback.format_exception(error))
    return TrialOutcome(drawing, status, sort, (details,), time.perf_counter() - start)


def _compiled(drawing: DrawnModel, setting: TrialSetting) -> TrialOutcome:
    build, inputs = built_model(drawing)
    paths: list[Path | None] = []

    def keep(compiled: Any) -> None:
        paths.append(compiled.entries[-1].compilation.path)

    options = setting.told(drawing.seed)
    if setting.sizes or setting.training:
        more = setting.dtype, setting.target, drawing.seed
        differences = size_differences if setting.sizes else training_differences
        faults = differences(build, inputs, *more, keep, **options)
    else:
        faults = script_prelude.differences(
            build, inputs, setting.dtype, setting.target, keep, **options
        )
    (path,) = paths
    done = tuple(Substitution(step.rule, step.nodes) for step in path.steps) if path else ()
    short = path is not None and path.cut_short != ""
    if faults:
        return TrialOutcome(
            drawing, "unequal", "unequal", tuple(faults), done=done, cut_short=short
        )
    return TrialOutcome(drawing, "equal", done=done, cut_short=short)


def _walked(drawing: DrawnModel, setting: TrialSetting) -> TrialOutcome:
    options = Options.read(setting.told(drawing.seed))
    ran = walked(drawing, setting.steps, setting.dtype, setting.target, options)
    if ran.wrong is None:
        return TrialOutcome(drawing, "equal", done=ran.done)
    sort = f"unequal since {ran.wrong.rule}"
    return TrialOutcome(drawing, "unequal", sort, (ran.why,), done=ran.done, shown=ran.shown)


def check(setting: TrialSetting) -> None:
    """OptionError for options that mean nothing, before anything is drawn."""
    told = setting.told(0)
    Options.read(told)
    if (name := told.get("scheduler", "best")) != "best":
        scheduler(name)
