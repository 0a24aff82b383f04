"""Attention in Triton's interpreter: any lengths, heads, strides and masks, and what is refused."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import body
from tests.kernels.triton.interpreter import check
from torch import Tensor

from anabranch.ir.graph import Graph
from anabranch.kernels.triton.attention_roles import OPERATOR

SMALL = settings(max_examples=30, deadline=None)
TILES = ["attention:16x16.w4.s2", "attention:32x16.w4.s2", "attention:16x64.w4.s1"]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False,
           dropout: float = 0.0, **named: Any) -> tuple[Graph, list[Tensor]]:  # fmt: skip
    return body(OPERATOR, (q, k, v, mask, dropout, causal, named))


def heads(batch: int, heads: int, length: int, size: int, dtype: torch.dtype = torch.float32,
          turned: bool = False) -> Tensor:  # fmt: skip
    """Heads side by side within a token, as linear layers leave them, or one after the other."""
    if turned:
        return torch.randn(batch, length, heads, size).to(dtype).transpose(1, 2)
    return torch.randn(batch, heads, length, size).to(dtype)


@SMALL
@given(
    batch=st.integers(1, 2),
    groups=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    sizes=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    turned=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    look=st.sampled_from(["all", "causal", "bool", "float"]),
    shape=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    scale=st.sampled_from([None, 0.3, 2.0]),
    # Not bfloat16: the interpreter's dot multiplies its bits as integers.
    dtype=st.sampled_from([torch.float16, torch.float32]),
    tile=st.sampled_from(TILES),
)
def test_attention_of_any_shape(
    batch: int, groups: tuple[int, int], lengths: tuple[int, int], sizes: tuple[int, int],
    turned: tuple[bool, bool, bool], look: str, shape: tuple[bool, bool, bool, bool],
    scale: float | None, dtype: torch.dtype, tile: str,
) -> None:  # fmt: skip
    each, group = groups
    q = heads(batch, each * group, lengths[0], sizes[0], dtype, turned[0])
    k = heads(batch, each, lengths[1], sizes[0], dtype, turned[1])
    v = heads(batch, each, lengths[1], sizes[1], dtype, turned[2])
    mask = None
    if look in ("bool", "float"):
        full = (batch, each * group, *lengths)
        mask = torch.randn([n if there else 1 for n, there in zip(full, shape, strict=True)])
        # Rows that may look at nothing are among them.
        mask = mask > 0.5 if look == "bool" else torch.where(mask > 0.3, mask, -torch.inf)
        mask = mask if look == "bool" else mask.to(dtype)
    graph, tensors = attend(q, k, v, mask, look == "causal", scale=scale, enable_gqa=group > 1)
    check(graph, [tile], tensors)
