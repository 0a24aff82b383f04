"""A graph writes to the inputs that the model writes to, and to no other; what a model changes in
containers among its inputs is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.cache import Cache
from anabranch.errors import CaptureError
from anabranch.frontend.capture_cache import Calling, capture_model
from anabranch.frontend.captured import Captured
from anabranch.frontend.effects import check_values, check_writes, mutated
from anabranch.frontend.from_torch import capture
from anabranch.frontend.surroundings import surroundings
from anabranch.trace import Trace

FAST: dict[str, Any] = {"target": "cpu", "search": "none"}
NOWHERE = {**FAST, "cache_dir": None}


def inputs() -> Tensor:
    return torch.randn(3, 2, generator=torch.Generator().manual_seed(5))


class Grows(nn.Module):
    """A table that forward makes where there is none, or one that is too short."""

    table: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        if rows:
            self.register_buffer("table", torch.ones(rows, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.rows < len(x):
            self.rows = len(x)
            made = torch.arange(2.0 * self.rows).view(-1, 2)
            self.register_buffer("table", made, persistent=False)
        y: Tensor = x + self.table[: len(x)]
        return y


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("rows", [0, 2])
def test_a_buffer_that_forward_makes_is_refused(rows: int, fake: bool) -> None:
    calling = Calling(surroundings(), fake=fake)
    model = Grows(rows).eval()
    with pytest.raises(CaptureError, match="makes its buffer table in forward") as refused:
        capture_model(model, (inputs(),), {}, Cache(None), Trace(), calling)
    assert "call the model once" in refused.value.next
    assert dict(model.named_buffers()).keys() == dict(Grows(rows).named_buffers()).keys()


@pytest.mark.parametrize("rows", [0, 2])
def test_after_a_call_it_is_compiled(rows: int) -> None:
    model, x = Grows(rows).eval(), inputs()
    want = model(x)
    fast = anabranch.compile(model, (x,), **NOWHERE)
    torch.testing.assert_close(fast(x), want)
    assert torch.equal(x, inputs())


class Fills(nn.Module):
    """What it is given twice, by position and by name."""

    def forward(self, pair: list[Tensor], *, out: Tensor) -> Tensor:
        torch.add(pair[0], 1, out=out)
        pair[1].mul_(2)
        return pair[0] * pair[1]


def test_inputs_that_a_model_writes_to_are_named() -> None:
    given = ([inputs(), inputs() + 1],), {"out": torch.zeros(3, 2)}
    captured, seen = capture_model(Fills().eval(), *given, Cache(None), Trace())
    assert sorted(map(min, mutated(captured, given))) == ["args[0][1]", "kwargs['out']"]
    assert seen is not None and seen.written is not None
    assert torch.equal(seen.written["kwargs['out']"], inputs() + 1)
    assert torch.equal(seen.written["args[0][1]"], (inputs() + 1) * 2)
    fast = anabranch.compile(Fills().eval(), *copy.deepcopy(given), **NOWHERE)
    mine, own = copy.deepcopy(given), copy.deepcopy(given)
    torch.testing.assert_close(fast(*mine[0], **mine[1]), Fills().eval()(*own[0], **own[1]))
    torch.testing.assert_close(mine, own)


def test_a_graph_that_writes_to_another_input_is_refused() -> None:
    given = ([inputs(), inputs() + 1],), {"out": torch.zeros(3, 2)}
    captured = capture(Fills().eval(), *given)
    with pytest.raises(CaptureError, match=r"its graph writes to kwargs\['out'\]"):
        check_writes(captured, given, {"args[0][1]": inputs()})


def test_a_graph_that_misses_a_change_is_refused() -> None:
    given = ([inputs(), inputs() + 1],), {"out": torch.zeros(3, 2)}
    whole = capture(Fills().eval(), *given)
    kept = tuple(pair for pair in whole.signature.mutations if "out" not in pair[0])
    less = Captured(
        whole.graph, replace(whole.signature, mutations=kept), whole.sources, whole.trees
    )
    check_values(less, given, {"kwargs['out']": torch.zeros(3, 2)})
    with pytest.raises(CaptureError, match=r"the model changes kwargs\['out'\]"):
        check_values(less, given, {"kwargs['out']": -torch.zeros(3, 2)})


class Appends(nn.Module):
    def forward(self, kept: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        kept.append(kept[0] + 1)
        named["y"] = named.pop("x") * 2
        return kept[-1] * named["y"]


def test_changes_of_containers_are_told_once_and_not_done(tmp_path: Any) -> None:
    """On a warm start, too."""
    options = {**FAST, "cache_dir": tmp_path}
    for _ in range(2):
        given: Any = ([inputs()], {"x": inputs()})
        with pytest.warns(UserWarning, match="forward changes") as caught:
            fast = anabranch.compile(Appends().eval(), given, **options)
        (said,) = (str(w.message) for w in caught if "forward changes" in str(w.message))
        for name in ("args[0][1]", "args[1]['x']", "args[1]['y']"):
            assert name in said
        assert len(given[0]) == 1 and list(given[1]) == ["x"]
        torch.testing.assert_close(fast(*given), (inputs() + 1) * (inputs() * 2))


class Writes(nn.Module):
    """To what it holds, by the name `out`."""

    held: Tensor

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("held", torch.zeros(3, 2))
        else:
            self.held = torch.zeros(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch.add(x, 1, out=self.held)
        return self.held * 2


@pytest.mark.parametrize("buffer", [False, True])
def test_what_is_written_to_by_name_is_put_back(buffer: bool) -> None:
    model = Writes(buffer).eval()
    with nullcontext() if buffer else pytest.raises(CaptureError, match="the model writes to"):
        anabranch.compile(model, (inputs(),), **NOWHERE)
    assert torch.equal(model.held, torch.zeros(3, 2))


class Resizes(nn.Module):
    """Its table, in forward, as a call says."""

    table: Tensor

    def __init__(self, resize: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.resize = resize
        self.register_buffer("table", torch.ones(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.resize(self.table)
        self.table.fill_(2)
        y: Tensor = x + self.table.sum()
        return y


RESIZES: dict[str, Callable[[Tensor], Any]] = {
    "longer": lambda table: table.resize_(8, 2),
    "shorter": lambda table: table.resize_(3, 2),
    "another shape": lambda table: table.resize_(2, 4),
    "as another": lambda table: table.resize_as_(torch.ones(30, 40)),
    "other memory": lambda table: table.set_(torch.ones(9)),  # type: ignore[call-overload] # a tensor, too
    "transposed": lambda table: table.t_(),
}


@pytest.mark.parametrize("how", RESIZES)
def test_a_model_that_resizes_its_buffer_is_refused_and_keeps_it(how: str) -> None:
    model = Resizes(RESIZES[how]).eval()
    table, memory = model.table, model.table.untyped_storage()._cdata
    with pytest.raises(CaptureError, match="gives its tensor table another shape"):
        anabranch.compile(model, (inputs(),), **NOWHERE)
    assert model.table is table and table.untyped_storage()._cdata == memory
    assert torch.equal(table, torch.ones(4, 2)) and table.is_contiguous()
    assert table.untyped_storage().nbytes() == table.nbytes


def test_a_buffer_that_gets_its_own_size_back_is_as_it_was() -> None:
    def there_and_back(table: Tensor) -> None:
        table.resize_(400, 2)
        table.resize_(4, 2)

    model = Resizes(there_and_back).eval()
    with pytest.warns(UserWarning, match=r"forward changes table\.data"):
        fast = anabranch.compile(model, (inputs(),), **NOWHERE)
    assert torch.equal(model.table, torch.ones(4, 2))
    assert model.table.untyped_storage().nbytes() == model.table.nbytes
    torch.testing.assert_close(fast(inputs()), inputs() + 16)
