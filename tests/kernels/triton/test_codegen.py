"""The text of kernels: goldens, that equal bodies have equal texts, and what is refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.samples import SAMPLES

from anabranch.frontend import capture
from anabranch.ir.graph import Graph
from anabranch.ir.key import canonical, code
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.ir.tiles import GRAMMARS, ContractionTile, HorizontalTile, WindowTile
from anabranch.ir.variant import Variant
from anabranch.kernels.triton import codegen
from anabranch.kernels.triton.codegen import (
    TEMPLATES,
    LaunchSize,
    launch_size,
    program,
    variants,
    why_none,
)
from anabranch.kernels.triton.contraction_tiles import ADDED_FIRST, TRIED_TILES
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.kernels.triton.statements import KernelTree, wrapped

H200 = TargetSpec("cuda", "NVIDIA H200", sms=132, capability=(9, 0), simulated=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    variant, text = SAMPLES[name]
    written = program(parse_graph(text), variant)
    golden(f"kernels/{name}.py.txt", written.text)
    ast.parse(written.text)


def test_kernels_of_zeros_that_are_equal_and_yet_differ_are_two() -> None:
    text = """
    graph g {
      input %x: f32[64]
      %y: f32[64] = aten.div.Tensor(%x, ZERO)
      return %y
    }"""
    zeros = [parse_graph(text.replace("ZERO", zero)) for zero in ("0.0", "-0.0")]
    plus, minus = (program(body, "pointwise:64.w1").text for body in zeros)
    assert plus != minus and "-1.0" in minus and "-1.0" not in plus


@pytest.mark.parametrize("name", SAMPLES)
def test_names_of_the_model_change_only_the_comment(name: str) -> None:
    variant, text = SAMPLES[name]
    body = parse_graph(text)
    ours, other = program(body, variant), program(canonical(body, content=False), variant)
    assert ours.text != other.text and code(ours.text) == code(other.text)
    assert ours.grid == other.grid and ours.dtypes == other.dtypes


@pytest.mark.parametrize("name", SAMPLES)
def test_pointers_are_what_is_read_and_written(name: str) -> None:
    variant, text = SAMPLES[name]
    body = parse_graph(text)
    written = program(body, variant)
    held = {state.name for state in body.states}  # of which nothing is read
    named = [v.name for v in body.inputs if v.name not in held] + [c.name for c in body.constants]
    assert written.pointers == (*named, *(ref.name for ref in body.outputs))
    parameters = re.search(rf"def {written.entry}\((.*)\):", written.text)
    own = bool(written.scratch) + bool(written.counters)
    assert parameters and len(parameters[1].split(", ")) == len(written.pointers) + own


@pytest.mark.parametrize("name", SAMPLES)
def test_variants_are_few_and_written(name: str) -> None:
    body = parse_graph(SAMPLES[name][1])
    found = variants(body, gpu(132))
    most = TRIED_TILES + ADDED_FIRST if name.startswith("contraction") else 8
    most += 6 if name == "rows_that_are_shared" else 0  # three tiles, twice
    assert 1 <= len(found) <= most and len(set(found)) == len(found)
    for variant in found:
        assert name.startswith(variant.template)
        assert program(body, variant).ctas >= 1


@pytest.mark.parametrize("name", SAMPLES)
def test_the_size_of_a_launch_is_that_of_the_written_kernel(name: str) -> None:
    body = parse_graph(SAMPLES[name][1])
    sizes, launches = [], []
    for variant in variants(body, gpu(132)):
        assert not isinstance(variant.tile, HorizontalTile)
        sizes.append(launch_size(body, variant.tile))
        written = program(body, variant)
        launches.append(LaunchSize(written.ctas, written.warps))
    assert sizes == launches


@pytest.mark.parametrize("name", ["contraction", "pointwise", "rows", "scatter", "window"])
def test_the_size_of_a_launch_needs_no_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = parse_graph(next(text for key, (_, text) in SAMPLES.items() if key.startswith(name)))
    tiles = [variant.tile for variant in variants(body, gpu(132))]
    monkeypatch.setitem(TEMPLATES, name, replace(TEMPLATES[name], write=_nobody_writes))
    codegen._program.cache_clear()
    codegen._tree.cache_clear()
    for tile in tiles:
        assert not isinstance(tile, HorizontalTile)
        assert launch_size(body, tile).ctas >= 1


def _nobody_writes(body: Graph, tile: object) -> KernelTree:
    raise AssertionError(f"a text was written for {tile}")


def test_a_tile_that_no_kernel_has_is_no_launch() -> None:
    body = parse_graph(SAMPLES["contraction"][1])
    for tile in (ContractionTile(1, 8, 64, 1, 2, 2), WindowTile(16, 64, 1, 4)):
        with pytest.raises(ValueError, match=r"suit|reduc|window"):
            program(body, Variant(tile))
        with pytest.raises(ValueError, match=r"suit|reduc|window"):
            launch_size(body, tile)


def test_the_provider_offers_each_variant() -> None:
    body = parse_graph(SAMPLES["window"][1])
    kernels = TritonProvider().kernels(Task("depth", body), H200)
    assert [k.variant for k in kernels] == variants(body, gpu(132))
    assert {(k.provider, k.name, k.writes_out, k.launches) for k in kernels} == {
        ("triton", "window", True, 1)
    }
    assert kernels[0].source == program(body, kernels[0].variant).text
    assert TritonProvider().kernels(Task("depth", body), TargetSpec("cpu", "a CPU")) == []
    old = TargetSpec("cuda", "an old GPU", capability=(7, 5), simulated=True)
    assert TritonProvider().kernels(Task("depth", body), old) == []


def test_a_provider_that_prunes_by_the_limit_offers_other_tiles_under_another_version() -> None:
    """What was decided among other candidates is not recalled."""
    task = Task("product", parse_graph(SAMPLES["contraction"][1]))
    usual, limited = TritonProvider(), TritonProvider(pruning="limit")
    assert usual.version != limited.version
    offered = [kernel.variant for kernel in limited.kernels(task, H200)]
    assert offered == variants(task.body, H200, "limit")
    assert offered and offered != variants(task.body, H200)
    depth = Task("depth", parse_graph(SAMPLES["window"][1]))
    assert [k.variant for k in limited.kernels(depth, H200)] != variants(depth.body, H200)
    unlimited = Task("attention", parse_graph(SAMPLES["attention"][1]))  # has no upper limit
    assert limited.kernels(unlimited, H200) == usual.kernels(unlimited, H200) != []


def test_stores_name_their_bounds_in_the_order_of_the_address() -> None:
    """Recorded times are found by the text: in another order each of these would be estimated."""
    text = """
    graph g {
      input %x: f16[1,168,42,42]{296352,1,7056,168}
      const %w: f16[168,168,1,1] = w
      %y: f16[1,168,42,42]{296352,1,7056,168} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      return %y
    }
    """  # noqa: E501
    written = program(parse_graph(text), "contraction:64x64x32.k1.w4.s4").text
    assert "total.to(tl.float16), mask=row_in & col_in)" in written


def test_long_lines_are_wrapped_at_a_call() -> None:
    line = "    total = (a + b) * tl.maximum(" + "x" * 60 + ", y[:, None]" + ", 0.0) + (c * d)"
    assert wrapped(line) == [
        "    total = (a + b) * tl.maximum(",
        "        " + "x" * 60 + ",",
        "        y[:, None],",
        "        0.0,",
        "    ) + (c * d)",
    ]
    assert wrapped("a = " + "(b + c) * " * 12 + "d") == ["a = " + "(b + c) * " * 12 + "d"]


REFUSED = {
    "unknown": ("%r: f32[4] = aten.digamma.default(%x)", "has no lowering"),
    "complex": ("%r: c64[4] = aten._to_copy.default(%x, dtype=torch.complex64)", "no kernels"),
    "norm": ("%r: f32[] = aten.linalg_vector_norm.default(%x, 3)", "norm of order 3"),
    "order": ("%r: f32[4], %r.1: i64[4] = aten.sort.default(%x)", "no lowering"),
}


A_TILE_OF_EACH = (
    *("pointwise:512.w2", "window:8x8u1.w1", "rows:2x64.w4", "contraction:16x16x16.k1.w4.s2"),
    *("attention:16x16.w4.s2", "gemm_chain:16x16x16x16.k1.w4.s1", "recurrence:128.u8.w4"),
    "sequence:16x16x64.w4.s3",
)


def test_every_template_has_a_grammar_for_its_tiles() -> None:
    assert TEMPLATES.keys() == GRAMMARS.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_sentences(name: str) -> None:
    line, why = REFUSED[name]
    body = parse_graph(f"graph g {{\n input %x: f32[4]\n {line}\n return %r\n}}")
    assert variants(body, gpu(132)) == []
    stateless = TEMPLATES.keys() - {"scatter"}
    assert {tile.partition(":")[0] for tile in A_TILE_OF_EACH} == stateless
    for tile in A_TILE_OF_EACH:
        with pytest.raises(ValueError, match=re.escape(why)):
            program(body, tile)


def test_templates_refuse_what_is_not_theirs() -> None:
    softmax = parse_graph(SAMPLES["rows_in_blocks"][1])
    for variant, why in (
        ("pointwise:128.w4", "reduces"),
        ("window:8x8u1.w1", "reduction"),
        ("rows:7", "no variant"),
        ("scan:1", "no template"),
    ):
        with pytest.raises(ValueError, match=why):
            program(softmax, variant)


def test_an_empty_tensor_has_no_kernel() -> None:
    body = parse_graph(
        "graph g {\n input %x: f32[0,4]\n %r: f32[0,4] = aten.relu.default(%x)\n return %r\n}"
    )
    assert variants(body, gpu(132)) == []


def test_a_large_tensor_is_addressed_in_64_bits() -> None:
    body = parse_graph(
        "graph g {\n input %x: f32[1200000000,4]\n"
        " %r: f32[1200000000,4] = aten.relu.default(%x)\n return %r\n}"
    )
    assert ".to(tl.int64)" in program(body, "pointwise:1024.w4").text


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.nn.functional.linear(x, x).softmax(-1), "contraction: it has several"),
        (lambda x: x.softmax(0).softmax(1), "rows: it reduces over different axes"),
        (lambda x: torch.nn.functional.linear(x.double(), x.double()), "adds up in torch.float64"),
        (lambda x: x.digamma(), "digamma.default has no lowering"),
    ],
)
def test_why_no_template_fits(function: Callable[[torch.Tensor], torch.Tensor], said: str) -> None:
    graph = capture(function, (torch.randn(40, 64),)).graph
    assert not variants(graph, gpu(132)) and said in why_none(graph)
