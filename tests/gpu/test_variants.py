"""Many kernels of one body, compiled together and timed in graphs, in every mode of launch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from benchmarks.attentions import Sizes
from benchmarks.kernel_timing import Bench
from benchmarks.layers import attention, linear
from tests.kernels.dfg.test_concat_stores import recurrence
from tests.kernels.triton.bodies import renormed, summed
from tests.kernels.triton.gemm_chains import convolutions
from tests.kernels.triton.loops import average, graph_of, hidden
from tests.kernels.triton.test_persistent import fused

from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import PdlMode, Variant, parse_variant
from anabranch.kernels.triton.codegen import variants
from anabranch.kernels.triton.contraction import tiles


def test_every_mode_computes_the_same_and_has_a_time() -> None:
    bench = Bench.of()
    for rows in (1, 40):
        body = linear(rows, 512, 96)
        few = list(map(Variant, tiles(body, bench.spec)[:2]))
        modes = PdlMode if bench.spec.capability >= (9, 0) else ()
        found = bench.times((body, [*few, *(f"{v}.p{mode}" for v in few for mode in modes)]))
        refused = {variant: why for variant, why in found.items() if isinstance(why, str)}
        assert not refused and len(found) == len(few) * (1 + len(modes))
        assert all(isinstance(us, float) and 0.2 < us < 200 for us in found.values())


def share(offered: Sequence[Variant], dtype: str) -> Sequence[Variant]:
    """A third of the variants, another one for each dtype: dtypes differ by how kernels load and
    round, tiles by how they walk."""
    return offered[("f16", "bf16", "f32").index(dtype) :: 3] or offered[:1]


def wrong(bench: Bench, body: Graph, offered: Sequence[Variant]) -> dict[str, str]:
    """Why variants that are offered are refused, each once and the first one in every mode."""
    assert offered
    modes = PdlMode if bench.spec.capability >= (9, 0) else ()
    tried: list[Variant | str] = [*offered, *(f"{offered[0]}.p{mode}" for mode in modes)]
    found = bench.times((body, tried), each=0.0)
    return {variant: why for variant, why in found.items() if isinstance(why, str)}


ATTENTIONS = (
    ((12, 128, 128, 64), False, False),
    ((3, 197, 61, 40), True, False),
    ((2, 1, 300, 128), False, True),
    ((2, 70, 70, 256), False, True),
    ((32, 1, 1024, 64), False, True),
)
"""Heads, queries, keys, numbers of a head; whether causal, whether masked."""


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "tf32"])
def test_attention_is_right_in_every_tile_and_mode(dtype: str) -> None:
    bench = Bench.of(tf32=dtype == "tf32")
    for sizes, causal, masked in ATTENTIONS:
        body = attention(*sizes, dtype.removeprefix("t"), causal, "b1" if masked else "")
        offered = variants(body, bench.spec)  # those that share keys are first, if any
        refused = wrong(bench, body, offered) | wrong(bench, body, offered[-1:])
        assert not refused, f"{sizes}: {refused}"


def test_single_queries_of_groups_are_right_in_every_tile_and_mode() -> None:
    bench = Bench.of()
    for sizes in (
        Sizes(2, 8, 1, 64, keys=300, shared=2),
        Sizes(1, 32, 1, 128, keys=1024, shared=8),
    ):
        body = sizes.body()
        assert wrong(bench, body, variants(body, bench.spec)) == {}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "tf32"])
def test_sums_of_rows_are_right_in_every_tile_and_mode(dtype: str) -> None:
    """Of parts of the rows that are made, and of those that are multiplied, as a norm before a
    linear becomes; sums of rows are results where there are several of them."""
    bench = Bench.of(tf32=dtype == "tf32")
    known = {"f16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
    bodies = {
        "made": summed((1, 128), 768, 768, 32, known),
        "made, few": summed((2, 37), 96, 192, 64, known),
        "multiplied": renormed((1, 128), 768, 2304, 24, known),
        "multiplied, few": renormed((3, 5), 70, 33, 3, known),
        "one row": renormed((1,), 512, 96, 16, known, "%out"),
    }
    for name, body in bodies.items():
        refused = wrong(bench, body, list(map(Variant, tiles(body, bench.spec))))
        assert not refused, f"{name}: {refused}"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_persistent_ctas_are_right_in_every_mode(dtype: str) -> None:
    """Where tiles are ragged on all sides, and where something is computed behind the product."""
    bench = Bench.of()
    if bench.spec.capability < (9, 0):
        pytest.skip("needs a tensor memory accelerator: compute capability 9.0")
    bodies = [linear(3333, 264, 1030, dtype), linear(4284, 768, 2304, dtype)]
    bodies += [fused(2142, 1536)] if dtype == "f16" else []
    for body in bodies:
        walked = [v for v in variants(body, bench.spec) if ".g" in str(v)]
        other = f"contraction:128x128x64.k1.w4.s3.g{bench.spec.sms}"
        refused = wrong(bench, body, [*walked, parse_variant(other)])
        assert not refused, f"{body.name}: {refused}"


POOL = """
graph squeeze {{
  input %x: {0}[1,{1},{2},{2}]{{{3},1,{4},{1}}}
  %pool: {0}[1,{1},1,1] = aten.adaptive_avg_pool2d.default(%x, [1, 1])
  return %pool
}}"""
WIDEST = """
graph widest {{
  input %x: {0}[3,70001]
  %far: {0}[3] = aten.amax.default(%x, [1])
  %sum: {0}[3] = aten.sum.dim_IntList(%x, [1])
  %both: {0}[3] = aten.mul.Tensor(%far, %sum)
  return %both
}}"""


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_rows_that_several_ctas_share_are_right_in_every_tile_and_mode(dtype: str) -> None:
    """Their counters are zero again after each run: every replay sums up anew."""
    bench = Bench.of()
    texts = [WIDEST.format(dtype)]
    for channels, side in ((32, 112), (96, 56), (40, 33)):
        sizes = (channels, side, channels * side * side, channels * side)
        texts.append(POOL.format(dtype, *sizes))
    for body in map(parse_graph, texts):
        shared = [v for v in variants(body, bench.spec) if ".k" in str(v)]
        refused = wrong(bench, body, shared)
        assert not refused, f"{body.name}: {refused}"


SCANS = """
graph running {{
  input %x: {0}[{1}]
  %r: {0}[{1}] = aten.{3}.default(%x)
  %far: {0}[{1}] = aten.{4}.default(%r, {2})
  %out: {0}[{1}] = aten.sub.Tensor(%far, %x)
  return %out
}}"""
ARG_SCANS = """
graph extremes {{
  input %x: {0}[{1}]
  %top: {0}[{1}], %top.1: i64[{1}] = aten.{3}.default(%x, {2})
  return %top, %top.1
}}"""
BACK = """
graph back {{
  input %x: {0}[{1}]
  %r: {0}[{1}] = aten.flip.default(%x, [{2}])
  %c: {0}[{1}] = aten.cumsum.default(%r, {2})
  %out: {0}[{1}] = aten.flip.default(%c, [{2}])
  return %out
}}"""
RUN_ALONG = (("4,300,24", 0), ("4,300,24", 1), ("6,20", 1), ("3,1,13", -1), ("5,20011", 1))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_running_folds_are_right_in_tiles_of_all_kinds(dtype: str) -> None:
    """Held and walked, along the axis that lies side by side and along others, both ways."""
    bench = Bench.of()
    for shape, axis in RUN_ALONG:
        texts = [
            SCANS.format(dtype, shape, axis, "relu", "cumsum"),
            SCANS.format(dtype, shape, axis, "sigmoid", "cumprod"),
            SCANS.format(dtype, shape, axis, "relu", "logcumsumexp"),
            *(ARG_SCANS.format(dtype, shape, axis, name) for name in ("cummax", "cummin")),
            BACK.format(dtype, shape, axis),
        ]
        for body in map(parse_graph, texts):
            found = [v for v in variants(body, bench.spec) if v.template == "rows"]
            assert found, f"{body.name} of {shape}"
            refused = wrong(bench, body, share(found, dtype))
            assert not refused, f"{body.nodes[0].op} of {shape}: {refused}"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("steps", [40, 99, 512])
def test_recurrences_are_right_in_tiles_of_all_kinds(steps: int, dtype: str) -> None:
    """Steps that fill blocks and such that do not, few elements and many."""
    bench = Bench.of()
    for channels in (5, 512, 200_000):
        body = parse_graph(recurrence(steps, channels, dtype))
        found = [v for v in variants(body, bench.spec) if v.template == "recurrence"]
        refused = wrong(bench, body, share(found, dtype))
        assert not refused, f"{channels}: {refused}"


def test_other_recurrences_are_right_in_every_tile_and_mode() -> None:
    """Any axis of time, both directions, several states."""
    bench = Bench.of()
    shapes = {0: (300, 3, 70), 1: (3, 300, 70), 2: (3, 70, 300)}
    graphs = [
        graph_of(lambda x, dim=dim, back=back: average(x, dim, back), torch.randn(shape))
        for dim, shape in shapes.items()
        for back in (False, True)
    ]
    gates = [torch.randn(2, 100, 190) for _ in range(3)]
    graphs.append(graph_of(hidden, *gates, torch.randn(2, 190), torch.randn(2, 190)))
    for body in graphs:
        found = [v for v in variants(body, bench.spec) if v.template == "recurrence"]
        refused = wrong(bench, body, found)
        assert not refused, f"{body.inputs[0].type.text}: {refused}"


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "tf32"])
def test_what_excites_channels_is_right_in_every_tile_and_mode(dtype: str) -> None:
    """Two products of one pixel with few channels between, and the second by itself."""
    bench = Bench.of(tf32=dtype == "tf32")
    kind = dtype.removeprefix("t")
    for channels, middle in ((32, 8), (96, 4), (480, 20), (1152, 48)):
        both = convolutions(channels, (1, 1), middle, channels, taps=(1, 1), dtype=kind)
        for body in (both, linear(1, middle, channels)):
            refused = wrong(bench, body, variants(body, bench.spec))
            assert not refused, f"{channels} by {middle}: {refused}"


def test_what_cannot_be_compiled_is_refused_with_a_sentence() -> None:
    bench, body = Bench.of(), linear(64, 4096, 4096)
    huge = "contraction:128x128x128.k1.w4.s5"  # 320 KB of shared memory
    found = bench.times((body, [huge, "contraction:64x64x64.k1.w4.s3"]), None, 0.0)
    assert isinstance(found[huge], str) and found[huge]
    assert isinstance(found["contraction:64x64x64.k1.w4.s3"], float)
