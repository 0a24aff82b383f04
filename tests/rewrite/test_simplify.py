"""All passes together, on random graphs and on modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import captured, drawn, equal, kinds
from torch import Tensor, nn

from anabranch.ir.graph import Graph
from anabranch.ir.ops import channels_last
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.rewrite.passes import PASSES
from anabranch.rewrite.passes.round_factors import ERROR
from anabranch.trace import Trace

TF32, EXACT = Options(tf32=True), Options(tf32=True, kernels="library")
"""With constants rounded to tf32, and as they are."""


def simplified(
    graph: Graph, kind: str = "cpu", trace: Trace | None = None, options: Options = TF32
) -> Graph:
    return simplify(graph, Stepper(trace or Trace(), check=1), options, kind)


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_every_pass_keeps_the_numbers(seed: int) -> None:
    graph = drawn(seed)
    for run in PASSES.values():
        after = run(graph, Trace())
        assert after is graph or after != graph, "the same graph must be the same object"
        graph = equal(graph, after, tolerance=1e-4)  # weights are folded in f32
        for _ in range(4):
            graph, before = run(graph, Trace()), graph
        assert graph is before, "a pass comes to an end"


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_simplify_is_idempotent_and_deterministic(seed: int) -> None:
    graph = drawn(seed)
    after = equal(graph, simplified(graph), tolerance=1e-4)
    assert simplified(after) is after
    assert simplified(drawn(seed)) == after
    assert len(after.nodes) <= len(graph.nodes) + 1


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c, self.d = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.d(self.c(torch.relu(self.b(self.a(x))))) + x)


class Branches(nn.Module):
    """Inception-like: branches, a pooled one, and their concatenation; then the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.max_pool2d(x, 3, 1, 1)
        y = torch.cat([self.one(x), self.two(x), pooled], 1)
        y = nn.functional.dropout(y, 0.5, self.training)
        logits: Tensor = self.fc(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return logits


class Both(nn.Module):
    """Two norms of one convolution; neither can go into it."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.a, self.b = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x)
        product: Tensor = self.a(y) * self.b(y)
        return product


class Shared(nn.Module):
    """One weight, used with and without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(torch.relu(self.b(self.c(x))))
        return y


class Joined(nn.Module):
    """A norm over two convolutions side by side, as in NASNet's factorised reduction."""

    def __init__(self, relu: bool = False) -> None:
        super().__init__()
        self.p, self.q, self.b = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(8)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        q = torch.relu(self.q(x)) if self.relu else self.q(x)
        y: Tensor = self.b(torch.cat([self.p(x), q], 1))
        return y


def stack(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*modules)


IMAGE = (1, 4, 9, 9)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "conv-bn-relu": (
        stack(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        IMAGE,
        ["convolution", "relu"],
    ),
    "no affine": (
        stack(nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False)),
        IMAGE,
        ["convolution"],
    ),
    "separable": (
        stack(nn.ReLU(), nn.Conv2d(4, 4, 5, groups=4), nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8)),
        IMAGE,
        ["relu", "convolution", "convolution"],
    ),
    "pre-activation": (
        stack(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3)),
        IMAGE,
        ["addcmul", "relu", "convolution"],
    ),
    "two norms": (
        stack(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8)),
        IMAGE,
        ["convolution"],
    ),
    "grouped": (stack(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)), IMAGE, ["convolution"]),
    "transposed": (
        stack(nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), nn.BatchNorm2d(6)),
        IMAGE,
        ["convolution"],
    ),
    "transposed, grouped": (
        stack(nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6)),
        IMAGE,
        ["convolution"],
    ),
    "1d": (stack(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (2, 4, 9), ["convolution"]),
    "3d": (stack(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3)), (1, 2, 4, 4, 4), ["convolution"]),
    "linear": (stack(nn.Linear(4, 6), nn.BatchNorm1d(6)), (5, 4), ["linear"]),
    "linear of sequences": (
        stack(nn.Linear(4, 6), nn.BatchNorm1d(3)),
        (2, 3, 4),
        ["linear", "addcmul"],
    ),
    "same, even kernel": (
        stack(nn.Conv2d(4, 8, 4, padding="same"), nn.BatchNorm2d(8)),
        IMAGE,
        ["constant_pad_nd", "convolution"],
    ),
    "residual": (Residual, (1, 8, 6, 6), ["convolution", "relu", "convolution", "add", "relu"]),
    "branches": (
        Branches,
        IMAGE,
        [
            *("max_pool2d", "convolution", "relu", "convolution", "relu"),
            *("cat", "adaptive_avg_pool2d", "reshape", "linear"),
        ],
    ),
    "two readers": (Both, (1, 3, 5, 5), ["convolution", "addcmul", "addcmul", "mul"]),
    "shared weight": (Shared, IMAGE, ["convolution", "relu", "convolution"]),
    "norm of cat": (Joined, IMAGE, ["convolution", "convolution", "cat"]),
    "norm of cat, relu between": (
        lambda: Joined(relu=True),
        IMAGE,
        ["convolution", "relu", "convolution", "cat", "addcmul"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_modules(name: str) -> None:
    build, shape, expected = CASES[name]
    graph = captured(build(), torch.randn(shape))
    for kind, options, tolerance in (
        ("cpu", TF32, 1e-5),
        ("cuda", EXACT, 1e-5),
        ("cuda", TF32, 4 * ERROR),
    ):
        trace = Trace()
        after = equal(graph, simplified(graph, kind, trace, options), tolerance=tolerance)
        assert simplified(after, kind, options=options) is after
        assert Counter(op for op in kinds(after) if op != "clone") == Counter(expected)
        assert not any(event.kind == "warning" for event in trace.events)
        assert all(constant.value is not None for constant in after.constants)


def test_a_refusal_says_why_once() -> None:
    trace = Trace()
    simplified(captured(Both(), torch.randn(1, 3, 5, 5)), trace=trace)
    said = [f"{e.what}: {e.why}" for e in trace.events if e.kind == "refused"]
    assert len(said) == 2 and all("is also read elsewhere (1 more)" in line for line in said)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(dtype)
    graph = captured(model, torch.randn(IMAGE, dtype=dtype))
    after = equal(graph, simplified(graph), tolerance=8 * torch.finfo(dtype).eps)
    assert {constant.type.dtype for constant in after.constants} == {dtype}


def test_channels_last_of_a_whole_network() -> None:
    after = simplified(captured(Branches(), torch.randn(IMAGE)), "cuda")
    spread = [
        node for node in after.nodes if len(node.type.shape) == 4 and max(node.type.shape) > 8
    ]
    assert spread and all(channels_last(node.type) for node in spread)
    assert kinds(after).count("clone") == 1


def test_fuel_stops_it() -> None:
    graph = captured(Branches(), torch.randn(IMAGE))
    stopped = simplify(graph, Stepper(Trace(), fuel=1), TF32)
    assert kinds(stopped) == kinds(PASSES["canonical"](graph, Trace()))
    assert simplify(graph, Stepper(Trace(), fuel=0), TF32) is graph
