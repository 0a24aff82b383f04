"""What the modules of a model are, beside their tensors: a plan has it in its operators.

    attributes(model)        {"": "5f..", "norm": "a0.."}     a digest for each module
    other(model, recorded)   "norm"                           the first that is another one now

A digest covers the class, forward hooks and the plain attributes (numbers, texts, functions and
containers of them): a stride, the eps of a norm, a slope. Tensors that are attributes are no part
of it, nor what changes nothing in eval mode: how much is dropped, the momentum of a norm, training
mode itself. Of a norm that is in training mode within a model that is not, these are a part.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from anabranch.cache.codec import Codec, from_plain, values
from anabranch.frontend.fingerprint import HOOKS, PRIVATE
from anabranch.frontend.held_arguments import bare
from anabranch.frontend.state import unwrapped
from anabranch.ir.key import digest_tensor, digest_text

KEY = "attributes"
"""Under which name facts of a saved plan have them."""
CODEC: Codec[dict[str, str]] = values(dict[str, str], strict=True)
PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None), enum.Enum)
NAMED = (torch.dtype, torch.device, torch.memory_format, type)
IN_TRAINING = (
    (nn.modules.batchnorm._NormBase, "momentum"),
    (nn.modules.dropout._DropoutNd, "p"),
    (nn.RNNBase, "dropout"),
    (nn.MultiheadAttention, "dropout"),
    (nn.Module, "inplace"),
)
"""Attributes of which results in eval mode do not depend, by the class that has them."""


def attributes(model: Any) -> dict[str, str]:
    """By the path of each module a digest of what it is. Empty for what is no module, and for one
    that was written for a graph, whose operators are its code."""
    return {path: _digest(module, unread) for path, module, unread in _told_apart(model)}


def each_attribute(model: Any) -> dict[str, str]:
    """A text for each attribute that `attributes` looks at, by its name ("norm.eps"), and by the
    path of each module one for its class and hooks."""
    texts = dict[str, str]()
    for path, module, unread in _told_apart(model):
        texts[path] = "\n".join(_kind(module))
        plain = vars(module)
        for name in plain.keys() - unread:
            if not isinstance(plain[name], torch.Tensor):
                texts[f"{path}.{name}".removeprefix(".")] = _told(plain[name])
    return texts


def _modules(model: Any) -> dict[str, nn.Module]:
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return {}
    modules = dict(bare(unwrapped(model)).named_modules())
    return {} if any(isinstance(each, fx.GraphModule) for each in modules.values()) else modules


def other(model: Any, recorded: Mapping[str, str]) -> str | None:
    """The path of the first module that is not as it was recorded; None where all are, or where
    one side says nothing."""
    now = attributes(model) if recorded else {}
    if not now:
        return None
    paths = (*recorded, *(path for path in now if path not in recorded))
    return next((path for path in paths if now.get(path) != recorded.get(path)), None)


def read_attributes(plain: Any) -> dict[str, str]:
    """What a saved plan says of its modules; empty if it says nothing that may be."""
    try:
        return from_plain(CODEC, plain)
    except ValueError:
        return {}


def _told_apart(model: Any) -> Iterator[tuple[str, nn.Module, frozenset[str]]]:
    """The modules with their paths, and names of attributes that say nothing about them."""
    unread: dict[tuple[type, bool], frozenset[str]] = {}
    for path, module in _modules(model).items():
        kind, trains = type(module), module.training and not model.training
        trains = trains and isinstance(module, nn.modules.batchnorm._NormBase)
        if (kind, trains) not in unread:
            names = PRIVATE.union(name for owner, name in IN_TRAINING if issubclass(kind, owner))
            unread[kind, trains] = names - {"momentum", "training"} if trains else names
        yield path, module, unread[kind, trains]


def _digest(module: nn.Module, unread: frozenset[str]) -> str:
    attributes = vars(module)
    told = (
        f"{name}={_told(attributes[name])}"
        for name in sorted(attributes.keys() - unread)
        if not isinstance(attributes[name], torch.Tensor)
    )
    kind, *hooks = _kind(module)
    return digest_text("\n".join((kind, *told, *hooks)))[:16]


def _kind(module: nn.Module) -> list[str]:
    """Its class, and its hooks."""
    kind = type(module)
    hooks = (f"{name} {_hooks(module, name)}" for name in HOOKS)
    return [f"{kind.__module__}.{kind.__qualname__}", *hooks]


def _hooks(module: nn.Module, name: str) -> list[str]:
    """Those of export look at inputs alone."""
    hooks = (_told(hook) for hook in getattr(module, name).values())
    return [told for told in hooks if not told.startswith("torch.export.")]


def _told(value: Any) -> str:
    """A text that differs where the value differs; of what is not plain only that it is there."""
    if isinstance(value, (*PLAIN_VALUES, *NAMED)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, torch.Tensor):
        return digest_tensor(value.detach()) if value.layout is torch.strided else "tensor"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_told(key)}: {_told(item)}' for key, item in value.items())}}}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return "something"
