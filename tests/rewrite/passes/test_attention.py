"""Attention written out in the ways in which models do it, and what is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds
from torch import Tensor, nn

from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

B, T, H, E = 2, 7, 3, 8
LOW = torch.finfo(torch.float32).min
WINDOWS = torch.randn(2, T, T)
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


class Heads(nn.Module):
    """Heads out of one product, attention as given, and heads side by side again."""

    def __init__(self, attend: Callable[..., Tensor], keys: int = H) -> None:
        super().__init__()
        self.attend = attend
        self.q, self.k, self.v = (nn.Linear(H * E, n * E) for n in (H, keys, keys))
        self.bias = nn.Parameter(torch.randn(1, H, T, T))
        self.heat = nn.Parameter(torch.rand(H, 1, 1))

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        self.given = x
        q, k, v = (
            layer(x).view(x.shape[0], T, -1, E).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        return self.attend(self, q, k, v, *more).transpose(1, 2).reshape(x.shape[0], T, H * E)


def plain(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / E**0.5, -1) @ v


def scaled_query(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * 0.3) @ k.transpose(-2, -1)).softmax(-1) @ v


def biased(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1)) * 0.5 + net.bias).softmax(-1) @ v


def padded(net: Heads, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (mask + q @ k.permute(0, 1, 3, 2)).softmax(-1) @ v


def causal(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)).mul(0.4).masked_fill(CAUSAL.logical_not(), LOW)
    return torch.softmax(scores, -1) @ v


def causal_added(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of what is known, something of each row is left."""
    return (q @ k.transpose(-2, -1) + torch.where(CAUSAL, 0.0, -torch.inf)).softmax(-1) @ v


def in_stacks(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As matrices from the start."""
    a, b, c = (x.reshape(-1, T, E) for x in (q, k, v))
    found = torch.bmm(torch.bmm(a, b.mT).softmax(2), c)
    return found.view(B, H, T, E)


def at_once(
    net: Heads, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, beta: float = 1.0, after: float = 1.0
) -> Tensor:
    a, b, c = (x.reshape(-1, T, E) for x in (q, k, v))
    scores = torch.baddbmm(bias, a, b.mT, beta=beta, alpha=0.4) * after
    return torch.bmm(scores.softmax(2), c).view(-1, H, T, E)


def added_at_once(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By each head to a column of its scores, the further off the less."""
    return at_once(net, q, k, v, net.bias[0, :, :1])


def added_by_half(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return at_once(net, q, k, v, net.bias[0, :1], beta=0.5)


def scaled_behind_what_is_added(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return at_once(net, q, k, v, net.bias[0, :1], after=0.5)


def hidden_rows_at_once(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return at_once(net, q, k, v, torch.where(CAUSAL, -torch.inf, 0.0))


def einsum(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhie,bhje->bhij", q, k) * 0.5
    return torch.einsum("bhij,bhje->bhie", scores.softmax(-1), v)


def keys_turned_at_once(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Out of the projection, without the heads in between; of one image."""
    keys: Tensor = net.k(net.given).view(-1, T, H, E).permute(0, 2, 3, 1)
    return ((q @ keys) * 0.25 + net.bias[0]).softmax(-1) @ v


def of_windows(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Stacks of stacks, of which no library knows."""
    q, k, v = (x.view(1, *x.shape) for x in (q, k, v))
    scores = torch.einsum("bwhie,bwhje->bwhij", q, k * 0.5) + net.bias
    found: Tensor = torch.einsum("bwhij,bwhje->bwhie", scores.softmax(-1), v)
    return found[0]


def masked_by_window(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One mask for each head, one for each window."""
    scores = q @ k.transpose(-2, -1) + net.bias
    scores = (scores.view(-1, 2, H, T, T) + WINDOWS[:, None]).view(-1, H, T, T)
    return scores.softmax(-1) @ v


def scaled_all(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scores have the factors of queries and keys, not that of the values."""
    return (((q * 0.5) @ (k / 0.7).transpose(-2, -1)) + net.bias).softmax(-1) @ (v * 3.0)


def by_temperature(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Directions are compared, each head by a factor of its own."""
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    scores = (q @ k.transpose(-2, -1)) * net.heat.exp() + net.bias
    return scores.softmax(-1) @ v


def of_one_head(net: Heads, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Three axes, other sizes of what is looked up, and a row of a mask for all."""
    q, k, v = q[:, 0], k[:, 1, :5], torch.cat([v[:, 0, :5], v[:, 1, :5]], -1)
    return ((q @ k.transpose(1, 2)) * 2 + mask).softmax(-1) @ v


def masked_by_window_of_images(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return masked_by_window(net, *(torch.cat([x, -x]) for x in (q, k, v)))[:B]


def simplified(graph: Graph, trace: Trace | None = None) -> Graph:
    trace = trace or Trace()
    return simplify(graph, Stepper(trace), Options(), "cpu")


X = torch.randn(B, T, H * E)
WAYS: dict[Callable[..., Tensor], tuple[Tensor, ...]] = {
    **dict.fromkeys((plain, scaled_query, biased, causal, causal_added), (X,)),
    **dict.fromkeys((in_stacks, einsum, of_windows, masked_by_window), (X,)),
    added_at_once: (X[:1],),
    keys_turned_at_once: (X[:1],),
    padded: (X, torch.randn(B, 1, 1, T)),
}


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_one_operator_of_many(way: Callable[..., Tensor]) -> None:
    graph = captured(Heads(way), *WAYS[way])
    after = equal(graph, simplified(graph))
    found = kinds(after)
    assert found.count("scaled_dot_product_attention") == 1 and "bmm" not in found
    assert not {"_softmax", "clone", "mul", "div", "masked_fill", "add"} & set(found)


def test_a_known_mask_is_repeated_for_each_image() -> None:
    graph = captured(Heads(masked_by_window_of_images), X)
    after = equal(graph, simplified(graph))
    assert "scaled_dot_product_attention" in kinds(after) and "bmm" not in kinds(after)
    (node,) = (n for n in after.nodes if "attention" in n.op)
    sizes = {c.name: c.type.shape for c in after.constants}
    assert sizes[node.uses[3]] == (2 * B, H, T, T)  # the sum of both


def test_values_keep_their_factor() -> None:
    graph = captured(Heads(scaled_all), X)
    after = equal(graph, simplified(graph))
    assert "scaled_dot_product_attention" in kinds(after) and "bmm" not in kinds(after)
    assert kinds(after).count("mul") <= 1 and "div" not in kinds(after)


def test_a_factor_of_each_head_is_taken_by_the_queries() -> None:
    graph = captured(Heads(by_temperature), X)
    after = equal(graph, simplified(graph))
    assert "scaled_dot_product_attention" in kinds(after)
    assert not {"bmm", "_softmax", "clone", "exp"} & set(kinds(after))


def test_stacks_of_three_axes() -> None:
    class Net(Heads):
        def forward(self, x: Tensor, *more: Tensor) -> Tensor:
            q, k, v = (f(x).view(B, T, H, E).transpose(1, 2) for f in (self.q, self.k, self.v))
            return of_one_head(self, q, k, v, *more)

    graph = captured(Net(of_one_head), X, torch.randn(5))
    after = equal(graph, simplified(graph))
    assert "scaled_dot_product_attention" in kinds(after) and "bmm" not in kinds(after)


def test_a_softmax_of_one_matrix() -> None:
    class Net(Heads):
        def forward(self, x: Tensor, *more: Tensor) -> Tensor:
            q, k, v = (f(x)[:1] for f in (self.q, self.k, self.v))
            return torch.bmm(torch.bmm(q, k.mT).squeeze(0).softmax(-1).unsqueeze(0), v)

    graph = captured(Net(plain), X)
    after = equal(graph, simplified(graph))
    assert "scaled_dot_product_attention" in kinds(after) and "bmm" not in kinds(after)


def test_heads_lie_as_they_were_made() -> None:
    """No copy on either side: views of the projections go in, and come out for the next one."""
    after = simplified(captured(Heads(plain), X))
    table = {value.name: value.type for value in after.inputs}
    table |= {constant.name: constant.type for constant in after.constants}
    for node in after.nodes:
        table.update(zip(node.results, node.types, strict=True))
    kept = [node for node in after.nodes if not ops.is_view(node, table)]
    assert [ops.packet_name(node.op) for node in kept] == [
        *["aten.linear"] * 3,
        "aten.scaled_dot_product_attention",
    ]


def also_the_weights(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v + weights.mean()


def along_queries(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).softmax(-2) @ v


def masked_by_who_calls(net: Heads, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).masked_fill(mask, LOW).softmax(-1) @ v


def hidden_rows(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).masked_fill(CAUSAL, LOW).softmax(-1) @ v


def too_hot(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1)) * (net.heat + 128)).softmax(-1) @ v


def hidden_by_two(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each leaves something of each row, and the two of the first row nothing."""
    q, k, v = (torch.cat([x, -x]) for x in (q, k, v))
    scores = q @ k.transpose(-2, -1) + torch.where(CAUSAL, 0.0, -torch.inf)
    first = torch.zeros(2, 1, T, T)
    first[..., 0] = -torch.inf
    return ((scores.view(-1, 2, H, T, T) + first).view(-1, H, T, T).softmax(-1) @ v)[:B]


def hidden_rows_added(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) + torch.where(CAUSAL, -torch.inf, 0.0)).softmax(-1) @ v


def hidden_too_little(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)).masked_fill(CAUSAL.logical_not(), -1e3)
    return torch.softmax(scores, -1) @ v


def scaled_behind_the_mask(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1) + net.bias) * 0.5).softmax(-1) @ v


def repeated_by_the_mask(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All images have the scores of the first, and a mask of their own."""
    scores = (q[:1] @ k[:1].transpose(-2, -1)).reshape(H, T, T)
    hidden = torch.stack([CAUSAL.logical_not(), CAUSAL.logical_not().flip(0, 1)])
    scores = scores[:1].masked_fill(hidden, LOW).softmax(-1)
    return torch.bmm(scores, v[:, 0]).unsqueeze(1).expand(B, H, T, E)


def filled_with_nothing(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)).masked_fill(CAUSAL.logical_not(), torch.nan)
    return torch.softmax(scores, -1).nan_to_num() @ v


def factors_of_rows_of_all(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each image has a factor, told of scores whose heads are rows."""
    scores = (q @ k.transpose(-2, -1)).reshape(B, H * T, T) * net.heat[:B]
    return scores.reshape(B, H, T, T).softmax(-1) @ v


def some_heads(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1)) * (torch.arange(H) != 1).view(H, 1, 1)).softmax(-1) @ v


def factor_of_more_digits(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * torch.tensor(0.4, dtype=torch.float64)
    return scores.masked_fill(CAUSAL.logical_not(), LOW).softmax(-1) @ v


def capped(net: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(q @ k.transpose(-2, -1)).softmax(-1) @ v


NONE: dict[Callable[..., Tensor], tuple[str, tuple[Tensor, ...]]] = {
    also_the_weights: ("", (X,)),
    along_queries: ("its softmax runs along another axis", (X,)),
    masked_by_who_calls: ("is not known, and may hide whole rows", (X, ~CAUSAL)),
    hidden_rows: ("hides whole rows", (X,)),
    hidden_rows_added: ("hides whole rows", (X,)),
    hidden_rows_at_once: ("hides whole rows", (X,)),
    added_by_half: ("adds a multiple of", (X,)),
    scaled_behind_what_is_added: ("adds to a product what is done to it first", (X,)),
    too_hot: ("is aten.mul.Tensor, which attention does not do to scores", (X,)),
    hidden_by_two: ("several masks hide scores", (X,)),
    hidden_too_little: ("fills in -1000.0, and scores may lie below", (X,)),
    repeated_by_the_mask: ("repeats the scores", (X,)),
    filled_with_nothing: ("", (X,)),
    factors_of_rows_of_all: ("belongs to scores of another shape", (X,)),
    some_heads: ("is aten.mul.Tensor, which attention does not do to scores", (X,)),
    factor_of_more_digits: ("is of torch.float64", (X,)),
    scaled_behind_the_mask: ("stands between a product and what is done to it first", (X,)),
    capped: ("is aten.tanh.default, which attention does not do to scores", (X,)),
}


@pytest.mark.parametrize("way", NONE, ids=[way.__name__ for way in NONE])
def test_what_stays_and_why(way: Callable[..., Tensor]) -> None:
    why, inputs = NONE[way]
    graph, trace = captured(Heads(way), *inputs), Trace()
    after = equal(graph, simplified(graph, trace))
    assert "scaled_dot_product_attention" not in kinds(after)
    said = [event.why for event in trace.events if event.what.startswith("attention")]
    assert (why == "" and not said) or any(why in one for one in said), said
