"""How long values live: TaskGraph, Schedule -> for each value the launches that touch its bytes.

On several streams "last use" is not a moment but a set of launches, of which none need be the last.
Bytes may be given on only to a value whose writer surely starts after *all* of them have ended:

    stream 0:  a ----> c ----------> e        a is touched by a, b, c
    stream 1:     `-> b ---> d ---´           d may not reuse a (c may still run), e may

The end of the run is one more position, after all launches: outputs are touched there. The parts of
an elided concat share one buffer that each of them writes a slice of: what was there before must
have ended before any of them starts.

A result may take the place of what its own launch is the last to read, where its kernel may write
over that: both are one buffer then, which lives from the first writer to the last reader.

    stream 0:  a --reads a, writes b over it--> b -------> c        one buffer: a, then b
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.schedule import Schedule, happens_before
from anabranch.ir.task import TaskGraph, owners, places, value_types


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer: the position of the first launch that writes it, and the mask of all launches that
    touch it, the writer included (bit = position in `Schedule.launches`; one more bit is the end).
    `later`: the positions of other launches that write parts of it.

    >>> Lifetime("relu", 2048, writer=1, touches=0b110)
    Lifetime(value='relu', nbytes=2048, writer=1, touches=6, later=())
    """

    value: str
    nbytes: int
    writer: int
    touches: int
    later: tuple[int, ...] = ()

    @property
    def writers(self) -> tuple[int, ...]:
        """Positions of all launches that write the buffer, the first one first."""
        return (self.writer, *self.later)


def lifetimes(
    tasks: TaskGraph, schedule: Schedule, held: Collection[str] = ()
) -> tuple[Lifetime, ...]:
    """One for each value that a task writes, but for what is written in the memory of an input, and
    each elided concat, in launch order of the writers. Reading
    an alias touches its base, and a part the whole. Outputs, and the values in `held`, live to the
    end."""
    by_name = {task.name: task for task in tasks.tasks}
    bases, types = owners(tasks), value_types(tasks)
    writers: dict[str, dict[int, None]] = {}
    touches: dict[str, int] = {}
    elsewhere = set(places(tasks))
    for i, launch in enumerate(schedule.launches):
        for name in dict.fromkeys(by_name[launch.task].writes):
            if name in elsewhere:
                continue
            base = bases.get(name, name)
            writers.setdefault(base, {})[i] = None
            touches[base] = touches.get(base, 0) | 1 << i
    for i, launch in enumerate(schedule.launches):
        for name in by_name[launch.task].reads:
            base = bases.get(name, name)
            if base in writers:
                touches[base] |= 1 << i
    for name in (*(ref.name for ref in tasks.outputs), *held):
        base = bases.get(name, name)
        if base in writers:
            touches[base] |= 1 << len(schedule.launches)
    return tuple(
        Lifetime(name, types[name].nbytes, first, touches[name], tuple(later))
        for name, (first, *later) in writers.items()
    )


Overwritable = Mapping[str, Sequence[str]]
"""By the name of a result those of the values that its task reads whose places its kernel may write
it to, the best first: roots of aliases, of the result's size."""


def taken_over(
    values: Sequence[Lifetime],
    before: Sequence[int],
    overwritable: Overwritable,
    apart: Collection[str] = (),
) -> dict[str, str]:
    """By result the value whose place it takes: one whose other touches have all ended when the
    result's writer starts. Each place is taken by one result. `values`, `before`: under a schedule,
    and so in each that orders more; `apart`: values that lie in no arena, or in parts."""
    lives = {value.value: value for value in values if value.value not in apart}
    taken, gone = dict[str, str](), set[str]()
    for value in values:
        if value.value not in lives or value.later:
            continue
        ended = before[value.writer] | 1 << value.writer
        for old in overwritable.get(value.value, ()):
            there = lives.get(old)
            if there is None or there.later or old in gone:
                continue
            if not there.touches & ~ended and there.nbytes == value.nbytes:
                taken[value.value] = old
                gone.add(old)
                break
    return taken


def joined(values: Sequence[Lifetime], taken: Mapping[str, str]) -> list[Lifetime]:
    """The lifetimes of buffers: values that take each other's places are one, by the name of the
    first of them."""
    root = places_of(taken)
    touches: dict[str, int] = {}
    for value in values:
        first = root.get(value.value, value.value)
        touches[first] = touches.get(first, 0) | value.touches
    return [
        replace(value, touches=touches[value.value]) for value in values if value.value not in root
    ]


def places_of(taken: Mapping[str, str]) -> dict[str, str]:
    """For each value that takes a place, the value that was there first."""
    root: dict[str, str] = {}
    for value, old in taken.items():  # in launch order: what was there comes first
        root[value] = root.get(old, old)
    return root


def before_masks(schedule: Schedule) -> list[int]:
    """`happens_before` by position, and one entry more for the end, which comes after all."""
    before = happens_before(schedule)
    masks = [before[launch.task] for launch in schedule.launches]
    return [*masks, (1 << len(masks)) - 1]


def may_share(a: Lifetime, b: Lifetime, before: Sequence[int]) -> bool:
    """Whether all touches of one surely end before any part of the other is written."""

    def ends(buffer: Lifetime, other: Lifetime) -> bool:
        return not any(buffer.touches & ~before[writer] for writer in other.writers)

    return ends(a, b) or ends(b, a)


def release_point(value: Lifetime, schedule: Schedule, before: Sequence[int]) -> str | None:
    """The first task on the writer's stream that comes after all touches of the value, and so do
    all later ones on that stream: from there an allocator that thinks in streams may give the
    bytes on. None if there is no such task."""
    stream = schedule.launches[value.writer].stream
    for i in range(value.writer + 1, len(schedule.launches)):
        if schedule.launches[i].stream == stream and not value.touches & ~before[i]:
            return schedule.launches[i].task
    return None
