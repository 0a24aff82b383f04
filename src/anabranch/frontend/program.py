"""Exported programs: taken as modules, which can be called, exported for other shapes, and known
again by their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram
from torch.nn.modules.batchnorm import _NormBase

from anabranch.errors import CaptureError


def opened(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model and the inputs of a call of it: of an exported program its module, and where none
    are given the example inputs it brings. CaptureError where it brings none."""
    kwargs = dict(kwargs or {})
    if not isinstance(model, ExportedProgram):
        return model, args, kwargs
    if not args and not kwargs and model.graph_signature.user_inputs:
        if model.example_inputs is None:
            raise CaptureError(
                "the exported program has no example inputs",
                "they were removed from it, and shapes are taken from them",
                "give the inputs of one call",
            )
        args, kwargs = model.example_inputs
    return module_of(model), tuple(args), dict(kwargs)


def in_order(module: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword inputs in the order an exported program was exported with: exported once more with
    others, torch would take one for the other."""
    spec = getattr(module, "_in_spec", None)
    if isinstance(module, fx.GraphModule) and spec is not None and spec.num_children == 2:
        names = spec.child(1).context
        if isinstance(names, list) and set(names) == set(kwargs):
            return {name: kwargs[name] for name in names}
    return dict(kwargs)


def name_of(module: Any) -> str:
    """The name of the user's function or class: an exported program's, of which the module is,
    remembers it."""
    if not isinstance(module, nn.Module):
        return str(getattr(module, "__name__", type(module).__name__))
    if isinstance(module, fx.GraphModule):
        for node in module.graph.nodes:
            for path, kind in (node.meta.get("nn_module_stack") or {}).values():
                if path == "":
                    name = kind if isinstance(kind, str) else kind.__name__
                    return name.rpartition(".")[2]
    return type(module).__name__


def module_of(program: ExportedProgram) -> nn.Module:
    """The program as a module that shares its weights. It refuses eval(): its mode is in the graph,
    which is looked at when it is captured."""
    module: nn.Module = program.module()
    for part in module.modules():
        part.training = False
    return module


def training_part(model: nn.Module) -> str | None:
    """The path of the first module in training mode, "" for the model itself. A module that
    `program.module()` gave a user says so always and refuses eval(), and does not count. Nor does
    a norm within a model in eval mode: it goes by the batch then, and its running statistics are
    states."""
    path: str
    exported: set[nn.Module] = set()
    for path, module in model.named_modules():
        if isinstance(module, fx.GraphModule) and "eval" in vars(module):
            exported.update(module.modules())
        elif module.training and module not in exported and not (path and _by_batch(module)):
            return path
    return None


def _by_batch(module: nn.Module) -> bool:
    """Whether it is a norm that asks no other process for its part of a batch."""
    return isinstance(module, _NormBase) and not isinstance(module, nn.SyncBatchNorm)
