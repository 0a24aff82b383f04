"""Padding that marks itself: graphs that read marks give the call's rows what the model does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontend.models import Net
from torch import Tensor, nn

from anabranch.frontend import capture
from anabranch.frontend.captured import Captured
from anabranch.frontend.padded_tensors import padded, without_padding
from anabranch.frontend.padding_marks import with_marks
from anabranch.frontend.padding_proof import PaddingProof, UnprovenError, padding_proof
from anabranch.ir.domains import domains
from anabranch.ir.eval import eval_graph
from anabranch.ir.padding_marks import MARKS

B, N, FULL = 3, 4, 9
WINDOW = torch.randn(6, 6, 3, generator=torch.Generator().manual_seed(1))
Model = Callable[[Tensor, Tensor], Tensor]
"""Of embedded tokens f[B,n,6] and a mask i64[B,n]."""


class Reader(nn.Module):
    """Looks tokens up, and does something with what it finds."""

    def __init__(self, model: Callable[..., Tensor], ids: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.model, self.ids = nn.Embedding(20, 6), model, ids

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.table(ids)
        return self.model(x, mask, ids) if self.ids else self.model(x, mask)


def least(mask: Tensor) -> Tensor:
    """As transformers add it: of a row that is masked altogether all tokens are left."""
    return (1.0 - mask[:, None, :].float()) * torch.finfo(torch.float32).min


def attend(x: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, mask, is_causal=causal)


HIDDEN: dict[str, Model] = {
    "softmax without a mask": lambda x, m: (x @ x.mT).softmax(-1) @ x,
    "softmax, the least number added": lambda x, m: (x @ x.mT + least(m)).softmax(-1) @ x,
    "softmax, the least number filled in": lambda x, m: (
        (x @ x.mT).masked_fill(m[:, None] == 0, torch.finfo(x.dtype).min).softmax(-1) @ x
    ),
    "softmax of columns": lambda x, m: (x @ x.mT).softmax(1).mT @ x,
    "attention without a mask": lambda x, m: attend(x, None),
    "attention, the least number added": lambda x, m: attend(x, least(m)),
    "attention of truth values": lambda x, m: attend(x, (m[:, None] != 0) | (m[:, :, None] == 0)),
    "sum": lambda x, m: x.sum(1),
    "mean of what is masked": lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, True).clamp(1),
    "largest": lambda x, m: x.amax(1),
    "largest and where": lambda x, m: x.max(1)[1] + x.argmin(1),
    "norm": lambda x, m: x.norm(dim=1),
    "log of a sum": lambda x, m: x.logsumexp(1),
    "product": lambda x, m: x.prod(1),
    "all": lambda x, m: (x > -5).all(1) & (x > 2).any(1),
    "both sides of a product": lambda x, m: x.mT @ x,
    "the row of a place": lambda x, m: x[torch.arange(B), x[..., 0].argmax(1)],
    "the last row that is there": lambda x, m: x[
        torch.arange(B), (m * torch.arange(x.shape[1])).int().argmax(-1)
    ],
    "gathered": lambda x, m: x.gather(1, x.min(1, keepdim=True)[1]),
    "selected": lambda x, m: x.index_select(1, x.amax(2).argmax(1)),
    "a window of tokens": lambda x, m: F.conv1d(x.mT, WINDOW, padding=1).mT,
    "a wide window": lambda x, m: F.conv1d(x.mT, WINDOW, padding=2, dilation=2).sum(2),
    "later": lambda x, m: (x @ x.mT).softmax(-1).sum(1),
}
APART: dict[str, tuple[Model, str]] = {
    "mean": (lambda x, m: x.mean(1), "aten.mean"),
    "turned round": (lambda x, m: x.flip(1), "aten.flip"),
    "a window that leaves rows out": (lambda x, m: F.conv1d(x.mT, WINDOW), "convolution"),
    "a window by two": (lambda x, m: F.conv1d(x.mT, WINDOW, stride=2, padding=1), "convolution"),
    "transposed": (lambda x, m: F.conv_transpose1d(x.mT, WINDOW.mT.mT, padding=1), "convolution"),
    "a window of channels": (lambda x, m: F.conv1d(x, torch.ones(2, x.shape[1], 1)), "weight"),
    "the last row": (lambda x, m: x[:, -1], "select"),
    "a row that a call names": (lambda x, m: x[torch.arange(B), m.sum(1) - 1], "index"),
    "a place in a narrow type": (
        lambda x, m: x[torch.arange(B), x[..., 0].argmax(1).to(torch.int8).long()],
        "index",
    ),
    "a number beside a place": (lambda x, m: x[torch.arange(B), x.amax(2).argmax(1) - 1], "index"),
    "a place counted otherwise": (
        lambda x, m: (
            torch.stack([x, x], 1)
            .flatten(1, 2)
            .index_select(1, x.amax((0, 2)).argmax(0, keepdim=True))
        ),
        "index_select",
    ),
    "a largest number": (lambda x, m: x[0][m.max() - 1 + m.argmax(1)], "index"),
}


def inputs(n: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(n)
    ids = torch.randint(0, 20, (B, n), generator=dice)
    mask = torch.randint(0, 2, (B, n), generator=dice)
    mask[0], mask[1] = 0, 1  # a row that is masked altogether, and one that is not
    return ids, mask


def captured(model: nn.Module, n: int) -> Captured:
    return capture(model.eval(), inputs(n))


def proof(model: nn.Module, marks: bool = True) -> PaddingProof:
    at = [[(1, 1, 1)]] * 2
    return padding_proof(captured(model, N), captured(model, N + 1), (N, N + 1), at, marks)


def answered(model: nn.Module, found: PaddingProof, n: int) -> Tensor:
    """What the graph for FULL rows makes of a call with n."""
    assert found.marked is not None
    graph = with_marks(captured(model, FULL), [found.marked]).graph
    call = [
        padded(x, (1, 1, 1), n, FULL, found.number(i, x.dtype)) if n < FULL else x
        for i, x in enumerate(inputs(n))
    ]
    (result,) = eval_graph(graph, call)
    for axis in found.results[0]:
        result = without_padding(result, axis, n, FULL)
    return result


@pytest.mark.parametrize("kind", HIDDEN)
def test_marks_hide_padding(kind: str) -> None:
    model = Reader(HIDDEN[kind])
    found = proof(model)
    for n in (2, 3, 7, FULL):
        if found.marked is None:  # what is masked with 0 needs no mark
            assert kind == "mean of what is masked"
            continue
        with torch.no_grad():
            torch.testing.assert_close(answered(model, found, n), model(*inputs(n)))


@pytest.mark.parametrize("kind", [kind for kind in HIDDEN if kind != "mean of what is masked"])
def test_without_marks_these_are_refused(kind: str) -> None:
    with pytest.raises(UnprovenError):
        proof(Reader(HIDDEN[kind]), marks=False)


@pytest.mark.parametrize("kind", APART)
def test_what_marks_do_not_hide(kind: str) -> None:
    model, words = APART[kind]
    with pytest.raises(UnprovenError, match=words):
        proof(Reader(model))


def test_places_among_whole_numbers() -> None:
    model = Reader(
        lambda x, m, ids: ids.argmax(1) + (ids - 9).int().min(1)[1] + x[..., 0].argmax(1), ids=True
    )
    found = proof(model)
    for n in (2, 5, FULL):
        torch.testing.assert_close(answered(model, found, n), model(*inputs(n)))


def test_what_no_table_is_looked_up_by_is_not_marked() -> None:
    module = Net(lambda net, ids, mask: (ids[..., None] * mask[:, None]).float().softmax(-1))
    with pytest.raises(UnprovenError, match="-inf"):
        proof(module)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table, ids: table(ids[:, :2]),  # the others may be any numbers
        lambda table, ids: table(ids.select(0, 0))[None],
        lambda table, ids: table(ids.int()),  # in which a mark is 0
    ],
)
def test_tokens_of_which_some_are_not_looked_up_are_not_marked(look_up: Any) -> None:
    class Part(Reader):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            looked_up: Tensor = look_up(self.table, ids)
            return looked_up.sum() + ids.max()

    with pytest.raises(UnprovenError):
        proof(Part(HIDDEN["sum"]))


def test_whole_numbers_without_a_sign_are_summed() -> None:
    """The least of them is 0, which hides padding from a sum and from the largest."""
    module = Net(lambda net, ids, mask: mask.to(torch.uint8).sum(1) + mask.to(torch.uint8).amax(1))
    assert proof(module, marks=False).marked is None


def test_a_model_with_a_state_is_not_marked() -> None:
    class Counting(Reader):
        def __init__(self) -> None:
            super().__init__(lambda x, m: x.sum(1))
            self.register_buffer("calls", torch.zeros(()))

        calls: Tensor

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(ids, mask)

    with pytest.raises(UnprovenError):
        proof(Counting())


def test_lookups_are_still_known_to_read_indices() -> None:
    """So that numbers that kernels are tried on stay in the table."""
    model = Reader(HIDDEN["sum"])
    found = proof(model)
    assert found.marked is not None
    graph = with_marks(captured(model, N), [found.marked]).graph
    domain = domains(graph)[graph.call_inputs[0].name]
    assert (domain.low, domain.high) == (0, 20)


@pytest.mark.parametrize("dtype", MARKS)
def test_marks_are_no_index(dtype: torch.dtype) -> None:
    """A call that has one for a token is one that the model refuses."""
    model = Reader(HIDDEN["sum"])
    ids, mask = inputs(N)
    ids = ids.to(dtype)
    ids[0, 0] = MARKS[dtype]
    assert ids[0, 0] == MARKS[dtype] and math.log2(-MARKS[dtype]).is_integer()
    with pytest.raises(IndexError):
        model(ids, mask)
