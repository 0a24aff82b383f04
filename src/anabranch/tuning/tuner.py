"""Tuning: from a rewritten graph to tasks that all have the fastest kernel there is for them.

    graph --cuts--> tasks, cut in several ways --kernels--> the fastest of them, stretch by stretch
                                                            and with all concatenations as elided
                                                            concats
          --cuts--> each node alone --kernels--> merged while that is faster (`fusion/deepcuts`)

The selection that is fastest stretch by stretch takes the least in all, one task after another. A
concatenation that runs with sums and poolings of its parts is one launch for many, and all that
reads it waits for that launch as well; where every part is written into its place by whoever makes
it, nobody does. So whoever can run both schedules is given both.

Candidates that were generated run first in a process that may die of it (`sandbox`);
all are measured side by side, and the winner is compared with the task's body
(`tuning/verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from anabranch.cache import Cache
from anabranch.costs import name_of
from anabranch.costs.measured import Measured
from anabranch.deadline import EFFORTS, ENDLESS, Deadline, EffortSettings
from anabranch.fusion import partition
from anabranch.fusion.concat_elision import CAT, fitting
from anabranch.fusion.deepcuts import CutTotal, deepcuts_partition
from anabranch.fusion.gemm_chain import why_not_one_kernel
from anabranch.fusion.legality import FusionFacts
from anabranch.fusion.merge_cuts import computed
from anabranch.fusion.partition import graph_of, singly
from anabranch.fusion.recompute import computed_again
from anabranch.fusion.unrolled_loops import recurrences
from anabranch.fusion.vertical import one_call
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Graph, Node
from anabranch.ir.key import structure_text, task_text
from anabranch.ir.protocols import ANY_STREAMS, Cost, Costs, Limits, Provider, Target
from anabranch.ir.refused import Refused
from anabranch.ir.task import GENERATED, Task, TaskGraph
from anabranch.kernels import ALL, LIMITED, PROVIDERS, in_order, with_all_engines
from anabranch.options import Options
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.trace import Trace
from anabranch.tuning.concat_choice import selections_with_elided_concats
from anabranch.tuning.concat_trials import with_elided_concats, writing
from anabranch.tuning.conv_merge import merged
from anabranch.tuning.cut_choice import SelectionVariant, faster_of_two, fastest_cut
from anabranch.tuning.decisions import Decision, Memory
from anabranch.tuning.joint_offers import Offers, Sharing
from anabranch.tuning.launch.pdl import generated, modes_of, supports_pdl
from anabranch.tuning.recompute_trials import with_again
from anabranch.tuning.sandbox.client import SandboxClient
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.select import (
    MOST_KERNELS,
    Selection,
    SelectionConfig,
    check_ahead,
    decide,
    select_all,
    select_known,
    select_some,
    winner,
)
from anabranch.tuning.shortlist import Shortlist, UnwrittenKernels, predicted_costs, shortlist_of
from anabranch.tuning.verify.kernel import verify_kernel

CUTS = (
    *((False, False, 0), (True, False, 0), (False, True, 0), (True, True, 0)),
    *((True, True, 1), (True, True, 3)),
)
"""Fusion configurations, from library calls only to clusters, which have several results, plus GEMM
chains, and these with the light work that they can take in. All are tuned; wherever two differ the
faster wins."""

BETWEEN_SIZES = "between sizes"
"""In keys of decisions: fewer kernels are tried than at a size that is searched."""


@dataclass(frozen=True, slots=True)
class Tuner:
    """Finds kernels on one target; what was found is in the cache. `until`: when it is
    over, no further kernel is tried. `most`: how many generated kernels are tried at once; where
    they are fewer than usual, decisions are not kept. `sandbox`: the process in which kernels run
    first, where one serves all stages. `late`: as in FusionFacts. `between`: for a size between
    others of one model, which are searched."""

    target: Target
    options: Options
    cache: Cache | None
    until: Deadline = ENDLESS
    most: int = MOST_KERNELS
    sandbox: SandboxProcess | None = None
    late: Mapping[str, int] = field(default_factory=dict)
    between: bool = False

    @property
    def generates(self) -> bool:
        """Whether kernels are generated: on CUDA, unless the options ask for library kernels
        alone."""
        return self.target.spec.kind == "cuda" and self.options.kernels == "all"

    @property
    def effort(self) -> EffortSettings:
        """How much is tried."""
        settings = EFFORTS[self.options.effort]
        return replace(settings, together=settings.between) if self.between else settings

    @property
    def tries_fewer(self) -> bool:
        """Whether fewer kernels are tried than at a size that is searched."""
        return self.effort != EFFORTS[self.options.effort]

    @property
    def shortlist(self) -> Shortlist:
        """Which of the kernels that a task could have are tried."""
        return shortlist_of(self.target, self.effort)

    @property
    def begins_with_nodes(self) -> bool:
        """Whether each node is a task at first, and nodes are merged one by one, as DeepCuts does,
        or not at all. A scheduler that merges convolutions wants each of them in a task that it can
        find."""
        return self.options.fusion != "cuts" and self.options.scheduler not in MERGING

    @property
    def foresees_graph(self) -> bool:
        """Whether a graph may be taken by predicted times: there must be kernels to predict, and
        cuts to choose from."""
        foresees = self.effort.foreseen is not None
        return foresees and self.generates and not self.begins_with_nodes

    @property
    def providers(self) -> Sequence[Provider]:
        """Who is asked for kernels, in order of preference at equal times. DeepCuts is compared
        with the library alone, and has all that the library has there."""
        providers = PROVIDERS
        if self.generates:
            providers = LIMITED if self.options.pruning == "limit" else ALL
            if self.options.fusion != "cuts":
                providers = with_all_engines(providers)
        return in_order(providers) if self.options.deterministic else providers

    def cuts(self, graph: Graph, trace: Trace) -> list[TaskGraph]:
        """The graph cut in every way, the finest first, each way once; the last keeps apart what
        may be elided concats, where others fuse it with what makes its parts or reads it. Steps of
        which there are many are one task in all of them. Where nodes are to be merged one by one,
        each of them alone."""
        if self.begins_with_nodes:
            return [singly(graph)]
        cuts, spec = list[TaskGraph](), self.target.spec
        loops = recurrences(graph, trace) if self.generates else []
        for larger in CUTS if self.generates else CUTS[:1]:
            cut = partition(graph, trace, spec, *larger, loops=loops, late=self.late)
            if cut not in cuts:
                cuts.append(cut)
        alone = _fused(cuts[-1]).intersection(fitting(cuts[0], Trace(quiet=True)))
        if alone and self.generates:
            apart = partition(
                graph, trace, spec, *CUTS[-1], alone=alone, loops=loops, late=self.late
            )
            cuts.append(apart)
        return cuts

    def kernels(
        self, cuts: Sequence[TaskGraph], costs: Costs, trace: Trace, wholes: bool = False
    ) -> list[SelectionVariant]:
        """First the selection with the fastest kernels of each stretch on which `cuts` differ. If
        `wholes`, then one with every eligible concatenation elided, if that is another selection.
        A scheduler that merges convolutions gets neither elided concats nor recomputation: a merged
        convolution is a task of its own, and `cuts` may hold tasks of several graphs. Raises
        TargetError if a task has no kernel that runs."""
        with self._sandboxed(trace) as sandboxed:
            if self.generates:
                sandboxed.start()
            config = self._config(sandboxed, costs)
            if self.begins_with_nodes:
                told = trace.child()
                return [SelectionVariant(self._deepcuts(cuts[0], config, told), told)]
            if self.effort.one_cut and self.generates and len(cuts) > 1:
                cuts = [without_kernels(self.foreseen(cuts, trace))]
            ways = select_all(cuts, config, trace)
            self._compile_modes(ways)
            if not self.generates or self.options.scheduler in MERGING or self.effort.one_cut:
                told = trace.child()
                variants = [SelectionVariant(fastest_cut(ways, costs.task, told), told)]
            else:

                def again(selection: Selection, trace: Trace) -> Selection:
                    """With what is computed again where that is faster."""
                    whole = with_again(selection, config, trace)
                    return (
                        selection
                        if whole is selection
                        else faster_of_two(whole, selection, costs.task, trace)
                    )

                def elide(selection: Selection, trace: Trace, hopeful: bool = False) -> Selection:
                    return with_elided_concats(
                        again(selection, trace), config, costs, trace, hopeful
                    )

                variants = selections_with_elided_concats(ways, costs.task, elide, trace, wholes)
            settled = config.memory.settled()
            return [
                SelectionVariant(replace(way.selection, settled=settled), way.trace)
                for way in variants
            ]

    def _compile_modes(self, ways: Sequence[Selection]) -> None:
        """Have workers compile the kernels that were chosen in the modes in which whole plans will
        be timed, while this process tries other cuts of concatenations and compares selections."""
        others = self.sandbox.others if self.sandbox is not None else None
        if others is None or self.options.pdl == "off" or self.until.over():
            return
        chosen = {structure_text(t.body): t for way in ways for t in way.tasks.tasks}
        whole = replace(ways[0].tasks, tasks=tuple(filter(generated, chosen.values())))
        if supports_pdl(whole, self.target):
            others.compile(whole.tasks, modes_of(self.options))

    def foreseen(self, cuts: Sequence[TaskGraph], trace: Trace) -> TaskGraph:
        """The cut that is predicted to be fastest, stretch by stretch, with the kernels that are.
        Of these, generated ones have no text: nothing is built for it."""
        predicted = predicted_costs(self.target)

        def trial(tasks: Sequence[Task]) -> list[Cost | None]:
            return [predicted(task) for task in tasks]

        providers = list(map(UnwrittenKernels, self.providers))
        guess = SelectionConfig(
            *(self.target.spec, providers, trial, lambda task: None),
            most=self.most,
            shortlist=self.shortlist,
        )
        told = trace.child()
        with uncollected():  # a tenth of the time of a network of hundreds of structures
            tasks = fastest_cut(select_all(cuts, guess, told), predicted, told).tasks
        why = f"{len(tasks.tasks)} tasks, foreseen to be the fastest of {len(cuts)} cuts"
        trace.add("chosen", "fusion", tasks.name, why)
        return tasks

    def _deepcuts(self, alone: TaskGraph, config: SelectionConfig, trace: Trace) -> Selection:
        """DeepCuts: merged while that is faster, from each node alone; without fusion these."""
        decisions: dict[str, Decision] = {}

        def evaluate(tasks: Sequence[Task]) -> list[Cost | None]:
            decisions.update(decide(tasks, config, trace))
            decided = (decisions.get(structure_text(task.body)) for task in tasks)
            each = zip(tasks, decided, strict=True)
            return [
                _in_one_launch(task, decision, config) if decision else None
                for task, decision in each
            ]

        if self.options.fusion == "none":
            tasks = alone
            evaluate(alone.tasks)
        else:
            arguments = graph_of(alone), evaluate, trace, self._unwritten, self._total()
            tasks = deepcuts_partition(*arguments, self.until)
        selection = select_known(tasks, decisions, config, trace)
        return replace(selection, settled=config.memory.settled())

    def _total(self) -> CutTotal | None:
        """What a cut takes: as scheduled, or where one kernel runs after another their sum."""
        options, spec = self.options, self.target.spec
        if options.scheduler == "sequential":
            return None
        streams = options.max_streams or ANY_STREAMS
        return lambda tasks, us: outlook_of(tasks, us, spec, streams)

    def _unwritten(
        self, group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
    ) -> Refused | None:
        """Why neither a template nor the library runs the group in one launch."""
        why = one_call(group, facts)
        return why and (why_not_one_kernel(group, facts, outputs) if self.generates else why)

    def _sandboxed(self, trace: Trace) -> SandboxClient:
        return SandboxClient(self.target, self.cache, trace, self.sandbox, self.until)

    def _config(self, sandboxed: SandboxClient, costs: Costs) -> SelectionConfig:
        checked: dict[tuple[str, str], Refused | None] = {}

        def check(task: Task) -> Refused | None:
            key = task.name, task_text(task)
            if key not in checked:
                screened = sandboxed.right(task)
                checked[key] = verify_kernel(task, self.target, self.cache, screened)
            return checked[key]

        clock = costs if isinstance(costs, Measured) else None
        return SelectionConfig(
            self.target.spec,
            self.providers,
            sandboxed.before(costs.trial, partial(check_ahead, check=check), clock),
            check,
            Memory(self.cache, self._title(costs), self._settled(costs, sandboxed)),
            self.most,
            self.shortlist,
        )

    def _title(self, costs: Costs) -> str:
        """Names what tells the costs, what comes from memory while it does, and where not all is
        tried, how much."""
        own = name_of(self.target) + (f" cold {costs.cold.text}".rstrip() if costs.cold else "")
        if self.effort == EffortSettings():
            return own
        between = f" {BETWEEN_SIZES}" if self.tries_fewer else ""
        return f"{own} effort {self.options.effort}{between}"

    def _settled(self, costs: Costs, sandboxed: SandboxClient) -> Callable[[], bool]:
        """Whether decisions that rest on what these say would be made again, and are kept."""
        return lambda: self.most >= MOST_KERNELS and costs.settled and sandboxed.settled

    def each(self, cuts: Sequence[TaskGraph], costs: Costs) -> list[Selection]:
        """Every cut with kernels by itself, with what it may compute again and without: all that
        was tried on the way to a selection."""
        again = [computed_again(cut, self.target.spec, Trace()) for cut in cuts]
        changed = [other for other, cut in zip(again, cuts, strict=True) if other is not cut]
        with self._sandboxed(Trace()) as sandboxed:
            config = self._config(sandboxed, costs)
            return select_all([*cuts, *changed], config, Trace())

    def horizontal(
        self, tasks: Sequence[Task], offers: Offers, costs: Costs, trace: Trace
    ) -> Selection:
        """Those of these tasks, each of independent parts, that a generated kernel runs, with the
        fastest of what is offered for them."""
        makers = [Sharing(provider, offers) for provider in ALL if provider.name == GENERATED]
        with self._sandboxed(trace) as sandboxed:
            config = self._config(sandboxed, costs)
            whole = TaskGraph("horizontal_fusion", (), (), tuple(tasks), (), ())
            selection = select_some(whole, replace(config, providers=makers), trace)
            return replace(selection, settled=config.memory.settled())

    def in_place(
        self, tasks: Sequence[Task], whole: TaskGraph, costs: Costs, trace: Trace
    ) -> Selection:
        """Those of these tasks of a plan, whose others stay as they are, that a kernel runs, with
        the fastest: what is a part of an elided concat is written where the plan has it."""
        with self._sandboxed(trace) as sandboxed:
            if self.generates:
                sandboxed.start()
            config = self._config(sandboxed, costs)
            makers = writing(tasks, whole, {}, config.providers)
            part = replace(whole, tasks=tuple(tasks))
            selection = select_some(part, replace(config, providers=makers), trace)
        return with_probes(selection, costs)

    def alone(self, tasks: TaskGraph, costs: Costs) -> Selection:
        """The fastest kernel of each of these tasks, which share nothing."""
        return self.kernels([tasks], costs, Trace())[0].selection

    def merged(
        self, graph: Graph, selection: Selection, costs: Costs, limits: Limits
    ) -> tuple[Graph, Selection]:
        """With the convolutions merged that the scheduler would merge; its tasks with kernels and
        probes like all others."""
        name, select = self.options.scheduler, partial(self.alone, costs=costs)
        after = merged(name, graph, selection.tasks, costs, limits, select)
        if after is graph:
            return graph, selection
        new_selection = self.kernels(self.cuts(after, Trace()), costs, Trace())[0].selection
        return after, with_probes(new_selection, costs)


def without_kernels(tasks: TaskGraph) -> TaskGraph:
    """The same tasks, of which nothing is decided."""
    return replace(tasks, tasks=tuple(replace(task, kernel=None) for task in tasks.tasks))


def _fused(tasks: TaskGraph) -> set[str]:
    """The concatenations that run with what makes their parts, or with what reads them."""
    return {
        node.name
        for task in tasks.tasks
        for node in task.body.nodes
        if node.op == CAT and len(task.body.nodes) > 1
    }


def _in_one_launch(task: Task, decision: Decision, config: SelectionConfig) -> Cost | None:
    """The winner's time, None if it runs several nodes one by one."""
    several = len(computed(task)) > 1 and winner(task, decision, config).launches > 1
    return None if several else decision.tried[decision.winner].verdict.cost


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
