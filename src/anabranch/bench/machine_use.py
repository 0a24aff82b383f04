"""What a plan makes of a target: seen by a profiler, or forecast where that sees nothing."""

from __future__ import annotations

from anabranch.costs.utilisation import Utilisation, kernels_in, utilisation
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Costs, KernelProfiler, Target

FORECAST = "forecast: starts and ends are simulated"


def utilisation_of(target: Target, plan: Plan, costs: Costs) -> Utilisation | None:
    """Of one run of the plan under a profiler; as `costs` forecast it, by what its kernels take
    alone, where nothing can run or a profiler shows too little; None where a target has neither."""
    how = FORECAST
    if not target.spec.simulated:
        if not isinstance(target, KernelProfiler):
            return None
        how, spans = target.kernel_spans(target.load(plan))
        if spans:
            return utilisation(spans, target.spec, how)
        how = f"{FORECAST}, of kernels timed alone; {how}"
    timeline = costs.timeline(plan.tasks, plan.schedule)
    return utilisation(kernels_in(plan.tasks, timeline), target.spec, how)
