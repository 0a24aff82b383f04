"""Tasks timed with copies of their weights by turns."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.gpu.patience import patiently

from anabranch.costs.measured import Measured
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.task import Kernel, Task
from anabranch.ir.tiles import AttentionTile
from anabranch.ir.types import TensorType
from anabranch.ir.uncached import Uncached
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.provider import TritonProvider
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


def attention() -> Task:
    """A query of each of 32 heads, that meets 17 MB of keys and values in eight groups."""
    f16 = torch.float16
    query, kept = (TensorType(shape, f16) for shape in ((8, 32, 1, 64), (8, 8, 1024, 64)))
    inputs = (Input("q", query), Input("k", kept), Input("v", kept))
    op, named = "aten.scaled_dot_product_attention.default", (("enable_gqa", True),)
    node = Node("y", op, (Ref("q"), Ref("k"), Ref("v")), named, (query,))
    body = Graph("y", inputs, (), (node,), (Ref("y"),))
    tile = Variant(AttentionTile(16, 256, 4, 1, split=4))
    return Task("y", body, TritonProvider().kernel(Task("y", body), resolve("cuda").spec, "", tile))


def test_memory_sends_what_a_decoder_has_kept() -> None:
    """So much is in the cache where one run follows the other on the same keys."""
    target, task = resolve("cuda"), attention()
    prepare = partial(pack, spec=target.spec)
    states = Uncached((task.body.inputs[1].type,))

    def check() -> None:
        kept, sent = (
            Measured(target, prepare, cold=way).task(task) for way in (Uncached(), states)
        )
        assert (kept.source, sent.source) == ("measured", "measured")
        assert sent.us > 1.1 * kept.us

    patiently(check)


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


def test_copies_of_weights_have_no_results_of_their_own() -> None:
    """ATen allocates what a convolution returns, here 51 MB, and 48 runs read copies of a small
    weight by turns."""
    f32, shape, kernel = torch.float32, (16, 64, 112, 112), (64, 64, 1, 1)
    x, w = TensorType(shape, f32), TensorType(kernel, f32)
    steps = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    args = (Ref("x"), Ref("w"), None, *steps)
    node = Node("y", "aten.convolution.default", args, (), (x,))
    weight = torch.randn(kernel, device="cuda")
    body = Graph("y", (Input("x", x),), (Constant("w", w, "w", weight),), (node,), (Ref("y"),))
    task = Task("y", body, Kernel("aten", "aten", body))
    target = resolve("cuda")
    measured = Measured(target, partial(pack, spec=target.spec), cold=Uncached())
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert measured.task(task).source == "measured"
    assert torch.cuda.max_memory_allocated() - before < 10 * x.nbytes
