"""CTAs that share a tile: each leaves its sums, the last one adds them up in a fixed order.

    part 0   sums --+
    part 1   sums --+-- scratch     who counts to the last: total = part 0 + part 1 + ...
    part 2   sums --+               the others are done

Equal inputs give equal bits, whoever comes last, and the count is 0 again for the next run.
"""

from __future__ import annotations

from anabranch.kernels.triton.emit import Emission


def write_meeting(out: Emission, shape: tuple[int, int], split: int) -> None:
    """Lines that leave `total`, of this shape, in scratch. All but the last of the `split` CTAs of
    a tile end there; the last one goes on with the sum of all as `total`."""
    m, n = shape
    where = "tl.program_id(2) * tl.num_programs(0) + tile"
    out.lines += [
        f"place = tl.arange(0, {m})[:, None] * {n} + tl.arange(0, {n})[None, :]",
        "sums = scratch_ptr.to(tl.pointer_type(tl.float32))",
        f"sums += ({where}) * {split * m * n}",
        f"tl.store(sums + part * {m * n} + place, total)",
        "tl.debug_barrier()",
        f"counter = counters_ptr + {where}",
        'arrived = tl.atomic_add(counter, 1, sem="acq_rel")',
        f"if arrived != {split - 1}:",
        "    return",
        "tl.debug_barrier()",
        f"total = tl.zeros([{m}, {n}], tl.float32)",
        f"for other in tl.static_range({split}):",
        f'    total += tl.load(sums + other * {m * n} + place, cache_modifier=".cg")',
        "tl.store(counter, 0)",
    ]
