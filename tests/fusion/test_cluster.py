"""Clusters: what is merged, that it stays a partition, and that its bodies compute the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fusion.test_partition import cut
from tests.kernels.dfg.test_concat_stores import recurrence
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check
from tests.networks import tiny, with_tiny

from anabranch.compiler.pipeline import compile_model
from anabranch.fusion import partition
from anabranch.fusion.cluster import MOST_REDUCTIONS
from anabranch.fusion.merge_cuts import choose
from anabranch.ir import ops
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph, Input, Node, Ref
from anabranch.ir.inputs import random_inputs
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.triton.codegen import variants
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job


def clustered(text: str) -> list[str]:
    """Tasks as "a+b -> results", views in lower bodies included."""
    tasks = cut(read(text), True, True)
    return [
        "+".join(node.name for node in task.body.nodes) + " -> " + " ".join(task.writes)
        for task in tasks.tasks
    ]


def chained(lines: str, returned: str, more: str = "") -> list[str]:
    body = "\n".join(f"  {line.strip()}" for line in lines.strip().splitlines())
    return clustered(f"graph g {{\n  input %x: f32[4,8]\n{more}{body}\n  return {returned}\n}}")


def test_a_recurrence_is_one_launch() -> None:
    tasks = cut(read(recurrence(4, 8)), True, True)
    (task,) = tasks.tasks
    assert task.reads == ("lin", "c") and task.writes == ("c3", "s")
    assert not tasks.aliases
    check(task.body, variants(task.body, gpu()))


def test_a_result_on_the_way_is_stored_too() -> None:
    r"""
    X - a - b - caller     a is read inside alone, b outside as well: one launch stores b and c
         \   \
          ----- c
    """
    assert chained(
        """
        %a: f32[4,8] = aten.exp.default(%x)
        %b: f32[4,8] = aten.relu.default(%a)
        %c: f32[4,8] = aten.mul.Tensor(%b, %a)
        """,
        "%b, %c",
    ) == ["a+b+c -> b c"]


def test_a_path_that_leaves_and_comes_back() -> None:
    """Node b reads a by way of the product: it cannot run with a."""
    assert chained(
        """
        %a: f32[4,8] = aten.relu.default(%x)
        %m: f32[4,8] = aten.mm.default(%a, %w)
        %b: f32[4,8] = aten.mul.Tensor(%m, %a)
        """,
        "%a, %b",
        "  const %w: f32[8,8] = w\n",
    ) == ["a -> a", "m+b -> b"]


def test_a_result_does_not_wait_for_strangers() -> None:
    """Node c waits for the product of y, which a does not need: a runs before."""
    found = chained(
        """
        %a: f32[4,8] = aten.exp.default(%x)
        %p: f32[4,8] = aten.mm.default(%x, %w)
        %t: f32[4,8] = aten.cumsum.default(%p, 1)
        %m: f32[4,8] = aten.mm.default(%a, %w)
        %c: f32[4,8] = aten.mul.Tensor(%a, %t)
        """,
        "%m, %c",
        "  const %w: f32[8,8] = w\n",
    )
    assert "a -> a" in found


def test_what_is_broadcast_is_not_computed_again() -> None:
    assert chained(
        """
        %r: f32[1,8] = aten.exp.default(%y)
        %s: f32[4,8] = aten.mul.Tensor(%x, %r)
        """,
        "%s",
        "  input %y: f32[1,8]\n",
    ) == ["r -> r", "s -> s"]


def test_a_loop_with_a_norm_in_each_step_is_cut() -> None:
    """Into kernels of a few steps, each of which waits for the one before it."""
    steps = [
        f"%n{t}: f32[4,8] = aten.layer_norm.default(%h{t}, [8])\n"
        f"  %h{t + 1}: f32[4,8] = aten.tanh.default(%n{t})"
        for t in range(3 * MOST_REDUCTIONS)
    ]
    text = "\n  ".join(["%h0: f32[4,8] = aten.relu.default(%x)", *steps])
    found = clustered(f"graph g {{\n  input %x: f32[4,8]\n  {text}\n  return %h{len(steps)}\n}}")
    norms = [task.partition(" -> ")[0].count("n") for task in found]
    assert len(found) == 3 and sum(norms) == len(steps) and max(norms) == MOST_REDUCTIONS


def test_siblings_that_read_the_same() -> None:
    assert chained(
        """
        %a: f32[4,8] = aten.exp.default(%x)
        %b: f32[4,8] = aten.relu.default(%x)
        """,
        "%a, %b",
    ) == ["a+b -> a b"]


def test_a_sum_that_is_normalised_and_kept() -> None:
    """The residual stream of a transformer that normalises first: two results of one launch."""
    text = """
    graph g {
      input %x: f32[4,8]
      input %y: f32[4,8]
      const %w: f32[8] = w
      const %v: f32[8,8] = v
      %a: f32[4,8] = aten.add.Tensor(%x, %y)
      %n: f32[4,8] = aten.layer_norm.default(%a, [8], %w, None)
      %m: f32[4,8] = aten.mm.default(%n, %v)
      %r: f32[4,8] = aten.add.Tensor(%m, %a)
      return %r
    }"""
    assert clustered(text) == ["a+n -> a n", "m+r -> r"]
    task = cut(read(text), True, True).tasks[0]
    check(task.body, variants(task.body, gpu()))


SEEN = """
graph g {{
  input %x: f16[1,4,6,8]
  input %y: f16[1,4,6,8]
  const %w: f16[8] = w
  %a: f16[1,4,6,8] = aten.add.Tensor(%x, %y)
  %v: f16[{shape}] = aten.reshape.default(%a, [{shape}])
  %n: f16[{shape}] = {norm}
  return %a, %n
}}"""


@pytest.mark.parametrize("shape", ["1,24,8", "4,6,8", "24,8", "1,2,2,6,8", "3,8,8"])
@pytest.mark.parametrize(
    "norm", ["aten.layer_norm.default(%v, [8], %w, None)", "aten.exp.default(%v)"]
)
def test_a_sum_that_is_kept_and_read_in_another_shape(shape: str, norm: str) -> None:
    """An image of windows that a transformer normalises as a sequence (Swin)."""
    text = SEEN.format(shape=shape, norm=norm)
    if shape == "3,8,8":  # axes of neither are some of the other's
        assert clustered(text) == ["a -> a", "n -> n"]
        return
    assert clustered(text) == ["a+v+n -> a n"]
    task = cut(read(text), True, True).tasks[0]
    check(task.body, variants(task.body, gpu()))


@settings(max_examples=30)
@given(st.data())
def test_results_in_random_shapes_of_one_space(data: st.DataObject) -> None:
    """Each result has some neighbouring axes of the finest shape as one."""
    finest = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    lines, returned = [f"%a: f32[{','.join(map(str, finest))}] = aten.exp.default(%x)"], ["%a"]
    for number in range(data.draw(st.integers(1, 3))):
        shape = [finest[0]]
        for size in finest[1:]:
            if data.draw(st.booleans()):
                shape[-1] *= size
            else:
                shape.append(size)
        told = ",".join(map(str, shape))
        lines.append(f"%v{number}: f32[{told}] = aten.reshape.default(%a, [{told}])")
        lines.append(f"%b{number}: f32[{told}] = aten.neg.default(%v{number})")
        returned.append(f"%b{number}")
    whole = ",".join(map(str, finest))
    body = "\n".join(lines)
    text = f"graph g {{\n  input %x: f32[{whole}]\n{body}\n  return {', '.join(returned)}\n}}"
    (task,) = cut(read(text), True, True).tasks
    check(task.body, variants(task.body, gpu())[:1])


def test_a_view_of_what_is_inside_is_held_and_an_alias() -> None:
    """Node t is read inside, and returned: the body has it, and so have the aliases."""
    tasks = cut(
        read("""
    graph g {
      input %x: f32[4,8]
      %a: f32[4,8] = aten.exp.default(%x)
      %t: f32[8,4]{1,8} = aten.t.default(%a)
      %b: f32[8,4]{1,8} = aten.relu.default(%t)
      return %t, %b
    }"""),
        True,
        True,
    )
    assert [node.name for node in tasks.aliases] == ["t"]
    assert sum(len(task.body.nodes) for task in tasks.tasks) >= 2


UNARY = ("aten.relu.default", "aten.sigmoid.default", "aten.neg.default", "aten.tanh.default")
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default")
VIEWS = (
    *(
        ("aten.select.int", (0, 1)),
        ("aten.slice.Tensor", (0, 1, 3)),
        ("aten.unsqueeze.default", (0,)),
    ),
    *(("aten.transpose.int", (0, -1)), ("aten.expand.default", ((2, -1, -1),))),
)


def steps(seed: int, size: int = 24) -> Graph:
    """A random graph of pointwise nodes, views, joins, sums and broadcasts over small shapes."""
    dice = random.Random(seed)
    inputs = tuple(
        Input(name, TensorType(shape, torch.float32))
        for name, shape in (("x", (3, 4)), ("y", (3, 4)), ("z", (3, 2, 4)))
    )
    table = {value.name: value.type for value in inputs}
    nodes: list[Node] = []
    for i in range(size):
        names = list(table)[-9:]
        a, b = (Ref(dice.choice(names)) for _ in range(2))
        op, args = dice.choice(
            [
                *[(op, (a,)) for op in UNARY],
                *[(op, (a, b)) for op in BINARY * 3],
                *[(op, (a, *more)) for op, more in VIEWS],
                *(("aten.stack.default", ((a, b),)), ("aten.cat.default", ((a, b), 0))),
                *(("aten.sum.dim_IntList", (a, (-1,), True)), ("aten.clone.default", (a,))),
                ("aten.softmax.int", (a, -1)),
            ]
        )
        try:
            made = ops.make_node(f"n{i}", op, args, table)
        except (RuntimeError, IndexError):  # shapes that do not go together
            continue
        if made.type.numel <= 200 and len(made.type.shape) <= 4:
            nodes.append(made)
            table[made.name] = made.type
    unread = {node.name for node in nodes} - {name for node in nodes for name in node.uses}
    outputs = [Ref(node.name) for node in nodes if node.name in unread or dice.random() < 0.1]
    return Graph("steps", inputs, (), tuple(nodes), tuple(outputs))


@given(st.integers(0, 100_000))
@settings(max_examples=30, deadline=None)
def test_random_steps(seed: int) -> None:
    """A partition, convex (else `dag_of` finds a cycle), of the same value."""
    graph = steps(seed)
    assert len(cut(graph, True, True).tasks) <= len(cut(graph, True).tasks)


@given(st.integers(0, 100_000))
@settings(max_examples=12, deadline=None)
def test_kernels_of_random_steps(seed: int) -> None:
    tasks = partition(steps(seed), Trace(), gpu(), True, True)
    large = sorted(tasks.tasks, key=lambda task: -len(task.body.nodes))
    for task in large[:2]:
        found = variants(task.body, gpu())
        repeats = any(0 in value.type.strides for value in task.body.inputs)
        if found and not repeats:
            check(task.body, found[:1])


@pytest.mark.parametrize("wins", [True, False])
def test_parts_get_their_aliases_back(wins: bool) -> None:
    graph = read(recurrence(3, 8))
    fine, chains = (partition(graph, Trace(), gpu(), larger) for larger in (False, True))
    whole = partition(graph, Trace(), gpu(), True, True)

    def cost(task: Task) -> Cost:
        one = any(node.op == "aten.stack.default" for node in task.body.nodes)
        return Cost(1.0 if wins or not one or len(task.body.nodes) == 1 else 1e6, "measured")

    chosen = choose(whole, choose(chains, fine, cost, Trace()), cost, Trace())
    verify_tasks(chosen)
    assert (len(chosen.tasks) == 1) == wins
    assert bool(chosen.aliases) != wins
    _same(graph, chosen)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
@settings(max_examples=30, deadline=None)
def test_any_choice_computes_the_same(seed: int, luck: int) -> None:
    graph = steps(seed)
    dice = random.Random(luck)
    fine = partition(graph, Trace(), gpu())
    for cut_so in ((True, False), (False, True), (True, True)):
        larger = partition(graph, Trace(), gpu(), *cut_so)
        fine = choose(larger, fine, lambda task: Cost(dice.random(), "measured"), Trace())
        verify_tasks(fine)
        dag_of(fine)
    _same(graph, fine)


def test_stretches_that_would_wait_for_each_other() -> None:
    """Cut as {a, d} and {b, c} there is no order; the choice falls back to a graph that has one."""
    graph = read("""
    graph g {
      input %x: f32[4,8]
      input %y: f32[4,8]
      %a: f32[4,8] = aten.exp.default(%x)
      %b: f32[4,8] = aten.relu.default(%a)
      %c: f32[4,8] = aten.neg.default(%y)
      %d: f32[4,8] = aten.tanh.default(%c)
      return %b, %d
    }""")
    apart = partition(graph, Trace(), gpu())
    a, b, c, d = (task.body for task in apart.tasks)
    first, second = _joined(a, d), _joined(b, c)
    one = replace(apart, tasks=(Task("a", first), Task("b", b), Task("c", c)))
    two = replace(apart, tasks=(Task("a", a), Task("c", second), Task("d", d)))
    costs = {"a+d": 1.0, "b+c": 1.0}

    def cost(task: Task) -> Cost:
        names = "+".join(node.name for node in task.body.nodes)
        return Cost(costs.get(names, 5.0), "measured")

    chosen = choose(one, apart, cost, Trace())
    assert len(chosen.tasks) == 3
    _same(graph, chosen)
    assert choose(two, chosen, cost, Trace()) in (two, chosen)


def _joined(one: Graph, other: Graph) -> Graph:
    """Both bodies as one, in parts that do not touch."""
    nodes = (*one.nodes, *other.nodes)
    return Graph(one.name, (*one.inputs, *other.inputs), (), nodes, (*one.outputs, *other.outputs))


@pytest.mark.parametrize(
    ("network", "most"),
    [
        pytest.param(network, most, marks=with_tiny(network))
        for network, most in (("sru", 9), ("deepfm", 9), ("bert_base", 20))
    ],
)
def test_networks_become_few_launches(network: str, most: int) -> None:
    """Tiny ones: SRU is 161 launches of a library, DeepFM 33, BERT 30."""
    known = tiny(network)
    options = Options.read(
        {"cache_dir": None, "scheduler": "critical", "search": "none"}, environment=False
    )
    job = Job(known.model, known.inputs, {}, resolve("sim:h200"), options, None, Trace())
    plan = compile_model(replace(job, captured=known.captured), "memory")
    assert len(plan.tasks.tasks) <= most


def _same(graph: Graph, tasks: TaskGraph) -> None:
    inputs = random_inputs(graph, 0)
    old, new = eval_graph(graph, inputs), eval_tasks(tasks, inputs)
    assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


def test_a_copy_that_is_no_state_s_is_a_reader_like_any_other() -> None:
    graph = parse_graph("""
graph copied {
  input %x: f32[8,16]
  input %y: f32[8,16]
  %a: f32[8,16] = aten.mul.Tensor(%x, 2.0)
  %b: f32[8,16] = aten.copy.default(%y, %a)
  %c: f32[8,16] = aten.relu.default(%a)
  return %b, %c
}
""")
    assert len(cut(graph, True, True).tasks) == 1
