"""Calls of an executable whose graph is made up: it runs the plan's tasks on the CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.targets.test_cpu import GRAPH, expected, plan_of

from anabranch.errors import TargetError
from anabranch.ir.task import GENERATED
from anabranch.targets.cpu.target import RUNNERS, CpuTarget
from anabranch.targets.cuda import call_order, nodes
from anabranch.targets.cuda.call_order import Turns
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.targets.loading import place

CAPTURE = f"{CudaExecutable.__module__}."


class Event:
    def record(self, stream: Any) -> None: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaExecutable]:
    stream = SimpleNamespace(cuda_stream=0, wait_event=lambda event: None)
    monkeypatch.setattr(call_order, "handle", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    plan = plan_of(CpuTarget(), graph=GRAPH)
    with torch.no_grad():
        placed = place(plan, torch.device("cpu"), RUNNERS)
    made = CudaExecutable(plan, placed, (), repeat=0)

    def replay() -> None:
        with torch.no_grad():  # as a graph, which knows of no gradients
            for launch in plan.schedule.launches:
                placed.calls[launch.task]()

    replay()
    made._graph, made._outputs = SimpleNamespace(replay=replay), made.outputs  # type: ignore[assignment]
    yield made


def test_calls_compute(run: CudaExecutable) -> None:
    for _ in range(3):
        x = torch.randn(64, 64)
        for given in (x, x.t().contiguous().t()):
            for got, want in zip(run([given], clone=True), expected(x), strict=True):
                torch.testing.assert_close(got, want)
    with pytest.raises(ValueError, match="2 tensors for 1 inputs"):
        run([x, x])


def test_an_executable_goes_with_its_last_reference(
    run: CudaExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the garbage collector comes: thousands are loaded to be timed, and let go."""
    gc.disable()
    try:
        loaded = CudaExecutable(
            run.plan, place(run.plan, torch.device("cpu"), RUNNERS), (), repeat=0
        )
        arena, there = weakref.ref(loaded.arena), weakref.ref(loaded)
        del loaded
        assert there() is None and arena() is None
    finally:
        gc.enable()


def test_a_forked_process_is_refused(run: CudaExecutable) -> None:
    run._forks -= 1
    with pytest.raises(TargetError, match="cannot be called in this forked process"):
        run([torch.ones(64, 64)])


def test_an_operator_that_calls_its_own_plan_is_refused(run: CudaExecutable) -> None:
    """Where no graph could be captured; replays run no Python."""
    x = torch.ones(64, 64)

    def fill(inputs: object) -> None:
        run([x])

    run._graph, run._fill, run._fill_all = None, fill, fill
    with pytest.raises(TargetError, match="calls that plan itself"):
        run([x])
    assert not run.turn.lock.locked()


def test_a_capture_takes_no_input_that_a_graph_cannot_copy(
    run: CudaExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has been launched by then: the capture is what it was."""
    monkeypatch.setattr(Turns, "captures", lambda turns: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    filled: list[Any] = []
    run._device, run._fill = torch.device("cuda", 0), filled.append
    with pytest.raises(TargetError, match="input 0 of plan fork is on cpu while a CUDA graph"):
        run([torch.ones(64, 64)])
    assert not filled


def test_clones_are_the_callers_own(run: CudaExecutable) -> None:
    own, views = run([torch.ones(64, 64)], clone=True), run([torch.ones(64, 64)])
    assert all(map(torch.equal, own, views))
    run([torch.zeros(64, 64)])
    assert not torch.equal(own[0], views[0])
    assert [x.data_ptr() for x in views] == [x.data_ptr() for x in run.outputs]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("needs", [False, True])
def test_calls_leave_no_history(run: CudaExecutable, mode: Any, needs: bool) -> None:
    x = torch.randn(64, 64)
    with mode():
        got = run([x.clone().requires_grad_(needs)], clone=True)
    assert not any(tensor.requires_grad for tensor in (*got, *run.inputs, *run.outputs))
    assert torch.is_grad_enabled()
    torch.testing.assert_close(got[0], expected(x)[0])


def test_an_output_that_wants_gradients_is_cloned_without_them(run: CudaExecutable) -> None:
    """A weight, which the model returns as it is."""
    run._outputs = (torch.ones(3).requires_grad_(),)
    (got,) = run([torch.ones(64, 64)], clone=True)
    assert not got.requires_grad


def test_kernels_of_libraries_wait_for_those_before_them(
    run: CudaExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the edges of a graph of ours; where these cannot be changed, and outside of one, by a
    launch right before them, and one at the end for whatever comes next. What only follows kernels
    of libraries runs as in eager."""
    order: list[str] = []
    monkeypatch.setattr(CAPTURE + "device_sleep", lambda us: order.append("nothing"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    first, *others = [launch.task for launch in run.plan.schedule.launches]

    def launched(executable: CudaExecutable) -> list[str]:
        order.clear()
        streams = [SimpleNamespace(wait_event=lambda event: None, wait_stream=lambda other: None)]
        executable._streams = streams * 4  # type: ignore[assignment]
        executable.launch_all(lambda name, call: order.append(name))
        return list(order)

    assert launched(run) == [first, *others]
    mixed = replace(
        run.plan.tasks,
        tasks=tuple(
            replace(task, kernel=replace(task.kernel, provider=GENERATED))
            if task.name == first and task.kernel
            else task
            for task in run.plan.tasks.tasks
        ),
    )
    joined = CudaExecutable(replace(run.plan, tasks=mixed), run._placed, (), repeat=0)
    between = [x for name in others for x in ("nothing", name)]
    assert launched(joined) == [first, *between, "nothing"]

    refusing = [True]

    def join(graph: int, waiting: object) -> int:
        assert graph == 9 and waiting == {"ours"}
        if refusing[0]:
            raise TargetError("cuGraphGetEdges_v2 failed", "too old", "")
        return 1

    def captured(record: Any, side: object, keep: bool) -> Any:
        record()
        return SimpleNamespace(raw_cuda_graph=lambda: 9)

    monkeypatch.setattr(CAPTURE + "captured", captured)
    monkeypatch.setattr(nodes, "join", join)
    joined._waiting = {"ours"}
    monkeypatch.setattr(joined, "_launch_on_each", lambda times: launched(joined))
    joined._recorded(SimpleNamespace())  # type: ignore[arg-type]
    assert order == [first, *between, "nothing"]
    refusing[0] = False
    joined._recorded(SimpleNamespace())  # type: ignore[arg-type]
    assert order == [first, *others] and not joined._in_own_graph

    ours = replace(
        mixed,
        tasks=tuple(
            replace(task, kernel=replace(task.kernel, provider=GENERATED))
            for task in run.plan.tasks.tasks
            if task.kernel
        ),
    )
    alone = CudaExecutable(replace(run.plan, tasks=ours), run._placed, (), repeat=0)
    monkeypatch.setattr(alone, "_launch_on_each", lambda times: launched(alone))
    alone._recorded(SimpleNamespace())  # type: ignore[arg-type]
    assert order == [first, *others]
    assert launched(alone) == [first, *others, "nothing"]
