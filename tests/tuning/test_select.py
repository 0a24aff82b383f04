"""The selector takes the fastest kernel that computes the right thing, by fixed rules."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from anabranch.errors import TargetError
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost, KernelOffer, offered
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import PLAIN_VARIANT, Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels import PROVIDERS
from anabranch.trace import Trace
from anabranch.tuning.select import (
    FEWEST_KERNELS,
    SelectionConfig,
    allotted,
    check_ahead,
    select,
    select_all,
    select_some,
    within,
)

SPEC = TargetSpec("cuda", "a GPU")
EXP = "aten.exp.default"


def passing(task: Task) -> None:
    """Nothing is wrong with any kernel."""


def body(name: str) -> Graph:
    return parse_graph(f"""
graph {name} {{
  input %x: f32[4]
  %{name}: f32[4] = aten.relu.default(%x)
  return %{name}
}}""")


@dataclass(frozen=True)
class Fake:
    """Kernels named by letters; a capital writes where it is told."""

    letters: str
    name: str = "fake"
    version: str = "1"

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        return [
            Kernel("fake", letter, task.body, writes_out=letter.isupper())
            for letter in self.letters
        ]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        return list(map(offered, self.kernels(task, spec)))

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        return next(kernel for kernel in self.kernels(task, spec) if kernel.name == name)


def choose(
    letters: str, us: dict[str, float | None], wrong: str = "", spread: float = 0.0
) -> tuple[str, Trace]:
    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        return [
            None if (time := us[task.kernel.name]) is None else Cost(time, "measured", spread)
            for task in tasks
            if task.kernel is not None
        ]

    def check(task: Task) -> Refused | None:
        bad = task.kernel is not None and task.kernel.name in wrong
        return Refused("wrong") if bad else None

    trace = Trace()
    tasks = TaskGraph("t", body("a").inputs, (), (Task("a", body("a")),), (), body("a").outputs)
    kernel = (
        select(tasks, SelectionConfig(SPEC, [Fake(letters)], trial, check), trace)
        .tasks.tasks[0]
        .kernel
    )
    assert kernel is not None
    return kernel.name, trace


def test_the_fastest_wins() -> None:
    assert choose("abc", {"a": 3.0, "b": 1.0, "c": 2.0})[0] == "b"


def test_what_cannot_run_is_passed_over() -> None:
    assert choose("ab", {"a": None, "b": 9.0})[0] == "b"


def test_what_computes_something_else_is_refused_and_said() -> None:
    name, trace = choose("ab", {"a": 1.0, "b": 2.0}, wrong="a")
    assert name == "b"
    assert [event.why for event in trace.events if event.kind == "refused"] == ["wrong"]


def test_ties_go_to_what_writes_in_place_then_to_the_earlier() -> None:
    assert choose("aB", {"a": 1.0, "B": 1.01})[0] == "B"
    assert choose("ab", {"a": 1.01, "b": 1.0})[0] == "a"
    assert choose("aB", {"a": 1.0, "B": 1.2})[0] == "a"


def test_checked_ahead_is_what_the_selector_checks_first() -> None:
    us: dict[str, float | None] = {"a": 1.0, "B": 1.01, "c": None, "d": 0.5}

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        named = (us[task.kernel.name] for task in tasks if task.kernel)
        return [None if time is None else Cost(time, "measured") for time in named]

    for letters, first in (("aBcd", "d"), ("aBc", "B"), ("ac", "a"), ("c", None)):
        asked = list[str | None]()

        def check(task: Task, asked: list[str | None] = asked) -> None:
            asked.append(task.kernel.name if task.kernel else "")

        ways = [Task("a", body("a"), k) for k in Fake(letters).kernels(Task("a", body("a")), SPEC)]
        check_ahead(ways, trial(ways), check)
        assert asked == [first] * (first is not None)
        whole = TaskGraph("t", body("a").inputs, (), (Task("a", body("a")),), (), body("a").outputs)
        select_some(whole, SelectionConfig(SPEC, [Fake(letters)], trial, check), Trace())
        assert asked[:2] == [first, first] or first is None


def test_nothing_that_runs_is_an_error_that_names_the_task() -> None:
    with pytest.raises(TargetError, match="no kernel runs task a"):
        choose("a", {"a": None})


def test_and_says_what_whoever_tried_has_said() -> None:
    trace = Trace()
    tasks = TaskGraph("t", body("a").inputs, (), (Task("a", body("a")),), (), body("a").outputs)

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        for task in (*tasks, Task("other", body("a"))):
            trace.add("refused", "costs", task.name, f"no heads in {task.name}")
        return [None for _ in tasks]

    with pytest.raises(TargetError) as failed:
        select(tasks, SelectionConfig(SPEC, [Fake("ab")], trial, passing), trace)
    assert failed.value.why == "fake.a: failed; fake.b: failed; no heads in a"


def test_equal_tasks_are_decided_once() -> None:
    asked: list[str] = []

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        asked.extend(task.name for task in tasks)
        return [Cost(1.0, "measured") for _ in tasks]

    tasks = tuple(Task(name, body(name)) for name in ("a", "b", "c"))
    graph = TaskGraph("t", body("a").inputs, (), tasks, (), body("a").outputs)
    chosen = select(graph, SelectionConfig(SPEC, [Fake("k")], trial, passing), Trace()).tasks
    assert asked == ["a"]
    assert [task.kernel.body.name for task in chosen.tasks if task.kernel] == ["a", "b", "c"]


def test_cuts_of_a_graph_are_decided_in_one_batch() -> None:
    """What they share is tried once; each has its selection."""
    batches: list[list[str]] = []

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        batches.append([task.body.nodes[-1].op for task in tasks])
        return [Cost(float(len(task.body.nodes)), "measured") for task in tasks]

    one, other = body("a"), replace(body("b"), nodes=(replace(body("b").nodes[0], op=EXP),))
    a, b = Task("a", one), Task("b", other)
    cuts = [
        TaskGraph("t", one.inputs, (), tasks, (), one.outputs) for tasks in ((a,), (a, b), (b,))
    ]
    found = select_all(cuts, SelectionConfig(SPEC, [Fake("x")], trial, passing), Trace())
    assert batches == [["aten.relu.default", EXP]]
    assert [[task.name for task in s.tasks.tasks] for s in found] == [["a"], ["a", "b"], ["b"]]
    assert found[0].candidates["a"] is found[1].candidates["a"]
    single = select(cuts[1], SelectionConfig(SPEC, [Fake("x")], trial, passing), Trace())
    assert single == found[1]


def offer(count: int) -> list[tuple[int, KernelOffer]]:
    """The library's kernel and so many generated ones."""
    graph = body("r")
    library = (0, Kernel("aten", "relu", graph, "", True))
    made = [(1, Kernel("t", "k", graph, str(i), True, source="x")) for i in range(count)]
    return [(maker, offered(kernel)) for maker, kernel in [library, *made]]


def test_many_structures_try_fewer_kernels_of_each() -> None:
    """Generated ones, in the order in which they are offered; those of libraries are all tried."""
    found = within({"a": offer(9), "b": offer(2), "c": offer(9)}, 10)
    assert {key: len(kept) - 1 for key, kept in found.items()} == {"a": 4, "b": 2, "c": 4}
    assert [kernel.variant for _, kernel in found["a"]] == ["", "0", "1", "2", "3"]
    few = {"a": offer(4), "b": offer(4)}
    assert within(few, 10) == few
    many = {str(i): offer(9) for i in range(9)}
    given = {len(kept) - 1 for kept in within(many, len(many) * FEWEST_KERNELS).values()}
    assert given == {FEWEST_KERNELS}


def test_only_kernels_that_are_tried_are_written() -> None:
    """Of a structure with forty variants, where few may be tried; garbage is not looked for."""

    @dataclass(frozen=True)
    class Lazy(Fake):
        asked: list[str] = field(default_factory=list, compare=False)

        def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
            return [
                KernelOffer("fake", "k", str(at), True, partial(self._tried, task, at))
                for at in range(40)
            ]

        def _tried(self, task: Task, at: int) -> Kernel:
            assert not gc.isenabled()
            return self._write(task, at)

        def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
            return self._write(task, int(str(variant)))

        def _write(self, task: Task, at: int) -> Kernel:
            self.asked.append(str(at))
            return Kernel("fake", "k", task.body, str(at), True, source=f"# {at}")

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        return [Cost(1.0, "measured") for _ in tasks]

    lazy = Lazy("")
    graph = TaskGraph("t", (), (), (Task("r", body("r")),), (), ())
    config = SelectionConfig(SPEC, [lazy], trial, passing, most=FEWEST_KERNELS)
    found = select_some(graph, config, Trace())
    assert [c.kernel.variant for c in found.candidates["r"]] == ["0", "1", "2", "3"]
    assert sorted(set(lazy.asked)) == ["0", "1", "2", "3"]


def test_where_few_of_each_are_too_many_those_that_matter_try_most() -> None:
    written = {"large": 9, "middle": 9, "small": 9, "none": 0}
    importance = {"large": 600.0, "middle": 300.0, "small": 1.0}
    assert allotted(written, 9, importance) == {"large": 6, "middle": 2, "small": 1, "none": 0}
    assert allotted(written, 27, importance) == {"large": 9, "middle": 9, "small": 9, "none": 0}
    assert allotted(written, 2, importance) == {"large": 1, "middle": 1, "small": 1, "none": 0}
    found = within({key: offer(count) for key, count in written.items()}, 9, lambda: importance)
    assert {key: len(kept) - 1 for key, kept in found.items()} == allotted(written, 9, importance)


def test_tasks_that_nothing_runs_may_be_left_out() -> None:
    """Of relu and exp only one has a kernel that runs; who asks for some gets that."""
    relu, exp = body("a"), replace(body("b"), nodes=(replace(body("b").nodes[0], op=EXP),))
    tasks = TaskGraph("t", relu.inputs, (), (Task("a", relu), Task("b", exp)), (), ())

    def trial(asked: Sequence[Task]) -> list[Cost | None]:
        return [None if task.name == "b" else Cost(1.0, "measured") for task in asked]

    found = select_some(tasks, SelectionConfig(SPEC, [Fake("xy")], trial, passing), Trace())
    assert [task.name for task in found.tasks.tasks] == ["a"] and list(found.candidates) == ["a"]
    with pytest.raises(TargetError, match="task b"):
        select(tasks, SelectionConfig(SPEC, [Fake("xy")], trial, passing), Trace())


@pytest.mark.parametrize(
    ("cost", "why"), [(None, ""), (Cost(3.0, "measured"), "error: of finite numbers")]
)
def test_where_nothing_passes_the_library_runs_the_body_as_eager_does(
    cost: Cost | None, why: str
) -> None:
    """Neither what could not be measured nor what our inputs do not suit leaves a task alone."""
    config = SelectionConfig(
        SPEC,
        PROVIDERS[:1],
        lambda asked: [cost] * len(asked),
        lambda task: Refused(why) if why else None,
    )
    trace = Trace()
    alone = TaskGraph("g", body("a").inputs, (), (Task("a", body("a")),), (), body("a").outputs)
    (task,) = select(alone, config, trace).tasks.tasks
    assert task.kernel is not None and task.kernel.body == task.body
    assert task.kernel.variant == PLAIN_VARIANT and not task.kernel.writes_out
    told = [event.why for event in trace.events if event.kind == "warning"]
    assert len(told) == 1 and "as eager runs it" in told[0]
