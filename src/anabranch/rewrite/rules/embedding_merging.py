"""Lookups side by side as one lookup. Rules that might help.

    stack([embedding(w, i), embedding(v, j)], 1)  =  stack(w, v)[t, stack([i, j], 1)]
    cat([embedding(w, i), embedding(v, j)], 0)    =  stack(w, v)[t, cat([i, j], 0)]
    cat([embedding(w, i), embedding(v, j)], -1)   =  as the first, the two last axes as one

where t says whose each index is, which is constant. Recommenders look each of dozens of features up
in a table of its own: each element of what is put together then asks whose it is, one comparison a
table, while here it is read at its place (as FBGEMM's table-batched embeddings are). Tables of
several heights lie one below the other, and what is added to the indices are the rows before each:

    stack([embedding(w, i), embedding(v, j)], 1)  =  embedding(cat(w, v), stack([i, j], 1) + o)

Where heights are equal nothing is added, for that sum would be a value that several lookups by the
same indices share: whoever computes it, the others wait. A table that is read twice is there once.
Where the indices are all of one tensor, in order, that tensor itself is read:

    stack([ids[:, 0], ids[:, 1], ids[:, 2]], 1)   =  ids

Bags of one length are rows that are looked up and added up, so they merge likewise:

    stack([sum(embedding(w, i), 1), sum(embedding(v, j), 1)], 1)
        =  sum(stack(w, v)[t, stack([i, j], 1)], 2)

Dozens of lookups are more than a part of the search holds, so they are merged globally. Tables
are joined when constants are folded, so they must be constant, and the joined one is held beside
those of the model. A rule does not see who else reads a table: where somebody does, it is held
twice for good. An index outside of its table, which is an error before, may read another table
after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, ValueFacts, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import call, cat, permute, reshape
from anabranch.rewrite.rules.algebra_conditions import values
from anabranch.rewrite.rules.drawing import Drawing, OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import slice_of
from anabranch.rewrite.rules.shapes import each, either, shapes
from anabranch.rewrite.value_slices import ValueSlice, slice_of_value

INTEGERS = ("int64", "int32")

(x,) = wild("x")

EMBEDDING, INDEX = "aten.embedding.default", "aten.index.Tensor"
STACK, CAT = "aten.stack.default", "aten.cat.default"
ORDERED = frozenset(f"aten.{name}" for name in ("clone.default", "reshape.default", "view.default"))
ORDERED |= {"aten._unsafe_view.default", "aten.squeeze.dim", "aten.flatten.using_ints"}
"""What leaves numbers in their order."""
TO, SUM = "aten._to_copy.default", "aten.sum.dim_IntList"

LOOKUP = "embedding(tables, ids, *rest)"

MOST_BYTES = 1 << 30
"""Bytes of a joined table: it is memory beside the model's own."""


@dataclass(frozen=True, slots=True)
class EmbeddingMergeForm:
    """How lookups are put together. `new`: their indices along an axis of its own; `flat`: which
    are channels side by side in the end; `bags`: of several rows each, which are added up. `left`,
    `right`: the sides of the equation, around what is looked up; `lookup`: by one lookup."""

    op: str
    new: bool
    flat: bool
    left: str
    lookup: str
    right: str = "{}"
    bags: bool = False

    def rule(self, before: bool = False, behind: bool = False) -> Rule:
        """Of lookups alone, or with one other value before or behind them."""
        inner = "sum({})" if self.bags else "{}"
        each, lookup = inner.format("embedding(w, i)"), self.right.format(inner.format(self.lookup))
        items = [*["x"] * before, f"{each}, ...", *["x"] * behind]
        merged = f"cat([{', '.join([*['x'] * before, lookup, *['x'] * behind])}])"
        right = merged if before or behind else lookup
        several = f"*sum({LOOKUP}, dims)" if self.bags else f"*{LOOKUP}"
        parts = ", ".join([*["x"] * before, several, *["x"] * behind])
        return equation(
            f"{self.left.format(', '.join(items))} -> {right}",
            when=self.able,
            find=f"{ops.packet_name(self.op).removeprefix('aten.')}([{parts}], axis)",
            put=lambda match: self.put(match, before, behind),
            draw=self.draw(before or behind),
            scope="first",
        )

    def able(self, match: Match) -> Refused | None:
        """Whether they are lookups in several constant tables that can be one."""
        refs, indices = values(match, "tables"), values(match, "ids")
        rank = len(match.root.type.shape)
        if len(refs) < 2:
            return Refused("one table is looked up in")
        if (_axis(match) == rank - 1) != self.flat:
            return Refused("its lookups are joined along another axis")
        types = [match.value_facts.types[ref.name] for ref in refs]
        if len({type.dtype for type in types}) > 1 or len({type.shape[1] for type in types}) > 1:
            return Refused("its tables are of several widths or dtypes")
        if "x" in match.bound and _one_more(match, types[0]):
            return Refused("what is beside the lookups is one more of them")
        if len({match.value_facts.types[index.name].dtype for index in indices}) > 1:
            return Refused("its indices are of several dtypes")
        if self.bags and (why := _unlike(match)):
            return why
        return _joinable(match, tuple(dict.fromkeys(refs)))

    def put(self, match: Match, before: bool, behind: bool) -> Pattern:
        """One lookup in the joined table, its axes as the concatenation had them; `before`,
        `behind`: the value `x` stands on that side of it."""
        at = _axis(match)
        indices, refs = values(match, "ids"), values(match, "tables")
        held = [(ref, match.value_facts.types[ref.name].shape[0]) for ref in refs]
        whole: Pattern = looked_up(match.value_facts, held, indices, at, self.new)
        shape = match.value_facts.types[indices[0].name].shape
        if self.bags:
            shape = shape[:-1]
            whole = call(SUM, whole, (len(shape) + self.new,))
        if self.flat:
            width = match.value_facts.types[refs[0].name].shape[1]
            whole = reshape(whole, (*shape, len(refs) * width))
        other = call("aten.unsqueeze.default", x, at) if self.op == STACK else x
        parts = (*[other] * before, whole, *[other] * behind)
        return cat(parts, at) if len(parts) > 1 else whole

    def draw(self, other: bool) -> Draw:
        """Two to five lookups in tables of equal or other heights; `other`: with a value beside
        them."""
        at = {True: "...", False: "A.. B.." if self.new else "A.. [I] B.."}[self.flat]
        bag = " L" * self.bags
        several = " several" if self.new else ""
        entries: dict[str, object] = {
            **{"tables": _some_twice, "ids": OneOf(*(f"{at}{bag} {d}{several}" for d in INTEGERS))},
            **{"rest": each((-1, False, False), (1, True, False)), "PARTS": (2, 3, 4, 5)},
            **{"A": (0, 1), "B": (0, 1)},
        }
        if self.flat:
            entries["axis"], beside = "K of ... K", "... M"
        elif self.new:
            entries["axis"], beside = "count of A.. count B.. K", "A.. B.. K"
        else:
            entries["axis"], beside = "I of A.. [I] B.. K", "A.. M B.. K"
        entries |= {"dims": each((f"L of {at} L K",))} if self.bags else {}
        entries |= {"x": beside} if other else {}
        return either(*(shapes(entries, H=heights) for heights in (range(2, 8), (3,))))


def _some_twice(drawing: Drawing) -> object:
    """Tables, of which some are the first once more."""
    held = drawing.value("w", "[H] K const")
    assert isinstance(held, tuple)
    return tuple(drawing.dice.choice((table, table, table, held[0])) for table in held)


def looked_up(
    facts: ValueFacts,
    held: Sequence[tuple[Operand, int]],
    indices: Sequence[Ref],
    at: int,
    new: bool,
) -> Call:
    """Lookups as one, their indices side by side along this axis; `held`: the table of each, and
    how many rows it has."""
    unique = dict.fromkeys(held)
    heights = [height for _, height in unique]
    every = tuple(table for table, _ in unique)
    together = joined(facts, indices, at, new)
    if len(unique) == 1:
        return call(EMBEDDING, every[0], together)
    first = facts.types[indices[0].name]
    lengths = [1 if new else facts.types[index.name].shape[at] for index in indices]
    behind = len(first.shape) - at - (not new)
    shape = (sum(lengths), *(1 for _ in range(behind)))

    def each(numbers: Iterable[int]) -> Call:
        number_of = dict(zip(unique, numbers, strict=False))
        return reshape(_numbers([number_of[entry] for entry in held], lengths, first.dtype), shape)

    if len(set(heights)) == 1:
        return call(INDEX, call(STACK, every), (each(range(len(unique))), together))
    moved = call("aten.add.Tensor", together, each(accumulate(heights, initial=0)))
    return call(EMBEDDING, cat(every), moved)


def _numbers(numbers: Sequence[int], lengths: Sequence[int], dtype: torch.dtype) -> Call:
    """A number for each index, along the axis along which they stand."""
    if set(lengths) == {1} and list(numbers) == list(range(len(numbers))):
        return call("aten.arange.default", len(numbers), dtype)
    pairs = zip(numbers, lengths, strict=True)
    return cat(tuple(call("aten.full.default", (n,), number, dtype) for number, n in pairs))


def joined(facts: ValueFacts, refs: Sequence[Ref], at: int, new: bool) -> Operand:
    """Values side by side along an axis, a `new` one or one of theirs: as what they were cut out
    of, if they lie there side by side."""
    makers = [facts.producers.get(ref.name) for ref in refs]
    nodes = [node for node in makers if node is not None]
    if len(nodes) == len(refs) and {node.op for node in nodes} == {TO}:
        further = [ops.in_order(node)[1:] for node in nodes]
        sources = [arg for node in nodes if isinstance(arg := node.args[0], Ref)]
        dtypes = {facts.types[source.name].dtype for source in sources}
        if all(more == further[0] for more in further) and len(dtypes) == 1:
            return Call(TO, (joined(facts, sources, at, new), *map(_plain, further[0])))
    cuts = [_cut(facts, ref) for ref in refs]
    whole = _uncut([cut for cut in cuts if cut is not None], facts, at, new)
    if whole is not None and None not in cuts:
        return whole
    return call(STACK if new else CAT, tuple(refs), at)


def _cut(facts: ValueFacts, ref: Ref) -> ValueSlice | None:
    """The value that this one is cut out of, with that axis or without, whatever orders its
    elements so."""
    wanted, name = facts.types[ref.name].shape, ref.name
    while (node := facts.producers.get(name)) is not None and node.op in ORDERED:
        name = node.uses[0]
    cut = slice_of_value(name, facts)
    if cut is None or cut.step != 1 or cut.start >= cut.end:
        return None
    whole = facts.types[cut.of].shape
    rest = (*whole[: cut.axis], *whole[cut.axis + 1 :])
    if wanted == rest and cut.end == cut.start + 1:
        return replace(cut, kept=False)
    sliced = (*whole[: cut.axis], cut.end - cut.start, *whole[cut.axis + 1 :])
    return replace(cut, kept=True) if wanted == sliced else None


def _uncut(cuts: Sequence[ValueSlice], facts: ValueFacts, at: int, new: bool) -> Operand:
    """The values that were cut, side by side along an axis: what lies between the first cut and
    the last, its axis moved; None if they do not follow each other."""
    if not cuts or len({(cut.of, cut.axis, cut.kept) for cut in cuts}) > 1:
        return None
    if not all(b.follows(a) for a, b in pairwise(cuts)):
        return None
    of, dim, kept = cuts[0].of, cuts[0].axis, cuts[0].kept
    shape = facts.types[of].shape
    start, end = cuts[0].start, cuts[-1].end
    all_of_it = (start, end) == (0, shape[dim])
    whole: Operand = Ref(of) if all_of_it else slice_of(Ref(of), dim, start, end)
    if not new:
        return whole if kept and dim == at else None
    if any(cut.end != cut.start + 1 for cut in cuts):
        return None
    order = [i for i in range(len(shape)) if kept or i != dim]
    order.insert(at, -1)
    order = [dim if i == -1 else i for i in order if i != dim]
    if order != list(range(len(shape))):
        whole = permute(whole, tuple(order))
    if not kept:
        return whole
    sizes = [1 if i == dim else size for i, size in enumerate(shape)]
    sizes.insert(at, end - start)
    return reshape(whole, tuple(sizes))


def _axis(match: Match) -> int:
    """The axis of the result along which they stand."""
    axis = match.axis.arg
    assert isinstance(axis, int)
    return axis % len(match.root.type.shape)


def _one_more(match: Match, table: TensorType) -> bool:
    """Whether the value beside the lookups is one more of them."""
    arg = match.x.arg
    maker = match.value_facts.producers.get(arg.name) if isinstance(arg, Ref) else None
    if maker is not None and maker.op == SUM:
        maker = match.value_facts.producers.get(maker.uses[0])
    if maker is None or maker.op != EMBEDDING:
        return False
    other = match.value_facts.types[maker.uses[0]]
    return (other.shape[1], other.dtype) == (table.shape[1], table.dtype)


def _unlike(match: Match) -> Refused | None:
    """Why bags are not to be added up as one."""
    shapes = [match.value_facts.types[index.name].shape for index in values(match, "ids")]
    if {shape[-1:] for shape in shapes} != {shapes[0][-1:]} or not shapes[0]:
        return Refused("its bags are of several lengths")
    dims = match.bound["dims"]
    assert isinstance(dims, tuple)
    last = [((len(shape) - 1,), (-2,)) for shape in shapes]
    if any(dim not in wanted for dim, wanted in zip(dims, last, strict=True)):
        return Refused("it adds up along another axis than that of a bag")
    return None


def _joinable(match: Match, refs: Sequence[Ref]) -> Refused | None:
    """Whether these tables can be one below the other."""
    if len(refs) == 1:
        return None
    for ref in refs:
        if ref.name not in match.value_facts.constant:
            return Refused(f"%{ref.name} is no constant: to join it would cost a copy each time")
    types = [match.value_facts.types[ref.name] for ref in refs]
    total = sum(type.numel * type.dtype.itemsize for type in types)
    if total > MOST_BYTES:
        return Refused(f"its tables are {total:,} bytes, which would be held once more")
    rows = sum(type.shape[0] for type in types)
    index = match.value_facts.types[values(match, "ids")[0].name].dtype
    return Refused.unless(
        rows <= torch.iinfo(index).max, f"{rows} rows are more than its indices count"
    )


def _plain(arg: Arg) -> Operand:
    assert not isinstance(arg, tuple | Ref)
    return arg


FORMS = (
    EmbeddingMergeForm(STACK, True, False, "stack([{}])", "lookup(all w, stack(i))"),
    EmbeddingMergeForm(CAT, False, False, "cat([{}], rows)", "lookup(all w, cat(i))"),
    EmbeddingMergeForm(
        CAT, True, True, "cat([{}], channels)", "lookup(all w, stack(i))", "reshape({})"
    ),
)

BAGGED = tuple(replace(form, bags=True) for form in FORMS)

RULES: tuple[Rule, ...] = (
    *(form.rule() for form in FORMS),
    *(form.rule(before=True) for form in FORMS),
    *(form.rule(behind=True) for form in FORMS),
    *(form.rule() for form in BAGGED),
    *(form.rule(before=True) for form in BAGGED),
    *(form.rule(behind=True) for form in BAGGED),
)
