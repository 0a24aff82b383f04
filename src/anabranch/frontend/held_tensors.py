"""What Python can change of a tensor without writing to it: where it lies and in which form,
whether it requires a gradient, the gradient itself, hooks for it, and attributes.

    was = read(weight)
    weight.requires_grad_(False)
    list(differences(weight, "layer.weight", was))     ["layer.weight.requires_grad"]
    put_back(weight, was)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.frontend.held_containers import ABSENT, as_it_was, same

PLAIN_CLASSES = frozenset((Tensor, nn.Parameter, nn.Buffer))
"""Classes of tensors that lie in memory in the usual way."""
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

_Held = tuple[Any, ...]
"""Memory and place in it; `requires_grad` and gradient; attributes; hooks. Most tensors have
nothing of the latter, which is one empty tuple."""


def read(tensor: Tensor) -> _Held:
    """What the tensor is now. Asked of every tensor of a model: 0.7 us."""
    if type(tensor) not in PLAIN_CLASSES:  # what others note for themselves is nobody's affair
        return None, None, tensor.requires_grad, ()
    noted = tensor.__dict__ or tensor._backward_hooks
    told = _rare(tensor) if noted or not tensor.is_leaf or tensor.grad is not None else ()
    if tensor.layout is not torch.strided:
        return None, None, tensor.requires_grad, told
    memory = tensor.untyped_storage()
    place = tensor.data_ptr(), tensor.storage_offset(), memory.nbytes()
    form = place, tensor.shape, tensor.stride(), tensor.dtype
    return memory, form, tensor.requires_grad, told


def _rare(tensor: Tensor) -> tuple[Any, ...]:
    """Its gradient, attributes and hooks."""
    hooks = (getattr(tensor, name, None) for name in HOOKS)
    grad = tensor.grad if tensor.is_leaf else None
    return grad, dict(tensor.__dict__), tuple(dict(hook or {}) for hook in hooks)


_NOTHING: tuple[Any, ...] = (None, {}, ({}, {}))


def untouched(tensor: Tensor, was: _Held) -> bool:
    """Whether it is as it was; of a tensor with attributes or a gradient nothing is said here."""
    _, form, needs_grad, told = read(tensor)
    return form == was[1] and needs_grad == was[2] and not told and not was[3]


def differences(tensor: Tensor, path: str, was: _Held) -> Iterator[str]:
    """Names of what is not as it was."""
    now = read(tensor)
    if now[1] != was[1]:
        yield f"{path}.data"
    if now[2] != was[2]:
        yield f"{path}.requires_grad"
    if not now[3] and not was[3]:
        return
    (grad, notes, hooks), (old_grad, old_notes, old_hooks) = (x[3] or _NOTHING for x in (now, was))
    if grad is not old_grad:
        yield f"{path}.grad"
    for name in dict.fromkeys([*old_notes, *notes]):
        if not same(notes.get(name, ABSENT), old_notes.get(name, ABSENT)):
            yield f"{path}.{name}"
    for name, held, other in zip(HOOKS, hooks, old_hooks, strict=True):
        if not as_it_was(held, other):
            yield f"{path}.{name}"


def put_back(tensor: Tensor, was: _Held) -> None:
    """Make the tensor again what it was."""
    memory, form, needs_grad, told = was
    if form is not None and read(tensor)[1] != form:
        (_, offset, size), shape, strides, dtype = form
        if memory.nbytes() != size:  # by `resize_`, which moves it
            memory.resize_(size)
        whole: Any = torch.empty(0, dtype=dtype, device=memory.device)
        tensor.data = whole.set_(memory, offset, shape, strides)
    if tensor.is_leaf and tensor.requires_grad != needs_grad:
        tensor.requires_grad_(needs_grad)
    if not told and not read(tensor)[3]:
        return
    grad, notes, hooks = told or _NOTHING
    if tensor.is_leaf and tensor.grad is not grad:
        tensor.grad = grad
    if not as_it_was(tensor.__dict__, notes):
        tensor.__dict__.clear()
        tensor.__dict__.update(notes)
    for name, kept in zip(HOOKS, hooks, strict=True):
        held = getattr(tensor, name, None)
        if held is not None and not as_it_was(held, kept):
            held.clear()
            held.update(kept)
