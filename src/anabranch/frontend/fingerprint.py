"""A name for a model and the inputs it is called with, found without exporting it.

    fingerprint(model, (x,)) == fingerprint(model, (x,))     in every process, while neither the
                                                             code nor the structure changes

It covers the tree of modules, the source files of their classes or the code that was written for
them, their plain attributes, what their weights are like (not their content), the inputs' types and
values of Python scalars, and torch's version. Anything that it cannot see through (a forward hook
of the user's, an attribute of an unknown class, a class without a source file) makes the model
unknown: None. It does not look at globals and functions in other files, so a caller compares
numbers before it trusts a graph found under this name.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from anabranch.ir.key import digest_text
from anabranch.ir.trees import tree_text

PRIVATE = frozenset(vars(nn.Module())) | {
    *("_flat_weights", "_flat_weight_refs", "_is_torch_compile")
}
"""Private state of nn.Module itself: looked at elsewhere, or of no effect on what it computes."""

OF_GRAPHS = ("meta", "shape_env", "range_constraints", "validate_inputs", "train", "eval")
"""What a GraphModule has beside its private state."""

GUARDS = ("GuardsFn",)
"""Modules that torch.export adds for checks alone."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


NUMBERS = frozenset((bool, int, float, type(None)))
"""Most values are these themselves, which need not be asked what they derive from."""
PLAIN_VALUES = (bool, int, float, complex, str, bytes, slice, range, type(None))

FORM = 2
"""Counts what graphs mean: one that was captured by an older version may say another thing."""


class _UnknownError(Exception):
    """Something that cannot be named."""


def fingerprint(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> str | None:
    """The name, or None where there is something that cannot be seen through."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return None
    try:
        lines = [
            f"form {FORM} torch {torch.__version__} python {sys.version_info[:2]}",
            str(torch.get_default_dtype()),
            *_call(args, kwargs or {}),
            *_modules(model),
        ]
    except (_UnknownError, RecursionError):
        return None
    return digest_text("\n".join(lines))


def _call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    text = tree_text(tree)
    if not text:
        raise _UnknownError("a structure without text")
    yield text
    for leaf in leaves:
        yield _tensor(leaf) if isinstance(leaf, torch.Tensor) else _plain(leaf, {}, {})


def _modules(model: nn.Module) -> Iterator[str]:
    """Each module under each of its names; one seen before is named by its first path."""
    paths: dict[int, str] = {}
    tensors: dict[int, str] = {}
    kinds: dict[type, str] = {}
    parts: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in paths:
            yield f"{path} is {paths[id(module)]}"
            continue
        paths[id(module)] = path
        parts.append((path, module))
        hooks = (hook for name in HOOKS for hook in getattr(module, name).values())
        if not all(str(hook.__module__).startswith("torch.export.") for hook in hooks):
            raise _UnknownError("a hook")  # but those of exported programs look at inputs alone
        kind = type(module)
        if kind not in kinds:
            kinds[kind] = _class(kind)
        yield f"{path}: {kinds[kind]} training={module.training}"
    for path, module in parts:
        for name, tensor in {**module._parameters, **module._buffers}.items():
            yield f"{path}.{name} = {_weight(tensor, f'{path}.{name}', tensors)}"
        yield f"{path}: {sorted(module._non_persistent_buffers_set)}"
        written = isinstance(module, fx.GraphModule) or type(module).__name__ in GUARDS
        if isinstance(module, fx.GraphModule):
            yield f"{path}: {_graph_code(module)}"
        for name, value in vars(module).items():
            if name not in PRIVATE and not (written and _follows(module, name, value)):
                yield f"{path}.{name} = {_plain(value, paths, tensors)}"


def _graph_code(module: fx.GraphModule) -> str:
    """What a module that was written for a graph computes. An exported program's is one."""
    specs = [getattr(module, name, None) for name in ("_in_spec", "_out_spec")]
    trees = [tree_text(spec) if spec is not None else "none" for spec in specs]
    if not all(trees):
        raise _UnknownError("a structure without text")
    return f"{digest_text(str(module.code))} {trees}"


def _follows(module: nn.Module, name: str, value: Any) -> bool:
    """Whether it says nothing that is not said: what a GraphModule keeps of its graph beside the
    code, and what an exported one checks of its inputs."""
    if type(module).__name__ in GUARDS and _is_torch(type(module).__module__):
        return True
    if not isinstance(module, fx.GraphModule) or isinstance(value, torch.Tensor):
        return False
    return name.startswith("_") or name in OF_GRAPHS


def _weight(tensor: torch.Tensor | None, path: str, tensors: dict[int, str]) -> str:
    """Its type, and whose memory it shares."""
    if tensor is None:
        return "None"
    text = _tensor(tensor)
    if tensor.layout is not torch.strided:
        raise _UnknownError(text)
    return f"{text} in {tensors.setdefault(tensor.untyped_storage()._cdata, path)}"


def _tensor(tensor: torch.Tensor) -> str:
    strided = tensor.layout is torch.strided
    strides = tuple(tensor.stride()) if strided else tensor.layout
    start = tensor.storage_offset() if strided else 0
    begins = f" from {start}" if start else ""
    return f"{tensor.dtype}{tuple(tensor.shape)}{strides} {tensor.device.type}{begins}"


def _plain(value: Any, paths: Mapping[int, str], tensors: dict[int, str]) -> str:
    """A text that differs where the value differs. `paths`: the modules that have a name."""
    if type(value) in NUMBERS or isinstance(value, PLAIN_VALUES):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, enum.Enum):
        return f"{_class(type(value))} {value.name}"
    if isinstance(value, torch.Tensor):
        return _weight(value, "attribute", tensors)
    if isinstance(value, nn.Module) and id(value) in paths:
        return f"module {paths[id(value)]}"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, Path)):
        return f"{type(value).__name__} {value}"
    if isinstance(value, weakref.ref):
        return "weakref"
    if isinstance(value, (tuple, list)):
        inside = ",".join(_plain(item, paths, tensors) for item in value)
        return f"{_container(value)}[{inside}]"
    if isinstance(value, (set, frozenset)):
        return f"set[{','.join(sorted(_plain(item, paths, tensors) for item in value))}]"
    if isinstance(value, Mapping):
        inside = ",".join(
            f"{_plain(key, paths, tensors)}:{_plain(item, paths, tensors)}"
            for key, item in value.items()
        )
        return f"{_container(value)}{{{inside}}}"
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial({','.join(_plain(part, paths, tensors) for part in parts)})"
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        return _function(value, paths, tensors)
    if is_dataclass(value):
        inside = ",".join(
            f"{f.name}={_plain(getattr(value, f.name), paths, tensors)}" for f in fields(value)
        )
        return f"{_class(type(value))}({inside})"
    raise _UnknownError(repr(type(value)))


def _container(value: object) -> str:
    """The name of a built-in container, or of a class that derives from one."""
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "collections") else _class(kind)


def _function(
    value: types.FunctionType | types.BuiltinFunctionType,
    paths: Mapping[int, str],
    tensors: dict[int, str],
) -> str:
    """A function by its code, its defaults and what it closes over; torch's by their names."""
    name = f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.BuiltinFunctionType) or _is_torch(value.__module__):
        bound = getattr(value, "__self__", None)
        if bound is not None and not isinstance(bound, (types.ModuleType, type)):
            raise _UnknownError(name)
        return name
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    held = (value.__defaults__, value.__kwdefaults__, cells)
    return f"{name} {_code(value.__code__)} {_plain(held, paths, tensors)}"


def _code(code: types.CodeType) -> str:
    parts = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    parts += [
        _code(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return digest_text("\n".join(parts))


@functools.cache
def _is_torch(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in ("torch", "builtins")


def _class(kind: type) -> str:
    """The qualified name of a class and the content of the files that define it and its bases."""
    files = [
        _file_digest(*_source_file(base))
        for base in kind.__mro__
        if not _is_torch(base.__module__)
        and base.__module__ not in ("abc", "collections", "enum", "typing")
    ]
    return f"{kind.__module__}.{kind.__qualname__} {' '.join(dict.fromkeys(files))}"


def file_digest(file: Path) -> str:
    """Of the content of a file, as it is now."""
    status = file.stat()
    return _file_digest(str(file), status.st_mtime_ns, status.st_size)


def _source_file(kind: type) -> tuple[str, int, int]:
    """Where a class is written, with what changes when the file does."""
    try:
        file = inspect.getsourcefile(kind)
        if file is None:
            raise _UnknownError(kind.__qualname__)
        status = Path(file).stat()
    except (TypeError, OSError):
        raise _UnknownError(kind.__qualname__) from None
    return file, status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=1024)
def _file_digest(file: str, changed: int, size: int) -> str:
    del changed, size  # only part of the key: a changed file is read again
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
