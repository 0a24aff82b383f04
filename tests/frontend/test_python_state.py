"""What forward changes in Python is named in one warning, and left as it was."""

from __future__ import annotations

import gc
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import anabranch
from anabranch.errors import CaptureError
from anabranch.frontend.observe import Notes, observe
from anabranch.frontend.python_state import PythonState
from anabranch.frontend.surroundings import Surroundings

X = torch.ones(2, 4)
CALLS = 0
LOG: list[int] = []
QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}


class Config:
    def __init__(self) -> None:
        self.reads = 0


class Counter(nn.Module):
    """Keeps something of its calls in each of the places that there are."""

    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.n, self.config = 0, Config()
        self.cache: Tensor | None = None
        self.history: list[Tensor] = []
        self.by_shape: dict[Any, Tensor] = {}
        self.nested = {"inner": [0]}
        self.part = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        LOG.append(CALLS)
        type(self).total += 1
        self.n += 1
        self.config.reads += 1
        self.history.append(x)
        self.nested["inner"].append(self.n)
        self.part.last = x
        if self.cache is None:
            self.cache = torch.arange(4.0)
        self.by_shape[x.shape] = x
        y: Tensor = self.part(x) + self.cache + self.n
        return y


NAMES = (
    *("n", "cache", "config.reads", "history", "nested['inner']", "part.last", "by_shape[...]"),
    *("Counter.total", "the global CALLS", "the global LOG"),
)


def check_untouched(model: Counter) -> None:
    assert (model.n, model.cache, model.config.reads, model.history) == (0, None, 0, [])
    assert model.nested == {"inner": [0]} and not model.by_shape
    assert "last" not in vars(model.part) and Counter.total == 0 and CALLS == 0 and LOG == []


def test_all_that_forward_changes_is_named_and_put_back() -> None:
    model = Counter().eval()
    seen = observe(model, (X,), {}, Surroundings())
    for name in NAMES:
        assert any(changed.startswith(name) for changed in seen.changed), name
    assert len(seen.changed) == len(NAMES)
    check_untouched(model)


def test_a_model_is_warned_of_once_and_compiles_as_its_next_call() -> None:
    model = Counter().eval()
    with pytest.warns(UserWarning, match="forward changes n, ") as caught:
        fast = anabranch.compile(model, (X,), **QUICK)
        fast.add((X[:1],))
    check_untouched(model)
    assert len([w for w in caught if "forward changes" in str(w.message)]) == 1
    assert len([e for e in fast.trace.events if "forward changes" in e.why]) == 1
    state = PythonState.of(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X))
    state.restore()
    check_untouched(model)


PRUNE: Callable[..., nn.Module] = prune.l1_unstructured
NORMED: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "weight_norm": torch.nn.utils.weight_norm,
    "spectral_norm": torch.nn.utils.spectral_norm,
    "pruned": lambda layer: PRUNE(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("name", NORMED)
def test_weights_that_torch_computes_before_each_call_are_no_change(name: str) -> None:
    model = nn.Sequential(NORMED[name](nn.Linear(X.shape[-1], 3)), nn.ReLU()).eval()
    seen = observe(model, (X,), {}, Surroundings())
    assert seen.changed == ()
    fast = anabranch.compile(model, (X,), **QUICK)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X))


class Same(nn.Module):
    """Sets what is there already."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shape, self.names = 0.5, "square", {"inputs": ["x"], "by": {1: None}}

    def forward(self, x: Tensor) -> Tensor:
        self.scale = float("0.5")
        self.shape = "".join(["squ", "are"])
        self.names = {"inputs": ["x"], "by": {1: None}}
        return x * self.scale


def test_what_is_set_to_what_it_was_is_no_change() -> None:
    model = Same().eval()
    names = model.names
    assert observe(model, (X,), {}, Surroundings()).changed == ()
    assert model.names is names  # others may hold it, too


@pytest.mark.parametrize("other", [{"inputs": ["y"], "by": {1: None}}, {"by": {1: None}}, {1: 2}])
def test_another_dict_is_told(other: dict[Any, Any]) -> None:
    model, names = Same().eval(), {**Same().names}
    model.names = other
    assert observe(model, (X,), {}, Surroundings()).changed == ("names",)
    assert model.names is other and names == Same().names


class Makes(OrderedDict[str, Any]):
    """As transformers' table of activations: what is read of it is made at once."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(f"{key} was made")


class Refuses(dict[str, Any]):
    """As its registry of hooks: no default may be asked for."""

    def get(self, key: str) -> Any:  # type: ignore[override]
        return super().get(key)

    def items(self) -> Any:
        raise AssertionError("was read")


class Twice(list[int]):
    def __iter__(self) -> Any:
        return iter([*super().__iter__(), *super().__iter__()])


def test_containers_are_read_past_the_methods_of_their_classes() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.hooks, self.list = Makes(relu=nn.ReLU), Refuses(a=1), Twice([1])

    part = Holder()
    state = PythonState.of(part)
    assert state.changes() == []
    OrderedDict.__setitem__(part.table, "tanh", nn.Tanh)
    part.table.move_to_end("relu")
    part.hooks["a"] = 2
    part.list.append(3)
    assert state.changes() == ["table['tanh']", "hooks['a']", "list"]
    state.restore()
    assert state.changes() == []
    assert list(part.table) == ["relu"] and len(part.list) == 1


logger = logging.getLogger(__name__)


class Logs(nn.Module):
    """Asks a logger, which then notes its answer, and makes another one that torch knows of."""

    def forward(self, x: Tensor) -> Tensor:
        logger.debug("called")
        logging.getLogger(f"{__name__}.{len(logging.Logger.manager.loggerDict)}").debug("called")
        return x + 1


def test_loggers_are_no_state_of_a_model() -> None:
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    count = len(logging.Logger.manager.loggerDict)
    seen = observe(Logs().eval(), (X,), {}, Surroundings())
    assert seen.changed == ()
    assert len(logging.Logger.manager.loggerDict) > count  # and nothing is taken back there


def test_closures_and_functions() -> None:
    count, kept = 0, Config()

    def model(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        kept.reads += 1
        model.last = x  # type: ignore[attr-defined]
        return x * 2

    seen = observe(model, (X,), {}, Surroundings())
    assert len(seen.changed) == 3 and any("count" in name for name in seen.changed)
    assert count == 0 and kept.reads == 0 and not hasattr(model, "last")


class Timed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        start = time.perf_counter()
        y = x * 2
        self.took = time.perf_counter() - start
        return y + random.random()


def test_clocks_and_random_numbers_are_named() -> None:
    random.seed(0)
    seen = observe(Timed().eval(), (X,), {}, Surroundings(), notes=Notes(watch=True))
    assert any("time.perf_counter() at test_python_state.py" in read for read in seen.reads)
    assert "Python's random numbers" in seen.reads
    assert random.random() == random.Random(0).random()  # as if none had been drawn


class Littering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gc.collect()
        return x * 2


def test_what_the_garbage_collector_runs_is_not_of_forward() -> None:
    """Whoever measures collections asks for the time in the middle of any call."""
    measured = []

    def measure(phase: str, info: Any) -> None:
        measured.append((phase, time.perf_counter()))

    callbacks = list(gc.callbacks)
    gc.callbacks.append(measure)
    try:
        seen = observe(Littering().eval(), (X,), {}, Surroundings(), notes=Notes(watch=True))
    finally:
        gc.callbacks.remove(measure)
    assert {phase for phase, _ in measured} == {"start", "stop"} and seen.reads == ()
    assert gc.callbacks == callbacks


class Written(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
        self.held = [torch.ones(4)]

    def forward(self, x: Tensor) -> Tensor:
        self.count[:2] += 1
        self.held[0].mul_(2)
        return x + self.count + self.held[0]


def test_tensors_that_are_written_to_get_their_content_back() -> None:
    model = Written().eval()
    seen = observe(model, (X,), {}, Surroundings())
    torch.testing.assert_close(seen.results[0], torch.tensor([4.0, 4.0, 3.0, 3.0]))
    assert set(seen.changed) == {"count", "a tensor that it holds"}
    assert model.count.eq(0).all() and model.held[0].eq(1).all()
    with pytest.raises(CaptureError, match="writes to a tensor that it holds"):
        anabranch.compile(model, (X,), **QUICK)
    assert model.count.eq(0).all() and model.held[0].eq(1).all()


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(3, 3)


def test_a_model_that_fails_by_itself_is_told_so() -> None:
    with pytest.raises(CaptureError, match="the model itself fails") as told:
        anabranch.compile(Broken().eval(), (X,), **QUICK)
    assert "cannot be multiplied" in told.value.why and "test_python_state.py" in told.value.source


def test_what_hooks_keep_is_put_back() -> None:
    """A hook that collects activations is given those of captures, too, which have no numbers."""

    class Keeps:
        last: Any = None

        def __call__(self, part: nn.Module, given: Any, result: Tensor) -> None:
            self.last = result

    model, seen, keeps = nn.Sequential(nn.Linear(4, 4)).eval(), list[Tensor](), Keeps()
    model[0].register_forward_hook(lambda part, given, result: seen.append(result))
    model[0].register_forward_hook(keeps)
    with pytest.warns(UserWarning, match="0._forward_hooks: seen, 0._forward_hooks.last"):
        fast = anabranch.compile(model, (X,), **QUICK)
    assert not seen and keeps.last is None
    torch.testing.assert_close(fast(X), model(X))


def test_weights_that_forward_gives_other_memory_have_theirs_again() -> None:
    class Doubles(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data = self.weight.data * 2
            return super().forward(x)

    model = Doubles(4, 4).eval()
    was = model.weight.detach().clone()
    assert "weight.data" in observe(model, (X,), {}, Surroundings()).changed
    with pytest.raises(CaptureError):
        anabranch.compile(model, (X,), **QUICK)
    assert torch.equal(model.weight, was) and type(model.weight.data) is Tensor


def test_attributes_that_a_class_is_given_are_taken_from_it() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            type(self).calls = getattr(type(self), "calls", 0) + 1  # type: ignore[attr-defined]
            return x * type(self).calls  # type: ignore[attr-defined, no-any-return]

    with pytest.warns(UserWarning, match="Counts.calls"):
        fast = anabranch.compile(Counts().eval(), (X,), **QUICK)
    assert not hasattr(Counts, "calls") and torch.equal(fast(X), X)


def test_scripted_parts_are_passed_over() -> None:
    """Their attributes are not held in Python, and torch answers nothing else than their names."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.held = [torch.jit.script(nn.Linear(2, 2))]  # not a part that is captured

    model = Outer()
    before = PythonState.of(model)
    model.count = 1
    assert before.changes() == ["count"]


class Shy(nn.Module):
    """Counts its calls, and does not bear that its operators are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        calls = self.calls
        assert isinstance(calls, Tensor)
        calls.add_(1)
        listened = torch._C._len_torch_dispatch_stack()
        if listened and not torch.compiler.is_exporting():
            raise RuntimeError("somebody listens")
        if fail:
            raise ValueError("no")
        return x + calls


def test_a_model_that_does_not_bear_to_be_listed_is_as_it_was() -> None:
    model, x = Shy().eval(), torch.randn(3)
    with pytest.raises(CaptureError, match="the model itself fails"):
        anabranch.compile(model, (x, True), target="cpu", search="none")
    assert not model.get_buffer("calls").any()
    fast = anabranch.compile(model, (x,), target="cpu", search="none")
    assert not model.get_buffer("calls").any()
    assert torch.equal(fast(x), x + 1) and torch.equal(fast(x), x + 2)


class Asserting(nn.Module):
    """pytest rewrites this: what it puts in reads a module of its own."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 4, x.shape
        return x * 2


def test_what_pytest_puts_in_for_an_assert_is_not_looked_through() -> None:
    names = Asserting.forward.__code__.co_names
    assert any(not name.isidentifier() for name in names)
    assert not PythonState.of(Asserting()).was.bound
