"""Persistent CTAs in Triton's interpreter, what they are refused for, and what compiles of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import compiled
from torch import Tensor

from anabranch.ir.graph import Graph, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.tiles import ContractionTile, HorizontalTile, parse_tile
from anabranch.ir.variant import Variant, undescribed
from anabranch.kernels.triton import contraction, persistent
from anabranch.kernels.triton.codegen import program, variants
from anabranch.targets.cuda.compile_worker import compile_text

LAST = torch.channels_last
FEW = "contraction:64x32x32.k1.w4.s2.g3"
"""Three CTAs walk over all tiles."""


def linear(rows: int, depth: int, columns: int, dtype: torch.dtype = torch.float16) -> Graph:
    args = (torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns))
    return body("aten.linear.default", tuple(x.to(dtype) for x in args))[0]


def fused(rows: int, columns: int) -> Graph:
    """gelu(x w^T + b) + y, three-dimensional as transformers have it."""
    return read(f"""\
graph layer {{
  input %x: f16[2,{rows},40]
  input %y: f16[2,{rows},{columns}]
  const %w: f16[{columns},40] = sha256:w
  const %b: f16[{columns}] = sha256:b
  %linear: f16[2,{rows},{columns}] = aten.linear.default(%x, %w, %b)
  %gelu: f16[2,{rows},{columns}] = aten.gelu.default(%linear)
  %sum: f16[2,{rows},{columns}] = aten.add.Tensor(%gelu, %y)
  return %sum
}}
""")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [64, 100, 700])
def test_products_of_any_size(rows: int, dtype: torch.dtype) -> None:
    """Of one column of tiles, of a few, and of more rows of tiles than are counted down."""
    check(linear(rows, 72, 50, dtype), [FEW, f"{FEW}.pn", f"{FEW}.pe"])


def test_what_stands_behind_the_product() -> None:
    check(fused(290, 48), [FEW, FEW.replace("g3", "g132"), f"{FEW}.pl", f"{FEW}.pa"])


MATRICES: dict[str, tuple[str, tuple[Tensor, ...]]] = {
    "weights by rows": ("aten.mm.default", (torch.randn(130, 64), torch.randn(64, 40))),
    "weights by columns": ("aten.mm.default", (torch.randn(130, 64), torch.randn(40, 64).T)),
    "both turned": ("aten.mm.default", (torch.randn(64, 136).T, torch.randn(40, 64).T)),
    "left turned": ("aten.mm.default", (torch.randn(64, 136).T, torch.randn(64, 40))),
    "columns of more": ("aten.mm.default", (torch.randn(130, 96)[:, 16:80], torch.randn(64, 40))),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_as_they_lie(name: str) -> None:
    op, args = MATRICES[name]
    graph, tensors = body(op, tuple(x.half() if x.is_contiguous() else halved(x) for x in args))
    check(graph, [FEW], tensors)


def halved(x: Tensor) -> Tensor:
    """In fp16, as it lies."""
    base = (x._base if x._base is not None else x).half()
    return torch.as_strided(base, x.shape, x.stride(), x.storage_offset())


def test_a_convolution_of_one_pixel() -> None:
    x = torch.randn(2, 32, 9, 11).half().to(memory_format=LAST)
    w = torch.randn(48, 32, 1, 1).half().to(memory_format=LAST)
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    graph, tensors = body("aten.convolution.default", (x, w, torch.randn(48).half(), *rest))
    check(graph, [FEW], tensors)


REFUSED: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "fp32": ("aten.mm.default", (torch.randn(64, 64), torch.randn(64, 64)), "no half type"),
    "rows of 70 numbers": (
        "aten.mm.default",
        (torch.randn(64, 70).half(), torch.randn(70, 64).half()),
        "multiples of 16 bytes",
    ),
    "a stack": (
        "aten.bmm.default",
        (torch.randn(3, 64, 64).half(), torch.randn(3, 64, 64).half()),
        "more than one product",
    ),
    "a window": (
        "aten.convolution.default",
        (
            *(torch.randn(2, 32, 9, 9).half(), torch.randn(32, 32, 3, 3).half(), None),
            *([1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        ),
        "multiples of 16 bytes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_accelerator_cannot_read(name: str) -> None:
    op, args, why = REFUSED[name]
    graph = body(op, args)[0]
    found, tile = contraction.found_in(graph), parse_tile(FEW)
    assert not isinstance(found, Refused) and isinstance(tile, ContractionTile)
    refused = persistent.why_not(found, tile)
    assert refused is not None and why in refused.sentence
    with pytest.raises(ValueError, match=re.escape(why)):
        program(graph, FEW)


def test_where_a_slice_begins_says_its_address_and_not_the_graph() -> None:
    """Who launches the kernel looks at that (`targets.cuda.triton`)."""
    args = (torch.randn(64, 80).half()[:, 2:66], torch.randn(64, 64).half())
    assert program(body("aten.mm.default", args)[0], FEW).described == (0, 1)


def test_large_products_of_hopper_alone_have_such_tiles() -> None:
    def offered(graph: Graph, capability: tuple[int, int] = (9, 0)) -> list[str]:
        spec = replace(gpu(), capability=capability)
        return [str(variant) for variant in variants(graph, spec) if ".g" in str(variant)]

    large = linear(4284, 768, 3072)
    found = offered(large)
    assert found and all(variant.endswith(f".g{gpu().sms}") for variant in found)
    assert str(variants(large, gpu())[0]) in found, "fast tries the first few"
    assert not offered(large, (8, 0)) and not offered(linear(554, 768, 768))
    assert not [v for v in variants(large, gpu(), "limit") if ".g" in str(v)]


def test_no_launch_is_shared_with_them() -> None:
    part = linear(4284, 768, 3072)
    both = Graph(
        "both",
        (*part.inputs, *(replace(x, name=f"{x.name}_2") for x in part.inputs)),
        (),
        (*part.nodes, *_renamed(part)),
        (*part.outputs, *(replace(ref, name=f"{ref.name}_2") for ref in part.outputs)),
    )
    offered = variants(both, gpu())
    assert offered and all(isinstance(variant.tile, HorizontalTile) for variant in offered)
    assert not [variant for variant in offered if ".g" in str(variant)]
    own = FEW.replace("g3", "g132")
    with pytest.raises(ValueError, match="share a launch"):
        program(both, f"horizontal:{own}+{own}")


def _renamed(graph: Graph) -> tuple[Any, ...]:
    return tuple(
        replace(
            node,
            name=f"{node.name}_2",
            args=tuple(Ref(f"{a.name}_2") if isinstance(a, Ref) else a for a in node.args),
        )
        for node in graph.nodes
    )


def test_the_same_kernel_without_descriptors() -> None:
    graph = linear(100, 72, 50)
    plain = undescribed(f"{FEW}.pe")
    assert str(plain) == "contraction:64x32x32.k1.w4.s2.pe"
    described, other = program(graph, f"{FEW}.pe"), program(graph, plain)
    assert described.described == (0, 1) and other.described == ()
    assert described.pointers == other.pointers and described.dtypes == other.dtypes


@pytest.mark.parametrize("mode", ["", ".pe"])
def test_they_compile_to_the_accelerator_and_groups_of_warps(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    graph = linear(4284, 768, 3072)
    tile = next(t for t in contraction.tiles(graph, gpu()) if t.ctas > 1)
    found = compiled(program(graph, f"{Variant(tile)}{mode}"), 90, tmp_path)
    assert "cp.async.bulk.tensor" in found["ptx"] and "wgmma.mma_async" in found["ptx"]
    assert "cp.async.cg" not in found["ptx"] and "st.global.v4" in found["ptx"]
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert not stack and not local


def test_the_compiler_asks_for_memory_of_each_cta_and_for_nothing_else(tmp_path: Path) -> None:
    """Descriptors are made there; those of the host would be parameters of the launch."""
    pytest.importorskip("triton")
    written = program(linear(4284, 768, 3072), "contraction:128x256x64.k1.w8.s3.g132")
    request = {
        "text": written.text,
        "entry": written.entry,
        "types": ["*fp16"] * len(written.pointers),
        "aligned": [True] * len(written.pointers),
        "capability": 90,
        "options": {"num_warps": written.warps, "num_stages": written.stages},
        "folder": str(tmp_path),
    }
    answer = compile_text(request)
    assert "refused" not in answer and answer["scratch"] >= 2 * 128
