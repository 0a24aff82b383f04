"""Schedule: on which stream, in which order, after which events. Timeline: what ran when.

    schedule greedy {
      conv1 @0
      conv2 @1 urgent
      concat @0 after conv2
    }

>>> Launch("concat", 0, ("conv2",))
Launch(task='concat', stream=0, waits=('conv2',), urgent=False)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from anabranch.ir.dag import Dag

CostSource = Literal["measured", "launched", "recorded", "estimated"]
"""launched: measured, but launch by launch, though a graph was wanted: the host's time is in it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One task on a stream, once the named tasks of other streams are done (event waits).
    `urgent`: where several could start, the device should start it first."""

    task: str
    stream: int
    waits: tuple[str, ...] = ()
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Launches in the order in which the host issues them.

    `stages`, where a scheduler thinks in them (IOS): per stage its groups, per group its tasks.
    The launches already say all of it, and only their waits say whether a barrier lies between two
    stages; stages are for people.
    """

    scheduler: str
    launches: tuple[Launch, ...]
    stages: tuple[tuple[tuple[str, ...], ...], ...] = field(default=())

    @property
    def streams(self) -> int:
        """How many streams the launches use."""
        return len({launch.stream for launch in self.launches})

    @property
    def waits(self) -> int:
        """The number of event waits."""
        return sum(len(launch.waits) for launch in self.launches)


@dataclass(frozen=True, slots=True)
class Span:
    """A task's time on a stream, in microseconds from the start."""

    task: str
    stream: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What ran when, predicted or measured; `latency` in microseconds."""

    spans: tuple[Span, ...]
    latency: float
    source: CostSource


def awaited(schedule: Schedule) -> list[set[int]]:
    """For each launch, by position in `launches`, those that it waits for: of other streams, and
    the one before it on its own."""
    position = {launch.task: i for i, launch in enumerate(schedule.launches)}
    last_on_stream: dict[int, int] = {}
    waits = []
    for i, launch in enumerate(schedule.launches):
        direct = {position[name] for name in launch.waits}
        if launch.stream in last_on_stream:
            direct.add(last_on_stream[launch.stream])
        last_on_stream[launch.stream] = i
        waits.append(direct)
    return waits


def happens_before(schedule: Schedule) -> dict[str, int]:
    """For each task the mask of launches (bit = position in `launches`) that surely end before it
    starts: those earlier on its stream, those it waits for, and theirs."""
    masks: list[int] = []
    for i, direct in enumerate(awaited(schedule)):
        mask = 0
        for p in direct:
            if p < i:
                mask |= masks[p] | 1 << p
        masks.append(mask)
    return {launch.task: masks[i] for i, launch in enumerate(schedule.launches)}


def text_schedule(schedule: Schedule) -> str:
    """The schedule as text, one launch a line; `parse_schedule` gives an equal one back."""
    lines = [f"schedule {schedule.scheduler} {{"]
    for launch in schedule.launches:
        after = f" after {' '.join(launch.waits)}" if launch.waits else ""
        urgent = " urgent" if launch.urgent else ""
        lines.append(f"  {launch.task} @{launch.stream}{urgent}{after}")
    for stage in schedule.stages:
        lines.append("  stage " + " | ".join(" ".join(group) for group in stage))
    return "\n".join([*lines, "}"]) + "\n"


def parse_schedule(text: str) -> Schedule:
    """The schedule that `text_schedule` printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    header = re.fullmatch(r"schedule (\S+) \{", lines[0])
    if header is None:
        raise ValueError(f"expected 'schedule NAME {{' in: {lines[0]}")
    launches, stages = [], []
    for line in lines[1:-1]:
        if line.startswith("stage "):
            groups = line.removeprefix("stage ").split(" | ")
            stages.append(tuple(tuple(group.split()) for group in groups))
            continue
        match = re.fullmatch(r"(\S+) @(\d+)( urgent)?(?: after (.+))?", line)
        if match is None:
            raise ValueError(f"expected 'TASK @STREAM [urgent] [after TASK ...]' in: {line}")
        waits = tuple((match[4] or "").split())
        launches.append(Launch(match[1], int(match[2]), waits, match[3] is not None))
    return Schedule(header[1], tuple(launches), tuple(stages))


def sequential_launches(dag: Dag) -> tuple[Launch, ...]:
    """Every node on stream 0, in the dag's own order."""
    return tuple(Launch(name, 0) for name in dag.names)
