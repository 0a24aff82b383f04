"""What is computed again in all that read it, the reasons where it is not, and that the tasks
compute the same then."""

from __future__ import annotations

import pytest
import torch
from tests.fusion.test_gemm_chain import network
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check
from tests.rewrite.graphs import drawn, worst

from anabranch.fusion import partition
from anabranch.fusion.merge_cuts import choose, stretches
from anabranch.fusion.recompute import computed_again
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.protocols import A_LARGE_GPU, Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.triton.codegen import variants
from anabranch.trace import Trace

CELL = "r = relu x 64\na = depth r 64\nb = depth r 64\nc = conv1 x 64"


def cut(
    graph: Graph, several: bool = False, gemm_chains: bool = True
) -> tuple[TaskGraph, TaskGraph, list[str]]:
    """The tasks, those with what is computed again, and what was said of it."""
    trace = Trace()
    fine = partition(graph, Trace(), gpu(), True, several, gemm_chains)
    return fine, computed_again(fine, gpu(), trace), [f"{e.what}: {e.why}" for e in trace.events]


def bodies(tasks: TaskGraph) -> dict[str, str]:
    return {task.name: "+".join(node.name for node in task.body.nodes) for task in tasks.tasks}


def is_same(tasks: TaskGraph, graph: Graph) -> None:
    """Whether these are tasks in an order in which they can run, and compute what the graph does.
    Nothing that is computed again is written."""
    verify_tasks(tasks)
    dag_of(tasks)
    inputs = random_inputs(graph, 0)
    old = eval_graph(graph, inputs, precision=torch.float64)
    assert worst(old, eval_tasks(tasks, inputs, precision=torch.float64)) == 0


def test_a_relu_of_two_depthwise_convolutions_is_no_launch() -> None:
    graph = network(CELL, returned="%a, %b, %c")
    fine, coarse, said = cut(graph)
    assert bodies(fine) == {"r": "r", "a": "a", "b": "b", "c": "c"}
    assert bodies(coarse) == {"a": "r+a", "b": "r+b", "c": "c"}
    assert said == ["%r: computed again in 2 readers: no launch of its own"]
    is_same(coarse, graph)


def test_a_small_tree_and_readers_of_other_kinds() -> None:
    """A depthwise convolution before a product, a pooling, and a sum that keeps its name."""
    graph = network(
        "s = add x x 64\nr = relu s 64\nd = depth r 64\np = conv1 d 32\nm = pool r 64\n"
        "t = add r x 64",
        returned="%p, %m, %t",
    )
    _, coarse, _ = cut(graph)
    assert bodies(coarse) == {"d": "s+r+d+p", "m": "s+r+m", "t": "s+r+t"}
    is_same(coarse, graph)


def test_each_reader_computes_what_it_reads() -> None:
    """A cluster with two results, of which one pooling reads the first alone."""
    graph = network(
        "s = add x x 64\nr = relu s 64\na = depth r 64\nb = depth s 64\nc = depth r 64",
        returned="%a, %b, %c",
    )
    fine, coarse, said = cut(graph, several=True, gemm_chains=False)
    assert bodies(fine)["s"] == "s+r"
    assert bodies(coarse) == {"a": "s+r+a", "b": "s+b", "c": "s+r+c"}
    assert said == ["%s + %r: computed again in 3 readers: no launch of its own"]
    is_same(coarse, graph)


def test_what_is_read_elsewhere_too_stays_in_memory() -> None:
    """The sum is returned: the relu alone is computed again."""
    graph = network(
        "s = add x x 64\nr = relu s 64\na = depth r 64\nb = depth r 64", returned="%a, %b, %s"
    )
    _, coarse, _ = cut(graph)
    assert bodies(coarse) == {"s": "s", "a": "r+a", "b": "r+b"}
    is_same(coarse, graph)


def test_what_is_returned_must_be_in_memory() -> None:
    fine, coarse, said = cut(network(CELL, returned="%a, %b, %c, %r"))
    assert coarse is fine and said == ["%r: %r is returned"]


def test_a_product_must_be_expected_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network("r = relu x 64\na = depth r 64\nb = conv1 r 64", returned="%a, %b")
    assert bodies(cut(graph)[1]) == {"a": "r+a", "b": "r+b"}
    monkeypatch.setattr("anabranch.fusion.recompute.TRIED_SLOWDOWN", 0.1)
    fine, coarse, (said,) = cut(graph)
    assert coarse is fine and "us expected with %r" in said


def reading(readers: str) -> Graph:
    """A relu with other readers beside a depthwise convolution."""
    image = "f16[1,64,7,7]{3136,1,448,64}"
    names = [line.partition(":")[0] for line in readers.splitlines()]
    return read(f"""
    graph net {{
      input %x: {image}
      input %y: {image}
      input %big: f16[5,64,7,7]{{3136,1,448,64}}
      const %w: f16[64,1,3,3]{{1,1,192,64}} = w
      %light: {image} = aten.relu.default(%x)
      %d: {image} = aten.convolution.default(%light, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64)
      {readers}
      return %d, {", ".join(names)}
    }}""")  # noqa: E501


def test_constants_go_with_what_reads_them() -> None:
    lines = (
        "%light: IMAGE = aten.mul.Tensor(%x, %s)",
        "%a: IMAGE = aten.max_pool2d.default(%light, [3, 3], [1, 1], [1, 1])",
        "%b: IMAGE = aten.avg_pool2d.default(%light, [3, 3], [1, 1], [1, 1])",
    )
    head = "graph net {\ninput %x: IMAGE\nconst %s: f16[1,64,1,1] = s\n"
    text = "\n".join((head, *lines, "return %a, %b\n}"))
    graph = read(text.replace("IMAGE", "f16[1,64,7,7]{3136,1,448,64}"))
    _, coarse, _ = cut(graph)
    assert bodies(coarse) == {"a": "light+a", "b": "light+b"}
    assert all([c.name for c in task.body.constants] == ["s"] for task in coarse.tasks)
    is_same(coarse, graph)


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        (
            "%v: f16[64,7,7]{1,448,64} = aten.select.int(%light, 0, 0)\n"
            "%z: f16[1,64,7,7]{3136,1,448,64} = aten.add.Tensor(%light, %y)",
            "%light: %v is a view of it",
        ),
        (
            "%v: f16[5,64,7,7]{3136,1,448,64} = aten.add.Tensor(%big, %light)",
            "%light: %light is broadcast: it would be computed again for each element",
        ),
        (
            "%v: f16[2,64,7,7]{3136,1,448,64} = aten.cat.default([%light, %y], 0)",
            "%light: %v only moves what it reads",
        ),
    ],
)
def test_readers_that_cannot_compute_it(reader: str, why: str) -> None:
    fine, coarse, said = cut(reading(reader))
    assert coarse is fine and why in said, said


ROW = """
graph row {{
  input %x: f16[{rows},1,96]
  const %g: f16[96] = g
  const %a: f16[64,96] = a
  const %b: f16[40,96] = b
  %n: f16[{rows},1,96] = aten.{norm}.default(%x, [96], %g{bias}, 1e-05)
  %p: f16[{rows},1,64] = aten.linear.default(%n, %a)
  %q: f16[{rows},1,40] = aten.linear.default(%n, %b)
  return %p{also}, %q
}}"""


@pytest.mark.parametrize(("norm", "bias"), [("rms_norm", ""), ("layer_norm", ", None")])
def test_the_norm_of_a_row_is_computed_by_its_products(norm: str, bias: str) -> None:
    graph = read(ROW.format(rows=1, norm=norm, bias=bias, also=""))
    fine, coarse, said = cut(graph)
    assert bodies(fine) == {"n": "n", "p": "p", "q": "q"}
    assert bodies(coarse) == {"p": "n+p", "q": "n+q"}
    assert said == ["%n: computed again in 2 readers: no launch of its own"]
    is_same(coarse, graph)
    for task in coarse.tasks:
        check(task.body, list(map(str, variants(task.body, gpu())[:2])))


@pytest.mark.parametrize(("rows", "also", "why"), [(2, "", ""), (1, ", %n", "%n is returned")])
def test_the_norm_of_rows_or_one_that_is_returned_stays(rows: int, also: str, why: str) -> None:
    graph = read(ROW.format(rows=rows, norm="rms_norm", bias="", also=also))
    fine, coarse, said = cut(graph)
    assert coarse == fine and said == ([f"%n: {why}"] if why else [])


def test_many_values_are_not_read_for_one() -> None:
    graph = network(
        "\n".join(
            (
                *(f"c{i} = conv1 x 64" for i in range(4)),
                "m = relu c0 64\ns = add c1 c2 64\nt = add s c3 64\nu = add t m 64",
                "a = pool u 64\nb = depth u 64",
            )
        ),
        returned="%a, %b, %c0, %c1, %c2, %c3",
    )
    _, coarse, said = cut(graph, gemm_chains=False)
    assert any(one.endswith("4 values to compute it") for one in said), said
    assert "u" in "+".join(bodies(coarse).values())


def test_what_shares_nodes_is_one_decision() -> None:
    """Whichever of the two is the finer one."""
    fine, coarse, _ = cut(network(CELL, returned="%a, %b, %c"))
    for one, other in ((coarse, fine), (fine, coarse)):
        found = [sorted(map(len, stretch)) for stretch in stretches(one, other)]
        assert sorted(found) == [[1, 1], [2, 3]]


@pytest.mark.parametrize(("us", "tasks"), [(2.2, 3), (2.7, 4)])
def test_it_stays_where_it_is_faster(us: float, tasks: int) -> None:
    fine, coarse, _ = cut(network(CELL, returned="%a, %b, %c"))

    def cost(task: Task) -> Cost:
        alone = 1.0 if task.name == "r" else 2.0
        return Cost(us if len(task.body.nodes) > 1 else alone, "measured")

    found = choose(coarse, fine, cost, Trace())
    assert len(found.tasks) == tasks
    verify_tasks(found)


def test_it_computes_the_same_in_generated_kernels() -> None:
    lines = "s = add x x 64\nr = relu s 64\na = depth r 64\nb = depth r 64\nt = add r x 64"
    _, coarse, _ = cut(network(lines, 5, returned="%a, %b, %t"))
    assert bodies(coarse) == {"a": "s+r+a", "b": "s+r+b", "t": "s+r+t"}
    for task in coarse.tasks:
        check(task.body, variants(task.body, A_LARGE_GPU)[:1])


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_compute_the_same(seed: int) -> None:
    graph = drawn(seed)
    for larger in ((False, False), (True, False), (True, True)):
        is_same(cut(graph, *larger)[1], graph)
