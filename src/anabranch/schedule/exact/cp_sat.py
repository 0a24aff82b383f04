"""Exact: a small dag -> the fastest schedule there is, a proven bound, and the gap between them.

CP-SAT (OR-tools) chooses a start for each task on the machine of `local.occupancy_model`: tasks
hold their shares of it (one cumulative resource), inputs end before their readers start, forks and
joins cost.

The cost of a fork or a join depends on which edges a launch really has, and an edge disappears
where others imply it: if b is made to wait for c, then d, which reads both, waits for b alone.

         +--> b --+          b beside c: d waits for two, a starts two
    a -->|        +--> d     b after c:  d waits for b, a starts c; no fork, no join
         +--> c --+

So each edge u -> v may be *implied* by any task that starts after u ends and ends before v starts.
That is necessary for an edge to be dropped and not sufficient, so no placing beats the bound, and
the streams found for the solver's starts may fail to reach it. The local search then goes on from
them (`local.improve`); `us` is what the schedule really takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.deadline import TIME
from anabranch.errors import ScheduleError
from anabranch.ir.dag import minimum_equivalent
from anabranch.ir.schedule import Schedule
from anabranch.schedule.exact.ortools_door import cp_sat
from anabranch.schedule.local.assignment import Placing, placing_of, schedule_of
from anabranch.schedule.local.occupancy_model import ROOM, TICKS, Problem, local_search, makespan

MOST_TASKS = 40
EVALUATIONS = 4_000
"""Evaluations of the local search, where the solver's starts do not reach the bound."""


@dataclass(frozen=True, slots=True)
class Exact:
    """`us`: the schedule's time on the rigid machine; `bound`: what no schedule can beat; `gap`:
    how far apart they are, 0 if the schedule is proven optimal."""

    schedule: Schedule
    us: float
    bound: float

    @property
    def gap(self) -> float:
        """How much longer than the bound the schedule is, as a fraction; 0 where it is proven
        optimal."""
        return self.us / self.bound - 1 if self.bound else 0.0


def exact(
    problem: Problem, initial: list[Placing], max_streams: int = 16, seconds: float = TIME.exact_s
) -> Exact:
    """The best schedule found within so many seconds. `initial`: placings to begin with, at least
    one; what comes back is no slower than they are. ScheduleError above `MOST_TASKS` tasks."""
    dag = problem.dag
    if len(dag.names) > MOST_TASKS:
        raise ScheduleError(
            f"{len(dag.names)} tasks are too many for an exact schedule",
            f"the solver is given at most {MOST_TASKS}",
            "cut the graph into blocks, or use another scheduler",
        )
    best = min(initial, key=lambda placing: makespan(problem, placing))
    solution = _ConstraintModel(problem, makespan(problem, best)).solve(seconds)
    placings = [best]
    if solution.starts:
        placings.append(placed(problem, solution.starts, max_streams))
    best = min(placings, key=lambda placing: makespan(problem, placing))
    if makespan(problem, best) > solution.bound:
        best = local_search(problem, placings, max_streams, EVALUATIONS)
    return Exact(
        schedule_of("exact", dag, best), makespan(problem, best) / TICKS, solution.bound / TICKS
    )


def placed(problem: Problem, starts: list[int], max_streams: int) -> Placing:
    """Streams for given starts: of those that are idle by then the one of an input, else the one
    that was used last, else a new one; if there is none left the first to be idle."""
    dag, ends = problem.dag, [s + t for s, t in zip(starts, problem.ticks, strict=True)]
    order = sorted(range(len(starts)), key=lambda v: (starts[v], v))
    stream_of = [0] * len(starts)
    tail: dict[int, int] = {}
    for v in order:
        idle = [s for s, u in tail.items() if ends[u] <= starts[v]]
        if idle:
            stream = max(idle, key=lambda s: (dag.preds[v] >> tail[s] & 1, ends[tail[s]], -s))
        elif len(tail) < max_streams:
            stream = len(tail)
        else:
            stream = min(tail, key=lambda s: (ends[tail[s]], s))
        stream_of[v], tail[stream] = stream, v
    return Placing(tuple(order), tuple(stream_of))


def gap_of(problem: Problem, schedule: Schedule, bound: float) -> float:
    """How far a schedule is above a bound (in microseconds): 0.1 is a tenth."""
    us = makespan(problem, placing_of(schedule, problem.dag)) / TICKS
    return us / bound - 1 if bound else 0.0


@dataclass(frozen=True, slots=True)
class _Starts:
    starts: list[int]
    bound: int


class _ConstraintModel:
    """The constraint model of one problem; `most`: ticks that are surely enough."""

    def __init__(self, problem: Problem, most: int) -> None:
        self._cp = cp_sat()
        self._problem, self._most = problem, most
        self._dag = minimum_equivalent(problem.dag)
        self._model = self._cp.CpModel()
        self._start = [
            self._model.new_int_var(0, most, f"start{v}") for v in range(len(problem.ticks))
        ]
        self._end = [
            start + length for start, length in zip(self._start, problem.ticks, strict=True)
        ]
        self._makespan = self._model.new_int_var(0, most, "makespan")
        self._share_the_machine()
        implied = {(u, v): self._implied(u, v) for u, v in self._dag.edges()}
        delay = self._joins(implied)
        self._forks(implied, delay)
        self._model.minimize(self._makespan)

    def solve(self, seconds: float) -> _Starts:
        solver = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.max_deterministic_time = TIME.exact_work_s
        solver.parameters.random_seed = 0
        solver.parameters.num_workers = 2
        solver.parameters.interleave_search = True  # the same answer every time
        status = solver.solve(self._model)
        bound = max(0, round(solver.best_objective_bound))
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return _Starts([], bound)
        return _Starts([int(solver.value(start)) for start in self._start], bound)

    def _share_the_machine(self) -> None:
        model, problem = self._model, self._problem
        spans = [
            model.new_fixed_size_interval_var(start, length, f"span{v}")
            for v, (start, length) in enumerate(zip(self._start, problem.ticks, strict=True))
        ]
        model.add_cumulative(spans, list(problem.rooms), ROOM)
        for end in self._end:
            model.add(self._makespan >= end)

    def _implied(self, u: int, v: int) -> Any:
        """True only where some other task lies between u and v in time."""
        model = self._model
        before, after = self._problem.dag.ancestors(), self._problem.dag.descendants()
        outside = before[u] | after[v] | 1 << u | 1 << v
        between = []
        for q in range(len(self._start)):
            if not outside >> q & 1:
                x = model.new_bool_var(f"{u}<{q}<{v}")
                model.add(self._start[q] >= self._end[u]).only_enforce_if(x)
                model.add(self._start[v] >= self._end[q]).only_enforce_if(x)
                between.append(x)
        implied = model.new_bool_var(f"implied{u}-{v}")
        model.add(implied <= sum(between))
        return implied

    def _joins(self, implied: dict[tuple[int, int], Any]) -> list[Any]:
        """For each task its delay in ticks: half a fork for each edge into it beyond the first."""
        delays: list[Any] = []
        for v, length in enumerate(self._problem.ticks):
            into = [x for (_, w), x in implied.items() if w == v]
            if len(into) < 2 or not length:
                delays.append(0)
                continue
            count = self._model.new_int_var(0, len(into) - 1, f"joins{v}")
            self._model.add(count >= len(into) - 1 - sum(into))
            delays.append(count * self._problem.half_fork)
        return delays

    def _forks(self, implied: dict[tuple[int, int], Any], delay: list[Any]) -> None:
        """Inputs end, and the readers of one task have different turns to start."""
        model, half = self._model, self._problem.half_fork
        for u, length in enumerate(self._problem.ticks):
            readers = [v for w, v in implied if w == u]
            for v in readers:
                model.add(self._start[v] >= self._end[u] + delay[v])
            if len(readers) < 2 or not length:
                continue
            turns = [model.new_int_var(0, len(readers) - 1, f"turn{u}-{v}") for v in readers]
            model.add_all_different(turns)
            for v, turn in zip(readers, turns, strict=True):
                bound = self._end[u] + half * turn + delay[v]
                model.add(self._start[v] >= bound).only_enforce_if(implied[u, v].negated())
