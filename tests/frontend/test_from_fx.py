from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch.errors import CaptureError
from anabranch.frontend import Captured, capture_fx
from anabranch.ir.eval import eval_graph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.verify import verify_graph


def compiled(model: Callable[..., Any], *args: Any) -> tuple[Any, list[Captured]]:
    """What torch.compile gives, with every graph run by the oracle."""
    graphs: list[Captured] = []

    def inference(graph: fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        captured = capture_fx(graph, fakes)
        verify_graph(captured.graph)
        assert parse_graph(text_graph(captured.graph)) == captured.graph
        graphs.append(captured)

        def run(*inputs: Any) -> list[Any]:
            tensors = [x for x in inputs if isinstance(x, Tensor)]
            outputs = eval_graph(captured.graph, tensors)
            table = dict(zip(captured.graph.outputs, outputs, strict=True))
            return [table[o.ref] if o.ref else o.literal for o in captured.signature.outputs]

        return run

    backend = aot_autograd(fw_compiler=inference, inference_compiler=inference)
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend=backend, dynamic=False)(*args), graphs


def test_weights_come_as_inputs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    x = torch.randn(1, 3, 8, 8)
    found, (captured,) = compiled(model, x)
    torch.testing.assert_close(found, model(x))
    assert len(captured.graph.inputs) == 7 and not captured.graph.constants


def test_attention_is_whole_again() -> None:
    def attend(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3) + 1

    q, k = torch.randn(2, 1, 2, 5, 8)
    found, (captured,) = compiled(attend, q, k)
    torch.testing.assert_close(found, attend(q, k))
    names = [node.op for node in captured.graph.nodes]
    assert names == ["aten.scaled_dot_product_attention.default", "aten.add.Tensor"]


def test_mutated_input_and_several_outputs() -> None:
    def write(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        x.add_(1)
        return y, y.t()

    x = torch.randn(2, 3)
    other = x.clone()
    found, _ = compiled(write, x)
    for a, b in zip((*found, x), (*write(other), other), strict=True):
        torch.testing.assert_close(a, b)


def _traced() -> fx.GraphModule:
    return make_fx(lambda x, w: (F.relu(x @ w) + torch.tensor([1.0, 2.0]), 3, None))(
        torch.randn(4, 3), torch.randn(3, 2)
    )


def test_constants_by_placeholder() -> None:
    graph, weight = _traced(), torch.randn(3, 2)
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    captured = capture_fx(graph, [torch.randn(4, 3), weight], {names[0]: None, names[1]: weight})
    assert [value.name for value in captured.graph.inputs] == names[:1]
    assert captured.sources == ((captured.graph.constants[0].name, names[1]),)
    assert len(captured.graph.constants) == 2
    assert [leaf.literal for leaf in captured.signature.outputs] == [None, 3, None]
    x = torch.randn(4, 3)
    (found,) = eval_graph(captured.graph, [x])
    torch.testing.assert_close(found, graph(x, weight)[0])


def test_copy_into_a_placeholder_is_a_mutation() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.add.Tensor, (x, 1))
    graph.call_function(torch.ops.aten.copy_.default, (x, y))
    graph.output((y,))
    captured = capture_fx(fx.GraphModule(nn.Module(), graph), [torch.randn(2)])
    assert [(name, ref.name) for name, ref in captured.signature.mutations] == [("x", "add_tensor")]
    assert captured.graph.nodes[0].type.shape == (2,)


def test_symbolic_sizes_are_refused() -> None:
    graph = make_fx(lambda x: x * x.shape[0], tracing_mode="symbolic")(torch.randn(4, 3))
    example = next(iter(graph.graph.nodes)).meta["val"]
    with pytest.raises(CaptureError, match="not known"):
        capture_fx(graph, [example])
    with pytest.raises(CaptureError, match="SymInt"):
        capture_fx(graph, [example.shape[0]])
