"""Compilation: what the pipeline returns for one model and one signature of inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.compiler.plan_cache import CompiledGraph
from anabranch.frontend.captured import Captured
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable
from anabranch.search.result import Path


@dataclass(frozen=True, slots=True)
class Compilation:
    """What each stage made. `path`: what the search found, None without a search. `errors`: per
    output the error against the higher-precision reference and the error allowed; empty where
    nothing could run. `run` is None on a simulated target. `seconds`: what all attempts took.
    `model`: the latency of the eager model beside it, in one CUDA graph where there are graphs;
    None where it was not timed. `as_captured`: the plan is the eager model, operator by operator,
    because that is faster."""

    captured: Captured
    path: Path | None
    compiled: CompiledGraph
    run: Executable | None
    errors: tuple[tuple[float, float], ...]
    seconds: float = field(compare=False, default=0.0)
    model: Cost | None = None
    as_captured: bool = False

    @property
    def plan(self) -> Plan:
        """The plan that runs, as it was decided."""
        return self.compiled.plan

    @property
    def cost(self) -> Cost:
        """The latency of the plan, as its kernels are launched."""
        return self.compiled.cost
