"""Rows of a batch: what keeps them apart is proved to, what mixes them is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontend.models import Net, f
from torch import nn
from torch.utils._pytree import tree_leaves

from anabranch.errors import OptionError
from anabranch.frontend import capture
from anabranch.frontend.batch_independence import batched_results
from anabranch.models.zoo import ZOO

B = 3


def proved(model: Any, *args: torch.Tensor) -> tuple[int, ...]:
    module = model if isinstance(model, nn.Module) else Net(lambda net, *given: model(*given))
    wide = tuple(torch.cat([x, x[-1:]]) for x in args)
    module = module.eval()
    return batched_results(capture(module, args), capture(module, wide), B, B + 1)


X, Y = f(B, 4, 6), f(B, 4, 6)
W, TABLE = f(6, 5), f(10, 6)
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
    lambda x: x + torch.arange(x.shape[0])[:, None, None],
    lambda x: x[:, :, 0].expand(2, 4, 4) if x.dim() == 2 else x[:, :1].expand(-1, 4, 6),
    lambda x: torch.gather(x, 2, x.argsort(2)).scatter(1, torch.zeros_like(x).long(), 1.0),
    *(heads, merged, last_of, ENCODER, lambda x: FIRST(x)[0]),
    lambda x: LAST(x.transpose(0, 1))[0].transpose(0, 1),
]
MIXED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: x - x.mean(0), r"mean.*along the batch"),
    (lambda x: x / x.norm(), "norm"),
    (lambda x: x.softmax(0), "softmax"),
    (lambda x: x.cumsum(0), "cumsum"),
    (lambda x: x / x.shape[0], "numbers depends on the size"),
    (lambda x: x * torch.full((x.shape[0], 1, 1), 1 / x.shape[0]), "numbers depends"),
    (lambda x: x * torch.linspace(0, 1, x.shape[0])[:, None, None], "numbers depends"),
    (lambda x: x + (x.shape[0] - torch.arange(x.shape[0]))[:, None, None], "numbers depends"),
    (lambda x: x.flip(0), "flip"),
    (lambda x: x.roll(1, 0), "roll"),
    (lambda x: x[:1] + x, "slice"),
    (lambda x: x[0], "select"),
    (lambda x: x[-1:] * 2, "slice"),
    (lambda x: torch.cat([x, x]), "cat"),
    (lambda x: x.repeat(2, 1, 1), "repeat"),
    (lambda x: x.reshape(4, -1, 6), "apart|something else"),
    (lambda x: x.transpose(0, 1).reshape(-1, 6), "axis 0, and not first there"),
    (lambda x: x.transpose(0, 1), "axis 1, and not first"),
    (lambda x: x.transpose(0, 1).reshape(-1, 6) + x.reshape(-1, 6), "different orders"),
    (lambda x: x.transpose(0, 1).reshape(x.shape[0], 4, 6) + x, "something else"),
    (lambda x: x[:, :, 0] @ x[:, :, 0].t(), "mm"),
    (lambda x: x[:, 0].t() @ x[:, 0], "mm"),
    (lambda x: torch.einsum("bij,ckj->bcik", x, x).sum(1), "several axes|different|along"),
    (lambda x: x.sort(0).values, "sort"),
    (lambda x: x[x[:, 0, 0].abs().long().clamp(0, 1)], "picks rows of the batch"),
    (lambda x: x[torch.arange(x.shape[0]) * 0], "picks rows of the batch"),
    (lambda x: x.index_select(0, torch.zeros(x.shape[0]).long()), "picks rows"),
    (lambda x: F.scaled_dot_product_attention(*3 * [x.transpose(0, 1)]), "sequences"),
    (lambda x: F.batch_norm(x, None, None, training=True), "training|mean of the batch|mix"),
    (lambda x: LAST(x)[0], "not the axis of its sequences|something else"),
    (lambda x: (x, x.shape[0]), "something else for another batch"),
    (lambda x: x.relu() if x.shape[0] == B else x.tanh(), "something else for another batch"),
    (lambda x: x + torch.randn(x.shape[0], 1, 1), "numbers depends"),
    (lambda x: F.conv2d(x, torch.ones(2, x.shape[0], 1, 1)), "mix|something else"),
    (lambda x: torch.linalg.inv(x[:, :4, :4]), "nobody knows"),
    (lambda x: torch.vander(x[:, 0, 0]), "nobody knows|along|mix"),
    (lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)), "pad"),
    (lambda x: x.add_(1), "writes to its inputs"),
    (lambda x: torch.as_strided(x, (x.shape[0], 4), (24, 1)), "mix"),
]


@pytest.mark.parametrize("number", range(len(APART)))
def test_rows_that_do_not_meet(number: int) -> None:
    """And the model agrees: other rows are changed, and the first one is as it was."""
    model = APART[number]
    found = proved(model, X)
    changed = torch.cat([X[:1], f(B - 1, 4, 6)])
    with torch.no_grad():
        one, other = (tree_leaves(model(x)) for x in (X, changed))
    for times, a, b in zip(found, one, other, strict=True):
        assert times and not torch.equal(a, b)
        torch.testing.assert_close(a[:times], b[:times])


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_rows_that_meet(number: int) -> None:
    model, words = MIXED[number]
    with pytest.raises(OptionError, match=words):
        proved(model, X)


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
    with pytest.raises(OptionError, match="mix"):
        proved(lambda x: F.avg_pool2d(x.transpose(0, 2), 2).transpose(0, 2), f(B, 4, 8, 8))


def test_several_inputs() -> None:
    table = nn.Embedding(10, 6)
    assert proved(lambda x, i: (x + table(i).mean(1, keepdim=True), i), X, INDEX) == (True, True)
    assert proved(lambda x, y: torch.bmm(x, y.transpose(1, 2)), X, Y) == (True,)
    with pytest.raises(OptionError, match="axes"):
        proved(lambda x, y: x.sum(1)[:, None] + y.sum(1)[None], X, Y)


@pytest.mark.parametrize("name", ["squeezenet", "bert_base"])
def test_the_zoos_networks(name: str) -> None:
    network = ZOO[name]
    assert all(proved(network.build("tiny"), *network.inputs("tiny", B)))
