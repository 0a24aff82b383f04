"""Split-K reduction: CTAs share a tile, each leaves its sums, the last adds them in a fixed order.

    part 0   sums --+
    part 1   sums --+-- scratch     who counts to the last: total = part 0 + part 1 + ...
    part 2   sums --+               the others are done

Equal inputs give equal bits, whoever comes last, and the count is 0 again for the next run. There
may be several totals, and largest or smallest ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
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

OWN_VARIABLES = frozenset({"place", "sums", "counter", "arrived", "other"})
"""The names of its variables."""


@dataclass(frozen=True, slots=True)
class Total:
    """What a CTA has a part of: the variable, `start` as what changes nothing ("" for 0), and how
    two parts become one, of which `{}` stand for the one and the other."""

    name: str
    start: str
    joined: str


SUM = Total("total", "", "{} + {}")


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
    where = (GridPlace(2), " * ", GridPlace(0, count=True), " + tile")
    places = ["place", *(f"place + {k * split * m * n}" for k in range(1, len(totals)))]
    out.let("place", f"tl.arange(0, {m})[:, None] * {n} + tl.arange(0, {n})[None, :]")
    out.let("sums", f"scratch_ptr.to(tl.pointer_type({dtype}))")
    out.let("sums", ("(", *where, f") * {len(totals) * split * m * n}"), "+=")
    for total, place in zip(totals, places, strict=True):
        out.statements.append(Write(f"sums + part * {m * n} + {place}", total.name))
    out.statements.append(Effect("tl.debug_barrier()"))
    out.let("counter", ("counters_ptr + ", *where))
    out.let("arrived", 'tl.atomic_add(counter, 1, sem="acq_rel")')
    out.statements += [EndUnless("arrived", split - 1), Effect("tl.debug_barrier()")]
    for total in totals:
        new = f"tl.full([{m}, {n}], {total.start}, {dtype})"
        if not total.start:
            new = f"tl.zeros([{m}, {n}], {dtype})"
        out.let(total.name, new)
    added: list[Statement] = []
    for total, place in zip(totals, places, strict=True):
        loaded = f'tl.load(sums + other * {m * n} + {place}, cache_modifier=".cg")'
        if total.joined == SUM.joined:
            added.append(Assign((total.name,), loaded, "+="))
        else:
            added.append(Assign((total.name,), total.joined.format(total.name, loaded)))
    out.statements.append(For("other", f"{split}", tuple(added), over="tl.static_range"))
    out.statements.append(Write("counter", "0"))
