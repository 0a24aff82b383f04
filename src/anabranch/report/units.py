"""Numbers as people read them: three digits that matter, and a unit.

>>> duration(8.126), duration(1843.2), size(2473984), ratio(2.3456), count(2, "wait")
('8.13 us', '1.84 ms', '2.36 MiB', '2.35x', '2 waits')
"""

from __future__ import annotations

import math
from typing import Any


def significant(value: float, digits: int = 3) -> str:
    """With this many significant digits, and no exponent where it can be avoided.

    >>> significant(0.01234), significant(1234567.0), significant(3.0e-9)
    ('0.0123', '1,234,567', '3.00e-09')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def number(value: Any) -> float | None:
    """The value if it is a number, else None."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain else None


def duration(us: float) -> str:
    """Microseconds in us, ms or s, with three digits that matter: "1.84 ms"."""
    if abs(us) >= 1e6:
        return f"{significant(us / 1e6)} s"
    return f"{significant(us / 1e3)} ms" if abs(us) >= 1e3 else f"{significant(us)} us"


def size(nbytes: float) -> str:
    """Bytes in B, KiB, MiB or GiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:,.0f} B" if unit == "B" else f"{significant(nbytes)} {unit}"
        nbytes /= 1024
    return f"{significant(nbytes)} GiB"


def ratio(value: float) -> str:
    """A factor with three digits that matter: "2.31x"."""
    return f"{significant(value)}x"


def count(number: int, noun: str) -> str:
    """A number and its noun, whose plural is regular.

    >>> count(1, "wait"), count(1500, "wait"), count(2, "launch")
    ('1 wait', '1,500 waits', '2 launches')
    """
    plural = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
