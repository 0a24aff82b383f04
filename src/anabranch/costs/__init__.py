"""How long things take: the only place that says so. Every number tells where it comes from.

Roofline   estimates from arithmetic and bytes; needs no device, covers everything
Recorded   what a profile holds of another machine; estimates for the rest
Measured   runs it on a target, or has run it before (cache)
simulate   task costs + schedule -> timeline
tied       whether two measured numbers differ at all
"""

from anabranch.costs.measured import Measured
from anabranch.costs.recorded import Recorded
from anabranch.costs.roofline import Roofline
from anabranch.costs.simulate import simulate
from anabranch.costs.source import costs_of, name_of
from anabranch.costs.ties import fastest, tied

__all__ = ["Measured", "Recorded", "Roofline", "costs_of", "fastest", "name_of", "simulate", "tied"]
