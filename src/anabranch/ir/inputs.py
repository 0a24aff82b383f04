"""Inputs: random ones of a graph that its operators can read.

    table f32[50,3], ids i64[4]:  embedding(table, ids)         ids 17 49 0 8, not 0 1 1 0
    starts i64[3] of bags of 6:   _embedding_bag(table, ids, starts)    0 2 5, not 1 0 1

Numbers are normal, probabilities from 0 to 1. Indices reach to the end of the table that they are
for, as far as the graph shows it, and bags follow one another: given others an operator refuses, or
reads what is not there, which on a GPU ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Arg, Constant, Graph, Node, Ref, producers, types, users
from anabranch.ir.types import TensorType, copy_into

RENAMED = frozenset(
    f"aten.{name}"
    for name in ("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "permute")
) | {"aten.clone", "aten.transpose", "aten.slice", "aten.select", "aten._to_copy"}
"""What hands on the numbers that it reads."""

LIGHT = 1 << 20
"""Elements that are computed on a processor in no time."""
BAGS = frozenset({"aten._embedding_bag", "aten._embedding_bag_forward_only", "aten.embedding_bag"})


def random_inputs(
    graph: Graph, seed: int, device: torch.device | None = None
) -> list[torch.Tensor]:
    """One tensor for each input of the graph, the same for the same seed and device."""
    unit, tops, bags = ops.probabilities(graph.nodes), index_tops(graph), _bagged(graph)
    found = []
    for i, value in enumerate(graph.inputs):
        if value.name in bags:
            found.append(_starts(value.type, bags[value.name], seed + i, device))
            continue
        top = tops.get(value.name, 2)
        found.append(random_tensor(value.type, seed + i, device, value.name in unit, top))
    return found


def index_tops(graph: Graph) -> dict[str, int]:
    """For inputs that are nothing but indices, or of which views or copies are, below what they
    must be. Of what is reckoned with besides nobody knows where it leads."""
    known, makers, readers = types(graph), producers(graph), users(graph)
    found: dict[str, int] = {}
    asked: dict[str, set[str]] = {}
    for node in graph.nodes:
        for index, size in _indices(node, known):
            asked.setdefault(index, set()).add(node.name)
            index = _source(index, makers)
            found[index] = max(1, min(size, found.get(index, size)))

    def alone(name: str) -> bool:
        """Whether every reader looks up by it, or hands it on to such."""
        return all(
            reader.name in asked.get(name, ())
            or (ops.packet_name(reader.op) in RENAMED and all(map(alone, reader.results)))
            for reader in readers.get(name, ())
        )

    inputs = {value.name for value in graph.inputs}
    return {name: top for name, top in found.items() if name in inputs and alone(name)}


def lookups_fit(graph: Graph, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether all indices of lookups lie in their tables on these inputs; constants have values.
    What makes them is computed here, on the CPU, if it is light; else nobody knows, and the answer
    is no."""
    known, makers = types(graph), producers(graph)
    table = {value.name: given for value, given in zip(graph.inputs, inputs, strict=True)}
    for node in graph.nodes:
        for index, size in _indices(node, known):
            if known[index].dtype == torch.bool:
                continue  # a mask, as long as what it is of
            before = _ancestors(index, makers)
            if not all(_is_light(one, makers, known) for one in before):
                return False
            asked = Graph(
                graph.name,
                tuple(value for value in graph.inputs if value.name in before),
                tuple(_on_cpu(one) for one in graph.constants if one.name in before),
                tuple(each for each in graph.nodes if before.issuperset(each.results)),
                (Ref(index),),
            )
            (found,) = eval_graph(asked, [table[value.name].cpu() for value in asked.inputs])
            if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < size:
                return False
    return True


def _on_cpu(constant: Constant) -> Constant:
    value = constant.value
    return constant if value is None else replace(constant, value=value.cpu())


def _ancestors(name: str, makers: Mapping[str, Node]) -> set[str]:
    """The value, and all that it is made of."""
    found, left = {name}, [name]
    while left:
        maker = makers.get(left.pop())
        if maker is not None:
            found.update(maker.results)
            left += [one for one in maker.uses if one not in found]
            found.update(maker.uses)
    return found


def _is_light(name: str, makers: Mapping[str, Node], known: Mapping[str, TensorType]) -> bool:
    maker = makers.get(name)
    heavy = maker is not None and ops.info(maker.op).kind in ("contract", "opaque")
    return not heavy and known[name].numel <= LIGHT


def _source(name: str, makers: Mapping[str, Node]) -> str:
    """The value whose numbers these are."""
    while (maker := makers.get(name)) and ops.packet_name(maker.op) in RENAMED:
        name = maker.uses[0]
    return name


def _indices(node: Node, known: Mapping[str, TensorType]) -> Iterator[tuple[str, int]]:
    """The indices of a lookup, each with the size of the axis of the table that it is for."""
    given, name = ops.arguments(node), ops.packet_name(node.op)
    table = next(iter(given.values()), None)
    if not isinstance(table, Ref):
        return
    shape, listed = known[table.name].shape, list[tuple[Arg, int]]()
    if name == "aten.embedding" or name in BAGS:
        listed = [(given["indices"], 0)]
    elif name in ("aten.index_select", "aten.gather") and isinstance(given["dim"], int):
        listed = [(given["index"], given["dim"])]
    elif name == "aten.index" and isinstance(given["indices"], tuple):
        listed = [(index, axis) for axis, index in enumerate(given["indices"])]
    for index, axis in listed:
        if isinstance(index, Ref) and -len(shape) <= axis < len(shape):
            yield index.name, shape[axis]


def _bagged(graph: Graph) -> dict[str, int]:
    """The inputs that say where bags begin, each with how many indices are in all bags."""
    known, makers = types(graph), producers(graph)
    found: dict[str, int] = {}
    for node in graph.nodes:
        if ops.packet_name(node.op) in BAGS:
            given = ops.arguments(node)
            starts, indices = given["offsets"], given["indices"]
            if isinstance(starts, Ref) and isinstance(indices, Ref):
                name, count = _source(starts.name, makers), known[indices.name].numel
                found[name] = min(count, found.get(name, count))
    return found


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
