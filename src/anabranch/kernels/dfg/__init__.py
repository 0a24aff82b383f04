"""The data-flow graph of a task's body: what each point of an index space loads, computes and
stores. `lower` makes it from a body; templates cut it into tiles."""

from anabranch.kernels.dfg.expr import Dfg
from anabranch.kernels.dfg.lower import lower

__all__ = ["Dfg", "lower"]
