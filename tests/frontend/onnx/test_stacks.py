from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.frontend.onnx.test_importer_networks import agree, exported
from torch import Tensor, nn

from anabranch.frontend.onnx.importer import from_onnx


class Recurrent(nn.Module):
    """A sequence and the last states of a layer of torch."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        out, last = self.layer(x)
        return (out, *last) if isinstance(last, tuple) else (out, last)


@pytest.mark.parametrize(
    ("kind", "layers", "ways"), [(nn.GRU, 3, False), (nn.LSTM, 2, True), (nn.LSTM, 1, False)]
)
def test_layers_one_after_another_are_one(
    kind: type[nn.GRU | nn.LSTM], layers: int, ways: bool, tmp_path: Path
) -> None:
    """As many calls as the model has, and every layer's last states; a single layer stays."""
    torch.manual_seed(0)
    model = Recurrent(kind(4, 5, layers, bidirectional=ways)).eval()
    x = torch.randn(7, 3, 4)
    path = exported(model, (x,), tmp_path / "net.onnx", dynamo=True, opset_version=18)
    net = from_onnx(path)
    calls = [n.full_name for n in net.graph.nodes if n.op in ("GRU", "LSTM")]
    assert calls == [f"anabranch.{kind.__name__}" if layers > 1 else kind.__name__]
    agree(net, path, (x,))


def test_a_sequence_that_is_read_between_layers_keeps_them_apart(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.GRU(4, 4), nn.GRU(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            first = self.a(x)[0]
            both: Tensor = first + self.b(first)[0]
            return both

    torch.manual_seed(0)
    x = torch.randn(6, 2, 4)
    path = exported(Two().eval(), (x,), tmp_path / "net.onnx", dynamo=True, opset_version=18)
    net = from_onnx(path)
    assert [node.op for node in net.graph.nodes].count("GRU") == 2
    agree(net, path, (x,))
