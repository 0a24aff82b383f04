"""Calls inside of what transforms functions: torch.func (vmap, grad, jvp), forward-mode AD, and
function modes of the user's (torch.overrides.TorchFunctionMode).

    torch.func.vmap(fast)(x)                          x stands for many tensors
    with forward_ad.dual_level(): fast(make_dual(x, t))   x carries a tangent

    with DoubledLinear(): fast(x)                         torch's functions are others

A plan copies numbers into its own memory, which forgets the first two, and calls no function of
torch: what came back would be wrong, or zeros, without a word. In: the tensors of a call. Out: an
InputError for such ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from anabranch.errors import InputError
from anabranch.ir.ambient import foreign_modes

functions = torch._C._functorch.peek_interpreter_stack
"""The innermost transformation of torch.func that is at work, or None."""


modes = torch._C._len_torch_function_stack
"""How many function modes are on."""


def transforming() -> bool:
    """Whether a transformation is at work, so that a call must be looked at."""
    return functions() is not None or forward_ad._current_level >= 0 or modes() > 0


def check_plain(values: Iterable[Any]) -> None:
    """InputError for a tensor that stands for others, or carries a tangent; and under a function
    mode of the user's."""
    if modes() and (told := foreign_modes()):
        raise InputError(
            "a compiled model was called under a function mode (TorchFunctionMode): "
            f"{', '.join(told)}",
            "it sees, and may change, every function of torch that a model calls: a plan calls "
            "none of them",
            "call the original model under it, or leave it for this call",
        )
    for value in values:
        if not isinstance(value, Tensor):
            continue
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise InputError(
                "a compiled model was called inside of torch.func (vmap, grad, jvp)",
                "its kernels read memory, and such tensors have none of their own",
                "give torch.func the original model, or compile a function that calls torch.func",
            )
        if forward_ad.unpack_dual(value).tangent is not None:  # type: ignore[no-untyped-call]
            raise InputError(
                "an input of a compiled model has a tangent (forward-mode AD, a dual number)",
                "a plan computes results alone: tangents of them are not known",
                "call it on forward_ad.unpack_dual(x).primal, or differentiate the original model",
            )
