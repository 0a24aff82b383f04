"""What must hold before a model is exported; each failure says what and where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, OptionError
from anabranch.frontend.program import training_part
from anabranch.frontend.translate import tensor_type
from anabranch.frontend.unsupported import check_given, check_parts

_WEIGHT = "the weight"
LITERALS = (int, float, bool, str, type(None))
OF_AN_ENUM = (
    "a plan returns tensors and plain values that can be saved, and no members of classes",
    "return its .value or its .name, and make the member of it outside",
)
COMPLEX_NUMBER = (
    "a complex number that is no tensor",
    "a plan returns tensors, real numbers, strings and None; complex numbers in tensors",
    "return torch.tensor(...) of it, or leave the number out",
)
UNKNOWN_RESULT = (
    "results are tensors, numbers, strings and None, in any nesting of tuples, lists, dicts "
    "and registered classes",
    "register its class with torch.export.register_dataclass or "
    "torch.utils._pytree.register_pytree_node, or have the model return something else "
    "(models of transformers: use_cache=False, return_dict=False)",
)


def check_call(model: Any, args: Any, kwargs: Any) -> None:
    """OptionError for what is no model, or no inputs of a call; CaptureError for kinds of either
    that no graph can hold."""
    if not callable(model) and not isinstance(model, ExportedProgram):
        hint = "names of models are for the command line" if isinstance(model, str) else ""
        raise OptionError(
            f"the model is a {type(model).__name__}: {model!r:.80}",
            "a torch.nn.Module is needed, a function of tensors, or an exported program",
            hint or "give the module itself, in eval mode",
        )
    if not isinstance(args, (torch.Tensor, list, tuple)) or not isinstance(
        kwargs, (Mapping, type(None))
    ):
        raise OptionError(
            f"the inputs are a {type(args).__name__} and a {type(kwargs).__name__}",
            "positional inputs are a tuple, keyword inputs a dict",
            "write compile(model, (x, y)), or compile(model, (x,), {'mask': mask})",
        )
    check_parts(model)
    try:
        check_given((args,) if isinstance(args, torch.Tensor) else tuple(args), kwargs or {})
    except RecursionError:
        raise OptionError(
            "the inputs are nested more deeply than Python can follow",
            "a list or a dict that holds itself has no end",
            "give tensors and plain values in containers that end",
        ) from None


def check_model(model: nn.Module) -> None:
    """An ordinary module, and every part of it in eval mode, but for norms."""
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "the model is a TorchScript module",
            "its Python code, which is what gets captured, is gone",
            "give the original nn.Module",
        )
    path = training_part(model)
    if path is None:
        return
    module = model.get_submodule(path)
    what = f"its part {path} ({type(module).__name__})" if path else f"{type(model).__name__}"
    raise CaptureError(
        f"the model is in training mode: {what} has training=True",
        "dropout and batch normalisation compute something else then, and change state",
        "call model.eval() before compiling; norms within it may be put into training mode again, "
        "and their running statistics are states then",
    )


def check_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Every leaf is a dense tensor of a known dtype, or a plain value."""
    leaves, _ = pytree.tree_flatten_with_path((args, dict(kwargs)))
    for path, leaf in leaves:
        where = f"the input {name_of_leaf(path)}"
        if isinstance(leaf, torch.Tensor):
            tensor_type(leaf, where)
        elif isinstance(leaf, Enum):
            raise CaptureError(
                f"{where} is {_member(leaf)}, a member of an Enum",
                "a plan compares the inputs of a call with plain values that can be saved",
                "give its .value or its .name, or bind it to the model (functools.partial)",
            )
        elif not isinstance(leaf, LITERALS):
            raise CaptureError(
                f"{where} is a {type(leaf).__name__}",
                "inputs are tensors, numbers, strings and None, in any nesting of tuples, lists, "
                "dicts and registered classes; an object with tensors is one of the arguments of "
                "the first call that is compiled, and stays the same in all others",
                "convert it to tensors, or register its class with "
                "torch.export.register_dataclass or torch.utils._pytree.register_pytree_node; for "
                "another object, compile the model once more",
            )


def check_devices(
    state: Iterable[tuple[str, torch.Tensor]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.device:
    """The one device on which weights and inputs are; only scalars may be on the CPU instead.

    Also checks that weights are dense and have values.
    """
    name_by_device: dict[torch.device, str] = {}
    for what, tensor in (*_weights(state), *_inputs(args, kwargs)):
        tensor_type(tensor, what)
        if tensor.device.type == "meta" or isinstance(tensor, torch._subclasses.FakeTensor):
            raise _no_values(what)
        if tensor.ndim == 0 and tensor.device.type == "cpu":
            continue
        name_by_device.setdefault(tensor.device, what)
    if len(name_by_device) > 1:
        (device, first), (other, second), *_ = name_by_device.items()
        raise CaptureError(
            f"{first} is on {device}, {second} is on {other}",
            "a graph runs on one device",
            f"move the model and its inputs to one device, for example with .to({str(device)!r})",
        )
    return next(iter(name_by_device), torch.device("cpu"))


def _no_values(what: str) -> CaptureError:
    if what.startswith(_WEIGHT):
        why = "weights become constants of the graph"
        next = "load the weights first, for example with model.to_empty() and load_state_dict()"
    else:
        why, next = (
            "the result is compared with the model's, run on it",
            "give a tensor with values",
        )
    return CaptureError(f"{what} has no values (it is on the meta device)", why, next)


def name_of_leaf(path: tuple[Any, ...]) -> str:
    """How a person would write a leaf of (args, kwargs): "args[0]['mask']"."""
    place = ("args", "kwargs")[path[0].idx]
    return place + pytree.keystr(path[1:])


def _weights(state: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, tensor in state:
        yield f"{_WEIGHT} {path}", tensor


def _inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in pytree.tree_flatten_with_path((args, dict(kwargs)))[0]:
        if isinstance(leaf, torch.Tensor):
            yield f"the input {name_of_leaf(path)}", leaf


def check_results(results: Any, what: str = "the model") -> None:
    """CaptureError for a result that no plan can give back: what is no tensor is kept as a plain
    value, as it was while a graph was made. `what` returns them."""
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, Enum):
            raise CaptureError(f"{what} returns {_member(leaf)}, a member of an Enum", *OF_AN_ENUM)
        if isinstance(leaf, complex):
            kind, *rest = COMPLEX_NUMBER
            raise CaptureError(f"{what} returns {kind}", *rest)
        if not isinstance(leaf, (torch.Tensor, *LITERALS)):
            room, name = type(leaf).__module__, type(leaf).__qualname__
            kind = name if room == "builtins" else f"{room}.{name}"
            raise CaptureError(f"{what} returns an object of class {kind}", *UNKNOWN_RESULT)


def _member(member: Enum) -> str:
    return f"{type(member).__name__}.{member.name}"
