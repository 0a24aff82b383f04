"""Nouns read back as they were, in words of their own and beside a graph that knows them."""

from __future__ import annotations

import pkgutil
from dataclasses import is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.fusion.elided_concats import forced, networks

from anabranch import ir
from anabranch.ir.calibration import Calibration
from anabranch.ir.codec import UNTOLD, Beside, nouns
from anabranch.ir.dag import Dag
from anabranch.ir.graph import Condition, Graph, Ref, State
from anabranch.ir.input_guards import InputGuard
from anabranch.ir.plan import Footprint, Leaf, Signature, Slot, ValueCheck, Workspace
from anabranch.ir.price import Gain, Price
from anabranch.ir.protocols import Cost
from anabranch.ir.recipe import ModelTensor
from anabranch.ir.refused import Refused
from anabranch.ir.schedule import Launch, Schedule, Span, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Slice, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType

GRAPH = parse_graph("""
graph g {
  input %x: f16[2,8]
  const %w: f16[8] = 1f
  %sum: f16[2,8] = aten.add.Tensor(%x, %w, alpha=2)    # net.py:7
  %out: f16[2,8]{1,2} = aten.relu.default(%sum)
  return %out
}""")
KERNEL = Kernel("cudnn", "conv", GRAPH, "engine:3", True, 512, 64, 2, Resources(8, 128, 30, 1024))


def again(kind: Any, value: Any, beside: Beside | None = None) -> Any:
    codec = nouns(kind)
    return codec.read(codec.write(value, beside), beside)


@pytest.mark.parametrize("beside", [None, Beside.of(GRAPH)])
def test_a_graph_reads_back_with_the_origins_of_its_nodes(beside: Beside | None) -> None:
    read = again(Graph, GRAPH, beside)
    assert read == GRAPH
    assert [node.origin for node in read.nodes] == ["net.py:7", ""]


def test_beside_a_graph_its_values_are_told_by_name_and_taken_from_it() -> None:
    beside = Beside.of(GRAPH)
    told = nouns(Graph).write(GRAPH, beside)
    assert b"aten" not in told and b"f16" not in told
    weight = replace(GRAPH.constants[0], digest="2f", value=torch.ones(8))
    other = Beside.of(replace(GRAPH, constants=(weight,)))
    assert nouns(Graph).read(told, other).constants[0] is weight


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b'"sum"', b'"nobody"'),
        (b'"w"', b'"nobody"'),
        (b'"x"', b'"nobody"'),
        (b'"name"', b'"names"'),
    ],
)
def test_what_the_graph_does_not_have_is_an_error(was: bytes, now: bytes) -> None:
    beside = Beside.of(GRAPH)
    told = nouns(Graph).write(GRAPH, beside)
    with pytest.raises((ValueError, LookupError)):
        nouns(Graph).read(told.replace(was, now), beside)


@settings(max_examples=20, deadline=None)
@given(networks())
def test_any_task_graph_reads_back(graph: Graph) -> None:
    tasks = forced(graph)
    assert again(TaskGraph, tasks) == tasks == again(TaskGraph, tasks, Beside.of(graph))


@pytest.mark.parametrize("body", [GRAPH, replace(GRAPH, name="other")])
def test_a_task_shares_its_body_with_a_kernel_that_runs_it(body: Graph) -> None:
    task = Task("t", GRAPH, replace(KERNEL, body=body))
    read = again(Task, task)
    assert read == task and (read.kernel.body is read.body) == (body is GRAPH)
    assert again(Task, Task("t", GRAPH)) == Task("t", GRAPH)


@pytest.mark.parametrize("body", [GRAPH, UNTOLD])
def test_a_kernel_reads_back_without_its_text(body: Graph) -> None:
    kernel = replace(KERNEL, body=body)
    assert again(Kernel, replace(kernel, source="text")) == kernel


TASK = Task("t", GRAPH, KERNEL)
TASKS = TaskGraph("net", GRAPH.inputs, GRAPH.constants, (TASK,), (), GRAPH.outputs)
SCHEDULE = Schedule("ios", (Launch("a", 0), Launch("b", 1, ("a",), True)), ((("a",),),))
MACHINE = TargetSpec("cuda", "a GPU", 8, (9, 0), (("f16", 1e15),), calibration=Calibration(0.5))
SIGNATURE = Signature("in", (Leaf(Ref("x")), Leaf(None, True)), "out", (), (("s", Ref("y")),))
SLOTS = (Slot("x", "input"), Slot("out", "arena", 512, 32, "t"))
SAMPLES = (
    GRAPH,
    *(GRAPH.inputs[0], GRAPH.constants[0], GRAPH.nodes[0], Ref("x"), State("x", 1)),
    Condition(GRAPH.constants[0], "finite", (1, 0.5)),
    TensorType((2, 3), torch.bfloat16, (1, 2)),
    *(TASK, TASKS, KERNEL, KERNEL.resources, Slice("out", 3)),
    *(
        SCHEDULE,
        SCHEDULE.launches[1],
        Span("a", 0, 0.0, 1.5),
        Timeline((Span("a", 0, 0.0, 1.5),), 1.5, "recorded"),
    ),
    *(SLOTS[1], Workspace("t", 0, 512), Leaf(Ref("x"), offset=3), Footprint(4, 5)),
    *(SIGNATURE, SIGNATURE.ambient, ModelTensor("w", (8,), torch.float16, True)),
    InputGuard(0, "is_contiguous", "True"),
    ValueCheck("linalg", Ref("info"), "linalg.inv"),
    *(MACHINE, Calibration(fork_us=0.26, origin="a GPU")),
    *(Cost(9.4, "measured", 0.1), Price(14.0, 1.0), Gain(1.0)),
    *(Dag.of(("a", "b"), [(0, 1)]), Refused("why")),
)
"""One of each noun that is kept."""
NOT_KEPT = {
    "call_padding": "of one call",
    "codec": "how they are kept",
    "conditions": "a table of functions",
    "CtcTargets": "tensors of one call",
    "Derivation": "in the file of a plan, step by step",
    "domains": "facts about operators",
    "ops": "facts about operators",
    "Plan": "a file: artifact",
    "proof": "asked and forgotten",
    "protocols": "arguments, but for Cost",
    "Recipe": "has tensors: in the file of a plan",
    "rule": "Python: patterns have a text form",
    "tiles": "parts of variants",
    "tolerances": "asked and forgotten",
    "uncached": "how one compilation times",
    "variant": "a kernel has its text",
}
"""Nouns, and modules of them, that no codec is asked to keep, and why."""


@pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)
def test_nouns_read_back(value: Any) -> None:
    assert again(type(value), value) == value


def test_every_noun_reads_back_or_has_a_reason() -> None:
    kept = {type(value) for value in SAMPLES}
    found = {
        kind
        for module in pkgutil.iter_modules(ir.__path__)
        if module.name not in NOT_KEPT
        for name, kind in vars(import_module(f"{ir.__name__}.{module.name}")).items()
        if is_dataclass(kind) and getattr(kind, "__module__", "").endswith(f".{module.name}")
        if not name.startswith("_")
        and name not in NOT_KEPT
        and vars(kind)["__dataclass_params__"].frozen
    }
    assert found - kept == set()


def test_a_type_reads_back() -> None:
    assert again(torch.dtype, torch.float16) == torch.float16
