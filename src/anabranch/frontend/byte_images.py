"""Images of bytes are interpolated by ATen's kernel in a trace, too.

ATen weighs bytes in whole numbers. What torch takes `upsample_bilinear2d` and its like apart into
weighs them in floats and rounds: one pixel in a hundred is off by one. While we trace
(`frontend.trace_kernels`) these operators stay whole where they are given integers; floating images
are taken apart as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table

INTERPOLATIONS = tuple(
    operator
    for operator in decomposition_table
    if str(operator).startswith("aten.upsample_")
    and str(operator).endswith((".default", ".vec"))
    and any(kind in str(operator) for kind in ("linear", "cubic"))
)
COMPOSITE = DispatchKey.CompositeImplicitAutograd


def byte_image_kernels() -> dict[Any, dict[DispatchKey, Callable[..., Any]]]:
    """By operator the kernels in Python that take it apart for floating images alone."""
    return {
        operator: {
            key: _for_floats(operator, function)
            for key, function in operator.py_kernels.items()
            if key in (DispatchKey.Autograd, COMPOSITE)
        }
        for operator in INTERPOLATIONS
    }


def _for_floats(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    composite = operator.has_kernel_for_dispatch_key(COMPOSITE)

    def run(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype.is_floating_point:
            return function(x, *args, **kwargs)
        if composite:
            return operator._op_dk(COMPOSITE, x, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(x, *args, **kwargs)

    return run
