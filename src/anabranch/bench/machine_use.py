"""What a plan makes of a target: seen by a profiler, or forecast where nothing can run."""

from __future__ import annotations

from anabranch.costs.utilisation import Utilisation, kernels_in, utilisation
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Costs, KernelProfiler, Target

FORECAST = "forecast: starts and ends are simulated"


def utilisation_of(target: Target, plan: Plan, costs: Costs) -> Utilisation | None:
    """Of one run of the plan under a profiler, or as `costs` forecast it where nothing can run;
    None where a target has neither."""
    if target.spec.simulated:
        timeline = costs.timeline(plan.tasks, plan.schedule)
        return utilisation(kernels_in(plan.tasks, timeline), target.spec, FORECAST)
    if not isinstance(target, KernelProfiler):
        return None
    how, spans = target.kernel_spans(target.load(plan))
    return utilisation(spans, target.spec, how)
