"""Streams that call cuBLAS come first among a target's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Input, Ref
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import Kernel, Task
from anabranch.ir.types import TensorType
from anabranch.targets.cuda.stream_places import stream_places

ON = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}


def places(*products: str, urgent: bool = False, hurry: str = "") -> list[int]:
    """Of a plan whose tasks run on streams of their own; `products` are the library's."""
    launches = tuple(Launch(name, stream, urgent=name in hurry) for name, stream in ON.items())
    x = Input("x", TensorType((4, 4), torch.float32, (4, 1)))
    known = {"x": x.type}
    tasks = []
    for name in ON:
        op = "aten.mm.default" if name in products else "aten.relu.default"
        node = ops.make_node(name, op, (Ref("x"),) * (1 + (name in products)), known)
        body = Graph(name, (x,), (), (node,), (Ref(name),))
        tasks.append(Task(name, body, Kernel("aten", "aten", body)))
    plan: Any = SimpleNamespace(
        tasks=SimpleNamespace(tasks=tasks), schedule=Schedule("drawn", launches)
    )
    return stream_places(plan, urgent)


@pytest.mark.parametrize(
    ("products", "wanted"),
    [
        ((), [0, 1, 2, 3, 4]),
        (("d",), [0, 2, 3, 1, 4]),
        (("b", "e"), [0, 1, 3, 4, 2]),
        (("a", "e"), [0, 2, 3, 4, 1]),
    ],
)
def test_streams_with_products_follow_the_first(
    products: tuple[str, ...], wanted: list[int]
) -> None:
    assert places(*products) == wanted


def test_urgent_launches_have_streams_of_their_own() -> None:
    assert places("d", "e", urgent=True, hurry="e") == [1, 2, 3, 4, 0]
    assert places("d", "e", hurry="e") == [0, 2, 3, 1, 4]
