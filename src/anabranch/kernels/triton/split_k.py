"""Split-K reduction: CTAs share a tile, each leaves its sums, the last adds them in a fixed order.

    part 0   sums --+
    part 1   sums --+-- scratch     who counts to the last: total = part 0 + part 1 + ...
    part 2   sums --+               the others are done

Equal inputs give equal bits, whoever comes last, and the count is 0 again for the next run. There
may be several totals, and largest or smallest ones too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.kernels.triton.emit import Emission
from anabranch.kernels.triton.statements import (
    Assign,
    Effect,
    EndUnless,
    For,
    GridPlace,
    Statement,
    Write,
)

OWN_VARIABLES = frozenset({"place", "place_1", "sums", "counter", "arrived", "other"})
"""The names of its variables."""


@dataclass(frozen=True, slots=True)
class Total:
    """What a CTA has a part of: the variable, `start` as what changes nothing ("" for 0), and how
    two parts become one, of which `{}` stand for the one and the other."""

    name: str
    start: str
    joined: str


SUM = Total("total", "", "{} + {}")


def leave_parts(
    out: Emission,
    shapes: Mapping[str, tuple[int, int]],
    split: int,
    dtype: str,
    there: str = "",
) -> dict[str, str]:
    """Leaves these variables, each of its shape, in scratch, as far as `there` holds, if it is
    given. All but the last of the `split` CTAs of a tile end there; returns what reads what the CTA
    `other` has left, by variable. Whoever has read them ends with `count_anew`."""
    where = (GridPlace(2), " * ", GridPlace(0, count=True), " + tile")
    names: dict[tuple[int, int], str] = {}
    for m, n in shapes.values():
        if (m, n) not in names:
            names[m, n] = f"place_{len(names)}" if names else "place"
            across = f"tl.arange(0, {m})[:, None] * {n} + tl.arange(0, {n})[None, :]"
            out.let(names[m, n], across)
    places, end = dict[str, str](), 0
    for variable, (m, n) in shapes.items():
        places[variable] = f"{m * n} + {names[m, n]}" + (f" + {end}" if end else "")
        end += split * m * n
    out.let("sums", f"scratch_ptr.to(tl.pointer_type({dtype}))")
    out.let("sums", ("(", *where, f") * {end}"), "+=")
    for variable, place in places.items():
        out.statements.append(Write(f"sums + part * {place}", variable, there))
    out.statements.append(Effect("tl.debug_barrier()"))
    masked = f", mask={there}, other=0.0" if there else ""
    out.let("counter", ("counters_ptr + ", *where))
    out.let("arrived", 'tl.atomic_add(counter, 1, sem="acq_rel")')
    out.statements += [EndUnless("arrived", split - 1), Effect("tl.debug_barrier()")]
    return {
        variable: f'tl.load(sums + other * {place}{masked}, cache_modifier=".cg")'
        for variable, place in places.items()
    }


def count_anew(out: Emission) -> None:
    """The counter is 0 for the next run."""
    out.statements.append(Write("counter", "0"))


def write_split_k(
    out: Emission,
    shape: tuple[int, int],
    split: int,
    totals: Sequence[Total] = (SUM,),
    dtype: str = "tl.float32",
) -> None:
    """Leaves the totals, each of this shape and dtype, in scratch. All but the last of the `split`
    CTAs of a tile end there; the last one goes on with those of all."""
    m, n = shape
    left = leave_parts(out, dict.fromkeys((total.name for total in totals), shape), split, dtype)
    for total in totals:
        new = f"tl.full([{m}, {n}], {total.start}, {dtype})"
        if not total.start:
            new = f"tl.zeros([{m}, {n}], {dtype})"
        out.let(total.name, new)
    added: list[Statement] = []
    for total in totals:
        if total.joined == SUM.joined:
            added.append(Assign((total.name,), left[total.name], "+="))
        else:
            added.append(Assign((total.name,), total.joined.format(total.name, left[total.name])))
    out.statements.append(For("other", f"{split}", tuple(added), over="tl.static_range"))
    count_anew(out)
