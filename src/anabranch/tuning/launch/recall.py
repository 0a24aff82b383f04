"""What was found by timing, kept between processes: modes and costs under a key, in one form.

a mode for all         [["a"], [[204.7, 0.4]]]
schedules beside       [[], [[209.8, 0.5], [211.0, 0.4], ...]]
a mode for each        [["a", "", "e", ...], [[201.3, 0.4]]]      none were faster: [[], []]
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from anabranch.cache import Cache
from anabranch.ir.protocols import Cost
from anabranch.kernels.triton.pdl import MODES

Kept = tuple[tuple[str, ...], list[Cost]]


def recall(
    cache: Cache | None, key: str, modes: Sequence[int], costs: Sequence[int]
) -> Kept | None:
    """What an earlier process kept, if it is as many modes and as many costs as one of these says;
    None for a text that says nothing of the kind."""
    text = cache.get("plans", key) if cache is not None else None
    try:
        names, numbers = json.loads(text or "")
        found = [Cost(float(us), "measured", float(spread)) for us, spread in numbers]
        fits = len(names) in modes and len(found) in costs and set(names) <= {"", *MODES}
        return (tuple(names), found) if fits else None
    except (ValueError, TypeError):
        return None


def keep(cache: Cache | None, key: str, modes: Sequence[str], costs: Sequence[Cost]) -> None:
    """Keep modes and costs (microseconds and their spread) under the key; nothing without a
    cache."""
    if cache is not None:
        text = json.dumps([list(modes), [(cost.us, cost.spread) for cost in costs]])
        cache.put("plans", key, text)
