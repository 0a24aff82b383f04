"""Proofs by numbers: each element by what rounding explains; classes where it is not finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.proof import answer, answered
from anabranch.ir.text import parse_graph
from anabranch.targets.cpu.target import CpuTarget

CPU = CpuTarget()


def graph(*lines: str, dtype: str = "f32", out: str = "out") -> Graph:
    text = "".join(f"  {line}\n" for line in lines).replace("F", dtype)
    inputs = f"  input %x: {dtype}[64,64]\n  input %y: {dtype}[64,64]\n"
    return parse_graph(f"graph g {{\n{inputs}{text}  return %{out}\n}}")


PRODUCT = graph("%out: F[64,64] = aten.mm.default(%x, %y)")
FLOORED = graph("%q: F[64,64] = aten.div.Tensor(%x, %y)", "%out: F[64,64] = aten.floor.default(%q)")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_one_wrong_element_of_thousands_is_found(dtype: str) -> None:
    body = graph("%out: F[64,64] = aten.mm.default(%x, %y)", dtype=dtype)
    for seed in range(3):
        _, wanted = answer(body, "finite", seed, CPU)
        out = wanted.own[0].clone()
        assert wanted.differs([out]) is None
        place = int(out.abs().argmin())
        out.view(-1)[place] += 2.0 if dtype == "bf16" else 1.0
        said = str(wanted.differs([out]))
        # Where large numbers were drawn rounding may explain more in half precision.
        assert "1 of 4096 such" in said or dtype != "f32"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sums_in_another_order_are_right(dtype: str) -> None:
    body = graph(
        "%s: F[64] = aten.sum.dim_IntList(%x, [1])",
        "%m: F[64,64] = aten.mm.default(%x, %y)",
        "%e: F[64,64] = aten.sigmoid.default(%m)",
        "%out: F[64,64] = aten.add.Tensor(%e, %s)",
        dtype=dtype,
    )
    for seed in range(5):
        _, wanted = answer(body, "finite", seed, CPU)
        x, y = wanted.inputs
        order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
        kind = torch.float32 if dtype == "f32" else x.dtype
        product = (x[:, order].to(kind) @ y[order].to(kind)).to(x.dtype)
        out = product.sigmoid() + x.flip(1).cumsum(1)[:, -1]
        assert wanted.differs([out.to(x.dtype)]) is None


def test_exact_quotients_are_exact() -> None:
    """A quotient that is off by a unit in its last place is one in the floor of it."""
    _, wanted = answer(FLOORED, "finite", 1, CPU)
    x, y = wanted.inputs
    assert wanted.differs([torch.floor(x / y)]) is None
    low = torch.nextafter(x / y, torch.tensor(-torch.inf))
    assert "such" in str(wanted.differs([torch.floor(torch.where((x / y).isfinite(), low, x / y))]))


def test_infinities_and_signs_are_those_of_the_body() -> None:
    body = graph("%r: F[64,64] = aten.neg.default(%x)", "%out: F[64,64] = aten.clone.default(%r)")
    _, wanted = answer(body, "special", 1, CPU)
    x = wanted.inputs[0]
    assert x.isnan().any() and wanted.differs([-x]) is None
    _, finite = answer(body, "finite", 1, CPU)
    assert finite.differs([-finite.inputs[0]]) is None
    assert finite.differs([0.0 - finite.inputs[0]]), "the sign of zero is lost"
    assert wanted.differs([-x.nan_to_num(0.0)])
    padded = torch.where(x.isinf(), -x.sign() * 3.4e38, -x)
    assert wanted.differs([padded])


def test_of_integers_each_counts() -> None:
    body = graph("%out: b1[64,64] = aten.lt.Tensor(%x, %y)")
    _, wanted = answer(body, "finite", 4, CPU)
    out = wanted.own[0].clone()
    assert wanted.differs([out]) is None
    out[3, 5] ^= True
    assert "element [3, 5]" in str(wanted.differs([out]))


def test_what_rounding_may_turn_over_is_not_judged() -> None:
    """Whether a sum is above a number so near to it that its order decides."""
    body = graph(
        "%s: F[64] = aten.sum.dim_IntList(%x, [1])", "%out: b1[64] = aten.gt.Scalar(%s, 0.0)"
    )
    x = torch.randn(64, 64)
    x[0, 1:] = 0
    x[0, :3] = torch.tensor([1.0, 1e-8, -1.0])
    wanted = answered(body, "real", [x, x], CPU)
    (own,) = eval_graph(body, [x, x])
    for row in (0, 1):
        out = own.clone()
        out[row] ^= True
        assert bool(wanted.differs([out])) == (row == 1)
    assert replace(wanted, own=()).differs([own]) is None


@pytest.mark.parametrize(
    "line",
    [
        "%v: F[64,1], %v.1: F[64,1] = aten.var_mean.correction(%x, [1], keepdim=True)",
        "%v: F[64,64], %v.1: F[64,1], %v.2: F[64,1] = "
        "aten.native_layer_norm.default(%x, [64], None, None, 1e-05)",
    ],
)
def test_a_mean_beside_a_variance_may_be_infinite(line: str) -> None:
    """As a sum over a count is; ATen's own is that, or no number, by where the infinity stands."""
    body = graph(line, out="v.1")
    for seed in range(4):
        _, wanted = answer(body, "special", seed, CPU)
        assert wanted.differs(list(wanted.own)) is None
        plain = wanted.inputs[0].mean(1, keepdim=True)
        assert plain.isinf().any()
        assert wanted.differs([plain]) is None
        assert wanted.differs([plain.nan_to_num(posinf=1.0, neginf=1.0)]) is not None
