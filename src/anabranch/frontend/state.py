"""What a model holds by name: a captured graph and its model -> the graph, which says whose values
its constants are.

    names   table.weight   f32[50,8]   persistent       the constant %table_weight comes of
            head.weight    f32[50,8]   persistent       ("table.weight", "head.weight"): one memory
            mask           f32[8,8]    not persistent

Refitting asks for names of the model, so all of them are noted, those included that the graph does
not read. Names that tie one memory together are told by the memory of the model at hand, never by
equal content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from anabranch.errors import CaptureError
from anabranch.frontend.captured import Captured
from anabranch.frontend.memory import share
from anabranch.frontend.shared_weights import with_shared
from anabranch.ir.graph import Constant, Graph, State
from anabranch.ir.recipe import ModelTensor
from anabranch.ir.types import overlaps, type_of


def with_state(captured: Captured, model: Any) -> Captured:
    """The captured graph with the names of what the model holds; without any for a function."""
    if not isinstance(model, nn.Module):
        return captured
    model = unwrapped(model)
    tensors = dict(tensors_of(model))
    paths = dict(captured.sources)
    for path in paths.values():  # tensors that are neither parameters nor buffers
        if path not in tensors and (value := attribute(model, path)) is not None:
            tensors[path] = value
    return named(captured, tensors, tuple(held_of(model, tensors)))


def named(
    captured: Captured, tensors: Mapping[str, Tensor], state: tuple[ModelTensor, ...]
) -> Captured:
    """The captured graph with these names: constants have all names of their memory."""
    paths = dict(captured.sources)
    memories = {name: _memory(tensor) for name, tensor in tensors.items()}
    groups: dict[_Memory | None, list[str]] = {}
    for name, memory in memories.items():
        groups.setdefault(memory, []).append(name)

    def tied(constant: Constant) -> Constant:
        """The constant with all names of its memory."""
        path = paths.get(constant.name)
        memory = memories.get(path) if path is not None else None
        if path is None or memory is None:
            return constant
        source = (path, *(name for name in groups[memory] if name != path))
        return constant if constant.source == source else replace(constant, source=source)

    constants = tuple(map(tied, captured.graph.constants))

    def all_names(state: State) -> State:
        memory = memories.get(state.path)
        return state if memory is None else replace(state, source=tuple(groups[memory]))

    states = tuple(map(all_names, captured.graph.states))
    graph = replace(captured.graph, constants=constants, states=states)
    names = {name: groups[memory] for name, memory in memories.items()}
    return replace(captured, graph=with_shared(graph, tensors, names), state=state)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module itself, without the wrapper of torch.compile, under which names are others."""
    original = getattr(model, "_orig_mod", model)
    return original if isinstance(original, nn.Module) else model


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under each of their names. Both are looked for in one walk, which
    takes longer than all else."""
    if type(model).named_parameters is not Module.named_parameters or (
        type(model).named_buffers is not Module.named_buffers
    ):
        yield from model.named_parameters(remove_duplicate=False)
        yield from model.named_buffers(remove_duplicate=False)
        return
    buffers: list[tuple[str, Tensor]] = []
    for path, part in model.named_modules(remove_duplicate=False):
        begin = f"{path}." if path else ""
        for name, tensor in part._parameters.items():
            if tensor is not None:
                yield f"{begin}{name}", tensor
        buffers += [(f"{begin}{k}", v) for k, v in part._buffers.items() if v is not None]
    yield from buffers


def in_their_places(model: nn.Module) -> dict[str, Tensor]:
    """`tensors_of`, without further names of the same module: who puts others in the place of
    these, and these back, may meet each place once."""
    owners = {path: id(part) for path, part in model.named_modules(remove_duplicate=False)}
    places: dict[tuple[int | str, str], tuple[str, Tensor]] = {}
    for name, tensor in tensors_of(model):
        path, _, own = name.rpartition(".")
        places.setdefault((owners.get(path, path), own), (name, tensor))
    return dict(places.values())


def held_of(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[ModelTensor]:
    """How the model holds these, in the order of its state dict, which is by modules."""
    passing: set[str] = set()
    order: dict[str, int] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        begin = f"{path}." if path else ""
        passing.update(f"{begin}{name}" for name in module._non_persistent_buffers_set)
        for name in (*module._parameters, *module._buffers):
            order[f"{begin}{name}"] = len(order)
    registered = {name for name, _ in tensors_of(model)}
    for name in sorted(tensors, key=lambda name: order.get(name, len(order))):
        tensor = tensors[name]
        persistent = name in registered and name not in passing
        yield ModelTensor(name, tuple(tensor.shape), tensor.dtype, persistent)


def unkept(graph: Graph, model: Any, changed: Sequence[str]) -> list[str]:
    """The changes that a call of the model makes and a call of the graph does not: states it does,
    under each of their names."""
    states = [state.value for state in graph.states if state.value is not None]
    held = dict(tensors_of(model)) if states and isinstance(model, nn.Module) else {}

    def kept(name: str) -> bool:
        return name in held and any(same_memory(held[name], value) for value in states)

    return [name for name in changed if not kept(name)]


def check_states(model: nn.Module, written: Collection[str]) -> None:
    """CaptureError where a tensor that the model writes to shares memory with another one that it
    holds, which would change with it. A name of the same tensor in the same module is another one;
    the module itself may have several."""
    held = dict(tensors_of(model))
    for path in written:
        for name, other in held.items() if path in held else ():
            if other is not held[path] and share(held[path], other):
                raise CaptureError(
                    f"the model writes to {path}, which shares memory with {name}",
                    "the one would change with the other, and a graph does not see that",
                    f"keep one of the two, and make the other of it in forward, or clone {name}",
                )


def check_tied(model: nn.Module, written: Collection[str], refused: CaptureError) -> None:
    """CaptureError of a model that torch.export `refused`, where a tensor that it writes to has
    several names."""
    held = dict(tensors_of(model))
    for path in written:
        others = [name for name in held if name != path and held[name] is held.get(path)]
        if others:
            raise CaptureError(
                f"the model writes to {path}, which it also holds as {others[0]}",
                "torch.export does not follow a tensor that is written to and has two names",
                f"keep one of the two names, and read the tensor by it where {others[0]} is read",
            ) from refused


def state_place(tensor: Tensor | None, path: str) -> Tensor:
    """The tensor that the model holds under the path, in whose memory a state may lie."""
    if tensor is None:
        raise CaptureError(
            f"the model writes to {path}, and holds no tensor under this name",
            "the new value has no place to be written to",
            "register it as a buffer",
        )
    if overlaps(type_of(tensor)):
        raise CaptureError(
            f"the model writes to {path}, several elements of which are one in memory",
            "who writes one of them writes the others",
            "make it with .clone() or .contiguous() before it is registered",
        )
    return tensor


def attribute(holder: nn.Module, path: str) -> Tensor | None:
    """The tensor that a module holds under a qualified name."""
    value: Any = holder
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, Tensor) else None


_Memory = tuple[int, int, torch.Size, tuple[int, ...], torch.dtype]
"""Where a tensor lies, and how it is seen: two that agree are one."""


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one memory seen in one way."""
    memory, other = _memory(a), _memory(b)
    return memory is not None and memory == other


def _memory(tensor: Tensor) -> _Memory | None:
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    storage = tensor.untyped_storage()._cdata
    return storage, int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.dtype
