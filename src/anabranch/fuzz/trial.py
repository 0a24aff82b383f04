"""A Drawing -> an Outcome: compiled end to end, run, and compared.

status     means
equal      every output is what the model returns, within what its dtype allows
unequal    something differs, or the compiler's own comparison refused the plan
failed     compiling or running raised what no user should see
refused    the compiler says that it cannot take the model
"""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from anabranch.errors import CaptureError, NumericsError
from anabranch.fuzz import alone
from anabranch.fuzz.drawing import Drawing, made
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS, scheduler

Status = Literal["equal", "unequal", "failed", "refused"]
DRAWN = "drawn"
"""In place of a scheduler's name: the seed says which."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What drawings are compiled for. `options`: of `anabranch.compile`, as given."""

    target: str = "cpu"
    dtype: torch.dtype = torch.float32
    options: Mapping[str, Any] = field(default_factory=dict)

    def told(self, seed: int) -> dict[str, Any]:
        """The options for one seed."""
        told = dict(self.options)
        if told.get("scheduler") == DRAWN:
            names = ["best", *SCHEDULERS]
            told["scheduler"] = random.Random(f"scheduler {seed}").choice(names)
        return told


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one drawing fared; `details` says what is wrong, `sort` what kind of failure it is."""

    drawing: Drawing
    status: Status
    sort: str = ""
    details: tuple[str, ...] = ()
    seconds: float = field(compare=False, default=0.0)


def attempt(drawing: Drawing, setting: Setting) -> Outcome:
    """Compile, run, compare. Nothing but an interruption gets out."""
    start = time.perf_counter()
    build, inputs = made(drawing)
    status: Status = "equal"
    sort = ""
    details: tuple[str, ...] = ()
    options = setting.told(drawing.seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = alone.differences(build, inputs, setting.dtype, setting.target, **options)
        if found:
            status, sort, details = "unequal", "unequal", tuple(found)
    except NumericsError as error:
        status, sort, details = "unequal", "refused plan", (str(error),)
    except CaptureError as error:
        status, sort, details = "refused", "CaptureError", (str(error),)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        status, sort = "failed", f"{type(error).__name__} in {last.name}"
        details = ("".join(traceback.format_exception(error)),)
    return Outcome(drawing, status, sort, details, time.perf_counter() - start)


def check(setting: Setting) -> None:
    """OptionError for options that mean nothing, before anything is drawn."""
    Options.read(setting.told(0))
    if (name := setting.told(0)["scheduler"]) != "best":
        scheduler(name)
