"""Elided concats on a GPU: generated kernels write slices of one buffer, inside a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.fusion import partition
from anabranch.fusion.concat_elision import fitting, with_elided
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.protocols import Executable
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.tolerances import compare
from anabranch.kernels import PROVIDERS
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory import pack
from anabranch.memory.guard_bytes import fence
from anabranch.targets.cuda.target import CudaTarget
from anabranch.trace import Trace
from anabranch.tuning.concat_trials import writing

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="generated kernels need Triton")

FIRE = """
graph fire {
  input %x: f16[1,16,27,27]{11664,1,432,16}
  const %w: f16[64,16,1,1] = w
  const %v: f16[64,16,3,3]{144,1,48,16} = v
  %small: f16[1,64,27,27]{46656,1,1728,64} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %large: f16[1,64,27,27]{46656,1,1728,64} = aten.convolution.default(%x, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %cat: f16[1,128,27,27]{93312,1,3456,128} = aten.cat.default([%small, %large], 1)
  %next: f16[1,128,27,27]{93312,1,3456,128} = aten.sigmoid.default(%cat)
  %part: f16[1,64,27,27]{46656,1,1728,64} = aten.tanh.default(%large)
  return %next, %part
}"""  # noqa: E501
STREAMS = (
    Launch("small", 0),
    Launch("large", 1),
    Launch("next", 0, ("large",)),
    Launch("part", 1),
)


MERGED = """
graph merged {
  input %x: f16[1,16,27,27]{11664,1,432,16}
  const %w: f16[96,16,1,1] = w
  const %v: f16[64,64,3,3]{576,1,192,64} = v
  %both: f16[1,96,27,27]{69984,1,2592,96} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %one: f16[1,32,27,27]{69984,1,2592,96} = aten.slice.Tensor(%both, 1, 0, 32)
  %two: f16[1,64,27,27]{69984,1,2592,96} = aten.slice.Tensor(%both, 1, 32, 96)
  %deep: f16[1,64,27,27]{46656,1,1728,64} = aten.convolution.default(%two, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %cat: f16[1,96,27,27]{69984,1,2592,96} = aten.cat.default([%one, %deep], 1)
  %next: f16[1,96,27,27]{69984,1,2592,96} = aten.sigmoid.default(%cat)
  return %next
}"""  # noqa: E501


DENSE = """
graph dense {
  input %x: f16[1,16,27,27]{11664,1,432,16}
  const %u: f16[32,16,3,3]{144,1,48,16} = u
  const %w: f16[32,32,3,3]{288,1,96,32} = w
  const %v: f16[32,64,1,1]{64,1,64,64} = v
  const %s: f16[64,1,1]{1,64,64} = s
  %a: f16[1,32,27,27]{23328,1,864,32} = aten.convolution.default(%x, %u, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %b: f16[1,32,27,27]{23328,1,864,32} = aten.convolution.default(%a, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %two: f16[1,64,27,27]{46656,1,1728,64} = aten.cat.default([%a, %b], 1)
  %scaled: f16[1,64,27,27]{46656,1,1728,64} = aten.mul.Tensor(%two, %s)
  %c: f16[1,32,27,27]{23328,1,864,32} = aten.convolution.default(%scaled, %v, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %three: f16[1,96,27,27]{69984,1,2592,96} = aten.cat.default([%a, %b, %c], 1)
  %next: f16[1,96,27,27]{69984,1,2592,96} = aten.sigmoid.default(%three)
  return %next
}"""  # noqa: E501


def with_variant(tasks: TaskGraph, target: CudaTarget, number: int) -> TaskGraph:
    """Every task with one of its generated kernels."""
    offers = {
        task.name: [k for p in (TritonProvider(),) for k in p.kernels(task, target.spec)]
        for task in tasks.tasks
    }
    chosen = (
        replace(task, kernel=offers[task.name][number % len(offers[task.name])])
        for task in tasks.tasks
    )
    return replace(tasks, tasks=tuple(chosen))


def read(text: str, target: CudaTarget) -> Graph:
    graph = parse_graph(text)
    constants = tuple(
        replace(c, value=random_tensor(c.type, i, target.device))
        for i, c in enumerate(graph.constants)
    )
    return replace(graph, constants=constants)


def agrees(run: Executable, graph: Graph, target: CudaTarget) -> None:
    """Three runs give what the graph gives, and nothing is written beside it."""
    inputs = [random_tensor(value.type, 7, target.device) for value in graph.inputs]
    own = eval_graph(graph, inputs, target.device)
    truth = eval_graph(graph, inputs, target.device, torch.float32)
    for _ in range(3):
        for error, allowed in compare(run(inputs, clone=True), own, truth, target.spec.tf32):
            assert error <= allowed
    assert run.strays() == ""


@pytest.mark.parametrize("number", range(4))
def test_slices_side_by_side(number: int) -> None:
    target = CudaTarget(torch.device("cuda", torch.cuda.current_device()))
    graph = read(FIRE, target)
    tasks = partition(graph, Trace(), target.spec)
    tasks = with_variant(with_elided(tasks, fitting(tasks, Trace())), target, number)
    assert [node.name for node in tasks.elided_concats] == ["cat"]
    run = target.load(fence(pack(tasks, Schedule("side by side", STREAMS), target.spec)))
    assert not run.failure
    agrees(run, graph, target)


@pytest.mark.parametrize("number", range(4))
def test_a_slice_is_read_in_place_and_copied_to_its_place(number: int) -> None:
    target = CudaTarget(torch.device("cuda", torch.cuda.current_device()))
    graph = read(MERGED, target)
    tasks = partition(graph, Trace(), target.spec)
    tasks = with_variant(with_elided(tasks, fitting(tasks, Trace())), target, number)
    assert [node.uses for node in tasks.elided_concats] == [("cat_one", "deep")]
    launches = (
        Launch("both", 0),
        Launch("cat_one", 1, ("both",)),
        Launch("deep", 0),
        Launch("next", 0, ("cat_one",)),
    )
    run = target.load(fence(pack(tasks, Schedule("beside", launches), target.spec)))
    assert not run.failure
    agrees(run, graph, target)


@pytest.mark.parametrize("number", range(4))
def test_what_a_layer_reads_is_a_part_of_what_the_next_one_reads(number: int) -> None:
    target = CudaTarget(torch.device("cuda", torch.cuda.current_device()))
    graph = read(DENSE, target)
    tasks = partition(graph, Trace(), target.spec, True, True, True, alone=("two", "three"))
    tasks = with_variant(with_elided(tasks, fitting(tasks, Trace())), target, number)
    assert [node.uses for node in tasks.elided_concats] == [("a", "b"), ("two", "c")]
    assert [len(task.body.nodes) for task in tasks.tasks] == [1, 1, 2, 1]
    launches = tuple(Launch(task.name, 0) for task in tasks.tasks)
    run = target.load(fence(pack(tasks, Schedule("in a row", launches), target.spec)))
    assert not run.failure
    agrees(run, graph, target)


def test_a_library_that_cannot_write_a_slice_copies() -> None:
    target = CudaTarget(torch.device("cuda", torch.cuda.current_device()))
    graph = read(FIRE, target)
    tasks = partition(graph, Trace(), target.spec)
    tasks = with_elided(tasks, fitting(tasks, Trace()))
    again = writing(tasks.tasks, tasks, {}, PROVIDERS)
    chosen = (
        replace(task, kernel=next(k for p in again for k in p.kernels(task, target.spec)))
        for task in tasks.tasks
    )
    tasks = replace(tasks, tasks=tuple(chosen))
    run = target.load(fence(pack(tasks, Schedule("side by side", STREAMS), target.spec)))
    agrees(run, graph, target)
