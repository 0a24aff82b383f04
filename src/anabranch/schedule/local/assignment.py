"""A placing: launch order and stream of each task, and the steps from one placing to another.

A launch order that respects the edges is legal under any streams, and any streams are legal under
such an order: the waits follow from both (`event_waits`). So a step never has to be repaired.

    order a b c d                     stream   b moves to stream 1
    streams 0 0 1 0                   shift    c goes before b
                                      unit     a chain moves to one stream, right after its inputs
         +--> b --+                   beside   d follows c on its stream
    a -->|        +--> d              tails    from c on, streams 0 and 1 change their names
         +--> c --+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from anabranch.ir.dag import Dag, bits
from anabranch.ir.schedule import Schedule
from anabranch.schedule.chains import chains
from anabranch.schedule.event_waits import launches


@dataclass(frozen=True, slots=True)
class Placing:
    """Tasks by number in launch order, and for each task its stream."""

    order: tuple[int, ...]
    stream_of: tuple[int, ...]


def placing_of(schedule: Schedule, dag: Dag) -> Placing:
    """What a schedule of the dag says of order and streams."""
    number = {name: v for v, name in enumerate(dag.names)}
    stream_of = [0] * len(dag.names)
    for launch in schedule.launches:
        stream_of[number[launch.task]] = launch.stream
    order = tuple(number[launch.task] for launch in schedule.launches)
    return Placing(order, tuple(stream_of))


def schedule_of(scheduler: str, dag: Dag, placing: Placing) -> Schedule:
    """The placing as launches with the fewest waits."""
    return Schedule(scheduler, launches(dag, placing.order, placing.stream_of))


def breaks(dag: Dag, placing: Placing) -> int:
    """Tasks that do not follow one of their inputs on its stream: each is an edge more."""
    last: dict[int, int] = {}
    count = 0
    for v in placing.order:
        stream = placing.stream_of[v]
        before = last.get(stream)
        if before is None:
            count += dag.preds[v] != 0
        elif not dag.preds[v] >> before & 1:
            count += 1
        last[stream] = v
    return count


class AssignmentMoves:
    """Random steps on the placings of one dag, of which only `movable` nodes move."""

    def __init__(self, dag: Dag, movable: Sequence[int], max_streams: int, dice: Random) -> None:
        self._dag, self._movable, self._max_streams, self._dice = dag, movable, max_streams, dice
        free = set(movable)
        self._units = [
            unit for unit in (list(bits(mask)) for mask in chains(dag)) if free.issuperset(unit)
        ]

    def step(self, placing: Placing) -> Placing:
        """Another placing, one step away, or the same one where the step leads nowhere."""
        dice = self._dice.random()
        if dice < 0.3:
            return self._stream(placing)
        if dice < 0.5:
            return self._shift(placing)
        if dice < 0.65 and self._units:
            return self._unit(placing)
        if dice < 0.9:
            return self._beside(placing)
        return self._tails(placing)

    def _target(self, placing: Placing) -> int:
        """A stream in use, or one that is not."""
        used = sorted(set(placing.stream_of))
        fresh = next((s for s in range(self._max_streams) if s not in used), None)
        return self._dice.choice(used if fresh is None else [*used, fresh])

    def _stream(self, placing: Placing) -> Placing:
        stream_of = list(placing.stream_of)
        stream_of[self._dice.choice(self._movable)] = self._target(placing)
        return Placing(placing.order, tuple(stream_of))

    def _shift(self, placing: Placing) -> Placing:
        v = self._dice.choice(self._movable)
        low, high = self._range(placing.order, v)
        return Placing(_moved(placing.order, v, self._dice.randint(low, high)), placing.stream_of)

    def _unit(self, placing: Placing) -> Placing:
        unit = self._dice.choice(self._units)
        stream_of, target = list(placing.stream_of), self._target(placing)
        for v in unit:
            stream_of[v] = target
        order = placing.order
        if self._dice.random() < 0.5:
            for i, v in enumerate(unit):
                at = self._range(order, v)[0] if i == 0 else order.index(unit[i - 1]) + 1
                order = _moved(order, v, at)
        return Placing(order, tuple(stream_of))

    def _beside(self, placing: Placing) -> Placing:
        """Next to another node in launch order, on its stream."""
        v = self._dice.choice(self._movable)
        low, high = self._range(placing.order, v)
        if low == high:
            return placing
        at = self._dice.randint(low, high)
        order = _moved(placing.order, v, at)
        neighbour = order[at - 1] if at > low else order[at + 1]
        stream_of = list(placing.stream_of)
        stream_of[v] = stream_of[neighbour]
        return Placing(order, tuple(stream_of))

    def _tails(self, placing: Placing) -> Placing:
        v = self._dice.choice(self._movable)
        a, b = placing.stream_of[v], self._target(placing)
        if a == b:
            return placing
        changed = {a: b, b: a}
        stream_of, free = list(placing.stream_of), set(self._movable)
        for u in placing.order[placing.order.index(v) :]:
            if u in free:
                stream_of[u] = changed.get(stream_of[u], stream_of[u])
        return Placing(placing.order, tuple(stream_of))

    def _range(self, order: Sequence[int], v: int) -> tuple[int, int]:
        """The first and the last place that v may take."""
        preds, succs = self._dag.preds[v], self._dag.succs[v]
        low = high = order.index(v)
        while low and not preds >> order[low - 1] & 1:
            low -= 1
        while high + 1 < len(order) and not succs >> order[high + 1] & 1:
            high += 1
        return low, high


def _moved(order: tuple[int, ...], v: int, to: int) -> tuple[int, ...]:
    at = order.index(v)
    rest = order[:at] + order[at + 1 :]
    return (*rest[:to], v, *rest[to:])
