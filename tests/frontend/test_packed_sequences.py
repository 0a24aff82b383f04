"""Packed sequences: what recurrent layers make of rows of several lengths, as eager makes it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.compiled.cuts import CutModel
from anabranch.errors import CaptureError

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}
LENGTHS = [[7, 5, 2], [7, 7, 7], [1, 1, 1], [6, 3, 3], [4, 2, 1]]
UNSORTED = [[2, 7, 5], [1, 6, 3], [3, 3, 4]]


class Packing(nn.Module):
    """A recurrent layer over packed rows, work before and behind it."""

    def __init__(self, layer: Any = nn.LSTM, total: int | None = 7, **more: Any) -> None:
        super().__init__()
        self.first, self.total = nn.Linear(6, 8), total
        self.in_order = more.pop("in_order", False)
        self.value = more.pop("value", 0.0)
        self.begin = more.pop("begin", False)
        self.rnn = layer(8, 5, **more)
        ways = 2 if self.rnn.bidirectional else 1
        self.last = nn.Linear((self.rnn.proj_size or 5) * ways, 4)

    def forward(self, x: Tensor, lengths: Any) -> Any:
        ordered = self.rnn.batch_first
        x = self.first(x).relu()
        packed = pack_padded_sequence(x, lengths, ordered, enforce_sorted=self.in_order)
        begin: Any = None
        if self.begin:
            layers = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
            rows = x.sum(1 if ordered else 0).tanh()
            begin = rows[:, :5].expand(layers, -1, -1).contiguous()
            begin = (begin, begin * 2) if isinstance(self.rnn, nn.LSTM) else begin
        y, state = self.rnn(packed, begin)
        y, counted = pad_packed_sequence(y, ordered, self.value, self.total)
        return self.last(y).relu() + 1, state, counted


def built(*args: Any, **more: Any) -> Packing:
    torch.manual_seed(0)
    return Packing(*args, **more).eval()


def drawn(model: Packing, lengths: list[int], behind: float | None = None) -> tuple[Tensor, Tensor]:
    """A call. `behind`: what stands behind each sequence."""
    x = torch.randn(len(lengths), 7, 6)
    for row, length in zip(x, lengths, strict=True):
        if behind is not None:
            row[length:] = behind
    return x if model.rnn.batch_first else x.transpose(0, 1), torch.tensor(lengths)


class Listed(nn.Module):
    """Gives lengths as numbers of Python."""

    def __init__(self, model: Packing) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.model(x, lengths.tolist())


def compiled(model: Any, *args: Any, **more: Any) -> Compiled:
    return anabranch.compile(model, args, **QUICK, **more)


MODELS: list[Packing] = [
    built(batch_first=True),
    built(num_layers=2, bidirectional=True, total=9, value=-math.inf),
    built(num_layers=2, proj_size=3, batch_first=True, bias=False),
    built(in_order=True, bidirectional=True, batch_first=True, value=2.0),
    built(nn.GRU, batch_first=True, num_layers=2),
    built(nn.GRU, bidirectional=True, in_order=True, bias=False),
    built(nn.RNN, batch_first=True, bidirectional=True),
    built(nn.RNN, nonlinearity="relu", in_order=True),
    built(begin=True, batch_first=True, bidirectional=True, num_layers=2),
    built(nn.GRU, begin=True),
]


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_one_graph_gives_what_eager_gives_of_all_lengths(number: int) -> None:
    """Whatever stands behind the sequences."""
    model = MODELS[number]
    fast = compiled(model, *drawn(model, LENGTHS[0]), fullgraph=True)
    unsorted = [] if model.in_order else UNSORTED
    for lengths in (*LENGTHS, *unsorted):
        for behind in (None, math.nan, -math.inf, 1e30) if not model.begin else (None,):
            args = drawn(model, lengths, behind)
            torch.testing.assert_close(fast(*args), model(*args), equal_nan=model.value != 0)


def test_large_weights_leave_the_cell_as_it_is() -> None:
    model = built(batch_first=True, num_layers=2)
    with torch.no_grad():
        for weight in model.rnn.parameters():
            weight.mul_(300)
    fast, double = compiled(model, *drawn(model, LENGTHS[0]), fullgraph=True), copy.deepcopy(model)
    for lengths in (*LENGTHS, *UNSORTED):
        x, *rest = drawn(model, lengths)
        exact = tree_leaves(double.double()(x.double(), *rest))
        pairs = zip(tree_leaves(fast(x, *rest)), tree_leaves(model(x, *rest)), exact, strict=True)
        for got, want, truth in pairs:
            # So steep a cell takes roundings of single precision to a thousandth, eager's as well.
            assert apart(got, truth) <= 4 * apart(want, truth) + 1e-5


def apart(value: Tensor, truth: Tensor) -> float:
    return (value.double() - truth).abs().max().item()


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_result_as_long_as_the_longest_sequence_is_cut(
    layer: Any, batch_first: bool, in_order: bool
) -> None:
    model = built(layer, total=None, batch_first=batch_first, in_order=in_order)
    fast = compiled(model, *drawn(model, LENGTHS[0]), unseen="refuse")
    fast.add(drawn(model, [1, 1, 1]))  # a size of 1 is a case of its own
    assert isinstance(fast, CutModel) and fast.sections
    for lengths in (*LENGTHS, *([] if in_order else UNSORTED)):
        args = drawn(model, lengths)
        got, want = fast(*args), model(*args)
        torch.testing.assert_close(got, want)
        assert got[0].shape[1 if batch_first else 0] == max(lengths)
    with pytest.raises(CaptureError):
        compiled(model, *args, fullgraph=True)


def test_lengths_as_numbers_are_cut() -> None:
    for total in (7, None):
        model = Listed(built(total=total, batch_first=True)).eval()
        fast = compiled(model, *drawn(model.model, LENGTHS[0]), unseen="refuse")
        for lengths in (LENGTHS[3], *UNSORTED):
            args = drawn(model.model, lengths)
            torch.testing.assert_close(fast(*args), model(*args))
    given = drawn(model.model, LENGTHS[3])[0], LENGTHS[3]
    fast = compiled(model.model, *given)  # plain values are part of the plan
    torch.testing.assert_close(fast(*given), model.model(*given))


WRONG = [[7, 0, 2], [7, 5, -1], [9, 8, 2], [8, 7, 7]]


@pytest.mark.parametrize("lengths", [*WRONG, [5, 7, 2]])
@pytest.mark.parametrize("total", [7, None])
def test_lengths_that_eager_refuses(lengths: list[int], total: int | None) -> None:
    for in_order in (True, False):
        model = built(total=total, in_order=in_order, batch_first=True)
        fast = compiled(model, *drawn(model, LENGTHS[0]))
        args = torch.randn(3, 7, 6), torch.tensor(lengths)
        if in_order or lengths in WRONG:
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                model(*args)
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                fast(*args)


def test_a_total_below_the_longest_sequence() -> None:
    model = built(total=4, batch_first=True)
    fast = compiled(model, *drawn(model, [4, 2, 1]), fullgraph=True)
    for lengths in ([3, 4, 1], [1, 1, 1]):
        args = drawn(model, lengths)
        torch.testing.assert_close(fast(*args), model(*args))
    args = drawn(model, [5, 2, 1])
    with pytest.raises(ValueError, match="total_length"):
        model(*args)
    with pytest.raises(RuntimeError, match="total_length=4"):
        fast(*args)


class Words(nn.Module):
    """Works on rows while they are packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(20, 6), nn.Linear(6, 8)
        self.drop, self.norm = nn.Dropout(), nn.LayerNorm(8)
        self.rnn, self.out = nn.GRU(8, 5), nn.Linear(5, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(ids, lengths.cpu(), True, enforce_sorted=False)
        x = self.norm(self.drop(self.project(self.embed(packed.data)).tanh() * 2))
        y, _ = self.rnn(PackedSequence(x, *packed[1:]))
        logits = self.out(y.data).relu()
        return pad_packed_sequence(PackedSequence(logits, *packed[1:]), True, 0.5, 6)[0]


def test_rows_one_by_one_while_they_are_packed() -> None:
    model = Words().eval()
    ids = torch.randint(20, (4, 6))
    fast = compiled(model, ids, torch.tensor([3, 6, 1, 2]), fullgraph=True)
    for lengths in ([3, 6, 1, 2], [6, 6, 6, 6], [1, 2, 3, 4]):
        args = torch.randint(20, (4, 6)), torch.tensor(lengths)
        torch.testing.assert_close(fast(*args), model(*args))


OTHERWISE: list[Any] = [
    lambda packed: packed.data.mean(0),
    lambda packed: packed.data.softmax(0),
    lambda packed: packed.data.shape[0],
    lambda packed: packed.data,
    lambda packed: packed.data + packed.data,
    lambda packed: packed.batch_sizes,
    lambda packed: packed.batch_sizes.sum(),
    lambda packed: packed.sorted_indices,
    lambda packed: packed.sorted_indices + 1,
    lambda packed: packed.data * torch.ones(9, 1),
]


@pytest.mark.parametrize("number", range(len(OTHERWISE)))
def test_what_else_is_done_with_packed_rows_is_no_part_of_a_graph(number: int) -> None:
    """For they are not as many as the padded sequence has."""

    def model(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x.relu() + 1, lengths, True, enforce_sorted=False)
        return OTHERWISE[number](packed)

    args = torch.randn(3, 4, 6), torch.tensor([2, 4, 3])
    model(*args)
    with pytest.raises(CaptureError):
        compiled(model, *args)
