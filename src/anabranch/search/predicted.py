"""Predicted: what graphs take by a model of kernel times alone, before any kernel is built.

    graph --cuts--> the cut whose kernels are predicted to take least --streams--> us, +- MARGIN

Who waits for seconds alone has one candidate, and no time to build the graph as it was beside it:
kernels, schedule, launch modes and the race of both took 6.6 s of the 14.5 in which a ViT was
ready, and 7.9 of a BERT's 17.1 (an H200's host of sixteen processors). The search for that
candidate is told this in place of what a device says (`evaluation`). What the candidate takes is
known once it is built: where the prediction was too good, the other graph is built after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import ANY_STREAMS, Cost
from anabranch.ir.refused import Refused
from anabranch.ir.task import TaskGraph
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.search.cost.estimator import Appraiser
from anabranch.search.cost.task_cuts import TaskCutter
from anabranch.search.protocols import Evaluators
from anabranch.search.result import Path
from anabranch.trace import Trace
from anabranch.tuning.build import fuse, simplified_or_recalled, tuner_of
from anabranch.tuning.job import Job
from anabranch.tuning.shortlist import predicted_costs

TOO_GOOD = 1.2
"""How many times what was predicted a graph may take for the prediction to be believed: in the
median, predictions of whole networks whose kernels nobody has timed are off by less (7%), and those
of a kernel that the model knows nothing alike of by much more: a linear with a recurrence behind it
takes 62 us, and was predicted to take 3.6."""


@dataclass(frozen=True, slots=True)
class PredictedGraph:
    """A graph, and the cut into tasks that is predicted to be its fastest. `tasks`: with kernels
    that have no texts; `cuts`: all that it was chosen from; `cost`: what the schedule is predicted
    to take; `trace`: what was said of the cut."""

    graph: Graph
    tasks: TaskGraph
    cuts: Sequence[TaskGraph]
    cost: Cost
    trace: Trace


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a search by predicted times ended with. `first`: the graph as it was; `taken`: the one
    that is predicted to be faster, or the same; `path`: the way there."""

    first: PredictedGraph
    taken: PredictedGraph
    path: Path

    def too_good(self, cost: Cost) -> Refused | None:
        """Why the graph as it was may be faster after all, None where it hardly is. `cost`: what
        the other one takes, now that it was built."""
        foreseen, first = self.taken.cost, self.first.cost
        if cost.us <= min(TOO_GOOD * foreseen.us, first.us):
            return None
        told = f"{cost.us:.2f} us {cost.source}, {foreseen.us:.2f} predicted"
        return Refused(f"{told}, {first.us:.2f} for the graph as it was: that is built as well")


class PredictedEvaluator:
    """Says of graphs what they are predicted to take. `margin`: the part of its time by which a
    graph must be predicted to be faster than another, to be taken for faster."""

    def __init__(self, job: Job, margin: float) -> None:
        self._job, self._margin = job, margin
        self._cuts = TaskCutter(job.target.spec, tuner_of(job).generates)
        self.cost_of = predicted_costs(job.target)

    def evaluators(self, alpha: float, machine: Calibration) -> Evaluators[PredictedGraph]:
        """As of a `CandidateEvaluator`."""

        def appraise(built: Sequence[PredictedGraph]) -> Appraiser:
            taken = [(task, self.cost_of(task)) for each in built for task in each.tasks.tasks]
            return Appraiser(taken, self._cuts, alpha, machine)

        return Evaluators(self._simplify, appraise, self.predicted, self._race)

    def predicted(self, graph: Graph) -> PredictedGraph:
        """The graph, cut, with what it is predicted to take."""
        options, spec = self._job.options, self._job.target.spec
        own = replace(self._job, trace=self._job.trace.child())
        cuts = fuse(own, graph)
        tasks = tuner_of(own).foreseen(cuts, own.trace)
        streams = 1 if options.scheduler == "sequential" else options.max_streams or ANY_STREAMS
        us = outlook_of(tasks, lambda task: self.cost_of(task).us, spec, streams)
        # Two costs are a tie that differ by less than their spreads together.
        cost = Cost(us, "estimated", self._margin / 2 * us)
        return PredictedGraph(graph, tasks, cuts, cost, own.trace)

    def _simplify(self, graph: Graph) -> Graph:
        # Kept: a start that finds the path begins with its graph, simplified.
        aside = replace(self._job, trace=self._job.trace.child())
        return simplified_or_recalled(aside, graph, lambda: None)

    def _race(self, graphs: Sequence[PredictedGraph]) -> list[Cost]:
        return [graph.cost for graph in graphs]
