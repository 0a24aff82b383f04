"""Weights that share memory and are seen in different ways: a captured graph -> the graph, which
relies on their going together.

    self.flat = nn.Parameter(torch.randn(32))
    self.head = self.flat[:16].view(4, 4)         head = flat[:16], to the bit: a condition

Loading weights into the model writes to `flat`, and `head` changes with it. A plan has a copy of
each, and a state dict brings `flat` alone. New weights under which the two differ are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anabranch.frontend.memory import has_memory, share
from anabranch.frontend.strided import StridedWindow, dense, views
from anabranch.frontend.translate import plain_value
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Condition, Constant, Derivation, Graph, Ref, types
from anabranch.ir.key import digest_source, digest_tensor, digest_text
from anabranch.ir.recipe import bare
from anabranch.ir.types import type_of

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element what it is compared as: NaN is equal to itself, and 0.0 not to -0.0.
"""
WeightConstant = tuple[Tensor, Constant]
"""A tensor of the model, and the constant that it is."""


def with_shared(
    graph: Graph, tensors: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]
) -> Graph:
    """The graph, with a condition for each constant that shares memory with another tensor.
    `tensors`: what the model holds by name; `names`: by a name all names of that memory. A weight
    that the graph does not read becomes a constant of it, which nothing reads."""
    read = list(_held_of(graph, tensors))
    read_names = {name for _, constant in read for name in constant.source}
    rest = [
        (name, tensor)
        for name, tensor in tensors.items()
        if name not in read_names and names[name][0] == name and has_memory(tensor)
    ]
    lie = Counter(_storage(tensor) for tensor in (*(t for t, _ in read), *(t for _, t in rest)))
    read = [held for held in read if lie[_storage(held[0])] > 1]
    unread = (
        (tensor, Constant(name, type_of(tensor), "", source=tuple(names[name])))
        for name, tensor in rest
        if lie[_storage(tensor)] > 1
    )
    weights, first = [*read, *unread], len(read)
    pairs = [
        (place, other)
        for place, other in _sharing([tensor for tensor, _ in weights])
        if min(place, other) < first and (weights[place][1].source or weights[other][1].source)
    ]
    if not pairs:
        return graph
    more = sorted({place for pair in pairs for place in pair if place >= first})
    added = {place: _content(*weights[place], graph, place) for place in more}
    held = [(tensor, added.get(place, c)) for place, (tensor, c) in enumerate(weights)]
    conditions = (_condition(held[place], held[other]) for place, other in pairs)
    return replace(
        graph,
        constants=(*graph.constants, *added.values()),
        conditions=tuple(dict.fromkeys((*graph.conditions, *conditions))),
    )


def _storage(tensor: Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def hides_shared(graph: Graph, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a constant without a name shares memory with what the model holds by name: stored
    and read again it would lie elsewhere."""
    nameless = [tensor for tensor, constant in _held_of(graph, {}) if not constant.source]
    lie = set(map(_storage, nameless))
    near = [t for t in tensors.values() if has_memory(t) and _storage(t) in lie] if lie else []
    return any(share(hidden, tensor) for hidden in nameless for tensor in near)


def _held_of(graph: Graph, tensors: Mapping[str, Tensor]) -> Iterator[WeightConstant]:
    """The graph's constants with the tensors that they are: the model's, or those that its code
    closes over."""
    for constant in graph.constants:
        path = next((name for name in constant.source if name in tensors), None)
        tensor = constant.value if path is None else tensors[path]
        if tensor is not None and has_memory(tensor):
            yield tensor, constant


def _sharing(tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """The places of each two that have an element in common."""
    spans = [(tensor.data_ptr(), tensor.data_ptr() + type_of(tensor).nbytes) for tensor in tensors]
    order = sorted(range(len(tensors)), key=lambda place: spans[place])
    for i, first in enumerate(order):
        for other in order[i + 1 :]:
            if spans[other][0] >= spans[first][1]:
                break
            if share(tensors[first], tensors[other]):
                yield first, other


def _content(tensor: Tensor, constant: Constant, graph: Graph, place: int) -> Constant:
    """A tensor of the model, as a constant of a graph that has none of it."""
    name, taken = f"shared_{place}", types(graph)
    while name in taken:
        name += "_"
    value = plain_value(tensor, None)
    digest = digest_source(digest_tensor(value), constant.name)
    return replace(constant, name=name, digest=digest, value=value)


def _condition(weight: WeightConstant, other: WeightConstant) -> Condition:
    """The smaller of two tensors is the part of the larger one that it is now. A relation that
    cannot be told so is a condition that no new weights meet."""
    part, whole = sorted((weight, other), key=lambda held: held[0].nbytes)
    how = _part_of(part, whole)
    if how is not None:
        return how
    named = next(constant for _, constant in (part, whole) if constant.source)
    return Condition(bare(named), "alone")


def _part_of(part: WeightConstant, whole: WeightConstant) -> Condition | None:
    """The condition that the first is a part of the second; None where it cannot be told."""
    tensor, held = part
    around, constant = whole
    bits = BITS.get(tensor.itemsize)
    start, odd = divmod(tensor.data_ptr() - around.data_ptr(), tensor.itemsize)
    if bits is None or odd or tensor.dtype != around.dtype:
        return None
    window = StridedWindow(type_of(around), tuple(tensor.shape), tuple(tensor.stride()), start)
    if not (dense(window.type) and window.inside):
        return None
    cut = bare(constant)
    for op, args in views(window) or ():
        cut = _computed(op, (cut,), *args)
    both = [_computed("aten.view.dtype", (each,), bits) for each in (bare(held), cut)]
    return Condition(_computed("aten.eq.Tensor", both), "together")


def _computed(op: str, operands: Sequence[Constant], *rest: Arg) -> Constant:
    """What an operator makes of constants, as a constant without a value."""
    names = [str(i) for i in range(len(operands))]
    types = {name: operand.type for name, operand in zip(names, operands, strict=True)}
    node = ops.make_node("cut", op, (*map(Ref, names), *rest), types)
    digest = digest_text(" ".join([op, repr(rest), *(operand.digest for operand in operands)]))
    reads = dict(zip(names, operands, strict=True))
    return Constant("cut", node.type, digest, derived=Derivation(node, 0, reads))
