"""Attention in Triton's interpreter: any lengths, heads, strides and masks, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled
from torch import Tensor

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task
from anabranch.ir.variant import PdlMode
from anabranch.kernels.triton.attention import tiles
from anabranch.kernels.triton.attention_axes import OPERATOR, Attention, attention_of
from anabranch.kernels.triton.attention_tiles import TRIED_SPLITS, TRIED_TILES, ranked
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.provider import TritonProvider

SMALL = settings(max_examples=8, deadline=None)
WHOLE = ["attention:16x16.w4.s2", "attention:32x16.w4.s2", "attention:16x64.w4.s1"]
SPLIT = ["attention:16x16.k3.w4.s2", "attention:16x32.k8.w4.s1"]
TILES = [*WHOLE, *SPLIT]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False,
           **named: Any) -> tuple[Graph, list[Tensor]]:  # fmt: skip
    return body(OPERATOR, (q, k, v, mask, 0.0, causal, named))


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
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
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
    graph, tensors = attend(
        q, k, v, mask, causal=look == "causal", scale=scale, enable_gqa=group > 1
    )
    check(graph, [tile], tensors)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((5, 8), (7, 8), (7, 6)),
        ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
        ((2, 2, 3, 17, 8), (2, 2, 3, 33, 8), (2, 2, 3, 33, 8)),
        ((2, 3, 5, 8), (1, 3, 7, 8), (2, 1, 7, 8)),
    ],
)
def test_any_number_of_dimensions(q: Any, k: Any, v: Any) -> None:
    graph, tensors = attend(torch.randn(q), torch.randn(k), torch.randn(v))
    check(graph, TILES, tensors)


def test_values_that_are_expanded() -> None:
    """One number in memory for a whole axis: of heads, of keys, of queries."""
    q, k, v = (heads(2, 3, n, 8) for n in (20, 37, 37))
    mask = torch.randn(1, 1, 1, 37).expand(2, 3, 20, 37)
    for given_k, given_v in (
        (k[:, :1].expand_as(k), v),
        (k[:, :, :1].expand_as(k), v[:1, :1, :1].expand_as(v)),
    ):
        graph, tensors = attend(q, given_k, given_v, mask)
        check(graph, TILES, tensors)
    graph, tensors = attend(
        q[:, :, :1].expand_as(q), k[..., :1].expand_as(k), v, mask[..., :1].expand_as(mask)
    )
    check(graph, TILES, tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("tile", TILES)
def test_a_row_that_looks_at_nothing_is_zero(tile: str, dtype: torch.dtype) -> None:
    """Rows that look at nothing, at nothing in the first block, at nothing after it."""
    q, k, v = (heads(1, 1, n, 8, dtype) for n in (4, 60, 60))
    mask = torch.ones(4, 60, dtype=torch.bool)
    mask[0], mask[1, :50], mask[2, 16:] = False, False, False
    for given_mask in (mask, torch.zeros(4, 60, dtype=dtype).masked_fill(~mask, -torch.inf)):
        graph, tensors = attend(q, k, v, given_mask)
        check(graph, [tile], tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tile", [WHOLE[0], WHOLE[2], *SPLIT])
def test_a_row_of_the_lowest_numbers_looks_at_all_keys_alike(tile: str, dtype: torch.dtype) -> None:
    """As masks of transformers have it where a token is padding: in eager such a row is a mean."""
    q, k, v = (heads(1, 1, n, 8, dtype) for n in (4, 60, 60))
    mask = torch.zeros(4, 60, dtype=dtype)
    mask[0], mask[1, :50], mask[2, 16:] = (torch.finfo(dtype).min,) * 3
    graph, tensors = attend(q, k, v, mask)
    check(graph, [tile], tensors)
    eager = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)[0, 0, 0]
    torch.testing.assert_close(eager.float(), v[0, 0].float().mean(0), atol=1e-2, rtol=1e-2)


def test_large_products_do_not_overflow() -> None:
    q, k, v = (heads(1, 2, n, 16) for n in (20, 50, 50))
    graph, tensors = attend(200 * q, k, v)
    check(graph, TILES, tensors)


AROUND = {
    "after": """
    graph after {
      input %q: f16[2,3,21,16]{1008,16,48,1}
      input %k: f16[2,3,37,16]{1776,16,48,1}
      input %v: f16[2,3,37,24]{2664,24,72,1}
      input %x: f16[2,21,3,24]
      const %s: f16[24] = s
      %a: f16[2,3,21,24]{1512,24,72,1} = aten.scaled_dot_product_attention.default(%q, %k, %v)
      %m: f16[2,3,21,24]{1512,24,72,1} = aten.mul.Tensor(%a, %s)
      %t: f16[2,21,3,24] = aten.transpose.int(%m, 1, 2)
      %r: f16[2,21,3,24] = aten.add.Tensor(%t, %x)
      return %r
    }""",
    "one query": """
    graph one {
      input %q: f32[2,3,1,16]
      input %k: f32[2,3,37,16]
      input %v: f32[2,3,37,16]
      input %x: f32[2,3,1,16]
      %a: f32[2,3,1,16] = aten.scaled_dot_product_attention.default(%q, %k, %v)
      %r: f32[2,3,1,16] = aten.add.Tensor(%a, %x)
      return %r
    }""",
    "before": """
    graph before {
      input %q: f16[1,19,32]
      const %k: f16[1,2,23,12] = k
      input %v: f16[1,2,23,16]
      const %b: b1[19,23] = b
      %w: f16[1,19,2,16] = aten.view.default(%q, [1, 19, 2, 16])
      %n: f16[1,19,2,12]{608,32,16,1} = aten.slice.Tensor(%w, 3, 1, 13)
      %t: f16[1,2,19,12]{608,16,32,1} = aten.transpose.int(%n, 1, 2)
      %e: f16[1,2,23,12] = aten.neg.default(%k)
      %r: f16[1,2,19,16]{608,16,32,1} = aten.scaled_dot_product_attention.default(%t, %e, %v, %b)
      return %r
    }""",
    "two": """
    graph two {
      input %q: f16[1,2,19,16]
      input %k: f16[1,2,23,16]
      input %v: f16[1,2,23,16]
      %r: f16[1,2,19,16] = aten.scaled_dot_product_attention.default(%q, %k, %v)
      %s: f16[1,2,23,16] = aten.scaled_dot_product_attention.default(%k, %k, %v)
      return %r, %s
    }""",
}


@pytest.mark.parametrize("name", AROUND)
def test_with_what_stands_around_it(name: str) -> None:
    graph = read(AROUND[name])
    if name == "two":
        offers = variants(graph, gpu())
        assert all(str(offer).startswith("horizontal:attention") for offer in offers)
        check(graph, offers[:2])
    else:
        check(graph, TILES)


def test_nothing_that_may_still_be_written_is_read_before_the_wait() -> None:
    graph = read(AROUND["before"])
    check(graph, [f"{tile}.p{mode}" for tile in TILES for mode in PdlMode])
    text = program(graph, f"{WHOLE[2]}.pe").text
    assert "attn_mask_ptr" in text.partition("gdc_wait")[0].rpartition("row =")[2]


Q = torch.randn(1, 2, 9, 8)
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "dropout": ((Q, Q, Q, None, 0.1), "dropout"),
    "double": ((Q.double(), Q.double(), Q.double()), "float64"),
    "wide": ((torch.randn(1, 1, 4, 257),) * 3, "257 numbers"),
    "narrow": ((Q, Q, torch.randn(1, 2, 9, 1)), "a head of 1 numbers"),
    "negative": ((Q, Q, Q, None, 0.0, False, {"scale": -0.5}), "scale of -0.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_sentences(name: str) -> None:
    call, why = REFUSED[name]
    graph, _ = body(OPERATOR, call)
    assert variants(graph, gpu()) == []
    with pytest.raises(ValueError, match=re.escape(why)):
        program(graph, TILES[0])


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("%r: f32[1,2,9,8] = aten.softmax.int(%a, -1)", "of it"),
        ("%r: f32[1,2,72] = aten.view.default(%a, [1, 2, 72])", "other rows"),
        ("%r: f32[1,2,5,8]{144,72,8,1} = aten.slice.Tensor(%a, 2, 0, 5)", "other rows"),
        ("%r: f32[1,2,9,4]{144,72,8,1} = aten.slice.Tensor(%a, 3, 4, 8)", "other rows"),
        ("%r: f32[1,2,9,8] = aten.flip.default(%a, [2])", "other rows"),
        ("%r: f32[1,2,9,8] = aten.digamma.default(%a)", "lowering"),
        ("%r: f32[1,2,9,8] = aten.cumsum.default(%a, 2)", "reduced"),
        ("%r: f32[1,9,9,8] = aten.index_select.default(%a, 1, %i)", "computed"),
        ("%r: f32[1,2,9] = aten.sum.dim_IntList(%a, [3])", "of it"),
    ],
)
def test_what_follows_must_be_made_of_a_block(after: str, why: str) -> None:
    lines = ["graph g {", *(f"input %{n}: f32[1,2,9,8]" for n in "qkv")]
    lines += ["input %i: i64[9]"]
    lines += [f"%a: f32[1,2,9,8] = {OPERATOR}(%q, %k, %v)", after, "return %r", "}"]
    assert why in str(attention_of(read("\n".join(lines))))


def test_what_is_read_must_be_at_hand() -> None:
    lines = ["graph g {", *(f"input %{n}: f32[1,2,9,8]" for n in "qkv")]
    lines += ["%s: f32[1,2,9,8] = aten.softmax.int(%k, -1)"]
    lines += [f"%r: f32[1,2,9,8] = {OPERATOR}(%q, %s, %v)", "return %r", "}"]
    assert "reduced" in str(attention_of(read("\n".join(lines))))


def test_few_programs_get_few_queries_each() -> None:
    """At batch 1 each program's latency counts, at batch 64 what all of them read."""
    short = tiles(attend(*(heads(1, 12, 128, 64).half() for _ in "qkv"))[0], gpu())
    long = tiles(attend(*(heads(64, 12, 512, 64).half() for _ in "qkv"))[0], gpu())
    assert short[0].rows < long[0].rows
    assert len(short) == len(set(short)) == TRIED_TILES
    assert len({tile.warps for tile in short}) > 1


def test_programs_share_the_keys_of_few_queries() -> None:
    """A decoder's single query is shared; queries that fill the GPU by themselves are not."""
    keys = [heads(1, 8, 1024, 64).half() for _ in "kv"]
    one = tiles(attend(heads(1, 32, 1, 64).half(), *keys, enable_gqa=True)[0], gpu())
    shared = [tile for tile in one if tile.split > 1]
    assert len(shared) == TRIED_SPLITS and len(one) == TRIED_TILES + TRIED_SPLITS
    groups = 8
    assert all(groups * tile.split <= 2 * gpu().sms for tile in shared)
    assert max(tile.split for tile in shared) > 2 * gpu().sms // 32, "a group's heads are one block"
    many = tiles(attend(*(heads(1, 12, 1024, 64).half() for _ in "qkv"))[0], gpu())
    assert all(tile.split == 1 for tile in many)


def test_single_queries_of_a_group_are_rows_of_one_block() -> None:
    """They read the keys of the group once; not where each head has a mask of its own."""
    k, v = (heads(2, 2, 70, 16).half() for _ in "kv")
    alike, apart = (torch.rand(2, n, 1, 70) > 0.4 for n in (1, 6))
    for mask, gathered in ((None, True), (alike, True), (apart, False)):
        graph, tensors = attend(heads(2, 6, 1, 16).half(), k, v, mask, enable_gqa=True)
        check(graph, TILES, tensors)
        attention = attention_of(graph)
        assert isinstance(attention, Attention) and attention.gathered == gathered
        assert (attention.batches, attention.m) == ((4, 3) if gathered else (12, 1))
    causal = attention_of(attend(heads(2, 6, 1, 16), *(heads(2, 2, 70, 16) for _ in "kv"),
                                 causal=True, enable_gqa=True)[0])  # fmt: skip
    assert isinstance(causal, Attention) and not causal.gathered, "it sees one key"


def test_heads_that_are_picked_along_with_samples_are_no_rows_of_one_block() -> None:
    """Of the diagonal each head has a sample, and keys, of its own."""
    graph = read(f"""
    graph g {{
      input %q: f32[4,4,1,8]
      input %k: f32[4,2,20,8]
      input %v: f32[4,2,20,8]
      %a: f32[4,4,1,8] = {OPERATOR}(%q, %k, %v, enable_gqa=True)
      %d: f32[1,8,4]{{8,1,40}} = aten.diagonal.default(%a, 0, 0, 1)
      %p: f32[4,1,8]{{40,8,1}} = aten.permute.default(%d, [2, 0, 1])
      %r: f32[4,1,8] = aten.mul.Tensor(%p, 2)
      return %r
    }}""")
    check(graph, TILES)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 32, 1, 1), (2, 2, 32, 16), (2, 2, 32, 16)),
        ((2, 1, 1, 16), (2, 2, 32, 16), (2, 2, 32, 16)),
        ((1, 1, 1, 1), (2, 2, 32, 16), (2, 2, 32, 16)),
        ((2, 32, 1, 16), (2, 2, 1, 16), (2, 2, 32, 1)),
        ((2, 32, 1, 16), (2, 2, 32, 1), (2, 2, 1, 16)),
    ],
)
def test_what_a_body_expands_is_multiplied_whole(q: Any, k: Any, v: Any, dtype: str) -> None:
    """Blocks that end where axes do, so that no mask depends on what the value does not."""
    whole = {"q": (2, 32, 1, 16), "k": (2, 2, 32, 16), "v": (2, 2, 32, 16)}
    lines = ["graph g {"]
    for name, shape in (("q", q), ("k", k), ("v", v)):
        lines.append(f"input %{name}: {dtype}[{','.join(map(str, shape))}]")
    for name, shape in whole.items():
        given = body("aten.expand.default", (torch.empty({"q": q, "k": k, "v": v}[name]), shape))
        kind = given[0].nodes[0].type.text.partition("[")[2]
        lines.append(f"%{name}e: {dtype}[{kind} = aten.expand.default(%{name}, {list(shape)})")
    call = f"{OPERATOR}(%qe, %ke, %ve, enable_gqa=True)"
    lines += [f"%r: {dtype}[2,32,1,16] = {call}", "return %r", "}"]
    check(read("\n".join(lines)), TILES)


def test_values_that_are_one_number_are_multiplied_whole() -> None:
    graph = read(f"""
    graph g {{
      input %q: f16[1,2,16,16]
      input %k: f16[1,2,32,16]
      %v: f16[1,2,32,16] = aten.full.default([1, 2, 32, 16], 0.5, dtype=torch.float16)
      %r: f16[1,2,16,16] = {OPERATOR}(%q, %k, %v)
      return %r
    }}""")
    check(graph, TILES)


def test_a_split_is_equal_to_the_bit_in_every_run() -> None:
    """Parts are put together in their order, whoever comes last, and the counter is 0 again."""
    q, k, v = heads(1, 2, 1, 16).half(), heads(1, 2, 90, 16).half(), heads(1, 2, 90, 16).half()
    graph, tensors = attend(q, k, v)
    check(graph, [SPLIT[0], SPLIT[0]], tensors)
    call = program(graph, SPLIT[0])
    assert (call.grid, call.counters, call.scratch) == ((2, 3, 1), 2, 2 * 3 * (16 + 2) * 4)


def test_tiles_that_do_not_fit_are_not_ranked() -> None:
    graph, _ = attend(*(heads(1, 2, 300, 256).half() for _ in "qkv"))
    found = attention_of(graph)
    assert not isinstance(found, Refused)
    small = replace(gpu(), shared_per_sm=102400)
    tiles = ranked(found, small)
    assert tiles and len(tiles) < len(ranked(found, gpu()))
    for tile, _ in tiles:
        assert 2 * (tile.rows * 256 + tile.stages * tile.places * 512) < 102400


def test_the_provider_offers_it() -> None:
    graph, _ = attend(*(heads(1, 2, 9, 8) for _ in "qkv"))
    spec = replace(gpu(), simulated=True, tf32=True)
    kernels = TritonProvider().kernels(Task("a", graph), spec)
    assert kernels and {kernel.name for kernel in kernels} == {"attention"}
    assert all('input_precision="tf32"' in (kernel.source or "") for kernel in kernels)


HALF, FULL = torch.bfloat16, torch.float32
OFFERED: dict[str, tuple[tuple[Tensor, ...], bool]] = {
    "causal": (tuple(heads(1, 12, 512, 64, HALF, True) for _ in "qkv"), True),
    "wide": (tuple(heads(1, 2, 200, 256, HALF) for _ in "qkv"), False),
    "plain fp32": (tuple(heads(1, 12, 128, 64, FULL, True) for _ in "qkv"), False),
    "split": ((heads(1, 8, 1, 64, HALF), *(heads(1, 8, 1024, 64, HALF) for _ in "kv")), False),
}


@pytest.mark.parametrize(
    ("name", "capability"),
    [("causal", 80), ("causal", 90), ("wide", 80), ("plain fp32", 90), ("split", 90)],
)
def test_what_is_offered_compiles_without_spills(
    name: str, capability: int, tmp_path: Path
) -> None:
    tensors, causal = OFFERED[name]
    graph, _ = attend(*tensors, causal=causal)
    offers = variants(graph, gpu())
    for variant in offers[-1:] if name == "split" else offers[:2]:
        found = compiled(program(graph, variant), capability, tmp_path)
        stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
        assert stack <= SPILLED and not local, f"{variant}: {found['usage']}"
        assert ("mma" in found["ptx"]) == (name != "plain fp32")
