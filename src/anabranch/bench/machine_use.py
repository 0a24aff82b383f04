"""What a plan makes of a target: seen by a profiler, or forecast where that sees nothing."""

from __future__ import annotations

from anabranch.costs.utilisation import Utilisation, kernels_in, utilisation
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Costs, KernelProfiler, Target

FORECAST = "forecast: starts and ends are simulated"


SLOWER = 1.25
"""A run that takes so many times as long under the profiler is not the plan's: DeepFM's small
kernels on many streams took 318 us on an H100, and 52 without."""


def utilisation_of(target: Target, plan: Plan, costs: Costs, us: float) -> Utilisation | None:
    """Of one run of the plan under a profiler; as `costs` forecast it, by what its kernels take
    alone, where nothing can run, or a profiler shows too little or takes too long beside the `us`
    of a usual run; None where a target has neither."""
    how = FORECAST
    if not target.spec.simulated:
        if not isinstance(target, KernelProfiler):
            return None
        how, spans = target.kernel_spans(target.load(plan))
        used = utilisation(spans, target.spec, how)
        if used is not None and used.us <= SLOWER * us:
            return used
        if used is not None:
            how = f"under CUPTI it takes {used.us:.0f} us and {us:.0f} without"
        how = f"{FORECAST}, of kernels timed alone; {how}"
    timeline = costs.timeline(plan.tasks, plan.schedule)
    return utilisation(kernels_in(plan.tasks, timeline), target.spec, how)
