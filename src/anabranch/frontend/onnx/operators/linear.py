"""Products of matrices, as torch's own modules write them: a Gemm is a linear layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import LARGE_UNSIGNED
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.unsigned import narrowed, widened


def matmul(call: OnnxCall, a: Tensor, b: Tensor) -> Tensor:
    """MatMul; a matrix of weights on the right is a linear layer's, transposed."""
    if a.dtype in LARGE_UNSIGNED:
        return narrowed(widened(a) @ widened(b), a.dtype)  # type: ignore[no-any-return]
    if isinstance(b, torch.nn.Parameter) and b.dim() == 2 and a.dim() >= 2:
        return F.linear(a, b.t())
    return torch.matmul(a, b)


def gemm(call: OnnxCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Gemm."""
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if call.get("transA", 0):
        a = a.t()
    if not call.get("transB", 0):
        b = b.t()
    row = c is None or (c.dim() == 1 and c.shape[0] == b.shape[0])
    if alpha == 1 and beta == 1 and row and a.is_floating_point():
        return F.linear(a, b, c)
    product = (a @ b.t()) * alpha if alpha != 1 else a @ b.t()
    return product if c is None else product + (c * beta if beta != 1 else c)


def einsum(call: OnnxCall, *operands: Tensor) -> Tensor:
    """Einsum."""
    contraction: Tensor = torch.einsum(call.need("equation", str).replace(" ", ""), *operands)
    return contraction


def det(call: OnnxCall, x: Tensor) -> Tensor:
    """Det."""
    determinant: Tensor = torch.linalg.det(x)
    return determinant


LINEAR_ALGEBRA: OperatorTable = {
    "Det": OnnxOperator(det),
    "Einsum": OnnxOperator(einsum),
    "Gemm": OnnxOperator(gemm),
    "MatMul": OnnxOperator(matmul),
}
