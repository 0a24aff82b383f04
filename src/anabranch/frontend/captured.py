"""Captured: what every front end returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.utils._pytree import TreeSpec

from anabranch.ir.graph import Graph
from anabranch.ir.plan import Signature


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, how calls of it look, and where its constants come from.

    `sources` pairs a constant's name with the qualified name of the parameter, buffer or attribute
    that holds it; a constant without one (a tensor that the code makes) is content which a cache
    must store. `trees` are the live structures of (args, kwargs) and of the result: a structure
    that cannot be written as text (an unregistered namedtuple) has "" in the signature, and works
    in this process only.
    """

    graph: Graph
    signature: Signature
    sources: tuple[tuple[str, str], ...]
    trees: tuple[TreeSpec, TreeSpec] = field(compare=False, repr=False)
