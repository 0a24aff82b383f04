"""Many steps that follow each other: which of them are one group, and that they are one launch."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from tests.fusion.test_partition import SPEC
from tests.kernels.triton.loops import average, graph_of, hidden
from tests.rewrite.graphs import read, worst
from torch import Tensor, nn

from anabranch.compiler.pipeline import compile_model
from anabranch.fusion import partition
from anabranch.fusion.unrolled_loops import LoopSearch, recurrences
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.dfg.recurrence import LEAST_STEPS
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job
from anabranch.tuning.tuner import CUTS


def cut(graph: Graph) -> TaskGraph:
    """The coarsest cut, after checking that every one has the loops and computes the same."""
    loops = recurrences(graph, Trace())
    inputs = random_inputs(graph, 0)
    old = eval_graph(graph, inputs, precision=torch.float64)
    for larger in CUTS:
        tasks = partition(graph, Trace(), SPEC, *larger, loops=loops)
        verify_tasks(tasks)
        dag_of(tasks)
        assert worst(old, eval_tasks(tasks, inputs, precision=torch.float64)) == 0
        bodies = [{node.name for node in task.body.nodes} for task in tasks.tasks]
        assert all({node.name for node in loop} in bodies for loop in loops)
    return tasks


def sru(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Two layers, of which the second multiplies what the first made."""
    for weight in (w, v):
        z, f, r = (x @ weight).chunk(3, -1)
        c, found = torch.zeros_like(x[0]), []
        for t in range(x.shape[0]):
            f_t, r_t = torch.sigmoid(f[t]), torch.sigmoid(r[t])
            c = f_t * c + (1 - f_t) * z[t]
            found.append(r_t * torch.tanh(c) + (1 - r_t) * x[t])
        x = torch.stack(found)
    return x


def test_each_layer_is_a_loop() -> None:
    """All that each reads comes of one product: its slices and their sigmoids are in the loop."""
    graph = graph_of(sru, torch.randn(LEAST_STEPS, 2, 8), torch.randn(8, 24), torch.randn(8, 24))
    tasks = cut(graph)
    assert len(tasks.tasks) == 4
    assert [len(task.reads) for task in tasks.tasks] == [2, 2, 2, 2]


def test_steps_of_one_loop_may_be_joined_twice() -> None:
    """Both states at each step, and both after the last."""

    def both(*args: Tensor) -> tuple[Tensor, ...]:
        f, z, o, c, h = args
        cs, hs = [], []
        for t in range(f.shape[1]):
            c = torch.sigmoid(f[:, t] + 0.1 * h) * c + torch.tanh(z[:, t])
            h = torch.sigmoid(o[:, t]) * torch.tanh(c)
            cs.append(c)
            hs.append(h)
        return torch.stack(hs, 1), torch.stack(cs, 1), h, c

    args = [torch.randn(2, 36, 5) for _ in range(3)] + [torch.randn(2, 5) for _ in range(2)]
    (task,) = cut(graph_of(both, *args)).tasks
    assert len(task.writes) == 4


def test_what_leads_back_is_no_part_of_it() -> None:
    """The mean of all steps is subtracted from each: the second loop waits for the first."""

    def twice(x: Tensor) -> Tensor:
        once = average(x, 0)
        return average(once - once.mean(0), 0)

    tasks = cut(graph_of(twice, torch.randn(40, 3, 4)))
    loops = [task for task in tasks.tasks if len(task.body.nodes) > 40]
    assert len(loops) == 2 and len(tasks.tasks) == 3


def test_the_last_state_before_a_product() -> None:
    def last(x: Tensor, w: Tensor) -> Tensor:
        c = torch.zeros_like(x[:, 0])
        for one in x.unbind(1):
            c = torch.relu(0.7 * c + one)
        return c @ w

    tasks = cut(graph_of(last, torch.randn(4, 50, 6), torch.randn(6, 3)))
    assert [len(task.body.nodes) > 100 for task in tasks.tasks] == [True, False]


def test_what_are_no_steps_is_refused_with_a_reason() -> None:
    """A product at each step; and steps of which every second does otherwise."""

    def multiplied(x: Tensor, w: Tensor) -> Tensor:
        h, found = torch.zeros_like(x[0]), []
        for one in x.unbind(0):
            h = torch.tanh(one + h @ w)
            found.append(h)
        return torch.stack(found)

    def uneven(x: Tensor) -> Tensor:
        c, found = x[0], []
        for t, one in enumerate(x.unbind(0)):
            c = (torch.tanh if t % 2 else torch.sigmoid)(0.5 * c + one)
            found.append(c)
        return torch.stack(found)

    assert not recurrences(graph_of(multiplied, torch.randn(40, 3, 4), torch.randn(4, 4)), Trace())
    trace = Trace()
    assert not recurrences(graph_of(uneven, torch.randn(40, 3, 4)), trace)
    assert "different things" in trace.events[-1].why


def test_a_state_that_is_shifted_is_no_loop() -> None:
    """Each step would read all before it: no time is lost on that."""

    def shifted(x: Tensor) -> Tensor:
        c, found = torch.zeros_like(x[0]), []
        for one in x.unbind(0):
            c = torch.cat([c[:, 1:], one[:, :1]], 1) * 0.5
            found.append(c)
        return torch.stack(found)

    begun = time.process_time()
    assert not recurrences(graph_of(shifted, torch.randn(120, 3, 40)), Trace())
    assert time.process_time() - begun < 12


def test_groups_that_wait_for_each_other() -> None:
    """By a softmax outside, or by another group of which one node reads and another is read."""
    graph = read("""
    graph g {
      input %x: f32[4,6]
      input %y: f32[4,6]
      %a: f32[4,6] = aten.relu.default(%x)
      %v: f32[6] = aten.select.int(%a, 0, 1)
      %p: f32[6] = aten.exp.default(%v)
      %q: f32[4,6] = aten.relu.default(%y)
      %s: f32[4,6] = aten.softmax.int(%q, 1)
      %b: f32[4,6] = aten.add.Tensor(%a, %s)
      return %p, %b
    }""")
    a, v, p, q, s, b = graph.nodes
    search = LoopSearch(graph)
    assert not search.comes_back((a, b)) and not search.comes_back((a, v, p))
    assert search.comes_back((q, b)) and not search.comes_back((q, s, b))
    search.groups, search.taken = [(p, q)], {"p", "q"}
    assert search.comes_back((a, b)) and not search.comes_back((a,))


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        f, z, o = self.linear(x).chunk(3, -1)
        start = torch.zeros_like(x[:, 0])
        return hidden(f, z, o, start, start)


class Averaged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return average(x, 1, back=True)


@pytest.mark.parametrize(("model", "launches", "steps"), [(Gates, 2, 60), (Averaged, 1, 220)])
def test_plans_have_one_launch_for_all_steps(
    model: Callable[[], nn.Module], launches: int, steps: int
) -> None:
    options = Options.read(
        {"cache_dir": None, "scheduler": "critical", "search": "none"}, environment=False
    )
    x = torch.randn(2, steps, 16)
    job = Job(model().eval(), (x,), {}, resolve("sim:h200"), options, None, Trace())
    tasks = compile_model(job, "memory").tasks.tasks
    assert len(tasks) == launches
    assert tasks[-1].kernel is not None and tasks[-1].kernel.name == "recurrence"
