"""Long rows that are read again and again take the one CTA that has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.dfg.test_concat_stores import recurrence

from anabranch.costs.roofline import Roofline
from anabranch.costs.serial_work import CHAINED_US, chained_us, walked_us
from anabranch.ir.graph import Graph, Input, Ref
from anabranch.ir.ops import make_node
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType


def task(op: str, shape: tuple[int, ...], *args: Any, dtype: torch.dtype = torch.float16) -> Task:
    x = TensorType(shape, dtype)
    node = make_node("y", op, (Ref("x"), *args), {"x": x})
    return Task("y", Graph("g", (Input("x", x),), (), (node,), (Ref("y"),)))


@pytest.mark.parametrize(
    ("op", "shape", "args", "us"),
    [
        ("aten.group_norm.default", (1, 320, 64, 64), (32,), 3 * 10 * 0.6),
        ("aten.group_norm.default", (1, 32, 8, 8), (4,), 0.0),
        ("aten.instance_norm.default", (2, 3, 96, 96), (*[None] * 4, True, 0.1, 1e-5, True), 5.4),
        ("aten.layer_norm.default", (4, 8, 128, 128), ((8, 128, 128),), 3 * 32 * 0.6),
        ("aten.layer_norm.default", (4, 512, 768), ((768,),), 0.0),
        ("aten._softmax.default", (2, 50000), (-1, False), 3 * 13 * 0.6),
        ("aten.var.correction", (4, 64, 128), ((1, 2),), 2 * 2 * 0.6),
        ("aten.mean.dim", (1, 320, 64, 64), ((2, 3),), 0.0),
        ("aten.cumsum.default", (2, 50000), (-1,), 13 * 0.6),
        ("aten.cumsum.default", (50000, 2), (1,), 0.0),
    ],
)
def test_walks(op: str, shape: tuple[int, ...], args: tuple[Any, ...], us: float) -> None:
    one = task(op, shape, *args)
    table = {"x": one.body.inputs[0].type, "y": one.body.nodes[0].type}
    assert walked_us(one.body.nodes[0], table) == pytest.approx(us)


def test_few_long_rows_cost_more_than_many_short_ones_of_as_many_bytes(make: Any) -> None:
    costs = Roofline(make.spec)
    few = costs.task(task("aten.group_norm.default", (1, 320, 64, 64), 32)).us
    many = costs.task(task("aten.layer_norm.default", (4096, 320), (320,))).us
    assert few > 3 * many


def test_steps_wait_for_each_other(make: Any) -> None:
    """A kernel of 512 steps takes longer than its traffic, and 40 steps no longer than that; as
    many calls of a library take longer yet."""
    few, many = (parse_graph(recurrence(steps, 64)) for steps in (40, 512))
    assert chained_us(few) == 0.0
    assert chained_us(many) == pytest.approx(CHAINED_US * (2 * 512 + 3 - 100))
    costs = Roofline(make.spec)
    one = costs.task(Task("g", many)).us
    calls = Kernel("aten", "aten", many, launches=4 * 512)
    assert one == pytest.approx(24.4, rel=0.1)  # as measured
    assert one < costs.task(Task("g", many, calls)).us
