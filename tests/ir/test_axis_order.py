"""In which order the axes of an operand come out, beside what torch does."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir import ops
from anabranch.ir.axis_order import axis_order, order_of
from anabranch.ir.graph import Ref
from anabranch.ir.types import TensorType

CASES = [
    ("aten.permute.default", ([2, 0, -2],), 3),
    ("aten.transpose.int", (0, -1), 3),
    ("aten.transpose.int", (-1, -1), 1),
    ("aten.transpose.int", (0, 0), 0),
    ("aten.swapaxes.default", (1, -1), 4),
    ("aten.t.default", (), 2),
    ("aten.t.default", (), 1),
]


@pytest.mark.parametrize(("op", "args", "rank"), CASES)
def test_axes_come_out_as_torch_has_them(op: str, args: tuple[object, ...], rank: int) -> None:
    x = torch.rand(*range(2, 2 + rank)) if rank else torch.rand(())
    packet, overload = op.removeprefix("aten.").split(".")
    result = getattr(getattr(torch.ops.aten, packet), overload)(x, *args)
    given = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
    types = {"x": TensorType(tuple(x.shape), torch.float32)}
    node = ops.make_node("y", op, (Ref("x"), *given), types, ())  # type: ignore[arg-type]
    order = axis_order(ops.arguments(node), rank)
    assert tuple(x.shape[d] for d in order) == tuple(result.shape)
    moves = op in ("aten.permute.default", "aten.transpose.int")
    assert order_of(node) == (order if moves else None)
