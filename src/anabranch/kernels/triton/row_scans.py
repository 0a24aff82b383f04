"""Scans of rows: which way each runs, and how it is written.

    cumsum(x, 1) - x           running = tl.cumsum(x, 1)

    flip(cumsum(flip(x)))      running = tl.cumsum(x, 1, reverse=True)

    a row in blocks            carry = tl.full([1, 1], 0.0, tl.float32)
                               for start in range(0, 5000, 1024):
                                   running = carry + tl.cumsum(x, 1)
                                   carry = tl.sum(tl.where(col == start + 1023, running, 0), 1)

    y[t] = f[t] y[t-1] + x[t]  by, running = tl.associative_scan(
                                   tl.broadcast(f, x), 1, one_after_other)

Steps of a recurrence are pairs on the way: what they multiply what came before by, and what they
add to it, which may lie on tiles of unlike shape. `by`, for a row in blocks, is what the carry is
multiplied by. Products of many factors above one may overflow where no step does, and give nan.

A scan that is asked for at another place than that of the element (before it, or from the other
end) is one of what was moved there: then all of a row are asked for at the element's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import Dfg, Expr, Scan, free_axes, parts
from anabranch.kernels.dfg.index_expr import Axis, axis
from anabranch.kernels.dfg.simplify import bounded, choose, const, least
from anabranch.kernels.dfg.traversal import replace_parts, scans, substitute
from anabranch.kernels.triton.emit import DTYPES, Emission, literal, narrow_again
from anabranch.kernels.triton.statements import Assign

FORMS = {"sum": ("tl.cumsum", "{} + {}"), "prod": ("tl.cumprod", "{} * {}")}
"""How a tile is scanned along an axis, and what is carried over with what is scanned."""
SCANNED = {"max": "latest_largest", "min": "latest_smallest", "logaddexp": "log_add_exp"}
"""The function that does both where Triton has no word for it."""


def aligned(dfg: Dfg) -> Dfg | Refused:
    """The graph with each scan along the axis at whose place it is asked for, or why there
    is none. What holds others goes first: it says where they are asked for."""
    stores = dfg.stores
    while True:
        left = [scan for scan in scans(*(store.expr for store in stores)) if not _is_aligned(scan)]
        if not left:
            return Dfg(dfg.axes, stores) if stores is not dfg.stores else dfg
        table: dict[Expr, Expr] = {}
        for scan in left:
            if not any(scan in scans(other.arg) for other in left if other is not scan):
                replacement = _aligned(scan)
                if isinstance(replacement, Refused):
                    return replacement
                table[scan] = replacement
        stores = tuple(replace(s, expr=replace_parts(s.expr, table)) for s in stores)


def _is_aligned(scan: Scan) -> bool:
    return scan.at == axis(scan.axis.name, scan.axis.extent)


def _aligned(scan: Scan) -> Scan | Refused:
    ((atom, factor), *others) = scan.at.terms or ((None, 0),)
    if not isinstance(atom, Axis) or others or factor not in (1, -1):
        return Refused(f"its scans are asked for at {scan.at.text}")
    if scan.at.constant > (0 if factor == 1 else atom.extent - 1):
        return Refused("its scans begin before what is stored of them")
    inside = bounded(scan.at, 0, scan.axis.extent)

    def there(expr: Expr, nothing: float) -> Expr:
        return choose(inside, substitute(expr, {scan.axis: scan.at}), nothing)

    arg = there(scan.arg, least(scan.op, scan.dtype))
    by = None if scan.by is None else there(scan.by, 1)
    at = axis(atom.name, atom.extent)
    return replace(scan, axis=atom, arg=arg, at=at, reverse=factor < 0, by=by)


def below(exprs: Sequence[Expr], out: Emission) -> list[Scan]:
    """The scans that have to be computed for these, given what is known."""
    seen: dict[Expr, None] = {}
    stack = [expr for expr in exprs if expr not in out.name_of]
    while stack:
        expr = stack.pop()
        if expr not in seen:
            seen[expr] = None
            stack.extend(part for part in parts(expr) if part not in out.name_of)
    return [expr for expr in seen if isinstance(expr, Scan)]


def write_scan(
    scan: Scan, value: str, out: Emission, along: Axis, last: str = "", axis: int = 1
) -> str:
    """The line that scans a tile along an axis of it, and what it is called. `along`: the places
    on it; `last`: whether they are none beyond the end, where tiles run over that."""
    text, by = _scanned(scan, value, out, along, last, axis)
    return text if by else out.assign(_name(scan, out), text)


def begin(scan: Scan, out: Emission, height: int) -> str:
    """What is carried from block to block, before the first."""
    neutral = literal(const(least(scan.op, scan.dtype), scan.dtype))
    return out.assign("carry", f"tl.full([{height}, 1], {neutral}, {DTYPES[scan.dtype]})")


def carry_on(
    scan: Scan, value: str, out: Emission, col: Axis, carry: str, width: int, last: str = ""
) -> str:
    """The lines that scan a block and carry its end over to the next; what the scan is called."""
    text, by = _scanned(scan, value, out, col, last, 1)
    if by:
        both = f"{by} * {carry} + {text}"
    elif scan.op in FORMS:
        both = FORMS[scan.op][1].format(carry, text)
    else:
        both = out.call(SCANNED[scan.op], carry, text)
    name = out.assign(_name(scan, out), both)
    end = "start" if scan.reverse else f"start + {width - 1}"
    carried = f"tl.sum(tl.where(col == {end}, {name}, 0), 1)[:, None]"
    out.let(carry, f"{carried}.to({DTYPES[scan.dtype]})")
    return name


def _name(scan: Scan, out: Emission) -> str:
    return out.names.get(scan.value_name, "") or "running"


def _scanned(
    scan: Scan, value: str, out: Emission, along: Axis, last: str, axis: int
) -> tuple[str, str]:
    """The text of a tile scanned along its axis, and "". Of a recurrence its name, and what each
    step multiplies by what came before the first."""
    back = ", reverse=True" if scan.reverse else ""
    value = _whole(scan.arg, value, least(scan.op, scan.dtype), scan, out, along, last)
    if scan.by is None and scan.op in FORMS:
        return narrow_again(f"{FORMS[scan.op][0]}({value}, {axis}{back})", scan.dtype), ""
    if scan.by is None:
        function = out.named(SCANNED[scan.op])
        text = f"tl.associative_scan({value}, {axis}, {function}{back})"
        return narrow_again(text, scan.dtype), ""
    by, name = out.fresh("by"), out.fresh(_name(scan, out))
    factor = _whole(scan.by, out.name_of[scan.by], 1, scan, out, along, last)
    function = out.named("one_after_other")
    steps = f"tl.associative_scan(tl.broadcast({factor}, {value}), {axis}, {function}{back})"
    out.statements.append(Assign((by, name), steps))
    return name, by


def _whole(
    expr: Expr, value: str, nothing: float, scan: Scan, out: Emission, along: Axis, last: str
) -> str:
    """What is scanned, as a tile; from its end, what changes nothing where the tile is longer."""
    neutral = literal(const(nothing, scan.dtype))
    if along not in free_axes(expr):
        place = out.spelled[along]
        value = f"tl.where({place} >= 0, {value}, {neutral}).to({DTYPES[scan.dtype]})"
    if scan.reverse and last:
        value = f"tl.where({last}, {value}, {neutral})"
    return value
