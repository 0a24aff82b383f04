"""What operators answered: a memo of types, result types by operator and what it was called with.

torch's meta kernels of some operators import a good part of torch.compile when they are first
called, half a second to a second and a half in every process. Their answers are the same in every
process with the same torch, so they are worth keeping:

    known = recall(cache, graph)
    ...                                  rewriting, which asks `ops.infer`
    keep(cache, graph, known)            what was new is there for the next process

The memo is of a function of its arguments alone: what it holds changes no result.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from anabranch.cache import Cache, Table
from anabranch.ir.codec import nouns
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.ir.types import DTYPE_NAMES, TensorType

ByCall = dict[str, tuple[TensorType, ...]]

ANSWERS: ByCall = {}
"""By the call as text, in the order in which they were asked for."""

OURS = "aten."
"""Only torch's own operators are told to other processes: who knows what others changed."""

TOLD: Table[ByCall] = Table("graphs", "answers 2", nouns(ByCall))


def recall(cache: Cache | None, graph: Graph) -> int:
    """Take over what earlier processes learned while they rewrote this graph; how many answers
    there are now."""
    for call, answer in (TOLD.get(cache, _key(graph)) or {}).items():
        ANSWERS.setdefault(call, answer)
    return len(ANSWERS)


def keep(cache: Cache | None, graph: Graph, count: int) -> None:
    """Store what was learned since there were `count` answers, beside what was stored before."""
    fresh = {
        call: answer
        for call, answer in itertools.islice(ANSWERS.items(), count, None)
        if call.startswith(OURS) and all(type.dtype in DTYPE_NAMES for type in answer)
    }
    if cache is None or not fresh:
        return
    key = _key(graph)
    TOLD.put(cache, key, {**(TOLD.get(cache, key) or {}), **fresh})


@dataclass(slots=True)
class Answers:
    """The memo for one graph: recalled when somebody first asks, and stored only then. A warm start
    asks nothing."""

    cache: Cache | None
    graph: Graph
    _cached: int | None = None

    def recall(self) -> None:
        """Read from the cache what was asked about this graph before, once."""
        if self._cached is None:
            self._cached = recall(self.cache, self.graph)

    def keep(self) -> None:
        """Write what is known to the cache, if anything was recalled or asked."""
        if self._cached is not None:
            keep(self.cache, self.graph, self._cached)


def _key(graph: Graph) -> str:
    return TOLD.key(torch.__version__, structure_text(graph))
