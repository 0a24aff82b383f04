"""Random numbers of a step: distributed as eager's, and functions of seed and offset alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.frontend.steps import RANDOM, functional, graph_of, translated
from torch import Tensor, nn

import anabranch
from anabranch.errors import CaptureError
from anabranch.ir import ops
from anabranch.ir.eval import eval_graph

F = nn.functional
COUNT = 1 << 14
SPREAD = 5 / COUNT**0.5
"""Five times what the mean of so many numbers of variance 1 is off by."""


def run(step: Callable[..., Tensor], *given: Tensor, seed: int = 7, call: int = 0) -> Tensor:
    """What the step's graph gives."""
    made, _ = functional(lambda *tensors: [step(*tensors)], given)
    graph, (name,) = translated(made)
    found = eval_graph(graph, [*given, torch.tensor([seed, call])])
    return dict(zip([ref.name for ref in graph.outputs], found, strict=True))[name]


X = torch.zeros(COUNT)
DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    # what is drawn, its mean and its variance
    "rand": (lambda x: torch.rand(COUNT), 0.5, 1 / 12),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(COUNT), 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "normal": (lambda x: torch.empty_like(x).normal_(2.0, 0.5), 2.0, 0.25),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1.0, 3.0), 1.0, 16 / 12),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21),
    "bernoulli of a number": (lambda x: torch.empty_like(x).bernoulli_(0.9), 0.9, 0.09),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "randint": (lambda x: torch.randint(3, 9, (COUNT,)), 5.5, 35 / 12),
    "randint_like": (lambda x: torch.randint_like(x, 6), 2.5, 35 / 12),
    "random": (lambda x: torch.empty_like(x).random_(3, 9), 5.5, 35 / 12),
    "random up to": (lambda x: torch.empty(COUNT, dtype=torch.int64).random_(6), 2.5, 35 / 12),
    "random bytes": (
        lambda x: torch.empty(COUNT, dtype=torch.uint8).random_(),
        *(127.5, (256**2 - 1) / 12),
    ),
    "random truths": (lambda x: torch.empty(COUNT, dtype=torch.bool).random_(), 0.5, 0.25),
    "random in fp16": (
        lambda x: torch.empty(COUNT, dtype=torch.float16).random_(),
        *(1024.0, (2049**2 - 1) / 12),
    ),
    "dropout": (lambda x: F.dropout(x + 1, 0.25), 1.0, 1 / 3),
    "rrelu": (lambda x: F.rrelu(x - 1, 0.2, 0.6, training=True), -0.4, 0.16 / 12),
    "rrelu in place": (
        lambda x: F.rrelu(x - 2, 0.2, 0.6, training=True, inplace=True),
        *(-0.8, 0.64 / 12),
    ),
    "native dropout": (lambda x: torch.native_dropout(x + 1, 0.25, True)[0], 1.0, 1 / 3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name: str) -> None:
    step, mean, variance = DRAWS[name]
    found, eager = run(step, X), step(X)
    assert (found.dtype, found.shape) == (eager.dtype, eager.shape)
    found, eager = found.double(), eager.double()
    for drawn in (found, eager):
        assert abs(drawn.mean() - mean) < SPREAD * variance**0.5
        assert abs(drawn.var() - variance) < 3 * SPREAD * variance
        assert drawn.min() >= eager.min() - 1 and drawn.max() <= eager.max() + 2


def test_numbers_are_even_and_independent() -> None:
    """Over sixteen bins, between neighbours, between draws, between calls and between seeds."""
    seed, call = RANDOM.tolist()

    def of(number: int, seed: int = seed, call: int = call) -> Tensor:
        random = torch.tensor([seed, call])
        found: Tensor = torch.ops.anabranch.uniform(random, number, [COUNT])
        return found.double()

    first = of(0)
    assert first.min() >= 0.0 and first.max() < 1.0
    expected = COUNT / 16
    bins = torch.histc(first, 16, 0.0, 1.0)
    assert ((bins - expected) ** 2 / expected).sum() < 45  # 15 degrees of freedom: 1 in 10,000
    others = [first.roll(1), of(1), of(0, call=call + 1), of(0, seed=seed + 1)]
    others.append(of(0, seed=seed + (1 << 32)))
    for other in others:
        assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < SPREAD
    assert torch.equal(first, of(0)) and len({tuple(o[:4].tolist()) for o in others}) == 5


def test_equal_states_give_equal_numbers_and_others_others() -> None:
    def step(x: Tensor) -> Tensor:
        return F.dropout(x + 1, 0.5) + torch.rand_like(x)

    first = run(step, X)
    assert torch.equal(first, run(step, X))
    assert not torch.equal(first, run(step, X, call=1))
    assert not torch.equal(first, run(step, X, seed=8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_never_round_up_to_one(dtype: torch.dtype) -> None:
    drawn = run(torch.rand_like, torch.zeros(1 << 16, dtype=dtype))
    assert drawn.dtype == dtype and drawn.max() < 1 and abs(drawn.double().mean() - 0.5) < 0.01


def test_a_gradient_passes_where_the_forward_did() -> None:
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.3))
    x = torch.ones(1, 6)
    graph, names, given = graph_of(model, lambda model, x: model(x).sum(), (x,))
    found = dict(zip([ref.name for ref in graph.outputs], eval_graph(graph, given), strict=True))
    loss, _, of_bias = (found[name] for name in names)
    kept = of_bias > 0
    assert 15 < kept.sum() < 40
    torch.testing.assert_close(of_bias, kept / 0.7)
    torch.testing.assert_close(loss, (model[0](x)[0] * kept / 0.7).sum())
    drawn = [node for node in graph.nodes if node.op == "anabranch.uniform.default"]
    assert len(drawn) == 1 and not any(map(ops.draws, graph.nodes))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_have_the_dropout_between_them(
    kind: Callable[..., nn.RNNBase], bidirectional: bool
) -> None:
    torch.manual_seed(0)
    layers = kind(3, 4, num_layers=2, dropout=0.5, bidirectional=bidirectional)
    layers.dropout = 1.0  # as they are then, each but the first one gets zeros in eager, too
    x = torch.randn(2, 2, 3)
    loss = layers(x)[0].square().mean().item()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    options: dict[str, Any] = {"target": "cpu", "search": "none", "effort": "fast"}
    step = anabranch.compile_step(
        layers, lambda model, x: model(x)[0].square().mean(), optimizer, (x,), **options
    )
    assert step(x).item() == pytest.approx(loss, rel=1e-5)
    layers.dropout = 0.0
    assert layers(x)[0].square().mean().item() != pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_leaky_relus_of_random_slopes_have_the_gradient_of_theirs(
    inplace: bool, training: bool
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(40))
            self.rrelu = nn.RReLU(0.2, 0.6, inplace=inplace)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.rrelu(x * self.weight)
            return result

    def loss(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.sum(), y

    model, x = Model().train(training), torch.linspace(-1, 1, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
    _, y = anabranch.compile_step(model, loss, optimizer, (x,), **options)(x)
    slopes = y / x
    torch.testing.assert_close(model.weight.detach(), 1 - 0.1 * slopes * x)
    assert torch.equal(slopes[x > 0], torch.ones(20))
    low = slopes[x < 0].detach()
    assert low.min() >= 0.2 and low.max() <= 0.6 and (len(low.unique()) > 15) == training


def test_an_rrelu_that_draws_nothing_is_trained_under_torch_compile() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.RReLU()).eval()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    fast = torch.compile(model, backend="anabranch")
    right = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    ours = torch.autograd.grad(fast(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(ours, right)


def test_permutations_are_drawn_anew_and_evenly() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def mixed(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.randperm(6, dtype=torch.int32)
        return model(0.3 * x + 0.7 * x[order]).square().mean(), order

    options: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
    step = anabranch.compile_step(model, mixed, optimizer, (x,), **options)
    counts, calls = torch.zeros(6, 6), 400
    for _ in range(calls):
        loss, order = step(x)
        assert order.dtype == torch.int32 and sorted(order.tolist()) == list(range(6))
        want = model(0.3 * x + 0.7 * x[order]).square().mean()
        torch.testing.assert_close(loss, want.detach())
        counts[torch.arange(6), order] += 1
    expected = calls / 6
    assert ((counts - expected) ** 2 / expected).sum() < 61  # 25 degrees of freedom: 1 in 10,000


GENERATED: dict[str, Callable[[Any], Tensor]] = {
    "rand": lambda g: torch.rand(5, generator=g),
    "normal in place": lambda g: torch.empty(5).normal_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((5,), 0.5), generator=g),
    "randint": lambda g: torch.randint(0, 4, (5,), generator=g),
    "randperm": lambda g: torch.randperm(5, generator=g),
}


@pytest.mark.parametrize("name", GENERATED)
def test_numbers_of_a_generator_that_is_named_are_refused(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    with pytest.raises(CaptureError, match="a generator that it names"):
        run(lambda x: GENERATED[name](generator), X)


@pytest.mark.parametrize("name", ["choice", "many whole numbers", "any whole numbers"])
def test_what_does_not_count_is_refused(name: str) -> None:
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "choice": lambda x: torch.multinomial(x + 1, 5),
        "many whole numbers": lambda x: torch.randint(1 << 30, (5,)),
        "any whole numbers": lambda x: torch.empty(5, dtype=torch.int64).random_(),
    }
    with pytest.raises(CaptureError, match="the step draws"):
        run(steps[name], X)
