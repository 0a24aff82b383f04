"""Is padding harmless? A proof over the captured graph, or the operator that lets it through.

    capture at sizes n and m of one axis   what is the axis' shows in the sizes that differ
    walk both graphs together              each value: which of its axes have the rows, and what
                                           number their padding has, where that is known
    every result                           has its rows on known axes, or is none of the axis

The claim of a value: what the graph computes of a padded call has, in the rows of the call, what it
computes of the call alone. It holds where rows stay apart (`padded_axes`), and where an operator
that works along the axis finds the padding neutral (`padded_sums`): masked with -inf before a
softmax, 0 before a sum. Two captures tell a size from a number that happens to be equal; what a
model does in Python with the size (`x / len(x)`) is a number that differs, and refuses the model.

    rows of a batch                apart: a row of a result depends on the same row of inputs alone,
                                   and not on its number
    a sequence, masked or causal   not apart, and padding is harmless all the same

What a model writes to its states is a result like all others, but for one thing: it stays as it is,
and nobody cuts padding off it. So it has no rows: a counter, a sum of what is 0 in padding. A model
with states is never called for a part of a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from anabranch.frontend.captured import Captured
from anabranch.frontend.index_values import IndexValues
from anabranch.frontend.padded_axes import (
    CARRIED,
    MADE,
    POINTWISE,
    RULES,
    SIZED,
    VIEWS,
    WRITING,
    MixedRowsError,
    PaddedAxis,
    PaddedCall,
    dims_of,
    regrouped,
)
from anabranch.frontend.padded_indices import (
    PICKING,
    PLACES,
    ROW_NUMBER_DTYPES,
    PaddedIndices,
)
from anabranch.frontend.padded_sums import SUMS, Along, Sum
from anabranch.frontend.padding_marks import (
    MASK,
    Hidden,
    MarkedPadding,
    can_mark,
    hiding,
    numbered,
    with_infinities,
    with_marks,
)
from anabranch.frontend.padding_numbers import ADDING, PaddingNumbers
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.key import digest_tensor
from anabranch.ir.ops import arguments, packet_name
from anabranch.ir.padding_marks import MARKS
from anabranch.ir.types import TensorType

Shapes = dict[str, tuple[int, ...]]
RowAxis = tuple[int, int, int]
"""Where a tensor has rows: the axis, and of its indices `[outer, size, inner]` outer and inner. One
of the two is 0 where it depends on other dimensions, and follows from how long the axis is."""
REPEATABLE = frozenset(f"aten.{name}" for name in ("any", "all", "amax", "amin", "max", "min"))
"""Operators that give the same for some rows and for these with copies of one."""
REACH = 4096
"""Up to which size masks are looked at, element by element, where a dimension has no end."""
COPYING_OPS = (*CARRIED, *POINTWISE, "aten.cat", "aten.stack", "aten.index")
"""Operators whose results have numbers of their operands, or are looked at apart there."""


TOGETHER = ("aten.scaled_dot_product_attention", *WRITING)
"""Operators of which all operands must have harmless padding."""


class UnprovenError(Exception):
    """Padding may change what a call returns. `origin`: the user's line of the operator."""

    def __init__(self, why: str, origin: str = "") -> None:
        super().__init__(why)
        self.why, self.origin = why, origin

    def __str__(self) -> str:
        return f"{self.why} ({self.origin})" if self.origin else self.why


@dataclass(frozen=True, slots=True)
class PaddingProof:
    """Padding along one dynamic axis is harmless. `zeros`: for each tensor of a call whether it is
    padded with zeros; else with copies of its last row. `results`: for each leaf of the result
    where it has rows. `least`: rows that a call has at least; `most`: up to how many it may be
    padded, None for any number. `apart`: rows do not meet, none
    depends on its number, they share no drawn number, and nothing is written, so a call may also be
    answered in pieces. `true_masks`: truth values are padded with True in place of zeros. `marked`:
    the proof is of the graph that reads these marks. `tables`: the model's names of tensors whose
    numbers it relies on, and what names their contents (`ir.key.digest_tensor`). `picked`: places
    of tensors in a call, with a number beside each: the sums of theirs and that one are the rows
    that a call picks, and only calls that have these rows are padded."""

    zeros: tuple[bool, ...]
    results: tuple[tuple[RowAxis, ...], ...]
    least: int = 1
    apart: bool = False
    true_masks: bool = False
    most: int | None = None
    marked: MarkedPadding | None = None
    tables: tuple[tuple[str, str], ...] = ()
    picked: tuple[tuple[int, int], ...] = ()

    def number(self, place: int, dtype: torch.dtype) -> int | None:
        """What a tensor of a call is padded with; None for copies of its last row."""
        if self.marked is not None and self.marked.place == place:
            return MARKS.get(dtype)
        return int(self.true_masks and dtype == torch.bool) if self.zeros[place] else None

    def allows(self, size: int, more: int) -> bool:
        """Whether a call with `size` rows may be padded to `more`."""
        return self.least <= size and (self.most is None or more <= self.most)


def padding_proof(
    captured: Captured,
    other: Captured,
    sizes: tuple[int, int],
    rows: Sequence[Sequence[RowAxis]],
    marks: bool = False,
    reach: int | None = None,
) -> PaddingProof:
    """That calls may be padded along the axis that has these two `sizes` in the two captures.
    `rows`: for each tensor of a call where it has rows. Masks are padded with zeros where copies
    of the last row would not do, or do for few rows alone, or with True; where none of it would do,
    and `marks` says so, an input with numbers by which the graph knows its padding. `reach`: the
    largest size of the axis, None where it has no end. UnprovenError if padding is not harmless, or
    nobody knows."""
    types = [value.type for value in captured.graph.call_inputs]
    refusals = list[UnprovenError]()
    walk = partial(_PaddingWalk, captured, other, sizes)
    numbers = IndexValues(sizes, reach or max(REACH, *sizes))  # of all walks
    for by_index in (None, numbers):  # these hold up to a size, and take longer
        proofs: list[PaddingProof] = []
        for zeros, true_masks in _paddings(types, rows):
            try:
                proofs.append(walk(reach, by_index).proof(rows, zeros, true_masks))
            except UnprovenError as unproven:
                refusals.append(unproven)
                continue
            if proofs[-1].most is None:
                return proofs[-1]
        if proofs:
            return max(proofs, key=lambda proof: proof.most or 0)
    if not marks or captured.graph.states:
        raise refusals[0]
    unmarked, refusals = refusals[0], []
    for by_index in (None, numbers):
        for place in can_mark(captured, rows):
            marking = MarkedPadding(place, rows[place][0][0])
            marked_too = ((*z[:place], True, *z[place + 1 :]) for z, _ in _paddings(types, rows))
            for zeros in dict.fromkeys(marked_too):
                asked = reach, by_index
                try:
                    return _marked_proof(captured, other, sizes, rows, zeros, marking, asked)
                except UnprovenError as unproven:
                    refusals.append(unproven)
    raise next(iter(refusals), unmarked)  # what cannot be hidden is what a person needs to know


def _marked_proof(
    captured: Captured,
    other: Captured,
    sizes: tuple[int, int],
    rows: Sequence[Sequence[RowAxis]],
    zeros: tuple[bool, ...],
    marking: MarkedPadding,
    asked: tuple[int | None, IndexValues | None],
) -> PaddingProof:
    """The proof of the graph that reads marks, once it is known where it needs them."""
    asking = _PaddingWalk(captured, other, sizes, *asked, hidden=[])
    asking.proof(rows, zeros, False)
    assert asking.hidden is not None
    marking = replace(marking, hidden=tuple(asking.hidden))
    first, second = (with_marks(each, [marking]) for each in (captured, other))
    reach, by_index = asked
    by_index = by_index and IndexValues(sizes, by_index.reach)  # of another graph
    walk = _PaddingWalk(first, second, sizes, reach, by_index, marked=marking.place)
    return replace(walk.proof(rows, zeros, False), marked=marking)


def _paddings(
    types: Sequence[TensorType], rows: Sequence[Sequence[RowAxis]]
) -> Iterator[tuple[tuple[bool, ...], bool]]:
    """Which inputs are padded with zeros: none, truth values, also integers, all. Afterwards the
    same with True for truth values, as masks have it that say what is padding."""
    kinds = [
        0 if not at else 1 if t.dtype == torch.bool else 3 if t.dtype.is_floating_point else 2
        for t, at in zip(types, rows, strict=True)
    ]
    tried = [tuple(0 < kind <= most for kind in kinds) for most in range(4)]
    zeros = dict.fromkeys(tried)
    yield from ((each, False) for each in zeros)
    if 1 in kinds:
        yield from ((each, True) for each in zeros if any(each))


@dataclass(slots=True)
class _PaddingWalk:
    first: Captured
    second: Captured
    sizes: tuple[int, int]
    reach: int | None
    by_index: IndexValues | None
    """What is known of values of row numbers alone; None where they are not looked at."""
    axes: dict[str, tuple[PaddedAxis, ...]] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    wide: Shapes = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    """Values in which rows met, or a row is computed of its number."""
    spoiled: set[str] = field(default_factory=set)
    least: int = 1
    draws: bool = False
    """Whether numbers are drawn that all rows share."""
    hidden: list[Hidden] | None = None
    """Where padding would have to be hidden, which is taken to be so; None to refuse it."""
    marked: int | None = None
    """The tensor of a call whose padding is marks."""
    unruled: dict[str, UnprovenError] = field(default_factory=dict)
    """Values of row numbers alone of which no rule says where their rows are, and why."""
    tables: set[str] = field(default_factory=set)
    """Constants whose numbers were looked at."""
    picked: set[tuple[int, int]] = field(default_factory=set)
    """Tensors of a call whose numbers pick rows, and what is added to them."""
    step: int = 0
    """The number of the node among those that call the same operator."""
    calls: Counter[str] = field(init=False)
    numbers: PaddingNumbers = field(init=False)
    indices: PaddedIndices = field(init=False)

    def __post_init__(self) -> None:
        self.calls = Counter(packet_name(node.op) for node in self.first.graph.nodes)
        self.numbers = PaddingNumbers(self.axes, self.types, self.shapes)
        self.indices = PaddedIndices(self.axes, self.types, max(self.sizes))

    def proof(
        self, rows: Sequence[Sequence[RowAxis]], zeros: tuple[bool, ...], true_masks: bool
    ) -> PaddingProof:
        graph, twin = self.first.graph, self.second.graph
        if self.first.signature.mutations:
            raise UnprovenError("the model writes to its inputs, and padding would be written, too")
        if _differ(self.first, self.second):
            raise UnprovenError("its code does something else for another size")
        for constant in graph.constants:
            self._declare(constant.name, constant.type, constant.type)
            self.indices.hold(constant)
            if self.by_index is not None:
                self.by_index.hold(constant)
            if constant.type.numel == 1 and not constant.source and constant.value is not None:
                self.numbers.content[constant.name] = constant.value.item()
        count = len(graph.call_inputs)
        self.indices.from_calls.update(value.name for value in graph.inputs)
        for state, other in zip(graph.inputs[count:], twin.inputs[count:], strict=True):
            self._declare(state.name, state.type, other.type)
            if state.type != other.type:
                raise UnprovenError(f"the state {state.name} has another size for another size")
        inputs = graph.call_inputs, twin.call_inputs
        for place, (value, same, at, zero) in enumerate(zip(*inputs, rows, zeros, strict=True)):
            self._declare(value.name, value.type, same.type)
            fill = (true_masks if value.type.dtype == torch.bool else 0) if zero else None
            fill = MARKS[value.type.dtype] if place == self.marked else fill
            axes = tuple(PaddedAxis(*row_axis, fill=fill, copied=not zero) for row_axis in at)
            self._check_sizes(f"the input {value.name}", axes, value.name)
            if axes:
                self.axes[value.name] = axes
            if value.type.dtype in ROW_NUMBER_DTYPES:
                self.indices.told[value.name] = place, 0
        checked = self._only_checked()
        pairs = zip(numbered(graph.nodes), twin.nodes, strict=True)
        for (self.step, node), alike in pairs:
            try:
                self._step(node, alike)
            except MixedRowsError as mixed:
                repeatable = packet_name(node.op) in REPEATABLE and not any(zeros)
                if not (repeatable and checked.issuperset(node.results)):
                    raise UnprovenError(f"{node.op}: {mixed}", node.origin) from None
        return replace(self._proved(zeros), true_masks=true_masks)

    def _only_checked(self) -> set[str]:
        """The nodes computed for nothing but the checks that the model makes of values."""
        leaves, graph = self.first.signature.outputs, self.first.graph
        read = {leaf.ref.name for leaf in leaves if leaf.ref is not None}
        read.update(graph.outputs[state.output].name for state in graph.states)
        checked = set[str]()
        for node in reversed(self.first.graph.nodes):
            if read.isdisjoint(node.results):
                checked.update(node.results)
            else:
                read.update(node.uses)
        return checked

    def _check_states(self) -> None:
        """What is left in states has no padding."""
        graph = self.first.graph
        origins = {name: node.origin for node in graph.nodes for name in node.results}
        for state in graph.states:
            new = graph.outputs[state.output].name
            if new in self.axes or new in self.spoiled or new in self.unruled:
                raise UnprovenError(
                    f"the model writes to {state.path}, and padding would be written, too",
                    origins.get(new, ""),
                )

    def _check_checks(self, zeros: tuple[bool, ...]) -> None:
        """A check may hold of the rows of a call and not of zeros."""
        for check in self.first.signature.checks:
            name = check.ref.name if check.ref is not None else ""
            if name in self.unruled:
                raise self.unruled[name]
            if name in self.spoiled or (any(zeros) and name in self.axes):
                raise UnprovenError("a check that the model makes reads padding", check.origin)

    def _proved(self, zeros: tuple[bool, ...]) -> PaddingProof:
        self._check_checks(zeros)
        self._check_states()
        results, apart = [], not self.draws and not self.first.graph.states
        for leaf in self.first.signature.outputs:
            name = leaf.ref.name if leaf.ref is not None else ""
            if name in self.unruled:
                raise self.unruled[name]
            if name in self.spoiled:
                raise UnprovenError(f"the result %{name} is of the last row, which is padding")
            results.append(tuple((a.axis, a.outer, a.inner) for a in self.axes.get(name, ())))
            plain = len(results[-1]) < 2 and all(outer == 1 for _, outer, _ in results[-1])
            apart = apart and name not in self.met and plain
        return PaddingProof(
            zeros,
            tuple(results),
            self.least,
            apart,
            most=self.indices.most,
            tables=tuple(self._tables()),
            picked=tuple(sorted(self.picked)),
        )

    def _tables(self) -> Iterator[tuple[str, str]]:
        read = self.tables | self.indices.tables
        for constant in self.first.graph.constants:
            if constant.name in read and constant.source and constant.value is not None:
                digest = digest_tensor(constant.value)
                yield from ((path, digest) for path in constant.source)

    def _declare(self, name: str, type: TensorType, wide: TensorType) -> None:
        self.types[name], self.shapes[name], self.wide[name] = type, type.shape, wide.shape

    def _check_sizes(self, what: str, axes: Sequence[PaddedAxis], name: str) -> None:
        try:
            varying = self._varying(name)
        except MixedRowsError:
            raise UnprovenError(f"the size of {what} is no multiple of the axis'") from None
        told = {rows.axis: rows.outer * rows.inner for rows in axes}
        if told != varying:
            raise UnprovenError(f"{what} has other axes of this size than it says")

    def _varying(self, name: str) -> dict[int, int]:
        """By axis of a value, how many indices it has for each row, where its size differs."""
        varying = {}
        size, more = self.sizes
        for axis, (a, b) in enumerate(zip(self.shapes[name], self.wide[name], strict=True)):
            if a != b:
                times = a // size
                if (a, b) != (times * size, times * more):
                    raise MixedRowsError("the size of its result is no multiple of the axis'")
                varying[axis] = times
        return varying

    def _step(self, node: Node, twin: Node) -> None:
        for result, type, wide in zip(node.results, node.types, twin.types, strict=True):
            if len(type.shape) != len(wide.shape):
                raise MixedRowsError("it has other axes for another size")
            self._declare(result, type, wide)
        if used := next((value for value in node.uses if value in self.spoiled), None):
            raise MixedRowsError(f"it reads %{used}, which is of the last row, and that is padding")
        unruled = next((self.unruled[value] for value in node.uses if value in self.unruled), None)
        try:
            if unruled is None:
                self._by_rule(node, twin)
        except MixedRowsError as refusal:
            unruled = UnprovenError(f"{node.op}: {refusal}", node.origin)
            if not self._by_all_sizes(node, twin, unruled):
                raise
        else:
            if unruled is None and self.by_index is not None:
                self.by_index.note(node, twin)
            elif unruled is not None and not self._by_all_sizes(node, twin, unruled):
                raise unruled
        self._fill_by_index(node)

    def _by_all_sizes(self, node: Node, twin: Node, refusal: UnprovenError) -> bool:
        """Whether a value is of row numbers alone. It may have its rows in order though what it is
        computed of has not: its numbers say so."""
        if self.by_index is None:
            return False
        if _sized_alike(node, twin):
            self.by_index.note(node, twin)
        if not set(node.results) <= self.by_index.nodes.keys():
            return False
        (result,) = node.results
        in_order = self.by_index.first_rows(result)
        if in_order is None:
            self.unruled[result] = refusal
            return True
        self.axes[result], most = in_order
        self.met.add(result)
        self._rely(result, most)
        return True

    def _rely(self, value: str, most: int) -> None:
        """That numbers of a value were looked at, up to so many rows."""
        assert self.by_index is not None, "it was asked"
        self.tables.update(self.by_index.tables[value])
        if self.reach is None or most < self.reach:
            self.indices.up_to(most)

    def _by_rule(self, node: Node, twin: Node) -> None:
        name, call = packet_name(node.op), self._call(node)
        fresh = not any(value in self.axes for value in node.uses)
        self._check_numbers(name, node, twin, fresh)
        if any(value in self.met for value in node.uses):
            self.met.update(node.results)
        if ops.draws(node):
            if any(self._varying(value) for value in node.results):
                raise MixedRowsError("it draws random numbers")
            self.draws = True
        self.indices.check(name, node, call)
        self.indices.note(name, node, call)
        by_axis = self._moved(name, node, call) if not fresh else {}
        for number, result in enumerate(node.results):
            self._place(name, node, call, by_axis, number, result)
        if fresh or name in CARRIED or name in POINTWISE:
            self.numbers.fill(name, node, call)
        elif name in ADDING:
            self.numbers.fill_added(node, call)

    def _fill_by_index(self, node: Node) -> None:
        """The numbers of padding that can be looked up, for they depend on row numbers alone."""
        if self.by_index is None:
            return
        result, filled = node.results[0], list[PaddedAxis]()
        axes = self.axes.get(result, ())
        for rows in axes:
            told = self.by_index.fill(result, axes, rows.axis) if rows.fill is None else None
            if told is not None:
                number, most = told
                rows = replace(rows, fill=number)
                self._rely(result, most)
            filled.append(rows)
        if filled:
            self.axes[result] = tuple(filled)

    def _call(self, node: Node) -> PaddedCall:
        shape, own = node.types[0].shape, self.indices.row_numbers | self.indices.picking.keys()
        return PaddedCall(arguments(node), self.axes, self.shapes, shape, own)

    def _check_numbers(self, name: str, node: Node, twin: Node, fresh: bool) -> None:
        if _same((node.args, node.kwargs), (twin.args, twin.kwargs)):
            return
        grown = any(self._varying(result) for result in node.results)
        if not (grown and _same_but(MADE.get(name), node, twin) if fresh else name in SIZED):
            raise MixedRowsError("one of its numbers depends on the size of the axis")
        if name == "aten.slice" and not _same_but("end", node, twin):
            raise MixedRowsError("where it begins depends on the size of the axis")

    def _moved(self, name: str, node: Node, call: PaddedCall) -> dict[int, list[PaddedAxis]]:
        """By axis of the first result, those of operands that come to lie there."""
        if name in VIEWS:
            return self._viewed(node)
        rule = RULES.get(name)
        if rule is None:
            raise MixedRowsError("nobody knows what it does to rows")
        by_axis: dict[int, list[PaddedAxis]] = {}
        sums: list[tuple[str, PaddedAxis]] = []
        for argument in call.arguments:
            for value in call.refs(argument):
                for rows in self.axes.get(value, ()):
                    axis = rule(call, argument, value, rows.axis)
                    if axis is None:
                        sums.append((argument, rows))
                    else:
                        kept = (
                            rows if name in COPYING_OPS and argument != "indices" else _bare(rows)
                        )
                        by_axis.setdefault(axis, []).append(replace(kept, axis=axis))
        if sums:
            self.met.update(node.results)
            self._summed(name, node, call, sums, by_axis)
        return by_axis

    def _summed(
        self,
        name: str,
        node: Node,
        call: PaddedCall,
        sums: Sequence[tuple[str, PaddedAxis]],
        by_axis: dict[int, list[PaddedAxis]],
    ) -> None:
        """Where an operator works along the axis: it must find the padding neutral."""
        rule = SUMS.get(name)
        if rule is None:
            raise MixedRowsError("it works along the padded axis")
        operands = [argument for argument, _ in sums]
        squares = name in ("aten.tril", "aten.triu")
        if len(set(operands)) < len(operands) and not squares:
            raise MixedRowsError("it works along two axes that are padded alike")
        if name == "aten.scaled_dot_product_attention":
            sums = [pair for pair in sums if pair[0] != "attn_mask"]
        groups = {(rows.outer, rows.inner) for _, rows in sums}
        if len(groups) > 1:
            raise MixedRowsError("its operands have the rows in different orders")
        told, refusal, unhidden = [], None, sums[0]
        for operand, rows in sums:
            try:
                told.append(self._along(rule, call, operand, rows))
            except MixedRowsError as mixed:
                refusal, unhidden = mixed, (operand, rows)
        either = len(sums) > 1 and not squares and name not in TOGETHER
        if refusal is not None and not (either and told):  # one side of a product with 0 will do
            told.append(self._hide(name, call, *unhidden, rule, refusal))
        if name in PICKING:
            self._pick(name, call, sums)
        if name in PLACES and groups == {(1, 1)} and call.arguments.get("dim") is not None:
            self.indices.row_numbers.add(node.results[-1])
        for moved in by_axis.values():  # of padding along both axes nobody knows
            moved[:] = [replace(rows, copied=False) for rows in moved]
        for along in told:
            self.least = max(self.least, along.least)
            self.spoiled.update(node.results[i] for i in along.spoiled if i < len(node.results))
            if along.axis is not None:
                axis = replace(along.axis, copied=along.axis.copied and not by_axis)
                if axis.fill is not None and node.types[0].dtype == torch.bool:
                    axis = replace(axis, fill=bool(axis.fill))
                by_axis.setdefault(axis.axis, []).append(axis)

    def _pick(self, name: str, call: PaddedCall, sums: Sequence[tuple[str, PaddedAxis]]) -> None:
        """Notes numbers of a call's tensors that pick rows."""
        for operand, rows in sums:
            index = call.refs("index")
            if name == "aten.index":
                indices = call.arguments["indices"]
                assert isinstance(indices, tuple)
                index = [
                    arg.name for arg in indices[rows.axis : rows.axis + 1] if isinstance(arg, Ref)
                ]
            if operand == "self" and not self.indices.row_numbers.issuperset(index):
                self.picked.update(self.indices.picking[value] for value in index)

    def _hide(
        self,
        name: str,
        call: PaddedCall,
        operand: str,
        rows: PaddedAxis,
        rule: Sum,
        refusal: MixedRowsError,
    ) -> Along:
        """What the operator makes of the axis once its padding is hidden. MixedRowsError where it
        is not to be hidden, or cannot be."""
        (value, *_) = call.refs(operand)
        if self.hidden is None:
            raise refusal
        hidden = hiding((self.step, self.calls[name]), name, call, operand, rows, self.types[value])
        if hidden is None:
            raise refusal
        self.hidden.append(hidden)
        if hidden.operand == MASK:
            return Along(None)
        return self._along(rule, call, operand, replace(rows, fill=hidden.fill))

    def _along(self, rule: Sum, call: PaddedCall, operand: str, rows: PaddedAxis) -> Along:
        """The rule's answer for an axis. The last integer of a type is as good as an infinity."""
        try:
            return rule(call, rows)
        except MixedRowsError:
            infinite = with_infinities(rows, self.types[call.refs(operand)[0]].dtype)
            if infinite == rows:
                raise
            return rule(call, infinite)

    def _viewed(self, node: Node) -> dict[int, list[PaddedAxis]]:
        """Views move nothing: the rows are where as many numbers lie before and in them."""
        (value,), result = set(node.uses), node.results[0]
        by_axis: dict[int, list[PaddedAxis]] = {}
        for rows in self.axes[value]:
            for axis in self._varying(result):
                there = regrouped(rows, self.shapes[value], axis, self.shapes[result])
                also = regrouped(rows, self.wide[value], axis, self.wide[result])
                if there is not None and there == also and axis not in by_axis:
                    by_axis[axis] = [there]
                    break
            else:
                if self.types[result].numel:
                    raise MixedRowsError("it takes rows of the axis apart")
        return by_axis

    def _place(
        self,
        name: str,
        node: Node,
        call: PaddedCall,
        by_axis: Mapping[int, Sequence[PaddedAxis]],
        number: int,
        result: str,
    ) -> None:
        """Notes where one result has its rows. MixedRowsError unless sizes say the same."""
        varying = self._varying(result)
        if number and result not in self.spoiled and varying:
            places = sorted(by_axis)
            if len(places) != len(varying):
                raise MixedRowsError("its results have rows on different axes")
            moved = zip(places, sorted(varying), strict=True)
            by_axis = {new: [replace(a, axis=new) for a in by_axis[old]] for old, new in moved}
        if result in self.spoiled:
            return
        axes = []
        for axis, times in varying.items():
            if axis in by_axis:
                axes.append(_together(by_axis[axis], times, name == "aten.index"))
            else:
                axes.append(self._grown(name, node, call, axis, times))
        lost = [axis for axis in by_axis if axis not in varying]
        if lost and self.types[result].numel and number == 0:
            raise MixedRowsError("its result has no axis for the rows")
        if axes:
            self.axes[result] = tuple(axes)

    def _grown(self, name: str, node: Node, call: PaddedCall, axis: int, times: int) -> PaddedAxis:
        """An axis of the size that no operand has: copies, numbers, or the first of a table."""
        used = node.uses[0] if node.uses else None
        if name == "aten.slice" and dims_of(call, len(call.result)) == [axis]:
            self.met.update(node.results)
            return PaddedAxis(axis, 1, times)
        if name in ("aten.expand", "aten.repeat"):
            assert used is not None
            before = axis - len(call.result) + len(self.shapes[used])
            if before < 0 or self.shapes[used][before] == 1 or name == "aten.repeat":
                whole = before < 0 or self.shapes[used][before] == 1
                fill = self.numbers.content.get(used)
                return PaddedAxis(axis, 1, times, fill, alike=whole, copied=True)
        if name == "aten.arange":
            self.met.update(node.results)
            args = call.arguments
            start, step = args.get("start", 0), args.get("step", 1)
            counts = start if isinstance(start, int) and (step, times) == (1, 1) else None
            return PaddedAxis(axis, 1, times, counts=counts)
        if not node.uses and name in MADE:
            return PaddedAxis(axis, 1, times, alike=True)
        raise MixedRowsError("its result has an axis of this size that its operands do not have")


def _bare(rows: PaddedAxis) -> PaddedAxis:
    return replace(rows, fill=None, counts=None)


def _together(axes: Sequence[PaddedAxis], times: int, first: bool) -> PaddedAxis:
    """The axis of a result that several operands have. `first`: the first one says what is known
    of its numbers; else all must say the same."""
    groups = {(rows.outer, rows.inner) for rows in axes if not rows.alike} or {(1, times)}
    if len(groups) > 1:
        raise MixedRowsError("its operands have the rows in different orders")
    ((outer, inner),) = groups
    if outer * inner != times:
        raise MixedRowsError("its result has other parts of the rows than its operands")
    told = axes[0]
    if not first and any(
        (rows.fill, type(rows.fill), rows.counts) != (told.fill, type(told.fill), told.counts)
        for rows in axes
    ):
        told = _bare(told)
    alike = all(rows.alike for rows in axes)
    copied = all(rows.copied or rows.alike for rows in axes)
    return replace(told, outer=outer, inner=inner, alike=alike, copied=copied)


def _differ(captured: Captured, other: Captured) -> bool:
    """Whether two graphs have other operators, constants or results."""
    first, second = captured.graph, other.graph
    return (
        [node.op for node in first.nodes] != [node.op for node in second.nodes]
        or [(c.type, c.digest) for c in first.constants]
        != [(c.type, c.digest) for c in second.constants]
        or len(first.inputs) != len(second.inputs)
        or captured.signature.inputs != other.signature.inputs
        or captured.signature.outputs != other.signature.outputs
        or captured.signature.checks != other.signature.checks
        or [(state.path, first.outputs[state.output]) for state in first.states]
        != [(state.path, second.outputs[state.output]) for state in second.states]
    )


def _sized_alike(node: Node, twin: Node) -> bool:
    """Whether no numbers differ but those by which an operator says how large its result is."""
    name = packet_name(node.op)
    if _same((node.args, node.kwargs), (twin.args, twin.kwargs)):
        return True
    return name in SIZED or _same_but(MADE.get(name), node, twin)


def _same_but(name: str | None, node: Node, twin: Node) -> bool:
    """Whether only this argument differs."""
    args, other = arguments(node), arguments(twin)
    return name is not None and all(_same(args[key], other[key]) for key in args if key != name)


def _same(arg: Arg, other: Arg) -> bool:
    """Whether two calls have the same numbers; names of values are those of both graphs."""
    if isinstance(arg, Ref):
        return isinstance(other, Ref) and arg == other
    if isinstance(arg, tuple):
        alike = isinstance(other, tuple) and len(arg) == len(other)
        return alike and all(map(_same, arg, other))  # type: ignore[arg-type]
    return type(arg) is type(other) and repr(arg) == repr(other)  # NaN and -0.0 are themselves
