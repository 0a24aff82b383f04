"""Concat elision by force on the CPU: the same is computed, under every scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fusion.elided_concats import CPU, forced, networks, with_kernels
from torch import Tensor

from anabranch.costs.roofline import Roofline
from anabranch.errors import VerifyError
from anabranch.fusion import partition
from anabranch.fusion.concat_elision import fitting, touching, worth
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph, Node, Ref
from anabranch.ir.key import tasks_text
from anabranch.ir.protocols import Cost, Limits
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Slice, Task, extract, leaves, owners, slices, task_producers
from anabranch.ir.text import parse_graph, text_tasks
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.memory import pack
from anabranch.memory.race_check import check_plan
from anabranch.schedule import SCHEDULERS
from anabranch.targets.cpu.target import RUNNERS, CpuExecutable
from anabranch.targets.loading import place
from anabranch.trace import Trace

GRAPH = parse_graph("""
graph g {
  input %x: f32[1,4,2,2]
  %a: f32[1,4,2,2] = aten.relu.default(%x)
  %b: f32[1,4,2,2] = aten.tanh.default(%x)
  %cat: f32[1,8,2,2] = aten.cat.default([%a, %b], -3)
  %c: f32[1,4,2,2] = aten.neg.default(%a)
  %d: f32[1,8,2,2] = aten.exp.default(%cat)
  return %c, %d
}""")


JOINED = forced(GRAPH)


def test_the_text_form() -> None:
    assert (
        text_tasks(JOINED)
        == """\
tasks g {
  input %x: f32[1,4,2,2]
  elided_concat %cat: f32[1,8,2,2] = aten.cat.default([%a, %b], 1)
  task a {
    graph a {
      input %x: f32[1,4,2,2]
      %a: f32[1,4,2,2]{32,4,2,1} = aten.relu.default(%x)
      return %a
    }
    kernel aten.aten
  }
  task b {
    graph b {
      input %x: f32[1,4,2,2]
      %b: f32[1,4,2,2]{32,4,2,1} = aten.tanh.default(%x)
      return %b
    }
    kernel aten.aten
  }
  task c {
    graph c {
      input %a: f32[1,4,2,2]{32,4,2,1}
      %c: f32[1,4,2,2] = aten.neg.default(%a)
      return %c
    }
    kernel aten.aten
  }
  task d {
    graph d {
      input %cat: f32[1,8,2,2]
      %d: f32[1,8,2,2] = aten.exp.default(%cat)
      return %d
    }
    kernel aten.aten
  }
  return %c, %d
}
"""
    )


def test_what_reads_the_whole_waits_for_all_parts() -> None:
    assert slices(JOINED) == {"a": Slice("cat", 0), "b": Slice("cat", 16)}
    assert task_producers(JOINED)["cat"] == ("a", "b")
    dag = dag_of(JOINED)
    named = [(dag.names[u], dag.names[v]) for u, v in dag.edges()]
    assert sorted(named) == [("a", "c"), ("a", "d"), ("b", "d")]


def test_joins_are_part_of_the_key() -> None:
    apart = replace(JOINED, elided_concats=(), outputs=(Ref("c"),), tasks=JOINED.tasks[:3])
    assert tasks_text(replace(apart, elided_concats=JOINED.elided_concats)) != tasks_text(apart)
    other = replace(JOINED.elided_concats[0], args=((Ref("b"), Ref("a")), 1))
    assert tasks_text(replace(JOINED, elided_concats=(other,))) != tasks_text(JOINED)


@pytest.mark.parametrize(
    ("names", "inputs", "outputs", "elided"),
    [
        (("a", "b", "d"), ["x"], ["d", "cat"], 1),  # c reads a part outside: the whole stays
        (("a", "b", "c", "d"), ["x"], ["c", "d"], 1),
        (("a", "b"), ["x"], ["cat"], 1),
        (("a", "c"), ["x"], ["a", "c"], 0),
        (("d",), ["cat"], ["d"], 0),
        (("b", "d"), ["x", "cat"], ["b", "d"], 0),
    ],
)
def test_extracted(
    names: tuple[str, ...], inputs: list[str], outputs: list[str], elided: int
) -> None:
    part = extract(JOINED, names)
    verify_tasks(part)
    assert sorted(value.name for value in part.inputs) == sorted(inputs)
    assert sorted(ref.name for ref in part.outputs) == sorted(outputs)
    assert len(part.elided_concats) == elided
    check_plan(pack(part, Schedule("sequential", sequential_launches(dag_of(part))), CPU.spec))


BROKEN: dict[str, Callable[[Node], Node]] = {
    "twice": lambda n: replace(n, args=((Ref("a"), Ref("a")), 1)),
    "another size": lambda n: replace(n, args=((Ref("a"),), 1)),
    "no task's result": lambda n: replace(n, args=((Ref("a"), Ref("x")), 1)),
    "no concatenation": lambda n: replace(n, op="aten.add.Tensor"),
    "is no f32": lambda n: replace(
        n, types=(TensorType((1, 8, 2, 2), torch.float32, (32, 1, 16, 8)),)
    ),
    "two values have one name": lambda n: replace(n, name="x"),
    "along a dimension": lambda n: replace(n, args=(n.args[0], 4)),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_join_is_found(said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        verify_tasks(replace(JOINED, elided_concats=(BROKEN[said](JOINED.elided_concats[0]),)))


REFUSED = {
    "no task writes any of its parts": "%cat: f32[1,8,2,2] = aten.cat.default([%x, %z], 1)",
    "is a constant": "%cat: f32[1,8,2,2] = aten.cat.default([%a, %k], 1)",
    "is in it twice": "%cat: f32[1,8,2,2] = aten.cat.default([%a, %a], 1)",
    "%a may be a part of one": (
        "%one: f32[1,4,4,2] = aten.cat.default([%a, %b], 2)\n"
        "%cat: f32[1,12,2,2] = aten.cat.default([%a, %b, %t], 1)"
    ),
    "may be a part of one": (
        "%one: f32[1,8,2,2] = aten.cat.default([%a, %b], 1)\n"
        "%cat: f32[1,8,2,2] = aten.cat.default([%b, %t], 1)"
    ),
    "no multiple of 16 bytes": "%cat: f32[1,4,2,3] = aten.cat.default([%o, %t], 3)",
    "%a has an alias that needs it in strides of its own": (
        "%flat: f32[16] = aten.view.default(%a, [16])\n"
        "%e: f32[16] = aten.neg.default(%flat)\n"
        "%cat: f32[1,4,4,2] = aten.cat.default([%a, %b], 2)"
    ),
    "%b has an alias that needs it in strides": (
        "%every: f32[8]{2} = aten.as_strided.default(%b, [8], [2])\n"
        "%e: f32[8] = aten.neg.default(%every)\n"
        "%cat: f32[1,8,2,2] = aten.cat.default([%a, %b], 1)"
    ),
    "%r is returned": "%cat: f32[1,8,2,2] = aten.cat.default([%a, %r], 1)",
    "%h is returned": (
        "%h: f32[1,4,2,2] = aten.neg.default(%x)\n"
        "%also: f32[1,2,2,2]{16,4,2,1} = aten.slice.Tensor(%h, 1, 0, 2)\n"
        "%cat: f32[1,8,2,2] = aten.cat.default([%a, %h], 1)"
    ),
    "is a concatenation itself": (
        "%in: f32[1,8,2,2] = aten.cat.default([%a, %a], 1)\n"
        "%cat: f32[1,12,2,2] = aten.cat.default([%in, %b], 1)"
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_joined_says_why(why: str) -> None:
    trace = Trace()
    graph = parse_graph(f"""
graph g {{
  input %x: f32[1,4,2,2]
  input %y: f32[1,4,2,1]
  input %z: f32[1,4,2,2]
  const %k: f32[1,4,2,2] = k
  %a: f32[1,4,2,2] = aten.relu.default(%x)
  %b: f32[1,4,2,2] = aten.tanh.default(%x)
  %r: f32[1,4,2,2] = aten.exp.default(%x)
  %o: f32[1,4,2,1] = aten.relu.default(%y)
  %t: f32[1,4,2,2] = aten.tanh.default(%x)
  {REFUSED[why]}
  return %cat, %r{", %also" * ("%also" in REFUSED[why])}
}}""")
    tasks = partition(graph, trace, CPU.spec)
    assert "cat" not in fitting(tasks, trace)
    (event,) = [event for event in trace.events if event.what == "cat"]
    assert event.kind == "refused" and why in event.why


CUT = parse_graph("""
graph g {
  input %x: f32[1,4,2,2]
  %a: f32[1,4,2,2] = aten.relu.default(%x)
  %cat_s: f32[1,4,2,2] = aten.exp.default(%x)
  %s: f32[1,2,2,2]{16,4,2,1} = aten.slice.Tensor(%a, 1, 2, 4)
  %b: f32[1,2,2,2] = aten.tanh.default(%s)
  %cat: f32[1,8,2,2] = aten.cat.default([%s, %b, %x], 1)
  return %cat, %cat_s
}""")


def test_what_no_task_writes_is_copied_to_its_place() -> None:
    """A slice of something else as soon as that is there, an input at once."""
    tasks = forced(CUT)
    (concat,) = tasks.elided_concats
    assert concat.uses == ("cat_s_", "b", "cat_x") and tasks.outputs[0].name == "cat"
    named = {task.name: task for task in tasks.tasks}
    copy = named["cat_s_"]
    assert [node.op for node in copy.body.nodes] == ["aten.clone.default"]
    assert copy.reads == ("s",) and copy.body.nodes[0].type.text == "f32[1,2,2,2]{32,4,2,1}"
    assert task_producers(tasks)["cat"] == ("cat_s_", "b", "cat_x")
    dag = dag_of(tasks)
    edges = {(dag.names[u], dag.names[v]) for u, v in dag.edges()}
    assert edges == {("a", "cat_s_"), ("a", "b")}
    x = torch.randn(1, 4, 2, 2)
    assert all(map(torch.equal, eval_tasks(tasks, [x]), eval_graph(CUT, [x])))


def test_a_part_may_be_read_slice_by_slice() -> None:
    """As where a value is split, and what becomes of one half is put beside both."""
    graph = parse_graph("""
    graph g {
      input %x: f32[1,4,2,2]
      %a: f32[1,4,2,2] = aten.relu.default(%x)
      %s: f32[1,2,2,2]{16,4,2,1} = aten.slice.Tensor(%a, 1, 2, 4)
      %t: f32[1,1,2,2]{16,4,2,1} = aten.slice.Tensor(%s, 1, 1, 2)
      %b: f32[1,2,2,2] = aten.tanh.default(%s)
      %cat: f32[1,6,2,2] = aten.cat.default([%b, %a], 1)
      %c: f32[1,1,2,2] = aten.exp.default(%t)
      return %cat, %c
    }""")
    tasks = forced(graph)
    assert [node.uses for node in tasks.elided_concats] == [("b", "a")]
    assert {node.name: node.type.strides for node in tasks.aliases} == {
        "s": (24, 4, 2, 1),
        "t": (24, 4, 2, 1),
    }
    assert slices(tasks) == {"b": Slice("cat", 0), "a": Slice("cat", 8)}
    plain = with_kernels(partition(graph, Trace(), CPU.spec))
    assert [task.name for task in touching(plain, tasks)] == ["a", "b", "c"]
    assert worth(plain, tasks, lambda task: Cost(1.0, "measured"), Trace()) == ("cat",)
    assert task_producers(tasks)["t"] == ("a",)
    x = torch.randn(1, 4, 2, 2)
    assert all(map(torch.equal, eval_tasks(tasks, [x]), eval_graph(graph, [x])))


def test_copies_are_part_of_what_a_join_takes() -> None:
    plain, whole = with_kernels(partition(CUT, Trace(), CPU.spec)), forced(CUT)
    for copying, kept in ((0.4, ("cat",)), (0.6, ())):

        def cost(task: Task, copying: float = copying) -> Cost:
            copies = task.body.nodes[0].op == "aten.clone.default"
            return Cost(copying if copies else 1.0, "measured")

        assert worth(plain, whole, cost, Trace()) == kept


DENSE = """
graph g {
  input %x: f32[1,4,2,2]
  %a: f32[1,4,2,2] = aten.relu.default(%x)
  %b: f32[1,4,2,2] = aten.tanh.default(%a)
  %two: f32[1,8,2,2] = aten.cat.default([%a, %b], 1)
  %c: f32[1,8,2,2] = aten.exp.default(%two)
  %three: f32[1,16,2,2] = aten.cat.default([TWO, %c], 1)
  %d: f32[1,16,2,2] = aten.neg.default(%three)
  %four: f32[1,36,2,2] = aten.cat.default([%x, THREE, %d], 1)
  %e: f32[1,36,2,2] = aten.sin.default(%four)
  return %e
}"""


@pytest.mark.parametrize(
    ("two", "three"), [("%a, %b", "%a, %b, %c"), ("%two", "%three"), ("%two", "%a, %b, %c")]
)
def test_joins_within_joins(two: str, three: str) -> None:
    """As in a DenseNet, however it is written: each layer reads what all before it have written."""
    graph = parse_graph(DENSE.replace("TWO", two).replace("THREE", three))
    tasks = forced(graph)
    assert [(node.name, node.uses) for node in tasks.elided_concats] == [
        ("two", ("a", "b")),
        ("three", ("two", "c")),
        ("four", ("four_x", "three", "d")),
    ]
    assert {node.type.strides for node in tasks.elided_concats} == {(144, 4, 2, 1)}
    starts = {"four_x": 0, "three": 16, "d": 80, "two": 16, "c": 48, "a": 16, "b": 32}
    assert slices(tasks) == {name: Slice("four", start) for name, start in starts.items()}
    assert owners(tasks) == dict.fromkeys(starts, "four")
    assert leaves(tasks)["four"] == ("four_x", "a", "b", "c", "d")
    assert task_producers(tasks)["three"] == ("a", "b", "c")
    x = torch.randn(1, 4, 2, 2)
    assert all(map(torch.equal, eval_tasks(tasks, [x]), eval_graph(graph, [x])))

    plain = with_kernels(partition(graph, Trace(), CPU.spec))
    for us, kept in ((0.7, ("two", "three", "four")), (0.5, ())):

        def cost(task: Task, us: float = us) -> Cost:
            copies = task.body.nodes[0].op.startswith(("aten.cat", "aten.clone"))
            return Cost(us if copies else 1.0 if task in plain.tasks else 1.3, "measured")

        # Seven launches before, five after, which touch slices: one is worth it if all are.
        assert worth(plain, tasks, cost, Trace()) == kept


@pytest.mark.parametrize(
    ("names", "elided"),
    [
        ("ab", ["two"]),
        ("abc", ["two", "three"]),
        ("abcde", ["two", "three"]),  # who copies the input is missing
        ("bcd", []),
        ("e", []),
    ],
)
def test_extracted_from_elided_concats_within_others(names: str, elided: list[str]) -> None:
    tasks = forced(parse_graph(DENSE.replace("TWO", "%two").replace("THREE", "%three")))
    part = extract(tasks, names)
    verify_tasks(part)
    assert [node.name for node in part.elided_concats] == elided
    check_plan(pack(part, Schedule("sequential", sequential_launches(dag_of(part))), CPU.spec))


def test_two_may_begin_with_a_copy_of_the_same() -> None:
    """An input, say; and a copy's name may be that of another one."""
    graph = parse_graph("""
    graph g {
      input %x: f32[2,4,2,2]
      input %n_x: f32[2,4,2,2]
      %a: f32[2,4,2,2] = aten.relu.default(%x)
      %m: f32[2,8,2,2] = aten.cat.default([%x, %a], 1)
      %m2: f32[2,8,2,2] = aten.neg.default(%m)
      %mm: f32[2,16,2,2] = aten.cat.default([%x, %a, %m2], 1)
      %b: f32[2,4,2,2] = aten.tanh.default(%x)
      %m_n: f32[2,8,2,2] = aten.cat.default([%x, %b], 1)
      %n2: f32[2,8,2,2] = aten.neg.default(%m_n)
      %nn: f32[2,16,2,2] = aten.cat.default([%x, %b, %n2], 1)
      %c: f32[2,4,2,2] = aten.sin.default(%x)
      %z: f32[2,12,2,2] = aten.cat.default([%x, %n_x, %c], 1)
      %s: f32[2,4,2,2] = aten.cos.default(%x)
      %z_n: f32[2,8,2,2] = aten.cat.default([%x, %s], 1)
      %all: f32[2,52,2,2] = aten.cat.default([%mm, %nn, %z, %z_n], 1)
      %e: f32[2,52,2,2] = aten.exp.default(%all)
      return %e
    }""")
    tasks = forced(graph)
    parts = {"m": 2, "mm": 2, "m_n": 2, "nn": 2, "z": 3, "z_n": 2, "all": 4}
    assert {node.name: len(node.uses) for node in tasks.elided_concats} == parts
    x = [torch.randn(2, 4, 2, 2) for _ in range(2)]
    assert all(map(torch.equal, eval_tasks(tasks, x), eval_graph(graph, x)))


def test_what_lies_within_a_part_lies_in_the_outermost() -> None:
    """Three elided concats within each other: the middle one is in one place alone, whoever asks
    for it again, and whether it begins with a copy or not."""
    graph = parse_graph("""
    graph g {
      input %x: f32[1,4,2,2]
      %a: f32[1,4,2,2] = aten.relu.default(%x)
      %b: f32[1,4,2,2] = aten.tanh.default(%x)
      %c: f32[1,4,2,2] = aten.sin.default(%x)
      %two: f32[1,8,2,2] = aten.cat.default([%x, %a], 1)
      %three: f32[1,12,2,2] = aten.cat.default([%two, %b], 1)
      %four: f32[1,16,2,2] = aten.cat.default([%three, %c], 1)
      %again: f32[1,12,2,2] = aten.cat.default([%x, %a, %b], 1)
      %same: f32[1,16,2,2] = aten.cat.default([%x, %a, %b, %c], 1)
      %e: f32[1,12,2,2] = aten.exp.default(%again)
      %f: f32[1,16,2,2] = aten.exp.default(%same)
      return %e, %f
    }""")
    tasks = forced(graph)
    assert [(node.name, node.uses) for node in tasks.elided_concats] == [
        ("two", ("two_x", "a")),
        ("three", ("two", "b")),
        ("four", ("three", "c")),
        ("same", ("four",)),
    ]
    x = [torch.randn(1, 4, 2, 2)]
    assert all(map(torch.equal, eval_tasks(tasks, x), eval_graph(graph, x)))


def test_an_alias_lies_in_the_outermost_too() -> None:
    """Within the first, which is that long alone, it keeps its strides."""
    graph = parse_graph("""
    graph g {
      input %x: f32[4,2,4]
      %s: f32[4,2,4] = aten.sin.default(%x)
      %t: f32[4,2,4] = aten.cos.default(%x)
      %one: f32[4,2,4] = aten.cat.default([%s], 2)
      %flat: f32[4,8] = aten.view.default(%s, [4, 8])
      %e: f32[4,8] = aten.neg.default(%flat)
      %cat: f32[4,2,8] = aten.cat.default([%one, %t], 2)
      %f: f32[4,2,8] = aten.neg.default(%cat)
      return %e, %f
    }""")
    trace = Trace()
    assert fitting(partition(graph, Trace(), CPU.spec), trace) == ("one",)
    assert trace.events[-1].why == "%s has an alias that needs it in strides of its own"
    assert [node.name for node in forced(graph).elided_concats] == ["one"]


def test_who_is_returned_lies_within_nothing() -> None:
    graph = parse_graph(DENSE.replace("TWO", "%two").replace("THREE", "%three"))
    tasks = forced(replace(graph, outputs=(*graph.outputs, Ref("three"))))
    assert [(node.name, node.uses) for node in tasks.elided_concats] == [
        ("two", ("a", "b")),
        ("three", ("two", "c")),
    ]


def test_what_is_empty_is_no_join() -> None:
    """A batch of nothing has no memory that its parts could be slices of."""
    graph = parse_graph("""
    graph g {
      input %x: f32[0,4,2,2]
      %a: f32[0,4,2,2] = aten.relu.default(%x)
      %b: f32[0,4,2,2] = aten.tanh.default(%x)
      %cat: f32[0,8,2,2] = aten.cat.default([%a, %b], 1)
      return %cat
    }""")
    trace = Trace()
    assert fitting(partition(graph, Trace(), CPU.spec), trace) == ()
    assert [event.why for event in trace.events] == ["%cat is empty"]


def test_a_join_is_kept_where_it_is_faster() -> None:
    plain = with_kernels(partition(GRAPH, Trace(), CPU.spec))
    after = {task.name for task in touching(plain, JOINED)}
    assert after == {"a", "b", "c"}

    def cost_of(slower: float) -> Callable[[Task], Cost]:
        was = {task.body for task in plain.tasks}
        return lambda task: Cost(1.0 if task.body in was else 1.0 + slower, "measured")

    assert worth(plain, JOINED, cost_of(0.3), Trace()) == ("cat",)
    assert worth(plain, JOINED, cost_of(0.34), Trace()) == ()


class Slow:
    """A runner whose calls take a random while, so that streams overlap as they please."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def __call__(
        self, task: Task, values: dict[str, Tensor], workspace: Tensor | None
    ) -> Callable[[], None]:
        call = RUNNERS["aten"](task, values, workspace)
        index = sum(map(ord, task.name)) % len(self.seconds)

        def slow() -> None:
            time.sleep(self.seconds[index])
            call()
            time.sleep(self.seconds[-1 - index])

        return slow


@given(graph=networks(), data=st.data())
@settings(max_examples=30, deadline=None)
def test_joined_graphs_compute_the_same(graph: Graph, data: st.DataObject) -> None:
    tasks = forced(graph)
    name = data.draw(st.sampled_from(sorted(SCHEDULERS)))
    limits = Limits(max_streams=data.draw(st.integers(1, 4)), spec=CPU.spec)
    schedule = SCHEDULERS[name](tasks, Roofline(CPU.spec), limits)
    verify_schedule(schedule, dag_of(tasks))
    tight = data.draw(st.booleans())
    plan = pack(tasks, schedule, CPU.spec, limit_bytes=0 if tight else None)
    waits = data.draw(st.lists(st.sampled_from((0.0, 0.0005, 0.002)), min_size=2, max_size=5))
    placed = place(plan, torch.device("cpu"), {"aten": Slow(waits)})
    inputs = [torch.randn(value.type.shape) for value in graph.inputs]
    wanted = eval_graph(graph, inputs)
    run = CpuExecutable(plan, placed)
    for _ in range(2):
        for got, want in zip(run(inputs, clone=True), wanted, strict=True):
            assert torch.equal(got, want)
    assert run.strays() == ""
    for got, want in zip(eval_tasks(tasks, inputs), wanted, strict=True):
        assert torch.equal(got, want)
