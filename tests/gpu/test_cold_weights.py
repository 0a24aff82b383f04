"""Tasks timed with copies of their weights by turns."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.gpu.patience import patiently

from anabranch.costs.measured import Measured
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.task import Kernel, Task
from anabranch.ir.types import TensorType
from anabranch.ir.uncached import Uncached
from anabranch.memory import pack
from anabranch.targets import resolve

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

WIDE, DEEP = 8192, 2048


def product() -> Task:
    """One row by 33 MB of weights, by the library."""
    f16 = torch.float16
    weight = torch.randn(WIDE, DEEP, dtype=f16, device="cuda")
    x, w, y = (TensorType(shape, f16) for shape in ((1, DEEP), (WIDE, DEEP), (1, WIDE)))
    node = Node("y", "aten.linear.default", (Ref("x"), Ref("w")), (), (y,))
    body = Graph("y", (Input("x", x),), (Constant("w", w, "w", weight),), (node,), (Ref("y"),))
    return Task("y", body, Kernel("aten", "aten", body))


def test_memory_sends_what_the_cache_would_have_kept() -> None:
    """Of 50 MB of cache on: warm, the weights come faster than memory can send them."""
    target = resolve("cuda")
    prepare = partial(pack, spec=target.spec)

    def check() -> None:
        warm, cold = (
            Measured(target, prepare, cold=by).task(product()) for by in (None, Uncached())
        )
        assert (warm.source, cold.source) == ("measured", "measured")
        assert cold.us > 1.15 * warm.us
        assert 2 * WIDE * DEEP / (cold.us * 1e-6) < 1.05 * target.spec.bandwidth

    patiently(check)
