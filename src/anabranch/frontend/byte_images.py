"""Images of bytes are interpolated by ATen's kernel in a trace, too.

ATen weighs bytes in whole numbers. What torch takes `upsample_bilinear2d` and its like apart into
weighs them in floats and rounds: one pixel in a hundred is off by one. `keep_byte_images` leaves
these operators whole where they are given integers, for every trace of this process; floating
images are taken apart as before.
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


def keep_byte_images() -> None:
    """Have torch take these operators apart for floating images alone."""
    for operator in INTERPOLATIONS:
        for key in (DispatchKey.Autograd, COMPOSITE):
            if (function := operator.py_kernels.get(key)) is not None:
                operator.py_kernels[key] = _for_floats(operator, function)
                operator._dispatch_cache.clear()


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
