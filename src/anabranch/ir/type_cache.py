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
import json
from contextlib import suppress
from dataclasses import dataclass

import torch

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.ir.text import parse_type
from anabranch.ir.types import DTYPE_NAMES, TensorType

ANSWERS: dict[str, tuple[TensorType, ...]] = {}
"""By the call as text, in the order in which they were asked for."""

OURS = "aten."
"""Only torch's own operators are told to other processes: who knows what others changed."""


SCHEME = "answers 1"


def recall(cache: Cache | None, graph: Graph) -> int:
    """Take over what earlier processes learned while they rewrote this graph; how many answers
    there are now."""
    text = cache.get("graphs", _key(graph)) if cache is not None else None
    if text is not None:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            told = {
                str(call): tuple(parse_type(type) for type in answer)
                for call, answer in json.loads(text).items()
            }
            for call, answer in told.items():
                ANSWERS.setdefault(call, answer)
    return len(ANSWERS)


def keep(cache: Cache | None, graph: Graph, known: int) -> None:
    """Store what was learned since there were `known` answers, beside what was stored before."""
    fresh = {
        call: [type.text for type in answer]
        for call, answer in itertools.islice(ANSWERS.items(), known, None)
        if call.startswith(OURS) and all(type.dtype in DTYPE_NAMES for type in answer)
    }
    if cache is None or not fresh:
        return
    with suppress(ValueError, TypeError):
        fresh = {**json.loads(cache.get("graphs", _key(graph)) or "{}"), **fresh}
    cache.put("graphs", _key(graph), json.dumps(fresh))


@dataclass(slots=True)
class Answers:
    """The memo for one graph: recalled when somebody first asks, and stored only then. A warm start
    asks nothing."""

    cache: Cache | None
    graph: Graph
    _known: int | None = None

    def recall(self) -> None:
        """Read from the cache what was asked about this graph before, once."""
        if self._known is None:
            self._known = recall(self.cache, self.graph)

    def keep(self) -> None:
        """Write what is known to the cache, if anything was recalled or asked."""
        if self._known is not None:
            keep(self.cache, self.graph, self._known)


def _key(graph: Graph) -> str:
    return f"{SCHEME}\n{torch.__version__}\n{structure_text(graph)}"
