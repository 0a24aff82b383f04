"""What the user's code asks for in a call, and what is not the user's."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import typing_extensions
from torch import Tensor, nn

from anabranch.frontend.call_profiler import TOOLS, unless_of_module
from anabranch.frontend.observe import Observed, observe
from anabranch.frontend.source import is_users
from anabranch.frontend.surroundings import surroundings

_LIBRARY: Any = torch.library.Library


def _seen(model: Callable[..., Any], fake: bool = False) -> Observed:
    return observe(model, (torch.ones(2, 3),), {}, surroundings(), watch=True, fake=fake)


class Strided(nn.Module):
    """Asks for an attribute of its own that is called as a question about tensors is."""

    def __init__(self) -> None:
        super().__init__()
        self.stride = 2

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :: self.stride]


def _first(x: Tensor) -> Any:
    return x.stride


def _other(self: Any, x: Any) -> Any:
    return self.stride, x.stride


def _stored(self: Any, x: Any) -> Any:
    self = x
    return self.stride


def _either(self: Any, x: Any, one: bool) -> Any:
    return (x if one else self).stride


def _named(self: Any) -> Any:
    return getattr(self, "stride"), self.stride  # noqa: B009


class Holder:
    """No module: what it has may be a tensor's."""

    def __init__(self, x: Tensor) -> None:
        self.stride = x.stride

    def asked(self) -> Tensor:
        return torch.ones(self.stride())


def test_an_attribute_of_a_module_is_no_question() -> None:
    assert unless_of_module(Strided.forward.__code__) == {"stride"}
    assert not _seen(Strided().eval()).mentions
    assert _seen(lambda x: x * _first(x)()[1]).mentions == {"stride"}
    assert _seen(lambda x: Holder(x).asked() + x[0, 0]).mentions == {"stride"}


@pytest.mark.parametrize("code", [_other, _stored, _either, _named])
def test_the_same_attribute_of_something_else_may_be_one(code: Callable[..., Any]) -> None:
    assert not unless_of_module(code.__code__) & {"stride"}


def test_modules_that_are_imported_meanwhile_are_not_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needed_late.py").write_text(
        "import time\nSTRIDE = time.time(), id(1)\nf = 1 .real"
    )
    (tmp_path / "needed_too.py").write_text("import time\ndef now(x): return x, time.time(), id(x)")

    def model(x: Tensor) -> Any:
        late, too = map(importlib.import_module, ("needed_late", "needed_too"))
        return too.now(x)[0] * late.f

    try:
        first, second = _seen(model), _seen(model)
    finally:
        for name in ("needed_late", "needed_too"):
            sys.modules.pop(name, None)
    assert first.reads == second.reads and len(first.reads) == 1 and "in now" in first.reads[0]
    assert first.mentions == second.mentions == {"is"}


def test_operators_of_the_users_are_listened_to() -> None:
    ours = _LIBRARY("watched", "FRAGMENT")  # a `custom_op` imports for seconds
    ours.define("late(Tensor x) -> Tensor")
    ours.impl("late", lambda x: x * (time.time() > 0), "CPU")
    ours.impl("late", lambda x: x * (time.monotonic() > 0), "Meta")
    for fake, clock in ((False, "time.time()"), (True, "time.monotonic()")):
        reads = _seen(lambda x: torch.ops.watched.late(x.relu()).relu(), fake).reads
        assert len(reads) == 1 and reads[0].startswith(clock)
    heard = _seen(lambda x: x.relu() * (time.time() > 0)).reads  # after an operator, too
    assert len(heard) == 1 and sys.getprofile() is None


def test_what_another_thread_runs_is_not_the_calls() -> None:
    def now() -> float:
        return time.time()

    def model(x: Tensor) -> Any:
        with ThreadPoolExecutor() as pool:
            return x * pool.submit(now).result() * (now() if x.ndim == 2 else 0)

    for _ in range(2):  # of what one listener has heard enough of, the next one hears again
        reads = _seen(model).reads
        assert len(reads) == 1 and reads[0].startswith("time.time()") and "in now" in reads[0]


def test_a_generator_that_was_made_before_is_listened_to() -> None:
    def clocks() -> Iterator[float]:
        while True:
            yield time.time() if started else 0.0

    made, started = clocks(), False
    next(made)
    started = True
    reads = _seen(lambda x: x * next(made)).reads
    assert len(reads) == 1 and "in clocks" in reads[0]


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.11 has one way to listen")
def test_where_all_tools_are_taken_it_listens_all_the_same() -> None:
    monitoring: Any = getattr(sys, "monitoring", None)

    def reads() -> tuple[str, ...]:
        return _seen(lambda x: x * time.time() * _first(x)()[1]).reads

    expected, taken = reads(), [one for one in TOOLS if monitoring.get_tool(one) is None]
    assert len(expected) == 1 and taken == list(TOOLS)  # and none is kept by who has listened
    try:
        for one in taken:
            monitoring.use_tool_id(one, "another")
        assert reads() == expected
    finally:
        for one in taken:
            monitoring.free_tool_id(one)


def test_what_stands_for_pythons_own_is_nobodys() -> None:
    assert not is_users(typing_extensions.__file__) and is_users(__file__)
