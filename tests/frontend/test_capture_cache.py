"""A recalled capture is what the model computes now, whatever it was that changed."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import random
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import anabranch
from anabranch.cache import Cache
from anabranch.frontend.capture_cache import Calling, capture_model
from anabranch.frontend.captured_store import CAPTURED
from anabranch.frontend.surroundings import Surroundings, surroundings
from anabranch.ir.eval import eval_graph
from anabranch.trace import RECALLED, Trace

X = torch.tensor([-1.0, 0.5, 1.0, 1.5])
"""What a model is captured with: no limit shows."""
FAR = torch.tensor([-3.0, 3.0, 4.0, 9.0])
LIMIT = 5.0
TABLE = torch.full((4,), 5.0)
STATE: list[int] = []
SETTINGS = {"limit": 5.0}
Models = Iterator[nn.Module]


class Clamp(nn.Module):
    """x up to a limit that a function tells."""

    def __init__(self, limit: Callable[[], Any]) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        return torch.minimum(x, torch.as_tensor(self.limit()))


def of_function(limit: Callable[[], Any]) -> nn.Module:
    """The same, but no attribute tells of the function."""

    class Made(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.minimum(x, torch.as_tensor(limit()))

    return Made()


def of_global() -> Models:
    yield of_function(lambda: LIMIT)
    globals()["LIMIT"] = 2.0
    yield of_function(lambda: LIMIT)
    globals()["LIMIT"] = 5.0


def of_global_tensor() -> Models:
    yield of_function(lambda: TABLE)
    TABLE.fill_(2.0)
    yield of_function(lambda: TABLE)
    TABLE.fill_(5.0)


def of_environment() -> Models:
    for limit in ("5", "2"):
        os.environ["A_LIMIT"] = limit
        yield of_function(lambda: float(os.environ["A_LIMIT"]))
    del os.environ["A_LIMIT"]


def of_closure() -> Models:
    for limit in (5.0, 2.0):
        yield of_function(lambda limit=limit: limit)  # type: ignore[misc]


def of_container() -> Models:
    yield of_function(lambda: SETTINGS["limit"])
    SETTINGS["limit"] = 2.0
    yield of_function(lambda: SETTINGS["limit"])
    SETTINGS["limit"] = 5.0


def of_state() -> Models:
    yield of_function(lambda: 2.0 if STATE else 5.0)
    STATE.append(1)
    yield of_function(lambda: 2.0 if STATE else 5.0)
    STATE.clear()


def of_class_attribute() -> Models:
    class Limits:
        most = 5.0

    model = of_function(lambda: Limits.most)
    yield model
    Limits.most = 2.0
    yield model


def of_forward() -> Models:
    model = of_function(lambda: 5.0)
    yield model
    type(model).forward = lambda self, x: x.clamp(max=2.0)
    yield model


def of_default_argument() -> Models:
    def limit(most: float = 5.0) -> float:
        return most

    model = of_function(limit)
    yield model
    limit.__defaults__ = (2.0,)
    yield model


def of_function_attribute() -> Models:
    def limit() -> Any:
        return limit.most  # type: ignore[attr-defined]

    limit.most = 5.0  # type: ignore[attr-defined]
    model = of_function(limit)
    yield model
    limit.most = 2.0  # type: ignore[attr-defined]
    yield model


def of_wrapper() -> Models:
    for most in (5.0, 2.0):

        @functools.wraps(torch.relu)
        def limit(most: float = most) -> float:
            return most

        yield Clamp(limit)


def of_partial() -> Models:
    for most in (5.0, 2.0):
        yield Clamp(functools.partial(torch.full, (4,), most))


def of_tensor_in_a_list() -> Models:
    for most in (5.0, 2.0):
        model: Any = Clamp(lambda: None)
        model.held = [torch.full((4,), most)]
        model.limit = functools.partial(lambda held: held[0], model.held)
        yield model


def of_tensor_attribute() -> Models:
    class Made(nn.Module):
        most: Tensor

        def forward(self, x: Tensor) -> Tensor:
            return torch.minimum(x, self.most)

    for most in (5.0, 2.0):
        model = Made()
        model.most = torch.full((4,), most)
        yield model


def of_hidden_field() -> Models:
    @dataclasses.dataclass
    class Config:
        name: str

    for most in (5.0, 2.0):
        config = Config("a")
        config.most = most  # type: ignore[attr-defined]
        yield Clamp(functools.partial(getattr, config, "most"))


def of_subclass_of_float() -> Models:
    class Limit(float):
        most = 5.0

    for most in (5.0, 2.0):
        limit = Limit(1.0)
        limit.most = most
        yield Clamp(functools.partial(getattr, limit, "most"))


def of_enumeration() -> Models:
    for most in (5.0, 2.0):
        limit = enum.Enum("Limit", {"MOST": most})  # type: ignore[misc]
        yield of_function(lambda limit=limit: limit.MOST.value)  # type: ignore[misc]


def of_namespace() -> Models:
    space = types.SimpleNamespace(most=5.0)
    model = of_function(lambda: space.most)
    yield model
    space.most = 2.0
    yield model


def of_global_hook() -> Models:
    model = of_function(lambda: 5.0)
    yield model
    register = nn.modules.module.register_module_forward_hook
    hook = register(lambda part, _, out: out.clamp(max=2.0) if part is model else None)
    yield model
    hook.remove()


def of_requires_grad() -> Models:
    model = Clamp(lambda: None)
    model.register_parameter("weight", nn.Parameter(torch.ones(1)))
    model.limit = lambda: 5.0 if model.weight.requires_grad else 2.0
    yield model
    model.requires_grad_(False)
    yield model


def of_flag() -> Models:
    model = of_function(lambda: 5.0 if torch.backends.mkldnn.enabled else 2.0)
    yield model
    with torch.backends.mkldnn.flags(enabled=False):
        yield model


def of_parametrization() -> Models:
    for most in (5.0, 2.0):

        class Cap(nn.Module):
            def forward(self, w: Tensor, most: float = most) -> Tensor:
                return w.clamp(max=most)

        layer = nn.Linear(4, 4, bias=False)
        layer.weight.data = torch.eye(4) * 3.0
        yield parametrize.register_parametrization(layer, "weight", Cap())


def of_global_dtype() -> Models:
    model = of_function(lambda: torch.full((4,), 5.0))
    yield model
    torch.set_default_dtype(torch.float64)
    yield model
    torch.set_default_dtype(torch.float32)


CHANGES = [
    *(of_global, of_global_tensor, of_environment, of_closure, of_container, of_state),
    *(of_class_attribute, of_forward, of_default_argument, of_function_attribute, of_wrapper),
    *(of_partial, of_tensor_in_a_list, of_tensor_attribute, of_hidden_field),
    *(of_subclass_of_float, of_enumeration, of_namespace, of_global_hook, of_requires_grad),
    *(of_flag, of_parametrization, of_global_dtype),
]


def answer(
    model: nn.Module, cache: Cache, trace: Trace | None = None, fake: bool = False
) -> Tensor:
    calling = Calling(surroundings(), fake=fake)
    captured, _ = capture_model(model, (X,), {}, cache, trace or Trace(), calling)
    return eval_graph(captured.graph, [FAR], torch.device("cpu"))[0]


@pytest.mark.parametrize("models", CHANGES)
def test_what_the_example_does_not_show(models: Callable[[], Models]) -> None:
    cache = Cache(None)
    for model in models():
        with torch.no_grad():
            torch.testing.assert_close(answer(model.eval(), cache), model(FAR))


@pytest.mark.parametrize("fake", [False, True])
def test_what_did_not_change_is_recalled(fake: bool) -> None:
    cache, trace = Cache(None), Trace()
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Clamp(lambda: 0.25)).eval()
    for _ in range(2):
        found = answer(model, cache, trace, fake)
        with torch.no_grad():
            model[0].weight.mul_(2.0)
            torch.testing.assert_close(answer(model, cache, trace, fake), model(FAR))
    assert [e.what for e in trace.events if e.why == RECALLED] == ["Sequential"] * 3
    assert found.max() <= 0.25


def test_without_values_too() -> None:
    for model in of_global():
        cache = Cache(None)
        with torch.no_grad():
            torch.testing.assert_close(answer(model.eval(), cache, fake=True), model(FAR))


def test_a_random_choice_is_not_recalled_for_another() -> None:
    cache = Cache(None)
    for seed in (1, 2, 1):
        random.seed(seed)
        with pytest.warns(UserWarning, match="Python's random numbers"):
            found = answer(of_function(lambda: 2 + random.random()).eval(), cache)
        random.seed(seed)
        assert found.max() == pytest.approx(2 + random.random())


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


def test_a_wrong_entry_is_replaced(tmp_path: Path) -> None:
    """Whoever damaged it: the model is captured anew, once."""
    options: dict[str, Any] = {"target": "cpu", "cache_dir": tmp_path, "search": "none"}
    model = Doubled().eval()
    anabranch.compile(model, (X,), **options)
    with Cache.open(tmp_path) as cache:
        (entry,) = (e for e in cache.ls("graphs") if e.key.startswith(CAPTURED.name))
        text = cache.get("graphs", entry.key)
        assert text is not None and "(%x, 2)" in text
        cache.put("graphs", entry.key, text.replace("(%x, 2)", "(%x, 3)"))
    trace = Trace()
    fast = anabranch.compile(model, (X,), trace=trace, **options)
    torch.testing.assert_close(fast(FAR), model(FAR))
    assert any("without the cache" in event.why for event in trace.events)
    trace = Trace()
    fast = anabranch.compile(model, (X,), trace=trace, **options)
    torch.testing.assert_close(fast(FAR), model(FAR))
    assert not any("without the cache" in event.why for event in trace.events)
    assert any(e.where == "capture" and e.why == RECALLED for e in trace.events)


def test_surroundings_have_entries_of_their_own() -> None:
    cache = Cache(None)
    plain, other = Surroundings(), Surroundings(dtype=torch.float64)
    model = of_function(lambda: torch.full((4,), 5.0)).eval()
    dtypes = [
        capture_model(model, (X,), {}, cache, Trace(), Calling(under))[0].graph
        for under in (plain, other, plain, other)
    ]
    assert dtypes[0] == dtypes[2] and dtypes[1] == dtypes[3] and dtypes[0] != dtypes[1]
