"""FX nodes as nodes of ours, where torch's own account of them is not to be trusted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._decomp.decompositions
from torch import fx, nn

import anabranch
from anabranch.frontend.from_torch import capture
from anabranch.frontend.translate import Translation
from anabranch.ir.eval import eval_graph

decompositions: Any = torch._decomp.decompositions


def test_last_states_have_the_shapes_of_the_first_ones_whatever_a_fake_kernel_says() -> None:
    graph = fx.Graph()
    shapes: dict[str, tuple[int, ...]] = {"x": (3, 4, 6), "h": (1, 3, 3), "c": (1, 3, 5)}
    shapes |= {"ih": (20, 6), "hh": (20, 3), "b1": (20,), "b2": (20,), "hr": (3, 5)}
    given = {name: graph.placeholder(name) for name in shapes}
    weights = [given[name] for name in ("ih", "hh", "b1", "b2", "hr")]
    args = (given["x"], [given["h"], given["c"]], weights, True, 1, 0.0, False, False, True)
    node = graph.call_function(torch.ops.aten.lstm.input, args)
    wrong = torch.empty(1, 1, 3, 3, device="meta").expand(1, 3, 3, 3)
    node.meta["val"] = (
        torch.empty(4, 3, 3, device="meta").transpose(0, 1),
        wrong,
        torch.empty(1, 3, 5, device="meta"),
    )
    made = Translation({n.name for n in graph.nodes}, torch.device("cpu"))
    for name, shape in shapes.items():
        made.bind_input(given[name], torch.empty(shape, device="meta"))
    made.add(node)
    (lstm,) = made.finish("one", []).nodes
    assert [type.text for type in lstm.types] == [
        "f32[3,4,3]{3,9,1}",
        "f32[1,3,3]",
        "f32[1,3,5]",
    ]


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.lstm(x)[1][0].unbind(1)
        out: torch.Tensor = first + 2 * second + 3 * third
        return out


@pytest.mark.parametrize("wrong", [False, True])
def test_code_that_goes_on_with_last_states_is_captured_for_their_shape(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """`wrong`: as torch 2.11 has it, which squeezes the axis of sequences."""
    if wrong:
        own = decompositions.one_layer_lstm

        def squeezed(*args: Any, **kwargs: Any) -> Any:
            out, (h, c) = own(*args, **kwargs)
            return out, (h.unsqueeze(0).squeeze(1), c.unsqueeze(0).squeeze(1))

        monkeypatch.setattr(decompositions, "one_layer_lstm", squeezed)
    torch.manual_seed(0)
    model, x = LastState().eval(), torch.randn(3, 4, 2)
    graph = capture(model, (x,)).graph
    lstm = next(node for node in graph.nodes if node.op == "aten.lstm.input")
    assert [type.shape for type in lstm.types] == [(3, 4, 3), (1, 3, 3), (1, 3, 3)]
    with torch.no_grad():
        torch.testing.assert_close(eval_graph(graph, [x])[0], model(x))


class DrawsMore(nn.Module):
    """Draws numbers that nobody reads before those that it adds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        y = x * torch.bernoulli(x.sigmoid())
        y.sum()
        return x + torch.rand(4, 6)


@pytest.mark.parametrize("written", [False, True])
def test_random_numbers_that_nobody_reads_are_drawn(written: bool) -> None:
    """`written`: in a graph that torch.export traces once more."""

    class Writing(DrawsMore):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x[:, 0].add_(1)
            return super().forward(x)

    model, x = (Writing() if written else DrawsMore()).eval(), torch.randn(4, 6)
    fast = anabranch.compile(model, (x.clone(),), target="cpu", cache_dir=None, search="none")
    for seed in range(3):
        torch.manual_seed(seed)
        want = model(x.clone())
        torch.manual_seed(seed)
        torch.testing.assert_close(fast(x.clone()), want)
