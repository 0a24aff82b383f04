"""A linear map of what is looked up is looked up. Rules that might help.

    linear(embedding(t, i), w, b)  =  embedding(linear(t, w, b), i)

    linear(stack([embedding(t, i), embedding(u, j)], 1) as rows, w, b)
        =  sum(stack([embedding(t', i), embedding(u', j)], 1), 1) + b
           where t' = linear(t, left half of w), u' = linear(u, right half of w)

Recommenders begin with lookups side by side and a linear of them all. For few rows each of the two
is a launch of a microsecond or two, whatever little it does, and the second waits for the first.
Here rows are looked up that are multiplied already, and added up as they are read: a level less.
It is one lookup, as in `embedding_merging`, and one sum over one axis of all that is put together,
for that is one reduction. Numbers that scale a constant row each, as those of DeepFM, are rows
likewise; another value beside the lookups keeps a linear of its own:

    linear(cat([stack(lookups), x * v], 1) as rows, w, b)
        =  sum(cat([stack(lookups'), x * v'], 1), 1) + b
    linear(cat([embedding(t, i), x], -1), w, b)
        =  embedding(t', i) + linear(x, right half of w, b)

What it costs is memory: the rows of each table times the outputs of the linear, beside the model's
own; and for each field as many numbers are read as there are outputs, in place of the weight.
Tables and weight are multiplied when constants are folded, so they must be constant. A product is
rounded once, to the dtype of its table: in half precision that is one rounding a field more than a
linear has, which adds up products as they are. An index outside of its table, which is an error
before, may read another table after.

Dozens of lookups are more than a part of the search holds, so all this has global scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, TypeVar

import torch

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, linear, permute, reshape
from anabranch.rewrite.rules.algebra_conditions import floating, values
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.embedding_merging import looked_up
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import slice_of
from anabranch.rewrite.rules.shapes import each, shapes

Together = Literal["stack", "cat"]
BesideLookup = Literal["", "x", "x * v"]

tables, x, v, w, b = wild("tables x v w b")
(axis,) = wild("axis")

EMBEDDING = "aten.embedding.default"
STACK, SUM = "aten.stack.default", "aten.sum.dim_IntList"
LOOKUP = "embedding(tables, ids, *rest)"
RESTS = ((-1, False, False), (1, True, False))
"""What a lookup is told beside its indices."""

MOST_BYTES = 512 << 20
"""Bytes of all products of tables: they are memory beside the model's own."""

P = TypeVar("P")
LOOKUPS: dict[Together, str] = {
    "stack": "stack([embedding(t, i), ...])",
    "cat": "embedding(t, i), ...",
}
"""In the names of rules."""


@dataclass(frozen=True, slots=True)
class LinearInput:
    """What a linear reads, one after the other. `lead`: the axes that rows have; `tables`: the
    heights and widths of those that are looked up in; `beside`: columns of what is with them, and
    of how many `rows` that are scaled."""

    lead: tuple[int, ...]
    tables: tuple[tuple[int, int], ...]
    beside: int
    rows: int

    @property
    def looked_up(self) -> int:
        """How many columns are looked up."""
        return sum(width for _, width in self.tables)


@dataclass(frozen=True, slots=True)
class EmbeddingLinearForm:
    """How lookups are put together: in a stack, or as channels side by side. `beside`: with another
    value, or with rows that are scaled by numbers; `before`: that stands before them."""

    together: Together
    beside: BesideLookup = ""
    before: bool = False

    def rule(self) -> Rule:
        """The rule for lookups put together in this form, of global scope."""
        return equation(
            self._name(),
            when=self.able,
            find=f"linear({self._read()}, w, b)",
            put=self.put,
            draw=self.draw(),
            scope="first",
        )

    def able(self, match: Match) -> Refused | None:
        """Whether fields of constants stand in a row, and their products are not too large."""
        if self.beside == "x" and _one_more(match):
            return Refused("what is beside the lookups is one more of them")
        if self.beside == "x * v" and _bare(match):
            return Refused("what is beside the lookups is no product of numbers and rows")
        names = ("tables", *["v"] * (self.beside == "x * v"))
        if why := _unfit(match, *names, *["x"] * bool(self.beside)):
            return why
        row = self.row(match)
        if row is None:
            return Refused("its fields do not stand in a row, one after the other")
        if why := _apart(match, row):
            return why
        return _small(match, sum(height for height, _ in row.tables) + row.rows)

    def row(self, match: Match) -> LinearInput | None:
        """What the linear reads; None if that is not all of it, or lies otherwise."""
        sizes = [match.value_facts.types[ref.name].shape for ref in values(match, "tables")]
        lead = match.value_facts.types[values(match, "ids")[0].name].shape
        tables = tuple((height, width) for height, width in sizes)
        rows, beside = 0, match.x.shape[-1] if self.beside == "x" else 0
        if self.beside == "x * v":
            rows, beside = match.x.shape[-2], prod(match.v.shape)
            if match.x.shape[:-2] != lead:
                return None
        rank = len(lead) + 1 + (self.together == "stack")
        axes = [match.bound[name] for name in ("axis", "along") if name in match.bound]
        if any(not isinstance(axis, int) or axis % rank != len(lead) for axis in axes):
            return None
        row = LinearInput(lead, tables, beside, rows)
        return row if row.looked_up + beside == match.w.shape[-1] else None

    def put(self, match: Match) -> Pattern:
        """All fields along one axis, and their sum."""
        row = self.row(match)
        assert row is not None
        at = len(row.lead)
        lookups, rest = (row.beside, 0) if self.before else (0, row.looked_up)
        fields = _looked_up(match, row, lookups)
        if row.rows:
            width = row.beside // row.rows
            times = _times(reshape(v, (row.rows, 1, width)), row.rows, width, rest)
            fields = cat(self._placed(fields, x * reshape(times, (row.rows, -1))), at)
        whole: Pattern = fields if len(row.tables) + row.rows == 1 else call(SUM, fields, (at,))
        if self.beside == "x":
            whole = whole + linear(x, slice_of(w, 1, rest, rest + row.beside), b)
        elif match.b.type is not None:
            whole = whole + b
        wanted = match.root.type.shape
        return whole if (*row.lead, wanted[-1]) == wanted else reshape(whole, wanted)

    def draw(self) -> Draw:
        """Tables, indices and weights that fit together, one to four lookups, for the tests of the
        rule."""
        width = "sum(K)" if self.together == "cat" else "count*K"
        width += {"": "", "x": "+M", "x * v": "+M*K"}[self.beside]
        entries: dict[str, object] = {
            **{"tables": "[H] K const", "H": range(2, 6), "rest": each(*RESTS)},
            **{"ids": OneOf("... int64 several", "... int32 several")},
            **{"w": f"N {width} const", "b": "N const?", "MORE": (0, 1, 2), "PARTS": (1, 2, 3, 4)},
        }
        if self.together == "cat":
            entries |= {"tables": "[H] [K] const", "along": "K of ... K"}
        else:
            entries["shape"] = OneOf(f"... {width} sizes", (-1, f"{width} size"))
            entries |= {"along": "count of ... count K"} if self.beside else {}
            entries["axis"] = "count of ... count K"
        entries |= {"x": "... M"} if self.beside == "x" else {}
        entries |= {"x": "... M 1", "v": "M K const"} if self.beside == "x * v" else {}
        return shapes(entries)

    def _name(self) -> str:
        left = ", ".join(self._placed(LOOKUPS[self.together], self.beside))
        if self.beside or self.together == "cat":
            left = f"cat([{left}])"
        after = "lookup(all t * w, i)"
        if self.beside == "x * v":
            after = f"cat([{', '.join(self._placed(after, 'x * (v * w)'))}])"
        last = "linear(x, w, b)" if self.beside == "x" else "b"
        return f"linear({left}, w, b) -> sum({after}) + {last}"

    def _read(self) -> str:
        """What the linear reads, as it is found."""
        if self.together == "cat":
            return f"cat([{', '.join(self._placed(f'*{LOOKUP}', 'x'))}], along)"
        text = f"stack([*{LOOKUP}], axis)"
        if self.beside:
            text = f"cat([{', '.join(self._placed(text, 'x * v'))}], along)"
        return f"reshape({text}, shape)"

    def _placed(self, lookups: P, beside: P) -> tuple[P, ...]:
        """Both in order, or the lookups alone."""
        if not self.beside:
            return (lookups,)
        return (beside, lookups) if self.before else (lookups, beside)


def _looked_up(match: Match, row: LinearInput, start: int) -> Call:
    """Each in its table times the columns that are its own, `start` those of the first."""
    held = []
    for table, (height, width) in zip(values(match, "tables"), row.tables, strict=True):
        held.append((linear(table, slice_of(w, 1, start, start + width)), height))
        start += width
    if len(held) == 1 and not row.rows:
        return call(EMBEDDING, held[0][0], values(match, "ids")[0])
    return looked_up(match.value_facts, held, values(match, "ids"), len(row.lead), True)


def _times(stacked: Operand, count: int, width: int, start: int) -> Call:
    """So many matrices of so many columns, each times as many of the weight, from there on."""
    own = reshape(slice_of(w, 1, start, start + count * width), (-1, count, width))
    return call("aten.bmm.default", stacked, permute(own, (1, 2, 0)))


def _one_more(match: Match) -> bool:
    """Whether the value beside the lookups is one more of them."""
    arg = match.x.arg
    maker = match.value_facts.producers.get(arg.name) if isinstance(arg, Ref) else None
    return (
        maker is not None and maker.op == EMBEDDING and maker.uses[0] in match.value_facts.constant
    )


def _bare(match: Match) -> bool:
    """Whether it is no product of numbers and a row for each."""
    if match.x.type is None or match.v.type is None:
        return True
    numbers, rows = match.x.shape, match.v.shape
    if len(numbers) < 2 or len(rows) < 2 or numbers[-1] != 1:
        return True
    return numbers[-2] != rows[-2] or prod(rows[:-2]) != 1


def _apart(match: Match, row: LinearInput) -> Refused | None:
    """Why the products of tables cannot be one that is looked up in at once."""
    dtypes = {match.value_facts.types[index.name].dtype for index in values(match, "ids")}
    if len(dtypes) > 1:
        return Refused("its indices are of several dtypes")
    rows = sum(height for height, _ in row.tables)
    fits = rows <= torch.iinfo(dtypes.pop()).max
    return Refused.unless(fits, f"{rows} rows are more than its indices count")


def _unfit(match: Match, *names: str) -> Refused | None:
    """Why tables and weight cannot be multiplied ahead: what must be constant, x excepted, and of
    one dtype."""
    named = [*names, "w", *["b"] * (match.b.type is not None)]
    for name in named:
        refs = values(match, name) if isinstance(match.bound[name], tuple) else (match.bound[name],)
        for ref in refs:
            if name != "x" and isinstance(ref, Ref) and ref.name not in match.value_facts.constant:
                return Refused(f"%{ref.name} is no constant: it would be multiplied anew each time")
    if len(match.w.shape) != 2:
        return Refused("the weight is a vector")
    return floating(*named)(match)


def _small(match: Match, rows: int) -> Refused | None:
    """Whether so many rows of products may be held."""
    assert match.w.type is not None
    total = rows * match.w.shape[0] * match.w.type.dtype.itemsize
    return Refused.unless(
        total <= MOST_BYTES,
        f"its tables times the weight are {total:,} bytes beside the model's own",
    )


def _unfit_single(match: Match) -> Refused | None:
    return _unfit(match, "tables") or _small(match, match.tables.shape[0])


ONE_BY_ONE = (
    *(
        EmbeddingLinearForm("stack"),
        EmbeddingLinearForm("stack", "x * v"),
        EmbeddingLinearForm("stack", "x * v", before=True),
    ),
    *(
        EmbeddingLinearForm("cat"),
        EmbeddingLinearForm("cat", "x"),
        EmbeddingLinearForm("cat", "x", before=True),
    ),
)

RULES: tuple[Rule, ...] = (
    equation(
        "linear(embedding(t, i), w, b) -> embedding(linear(t, w, b), i)",
        when=_unfit_single,
        find=f"linear({LOOKUP}, w, b)",
        put="embedding(linear(tables, w, b), ids)",
        draw=shapes(
            "tables: H K const; w: N K const; b: N const?",
            ids=OneOf("... int64", "... int32"),
            rest=OneOf(*RESTS),
            H=range(2, 8),
        ),
        scope="first",
    ),
    *(form.rule() for form in ONE_BY_ONE),
)
