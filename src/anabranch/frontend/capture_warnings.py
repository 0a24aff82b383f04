"""Warnings to users while a model is captured: an event and a Python warning, each kind once."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.graph import Graph
from anabranch.ir.ops import packet_name
from anabranch.trace import Trace

WHERE = "frontend"
MOST_NAMED = 10
"""Attributes that a warning names."""
NOT_CHANGED = (
    "what is compiled does not, and computes what the model's next call would; compiling left them "
    "as they were"
)
CHECKED = frozenset(
    f"aten.{name}"
    for name in ("linalg_cholesky_ex", "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex")
)
"""Their last result says whether they failed."""
UNCHECKED = (
    "raises for a matrix that is singular or not positive definite, and a plan does not: it gives "
    "numbers without meaning there; look at the matrices before, or return the info of the "
    "operator's _ex form"
)


def warn(trace: Trace, model: str, why: str) -> None:
    """An event and a Python warning. A trace is of one model, which is warned of once for each of
    the things that begin with the same two words."""
    known = (event.why.split()[:2] for event in trace.events if event.where == WHERE)
    if why.split()[:2] in known:
        return
    trace.warn(WHERE, model, why)


def warn_of_changes(trace: Trace, model: str, changed: Sequence[str]) -> None:
    """What a call of the model changes beside its results, if anything."""
    if changed:
        told = ", ".join(changed[:MOST_NAMED]) + (", ..." if len(changed) > MOST_NAMED else "")
        warn(trace, model, f"forward changes {told}: {NOT_CHANGED}")


def warn_of_checks(trace: Trace, graph: Graph) -> None:
    """What a plan does not look at: whether torch.linalg could do what it was asked for. Eager
    waits for that answer and raises; the graph has the operators that give it, and nobody reads
    it."""
    read = {ref.name for ref in graph.outputs}.union(*(node.uses for node in graph.nodes))
    for node in graph.nodes:
        if packet_name(node.op) in CHECKED and node.results[-1] not in read:
            name = packet_name(node.op).removeprefix("aten.").strip("_").removesuffix("_ex")
            where = f" ({node.origin})" if node.origin else ""
            warn(trace, graph.name, f"torch's {name}{where} {UNCHECKED}")
