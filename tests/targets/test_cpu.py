"""The CPU target runs plans for real, with threads as streams.

x --> left  (relu)  --+
 \\-> right (tanh) --> add        left on stream 0, right on stream 1
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from anabranch.errors import TargetError
from anabranch.fusion import partition
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.kernels import PROVIDERS
from anabranch.memory import pack
from anabranch.targets import TARGETS, resolve
from anabranch.targets.cpu.target import RUNNERS, CpuExecutable, CpuTarget
from anabranch.targets.loading import place, with_own_constants
from anabranch.trace import Trace

GRAPH_TEXT = """
graph fork {
  input %x: f32[64,64]
  %left: f32[64,64] = aten.relu.default(%x)
  %right: f32[64,64] = aten.tanh.default(%x)
  %row: f32[64] = aten.select.int(%right, 0, 3)
  %sum: f32[64,64] = aten.add.Tensor(%left, %right)
  %out: f32[64,64] = aten.mul.Tensor(%sum, %row)
  return %out, %row
}"""
GRAPH = parse_graph(GRAPH_TEXT)
WAITS = (
    Launch("left", 0),
    Launch("right", 1),
    Launch("sum", 0, ("right",)),
    Launch("out", 0),
)


def plan_of(target: CpuTarget, launches: tuple[Launch, ...] = WAITS, graph: Graph = GRAPH) -> Plan:
    tasks = partition(graph, Trace(), target.spec)
    chosen = tuple(
        type(task)(task.name, task.body, PROVIDERS[0].kernels(task, target.spec)[0])
        for task in tasks.tasks
    )
    tasks = TaskGraph(
        tasks.name, tasks.inputs, tasks.constants, chosen, tasks.aliases, tasks.outputs
    )
    return pack(tasks, Schedule("test", launches), target.spec)


def with_values(graph: Graph, value: torch.Tensor) -> Graph:
    """With this value of its only constant."""
    (constant,) = graph.constants
    return replace(graph, constants=(replace(constant, value=value),))


def expected(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    row = x.tanh()[3]
    return (x.relu() + x.tanh()) * row, row


def test_streams_are_threads_and_results_are_right() -> None:
    target = CpuTarget()
    run = target.load(plan_of(target))
    for seed in range(20):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        for got, want in zip(run([x], clone=True), expected(x), strict=True):
            torch.testing.assert_close(got, want)


def test_nothing_is_read_before_it_is_written() -> None:
    """A fresh arena reads as NaN: a launch that runs too early would show it."""
    target = CpuTarget()
    out, _ = target.load(plan_of(target))([torch.ones(64, 64)])
    assert out.isfinite().all()


def test_an_error_in_a_stream_reaches_the_caller() -> None:
    target = CpuTarget()
    run = target.load(plan_of(target))

    def fail() -> None:
        raise RuntimeError("broken kernel")

    run._placed.calls["right"] = fail
    with pytest.raises(RuntimeError, match="broken kernel"):
        run([torch.ones(64, 64)])


def test_many_threads_may_call() -> None:
    target = CpuTarget()
    run = target.load(plan_of(target))
    wrong: list[int] = []

    def call(seed: int) -> None:
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        for _ in range(10):
            if not torch.allclose(run([x], clone=True)[0], expected(x)[0]):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Interrupt(BaseException):
    """As KeyboardInterrupt, which would end the tests if one came too late."""


def test_an_interrupt_at_any_moment_leaves_a_plan_that_can_be_called() -> None:
    """A timer's signal at 200 random moments of a call; after each, the next call is right."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    run = CpuTarget().load(plan_of(CpuTarget()))
    x, draw, hits = torch.randn(64, 64), random.Random(0), 0
    want, took = run([x], clone=True), 1.0
    for _ in range(10):
        start = time.perf_counter()
        run([x])
        took = min(took, time.perf_counter() - start)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + took * draw.random())
                run([x])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                hits += 1
            assert torch.is_grad_enabled()
            for got, expected in zip(run([x], clone=True), want, strict=True):
                assert torch.equal(got, expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 20


@pytest.mark.parametrize("where", ["start", "submit"])
def test_without_threads_streams_run_on_the_callers(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    run = CpuTarget().load(plan_of(CpuTarget()))
    x = torch.randn(64, 64)
    with monkeypatch.context() as patched:
        if where == "start":
            patched.setattr(threading.Thread, "start", none)
        else:
            patched.setattr(run._workers, "submit", none)
        with pytest.warns(RuntimeWarning, match="no more threads") as told:
            for _ in range(3):
                torch.testing.assert_close(run([x], clone=True), expected(x))
    assert len(told) == 1
    torch.testing.assert_close(run([x], clone=True), expected(x))


def in_child(work: Callable[[], bool]) -> bool:
    """Whether the work is true in a forked process, which may take ten seconds for it."""
    child = os.fork()
    if not child:
        os._exit(0 if work() else 1)
    for _ in range(1000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_a_forked_process_has_threads_of_its_own() -> None:
    """OpenMP's threads, too, stay with the parent, which has used them here; and so does a thread
    that is in a call when the process forks."""
    graph = parse_graph(GRAPH_TEXT.replace("64", "512"))
    run = CpuTarget().load(plan_of(CpuTarget(), graph=graph))
    x, threads = torch.randn(512, 512), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        want = run([x], clone=True)

        def right() -> bool:
            """By numpy, which asks OpenMP for nothing."""
            pairs = zip(run([x], clone=True), want, strict=True)
            return all((got.numpy() == wanted.numpy()).all() for got, wanted in pairs)

        assert in_child(lambda: right() and right())
        with run.turn.lock:
            assert in_child(lambda: right() and in_child(right))
        assert right()
    finally:
        torch.set_num_threads(threads)


def test_a_forked_process_loads_plans_beside_one_that_was_in_a_call() -> None:
    run, x = CpuTarget().load(plan_of(CpuTarget())), torch.ones(64, 64)
    want = run([x], clone=True)

    def beside() -> bool:
        other = CpuTarget().load(run.plan, beside=run)
        same = other.turn is run.turn
        return same and all(map(torch.equal, (*other([x]), *run([x])), (*want, *want)))

    with run.turn.lock:
        assert in_child(beside)
    assert beside()


@pytest.mark.parametrize("task", ["left", "right"])
def test_an_operator_that_calls_its_own_plan_is_refused(task: str) -> None:
    """On the caller's thread and on another, directly and by way of another plan."""
    run, other = (CpuTarget().load(plan_of(CpuTarget())) for _ in range(2))
    x = torch.ones(64, 64)

    def use(plan: CpuExecutable) -> None:
        plan([x])

    right = run._placed.calls[task]
    run._placed.calls[task] = lambda: use(run)
    with pytest.raises(TargetError, match="an operator of plan fork calls that plan itself"):
        run([x])
    run._placed.calls[task] = lambda: use(other)
    other._placed.calls["right"] = lambda: use(run)
    with pytest.raises(TargetError, match="calls that plan itself"):
        run([x])
    run._placed.calls[task] = right
    torch.testing.assert_close(run([x]), expected(x))


def test_threads_and_memory_go_with_the_plan() -> None:
    before = set(threading.enumerate())
    run = CpuTarget().load(plan_of(CpuTarget()))
    run([torch.ones(64, 64)])
    mine = set(threading.enumerate()) - before
    assert mine
    arena = weakref.ref(run._placed.arena.untyped_storage())
    gc.disable()
    try:
        assert arena() is not None
        del run
        for thread in mine:
            thread.join(5)
        assert not any(thread.is_alive() for thread in mine) and arena() is None
    finally:
        gc.enable()


def test_times_and_timeline() -> None:
    target = CpuTarget()
    runs = [target.load(plan_of(target)), target.load(plan_of(target), repeat=4)]
    once, several = target.time(runs, 0.02)
    assert once.source == several.source == "measured" and once.us > 0 and several.us > 0
    timeline = target.timeline(runs[0])
    assert timeline is not None
    assert {span.task for span in timeline.spans} == {"left", "right", "sum", "out"}


def test_a_plan_for_a_gpu_is_refused() -> None:
    target = CpuTarget()
    plan = plan_of(target)
    foreign = Plan(
        plan.tasks,
        plan.schedule,
        plan.slots,
        plan.workspaces,
        plan.arena_bytes,
        TargetSpec("cuda", "NVIDIA H200"),
    )
    with pytest.raises(TargetError, match="NVIDIA H200"):
        target.load(foreign)


def test_a_kernel_that_nothing_here_runs_is_refused() -> None:
    target = CpuTarget()
    plan = plan_of(target)
    first, *others = plan.tasks.tasks
    assert first.kernel is not None
    foreign = replace(first, kernel=replace(first.kernel, provider="triton"))
    mixed = replace(plan, tasks=replace(plan.tasks, tasks=(foreign, *others)))
    with pytest.raises(TargetError, match=f"task {first.name} needs kernels of provider 'triton'"):
        target.load(mixed)


def test_the_table() -> None:
    assert set(TARGETS) == {"cuda", "cpu", "sim:h200"}
    assert resolve("cpu").spec.kind == "cpu"
    with pytest.raises(ValueError, match="choose one of"):
        resolve("tpu")


def test_what_an_operator_returns_of_its_operand_gets_memory_of_its_own() -> None:
    graph = parse_graph("""
graph borrows {
  input %x: f32[64,64]
  %twice: f32[64,64] = aten.add.Tensor(%x, %x)
  %same: f32[64,64] = aten.positive.default(%twice)
  %over: f32[64,64] = aten.relu.default(%x)
  %more: f32[64,64] = aten.tanh.default(%over)
  %out: f32[64,64] = aten.mul.Tensor(%same, %more)
  return %out
}""")
    target = CpuTarget()
    names = ("twice", "same", "over", "more", "out")
    plan = plan_of(target, tuple(Launch(name, 0) for name in names), graph)
    offsets = {slot.value: slot.offset for slot in plan.slots if slot.space == "arena"}
    assert offsets["twice"] in (offsets["over"], offsets["more"]), "bytes are shared"
    run = target.load(plan)
    for _ in range(2):
        x = torch.randn(64, 64)
        torch.testing.assert_close(run([x])[0], 2 * x * x.relu().tanh())


def test_other_constants_are_placed_beside_the_same_inputs() -> None:
    """As tasks are timed: with many copies of their weights, on what the one before has written."""
    text = """
    graph product {
      input %x: f32[4,64]
      const %w: f32[64,64] = sha
      %turned: f32[64,64]{1,64} = aten.t.default(%w)
      %y: f32[4,64] = aten.mm.default(%x, %turned)
      return %y
    }"""
    target = CpuTarget()
    plan = plan_of(target, (Launch("y", 0),), with_values(parse_graph(text), torch.ones(64, 64)))
    first = place(plan, target.device, RUNNERS)
    other = with_own_constants(plan)
    (weight,) = other.tasks.constants
    assert weight.value is not None
    weight.value.mul_(3.0)
    second = place(other, target.device, RUNNERS, beside=first)
    assert second.arena is first.arena and second.inputs[0] is first.inputs[0]
    first.inputs[0].fill_(1.0)
    with torch.no_grad():
        for placed, want in ((first, 64.0), (second, 192.0), (first, 64.0)):
            placed.calls["y"]()
            assert placed.values["y"].eq(want).all()


def test_calls_of_other_kernels_use_the_same_memory() -> None:
    """What another kernel of a task writes lies where its readers look, aliases included."""
    target = CpuTarget()
    plan = plan_of(target)
    placed = place(plan, target.device, RUNNERS)
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    placed.inputs[0].copy_(x)
    with torch.no_grad():
        for task in plan.tasks.tasks:
            placed.calls[task.name]()
        for task in plan.tasks.tasks:
            placed.values[task.writes[0]].fill_(float("nan"))
            placed.call(task)()
    for ref, want in zip(plan.tasks.outputs, expected(x), strict=True):
        torch.testing.assert_close(placed.values[ref.name], want)
