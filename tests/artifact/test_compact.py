"""Plans told beside their graph: read back equal, and never as a plan of another graph."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from tests.fusion.elided_concats import CPU, forced, networks
from tests.kernels.triton.samples import SAMPLES

from anabranch.artifact import compact
from anabranch.ir.codec import Beside
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Launch, Schedule, sequential_launches
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.tiles import PointwiseTile
from anabranch.ir.variant import WHOLE_PERCENT, Variant, parse_variant
from anabranch.kernels.triton import codegen
from anabranch.memory import pack

GRAPH = parse_graph("""
graph g {
  input %x: f32[1,256]
  const %w: f32[256] = 1f
  %p: f32[1,256] = aten.mul.Tensor(%x, %w)    # net.py:7
  %q: f32[1,256] = aten.neg.default(%x)
  %cat: f32[1,512] = aten.cat.default([%p, %q], 1)
  %view: f32[512] = aten.view.default(%cat, [512])
  %z: f32[512] = aten.exp.default(%view)
  return %z
}""")


def planned(graph: Graph) -> Plan:
    tasks = forced(graph)
    return pack(tasks, Schedule("sequential", sequential_launches(dag_of(tasks))), CPU.spec)


def generated(carveout: int = WHOLE_PERCENT) -> tuple[Graph, Plan]:
    """A graph of one task, with a generated kernel and what a probe said of it."""
    sample, text = SAMPLES["pointwise"]
    body, variant = parse_graph(text), replace(parse_variant(sample), carveout=carveout)
    kernel = Kernel(
        "triton", "pointwise", body, variant, True, resources=Resources(8, 128, 30, 0),
        source=codegen.program(body, variant).text,
    )  # fmt: skip
    task = Task("sum", body, kernel)
    tasks = TaskGraph(body.name, body.inputs, body.constants, (task,), (), body.outputs)
    return body, pack(tasks, Schedule("alone", (Launch("sum", 0),)), CPU.spec)


def read_back(plan: Plan, graph: Graph, other: Graph | None = None) -> Plan:
    """What the brief of the plan of this graph says beside the other one."""
    data = compact.BRIEFS.write(compact.write(plan, graph), Beside.of(graph))
    return read_of(data, other or graph)


def read_of(data: bytes, graph: Graph) -> Plan:
    return compact.read(compact.BRIEFS.read(data, Beside.of(graph)), graph, CPU.spec, None)


def test_joins_aliases_and_origins_read_back() -> None:
    plan = planned(GRAPH)
    assert plan.tasks.elided_concats and plan.tasks.aliases
    again = read_back(plan, GRAPH)
    assert again == plan
    origins = [[node.origin for node in task.body.nodes] for task in again.tasks.tasks]
    assert origins == [[node.origin for node in task.body.nodes] for task in plan.tasks.tasks]


@settings(max_examples=20, deadline=None)
@given(networks())
def test_any_plan_reads_back(graph: Graph) -> None:
    plan = planned(graph)
    assert read_back(plan, graph) == plan


def test_constants_are_those_of_the_graph_at_hand() -> None:
    """The same structure with other weights: the plan has theirs."""
    other = parse_graph(text_graph(GRAPH).replace("= 1f", "= 2f"))
    plan = read_back(planned(GRAPH), GRAPH, other)
    held = [*plan.tasks.constants, *(c for task in plan.tasks.tasks for c in task.body.constants)]
    assert {c.digest for c in held} == {"2f"} and len(held) == 2


@pytest.mark.parametrize("carveout", [WHOLE_PERCENT, 50])
def test_texts_are_neither_told_nor_written_again(
    carveout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, plan = generated(carveout)
    told = compact.write(plan, graph)
    ((_, written),) = told.programs
    data = compact.BRIEFS.write(told, Beside.of(graph))
    assert len(data) < 2 * len(written.text) + 3000

    def never(*_: object) -> Any:
        raise AssertionError("written again")

    codegen._program.cache_clear()
    codegen._of_task.cache_clear()
    templates = {name: replace(t, write=never) for name, t in codegen.TEMPLATES.items()}
    monkeypatch.setattr(codegen, "TEMPLATES", templates)
    monkeypatch.setattr(codegen, "LEARNED", {})
    assert read_of(data, graph) == plan
    codegen._program.cache_clear()
    codegen._of_task.cache_clear()


@pytest.mark.parametrize("carveout", [WHOLE_PERCENT, 50])
def test_what_equal_layers_share_is_told_once(carveout: int) -> None:
    lines = [f"  %y{i + 1}: f32[256] = aten.exp.default(%y{i})" for i in range(6)]
    graph = parse_graph(
        "\n".join(["graph g {", "  input %y0: f32[256]", *lines, "  return %y6", "}"])
    )
    tasks, variant = forced(graph), Variant(PointwiseTile(256, 2), carveout=carveout)
    layers = tuple(
        replace(task, kernel=Kernel(
            "triton", "pointwise", task.body, variant, True,
            source=codegen.program(task.body, variant).text,
        ))
        for task in tasks.tasks
    )  # fmt: skip
    assert len(layers) == 6
    schedule = Schedule("sequential", sequential_launches(dag_of(tasks)))
    plan = pack(replace(tasks, tasks=layers), schedule, CPU.spec)
    assert [task for task, _ in compact.write(plan, graph).programs] == [0]


@pytest.mark.parametrize("name", ["%q", "%w", "%x"])
def test_it_is_no_plan_of_another_graph(name: str) -> None:
    """A node, a constant or an input of another name."""
    other = parse_graph(text_graph(GRAPH).replace(name, "%other"))
    with pytest.raises((LookupError, ValueError), match=f"{name[1:]}|no plan of graph g"):
        read_back(planned(GRAPH), GRAPH, other)


@pytest.mark.parametrize("field", ["slots", "schedule", "tasks", "outputs"])
def test_a_plan_that_is_not_sound_is_not_read(field: str) -> None:
    """Two values in one place, a task that is launched twice, one too few, a result nobody made."""
    told = compact.write(planned(GRAPH), GRAPH)
    facts = json.loads(compact.BRIEFS.write(told, Beside.of(GRAPH)))
    if field == "slots":
        places = [slot for slot in facts["slots"] if slot["space"] == "arena"]
        assert len(places) > 1
        for slot in places:
            slot["offset"] = 0
    elif field == "schedule":
        facts["schedule"]["launches"] *= 2
    elif field == "tasks":
        facts["tasks"]["tasks"].pop()
    else:
        facts["tasks"]["outputs"] = ["nobody"]
    with pytest.raises(ValueError, match="no plan of graph g"):
        read_of(json.dumps(facts).encode(), GRAPH)


def test_a_plan_with_weights_of_its_own_is_not_told() -> None:
    plan = planned(GRAPH)
    other = parse_graph(text_graph(GRAPH).replace("= 1f", "= 2f"))
    with pytest.raises(ValueError, match="%w is no constant"):
        compact.write(plan, other)
