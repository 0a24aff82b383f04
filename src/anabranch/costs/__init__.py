"""How long things take: the only place that says so. Every number tells where it comes from.

Roofline   estimates from arithmetic and bytes; needs no device, covers everything
Recorded   what a profile holds of another machine; estimates for the rest
Measured   runs it on a target, or has run it before (cache)
forecast   task costs + schedule -> timeline, by a model of kernels that run side by side
evaluator  the same model for searches: prepared once, asked thousands of times
tied       whether two measured numbers differ at all; beside: both in words
"""

from anabranch.costs.forecast import evaluator, forecast
from anabranch.costs.measured import Measured
from anabranch.costs.recorded import Recorded
from anabranch.costs.roofline import Roofline
from anabranch.costs.significance import beside, fastest, tied
from anabranch.costs.source import costs_of, name_of

__all__ = [
    "Measured",
    "Recorded",
    "Roofline",
    "beside",
    "costs_of",
    "evaluator",
    "fastest",
    "forecast",
    "name_of",
    "tied",
]
