"""Padding: where rows of an axis stay apart, or masks keep them so, it is proved harmless; all else
is refused, with the operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontend.models import Net, f
from torch import nn
from torch.utils._pytree import tree_leaves

from anabranch.errors import CaptureError
from anabranch.frontend import capture
from anabranch.frontend.padded_tensors import padded, without_padding
from anabranch.frontend.padding_proof import PaddingProof, UnprovenError, padding_proof
from anabranch.models.zoo import ZOO

B = 3


def proof(model: Any, *args: torch.Tensor) -> PaddingProof:
    module = model if isinstance(model, nn.Module) else Net(lambda net, *given: model(*given))
    wide = tuple(torch.cat([x, x[-1:]]) for x in args)
    module, rows = module.eval(), [[(0, 1, 1)]] * len(args)
    return padding_proof(capture(module, args), capture(module, wide), (B, B + 1), rows)


def proved(model: Any, *args: torch.Tensor) -> tuple[int, ...]:
    """How many indices of its axis each result has for a row, where rows stay apart."""
    found = proof(model, *args)
    assert found.apart and found.least == 1
    return tuple(one[0][1] * one[0][2] if one else 0 for one in found.results)


X, Y = f(B, 4, 6), f(B, 4, 6)
W, TABLE, WINDOW = f(6, 5), f(10, 6), f(6, 6, 3)
INDEX = torch.tensor([[1, 2], [3, 0], [5, 4]])
IMAGE = f(B, 4, 8, 8)
ENCODER = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()
FIRST = nn.GRU(6, 5, batch_first=True)
LAST = nn.LSTM(6, 5)


def heads(x: torch.Tensor) -> torch.Tensor:
    q = x.view(B if x.shape[0] == B else B + 1, 4, 2, 3).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, q, q)
    return y.transpose(1, 2).reshape(x.shape)


def merged(x: torch.Tensor) -> torch.Tensor:
    q = x.view(-1, 4, 2, 3).permute(0, 2, 1, 3).reshape(-1, 4, 3)
    return (q @ q.transpose(1, 2)).softmax(-1).view(x.shape[0], 2, 4, 4).sum(1)


def last_of(x: torch.Tensor) -> torch.Tensor:
    at = x[:, :, 0].argmax(1)
    return x[torch.arange(x.shape[0]), at]


APART: list[Callable[..., Any]] = [
    lambda x: x + TABLE.sum().sort(-1)[1],  # the place of a number alone
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x.softmax(-1) @ W,
    lambda x: (x.sum((1, 2)), x.amax(-1), x.var(1), x.max(2).values),
    lambda x: torch.cat([x, x.flip(1)], 2).view(x.shape[0], -1).relu(),
    lambda x: x.transpose(1, 2) + torch.ones(x.shape[0], 1, 1) * 2,
    lambda x: x.reshape(-1, 6) @ W,
    lambda x: (x.reshape(-1, 6) @ W).view(x.shape[0], 4, 5).cumsum(1),
    lambda x: x + torch.zeros(4, 6) + torch.arange(4)[:, None],
    lambda x: x.permute(1, 0, 2).permute(1, 2, 0)[:, ::2].unsqueeze(1).squeeze(1),
    lambda x: torch.stack([x[:, 0], x[:, 1]], 1).unbind(1),
    lambda x: torch.where(x > 0, x, torch.full((x.shape[0], 1, 1), 3.0)),
    lambda x: F.layer_norm(x, (6,)) * x.sigmoid() + F.pad(x, (1, -1)),
    lambda x: x[:, [0, 2]].sort(-1).indices,
    lambda x: torch.einsum("bij,bkj->bik", x, x).tril(),
    lambda x: TABLE[x.argmax(-1)].unbind(1),
    lambda x: x[:, :, 0].expand(2, 4, 4) if x.dim() == 2 else x[:, :1].expand(-1, 4, 6),
    lambda x: torch.gather(x, 2, x.argsort(2)).scatter(1, torch.zeros_like(x).long(), 1.0),
    *(heads, merged, ENCODER, lambda x: FIRST(x)[0]),
    lambda x: LAST(x.transpose(0, 1))[0].transpose(0, 1),
]
HARMLESS: list[Callable[..., Any]] = [
    lambda x: x / x.norm(),
    lambda x: x.cumsum(0),
    lambda x: (x[:1] + x, x[0]),
    lambda x: (x[:, 0].t() @ x[:, 0], x.sum(0)),
    lambda x: x[:, :, 0] @ x[:, :, 0].t(),
    lambda x: x.transpose(0, 1).reshape(-1, 6),
    lambda x: LAST(x)[0],
    lambda x: x + torch.arange(x.shape[0])[:, None, None],
    lambda x: x + TABLE[: x.shape[0], None],
    last_of,
    lambda x: x.abs().amax((0, 1)) if x.dim() == 2 else x.cumprod(0),
]
"""Rows meet, or depend on their number, and rows of padding change nothing of the others."""
MIXED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: x - x.mean(0), r"mean.*works along the padded axis"),
    (lambda x: x.exp().sum(0), "padding is not 0"),
    (lambda x: x.softmax(0), "padding is not -inf"),
    (lambda x: x / x.shape[0], "numbers depends on the size"),
    (lambda x: x * torch.full((x.shape[0], 1, 1), 1 / x.shape[0]), "numbers depends"),
    (lambda x: x * torch.linspace(0, 1, x.shape[0])[:, None, None], "numbers depends"),
    (lambda x: x + (x.shape[0] - torch.arange(x.shape[0]))[:, None, None], "numbers depends"),
    (lambda x: x.flip(0), "flip"),
    (lambda x: x.roll(1, 0), "roll"),
    (lambda x: x[-1:] * 2, "slice.*from the last"),
    (lambda x: x[-1], "select.*from the last"),
    (lambda x: torch.cat([x, x]), "cat"),
    (lambda x: x.repeat(2, 1, 1), "repeat"),
    (lambda x: x.reshape(4, -1, 6), "apart|something else"),
    (lambda x: x.transpose(0, 1).reshape(-1, 6) + x.reshape(-1, 6), "different orders"),
    (lambda x: x.transpose(0, 1).reshape(x.shape[0], 4, 6) + x, "something else"),
    (lambda x: torch.einsum("bij,ckj->bcik", x, x).exp().sum(1), "padding is not 0"),
    (lambda x: x.sort(0).values, "sort"),
    (lambda x: (x * torch.zeros(x.shape[0], 1, 1)).norm(-1.0, 0), "works along|not"),
    (lambda x: x[x[:, 0, 0].abs().long().clamp(0, 1)], "picks rows of the padded axis"),
    (lambda x: x[torch.arange(x.shape[0]) * 0], "picks rows of the padded axis"),
    (lambda x: x.index_select(0, torch.zeros(x.shape[0]).long()), "picks rows"),
    (lambda x: F.scaled_dot_product_attention(*3 * [x.transpose(0, 1)]), "attends to the padding"),
    (lambda x: F.batch_norm(x, None, None, training=True), "works along"),
    (lambda x: LAST(x)[1][0], "last row"),
    (lambda x: LAST(x)[1][0] * 2, "last row"),
    (lambda x: x.argmax(), "argmax"),
    (lambda x: (x, x.shape[0]), "something else for another size"),
    (lambda x: x.relu() if x.shape[0] == B else x.tanh(), "something else for another size"),
    (lambda x: x + torch.randn(x.shape[0], 1, 1), "numbers depends"),
    (
        lambda x: F.conv2d(x, torch.ones(2, x.shape[0], 1, 1)),
        "depends on the padded|something else",
    ),
    (lambda x: torch.linalg.inv(x[:, :4, :4]), "nobody knows"),
    (lambda x: torch.vander(x[:, 0, 0]), "nobody knows|from the last"),
    (lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)), "pad"),
    (lambda x: x.add_(1), "writes to its inputs"),
    (lambda x: torch.as_strided(x, (x.shape[0], 4), (24, 1)), "nobody knows|multiple"),
]


@pytest.mark.parametrize("number", range(len(APART)))
def test_rows_that_do_not_meet(number: int) -> None:
    """And the model agrees: other rows are changed, and the first one is as it was."""
    model = APART[number]
    found = proved(model, X)
    changed = torch.cat([X[:1], 1 - 2 * X[1:]])
    with torch.no_grad():
        one, other = (tree_leaves(model(x)) for x in (X, changed))
    for times, a, b in zip(found, one, other, strict=True):
        assert times and not torch.equal(a, b)
        torch.testing.assert_close(a[:times], b[:times])


def check(model: Any, found: PaddingProof, at: Any, *args: torch.Tensor, full: int = 5) -> None:
    """The model itself on padded inputs, cut, with what it makes of the call alone. What is added
    is as a call adds it, or is made of other numbers yet."""
    size = next(x.shape[axis] for x, rows in zip(args, at, strict=True) for axis, _, _ in rows)
    for other in (False, True):
        whole = []
        for place, (x, rows) in enumerate(zip(args, at, strict=True)):
            number = found.number(place, x.dtype)
            for one in rows:
                x = padded(x, one, size, full, number)
            if other and rows and number is None and x.is_floating_point():
                x = x.clone()
                x.narrow(rows[0][0], size, full - size).uniform_(-3, 3)
            whole.append(x)
        with torch.no_grad():
            want, got = tree_leaves(model(*args)), tree_leaves(model(*whole))
        for rows, a, b in zip(found.results, want, got, strict=True):
            for one in rows:
                b = without_padding(b, one, size, full)
            torch.testing.assert_close(b, a)


@pytest.mark.parametrize("number", range(len(HARMLESS)))
def test_rows_that_meet_harmlessly(number: int) -> None:
    model = HARMLESS[number]
    found = proof(model, X)
    assert not found.apart
    check(model, found, [[(0, 1, 1)]], X)


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_rows_that_meet(number: int) -> None:
    model, words = MIXED[number]
    with pytest.raises(UnprovenError, match=words):
        proof(model, X)


@pytest.mark.parametrize(
    "model",
    [lambda x: x * torch.rand(6), lambda x: x * torch.bernoulli(torch.full((4, 1), 0.5))],
)
def test_a_number_that_all_rows_share_is_drawn_once(model: Any) -> None:
    """Pieces of a call would each draw their own."""
    assert not proof(model, X).apart


class Writing(nn.Module):
    """Leaves what `run` gives in its buffer."""

    def __init__(self, run: Callable[..., torch.Tensor], shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.run, self.last = run, LAST
        self.register_buffer("left", torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left.copy_(self.run(x))  # type: ignore[operator] # a buffer
        return x.exp()


def test_states_without_rows_are_harmless_and_never_written_in_pieces() -> None:
    assert proof(nn.ReLU(), X).apart
    for run in (lambda x: x[0, 0, 0] + 1, lambda x: x.sum(), lambda x: torch.tensor(2.0)):
        found = proof(Writing(run), X)
        assert not found.apart
        check(nn.ReLU(), found, [[(0, 1, 1)]], X)
    assert any(proof(Writing(lambda x: x.sum()), X).zeros)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Writing(lambda x: LAST(x)[1][0], (1, 4, 5)), "writes to left, and padding"),
        (Writing(lambda x: x.mean()), "works along"),
        (Writing(lambda x: x.abs().max()), "padding is not"),
        (Writing(lambda x: x[-1, 0, 0]), "from the last"),
    ],
)
def test_states_that_are_made_of_padding(model: nn.Module, words: str) -> None:
    """Also by an operator for which copies of a row do, where only a check reads it."""
    with pytest.raises(UnprovenError, match=words):
        proof(model, X)


def causal(x: torch.Tensor) -> torch.Tensor:
    """By hand: a triangle of -inf on the scores."""
    scores = x @ x.transpose(1, 2)
    hidden = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)
    return (scores + hidden).softmax(-1) @ x


def triangular(x: torch.Tensor) -> torch.Tensor:
    """By a mask that is False above the diagonal."""
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(x, x, x, attn_mask=seen)


def counted(x: torch.Tensor) -> torch.Tensor:
    """By row numbers, as transformers does, with positions."""
    rows = torch.arange(x.shape[1])
    seen = (rows[None, :] <= rows[:, None])[None]
    x = x + POSITIONS[rows]
    return torch.where(seen, x @ x.transpose(1, 2), -math.inf).softmax(-1) @ x


def masked(x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Attention, sums and means of what a mask shows."""
    y = F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, :])
    weights = mask[..., None].to(x.dtype)
    return y, (y * weights).sum(1) / weights.sum(1), y[:, 0]


def hidden(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None, :], -math.inf)
    return scores.softmax(-1) @ x


def both(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(x.shape[1])
    seen = (rows[None, :] <= rows[:, None])[None] & (mask.to(torch.int64)[:, None, :] == 1)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=seen)


def looked_up(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mask by index, as transformers makes it."""
    batch = torch.arange(x.shape[0])[:, None, None]
    shown = mask[batch, torch.arange(x.shape[1])[None, None, :]].expand(-1, x.shape[1], -1)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=shown)


POSITIONS = f(16, 6)
MASK = torch.tensor([[True] * 4, [True, True, False, False], [True] * 4])
DECODER = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()
WEIGHING = nn.MultiheadAttention(6, 2, batch_first=True).eval()
"""By operators, for its weights are a result, too."""
SEQUENCES: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (X,)),
    *((causal, (X,)), (counted, (X,)), (triangular, (X,))),
    (lambda x: F.conv1d(x.mT, WINDOW, padding=1).mT * F.conv1d(x.mT, WINDOW[..., :1]).mT, (X,)),
    *((masked, (X, MASK)), (hidden, (X, MASK)), (both, (X, MASK)), (looked_up, (X, MASK))),
    (lambda x: LAST(x.transpose(0, 1))[0], (X,)),
    (lambda x: (x + POSITIONS[: x.shape[1]]).relu(), (X,)),
    (lambda x: (x[:, 0], x.tril(), F.layer_norm(x, (6,)).flatten(0, 1)), (X,)),
    (lambda x, m: DECODER(x, src_key_padding_mask=~m), (X, MASK)),
    (lambda x, m: x.masked_fill(~m[..., None], -math.inf).amax(1), (X, MASK)),
    (lambda x, m: WEIGHING(x, x, x, key_padding_mask=~m)[0], (X, MASK)),
    # Masks that are True where there is padding.
    (lambda x, m: DECODER(x, src_key_padding_mask=m), (X, ~MASK)),
    (lambda x, m: (hidden(x, ~m), x.masked_fill(m[..., None], 0).sum(1)), (X, ~MASK)),
]
LEAKING: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = [
    (lambda x: F.scaled_dot_product_attention(x, x, x), (X,), "attends to the padding"),
    (lambda x, m: (x + m[..., None]).mean(1), (X, MASK), "works along"),
    (lambda x, m: (x @ x.mT + torch.where(m, 0.0, -1e4)[:, None]).softmax(-1), (X, MASK), "-inf"),
    (
        lambda x: F.conv1d(x.transpose(1, 2), WINDOW, stride=2, padding=1),
        (X,),
        "works along|multiple",
    ),
    (
        lambda x: F.conv1d(F.conv1d(x.transpose(1, 2), WINDOW, padding=1), WINDOW, padding=1),
        (X,),
        "is not 0",
    ),
    (
        lambda x, m: torch.baddbmm(
            torch.where(m, 0.0, -math.inf)[:, None], x, x.mT, beta=0
        ).softmax(-1),
        (X, MASK),
        "-inf",
    ),
    (
        lambda x: (x @ x.mT + torch.full((4, 4), -math.inf).triu(1)).softmax(-1),
        (X,),
        "could not capture",
    ),
    (lambda x: x[:, : x.shape[1] // 2], (X,), "multiple"),
    (lambda x: torch.tril(x @ x.mT, 1).exp().sum(-1), (X,), "padding is not 0"),
    (lambda x: nn.GRU(6, 3, bidirectional=True, batch_first=True)(x)[0], (X,), "from its end"),
]


def sequence(model: Any, args: tuple[torch.Tensor, ...]) -> PaddingProof:
    module = Net(lambda net, *given: model(*given)).eval()
    wide = tuple(torch.cat([x] * 2 + [x[:, :1]], 1) for x in args)
    rows = [[(1, 1, 1)]] * len(args)
    return padding_proof(capture(module, args), capture(module, wide), (4, 9), rows)


@pytest.mark.parametrize("number", range(len(SEQUENCES)))
def test_sequences_that_masks_keep_apart(number: int) -> None:
    model, args = SEQUENCES[number]
    check(model, sequence(model, args), [[(1, 1, 1)]] * len(args), *args, full=7)


def test_masks_are_padded_with_true_where_that_hides_padding() -> None:
    assert not sequence(hidden, (X, MASK)).true_masks
    assert sequence(lambda x, m: hidden(x, ~m), (X, ~MASK)).true_masks
    with pytest.raises(UnprovenError, match="-inf"):  # one mask of each kind
        sequence(lambda x, m, n: hidden(x, m) + hidden(x, ~n), (X, MASK, ~MASK))


@pytest.mark.parametrize("number", range(len(LEAKING)))
def test_sequences_whose_padding_leaks(number: int) -> None:
    model, args, words = LEAKING[number]
    with pytest.raises((UnprovenError, CaptureError), match=words):
        sequence(model, args)


TYPES = torch.tensor([0, 9, 3, 1] * 4)
INSIDE: list[Callable[..., Any]] = [
    lambda x, m: TABLE[m.int().cumsum(1) * m],  # 0 in padding
    lambda x, m: TABLE[x.argmax(-1)],
    lambda x, m: TABLE[x.argmax(-1).cumsum(1) % 10],
    lambda x, m: F.embedding(x.argmax(-1).cumsum(1).clamp(0, 9), TABLE),
    lambda x, m: TABLE[torch.arange(x.shape[1]) + 1],  # as each plan was tried
    lambda x, m: F.embedding(m.long().cumsum(1), TABLE),  # the same as the last row's
    lambda x, m: TABLE[TYPES.expand(B, -1).gather(1, (x[..., 0] >= 0).cumsum(1))],
    lambda x, m: torch.cat([torch.empty(B, 0, 6), x], 1).gather(2, m.long()[..., None]),
    lambda x, m: x.gather(2, m.long()[..., None]) // (m.long()[..., None] + 1),
]
OUTSIDE: list[tuple[Callable[..., Any], str]] = [
    (lambda x, m: TABLE[x[0, 0].argmax() + torch.arange(x.shape[1])], "index.Tensor.*outside"),
    (lambda x, m: F.embedding((x[..., 0] >= 0).cumsum(1) * 2, TABLE), "embedding.*outside"),
    (lambda x, m: TABLE.index_select(0, x[0].argmax(-1).cumsum(0)), "index_select.*outside"),
    (lambda x, m: TABLE[:9][(x[..., 0] >= 0).cumsum(1)], "index.*outside"),
    (lambda x, m: TABLE[(x[..., 0] >= 0).cumsum(1) + 1], "index.*outside"),
    (lambda x, m: F.embedding((~m).cumsum(1) * ~m * m - 1, TABLE), "embedding.*outside"),
    (lambda x, m: x.gather(1, x.argmax(-1, True).clamp(0, 3)), "picks rows of the padded axis"),
    (lambda x, m: x.gather(2, x.argmax(-1, True).cumsum(1)), "gather.*outside"),
    (lambda x, m: TABLE[x.argmax(-1).cumsum(1) % 11], "outside"),
    (lambda x, m: TABLE[x.argmax(-1).cumsum(1).clamp(-1, 9)], "outside"),
    (lambda x, m: TABLE[m.int().cumsum(1) * m + 10], "outside"),
    (lambda x, m: 60 // (5 - x.argmax(-1).cumsum(1)), "divide by 0"),
]


@pytest.mark.parametrize("number", range(len(INSIDE)))
def test_indices_that_lie_inside_in_padding_too(number: int) -> None:
    model, args = INSIDE[number], (X, MASK)
    check(model, sequence(model, args), [[(1, 1, 1)]] * len(args), *args, full=7)


def test_what_counts_rows_lies_inside_up_to_so_many() -> None:
    assert sequence(lambda x: TABLE[(x[..., 0] >= 0).cumsum(1)], (X,)).most == 9
    twice = sequence(lambda x: TABLE[(x[..., 0] >= 0).cumsum(1) - 2].cumsum(1), (X,))
    assert twice.most == 11 and not twice.allows(4, 12) and twice.allows(4, 11)
    assert sequence(lambda x, m: TABLE[m.int().cumsum(1)], (X, MASK)).most is None


@pytest.mark.parametrize("number", range(len(OUTSIDE)))
def test_indices_that_may_lie_outside_in_padding(number: int) -> None:
    model, words = OUTSIDE[number]
    with pytest.raises(UnprovenError, match=words):
        sequence(model, (X, MASK))


def test_a_call_has_the_rows_that_are_picked() -> None:
    assert sequence(lambda x: x[:, 2], (X,)).least == 3
    assert sequence(lambda x: x[:, :2] + 1, (X,)).least == 2


def test_parts_of_rows_that_lie_side_by_side() -> None:
    def pairs(x: torch.Tensor) -> Any:
        y = x.flatten(0, 1)
        return y[::2], y[3::4] * y[::4], y[1::2].relu()[1::2]

    check(pairs, proof(pairs, X), [[(0, 1, 1)]], X)
    for leaking in (lambda x: x.flatten(0, 1)[5::4], lambda x: x.flatten(0, 1)[::3]):
        with pytest.raises(UnprovenError):
            proof(leaking, X)


def test_images() -> None:
    net = nn.Sequential(
        *(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.GroupNorm(2, 6), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(6, 2),
    )
    assert proved(net, IMAGE) == (True,)
    grid = F.affine_grid(torch.eye(2, 3).expand(1, 2, 3), [1, 4, 8, 8], align_corners=False)

    def warp(x: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid.expand(x.shape[0], -1, -1, -1), align_corners=False)

    assert proved(warp, IMAGE) == (True,)
    assert proved(lambda x: F.instance_norm(x), IMAGE) == (True,)
    with pytest.raises(UnprovenError, match="works along"):
        proved(lambda x: F.avg_pool2d(x.transpose(0, 2), 2).transpose(0, 2), f(B, 4, 8, 8))


def test_several_inputs() -> None:
    table = nn.Embedding(10, 6)
    assert proved(lambda x, i: (x + table(i).mean(1, keepdim=True), i), X, INDEX) == (True, True)
    assert proved(lambda x, y: torch.bmm(x, y.transpose(1, 2)), X, Y) == (True,)
    pairs = proof(lambda x, y: x.sum(1)[:, None] + y.sum(1)[None], X, Y)
    assert pairs.results == (((0, 1, 1), (1, 1, 1)),) and not pairs.apart


@pytest.mark.parametrize("name", ["squeezenet", "bert_base"])
def test_the_zoos_networks(name: str) -> None:
    network = ZOO[name]
    assert all(proved(network.build("tiny"), *network.inputs("tiny", B)))
