"""Pointwise kernels compute what ATen does: operators, types, broadcasting, layouts, views."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.bodies import body, call, gpu, read
from tests.kernels.triton.interpreter import check, run

from anabranch.kernels.triton.codegen import program, variants

F = torch.float32
UNARY = [
    *("abs", "ceil", "cos", "erf", "exp", "exp2", "expm1", "floor", "isinf", "isnan", "neg"),
    *("logical_not", "reciprocal", "relu", "relu6", "round", "sgn", "sigmoid", "sign", "silu"),
    *("sin", "square", "tanh", "trunc", "hardsigmoid", "hardswish", "hardtanh", "gelu", "mish"),
    *("elu", "celu", "selu", "leaky_relu", "softplus", "log_sigmoid", "zeros_like", "ones_like"),
    *("frac", "erfc"),
]


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    graph = call(f"aten.{op}.default", torch.randn(3, 37) * 3)
    check(graph, variants(graph, gpu(132)))


@pytest.mark.parametrize("op", ["log", "log2", "log10", "log1p", "sqrt", "rsqrt"])
def test_unary_of_positive_numbers(op: str) -> None:
    x = torch.rand(3, 37) + 0.01
    graph = call(f"aten.{op}.default", x)
    check(graph, variants(graph, gpu(132)), [x])


def test_the_far_tail_of_the_error_function_keeps_its_digits() -> None:
    x = torch.tensor([5.0, 8.0, 9.2, 3.0, -4.0, 0.0, float("inf"), -float("inf"), float("nan")])
    graph = call("aten.erfc.default", x)
    (value,), (result,) = graph.inputs, graph.outputs
    for variant in variants(graph, gpu(132)):
        found = run(program(graph, variant), {value.name: x}, {result.name: value.type})
        exact = torch.erfc(x.double()).float()
        torch.testing.assert_close(found[result.name], exact, rtol=1e-5, atol=0, equal_nan=True)


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("back", [False, True])
def test_gelu_of_half_types_is_as_near_as_its_type(
    dtype: torch.dtype, approximate: str, back: bool
) -> None:
    """At every number of the type from -12 to 12, zeros and ends, of the result in fp64: the ends
    as eager has them."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = every[(every.abs() <= 12) | ~every.isfinite()].clone()
    given = (torch.ones_like(x), x) if back else (x,)
    name = "aten.gelu_backward.default" if back else "aten.gelu.default"
    graph, tensors = body(name, (*given, {"approximate": approximate}))
    operator = torch.ops.aten.gelu_backward if back else torch.ops.aten.gelu
    wanted = operator(*(t.double() for t in given), approximate=approximate)
    step, near = 2 * torch.finfo(dtype).eps, 2e-6 if back else 2e-7
    named = {value.name: t for value, t in zip(graph.inputs, tensors, strict=True)}
    (result,), ends = graph.outputs, ~x.isfinite()
    for variant in variants(graph, gpu(132))[:2]:
        found = run(program(graph, variant), named, {result.name: graph.nodes[0].type})
        torch.testing.assert_close(
            found[result.name][ends].double(), wanted[ends], equal_nan=True, rtol=0, atol=0
        )
        torch.testing.assert_close(
            found[result.name][~ends].double(),
            wanted[~ends],
            rtol=step,
            atol=near,
        )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_gelu_that_decides_is_eagers(approximate: str) -> None:
    """To the bit where it is compared, as eager computes it."""
    graph = read(f"""
        graph decided {{
          input %x: f16[4096]
          %g: f16[4096] = aten.gelu.default(%x, approximate='{approximate}')
          %t: b1[4096] = aten.gt.Scalar(%g, 0.25)
          return %t
        }}""")
    text = program(graph, variants(graph, gpu(132))[0]).text
    assert "normal_cdf" not in text and "sigmoid" not in text
    assert ("libdevice.erf" if approximate == "none" else "libdevice.tanh") in text


SMALL = torch.randn(5, 1, 7)
GRAD, WIDE = torch.randn(5, 1, 7), torch.randn(5, 1, 7) * 4
WIDE[0, 0, :4] = torch.tensor([0.0, 3.0, -3.0, 0.5])  # where slopes jump
SLOPES: dict[str, tuple[object, ...]] = {
    **{"threshold": (0,), "hardtanh": (-1.0, 3.0), "leaky_relu": (0.1, False)},
    **{"hardshrink": (0.5,), "softshrink": (0.5,), "sigmoid": (), "tanh": (), "silu": ()},
    **{"gelu": ({"approximate": "tanh"},), "mish": (), "softplus": (2.0, 3.0)},
    **{"hardsigmoid": (), "hardswish": ()},
}
"""Gradients of activations, and what else they are given."""
CALLS: dict[str, tuple[object, ...]] = {
    "aten.add.Tensor": (SMALL, torch.randn(6, 7), {"alpha": 3}),
    "aten.sub.Tensor": (SMALL, torch.randn(6, 7), {"alpha": 0.5}),
    "aten.rsub.Scalar": (SMALL, 2.5, 2),
    "aten.mul.Tensor": (SMALL, torch.randn(())),
    "aten.div.Tensor": (torch.arange(12), torch.tensor([3, 4, 5]).repeat(4)),
    "aten.div.Tensor_mode": (SMALL, torch.randn(6, 7), {"rounding_mode": "floor"}),
    "aten.floor_divide.default": (torch.arange(-9, 9), 4),
    "aten.remainder.Scalar": (torch.arange(-9, 9), 4),
    "aten.fmod.Tensor": (SMALL, torch.randn(6, 7)),
    "aten.maximum.default": (SMALL, torch.randn(6, 7)),
    "aten.minimum.default": (torch.arange(9), torch.arange(9).flip(0)),
    "aten.pow.Tensor_Scalar": (SMALL, 3),
    "aten.pow.Scalar": (2.0, SMALL),
    "aten.pow.Tensor_Tensor": (SMALL, torch.tensor([2.0, -3.0, 0.0, 1.0, 0.5, -0.25, 5.0])),
    "aten._prelu_kernel.default": (SMALL, torch.randn(1, 1, 7)),
    "aten.hypot.default": (SMALL, torch.randn(6, 7)),
    "aten.logaddexp.default": (SMALL, torch.tensor([0.0, 90.0, -90.0, 1.0, -1.0, 2.0, 3.0])),
    "aten.xlogy.Tensor": (torch.tensor([0.0, 1.0, -2.0, 0.0]), torch.tensor([0.0, 2.0, 3.0, 5.0])),
    "aten.heaviside.default": (torch.tensor([-1.0, 0.0, 2.0, 0.0]), torch.tensor([5.0])),
    "aten.nan_to_num.default": (
        torch.tensor([float("nan"), float("inf"), -float("inf"), 2.0]),
        *(7.0, None, -9.0),
    ),
    "aten.logit.default": (torch.rand(5, 7), 0.1),
    "aten.clamp.default": (SMALL, -0.5, 0.25),
    "aten.clamp.Tensor": (SMALL, torch.tensor(-1.0), torch.rand(7)),
    "aten.clamp_min.default": (SMALL, 0.1),
    "aten.gelu.default": (SMALL, {"approximate": "tanh"}),
    "aten.eq.Tensor": (torch.arange(6), torch.tensor([0, 5, 2, 1, 4, 4])),
    "aten.le.Scalar": (SMALL.half(), 0.1),
    "aten.gt.Scalar": (torch.arange(6), 2.5),
    "aten.where.self": (SMALL > 0, SMALL, torch.zeros(())),
    "aten.masked_fill.Scalar": (SMALL, SMALL > 0, -1e9),
    "aten.logical_and.default": (SMALL > 0, torch.arange(7)),
    "aten.bitwise_or.Tensor": (torch.arange(7), torch.arange(7).flip(0)),
    "aten.bitwise_not.default": (SMALL > 0,),
    "aten.addcmul.default": (SMALL, torch.randn(6, 7), torch.randn(7), {"value": 0.5}),
    "aten.lerp.Scalar": (SMALL, torch.randn(5, 6, 7), 0.25),
    "aten.threshold.default": (SMALL, 0.3, -7.0),
    "aten.softshrink.default": (WIDE, 0.5),
    "aten.hardshrink.default": (WIDE, 0.5),
    **{f"aten.{op}_backward.default": (GRAD, WIDE, *more) for op, more in SLOPES.items()},
    "aten.elu_backward.default": (GRAD, 0.7, 1.5, 0.5, False, WIDE),
    "aten._prelu_kernel_backward.default": (GRAD, WIDE, torch.randn(1, 1, 7)),
    "aten.smooth_l1_loss_backward.default": (GRAD, WIDE, SMALL, 1, 0.5),
    "aten.huber_loss_backward.default": (GRAD, WIDE, SMALL, 2, 0.5),
    "aten._to_copy.default": (SMALL * 9, {"dtype": torch.int32}),
    "aten.cat.default": ([SMALL, torch.randn(5, 3, 7), torch.randn(5, 2, 7)], 1),
    "aten.stack.default": ([SMALL, SMALL + 1], -1),
    "aten.constant_pad_nd.default": (SMALL, [1, 2, -1, 3, 0, 1], 0.5),
    "aten.embedding.default": (torch.randn(9, 6), torch.tensor([[1, 8], [0, 3]])),
    "aten.index_select.default": (SMALL, 2, torch.tensor([6, 0, 0])),
    "aten.permute.default": (torch.randn(2, 3, 4), [2, 0, 1]),
    "aten.slice.Tensor": (torch.randn(9, 11), 1, -8, 10, 3),
    "aten.select.int": (torch.randn(4, 5, 6), 1, -2),
    "aten.squeeze.dim": (SMALL, 1),
    "aten.unsqueeze.default": (SMALL, -2),
    "aten.reshape.default": (torch.randn(4, 6, 5).transpose(0, 1), [8, 15]),
    "aten.t.default": (torch.randn(5, 3),),
    "aten.log_sigmoid_forward.default": (SMALL,),
    "aten.glu.default": (torch.randn(2, 70, 3), 1),
    "aten.native_batch_norm.default": (
        *(torch.randn(2, 5, 3, 3), torch.randn(5), torch.randn(5), torch.randn(5)),
        *(torch.rand(5) + 0.1, False, 0.1, 1e-5),
    ),
}


@pytest.mark.parametrize("result", [False, True])
def test_gradients_of_an_activation_by_its_result(result: bool) -> None:
    y = torch.nn.functional.elu(WIDE, 0.7)
    graph, tensors = body("aten.elu_backward.default", (GRAD, 0.7, 1, 1, result, y))
    check(graph, variants(graph, gpu(132)), tensors)
    graph, tensors = body("aten.gelu_backward.default", (GRAD, WIDE))
    check(graph, variants(graph, gpu(132)), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", ["softshrink", "hardshrink"])
def test_what_is_shrunk_to_nothing_is_a_positive_zero(op: str, dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0, -0.1, 0.1, -0.3, 0.3, -1.0, 1.0, float("nan"), -float("inf")])
    x = x.to(dtype)
    size = torch.tensor(0.3, dtype=dtype)  # as ATen holds it
    right = x - x.sign() * size if op == "softshrink" else x
    right = torch.where(x.abs() <= size, torch.zeros_like(x), right)
    graph, _ = body(f"aten.{op}.default", (x, 0.3))
    (value,), (result,) = graph.inputs, graph.outputs
    for variant in variants(graph, gpu(132)):
        ours = run(program(graph, variant), {value.name: x}, {result.name: value.type})[result.name]
        torch.testing.assert_close(ours, right, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ours[:8].signbit(), right[:8].signbit())


@pytest.mark.parametrize("op", CALLS)
def test_calls(op: str) -> None:
    graph, tensors = body(op, CALLS[op])
    check(graph, variants(graph, gpu(132)), tensors)


@pytest.mark.parametrize("exponent", [0.75, -1.5, 2.0, 17.0, -18.0, 0.25, 2.2])
def test_powers(exponent: float) -> None:
    """Of negative numbers and of 0 too; half types as they are computed by ATen."""
    x = torch.cat([torch.randn(30) * 2, torch.zeros(1)])
    for given in (x, x.half()):
        graph, tensors = body("aten.pow.Tensor_Scalar", (given, exponent))
        check(graph, variants(graph, gpu(132)), tensors)


@pytest.mark.parametrize("exponent", [0.75, 2.5, -1.5, 3.0, -3.0, 2.0, float("inf"), -float("inf")])
def test_powers_of_what_is_endless(exponent: float) -> None:
    x = torch.tensor([-float("inf"), float("inf"), float("nan"), -2.0, -0.5, 0.5, 0.0, 1.0, 3.0])
    graph, tensors = body("aten.pow.Tensor_Tensor", (x, torch.full_like(x, exponent)))
    check(graph, variants(graph, gpu(132))[:1], tensors)
    if abs(exponent) < float("inf"):
        graph, tensors = body("aten.pow.Tensor_Scalar", (x, exponent))
        check(graph, variants(graph, gpu(132))[:1], tensors)
