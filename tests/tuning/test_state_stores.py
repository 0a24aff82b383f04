"""States that the kernels that compute them write: which copies go, and which stay."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch
from tests.tuning.states import ADAM, MOMENTUM
from torch import nn

import anabranch
from anabranch.errors import VerifyError
from anabranch.fusion.partition import partition
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, Signature
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.verify import verify_states
from anabranch.kernels.library import AtenProvider
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory import pack
from anabranch.memory.race_check import check_plan
from anabranch.schedule.sequential import in_a_row
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.state_stores import stored_in_place

SPEC = resolve("sim:h200").spec
NO_SIGNATURE = Signature("", (), "", ())


def with_states(text: str, states: dict[str, str]) -> Graph:
    """The graph of an update, with copies of the new values to the places of the old."""
    graph = parse_graph(text)
    head, tail = text.rsplit("  return ", 1)
    kept = [value for value in graph.inputs if value.name not in states]
    lines = [f"  input %{value.name}: {value.type.text}" for value in kept]
    for old in states:
        type = next(value.type for value in graph.inputs if value.name == old)
        lines.append(f"  state %{old}: {type.text} -> %{old}_next")
    nodes = [line for line in head.splitlines() if " = aten." in line]
    for old, new in states.items():
        type = next(value.type for value in graph.inputs if value.name == old)
        nodes.append(f"  %{old}_next: {type.text} = aten.copy.default(%{old}, %{new})")
    results = [name.strip() for name in tail.split("\n")[0].split(",")]
    results = [name for name in results if name.removeprefix("%") not in states.values()]
    returned = ", ".join([*results, *(f"%{old}_next" for old in states)])
    return parse_graph("\n".join(["graph g {", *lines, *nodes, f"  return {returned}", "}"]) + "\n")


def tasks_of(graph: Graph, generated: bool = True, several: bool = True) -> TaskGraph:
    """The graph as tasks with the first kernels there are; without `several` views are aliases."""
    cut = partition(graph, Trace(quiet=True), SPEC, pointwise=True, several=several)
    found = []
    for task in cut.tasks:
        offers = TritonProvider().kernels(task, SPEC) if generated else []
        kernel = (offers or AtenProvider().kernels(task, SPEC))[0]
        found.append(replace(task, kernel=kernel))
    return replace(cut, tasks=tuple(found))


def proved(tasks: TaskGraph) -> Plan:
    """The tasks one after the other, as a plan without races."""
    verify_states(tasks)
    plan = pack(tasks, in_a_row(tasks), SPEC, None)
    check_plan(plan)
    return plan


@pytest.mark.parametrize(
    ("text", "states"),
    [(MOMENTUM, {"m": "new_m", "p": "new_p"}), (ADAM, {"m": "new_m", "v": "new_v", "p": "new_p"})],
)
def test_an_update_is_one_launch_that_writes_all_its_states(
    text: str, states: dict[str, str]
) -> None:
    tasks, trace = tasks_of(with_states(text, states)), Trace(quiet=True)
    assert len(tasks.tasks) == 1 + len(states)
    made = stored_in_place(tasks, NO_SIGNATURE, trace)
    (task,) = made.tasks
    assert task.overwrites == {new: old for old, new in states.items()}
    assert task.kernel is not None and task.kernel.body == task.body
    assert [made.outputs[state.output].name for state in made.states] == list(states.values())
    (event,) = trace.events
    assert event.what == f"{len(states)} of {len(states)} states"
    plan = proved(made)
    assert {slot.space for slot in plan.slots if slot.value in states.values()} == {"state"}
    assert plan.arena_bytes == 0


TWO = """
graph g {
  input %g: f32[37,19]
  input %p: f32[37,19]
  input %m: f32[37,19]
  input %q: f32[37,19]
  %new_m: f32[37,19] = aten.add.Tensor(%m, %g)
  %new_q: f32[37,19] = aten.add.Tensor(%q, %new_m)
  %new_p: f32[37,19] = aten.add.Tensor(%p, %new_m)
  return %new_q, %new_m, %new_p
}
"""


@pytest.mark.parametrize("order", list(permutations(("m", "p", "q"))))
def test_what_writes_several_states_reads_back_from_its_text(order: tuple[str, ...]) -> None:
    """Nothing else can be saved, or recalled."""
    states = {name: f"new_{name}" for name in order}
    tasks = tasks_of(with_states(TWO, states))
    for task in stored_in_place(tasks, NO_SIGNATURE, Trace(quiet=True)).tasks:
        assert task.kernel is not None
        assert parse_graph(text_graph(task.body)) == task.body
        assert parse_graph(text_graph(task.kernel.body)) == task.kernel.body


def test_kernels_of_a_library_keep_the_copy() -> None:
    tasks = tasks_of(with_states(MOMENTUM, {"m": "new_m", "p": "new_p"}), generated=False)
    assert stored_in_place(tasks, NO_SIGNATURE, Trace(quiet=True)) is tasks


LATE = MOMENTUM.replace(
    "  return %new_m, %new_p",
    """  %all: f32[] = aten.sum.default(%new_m)
  %late: f32[37,19] = aten.mul.Tensor(%m, %all)
  return %late, %new_m, %new_p""",
)


def test_where_a_reader_of_the_old_value_waits_for_the_new_the_copy_stays() -> None:
    tasks = tasks_of(with_states(LATE, {"m": "new_m", "p": "new_p"}))
    made = stored_in_place(tasks, NO_SIGNATURE, Trace(quiet=True))
    over = {old for task in made.tasks for old in task.overwrites.values()}
    assert over == {"m", "p"}
    copies = [task.name for task in made.tasks if task.body.nodes[0].op == "aten.copy.default"]
    assert "m_next" in copies
    proved(made)


SQUARE = """
graph square {
  input %m: f32[24,24]
  input %g: f32[24,24]
  %turned: f32[24,24]{1,24} = aten.permute.default(%m, [1, 0])
  %sum: f32[24,24] = aten.add.Tensor(%g, %turned)
  %new_m: f32[24,24] = aten.add.Tensor(%m, %sum)
  return %new_m
}
"""


def test_what_its_task_reads_by_another_name_as_well_is_not_written_over() -> None:
    """Turned round: the elements that it reads are others than those that it writes."""
    tasks = tasks_of(with_states(SQUARE, {"m": "new_m"}), several=False)
    (update,) = (task for task in tasks.tasks if not task.overwrites)
    assert {"m", "turned"} <= set(update.reads) and [n.name for n in tasks.aliases] == ["turned"]
    made = stored_in_place(tasks, NO_SIGNATURE, Trace(quiet=True))
    assert made is tasks
    proved(made)


@pytest.mark.parametrize(("elements", "offered"), [(1, True), (32, True), (33, False)])
def test_kernels_are_offered_for_copies_of_counters(elements: int, offered: bool) -> None:
    graph = with_states(
        f"""graph count {{
  input %n: i64[{elements}]
  %one: i64[{elements}] = aten.add.Tensor(%n, 1)
  return %one
}}
""",
        {"n": "one"},
    )
    cut = partition(graph, Trace(quiet=True), SPEC, pointwise=True, several=True)
    (copy,) = (task for task in cut.tasks if task.overwrites)
    kernels = TritonProvider().kernels(copy, SPEC)
    assert bool(kernels) == offered
    assert all(kernel.body.states for kernel in kernels)


def test_a_task_that_looks_at_other_elements_is_refused() -> None:
    """However it came to say that it writes over them."""
    made = stored_in_place(
        tasks_of(with_states(MOMENTUM, {"m": "new_m"})), NO_SIGNATURE, Trace(quiet=True)
    )
    (task,) = (task for task in made.tasks if task.overwrites)
    nodes = tuple(
        replace(node, op="aten.flip.default", args=(node.args[0], (0,)), kwargs=())
        if node.name == "kept"
        else node
        for node in task.body.nodes
    )
    wrong = replace(task, body=replace(task.body, nodes=nodes))
    with pytest.raises(VerifyError, match="reads other elements"):
        verify_states(replace(made, tasks=(wrong,)))


class Smoothed(nn.Module):
    """Keeps a running mean of what it has seen."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 40)
        self.register_buffer("mean", torch.zeros(8, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.mean.mul_(0.9).add_(y, alpha=0.1)
        out: torch.Tensor = torch.relu(y - self.mean)
        return out


def test_a_saved_plan_writes_in_place_as_well(tmp_path: Path) -> None:
    fast = anabranch.compile(
        Smoothed().eval(),
        (torch.randn(8, 48),),
        target="sim:h200",
        search="none",
        scheduler="critical",
        cache_dir=None,
    )
    (entry,) = fast.facts["states"]
    assert entry == "mean: f32[8,40]"
    told = " ".join(str(fast.explain()).split())
    assert "2 tasks" in told and "written by" in told and "aten.copy" not in told
    fast.save(tmp_path / "fast")
    again = anabranch.load(tmp_path / "fast", target="sim:h200")
    assert again.facts["states"] == fast.facts["states"]
    assert again.facts["tasks"] == fast.facts["tasks"]
