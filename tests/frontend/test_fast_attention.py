"""torch.nn's fast path of attention by ordinary operators, against its own operators."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.frontend.fast_attention import (
    FAST_ATTENTION,
    native_multi_head_attention,
    transformer_encoder_layer,
)
from anabranch.frontend.from_torch import capture
from anabranch.integrations import dynamo
from anabranch.ir.ops import ATTENTION

BATCH, TOKENS, CHANNELS, HEADS = 3, 5, 16, 2
FAST = {str(op) for op in FAST_ATTENTION}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    torch.manual_seed(0)


def padding() -> Tensor:
    """The last sequence is hidden altogether."""
    return torch.arange(TOKENS) >= torch.tensor([5, 3, 0])[:, None]


def causal() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


def both() -> Tensor:
    whole = padding()[:, None, None] | causal()
    return whole.expand(BATCH, HEADS, TOKENS, TOKENS)


MASKS: dict[str, tuple[Tensor | None, int | None]] = {
    "none": (None, None),
    "of queries": (causal(), 0),
    "of queries, whole rows": (causal().logical_not(), 0),
    "of keys": (padding(), 1),
    "of both": (both(), 2),
    "of both, said to be of queries": (both(), 0),
    "floats, of which each but 0 hides": (torch.where(padding(), -torch.inf, causal()[:3] / 8), 1),
}


def attention_arguments(x: tuple[Tensor, Tensor, Tensor]) -> tuple[Any, ...]:
    mha = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)
    weights = mha.in_proj_weight, torch.randn(3 * CHANNELS), mha.out_proj.weight
    return *x, CHANNELS, HEADS, *weights, torch.randn(CHANNELS)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weights", [(False, True), (True, True), (True, False)], ids=str)
def test_attention_has_the_numbers_of_the_operator(mask: str, weights: tuple[bool, bool]) -> None:
    x, y = torch.randn(BATCH, TOKENS, CHANNELS), torch.randn(BATCH, TOKENS, CHANNELS)
    for query, key, value in ((x, x, x), (x, y, y), (x, y, x)):
        hidden, mask_type = MASKS[mask]
        arguments = *attention_arguments((query, key, value)), hidden, *weights, mask_type
        with torch.no_grad():
            wanted = torch._native_multi_head_attention(*arguments)
            result = native_multi_head_attention(*arguments)
        torch.testing.assert_close(result[0], wanted[0], equal_nan=True)
        if weights[0]:
            torch.testing.assert_close(result[1], wanted[1], equal_nan=True)


def layer_arguments(layer: nn.TransformerEncoderLayer) -> tuple[Any, ...]:
    mha = layer.self_attn
    weights = mha.in_proj_weight, mha.in_proj_bias, mha.out_proj.weight, mha.out_proj.bias
    norms = layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias
    linear = layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias
    gelu = layer.activation_relu_or_gelu == 2
    return CHANNELS, HEADS, *weights, gelu, layer.norm_first, layer.norm1.eps, *norms, *linear


def encoder_layer(activation: str = "relu", norm_first: bool = False) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        CHANNELS, HEADS, 32, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


@pytest.mark.parametrize("mask", MASKS)
def test_a_layer_has_the_numbers_of_the_operator(mask: str) -> None:
    x = torch.randn(BATCH, TOKENS, CHANNELS)
    for activation, norm_first in itertools.product(("relu", "gelu"), (False, True)):
        arguments = x, *layer_arguments(encoder_layer(activation, norm_first)), *MASKS[mask]
        with torch.no_grad():
            wanted = torch._transformer_encoder_layer_fwd(*arguments)
            result = transformer_encoder_layer(*arguments)
        torch.testing.assert_close(result, wanted, equal_nan=True)


def test_nothing_in_gives_nothing() -> None:
    for x in (torch.randn(0, TOKENS, CHANNELS), torch.randn(BATCH, 0, CHANNELS)):
        assert transformer_encoder_layer(x, *layer_arguments(encoder_layer())).shape == x.shape
        result, weights = native_multi_head_attention(*attention_arguments((x, x, x)))
        assert result.shape == x.shape and weights.numel() == 0


@pytest.mark.parametrize(
    ("hidden", "mask_type", "says"),
    [
        (padding(), None, "Mask Type"),
        (padding(), 3, "Mask Type"),
        (padding(), 0, "mask_type == 0"),
        (causal(), 1, "mask_type == 1"),
        (causal(), 2, "mask_type == 2"),
    ],
)
def test_a_mask_that_is_not_of_its_type_is_refused(
    hidden: Tensor, mask_type: int | None, says: str
) -> None:
    x = torch.randn(BATCH, TOKENS, CHANNELS)
    arguments = *attention_arguments((x, x, x)), hidden, True, True, mask_type
    for attend in (torch._native_multi_head_attention, native_multi_head_attention):
        with pytest.raises(RuntimeError, match=says), torch.no_grad():
            attend(*arguments)


class Seen(Compiled):
    """Remembers the operators of each graph that was compiled."""

    operators: list[tuple[str, ...]]

    def add(self, *args: Any, **kwargs: Any) -> Any:
        Seen.operators.append(tuple(node.op for node in kwargs["captured"].graph.nodes))
        return super().add(*args, **kwargs)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("masks", [(), ("padding",), ("source",), ("padding", "source")], ids=str)
def test_encoders_are_compiled_as_ordinary_operators(
    masks: tuple[str, ...], grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "Compiled", Seen)
    monkeypatch.setattr(Seen, "operators", [], raising=False)
    torch._dynamo.reset()  # what other tests had of these modules decides nothing here
    given: dict[str, Any] = {}
    if "padding" in masks:
        given["src_key_padding_mask"] = padding()
    if "source" in masks:  # whoever does not say whether it is causal has Dynamo give up
        given |= {"mask": causal(), "is_causal": False}
    model = nn.TransformerEncoder(encoder_layer("gelu"), 2, enable_nested_tensor=False).eval()
    model.requires_grad_(False)
    fast = torch.compile(model, backend="anabranch", options={"search": "none"})
    x = torch.randn(BATCH, TOKENS, CHANNELS)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(fast(x, **given), model(x, **given), equal_nan=True)
    attention = {ATTENTION, "anabranch.scaled_dot_product_forward.default"}  # one of training steps
    graphs = Seen.operators
    assert sum(op in attention for ops in graphs for op in ops) == 2, graphs
    assert FAST.isdisjoint(op for ops in graphs for op in ops)


def test_one_product_makes_queries_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "Compiled", Seen)
    monkeypatch.setattr(Seen, "operators", [], raising=False)
    torch._dynamo.reset()
    fast = torch.compile(encoder_layer(), backend="anabranch", options={"search": "none"})
    with torch.inference_mode():
        fast(torch.randn(BATCH, TOKENS, CHANNELS))
    (ops,) = Seen.operators
    assert sum(op in ("aten.addmm.default", "aten.linear.default") for op in ops) == 4


class Direct(nn.Module):
    """Calls the operator itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.mha.in_proj_weight, self.mha.in_proj_bias
        of_result = self.mha.out_proj.weight, self.mha.out_proj.bias
        sizes = CHANNELS, HEADS
        return torch._native_multi_head_attention(
            x, x, x, *sizes, *weights, *of_result, hidden, mask_type=1
        )


def test_captured_models_have_ordinary_operators() -> None:
    model, x = Direct().eval(), torch.randn(BATCH, TOKENS, CHANNELS)
    operators = [node.op for node in capture(model, (x, padding())).graph.nodes]
    assert FAST.isdisjoint(operators)
    fast = anabranch.compile(
        model, (x, padding()), target="cpu", search="none", effort="fast", cache_dir=None
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(x, padding()), model(x, padding()), equal_nan=True)


def test_frozen_layers_in_a_step_have_ordinary_operators() -> None:
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = Direct().requires_grad_(False)
            self.student = nn.Linear(CHANNELS, CHANNELS)

    def loss(model: Any, x: Tensor) -> Any:
        hidden = causal()[:BATCH]  # of keys
        return (model.student(x) - model.teacher(x, hidden)[0]).square().mean()

    model, x = Distilled(), torch.randn(BATCH, TOKENS, CHANNELS)
    optimizer = torch.optim.SGD(model.student.parameters(), 0.1)
    step = anabranch.compile_step(
        model, loss, optimizer, (x,), target="cpu", search="none", effort="fast", cache_dir=None
    )
    assert FAST.isdisjoint(n.op for task in step.plan.tasks.tasks for n in task.body.nodes)
    wanted = loss(model, x)
    torch.testing.assert_close(step(x), wanted)
