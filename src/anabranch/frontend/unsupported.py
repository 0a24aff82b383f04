"""Models and inputs that no graph can hold: each kind refused in words of its own, before export.

| kind | next |
|---|---|
| a part scripted by torch.jit, or a scripted function | the Python code it was made of |
| quantised modules, tensors with packed weights | dequantise, or int8 weights in tensors |
| lazy layers that have no shapes yet | one call of the model |
| DataParallel, DistributedDataParallel, FSDP around the model | `.module`, or the whole weights |
| weights or inputs of a tensor class of their own | plain tensors |
| PackedSequence, nested and fake tensors, arrays, complex numbers as inputs | tensors |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError

PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse")
"""Packages whose modules hold packed weights."""
PARALLEL = {
    "DataParallel": "give the model inside, which is at .module",
    "DistributedDataParallel": "give the model inside, which is at .module",
    "FullyShardedDataParallel": "load the whole weights into a plain copy of the model",
    "FSDPModule": "load the whole weights into a plain copy of the model",
}


def check_parts(model: Any) -> None:
    """CaptureError for a model with a part that cannot be captured."""
    if isinstance(model, torch.jit.ScriptFunction):
        raise _scripted("the model")
    if not isinstance(model, nn.Module):
        return
    for path, module in model.named_modules():
        where = f"the part {path}" if path else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise _scripted(where)
        for kind in type(module).__mro__:
            if kind.__name__ in PARALLEL and kind.__module__.startswith("torch."):
                raise CaptureError(
                    f"{where} is a {kind.__name__}",
                    "it hands its inputs to other devices or processes, which no graph does",
                    PARALLEL[kind.__name__],
                )
        if type(module).__module__.startswith(QUANTISED):
            raise CaptureError(
                f"{where} is quantised: {type(module).__module__}.{type(module).__name__}",
                "its weights are packed in an object of torch's, of which operators of its own are "
                "the only readers",
                "give the model as it was before, or keep int8 weights and scales in tensors",
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check_weight(name, tensor)


def check_given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """CaptureError for inputs that are no plain tensors or values."""
    for path, value in _values("args", args, kwargs):
        if isinstance(value, PackedSequence):
            raise CaptureError(
                f"the input {path} is a PackedSequence",
                "how many rows there are at each step is in its numbers, and a graph has one shape",
                "give the padded tensor and the lengths, and mask what is padding",
            )
        if isinstance(value, torch.Tensor):
            _check_input(path, value)
        elif isinstance(value, complex):
            raise CaptureError(
                f"the input {path} is the complex number {value}",
                "a plan keeps numbers, strings and None; complex ones only in tensors",
                f"give torch.tensor({value})",
            )
        elif type(value).__module__ == "numpy":
            raise CaptureError(
                f"the input {path} is a numpy {type(value).__name__}",
                "inputs are tensors and plain Python values",
                "give torch.as_tensor(...) of it",
            )


def _values(
    place: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    def whole(value: Any) -> bool:
        return isinstance(value, PackedSequence)

    leaves, _ = pytree.tree_flatten_with_path((args, dict(kwargs)), is_leaf=whole)
    for path, value in leaves:
        first, *rest = path
        yield (place, "kwargs")[getattr(first, "idx", 0)] + pytree.keystr(tuple(rest)), value


def _check_weight(name: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise CaptureError(
            f"the weight {name} has no shape yet: it is of a lazy layer",
            "its shape comes from the first input that the model sees",
            "call the model once with such an input, then compile it",
        )
    if type(tensor) not in PLAIN_TENSORS and not tensor.is_meta and not _fake(tensor):
        raise CaptureError(
            f"the weight {name} is a {type(tensor).__name__}",
            "operators do something of their own with such tensors, and kernels read plain memory",
            "give the model with plain tensors, for example dequantised or gathered ones",
        )
    if tensor.is_quantized:
        raise CaptureError(
            f"the weight {name} is quantised ({str(tensor.dtype).removeprefix('torch.')})",
            "scale and zero point are parts of the tensor, and a graph holds plain numbers",
            "keep int8 weights and their scales in tensors of their own",
        )


def _check_input(path: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        raise CaptureError(
            f"the input {path} is a nested tensor",
            "its rows have sizes of their own, and a graph has one shape",
            "give a padded tensor and the lengths",
        )
    if type(tensor) not in PLAIN_TENSORS and not _fake(tensor):
        raise CaptureError(
            f"the input {path} is a {type(tensor).__name__}",
            "operators do something of their own with such tensors, and kernels read plain memory",
            "give a plain tensor, for example x.as_subclass(torch.Tensor)",
        )
    if tensor.is_quantized:
        raise CaptureError(
            f"the input {path} is quantised",
            "scale and zero point are parts of the tensor, and a graph holds plain numbers",
            "give x.dequantize(), or x.int_repr() and its scale",
        )


def _fake(tensor: torch.Tensor) -> bool:
    """Said elsewhere: it has no values."""
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _scripted(where: str) -> CaptureError:
    return CaptureError(
        f"{where} is TorchScript",
        "its Python code, which is what gets captured, is gone",
        "give the original Python code, not scripted or traced",
    )
