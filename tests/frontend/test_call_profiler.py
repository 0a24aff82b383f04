"""What the user's code asks for in a call, and what is not the user's."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import typing_extensions
from torch import Tensor, nn

import anabranch
from anabranch.frontend.call_profiler import TOOLS, unless_of_module
from anabranch.frontend.observe import Notes, Observed, observe
from anabranch.frontend.source import is_users
from anabranch.frontend.surroundings import surroundings

_LIBRARY: Any = torch.library.Library


def _seen(model: Callable[..., Any], fake: bool = False) -> Observed:
    return observe(
        model, (torch.ones(2, 3),), {}, surroundings(), notes=Notes(watch=True), fake=fake
    )


class Strided(nn.Module):
    """Asks for an attribute of its own that is called as a question about tensors is."""

    def __init__(self) -> None:
        super().__init__()
        self.stride = 2

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :: self.stride]


def _on_a_cpu() -> bool:
    return torch.ones(1).device.type == "cpu"


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


def test_a_function_without_variables_is_listened_to() -> None:
    assert "type" in _seen(lambda x: x + _on_a_cpu()).mentions


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


ENVIRONMENT: dict[str, Callable[[], Any]] = {
    "item": lambda: os.environ["SCALE"],
    "get": lambda: os.environ.get("SCALE", "1"),
    "getenv": lambda: os.getenv("SCALE"),
    "in": lambda: "SCALE" in os.environ,
    "all": lambda: dict(os.environ),
}


@pytest.mark.parametrize("how", ENVIRONMENT)
def test_variables_of_the_environment_that_are_read_are_named(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALE", "2")
    reads = _seen(lambda x: x * float(bool(ENVIRONMENT[how]()))).reads
    named = [one for one in reads if one.startswith("os.environ['SCALE'] at test_call_profiler.py")]
    assert len(named) == 1 and (how == "all" or len(reads) == 1)
    assert not _seen(lambda x: torch.nn.functional.relu(x) * 2).reads


def _dumped(path: Path, opened: Any) -> None:
    with path.open("w") as file:
        json.dump({}, file)


WRITES: dict[str, Callable[[Path, Any], Any]] = {
    "open": lambda path, _: open(path, "a").close(),
    "text": lambda path, _: path.write_text("x"),
    "json": _dumped,
    "save": lambda path, _: torch.save(1, path),
    "low": lambda path, _: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)),
    "opened before": lambda _, opened: opened.write("x"),
}


@pytest.mark.parametrize("how", WRITES)
def test_files_that_are_written_are_named(how: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("w") as opened:
        seen = _seen(lambda x: (WRITES[how](path, opened), x * 2)[1])
    assert len(seen.changed) == 1
    assert seen.changed[0].startswith("log.txt (written to at test_call_profiler.py:")
    before = builtins.open, os.open
    assert not _seen(lambda x: x * len((path.read_bytes(), print(end=""))[:1])).changed
    assert (builtins.open, os.open) == before


def test_what_a_model_reads_and_writes_is_told_also_where_it_is_recalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with open(tmp_path / "log.txt", "a") as file:
                file.write("called")
            return x * float(os.environ["SCALE"])

    monkeypatch.setenv("SCALE", "2")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fast = anabranch.compile(
                Model().eval(), (torch.ones(3),), target="cpu", search="none", cache_dir=tmp_path
            )
        said = [str(one.message) for one in told if "forward " in str(one.message)]
        assert len(said) == 2 and torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
        assert any("forward reads os.environ['SCALE'] at" in one for one in said)
        assert any("forward changes log.txt (written to at" in one for one in said)
        assert any("nobody can put that back" in one for one in said)
