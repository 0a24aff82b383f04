"""How values lie is inferred as eager lays them, for the example's inputs and for others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anabranch.frontend import capture
from anabranch.frontend.relayout import types_for
from anabranch.ir.graph import types

CPU = torch.device("cpu")
CLASSES = torch.zeros(2, 6, 6, dtype=torch.int64)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "a part": lambda x: torch.cat([x, x], 3)[..., ::2],
    "repeated": lambda x: x[:, :, :1].expand(-1, -1, 6, -1),
}
MODELS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8)),
    "layer_norm": lambda x: F.layer_norm(x, (6, 6)),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 1, 2, 2), mode="replicate"),
    "roll": lambda x: x.roll((1, 2), (2, 3)),
    "roll by nothing": lambda x: x.roll((1, 0), (1, 2)),
    "roll of all": lambda x: x.roll(1),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
    "logsigmoid": F.logsigmoid,
    "rrelu": F.rrelu,
    "a number to a power": lambda x: 2.0**x,
    "isin": lambda x: torch.isin(x, torch.ones(2)),
    "copysign": lambda x: torch.copysign(x, torch.ones(6)),
    "floor_divide": lambda x: x // 2,
    "rounded quotient": lambda x: torch.div(x, x.exp(), rounding_mode="floor"),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0, 1]), 1.0),
    "one_hot": lambda x: F.one_hot((x > 0).long(), 3),
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES, reduction="none"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(
        x.sigmoid(), torch.ones(6, 6, 8, 2).permute(3, 2, 0, 1), reduction="none"
    ),
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), dim=1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "softmax": lambda x: x.softmax(1),
    "a reshape": lambda x: x.roll(1, 2).flatten(2).relu(),
}


@pytest.mark.parametrize("example", ["rows", "channels_last"])
@pytest.mark.parametrize("name", MODELS)
def test_values_lie_as_in_eager(name: str, example: str) -> None:
    model, x = MODELS[name], torch.randn(2, 8, 6, 6)
    graph = capture(model, (LAYOUTS[example](x),)).graph
    (result,) = graph.outputs[:1]
    own = model(LAYOUTS[example](x))
    assert types(graph)[result.name].strides == own.stride()
    for lay in LAYOUTS.values():
        table = types_for(graph, [lay(x).stride()], CPU)
        assert table is not None and table[result.name].strides == model(lay(x)).stride()


def test_values_lie_as_the_kernels_of_the_device_lay_them() -> None:
    x = torch.randn(2, 8, 6, 6)
    graph = capture(lambda x: F.pixel_shuffle(x, 2), (x,)).graph
    last = LAYOUTS["channels_last"](x).stride()
    (result,) = graph.outputs
    for device, strides in ((CPU, (288, 1, 24, 2)), (torch.device("cuda"), (288, 144, 12, 1))):
        table = types_for(graph, [last], device)
        assert table is not None and table[result.name].strides == strides


def test_autocast_around_a_call_changes_no_types() -> None:
    graph = capture(lambda x: x @ x.mT, (torch.randn(4, 6),)).graph
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        table = types_for(graph, [(1, 4)], CPU)
    assert table is not None
    assert {type.dtype for type in table.values()} == {torch.float32}


def test_what_torch_inferred_before_is_not_taken_nor_changed() -> None:
    class Rolled(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.roll(1, 2)

    x = torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last)

    def of_torch() -> tuple[int, ...]:
        node = next(n for n in torch.export.export(Rolled(), (x,)).graph.nodes if n.name == "roll")
        strides: tuple[int, ...] = node.meta["val"].stride()
        return strides

    before = of_torch()
    for _ in range(2):
        (node,) = capture(Rolled().eval(), (x,)).graph.nodes
        assert node.types[0].strides == x.roll(1, 2).stride() == x.stride()
        assert of_torch() == before
