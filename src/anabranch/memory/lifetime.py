"""How long values live: TaskGraph, Schedule -> for each value the launches that touch its bytes.

On several streams "last use" is not a moment but a set of launches, of which none need be the last.
Bytes may be given on only to a value whose writer surely starts after *all* of them have ended:

    stream 0:  a ----> c ----------> e        a is touched by a, b, c
    stream 1:     `-> b ---> d ---´           d may not reuse a (c may still run), e may

The end of the run is one more position, after all launches: outputs are touched there. The parts of
an elided concat share one buffer that each of them writes a slice of: what was there before must
have ended before any of them starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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
