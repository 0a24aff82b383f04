"""Inputs: random ones of a graph that its operators can read (`ir.domains`), in several sets.

plain     normal numbers, integers 0 and 1
finite    normal numbers, and among them zeros of both signs, denormals, small whole numbers
          (whose quotients are exact), large ones; integers of both signs, some of them large
positive  as plain, but floats are from 0.5 on: what roots and logarithms can read
special   as plain, and among them a few infinities of both signs and NaN

table f32[50,3], ids i64[4]:  embedding(table, ids)         ids 17 49 0 8, not 0 1 1 0
starts i64[3] of bags of 6:   _embedding_bag(table, ids, starts)    0 2 5, not 1 0 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from anabranch.ir import ops
from anabranch.ir.domains import ANY, Domain, domains, indices, understood
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Constant, Graph, Node, Ref, producers, types
from anabranch.ir.types import TensorType, copy_into

Numbers = Literal["plain", "finite", "positive", "special"]
"""Which set inputs are of."""

LIGHT = 1 << 20
"""Elements that are computed on a processor in no time."""
MOST_ELEMENTS = 1 << 12
"""Elements of a tensor, at most, that are zeros, denormals, whole or large numbers; of a small one
it is every fourth. To write more takes time, and shows nothing else."""
SPECIAL_ELEMENTS = 16
"""Elements of a tensor, at most, that are not finite; of a small one it is one of so many, and one
at least: most results are to stay finite."""
LARGE_INT = 40
"""Bits of the largest integers that are drawn."""


def random_inputs(
    graph: Graph, seed: int, device: torch.device | None = None, numbers: Numbers = "plain"
) -> list[torch.Tensor]:
    """One tensor for each input of the graph, the same for the same seed and device."""
    bounds, tensors = domains(graph), []
    for i, value in enumerate(graph.inputs):
        tensors.append(drawn(value.type, seed + i, device, bounds.get(value.name, ANY), numbers))
    return tensors


def drawn(
    type: TensorType,
    seed: int,
    device: torch.device | None = None,
    domain: Domain = ANY,
    numbers: Numbers = "plain",
) -> torch.Tensor:
    """A tensor of numbers of this set that lie in the domain."""
    if domain.starts is not None:
        return _starts(type, domain.starts, seed, device)
    if type.dtype.is_floating_point and domain.low is None:
        tensor = random_tensor(type, seed, device, domain.unit)
        if not domain.unit and not (domain.finite and numbers == "special"):
            _sprinkle(tensor, seed, numbers)
        if (domain.positive or numbers == "positive") and not domain.unit:
            tensor = copy_into(tensor, tensor.abs().nan_to_num(1.0, 1.0) + 0.5)
        return copy_into(tensor, tensor.sort().values) if domain.sorted else tensor
    if type.dtype == torch.bool or type.dtype.is_complex:
        return random_tensor(type, seed, device)
    flat = _whole_numbers(type, seed, domain, numbers)
    tensor = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=device)
    return copy_into(tensor, flat.to(type.dtype).to(tensor.device))


def _whole_numbers(type: TensorType, seed: int, domain: Domain, numbers: Numbers) -> torch.Tensor:
    """Integers of the domain: indices reach to both ends of it."""
    generator = torch.Generator().manual_seed(seed)
    if domain.low is not None or domain.high is not None:
        low, high = domain.low or 0, domain.high if domain.high is not None else 2
        if domain.distinct is not None:
            return _distinct(type.shape, max(low, 0), high, domain.distinct, generator)
        flat = torch.randint(low, max(high, low + 1), type.shape, generator=generator)
        return torch.where(flat == 0, 1, flat) if domain.nonzero else flat
    if numbers == "plain":
        flat = torch.randint(0, 2, type.shape, generator=generator)
        return torch.where(flat == 0, 3, flat) if domain.nonzero else flat
    limits = torch.iinfo(type.dtype) if not type.dtype.is_floating_point else None
    signed = limits is None or limits.min < 0
    flat = torch.randint(-9 if signed else 0, 10, type.shape, generator=generator)
    bits = min(LARGE_INT, (limits.bits if limits is not None else 16) - 2)
    large = torch.randint(-(1 << bits) if signed else 0, 1 << bits, type.shape, generator=generator)
    flat = torch.where(torch.rand(type.shape, generator=generator) < 0.1, large, flat)
    if domain.nonzero:
        flat = torch.where(flat == 0, 3, flat)
    return flat.sort().values if domain.sorted else flat


def _distinct(
    shape: Sequence[int], low: int, high: int, axis: int, generator: torch.Generator
) -> torch.Tensor:
    """Integers no two of which are equal, all of them if there are so many, else along the axis if
    there are as many as that, else as they come."""
    size, count = high - low, torch.Size(shape).numel()
    if count <= size:
        return low + torch.randperm(size, generator=generator)[:count].reshape(tuple(shape))
    if shape and shape[axis] <= size:
        wide = list(shape)
        wide[axis] = size
        order = torch.rand(wide, generator=generator).argsort(axis)
        return low + order.narrow(axis, 0, shape[axis])
    return torch.randint(low, high, tuple(shape), generator=generator)


def _sprinkle(tensor: torch.Tensor, seed: int, numbers: Numbers) -> None:
    """Put other numbers than normal ones into a tensor, here and there."""
    if numbers not in ("finite", "special") or not tensor.numel() or 0 in tensor.stride():
        return
    generator = torch.Generator().manual_seed(seed)
    finite, count = numbers == "finite", tensor.numel()
    chosen = (
        min(MOST_ELEMENTS, -(-count // 4))
        if finite
        else min(SPECIAL_ELEMENTS, -(-count // SPECIAL_ELEMENTS))
    )
    places = torch.randint(0, count, (chosen,), generator=generator)
    values = _finite(chosen, tensor.dtype, generator) if finite else _special(chosen, generator)
    tensor[_indices(places.to(tensor.device), tensor.shape)] = values.to(tensor)


def sprinkle_small(tensor: torch.Tensor, seed: int) -> None:
    """Put zeros of both signs, denormals and whole numbers up to 2 into a tensor."""
    if tensor.numel() and 0 not in tensor.stride():
        generator = torch.Generator().manual_seed(seed)
        chosen = min(MOST_ELEMENTS, -(-tensor.numel() // 8))
        places = torch.randint(0, tensor.numel(), (chosen,), generator=generator)
        values = _finite(chosen, tensor.dtype, generator).clamp(-2, 2)
        tensor[_indices(places.to(tensor.device), tensor.shape)] = values.to(tensor)


def _indices(places: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Like torch.unravel_index, which imports SymPy: seconds in a process without it."""
    indices = []
    for size in reversed(shape):
        indices.append(places % size)
        places = places // size
    return tuple(reversed(indices))


def _finite(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Zeros of both signs, denormals, whole numbers and their thirds, large numbers."""
    info = torch.finfo(dtype)
    sign = 1.0 - 2.0 * torch.randint(0, 2, (count,), generator=generator, dtype=torch.float64)
    whole = torch.randint(0, 13, (count,), generator=generator).to(torch.float64)
    tiny = info.smallest_normal * torch.rand(count, generator=generator, dtype=torch.float64)
    large = whole * 64.0
    kind = torch.randint(0, 8, (count,), generator=generator)
    values = torch.where(kind < 2, torch.zeros_like(whole), whole)
    values = torch.where(kind == 2, tiny, values)
    values = torch.where(kind == 3, large, values)
    return sign * torch.where(kind == 4, whole + 0.5, values)


def _special(count: int, generator: torch.Generator) -> torch.Tensor:
    table = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0], dtype=torch.float64)
    return table[torch.randint(0, len(table), (count,), generator=generator)]


def legal(graph: Graph, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether operators may read these inputs, as far as anybody knows: none reads what the tables
    do not know, and all indices lie in what they are for. Constants have values."""
    return understood(graph) and lookups_fit(graph, inputs)


def lookups_fit(graph: Graph, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether all indices of lookups lie in their tables on these inputs; constants have values.
    Light computations that make them are done here, on the CPU; else nobody knows, and the answer
    is no."""
    declared, makers = types(graph), producers(graph)
    table = {value.name: tensor for value, tensor in zip(graph.inputs, inputs, strict=True)}
    seen: dict[str, torch.Tensor | None] = {}
    for node in graph.nodes:
        for index, low, size in indices(node, declared):
            if declared[index].dtype == torch.bool:
                continue  # a mask, as long as what it is of
            if index not in seen:
                seen[index] = _value(index, graph, table, makers, declared)
            values = seen[index]
            if values is None:
                return False
            if values.numel() and not low <= int(values.min()) <= int(values.max()) < size:
                return False
    return True


def _value(
    name: str,
    graph: Graph,
    table: Mapping[str, torch.Tensor],
    makers: Mapping[str, Node],
    types: Mapping[str, TensorType],
) -> torch.Tensor | None:
    """A value of the graph, computed on the CPU; None if that is not light, or fails."""
    before = ancestors(name, makers)
    if not all(_is_light(ancestor, makers, types) for ancestor in before):
        return None
    asked = Graph(
        graph.name,
        tuple(value for value in graph.inputs if value.name in before),
        tuple(_on_cpu(constant) for constant in graph.constants if constant.name in before),
        tuple(each for each in graph.nodes if before.issuperset(each.results)),
        (Ref(name),),
    )
    try:
        (result,) = eval_graph(asked, [table[value.name].cpu() for value in asked.inputs])
    except (RuntimeError, IndexError, ValueError):
        return None
    return result


def _on_cpu(constant: Constant) -> Constant:
    value = constant.value
    return constant if value is None else replace(constant, value=value.cpu())


def ancestors(name: str, makers: Mapping[str, Node]) -> set[str]:
    """The value, and all that it is made of."""
    seen, left = {name}, [name]
    while left:
        maker = makers.get(left.pop())
        if maker is not None:
            seen.update(maker.results)
            left += [used for used in maker.uses if used not in seen]
            seen.update(maker.uses)
    return seen


def _is_light(name: str, makers: Mapping[str, Node], types: Mapping[str, TensorType]) -> bool:
    maker = makers.get(name)
    heavy = maker is not None and ops.kind_of(maker) in ("contract", "opaque")
    return not heavy and types[name].numel <= LIGHT


def _starts(type: TensorType, count: int, seed: int, device: torch.device | None) -> torch.Tensor:
    """Where bags begin: the first at 0, none before the one before it; some are empty."""
    flat = random_tensor(type, seed, device, top=count + 1).flatten().sort().values
    flat[:1] = 0
    return copy_into(random_tensor(type, seed, device), flat.reshape(type.shape))


def random_tensor(
    type: TensorType,
    seed: int,
    device: torch.device | None = None,
    unit: bool = False,
    top: int = 2,
) -> torch.Tensor:
    """Fresh random content: normal numbers for floats, or such from 0 to 1 (`unit`), fair bits,
    integers below `top`: by default 0 or 1, which may be indices into a table of any size above
    one. Drawn where it will lie, which is what takes the time."""
    where = device or torch.device("cpu")
    generator = torch.Generator(where).manual_seed(seed)
    if type.dtype == torch.bool:
        flat = torch.rand(type.shape, generator=generator, device=where) < 0.5
    elif type.dtype.is_floating_point or type.dtype.is_complex:
        draw = torch.rand if unit else torch.randn
        flat = draw(type.shape, generator=generator, device=where).to(type.dtype)
    else:
        flat = torch.randint(0, top, type.shape, generator=generator, device=where).to(type.dtype)
    tensor = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=device)
    return copy_into(tensor, flat)
