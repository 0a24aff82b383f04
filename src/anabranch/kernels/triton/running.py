"""Running folds of rows: which way each runs, and how it is written.

    cumsum(x, 1) - x           running = tl.cumsum(x, 1)

    flip(cumsum(flip(x)))      running = tl.cumsum(x, 1, reverse=True)

    a row in blocks            carry = tl.full([1, 1], 0.0, tl.float32)
                               for start in range(0, 5000, 1024):
                                   running = carry + tl.cumsum(x, 1)
                                   carry = tl.sum(tl.where(col == start + 1023, running, 0), 1)

A fold that is asked for at another place than that of the element (before it, or from the other
end) is one of what was moved there: then all of a row are asked for at the element's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.kernels.dfg.build import bounded, choose, const, least
from anabranch.kernels.dfg.index import Axis, axis
from anabranch.kernels.dfg.nouns import Dfg, Expr, Scan, free_axes, parts
from anabranch.kernels.dfg.walk import replace_parts, scans, substitute
from anabranch.kernels.triton.emit import DTYPES, Emission, literal

FORMS = {
    "sum": ("tl.cumsum({}, 1{})", "{} + {}"),
    "prod": ("tl.cumprod({}, 1{})", "{} * {}"),
    "max": ("tl.associative_scan({}, 1, larger{})", "larger({}, {})"),
    "min": ("tl.associative_scan({}, 1, smaller{})", "smaller({}, {})"),
    "logaddexp": ("tl.associative_scan({}, 1, log_add_exp{})", "log_add_exp({}, {})"),
}
"""How a tile is folded along its columns, and what is carried over with what is folded."""


def aligned(dfg: Dfg) -> Dfg | str:
    """The graph with each running fold along the axis at whose place it is asked for, or why there
    is none. What holds others goes first: it says where they are asked for."""
    stores = dfg.stores
    while True:
        left = [one for one in scans(*(store.expr for store in stores)) if not _is_aligned(one)]
        if not left:
            return Dfg(dfg.axes, stores) if stores is not dfg.stores else dfg
        table: dict[Expr, Expr] = {}
        for one in left:
            if not any(one in scans(other.arg) for other in left if other is not one):
                found = _aligned(one)
                if isinstance(found, str):
                    return found
                table[one] = found
        stores = tuple(replace(s, expr=replace_parts(s.expr, table)) for s in stores)


def _is_aligned(one: Scan) -> bool:
    return one.at == axis(one.axis.name, one.axis.extent)


def _aligned(one: Scan) -> Scan | str:
    ((atom, factor), *others) = one.at.terms or ((None, 0),)
    if not isinstance(atom, Axis) or others or factor not in (1, -1):
        return f"its running folds are asked for at {one.at.text}"
    if one.at.constant > (0 if factor == 1 else atom.extent - 1):
        return "its running folds begin before what is stored of them"
    inside = bounded(one.at, 0, one.axis.extent)
    arg = choose(inside, substitute(one.arg, {one.axis: one.at}), least(one.op, one.dtype))
    return replace(one, axis=atom, arg=arg, at=axis(atom.name, atom.extent), reverse=factor < 0)


def below(exprs: Sequence[Expr], out: Emission) -> list[Scan]:
    """The running folds that have to be computed for these, given what is known."""
    seen: dict[Expr, None] = {}
    stack = [expr for expr in exprs if expr not in out.known]
    while stack:
        expr = stack.pop()
        if expr not in seen:
            seen[expr] = None
            stack.extend(part for part in parts(expr) if part not in out.known)
    return [expr for expr in seen if isinstance(expr, Scan)]


def write_scan(one: Scan, value: str, out: Emission, col: Axis, last: str = "") -> str:
    """The line that folds a tile along its columns, and what it is called. `last`: the last column
    of all, where tiles run over the end of a row."""
    name = out.names.get(one.made, "") or "running"
    return out.assign(name, _folded(one, value, col, last))


def begin(one: Scan, out: Emission, height: int) -> str:
    """What is carried from block to block, before the first."""
    neutral = literal(const(least(one.op, one.dtype), one.dtype))
    return out.assign("carry", f"tl.full([{height}, 1], {neutral}, {DTYPES[one.dtype]})")


def carry_on(
    one: Scan, value: str, out: Emission, col: Axis, carry: str, width: int, last: str = ""
) -> str:
    """The lines that fold a block and carry its end over to the next; what the fold is called."""
    name = out.names.get(one.made, "") or "running"
    name = out.assign(name, FORMS[one.op][1].format(carry, _folded(one, value, col, last)))
    end = "start" if one.reverse else f"start + {width - 1}"
    found = f"tl.sum(tl.where(col == {end}, {name}, 0), 1)[:, None]"
    out.lines.append(f"{carry} = {found}.to({DTYPES[one.dtype]})")
    return name


def _folded(one: Scan, value: str, col: Axis, last: str) -> str:
    neutral = literal(const(least(one.op, one.dtype), one.dtype))
    if col not in free_axes(one.arg):
        value = f"tl.where(col >= 0, {value}, {neutral}).to({DTYPES[one.dtype]})"
    if one.reverse and last:
        value = f"tl.where({last}, {value}, {neutral})"
    return FORMS[one.op][0].format(value, ", reverse=True" if one.reverse else "")
