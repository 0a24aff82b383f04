"""Every pointwise lowering gives eager's class and sign for zeros of both signs, infinities, nan,
and numbers where pieces meet, in all types."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.interpreter import run
from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.text import parse_graph, parse_node
from anabranch.ir.types import DTYPE_NAMES
from anabranch.kernels.triton.codegen import program

INF, NAN = float("inf"), float("nan")
FLOATS = (
    *(0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 7.0, 37.0),
    *(148.0, 0.1, -0.3, 20.5, 88.0, -88.0, 300.0, 1e-6, -1e-6, 60000.0),
)
INTEGERS = (1, -1, 2, -2, 3, -3, 5, -5, 7, -7, 100, -100, 127, -128)
ONE = (
    *("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "erf", "exp2", "log2", "floor"),
    *("ceil", "sigmoid", "expm1", "log1p", "trunc", "tan", "reciprocal", "square", "relu", "relu6"),
    *("silu", "hardsigmoid", "hardswish", "selu", "mish", "tanh", "sign", "sgn", "nan_to_num"),
    *("frac", "isnan", "isinf", "logical_not", "round", "log10", "elu", "celu"),
    *("softplus", "leaky_relu", "hardtanh", "log_sigmoid_forward"),
)
TWO = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default"),
    *("minimum.default", "fmod.Tensor", "remainder.Tensor", "floor_divide.default"),
    *("pow.Tensor_Tensor", "xlogy.Tensor", "logaddexp.default", "hypot.default"),
    *("heaviside.default", "eq.Tensor", "ne.Tensor", "lt.Tensor", "ge.Tensor"),
    *("logical_and.default", "bitwise_and.Tensor", "_prelu_kernel.default"),
)
COMPARES, BEYOND = ("eq", "gt", "le"), ("-1", "250", "-300", "65535", "2147483648")
"""Numbers that some types of integers do not have: there they begin again at the other end."""
WITH = (
    *(f"pow.Tensor_Scalar(%x, {n})" for n in ("0", "1", "2", "3", "-1", "-2", "1.5", "17", "-17")),
    *(f"pow.Tensor_Scalar(%x, float('{n}'))" for n in ("inf", "-inf", "nan")),
    *(f"pow.Scalar({base}, %x)" for base in ("2.0", "-2.0", "0.0", "1.0", "-1.0", "0.5", "10.0")),
    *("clamp.default(%x, -1.0, 1.0)", "clamp.default(%x, 0.0)", "clamp.default(%x, None, 0.0)"),
    *("threshold.default(%x, 0.1, 20.0)", "rsub.Scalar(%x, 0.0)", "rsub.Scalar(%x, 1.0)"),
    *(f"{op}.Tensor(%x, {n})" for op in ("add", "sub", "mul", "div") for n in ("0.0", "-0.0")),
    *("mul.Tensor(%x, -1.0)", "div.Tensor(%x, 3.0)", "remainder.Scalar(%x, -3.0)"),
    *("fmod.Scalar(%x, 2.5)", "floor_divide.Scalar(%x, 3)", "logit.default(%x, 0.1)"),
    *(f"div.Tensor_mode(%x, %y, rounding_mode='{mode}')" for mode in ("floor", "trunc")),
    *(f"{op}.Scalar(%x, {n})" for op in COMPARES for n in BEYOND),
    *(f"{op}.Tensor(%x, {n})" for op in ("add", "sub", "mul") for n in BEYOND),
    *(f"bitwise_{op}.Scalar(%x, {n})" for op in ("and", "or", "xor") for n in BEYOND),
    *("floor_divide.Scalar(%x, -3)", "remainder.Scalar(%x, -200)", "fmod.Scalar(%x, -3)"),
)
CALLS = (
    *(f"{name}.default(%x)" for name in ONE),
    *(f"{name}(%x, %y)" for name in TWO),
    *WITH,
)
DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)


def special(dtype: torch.dtype, count: int) -> list[Tensor]:
    """Every number, or every pair of them; of floats also denormal ones, and the largest."""
    numbers: tuple[float, ...] = INTEGERS
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        ends = (limits.smallest_normal / 4, limits.max)
        numbers = (*FLOATS, *ends, *(-end for end in ends))
    base = torch.tensor(numbers, dtype=dtype if dtype.is_floating_point else torch.int64)
    grid = torch.meshgrid(*[base.to(dtype)] * count, indexing="ij")
    return [each.flatten().contiguous() for each in grid]


def kind(x: Tensor) -> Tensor:
    """Its class and sign, as a number."""
    if not x.dtype.is_floating_point:
        return x
    sign = torch.where(x.signbit(), -1.0, 1.0)
    size = torch.where(x.isinf(), 3.0, torch.where(x == 0, 1.0, 2.0))
    return torch.where(x.isnan(), 9.0, size * sign)


def eager(call: str, given: dict[str, Tensor]) -> Tensor | None:
    """None where eager has no such operator of this type."""
    try:
        found = ops.call(parse_node(f"%r: f32[1] = aten.{call}"), given.__getitem__, None)[0]
    except RuntimeError:
        return None
    return found if isinstance(found, Tensor) else None


def only_here(call: str, dtype: torch.dtype, given: dict[str, Tensor], want: Tensor) -> Tensor:
    """Where a processor's eager answers otherwise than a GPU's, which has no halves of its own:
    powers of -0.0 and of -inf to a half, and sums with numbers that halves do not hold; where its
    vectors have no remainder, as the quotient is beyond all numbers; and denormal errors. Powers
    that are too small to be normal are zero in a kernel."""
    if call.startswith(("fmod.T", "remainder.T")) and dtype.is_floating_point:
        return want.isnan() & given["x"].isfinite() & (given["y"].abs() > 0)
    if call.startswith("erf") and dtype.is_floating_point:
        return given["x"].abs() < torch.finfo(dtype).smallest_normal
    if "pow" in call and want.dtype in (torch.float32, torch.bfloat16):
        return (want != 0) & (want.abs() < torch.finfo(want.dtype).smallest_normal)
    if dtype != torch.float16:
        return torch.zeros_like(want, dtype=torch.bool)
    beyond = torch.full_like(want, any(n in call for n in BEYOND[3:]), dtype=torch.bool)
    power = torch.full_like(want, "pow" in call, dtype=torch.bool)
    return (power & (given["x"].isinf() | (want == 0))) | (beyond & ~want.isfinite())


@pytest.mark.parametrize("call", CALLS)
def test_class_and_sign_are_eagers(call: str) -> None:
    names = ["x", "y"][: 2 if "%y" in call else 1]
    for dtype in DTYPES:
        given = dict(zip(names, special(dtype, len(names)), strict=True))
        want = eager(call, given)
        if want is None or want.dtype not in DTYPE_NAMES:
            continue
        size, own = len(want), DTYPE_NAMES[want.dtype]
        lines = [f"input %{name}: {DTYPE_NAMES[dtype]}[{size}]" for name in names]
        lines += [f"%r: {own}[{size}] = aten.{call}", "return %r"]
        graph = parse_graph("graph g {\n" + "\n".join(lines) + "\n}")
        try:
            written = program(graph, "pointwise:1024.w4")
        except ValueError:
            continue  # no lowering for this type: a library call
        got = run(written, given, {"r": graph.nodes[0].type})["r"]
        wrong = kind(got) != kind(want)
        if dtype.is_floating_point and want.dtype.is_floating_point:
            rtol = max(2e-3, torch.finfo(want.dtype).eps)
            near = torch.isclose(got.double(), want.double(), rtol=rtol, atol=1e-6, equal_nan=True)
            wrong |= ~near
        wrong &= ~only_here(call, dtype, given, want)
        told = [
            (*(given[name][i].item() for name in names), got[i].item(), want[i].item())
            for i in wrong.nonzero().flatten().tolist()[:5]
        ]
        assert not told, f"{call} of {dtype}: operands, what it gives, what eager gives: {told}"
