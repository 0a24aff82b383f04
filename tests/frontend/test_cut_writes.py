"""Composites that write to what they make, in models that are cut, give what they give in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import anabranch
from anabranch.errors import CaptureError
from anabranch.frontend.cut_writes import write_values

OPTIONS: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
COMPOSITES: dict[str, Callable[[Tensor], Any]] = {
    "circular padding": lambda x: F.pad(x[None], (1, 2), mode="circular"),
    "vander": lambda x: torch.vander(x[0]),
    "hinge": lambda x: F.hinge_embedding_loss(x, torch.ones_like(x)),
    "cosine": lambda x: F.cosine_embedding_loss(x, x + 1, torch.ones(4)),
    "quantile": lambda x: torch.quantile(x, 0.5, dim=1),
    "stft": lambda x: torch.stft(x.flatten(), 8, window=torch.ones(8), return_complex=True).abs(),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_cut_model_computes_what_composites_write(name: str) -> None:
    def model(x: Tensor) -> tuple[Any, ...]:
        return COMPOSITES[name](x), x[x > 0], x @ x.mT, (x @ x.mT).relu()

    fast = anabranch.compile(model, (torch.randn(4, 4),), **OPTIONS)
    for seed in range(3):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        for result, wanted in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(result, wanted)


def through_views(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.ones(3, 4)
    turned, row = y.t(), y[1]
    turned[2:].mul_(x[0, 0])  # is seen in all that was taken before
    row.copy_(x[0])
    y.view(12)[::5].add_(1)
    y.unsqueeze(0).diagonal(0, 1, 2).neg_()
    z = y + 1
    y.squeeze_(0).transpose_(0, 1)[0].fill_(7)
    return y, z, turned, row


def test_views_show_what_is_written_to_others_of_them() -> None:
    x = torch.randn(3, 4)
    module = make_fx(through_views, tracing_mode="fake")(x)
    with _mode(module):
        write_values(module.graph)
    module.recompile()
    assert not any(
        node.target._schema.is_mutable
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )
    other = torch.randn(3, 4)
    for result, wanted in zip(module(other), through_views(other), strict=True):
        assert torch.equal(result, wanted)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "aten.unfold": lambda y: y.unfold(0, 2, 2).add_(1),
    "built-in function getitem": lambda y: y.unbind(0)[1].add_(1),
    "aten.sin.out": lambda y: torch.sin(y[:1], out=y[1:2]),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_is_no_value_is_refused(name: str) -> None:
    def through_it(x: Tensor) -> Tensor:
        y = x * 2
        WRITES[name](y)
        return y

    module = make_fx(through_it, tracing_mode="fake")(torch.randn(4))
    with _mode(module), pytest.raises(CaptureError, match=f"writes by <?{name}"):
        write_values(module.graph)


def _mode(module: fx.GraphModule) -> Any:
    """The mode of the tensors without numbers that the trace has noted."""
    return next(iter(module.graph.nodes)).meta["val"].fake_mode
