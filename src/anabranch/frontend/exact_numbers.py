"""Numbers of an optimizer that a graph computes in double precision, as eager's Python does.

    eager      1 - 0.999 ** step.item()         doubles
    a graph    1 - 0.999 ** step.double()       not of fp32, which is off by 7e-6 of an update

Parameters in double precision are updated by such numbers; `bias_corrections` has what is lost of
those in fp32. RAdam is in every precision: it takes the difference of two numbers near 2000, of
which fp32 leaves two digits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

COUNT = "step"
"""What optimizers call a parameter's count of steps. Another number of theirs that is equal now, as
moments of scalar parameters are, goes its own way."""
DOUBLE = (torch.float64, torch.complex128)
READ_AS_DOUBLES = (COUNT, "eta", "mu")
"""Numbers in fp32 that eager reads as Python's, and computes with in double precision: the count,
and ASGD's two."""
MULTIPLIED = "mu_product"
"""NAdam's product of momenta: in fp32 too, read so, and multiplied in fp32."""
CANCELLING = (torch.optim.RAdam,)
"""Optimizers that subtract numbers which are nearly equal."""
TIMES: tuple[Any, ...] = (Tensor.__imul__, Tensor.mul_)


@contextmanager
def exact_numbers(optimizer: Optimizer) -> Iterator[None]:
    """Within it those numbers of an optimizer that are computed with on the device are fp64 where
    they have to be. They are fp32 again at the end. Those of a parameter without a gradient, which
    a step leaves as they are, are not written to."""
    always = isinstance(optimizer, CANCELLING)
    numbers = [
        (values, key, values[key])
        for group in optimizer.param_groups
        if group.get("capturable", True) and not group.get("fused")
        for values in (
            optimizer.state.get(p, {})
            for p in group["params"]
            if p.grad is not None and (always or p.dtype in DOUBLE)
        )
        for key in (*READ_AS_DOUBLES, MULTIPLIED)
        if isinstance(values.get(key), Tensor) and values[key].dtype == torch.float32
    ]
    for values, key, number in numbers:
        values[key] = number.double()
    products = [values[key] for values, key, _ in numbers if key == MULTIPLIED]
    try:
        with _MultipliedInSingle(products) if products else nullcontext():
            yield
        for values, key, number in numbers:
            number.copy_(values[key])
    finally:
        for values, key, number in numbers:
            values[key] = number


class _MultipliedInSingle(TorchFunctionMode):
    """Within it these doubles are multiplied in place as the fp32 numbers that they stand for."""

    def __init__(self, products: Collection[Tensor]) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TIMES and any(args[0] is product for product in self._products):
            product, factor = args
            single = torch.as_tensor(factor, dtype=torch.float32, device=product.device)
            return product.copy_(product.float() * single)
        return func(*args, **(kwargs or {}))
