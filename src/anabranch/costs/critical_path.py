"""Paths: how long the slowest chain of tasks takes on a machine that is wide enough for all others.

    a 4 --+--> b 5 --+--> d 2        b goes on from a in its lane, and d from b:
          +--> c 3 --+               4 + max(release + 5, fork + lane + 3 + lane) + 2

The times of a fork and of a change of lane are numbers of the machine (`ir.calibration`), used
about as `costs.gpu_simulator` does. That model needs a launch order, and streams; here everybody
has a good one: of those that wait for a launch the one with the longest way to go starts first and
goes on in its lane, the others later and in lanes of their own, the less urgent the later. So
graphs that differ in the order of their nodes alone are equally long, but for nodes that are hard
to tell apart.

Tasks that take no time are no launches: whoever waits for one waits for those before it. A node
that waits for nothing starts like one that waits for one launch, for most graphs that are priced
are parts of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import bits, unimplied


def longest_path(
    times: Sequence[float], preds: Sequence[Iterable[int]], machine: Calibration
) -> float:
    """The time of the slowest chain of dependent nodes, in the unit of the times (and of the
    machine's, microseconds). `preds`: for each node the earlier ones that it waits for."""
    if not (machine.fork_us or machine.lane_us or machine.release_us):
        return max(_ends(times, preds), default=0.0)
    direct = _needed(times, preds)
    readers: list[list[int]] = [[] for _ in times]
    for node, before in enumerate(direct):
        if times[node]:
            for pred in before:
                readers[pred].append(node)
    to_go = [0.0] * len(times)
    for node in reversed(range(len(times))):
        to_go[node] = times[node] + max([to_go[reader] for reader in readers[node]], default=0.0)

    came = _ends(times, direct)

    def urgent(nodes: list[int]) -> list[int]:
        def key(node: int) -> tuple[float, float, int, int, int]:
            return -to_go[node], -came[node], len(direct[node]), len(readers[node]), node

        return sorted(nodes, key=key)

    rank: dict[tuple[int, int], int] = {}  # 0 where nobody else waits for the launch
    for node, after in enumerate(readers):
        if len(after) > 1:
            rank.update(((node, reader), place) for place, reader in enumerate(urgent(after)))
    first = urgent([v for v, before in enumerate(direct) if not before and times[v]])
    starts = {node: place * machine.fork_us for place, node in enumerate(first)}
    done: list[float] = []
    for node, before in enumerate(direct):
        if not times[node]:
            done.append(max([done[p] for p in before], default=0.0))
            continue
        at, heir = starts.get(node, 0.0), -1
        for p in before:
            if not rank.get((p, node)) and (heir < 0 or done[p] > done[heir]):
                heir = p
        for p in before:
            late = machine.release_us if len(readers[p]) > 1 else 0.0
            if p != heir:
                behind = max(0.0, times[p] - machine.short_us)
                late = rank.get((p, node), 0) * machine.fork_us + min(machine.lane_us, behind)
            at = max(at, done[p] + late)
        done.append(at + times[node])
    return max(done, default=0.0)


def _ends(times: Sequence[float], preds: Sequence[Iterable[int]]) -> list[float]:
    done: list[float] = []
    for own, before in zip(times, preds, strict=True):
        done.append(own + max((done[i] for i in before), default=0.0))
    return done


def _needed(times: Sequence[float], preds: Sequence[Iterable[int]]) -> list[list[int]]:
    """For each node those that it waits for, and that take time: no others imply them."""
    before: list[int] = []
    needed: list[int] = []
    for waits in preds:
        direct = 0
        for p in waits:
            direct |= 1 << p if times[p] else needed[p]
        kept, implied = unimplied(direct, before)
        before.append(implied)
        needed.append(kept)
    return [[*bits(kept)][::-1] for kept in needed]
