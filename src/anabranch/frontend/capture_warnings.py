"""Warnings to users while a model is captured: an event and a Python warning, each kind once."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.frontend.python_state import LOST
from anabranch.ir.plan import ValueCheck
from anabranch.trace import Trace

WHERE = "frontend"
MOST_NAMED = 10
"""Attributes that a warning names."""
NOT_CHANGED = (
    "what is compiled does not, and computes what the model's next call would; compiling left them "
    "as they were"
)
NOT_READ = "what is compiled does not, and has what was read when it was captured"
UNCHECKED = (
    "raises for some values, and a plan does not: nobody knows how to make it after a call; check "
    "outside of the model, or as a comparison of numbers (torch._check(x.item() <= 8))"
)


def warn(trace: Trace, model: str, why: str) -> None:
    """An event and a Python warning. A trace is of one model, which is warned of once for each of
    the things that begin with the same two words."""
    warned = (event.why.split()[:2] for event in trace.events if event.where == WHERE)
    if why.split()[:2] in warned:
        return
    trace.warn(WHERE, model, why)


def warn_of_changes(trace: Trace, model: str, changed: Sequence[str]) -> None:
    """What a call of the model changes beside its results, if anything."""
    if changed:
        names = [name.removesuffix(LOST) for name in changed]
        lost = [name.removesuffix(LOST) for name in changed if name.endswith(LOST)]
        but = f", but for {_few(lost)}: nobody can put that back, set it anew" if lost else ""
        warn(trace, model, f"forward changes {_few(names)}: {NOT_CHANGED}{but}")


def warn_of_reads(trace: Trace, model: str, reads: Sequence[str]) -> None:
    """Names the values outside of the model and its inputs that a call of it reads, if any."""
    if reads:
        warn(trace, model, f"forward reads {_few(reads)}: {NOT_READ}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


def warn_of_checks(trace: Trace, model: str, checks: Sequence[ValueCheck]) -> None:
    """The first of the checks that the model makes of values and a plan does not."""
    for check in checks:
        if check.ref is None:
            where = f" ({check.origin})" if check.origin else ""
            warn(trace, model, f"the check{where} {UNCHECKED}")
