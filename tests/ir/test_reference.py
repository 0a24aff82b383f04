"""References where memory is short: a limit that is made up, on the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.fusion import partition
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.reference import eager_and_reference
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph
from anabranch.trace import Trace

LAYERS = 6
SIDE = 64
WEIGHT = 8 * SIDE * SIDE
"""Bytes of a layer's weights in fp64."""


class Limited(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Memory of at most so many bytes for what operators make."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.held, self.peak = most, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            size = out.untyped_storage().nbytes()
            self.held += size
            self.peak = max(self.peak, self.held)
            weakref.finalize(out.untyped_storage(), self._free, size)
            if self.held > self.most:
                raise torch.OutOfMemoryError(f"{self.held} bytes")
        return out

    def _free(self, size: int) -> None:
        self.held -= size


def chain() -> Graph:
    """Layers one after the other, and the first weight once more at the end."""
    lines = [f"  const %w{i}: f32[{SIDE},{SIDE}] = w{i}" for i in range(LAYERS)]
    names = ["x", *(f"y{i}" for i in range(LAYERS))]
    lines += [
        f"  %y{i}: f32[4,{SIDE}] = aten.mm.default(%{names[i]}, %w{i})" for i in range(LAYERS)
    ]
    last = f"  %out: f32[4,{SIDE}] = aten.mm.default(%{names[-1]}, %w0)"
    text = "\n".join([f"  input %x: f32[4,{SIDE}]", *lines, last, "  return %out, %w1"])
    graph = parse_graph(f"graph chain {{\n{text}\n}}")
    held = tuple(
        replace(constant, value=random_tensor(constant.type, i) / 8)
        for i, constant in enumerate(graph.constants)
    )
    return replace(graph, constants=held)


def test_weights_are_raised_one_at_a_time() -> None:
    """The first and the second stay: one is read again, one is a result."""
    graph, x = chain(), torch.randn(4, SIDE)
    want = eval_graph(graph, [x], precision=torch.float64)
    with Limited(4 * WEIGHT) as memory:
        found = eval_graph(graph, [x], precision=torch.float64)
    assert 2 * WEIGHT < memory.peak < 4 * WEIGHT < LAYERS * WEIGHT
    assert all(map(torch.equal, found, want))


def test_a_plans_tasks_raise_their_weights_one_at_a_time_too() -> None:
    graph, x = chain(), torch.randn(4, SIDE)
    tasks = partition(graph, Trace(), TargetSpec("cpu", "test"))
    assert len(tasks.tasks) > LAYERS
    want = eval_graph(graph, [x], precision=torch.float64)
    with Limited(4 * WEIGHT) as memory:
        found = eval_tasks(tasks, [x], precision=torch.float64)
    assert WEIGHT < memory.peak < 3 * WEIGHT < LAYERS * WEIGHT
    assert all(map(torch.equal, found, want))


def small(full: Callable[[torch.dtype | None], bool]) -> Any:
    """Evaluates graphs, and finds no memory on the device "meta" where `full` says so."""

    def evaluated(
        graph: Graph, inputs: Any, device: torch.device, precision: torch.dtype | None
    ) -> Any:
        if device.type == "meta" and full(precision):
            raise torch.OutOfMemoryError("no memory on the device")
        return eval_graph(graph, inputs, torch.device("cpu"), precision)

    return evaluated


def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A target on the device "meta", from which values stay where they are."""
    monkeypatch.setattr(Tensor, "to", lambda x, *a, **k: x if a[0] == meta else to(x, *a, **k))
    return SimpleNamespace(
        device=meta,
        spec=SimpleNamespace(tf32=False),
        full_precision=lambda lean=False: nullcontext(),
        own_precision=nullcontext,
    )


meta, to = torch.device("meta"), Tensor.to


@pytest.mark.parametrize("which", [(torch.float64,), (None, torch.float64), ()])
def test_what_does_not_fit_is_evaluated_on_the_cpu(
    which: tuple[torch.dtype | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = chain(), torch.randn(4, SIDE)
    want = eval_graph(graph, [x]), eval_graph(graph, [x], precision=torch.float64)
    evaluate = small(lambda precision: precision in which)
    both = eager_and_reference(graph, [x], made(monkeypatch), evaluate)
    for found, wanted in zip(both, want, strict=True):
        assert all(map(torch.equal, found, wanted))


def test_an_operator_without_a_cpu_kernel_is_told_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: Any) -> Any:
        device = args[2]
        if device.type == "meta":
            raise torch.OutOfMemoryError("no memory on the device")
        raise NotImplementedError("no such kernel on the CPU")

    with pytest.raises(torch.OutOfMemoryError, match="no memory on the device"):
        eager_and_reference(chain(), [torch.randn(4, SIDE)], made(monkeypatch), refused)


@pytest.mark.parametrize(
    ("op", "tf32", "own"),
    [
        ("aten.relu.default", False, "full"),
        ("aten.relu.default", True, "own"),
        ("aten.lstm.input", False, "own"),
    ],
)
def test_what_a_library_rounds_is_the_models_own(op: str, tf32: bool, own: str) -> None:
    """Gates of cuDNN are 1e-5 off; whoever calls it in eager has that, and so may a plan."""
    ways: list[str] = []

    def entered(way: str) -> Any:
        ways.append(way)
        return nullcontext()

    target: Any = SimpleNamespace(
        device=torch.device("cpu"),
        spec=SimpleNamespace(tf32=tf32),
        full_precision=lambda lean=False: entered("full"),
        own_precision=lambda: entered("own"),
    )
    graph = parse_graph(f"graph g {{\n input %x: f32[2]\n %y: f32[2] = {op}(%x)\n return %y\n}}")
    eager_and_reference(graph, [torch.ones(2)], target, lambda *given: (torch.ones(2),))
    assert ways == [own, "full"]
