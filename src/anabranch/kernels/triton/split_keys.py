"""Split keys: CTAs share the keys of a block of queries, and the last one weighs what all left.

    part 0   top, total, attended --+
    part 1   top, total, attended --+-- scratch      peak = the largest top
    part 2   top, total, attended --+                total = sum of total * 2 ^ (top - peak), ...

A single query, as a decoder has it, is one CTA a head, which walks over all keys by itself while
most of a GPU has nothing to do (Dao et al., Flash-Decoding, 2023). The parts are put together in
their order, whoever comes last, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.kernels.triton.emit import Emission
from anabranch.kernels.triton.split_k import OWN_VARIABLES as OF_SPLITS
from anabranch.kernels.triton.split_k import count_anew, leave_parts
from anabranch.kernels.triton.statements import Assign, For

OWN_VARIABLES = OF_SPLITS | {"part", "start", "left_top", "gain"}
"""The names of its variables, beside those of the attention."""


def scratch_bytes(rows: int, cols: int, split: int) -> int:
    """Of scratch for each block of queries: its sums, their total and the largest score."""
    return split * rows * (cols + 2) * 4


def write_split_keys(
    out: Emission,
    shape: tuple[int, int],
    split: int,
    lowest: str,
    finite: Callable[[str], str],
    power: Callable[[str], str],
    there: str = "",
) -> None:
    """Leaves `attended` (f32 of this shape), `total` and `top` (f32[rows, 1]) in scratch; the last
    of the `split` CTAs goes on with those of all. `lowest`: the top of a row that looks at no key;
    `finite`: what is subtracted for a top; `power`: the weight of a score less the largest one;
    `there`: which rows count, "" for all."""
    rows, cols = shape
    shapes = {"attended": (rows, cols), "total": (rows, 1), "top": (rows, 1)}
    left = leave_parts(out, shapes, split, "tl.float32", there)
    out.let("attended", f"tl.zeros([{rows}, {cols}], tl.float32)")
    out.let("total", f"tl.zeros([{rows}, 1], tl.float32)")
    out.let("top", f"tl.full([{rows}, 1], {lowest}, tl.float32)")
    weighed = (
        ("left_top", left["top"]),
        ("high", "tl.maximum(top, left_top)"),
        ("peak", finite("high")),
        ("fade", power("top - peak")),
        ("gain", power("left_top - peak")),
        ("total", f"total * fade + {left['total']} * gain"),
        ("attended", f"attended * fade + {left['attended']} * gain"),
        ("top", "high"),
    )
    body = tuple(Assign((name,), text) for name, text in weighed)
    out.statements.append(For("other", f"{split}", body, over="tl.static_range"))
    count_anew(out)
