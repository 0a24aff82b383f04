"""What is to be compiled, captured once for all that a benchmark makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.ir.protocols import Target
from anabranch.models.load import load_model
from anabranch.options import Options
from anabranch.trace import Trace
from anabranch.tuning.job import Job


def job_of(
    model: str,
    dtype: str,
    batch: int,
    target: Target,
    options: Options,
    cache: Cache | None,
    trace: Trace,
    trust: bool = False,
) -> tuple[Job, tuple[Any, ...]]:
    """What is to be compiled, and the inputs it is compiled for."""
    device = "cpu" if target.device.type == "meta" else target.device
    loaded, args = load_model(model, batch, dtype, device, trust=trust)
    return Job(loaded, args, {}, target, options, cache, trace), args


def captured_once(job: Job) -> Job:
    """The job with its model captured, for whoever compiles it several times."""
    return replace(job, captured=compile_model(job, stop_after="capture"))
