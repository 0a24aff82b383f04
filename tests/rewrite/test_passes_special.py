"""Passes that change what NaN, an infinity or the sign of a zero gives say so: found by trying."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from tests.rewrite.graphs import captured
from tests.rewrite.passes.test_activation_results import CLIP, layer
from tests.rewrite.passes.test_log_softmax_parts import loss
from tests.rewrite.passes.test_sequence_pieces import layers
from tests.rewrite.passes.test_sums_of_products import summed as terms
from tests.rewrite.passes.test_zero_channels import Net, simple
from torch import Tensor, nn

import anabranch
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.pass_runner import Pass, Stepper
from anabranch.ir.text import parse_graph, text_graph
from anabranch.options import Options
from anabranch.rewrite.apply import apply_all
from anabranch.rewrite.conv_merge import merge
from anabranch.rewrite.conv_siblings import siblings
from anabranch.rewrite.passes import PASSES
from anabranch.rewrite.passes.sums_of_products import sums_of_products
from anabranch.rewrite.passes.zero_channels import zeros
from anabranch.rewrite.prove import NOT_USUAL, draw, spoilt, unlike_for
from anabranch.rewrite.rules import channel_padding, special
from anabranch.rewrite.simplify import FOR_GENERATED, simplify
from anabranch.trace import Trace

BEHIND = {"retype", "layout", "depthwise", "sequence_pieces", "round_factors"}
"""What runs after the table."""
CHECKS = {"functional", "retype", "dead_code"}
"""What computes nothing otherwise, or changes no graph here."""
DRAWS, SHARES = 4, (8, 1000)


@dataclass(slots=True)
class Recorder(Stepper):
    """A stepper that remembers what each pass made of which graph."""

    taken: list[tuple[str, Graph, Graph]] = field(default_factory=list)

    def step(self, graph: Graph, name: str, apply: Pass, tolerance: float = 0.0) -> Graph:
        after = Stepper.step(self, graph, name, apply, tolerance)
        if after is not graph:
            self.taken.append((name, graph, after))
        return after


class Of(nn.Module):
    """A function of inputs and of layers."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


IMAGE, ROWS, HEADS = torch.randn(1, 8, 6, 6), torch.randn(3, 8), torch.randn(1, 2, 5, 8)
IDS = torch.randint(0, 2, (4, 3))
MODELS: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
    (nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (IMAGE,)),
    (nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), (ROWS,)),
    (nn.BatchNorm2d(8), (IMAGE,)),
    (Of(lambda m, x: (m.conv(x) - 0.5) / 3, conv=nn.Conv2d(8, 8, 1)), (IMAGE,)),
    (nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Conv2d(8, 8, 1)), (IMAGE,)),
    (
        Of(lambda m, x, y: (x.mT @ y.mT).mT + torch.exp(x * 1).sum() * torch.exp(x).sum()),
        (torch.randn(4, 5), torch.randn(6, 4)),
    ),
    (Of(lambda m, x, y: torch.cat([torch.cat([x, -y], 1), y + 1], 1)), (ROWS, ROWS)),
    (
        Of(lambda m, x: m.lin(x).transpose(1, 2) * torch.arange(3.0), lin=nn.Linear(8, 4)),
        (torch.randn(2, 3, 8),),
    ),
    (
        Of(lambda m, q, k, v, at: torch.softmax(q @ k.mT / 8 + at, -1) @ v),
        (HEADS, HEADS[:, :, :1], HEADS[:, :, :1], torch.randn(1, 1, 5, 1)),
    ),
    (
        Of(
            lambda m, q, k, v: F.scaled_dot_product_attention(
                q, k.transpose(1, 2).contiguous().transpose(1, 2), v.repeat_interleave(2, 1)
            )
        ),
        (torch.randn(1, 4, 5, 8), torch.randn(1, 4, 5, 8), HEADS),
    ),
    (
        Of(
            lambda m, q, k, v: F.scaled_dot_product_attention(
                q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            )
        ),
        (torch.randn(1, 4, 5, 8), HEADS, HEADS),
    ),
    (nn.EmbeddingBag(9, 8, mode="sum"), (IDS,)),
    (nn.EmbeddingBag(9, 8, mode="mean", padding_idx=2), (IDS,)),
    (nn.EmbeddingBag(2, 40, mode="max"), (IDS,)),
]


@functools.cache
def graphs() -> tuple[Graph, ...]:
    """Of each model its graph, and those that were written."""
    return (*(captured(model, *args) for model, args in MODELS), layers(), layer(*CLIP), loss())


def doubled(graph: Graph) -> Graph:
    """The graph in double precision, in which all is evaluated."""
    text = text_graph(graph).replace(": f32[", ": f64[").replace("torch.float32", "torch.float64")
    values = [c.value for c in graph.constants]
    made = parse_graph(text)
    pairs = zip(made.constants, values, strict=True)
    held = (replace(c, value=None if v is None else v.to(c.type.dtype)) for c, v in pairs)
    return replace(made, constants=tuple(held))


def with_zeros(graph: Graph) -> Graph:
    """The graph whose last input is a constant of zeros."""
    *inputs, last = graph.inputs
    zero = Constant(last.name, last.type, "0", torch.zeros(last.type.shape, dtype=last.type.dtype))
    return replace(graph, inputs=tuple(inputs), constants=(zero,))


def with_constants(graph: Graph, kind: str, seed: int) -> Graph:
    """The graph with such numbers among its constants."""
    dice = torch.Generator().manual_seed(seed)

    def of(constant: Constant) -> Constant:
        value = constant.value
        return constant if value is None else replace(constant, value=spoilt(value, dice, kind))

    return replace(graph, constants=tuple(map(of, graph.constants)))


def taken(kind: str) -> list[tuple[str, Graph, Graph]]:
    """What each pass made of which graph: of constants as they are, and of some that are not
    usual."""
    recorder = Recorder(Trace())
    for graph in graphs() if kind == "wild" else map(doubled, graphs()):
        for one in (graph, *(with_constants(graph, kind, seed) for seed in range(2))):
            simplify(one, recorder, Options(tf32=True), "cuda")
    padded = apply_all(simple(captured(Net(lambda x: x), IMAGE[:, :3])), channel_padding.RULES)
    two = {"a": nn.Conv2d(3, 4, 3, padding=1), "b": nn.Conv2d(3, 4, 1)}
    windows = simple(captured(Of(lambda m, x: torch.cat([m.a(x), m.b(x)], 1), **two), IMAGE[:, :3]))
    summed = with_zeros(terms())
    return [
        *recorder.taken,
        (special.MERGE_CONVOLUTIONS, windows, merge(windows, list(siblings(windows, Trace())))),
        ("zeros", padded, zeros(padded, Trace())),
        ("sums_of_products", summed, sums_of_products(summed, Trace())),
    ]


def test_passes_that_change_special_numbers_say_so() -> None:
    found: dict[str, list[str]] = {}
    for kind in NOT_USUAL:
        for name, before, after in taken(kind):
            said = found.setdefault(name, [])
            for seed in () if said and name in special.PASSES else range(DRAWS):
                dice = torch.Generator().manual_seed(seed)
                share = SHARES[seed % len(SHARES)]
                inputs = [spoilt(draw(v.type, dice), dice, kind, share) for v in before.inputs]
                said += [str(why)] if (why := unlike_for(before, after, inputs)) else []
    wanted = {*PASSES, *FOR_GENERATED, *BEHIND}
    unmet = wanted - CHECKS - found.keys()
    assert not unmet, f"no graph here is changed by {unmet}: add one to `graphs`"
    assert {name for name, why in found.items() if why} == special.PASSES, found


def test_what_overflows_before_a_batch_norm_does_so_in_an_exact_plan() -> None:
    layer, norm = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)
    nn.init.constant_(layer.weight, 300.0)
    norm.load_state_dict({**norm.state_dict(), "running_var": torch.full((4,), 1e4)})
    model = nn.Sequential(layer, norm).eval().half()
    quick: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
    x = torch.full((2, 4), 100.0, dtype=torch.half)
    assert model(x).isinf().all()
    exact = anabranch.compile(model, (torch.ones_like(x),), exact=True, **quick)
    assert torch.equal(exact(x), model(x))
    usual = anabranch.compile(model, (torch.ones_like(x),), **quick)
    said = usual.explain().partition("exact=True leaves these out:")[2]
    assert "fold_batch_norm" in said.split()
