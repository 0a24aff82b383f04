"""Are the rows of a batch independent? A proof over the captured graph, or the operator that mixes.

    capture at batch B and at B + 1   what is the batch's shows in the sizes that differ
    walk both graphs together         each value: which axis has the rows (`BatchAxis`), if any
    every result                      has its rows on the first axis, or none

Then no row of a result depends on another row of an input or on the size of the batch, so a batch
may be padded with any rows. Two captures tell a size from a number that happens to be equal; what a
model does in Python with the size (`x / len(x)`) is a number that differs, and refuses the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from anabranch.errors import OptionError
from anabranch.frontend.batch_axes import (
    CARRIED,
    MADE,
    RULES,
    SIZED,
    VIEWS,
    BatchAxis,
    BatchedCall,
    MixedBatchError,
    regrouped,
)
from anabranch.frontend.captured import Captured
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.ops import arguments, packet_name

NEXT = 'compile it with batch="refuse", and add a plan for each batch with .add(...)'
Shapes = dict[str, tuple[int, ...]]


def batched_results(one: Captured, other: Captured, batch: int, more: int) -> tuple[int, ...]:
    """For each leaf of the result how many indices of its first axis one row of the batch has: 0 if
    it has no rows. `one` and `other`: the model captured at batches of these two sizes. OptionError
    where rows are not independent."""
    graph, wide = one.graph, other.graph
    if one.signature.mutations:
        raise refused("the model writes to its inputs, and padding would be written, too")
    if _differ(one, other):
        raise refused("its code does something else for another batch")
    rows: dict[str, BatchAxis] = {}
    shapes: Shapes = {value.name: value.type.shape for value in graph.constants}
    for value, same in zip(graph.inputs, wide.inputs, strict=True):
        shapes[value.name] = value.type.shape
        if value.type.shape:
            if (value.type.shape[0], same.type.shape[0]) != (batch, more):
                raise refused(f"the first axis of {value.name} is not the batch")
            rows[value.name] = BatchAxis(0)
    for node, twin in zip(graph.nodes, wide.nodes, strict=True):
        try:
            _step(node, twin, rows, shapes, (batch, more))
        except MixedBatchError as mixed:
            raise refused(f"{node.op} may mix rows of the batch: {mixed}", node.origin) from None
    results = []
    for leaf in one.signature.outputs:
        known = rows.get(leaf.ref.name) if leaf.ref is not None else None
        if known is not None and (known.axis, known.outer) != (0, 1):
            raise refused(f"a result has the batch in axis {known.axis}, and not first there")
        results.append(known.inner if known is not None else 0)
    return tuple(results)


def refused(why: str, origin: str = "") -> OptionError:
    """The error of a model that `batch="pad"` cannot serve, with the operator's place in it."""
    return OptionError('the model cannot be compiled with batch="pad"', why, NEXT, origin)


def _differ(one: Captured, other: Captured) -> bool:
    """Whether two graphs have other operators, constants or results."""
    first, second = one.graph, other.graph
    return (
        [node.op for node in first.nodes] != [node.op for node in second.nodes]
        or [(c.type, c.digest) for c in first.constants]
        != [(c.type, c.digest) for c in second.constants]
        or len(first.inputs) != len(second.inputs)
        or one.signature.inputs != other.signature.inputs
        or one.signature.outputs != other.signature.outputs
    )


def _where(
    shape: tuple[int, ...], wide: tuple[int, ...], batch: int, more: int
) -> tuple[int, int] | None:
    """The axis whose size is a multiple of the batch's, and which; None if no size differs."""
    axes = [i for i, (a, b) in enumerate(zip(shape, wide, strict=True)) if a != b]
    if not axes:
        return None
    if len(axes) > 1:
        raise MixedBatchError("several axes of its result have the size of the batch")
    (axis,) = axes
    times = shape[axis] // batch
    if shape[axis] != times * batch or wide[axis] != times * more:
        raise MixedBatchError("the size of its result is no multiple of the batch")
    return axis, times


def _step(
    node: Node, twin: Node, rows: dict[str, BatchAxis], shapes: Shapes, sizes: tuple[int, int]
) -> None:
    """Where the results of one node have their rows."""
    name = packet_name(node.op)
    for result, type in zip(node.results, node.types, strict=True):
        shapes[result] = type.shape
    if any(len(a.shape) != len(b.shape) for a, b in zip(node.types, twin.types, strict=True)):
        raise MixedBatchError("it has other axes for another batch")
    places = [_where(a.shape, b.shape, *sizes) for a, b in zip(node.types, twin.types, strict=True)]
    same = _same((node.args, node.kwargs), (twin.args, twin.kwargs))
    made = not any(value in rows for value in node.uses)
    sized = any(places) and _same_but(MADE.get(name), node, twin) if made else name in SIZED
    if not (same or sized):
        raise MixedBatchError("one of its numbers depends on the size of the batch")
    for number, (result, place) in enumerate(zip(node.results, places, strict=True)):
        if made:
            if place is not None:
                rows[result] = BatchAxis(place[0], 1, place[1], _kind(name, node, place[1]))
        elif node.types[number].numel or place is not None:
            rows[result] = _moved(name, node, rows, shapes, place, number)


def _kind(name: str, node: Node, times: int) -> Literal["", "counted", "alike"]:
    """What rows are that are made of none."""
    if name != "aten.arange":
        return "alike"
    given = arguments(node)
    plain = (given.get("start", 0), given.get("step", 1), times) == (0, 1, 1)
    return "counted" if plain else ""


def _moved(
    name: str,
    node: Node,
    rows: Mapping[str, BatchAxis],
    shapes: Shapes,
    place: tuple[int, int] | None,
    number: int,
) -> BatchAxis:
    """Where a result has its rows. MixedBatchError unless the operator has them where
    sizes say they are."""
    rule = RULES.get(name)
    if rule is None:
        raise MixedBatchError("nobody knows what it does to rows")
    call = BatchedCall(arguments(node), rows, shapes, node.types[0].shape)
    axis = rule(call)
    if place is None:
        raise MixedBatchError("its result has no axis for the batch")
    given = [rows[value] for value in node.uses if value in rows]
    kind = given[0].kind if name in CARRIED and node.uses[0] in rows else ""
    if name in VIEWS:
        return regrouped(given[0], shapes[node.uses[0]], place[0], node.types[number].shape)
    if number == 0 and axis != place[0]:
        raise MixedBatchError(
            f"its result has axis {place[0]} for the batch, and rows on axis {axis}"
        )
    parts = {(one.outer, one.inner) for one in given if one.kind != "alike"} or {(1, place[1])}
    if len(parts) > 1:
        raise MixedBatchError("its operands have the rows of the batch in different orders")
    ((outer, inner),) = parts
    if outer * inner != place[1]:
        raise MixedBatchError("its result has other parts of the batch than its operands")
    return BatchAxis(place[0], outer, inner, kind)


def _same_but(name: str | None, node: Node, twin: Node) -> bool:
    """Whether only this argument differs."""
    one, other = arguments(node), arguments(twin)
    return name is not None and all(_same(one[key], other[key]) for key in one if key != name)


def _same(one: Arg, other: Arg) -> bool:
    """Whether two calls have the same numbers; names of values are those of both graphs."""
    if isinstance(one, Ref):
        return isinstance(other, Ref) and one == other
    if isinstance(one, tuple):
        alike = isinstance(other, tuple) and len(one) == len(other)
        return alike and all(map(_same, one, other))  # type: ignore[arg-type]
    return type(one) is type(other) and repr(one) == repr(other)  # NaN and -0.0 are themselves
