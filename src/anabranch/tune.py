"""Tuning: from a rewritten graph to tasks that all have the fastest kernel there is for them.

    graph --partitions--> fine and coarse tasks --kernels--> the faster of both, group by group

The fine partition holds what libraries run in one call, the coarse one also what only generated
kernels can. Candidates that were generated run first in a process that may die of it (`rehearse`);
all are measured side by side, and the winner is compared with the task's body (`accept`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.accept import checker
from anabranch.cache import Cache
from anabranch.fuse import partition
from anabranch.fuse.choose import choose
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Costs, Limits, Provider, Target
from anabranch.ir.task import TaskGraph
from anabranch.kernels import ALL, PROVIDERS, select
from anabranch.kernels.select import Selection
from anabranch.merge import merged
from anabranch.options import Options
from anabranch.rehearse import Rehearsal
from anabranch.trace import Trace


@dataclass(frozen=True, slots=True)
class Tuner:
    """Finds kernels on one target; what was found is in the cache."""

    target: Target
    options: Options
    cache: Cache | None

    @property
    def generates(self) -> bool:
        return self.target.spec.kind == "cuda" and self.options.kernels == "all"

    @property
    def providers(self) -> Sequence[Provider]:
        return ALL if self.generates else PROVIDERS

    def partitions(self, graph: Graph, trace: Trace) -> tuple[TaskGraph, TaskGraph]:
        """The fine and the coarse partition; the same where nothing is generated."""
        fine = partition(graph, trace, self.target.spec)
        if not self.generates:
            return fine, fine
        return fine, partition(graph, trace, self.target.spec, pointwise=True)

    def kernels(self, fine: TaskGraph, coarse: TaskGraph, costs: Costs, trace: Trace) -> Selection:
        """Both partitions with kernels, and of each group what is faster. TargetError if a task has
        no kernel that runs."""
        spec, check = self.target.spec, checker(self.target, self.cache)
        with Rehearsal(self.target, self.cache, trace) as rehearsal:
            trial = rehearsal.before(costs.trial)
            parts = select(fine, spec, self.providers, trial, check, trace)
            if coarse == fine:
                return parts
            whole = select(coarse, spec, self.providers, trial, check, trace)
        tasks = choose(whole.tasks, parts.tasks, costs.task, trace)
        kept = set(map(id, whole.tasks.tasks))
        tried = {
            task.name: (whole if id(task) in kept else parts).candidates[task.name]
            for task in tasks.tasks
        }
        return Selection(tasks, tried)

    def merged(
        self, graph: Graph, selection: Selection, costs: Costs, limits: Limits
    ) -> tuple[Graph, Selection]:
        """With the convolutions merged that the scheduler would merge; its tasks with kernels and
        probes like all others."""

        def alone(tasks: TaskGraph) -> Selection:
            return self.kernels(tasks, tasks, costs, Trace())

        name = self.options.scheduler
        after = merged(name, graph, selection.tasks, costs, limits, alone)
        if after is graph:
            return graph, selection
        found = self.kernels(*self.partitions(after, Trace()), costs, Trace())
        return after, with_probes(found, costs)


def with_probes(selection: Selection, costs: Costs) -> Selection:
    """The tasks with what a run told of their kernels: resources, workspaces, launches."""
    probes = costs.probe(selection.tasks)
    probed = []
    for task in selection.tasks.tasks:
        probe = probes.get(task.name)
        if probe is not None and task.kernel is not None:
            kernel = replace(
                task.kernel,
                workspace=probe.workspace,
                temporary=probe.temporary,
                launches=probe.launches or task.kernel.launches,
                resources=probe.resources,
            )
            task = replace(task, kernel=kernel)
        probed.append(task)
    return replace(selection, tasks=replace(selection.tasks, tasks=tuple(probed)))
