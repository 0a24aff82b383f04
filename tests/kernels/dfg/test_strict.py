"""What is compiled of strict operations: divisions and roots to the nearest, products on their own;
approximations elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.triton.interpreter import run
from tests.kernels.triton.test_codegen_compiled import compiled

from anabranch.fusion.partition import singly
from anabranch.ir.graph import Graph, types
from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.codegen import program

VARIANT = "pointwise:32.w1"


def body(*lines: str, dtype: str = "f32") -> Graph:
    declared = (f"input %{name}: {dtype}[32]" for name in "xyz")
    inside = "\n".join(f"  {line}" for line in (*declared, *lines, "return %r"))
    return parse_graph(f"graph g {{\n{inside}\n}}")


DIV = "%d: f32[32] = aten.div.Tensor(%x, %y)"
SQRT = "%d: f32[32] = aten.sqrt.default(%x)"
SUM = (
    "%m: f32[32] = aten.mul.Tensor(%x, %y)",
    "%d: f32[32] = aten.add.Tensor(%m, %z)",
)
FLOOR = "%r: f32[32] = aten.floor.default(%d)"
RELU = "%r: f32[32] = aten.relu.default(%d)"
INTS = "%r: i64[32] = aten._to_copy.default(%d, dtype=torch.int64)"
ABOVE = "%r: b1[32] = aten.gt.Tensor(%d, %z)"


@pytest.mark.parametrize(
    ("lines", "found", "missing"),
    [
        ((DIV, FLOOR), "div.rn.f32", "div.full.f32"),
        ((DIV, INTS), "div.rn.f32", "div.full.f32"),
        ((DIV, ABOVE), "div.rn.f32", "div.full.f32"),
        ((DIV, RELU), "div.full.f32", "div.rn.f32"),
        ((SQRT, FLOOR), "sqrt.rn.f32", "sqrt.approx"),
        ((SQRT, RELU), "sqrt.approx", "sqrt.rn.f32"),
        ((*SUM, FLOOR), "mul.rn.f32", "fma.rn"),
        ((*SUM, RELU), "fma.rn", "mul.rn.f32"),
        (("%r: f32[32] = aten.floor_divide.default(%x, %y)",), "div.rn.f32", "div.full.f32"),
        (("%r: f32[32] = aten.remainder.Tensor(%x, %y)",), "", "div.full.f32"),
    ],
)
def test_exact_where_it_decides(
    lines: tuple[str, ...], found: str, missing: str, tmp_path: Path
) -> None:
    ptx = compiled(program(body(*lines), VARIANT), 90, tmp_path)["ptx"]
    assert found in ptx and missing not in ptx


def test_exact_where_a_later_kernel_decides(tmp_path: Path) -> None:
    first, _ = singly(body(DIV, FLOOR)).tasks
    ptx = compiled(program(first.body, VARIANT), 90, tmp_path)["ptx"]
    assert "div.rn.f32" in ptx and "div.full.f32" not in ptx
    alone, _ = singly(body(DIV, RELU)).tasks
    assert "div.full.f32" in compiled(program(alone.body, VARIANT), 90, tmp_path)["ptx"]


def results(graph: Graph, *given: torch.Tensor) -> torch.Tensor:
    values = {value.name: x for value, x in zip(graph.inputs, given, strict=True)}
    (name,) = (ref.name for ref in graph.outputs)
    return run(program(graph, VARIANT), values, {name: types(graph)[name]})[name]


@pytest.mark.parametrize("narrow", ["f16", "bf16"])
def test_a_cast_rounds(narrow: str) -> None:
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[narrow]
    graph = body(
        f"%h: {narrow}[32] = aten._to_copy.default(%x, dtype={dtype})",
        "%w: f32[32] = aten._to_copy.default(%h, dtype=torch.float32)",
        "%r: f32[32] = aten.sub.Tensor(%x, %w)",
    )
    x = torch.randn(32, generator=torch.Generator().manual_seed(1)) * 100
    x[:2] = torch.tensor([65520.0, 1.01171875])
    assert torch.equal(results(graph, x, x, x), x - x.to(dtype).float())


def test_what_halves_are_compared_by_is_rounded_as_it_is_stored() -> None:
    graph = body(
        "%d: f16[32] = aten.div.Tensor(%x, %y)",
        "%r: b1[32] = aten.eq.Tensor(%d, %z)",
        dtype="f16",
    )
    x = torch.arange(1, 33).half()
    y = torch.full((32,), 3.0).half()
    assert bool(results(graph, x, y, x / y).all())


@pytest.mark.parametrize("by", [49.0, -3.0, 0.1, 7.0, 1e-40, 0.0])
@pytest.mark.parametrize(
    "lines",
    [
        ("%d: f32[32] = aten.div.Tensor(%x, {by})", FLOOR),
        ("%r: f32[32] = aten.div.Tensor_mode(%x, {by}, rounding_mode='trunc')",),
    ],
)
def test_a_python_number_divides_by_its_inverse(lines: tuple[str, ...], by: float) -> None:
    """As eager does it on a GPU; a tensor divides."""
    x = torch.arange(-16, 16) * torch.tensor(by)
    inverse = torch.tensor(1.0) / torch.tensor(by)
    whole = torch.floor if len(lines) == 2 else torch.trunc
    found = results(body(*(line.format(by=repr(by)) for line in lines)), x, x, x)
    assert torch.equal(found.nan_to_num(9.0), whole(x * inverse).nan_to_num(9.0))


@pytest.mark.parametrize("by", [49.0, -3.0, 0.1])
def test_whole_quotients_by_a_python_number_are_the_models(by: float) -> None:
    x = torch.arange(-16, 16) * torch.tensor(by)
    near = torch.cat([x[::2], torch.nextafter(x, torch.tensor(torch.inf))[::2]])
    found = results(body(f"%r: f32[32] = aten.floor_divide.default(%x, {by})"), near, near, near)
    assert torch.equal(found, near // by)


@pytest.mark.parametrize(
    ("line", "rounded_before"),
    [
        ("%d: f32[32] = aten.addcmul.default(%z, %x, %y)", 0),
        ("%d: f32[32] = aten.addcmul.default(%z, %x, %y, value=0.3)", 1),
        ("%d: f32[32] = aten.add.Tensor(%z, %x, alpha=0.3)", 0),
        ("%d: f32[32] = aten.sub.Tensor(%z, %x, alpha=0.3)", 0),
        ("%d: f32[32] = aten.addcdiv.default(%z, %x, %y, value=0.3)", 0),
    ],
)
def test_a_product_and_a_sum_of_one_operator_are_rounded_once(
    line: str, rounded_before: int, tmp_path: Path
) -> None:
    """As in ATen's CUDA kernels, which are compiled so."""
    written = program(body(line, "%r: b1[32] = aten.gt.Scalar(%d, 0.0)"), VARIANT)
    ptx = compiled(written, 90, tmp_path)["ptx"]
    assert "fma.rn.f32" in ptx and ptx.count("mul.rn.f32") == rounded_before


@pytest.mark.parametrize("op", ["add", "sub"])
def test_scaled_sums_have_the_models_sign(op: str) -> None:
    line = f"%d: f32[32] = aten.{op}.Tensor(%x, %y, alpha=0.5)"
    x, y = torch.randn(2, 32, generator=torch.Generator().manual_seed(2))
    found = results(body(line, "%r: b1[32] = aten.gt.Scalar(%d, 0.0)"), x, y, x)
    assert torch.equal(found, getattr(torch, op)(x, y, alpha=0.5) > 0)
