"""Expressions that share parts: compared, replaced and looked through once for each part."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.types import TensorType
from anabranch.kernels.dfg import expr as expr_module
from anabranch.kernels.dfg.expr import (
    Arith,
    Cast,
    Expr,
    Reduce,
    Scan,
    all_free_axes,
    all_parts,
    free_axes,
    parts,
)
from anabranch.kernels.dfg.index_expr import Axis, Index, axis, number
from anabranch.kernels.dfg.simplify import arith, load
from anabranch.kernels.dfg.traversal import replace_parts

C, K = axis("c", 8), axis("k", 8)


def read(name: str, at: Index = C) -> Expr:
    return load(name, TensorType((8,), torch.float16), (at,), ())


def chain(depth: int, name: str = "x") -> Expr:
    """Each step reads the one before it three times: a tree of 3^depth expressions."""
    one = read(name)
    for _ in range(depth):
        twice = Arith("mul", (one, one), torch.float32)
        one = Arith("add", (twice, one), torch.float32)
    return one


def test_equality_of_what_shares_parts_takes_no_exponential_time() -> None:
    one, other, strange = chain(90), chain(90), chain(90, "y")
    told = one is other, one == other, hash(one) == hash(other), one == strange
    assert told == (False, True, True, False)
    counts = len(all_parts(one)), len(all_parts(one, other)), len({one, other, strange})
    assert counts == (182, 182, 2)


def test_what_was_found_to_be_equal_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are its parts, nor a third one with the second; a strange one is."""
    one, other, third, strange = chain(9), chain(9), chain(9), chain(9, "y")
    assert one == other and third == other
    asked = list[Expr]()

    def bare(expr: Expr) -> object:
        asked.append(expr)
        return own(expr)

    own = expr_module._bare
    monkeypatch.setattr(expr_module, "_bare", bare)
    assert one == other and other == one and one == third and one != strange
    assert parts(one) == parts(third) and not asked
    assert chain(9) == one and asked


def test_expressions_are_told_apart() -> None:
    ((bare, _),) = K.terms
    assert isinstance(bare, Axis)
    x, of_k = read("x"), read("x", K)
    total = Reduce("sum", (bare,), of_k)
    every: list[Expr] = [
        x,
        Cast(x, torch.float64),
        Arith("neg", (x,), torch.float32),
        Arith("exp", (x,), torch.float32),
        total,
        Reduce("max", (bare,), of_k),
        Scan("sum", bare, of_k, C),
        Scan("sum", bare, of_k, C, reverse=True),
        Scan("sum", bare, of_k, number(3)),
        Scan("step", bare, of_k, C, by=of_k),
    ]
    assert len(set(every)) == len(every)
    assert all((a == b) == (a is b) for a in every for b in every)
    assert x != "x" and total != bare


def test_an_operation_that_there_is_not_is_named() -> None:
    x = read("x")
    ((bare, _),) = K.terms
    assert isinstance(bare, Axis)
    with pytest.raises(AssertionError, match="'unknown' is no operation of an expression"):
        arith("unknown", x, 1.0)
    with pytest.raises(AssertionError, match="mul takes 2 arguments: 3"):
        Arith("mul", (x, x, x), torch.float32)
    with pytest.raises(AssertionError, match="'mean' is none of the reductions"):
        Reduce("mean", (bare,), x)
    with pytest.raises(AssertionError, match="'mean' is none of the scans"):
        Scan("mean", bare, x, C)


def test_provenance_makes_no_difference() -> None:
    x = read("x")
    assert Arith("neg", (x,), torch.float32, "a") == Arith("neg", (x,), torch.float32, "b")


def test_what_has_no_part_that_is_replaced_stays_the_same_object() -> None:
    x, y, z = (read(name) for name in "xyz")
    kept, changed = Arith("exp", (x,), torch.float32), Arith("exp", (y,), torch.float32)
    whole = Arith("add", (kept, changed), torch.float32)
    found = replace_parts(whole, {y: z})
    assert found == Arith("add", (kept, Arith("exp", (z,), torch.float32)), torch.float32)
    assert isinstance(found, Arith) and found.args[0] is kept
    assert replace_parts(whole, {z: x}) is whole


def test_free_axes_of_all_at_once() -> None:
    ((k, _),), ((c, _),) = K.terms, C.terms
    assert isinstance(k, Axis)
    inner = Arith("mul", (read("x"), read("y", K)), torch.float32)
    total = Reduce("sum", (k,), inner)
    table = all_free_axes(total)
    assert list(table[inner]) == [c, k] and list(table[total]) == [c]
    assert all(table[part] == free_axes(part) for part in all_parts(total))


@pytest.mark.parametrize("first", range(5))
def test_what_was_asked_of_a_part_changes_no_answer_for_the_whole(first: int) -> None:
    def made() -> list[Expr]:
        one = Arith("add", (read("x"), read("y", K)), torch.float32, "one")
        two = Arith("mul", (read("y", K), one), torch.float32)
        alike = Arith("add", (read("x"), read("y", K)), torch.float32, "alike")
        whole = Arith("mul", (two, alike), torch.float32)
        return [one, two, alike, whole, Arith("sub", (one, whole), torch.float32)]

    plain, asked = made(), made()
    all_parts(asked[first])
    free_axes(asked[first])
    assert all_parts(*plain) == all_parts(*asked)
    (kept,) = (part for part in all_parts(asked[3]) if part == asked[2])
    assert kept is asked[0]
    for one, other in zip(plain, asked, strict=True):
        assert all_parts(one) == all_parts(other)
        assert list(free_axes(one)) == list(free_axes(other))
        assert all_parts(other)[-1] is other
