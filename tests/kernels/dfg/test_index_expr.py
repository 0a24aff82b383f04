"""Index arithmetic is exact, and dense addresses fold back to the flat index."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.kernels.dfg.index_expr import Axis, Gathered, Index, Quotient, axes_of, axis, number

A, B = axis("a", 6), axis("b", 5)


def value(index: Index, at: dict[str, int]) -> int:
    """As a GPU computes it, which rounds quotients towards zero: none of them may be negative."""
    total = index.constant
    for atom, factor in index.terms:
        if isinstance(atom, Axis):
            total += factor * at[atom.name]
        else:
            assert not isinstance(atom, Gathered)
            inner = value(atom.index, at)
            assert inner >= 0, index.text
            total += factor * (inner // atom.by if isinstance(atom, Quotient) else inner % atom.by)
    return total


STEPS = st.lists(
    st.tuples(st.sampled_from("+*/%ab"), st.integers(1, 13) | st.integers(-7, -1)), max_size=7
)


@given(STEPS)
@settings(max_examples=60)
def test_simplification_changes_no_value(steps: list[tuple[str, int]]) -> None:
    """Random arithmetic on a and b, beside Python's on numbers."""
    index, plain = A, {(a, b): a for a, b in itertools.product(range(6), range(5))}
    for op, n in steps:
        if op == "+":
            index, plain = index + n, {k: v + n for k, v in plain.items()}
        elif op == "*":
            index, plain = index * n, {k: v * n for k, v in plain.items()}
        elif op == "/":
            index, plain = index // abs(n), {k: v // abs(n) for k, v in plain.items()}
        elif op == "%":
            index, plain = index % abs(n), {k: v % abs(n) for k, v in plain.items()}
        elif op == "a":
            index, plain = index + A * n, {k: v + k[0] * n for k, v in plain.items()}
        else:
            index, plain = index + B * n, {k: v + k[1] * n for k, v in plain.items()}
    low, high = index.range
    for (a, b), expected in plain.items():
        assert value(index, {"a": a, "b": b}) == expected, index.text
        assert low <= expected <= high


def test_a_dense_address_is_the_flat_index() -> None:
    i = axis("i", 2 * 3 * 4 * 5)
    n, h, w, c = i // 60, i // 20 % 3, i // 5 % 4, i % 5
    assert 60 * n + 20 * h + 5 * w + c == i
    assert (20 * n + 20 * h).text != i.text


def test_what_runs_backwards_folds_back_too() -> None:
    """A flip, flat and apart again: no factor is larger than that of the way forwards."""
    i = axis("i", 49) * -1 + 48
    assert 7 * (i // 7) + i % 7 == i
    shifted = i - 30
    assert 7 * (shifted // 7) + shifted % 7 == shifted
    assert ((axis("i", 50_000) * -1 + 1) % 50_000).reach < 200_000


def test_an_axis_of_one_element_is_nothing() -> None:
    assert axis("n", 1) == number(0) and list(axes_of(axis("n", 1) * 7 + A)) == [Axis("a", 6)]
