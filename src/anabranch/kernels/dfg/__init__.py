"""The data-flow graph of a task's body: what each point of an index space loads, computes and
stores. `lower` makes it from a body; templates cut it into tiles."""

from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.nouns import Dfg

__all__ = ["Dfg", "lower"]
