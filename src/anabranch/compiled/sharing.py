"""What the plans of one compiled model share: an arena, and with other sessions the weights.

plans 1, 8, 64      one arena, as large as that of 64; who was loaded before is loaded anew
session()           the same plans and weights; an arena and states of its own
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from anabranch.compiled.entry import Entry
from anabranch.errors import TargetError
from anabranch.frontend.surroundings import neutral
from anabranch.ir.protocols import Executable, Target


def widest(entries: Sequence[Entry]) -> Executable | None:
    """The plan with the largest arena, as it is loaded; None where none is."""
    runs = [entry.run for entry in entries if entry.run is not None]
    return max(runs, key=lambda run: run.arena.numel(), default=None)


def share_arena(entries: list[Entry], target: Target) -> bool:
    """Have all plans use the largest arena: those that do not are loaded anew, in place of what was
    in the list. Whether there were any."""
    largest = widest(entries)
    apart = [
        number
        for number, entry in enumerate(entries)
        if largest is not None and entry.run is not None and entry.run.arena is not largest.arena
    ]
    with neutral():
        for number in apart:
            entry = entries[number]
            held = entry.run.states if entry.run is not None else {}
            run = target.load(entry.plan, beside=largest, states=held or None)
            entries[number] = replace(entry, run=run)
    return bool(apart)


def with_states(
    entries: Sequence[Entry], target: Target, first: Mapping[str, Tensor]
) -> list[Entry]:
    """The plans loaded for a session: with one arena, and copies of the states' `first` values, by
    what the model calls them. TargetError where nothing runs."""
    if target.spec.simulated:
        raise TargetError(
            "a session was asked of a model that is compiled for a simulated GPU",
            "nothing runs there, so there are no states",
            "compile for target='cpu', or on the GPU itself",
        )
    return at_places(entries, target, {path: value.clone() for path, value in first.items()})


def at_places(
    entries: Sequence[Entry], target: Target, places: Mapping[str, Tensor]
) -> list[Entry]:
    """The plans loaded anew, with one arena, and states that lie there, by what the model calls
    them."""
    loaded: list[Entry] = []
    with neutral():
        for entry in entries:
            own = {state.name: places[state.path] for state in entry.plan.tasks.states}
            run = target.load(entry.plan, beside=widest(loaded), states=own)
            loaded.append(replace(entry, run=run))
    return loaded


@contextlib.contextmanager
def waiting(entries: Iterable[Entry]) -> Iterator[None]:
    """No call of these plans runs meanwhile: what they read is written to."""
    with contextlib.ExitStack() as held:
        for entry in entries:
            if entry.run is not None:
                held.enter_context(entry.run.writing())
        yield
