"""What kernels do that share a machine: tasks, order, streams -> microseconds, often and quickly.

A discrete-event model. Its numbers are the machine's `Calibration`, fitted to measurements.

Launch. A launch is ready when its predecessor on the stream and all it waits for have ended. The
second of the launches that wait for one starts `fork_us` after the first, the third twice that; of
those that wait for none, the second `split_us` after the first, each further `root_us` later (up to
`ROOTS`, which is what was seen). Launches anywhere are `dispatch_us` apart. The first `launch_us`
of a kernel holds no processor: there the launches of several streams overlap. The run ends when all
have, and `end_us` later for each of those but one that nothing waits for.

Lanes. While a kernel runs, the next one of its lane (`costs.graph_lanes`) is made ready. A launch
that waits for one of another lane has that before it: it starts up to `lane_us` later, if the other
took longer than `short_us`, for behind a shorter one nothing is made ready in time in its own lane,
too. And a kernel that another lane waits for has to tell it so, before the next of its own lane
starts: `release_us` later.

Slots. Then its CTAs queue for the processors, behind those of kernels that came before. One CTA
takes the part of a processor that its registers, threads or shared memory take. The CTAs that fit
start at once and run for the kernel's time divided by the number of turns that it needs alone; the
rest starts as CTAs end, of whatever kernel:

    slots   |aaaaaaaaaaaaaaaaaa|aaaaaaabbbbbbbbbbb|bbb           a: 1.4 turns; b, that came later,
            |aaaaaaaaaaaaaaaaaa|bbbbbbbbbbb       |              fills what a leaves of its second

Pressure. All that runs slows down alike, where together it asks for more than the reachable part of
the bandwidth or of the arithmetic, and by `sharing` for every CTA on each processor that a kernel
finds there of others (in the mean over those that run; a kernel counts for one CTA a processor at
most). That it begins with the first of them, and not when processors are full, is seen in traces of
single kernels: 1.1 times as long beside a quarter of a CTA, 1.2 beside three quarters, 1.35 beside
two. So there is one clock for all work under way, which ticks slower under pressure, and an event
costs a few list operations however much is running.

Cache. Tasks are timed alone in a row of themselves, with all they read near at hand. After other
kernels it is further away, be it weights or what they have just written: a task waits for `cold`
times its traffic, of independent parts in one launch the longest. Of much traffic most comes while
the task computes with what has come, so the wait grows less and less (`hidden_us`): at batch 16 a
wait that grew with all of it had whole networks off by up to 72%. That holds no processor either.
It is so in networks whose traffic the cache cannot hold from one run to the next
(`costs.resource_demand.evicted`); small ones wait for nothing.

Costs are those of one of `ROW` in a row, and carry their part of the run's `start_us`, which is
taken off: a chain is the sum of what is left, and the start once.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from anabranch.costs.launches import Launches, launches_of, linked
from anabranch.costs.resource_demand import Demand, Kernels, kernels_of
from anabranch.errors import VerifyError
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag, bits
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec

ROOTS = 16
"""So many starts of a run come one after another; more were not seen to take longer."""
REMEMBERED = 1 << 7
"""Schedules whose latency a simulator remembers."""


@dataclass(frozen=True, slots=True)
class SimulatedTimes:
    """By launch: when it became ready, and when it ended; and when all had."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    latency: float


class Simulator:
    """Latencies of schedules of one graph: prepared once, asked many times.

    simulator = Simulator.of(dag, demands, spec, calibration)
    simulator.latency(order, streams)      tasks by number, in launch order; the stream of each task
    """

    def __init__(self, preds: Sequence[int], kernels: Kernels, calibration: Calibration) -> None:
        self._preds, self._kernels, self._calibration = preds, kernels, calibration
        self._inputs = [tuple(bits(mask)) for mask in preds]
        # Searches come back to what they left, and streams may change their names.
        self._latency_of = functools.lru_cache(maxsize=REMEMBERED)(
            lambda launches: _run(launches, kernels, calibration).latency
        )

    @classmethod
    def of(
        cls, dag: Dag, demands: Sequence[Demand], spec: TargetSpec, calibration: Calibration
    ) -> Simulator:
        """For tasks with these demands, which are numbered as in the dag."""
        return cls(dag.preds, kernels_of(dag, demands, spec, calibration), calibration)

    def part(self, nodes: Sequence[int]) -> Simulator:
        """For these tasks alone, given in rising order, with what the whole does to the cache.
        Where they end, others go on."""
        place = {v: i for i, v in enumerate(nodes)}
        preds = [sum(1 << place[u] for u in bits(self._preds[v]) if u in place) for v in nodes]
        return Simulator(preds, self._kernels.part(nodes), replace(self._calibration, end_us=0.0))

    def signature(self) -> Hashable:
        """Equal for simulators that give equal latencies."""
        return tuple(self._preds), tuple(map(tuple, self._kernels.columns())), self._calibration

    def latency(self, order: Sequence[int], streams: Sequence[int]) -> float:
        """With the fewest waits that make the order safe."""
        return self._latency_of(self.launches(order, streams))

    def run(self, launches: Launches) -> SimulatedTimes:
        """When each launch would start and end."""
        return _run(launches, self._kernels, self._calibration)

    def captured(self, schedule: Schedule, names: Sequence[str]) -> Launches:
        """A schedule with the waits that it has; tasks are numbered as in `names`."""
        return launches_of(schedule, names, self._kernels.bound)

    def launches(self, order: Sequence[int], streams: Sequence[int]) -> Launches:
        """An order and streams with the waits they need: those that others imply, at any distance,
        are left out, that for the launch before on the stream included."""
        preds, inputs = self._preds, self._inputs
        place, last = [0] * len(preds), dict[int, int]()
        before = [0] * len(preds)
        direct: list[list[int]] = []
        for at, v in enumerate(order):
            stream = streams[v]
            place[v], behind, mine = at, 0, 0
            previous = last.get(stream)
            if previous is not None:
                mine = before[previous] | 1 << previous
            waits = [u for u in inputs[v] if not mine >> u & 1]
            for u in waits:
                behind |= before[u]
            if previous is not None and not behind >> previous & 1:
                waits.append(previous)
            direct.append([place[u] for u in waits if not behind >> u & 1])
            before[v] = mine | behind | preds[v]
            last[stream] = v
        return linked(order, direct, [streams[v] for v in order], self._kernels.bound)


def _run(launches: Launches, kernels: Kernels, calibration: Calibration) -> SimulatedTimes:
    """The event loop. It is one function with local names because schedulers call it thousands of
    times: `arrivals` are kernels whose CTAs will queue, by time; `ends` are batches of CTAs under
    way, by the clock of the work, which runs `slow` times slower than time."""
    task, lane, n = launches.task, launches.lane, len(launches.task)
    fork, apart, sharing = calibration.fork_us, calibration.dispatch_us, calibration.sharing
    release = calibration.release_us
    dependents, heard = launches.dependents, launches.heard
    lead, turn, ahead, held = kernels.lead, kernels.turn, kernels.ahead, kernels.held
    bandwidth_of, arithmetic_of, cover_of = kernels.bandwidth, kernels.arithmetic, kernels.cover
    ctas = kernels.ctas
    ready, left = [0.0] * n, list(launches.preds)
    starts, done = [0.0] * n, [-1.0] * n
    undone = [ctas[v] for v in task]
    waiting = undone[:]
    arrivals: list[tuple[float, int]] = []
    ends: list[tuple[float, int, int]] = []
    queue: deque[int] = deque()
    now = clock = front = latency = 0.0
    slow, free = 1.0, kernels.processors
    bandwidth = arithmetic = cover = 0.0
    running = roots = 0
    for i in range(n):
        if not left[i]:
            if 0 < roots < ROOTS:
                front += calibration.root_us if roots > 1 else calibration.split_us
            starts[i] = front
            heappush(arrivals, (front + lead[task[i]], i))
            roots += 1
    front = apart
    while arrivals or ends:
        end = now + (ends[0][0] - clock) * slow if ends else math.inf
        if arrivals and arrivals[0][0] <= end:
            at, i = heappop(arrivals)
            clock += (at - now) / slow
            now = at
            queue.append(i)
        else:
            now = end
            clock, i, k = heappop(ends)
            v = task[i]
            free += k * held[v]
            bandwidth -= k * bandwidth_of[v]
            arithmetic -= k * arithmetic_of[v]
            cover -= k * cover_of[v]
            undone[i] -= k
            if not undone[i]:
                done[i] = latency = now
                running -= 1
                took = turn[v] > 0 or lead[v] > 0
                told = release if took and heard[i] else 0.0
                for rank, j in enumerate(dependents[i]):
                    at = now + (rank * fork if took else 0.0)
                    at += told if lane[i] == lane[j] else ahead[v]
                    if at > ready[j]:
                        ready[j] = at
                    left[j] -= 1
                    if not left[j]:
                        w = task[j]
                        at = ready[j]
                        if turn[w] > 0 or lead[w] > 0:
                            at = max(at, front)
                            front = at + apart
                        starts[j] = at
                        heappush(arrivals, (at + lead[w], j))
        while queue:
            i = queue[0]
            v = task[i]
            k = min(waiting[i], int(free / held[v] + 1e-6))
            if not k:
                break
            running += waiting[i] == ctas[v]
            heappush(ends, (clock + turn[v], i, k))
            free -= k * held[v]
            bandwidth += k * bandwidth_of[v]
            arithmetic += k * arithmetic_of[v]
            cover += k * cover_of[v]
            waiting[i] -= k
            if not waiting[i]:
                queue.popleft()
        if not ends:  # nothing runs: begin anew, without what rounding left behind
            free, bandwidth, arithmetic, cover = kernels.processors, 0.0, 0.0, 0.0
        slow = max(1.0, bandwidth, arithmetic)
        if running > 1:
            slow *= 1.0 + sharing * cover * (1.0 - 1.0 / running)
    if min(done, default=0.0) < 0:
        raise VerifyError(f"a schedule never starts {sum(end < 0 for end in done)} of its launches")
    last = sum(not after for after in launches.dependents)
    latency += calibration.start_us + calibration.end_us * (last - 1) if n else 0.0
    return SimulatedTimes(tuple(starts), tuple(done), latency)
