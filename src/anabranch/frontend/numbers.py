"""Numbers that a step reads of tensors (`lr.item()`), as 0-d tensors: the graph reads them anew in
each call.

    add_(p, g, alpha=-lr)        add_(p, g * -lr)
    addcdiv_(p, m, v, value=s)   addcdiv_(p, m * s, v)
    mul(x, s)                    mul.Tensor(x, s)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anabranch.errors import CaptureError

READ = torch.ops.aten._local_scalar_dense.default
FACTORS = {"alpha": 1, "value": 1}
"""By the name of a number that multiplies an operand the place of that operand."""
OVERLOADS = {
    "Scalar": ("Tensor", "Tensor_Tensor"),
    "Tensor_Scalar": ("Tensor_Tensor",),
    "Scalar_mode": ("Tensor_mode",),
}
"""By the overload that takes a number those of which one takes a tensor there."""


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator on these arguments, 0-d tensors among them in the place of numbers."""
    if func is READ:
        return args[0]
    if not isinstance(func, torch._ops.OpOverload):
        return func(*args, **kwargs)
    told = func._schema.arguments
    bound = dict(zip((a.name for a in told), args, strict=False)) | kwargs
    strange = [
        a.name
        for a in told
        if isinstance(bound.get(a.name), Tensor) and not _takes_tensor(str(a.type))
    ]
    if not strange:
        return func(*args, **kwargs)
    for name in strange:
        if name in FACTORS:
            place = told[FACTORS[name]].name
            bound[place] = bound[place] * bound.pop(name)
        else:
            func = _other(func, name)
    names = [a.name for a in func._schema.arguments]
    renamed = (
        dict(zip(names, bound.values(), strict=False)) if func._schema.arguments != told else bound
    )
    positional = [
        renamed[a.name] for a in func._schema.arguments if not a.kwarg_only and a.name in renamed
    ]
    keywords = {
        a.name: renamed[a.name]
        for a in func._schema.arguments
        if a.kwarg_only and a.name in renamed
    }
    return func(*positional, **keywords)


def _takes_tensor(type: str) -> bool:
    return "Tensor" in type


def _other(func: Any, name: str) -> Any:
    packet = func._overloadpacket
    overloads = OVERLOADS.get(func._overloadname, ())
    overload = next((each for each in overloads if each in packet.overloads()), None)
    if overload is None:
        raise CaptureError(
            f"the step gives {packet} a number that it reads of a tensor, as {name}",
            "the number is another one in each call, and this operator takes a fixed one",
            "compute with the tensor itself",
        )
    return getattr(packet, overload)
