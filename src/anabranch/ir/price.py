"""Price: what a search makes small. Gain: by how much a graph is below another one.

    price   the sum of the tasks' times and alpha times the longest path; always predicted
    gain    the price before less the price after, or the time before less the time after

A price is no time: with an alpha of 8 it is several times what a graph takes. Times, measured and
predicted ones, are a `Cost` (`ir.protocols`). Prices of two alphas do not compare.

>>> was, now = Price(14.0, alpha=1.0), Price(13.0, alpha=1.0)
>>> str(was), was - now
('14.0 us, alpha 1.0', Gain(us=1.0, alpha=1.0))
>>> parse_price(str(was)) == was
True
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """Of a graph, in microseconds. `alpha`: what the longest path weighs in it, beside the sum."""

    us: float
    alpha: float = 0.0

    def __sub__(self, other: Price) -> Gain:
        assert self.alpha == other.alpha, "prices of two alphas do not compare"
        return Gain(self.us - other.us, self.alpha)

    def __str__(self) -> str:
        return f"{self.us!r} us, alpha {self.alpha!r}"


def parse_price(text: str) -> Price:
    """The price of this text; ValueError if it is none."""
    us, alpha = text.split(" us, alpha ")
    return Price(float(us), float(alpha))


@dataclass(frozen=True, slots=True)
class Gain:
    """Microseconds, below zero for a loss. `alpha`: of the prices that it is the difference of;
    None: it is one of times."""

    us: float
    alpha: float | None = None

    def __add__(self, other: Gain) -> Gain:
        assert self.alpha == other.alpha, "gains of two kinds do not add up"
        return Gain(self.us + other.us, self.alpha)
