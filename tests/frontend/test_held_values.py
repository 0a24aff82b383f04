"""State that lies in no attribute, list or dict: read, named, and put back."""

from __future__ import annotations

import array
import contextvars
import ctypes
import functools
import io
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.frontend.observe import observe
from anabranch.frontend.python_state import LOST, PythonState
from anabranch.frontend.surroundings import Surroundings

X = torch.ones(2, 4)
QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}


class Slots:
    __slots__ = ("__dict__", "n", "unset")

    def __init__(self) -> None:
        self.n = 0


class Draws(random.Random):
    """A class of the user's, with an attribute beside what it derives from."""


class Stateful(nn.Module):
    """Holds a thing, and has each call do something to it."""

    def __init__(self, held: Any, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.held, self.step = held, step

    def forward(self, x: Tensor) -> Tensor:
        self.step(self.held)
        return x * 2


@functools.lru_cache
def table(n: int) -> list[int]:
    return list(range(n))


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "count": (lambda: itertools.count(3, 2), next, next),
    "list iterator": (lambda: iter([1, 2, 3]), next, list),
    "last of a list": (lambda: iter([1]), next, list),
    "range": (lambda: iter(range(4)), next, list),
    "dict": (lambda: iter({"a": 1, "b": 2}), next, list),
    "cycle": (lambda: itertools.cycle("ab"), next, lambda c: [next(c) for _ in range(5)]),
    "zip of a map": (lambda: zip(map(abs, [-1, -2]), iter("ab"), strict=True), next, list),
    "enumerate": (lambda: enumerate(["a", "b"]), next, list),
    "random": (lambda: random.Random(0), lambda r: r.random(), lambda r: r.random()),
    "own random": (lambda: Draws(0), lambda r: r.random(), lambda r: r.random()),
    "numpy": (lambda: np.random.default_rng(0), lambda g: g.random(), lambda g: g.random()),
    "numpy before": (
        lambda: np.random.RandomState(0),
        lambda g: g.rand(),
        lambda g: g.rand(),
    ),
    "torch": (
        lambda: torch.Generator().manual_seed(1),
        lambda g: g.manual_seed(5),
        lambda g: torch.rand(3, generator=g).tolist(),
    ),
    "array of numpy": (
        lambda: np.arange(6.0).reshape(2, 3),
        lambda a: a.T.__iadd__(1),
        np.ndarray.tolist,
    ),
    "objects": (lambda: np.array([[], 1], object), lambda a: a.__setitem__(1, 2), list),
    "text": (lambda: io.StringIO("a"), lambda s: s.write("bc"), lambda s: (s.tell(), s.read())),
    "bytes": (lambda: io.BytesIO(b"a"), lambda s: s.read(), lambda s: s.read()),
    "array": (lambda: array.array("d", [1.0]), lambda a: a.append(2.0), list),
    "bytearray": (lambda: bytearray(b"a"), lambda a: a.extend(b"b"), bytes),
    "ctypes": (lambda: ctypes.c_int(3), lambda c: setattr(c, "value", 4), lambda c: c.value),
    "slots": (Slots, lambda s: setattr(s, "n", s.n + 1), lambda s: s.n),
    "unset slot": (Slots, lambda s: setattr(s, "unset", 1), lambda s: hasattr(s, "unset")),
    "slots and a dict": (Slots, lambda s: setattr(s, "x", 1), lambda s: vars(s).copy()),
    "variable": (
        lambda: contextvars.ContextVar("v", default=0),
        lambda v: v.set(v.get() + 1),
        lambda v: v.get(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_forward_does_to_it_is_named_and_undone(name: str) -> None:
    make, step, next_of = CASES[name]
    model = Stateful(make(), step).eval()
    seen = observe(model, (X,), {}, Surroundings())
    assert len(seen.changed) == 1 and seen.changed[0].startswith("held"), seen.changed
    assert not seen.changed[0].endswith(LOST)
    assert next_of(model.held) == next_of(make())


def test_what_classes_of_pythons_keep_for_themselves_is_no_change() -> None:
    model = Stateful(Path("folder") / "file", lambda path: (str(path), hash(path))).eval()
    assert observe(model, (X,), {}, Surroundings()).changed == ()


def test_what_only_looks_is_no_change() -> None:
    model = Stateful([np.zeros(2), random.Random(1), iter([1]), Slots(), table, X], repr).eval()
    assert observe(model, (X,), {}, Surroundings()).changed == ()


def test_an_iterator_is_exchanged_wherever_it_is_held() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = itertools.count()
            self.others = {"same": [self.steps]}

        def forward(self, x: Tensor) -> Tensor:
            return x + next(self.steps)

    model = Two().eval()
    with pytest.warns(UserWarning, match="forward changes steps: .* left them as they were$"):
        fast = anabranch.compile(model, (X,), **QUICK)
    assert torch.equal(fast(X), X)
    assert model.others["same"][0] is model.steps and next(model.steps) == 0


def test_a_generator_which_nobody_can_copy_is_named() -> None:
    class Runs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.steps = 0, (i for i in itertools.count())

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            next(self.steps)
            return x * 2

    told = "forward changes n, steps: .*, but for steps: nobody can put that back, set it anew"
    model = Runs().eval()
    with pytest.warns(UserWarning, match=told):
        anabranch.compile(model, (X,), **QUICK)
    assert model.n == 0


def test_a_function_that_remembers_results_forgets_those_of_a_trace() -> None:
    model = Stateful(0, lambda _: table(3)).eval()
    assert observe(model, (X,), {}, Surroundings()).changed == ("the global table",)
    assert table.cache_info().currsize == 0
    table(3)
    assert observe(model, (X,), {}, Surroundings()).changed == ()
    table.cache_clear()


class Tensors(nn.Module):
    """Does to its tensors what no operator shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.held = [torch.zeros(1)]

    def forward(self, x: Tensor) -> Tensor:
        self.scale.requires_grad_(False)
        self.scale.grad = torch.ones(4)
        self.layer.weight.register_hook(lambda grad: grad)  # type: ignore[no-untyped-call]
        self.layer.register_forward_hook(lambda part, given, result: None)
        self.layer.bias.calls = 1  # type: ignore[attr-defined]
        self.held[0].seen = True  # type: ignore[attr-defined]
        x.seen = True  # type: ignore[attr-defined]
        y: Tensor = self.layer(x) * self.scale
        return y


def test_what_forward_does_to_tensors_and_layers_without_an_operator() -> None:
    model = Tensors().eval()
    seen = observe(model, (X,), {}, Surroundings())
    assert set(seen.changed) == {
        *("scale.requires_grad", "scale.grad", "layer.weight._backward_hooks"),
        *("layer._forward_hooks", "layer.bias.calls", "held.seen", "args[0].seen"),
    }
    with pytest.warns(UserWarning, match="forward changes"):
        anabranch.compile(model, (X,), **QUICK)
    assert model.scale.requires_grad and model.scale.grad is None
    assert not model.layer._forward_hooks and not model.layer.weight._backward_hooks
    assert not hasattr(model.layer.bias, "calls") and not hasattr(model.held[0], "seen")
    assert not hasattr(X, "seen")


def test_attributes_of_inputs_are_there_for_the_model() -> None:
    x = X.clone()
    x.scale = 3  # type: ignore[attr-defined]
    seen = observe(lambda x: x * x.scale, (x,), {}, Surroundings())
    assert torch.equal(seen.results, X * 3) and seen.changed == ()


@pytest.fixture
def step() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    os.environ.pop("MODEL_STEP", None)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("step")
def test_the_environment_and_switches_are_put_back() -> None:
    threads = torch.get_num_threads()

    def turn(held: Any) -> None:
        os.environ["MODEL_STEP"] = "1"
        torch.set_num_threads(threads + 1)
        torch.set_default_dtype(torch.float64)

    seen = observe(Stateful(0, turn).eval(), (X,), {}, Surroundings())
    assert seen.changed == (
        *("os.environ['MODEL_STEP']", "torch.get_num_threads()", "torch.get_default_dtype()"),
    )
    assert "MODEL_STEP" not in os.environ and torch.get_num_threads() == threads
    assert torch.get_default_dtype() == torch.float32


def test_a_model_that_a_function_closes_over_is_looked_at() -> None:
    class Counts(nn.Module):
        n = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return x

    inner = Counts().eval()
    seen = observe(lambda x: inner(x) * 2, (X,), {}, Surroundings())
    assert len(seen.changed) == 1 and seen.changed[0].endswith("inner.n") and inner.n == 0


def test_parts_have_their_names_whatever_else_refers_to_them() -> None:
    class Refers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            part = nn.Identity()
            self.others = [part]
            self.stack = nn.Sequential(part)

    model = Refers()
    state = PythonState.of(model)
    model.stack[0].n = 1  # type: ignore[assignment]
    assert state.changes() == ["stack.0.n"]
    state.restore()
    assert state.changes() == []
