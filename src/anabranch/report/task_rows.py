"""What is said of each task, in launch order: Plan and Candidates -> rows, for table and text.

#  task    kind      ops                 us    kernel            runner-up
0  conv1   contract  convolution, relu   8.1   cudnn.conv 3      aten.aten  9.4
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Launch, Timeline
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import text_kernel, text_node
from anabranch.ir.tiles import Tile
from anabranch.ir.variant import Variant
from anabranch.report.parts import ReportParts
from anabranch.tuning.decisions import Candidate

KINDS = ("contract", "opaque", "reduce", "pointwise", "move")
"""A task has the first of these kinds that a node of it has: what most likely sets its time."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task with its launch. `us` is its time alone where a candidate tells it, else its time in
    a timeline, None if nobody knows; `source` says which of these a number is."""

    task: Task
    launch: Launch
    kind: str
    ops: str
    us: float | None
    source: str
    candidates: tuple[Candidate, ...]
    runner_up: Candidate | None

    @property
    def kernel(self) -> str:
        """The text "provider.name variant" of the chosen kernel, "" before selection."""
        return text_kernel(self.task.kernel) if self.task.kernel else ""

    @property
    def place(self) -> str:
        """The module of its origin, "layer1.0.conv1", for a line is shared by all that run it; the
        line where no module is known."""
        match = re.search(r"\(([^()]+)\)", self.task.origin)
        return match[1] if match else self.task.origin.partition(" in ")[0]


def rows(parts: ReportParts) -> list[TaskRow]:
    """One row a task, in the order of the plan's launches."""
    return task_rows(parts["plan"], parts["candidates"], parts["timelines"])


def task_rows(
    plan: Plan,
    candidates: Mapping[str, Sequence[Candidate]],
    timelines: Sequence[tuple[str, Timeline]],
) -> list[TaskRow]:
    """The rows of a plan of which no more is known than this."""
    by_name = {task.name: task for task in plan.tasks.tasks}
    spans = _spans(timelines)
    launch_rows = []
    for launch in plan.schedule.launches:
        task = by_name[launch.task]
        tried = tuple(candidates.get(task.name, ()))
        us, source = _time(task, tried, spans)
        launch_rows.append(
            TaskRow(
                task,
                launch,
                kind_of(task.body),
                ops_text(node.op for node in task.body.nodes),
                us,
                source,
                tried,
                _runner_up(task, tried),
            )
        )
    return launch_rows


def kind_of(body: Graph) -> str:
    """contract, opaque, reduce, pointwise or move.

    >>> kind_of(Graph("empty", (), (), (), ()))
    'move'
    """
    kinds = {ops.kind_of(node) for node in body.nodes}
    return next((kind for kind in KINDS if kind in kinds), "move")


def ops_text(names: Iterable[str]) -> str:
    """Operators by their short names, in order of appearance, repeats counted.

    >>> ops_text(["aten.convolution.default", "aten.relu.default", "aten.relu.default"])
    'convolution, relu x2'
    """
    counted = Counter(ops.packet_name(name).removeprefix("aten.") for name in names)
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counted.items())


def reads(task: Task) -> list[str]:
    """What it reads from outside, with types."""
    return [f"%{value.name}: {value.type.text}" for value in task.body.inputs]


def writes(task: Task) -> list[str]:
    """What it hands to the outside, with types."""
    types = {
        result: type.text
        for node in task.body.nodes
        for result, type in zip(node.results, node.types, strict=True)
    }
    return [f"%{name}: {types.get(name, '?')}" for name in task.writes]


def runs(task: Task) -> str:
    """The nodes that the kernel really runs, where they are not the task's own."""
    if task.kernel is None or task.kernel.body == task.body:
        return ""
    return "\n".join(text_node(node, origin=False) for node in task.kernel.body.nodes)


def _spans(timelines: Sequence[tuple[str, Timeline]]) -> dict[str, tuple[float, str]]:
    """Each task's time in a timeline, the last one that has it."""
    return {
        span.task: (span.end - span.start, timeline.source)
        for _, timeline in timelines
        for span in timeline.spans
    }


def _time(
    task: Task, tried: Sequence[Candidate], spans: Mapping[str, tuple[float, str]]
) -> tuple[float | None, str]:
    for candidate in tried:
        cost = candidate.verdict.cost
        if is_chosen(task, candidate) and cost is not None:
            return cost.us, cost.source
    us, source = spans.get(task.name, (None, ""))
    return us, source


def is_chosen(task: Task, candidate: Candidate) -> bool:
    """Whether the plan runs the task by this candidate; probing may have filled in resources, and
    tasks of equal structure share their candidates, so that bodies need not be the same."""
    if task.kernel is None:
        return candidate.verdict.chosen
    return _name(task.kernel) == _name(candidate.kernel)


def _name(kernel: Kernel) -> tuple[str, str, Tile | str]:
    """However it is launched: modes and carve-outs are settled when all kernels are chosen."""
    variant = kernel.variant
    return kernel.provider, kernel.name, variant.tile if isinstance(variant, Variant) else variant


def _runner_up(task: Task, tried: Sequence[Candidate]) -> Candidate | None:
    """The fastest of those that could have run and were not chosen."""
    usable = (
        (cost.us, i) for i, candidate in enumerate(tried) if (cost := candidate.verdict.usable)
    )
    others = [(us, i) for us, i in usable if not is_chosen(task, tried[i])]
    return tried[min(others)[1]] if others else None
