"""Index arithmetic: which element of a tensor an iteration touches, always in its simplest form.

An `Index` is a sum of atoms with integer factors plus a constant. An atom is an axis, a quotient,
a remainder, or a number that is itself read from memory. Sums are kept in one canonical form, so
that equal addresses are equal objects, and every index knows its range, from which quotients and
remainders that change nothing disappear. What is divided is never negative: Python rounds quotients
down, a GPU towards zero, and only there they agree.

>>> i = axis("i", 4 * 56 * 56)
>>> c, h, w = i // 3136, i // 56 % 56, i % 56
>>> print(c.text, h.text, w.text, sep=" | ")
i // 3136 | i // 56 % 56 | i % 56
>>> print((3136 * c + 56 * h + w).text)
i
>>> print((6 * axis("a", 5) + axis("b", 2) + 12).text, ((6 * axis("a", 5) + 13) // 6).text)
6*a + b + 12 a + 2
>>> print(((axis("a", 5) - 3) // 2).text)
(a + 1) // 2 - 2
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Axis:
    """A variable that runs from 0 to extent - 1."""

    name: str
    extent: int

    @property
    def text(self) -> str:
        """The axis as text: its name."""
        return self.name

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest value, both included."""
        return 0, max(self.extent - 1, 0)


@dataclass(frozen=True, slots=True)
class Quotient:
    """index // by, of an index that is never negative; by > 1."""

    index: Index
    by: int

    @property
    def text(self) -> str:
        """The quotient as text: `i // 4`."""
        return f"{_in_product(self.index)} // {self.by}"

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest value, both included."""
        low, high = self.index.range
        return low // self.by, high // self.by


@dataclass(frozen=True, slots=True)
class Remainder:
    """index % by, of an index that is never negative; by > 1."""

    index: Index
    by: int

    @property
    def text(self) -> str:
        """The remainder as text: `i % 4`."""
        return f"{_in_product(self.index)} % {self.by}"

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest value, both included."""
        return 0, self.by - 1


@dataclass(frozen=True, slots=True)
class Gathered:
    """A number from 0 to extent - 1 that an expression computes: a row of an embedding table.
    `value` is an `Expr`; expressions are made of indices, so this file cannot name the type."""

    value: Any
    extent: int

    @property
    def text(self) -> str:
        """As text, the values that the number is computed of."""
        return "@(" + ", ".join(getattr(self.value, "reads", ())) + ")"

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest value, both included."""
        return 0, max(self.extent - 1, 0)


Atom = Axis | Quotient | Remainder | Gathered


@dataclass(frozen=True, slots=True)
class Index:
    """sum of factor * atom, plus a constant. Made by `axis`, `number` and arithmetic only."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int
    range: tuple[int, int] = field(init=False, compare=False, repr=False)
    code: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        low = high = self.constant
        for atom, factor in self.terms:
            least, most = atom.range
            low += factor * (least if factor > 0 else most)
            high += factor * (most if factor > 0 else least)
        object.__setattr__(self, "range", (low, high))
        object.__setattr__(self, "code", hash((self.terms, self.constant)))

    def __hash__(self) -> int:
        return self.code

    def __add__(self, other: Index | int) -> Index:
        more = other if isinstance(other, Index) else number(other)
        if not more.terms:  # what is canonical stays so: no sum to sort
            return Index(self.terms, self.constant + more.constant) if more.constant else self
        if not self.terms:
            return more + self.constant
        return _sum((*self.terms, *more.terms), self.constant + more.constant)

    def __sub__(self, other: Index | int) -> Index:
        return self + -1 * other

    def __mul__(self, factor: int) -> Index:
        if factor in (0, 1):
            return self if factor else number(0)
        return Index(tuple((a, k * factor) for a, k in self.terms), self.constant * factor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, by: int) -> Index:
        return _quotient(self, by)

    def __mod__(self, by: int) -> Index:
        return _remainder(self, by)

    @property
    def text(self) -> str:
        """The sum as text, in the order of its terms."""
        parts = [f"{k}*{_in_product(_atom(a))}" if k != 1 else a.text for a, k in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    @property
    def reach(self) -> int:
        """No number on the way to it is larger, nor less than minus this, in whatever order its
        terms are added."""
        inner, total = 0, abs(self.constant)
        for atom, factor in self.terms:
            total += abs(factor) * max(map(abs, atom.range))
            if isinstance(atom, Quotient | Remainder):
                inner = max(inner, atom.index.reach)
        return max(inner, total)

    @property
    def is_number(self) -> bool:
        """Whether it is the same at every point."""
        return not self.terms


def axis(name: str, extent: int) -> Index:
    """The index that is one axis; an axis of extent 1 is 0 for good."""
    return _atom(Axis(name, extent)) if extent != 1 else number(0)


@functools.lru_cache(maxsize=1 << 12)
def number(value: int) -> Index:
    """An index that is this constant everywhere."""
    return Index((), value)


def weighted(parts: Iterable[tuple[Index, int]], constant: int = 0) -> Index:
    """The sum of some indices, each times a number, and a constant; sorted once."""
    summed = [(index, factor) for index, factor in parts if factor]
    constant += sum(index.constant * factor for index, factor in summed)
    open_ones = [(index, factor) for index, factor in summed if index.terms]
    if len(open_ones) == 1:  # what is canonical stays so
        (index, factor) = open_ones[0]
        return index * factor + (constant - index.constant * factor)
    pairs = [(atom, k * factor) for index, factor in open_ones for atom, k in index.terms]
    return _sum(pairs, constant) if pairs else number(constant)


def gathered(value: Any, extent: int) -> Index:
    """An index that the expression `value` computes, from 0 to extent - 1."""
    return _atom(Gathered(value, extent))


def axes_of(index: Index) -> Iterator[Axis]:
    """The axes it depends on, but for those behind a gather; with repeats."""
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            yield atom
        elif not isinstance(atom, Gathered):
            yield from axes_of(atom.index)


def _atom(atom: Atom) -> Index:
    return Index(((atom, 1),), 0)


def _in_product(index: Index) -> str:
    return index.text if len(index.terms) + bool(index.constant) < 2 else f"({index.text})"


@functools.lru_cache(maxsize=1 << 14)
def _quotient(index: Index, by: int) -> Index:
    """Rounded down. Remembered: all taps of a window divide the same few indices."""
    whole, rest, by = _split(index, by)
    if not rest.terms or by == 1:
        return whole + rest.constant // by
    low, high = rest.range
    if low // by == high // by:
        return whole + low // by
    if low < 0:
        whole, rest = whole + low // by, _lifted(rest, by)
    (atom, factor), *others = rest.terms
    if isinstance(atom, Quotient) and factor == 1 and not others and not rest.constant:
        return whole + _atom(Quotient(atom.index, atom.by * by))
    return whole + _atom(Quotient(rest, by))


@functools.lru_cache(maxsize=1 << 14)
def _remainder(index: Index, by: int) -> Index:
    """What is left, never negative. The least of the factors that leave the same is taken where the
    index runs backwards, or would leave 32 bits, and else none that is negative."""
    rest = _sum(((atom, k % by) for atom, k in index.terms), index.constant % by)
    if by == 1 or not rest.terms:
        return number(rest.constant % by)
    if rest.range[1] < by and rest.range[0] >= 0:
        return rest
    half = (by - 1) // 2
    least = ((atom, (k + half) % by - half) for atom, k in rest.terms)
    lifted = _lifted(_sum(least, rest.constant % by), by)
    if lifted.range[1] < by:
        return lifted
    backwards = rest.range[0] < 0 or any(k < 0 for _, k in index.terms)
    if backwards or rest.reach > LARGEST_INT32:
        rest = lifted
    step = math.gcd(by, *(k for _, k in rest.terms))
    if step > 1:
        inner = Index(tuple((atom, k // step) for atom, k in rest.terms), rest.constant // step)
        return inner % (by // step) * step + rest.constant % step
    (atom, factor), *others = rest.terms
    plain = factor == 1 and not others and not rest.constant
    if plain and isinstance(atom, Remainder) and atom.by % by == 0:
        return atom.index % by
    return _atom(Remainder(rest, by))


def _lifted(index: Index, by: int) -> Index:
    """The index and as many times `by` that it is never negative, no more."""
    return index - index.range[0] // by * by


def _split(index: Index, by: int) -> tuple[Index, Index, int]:
    """Index // by = whole + rest // (another divisor): what is a multiple of the divisor leaves
    the quotient, and a common factor is divided out where what it leaves behind is too small."""
    whole = Index(tuple((a, k // by) for a, k in index.terms if k % by == 0), index.constant // by)
    left = tuple((a, k) for a, k in index.terms if k % by)
    rest = Index(left, index.constant % by)
    for step in sorted({math.gcd(by, k) for _, k in left}, reverse=True):
        small = _sum(((a, k) for a, k in left if k % step), rest.constant % step)
        if step > 1 and small.range[0] >= 0 and small.range[1] < step:
            large = ((a, k // step) for a, k in left if k % step == 0)
            return whole, _sum(large, rest.constant // step), by // step
    return whole, rest, by


def _sum(pairs: Iterable[tuple[Atom, int]], constant: int) -> Index:
    """The canonical sum: each atom once, quotients and remainders joined, in a fixed order."""
    factors: dict[Atom, int] = {}
    for atom, factor in pairs:
        factors[atom] = factors.get(atom, 0) + factor
    if any(isinstance(atom, Remainder) for atom in factors):
        joined = _join(factors)
        if joined is not None:
            return joined + constant
    kept = [(atom, factor) for atom, factor in factors.items() if factor]
    if len(kept) > 1:
        kept.sort(key=lambda pair: (-abs(pair[1]), pair[0].text))
    return Index(tuple(kept), constant)


def _join(factors: dict[Atom, int]) -> Index | None:
    """k*by * (x // by) + k * (x % by) = k * x, once; None where no such pair is left."""
    for atom, factor in factors.items():
        if not isinstance(atom, Remainder) or not factor:
            continue
        whole = atom.index // atom.by
        if len(whole.terms) != 1 or whole.terms[0][1] != 1:
            continue
        partner = whole.terms[0][0]
        if factors.get(partner) == factor * atom.by:
            rest = {a: k for a, k in factors.items() if a not in (atom, partner)}
            return _sum(rest.items(), 0) + (atom.index - whole.constant * atom.by) * factor
    return None
