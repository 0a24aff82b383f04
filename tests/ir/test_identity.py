from __future__ import annotations

from anabranch.ir.identity import Itself


def test_equals_itself_alone() -> None:
    one, like = [1], [1]
    assert Itself(one) == Itself(one) and hash(Itself(one)) == hash(Itself(one))
    assert Itself(one) != Itself(like) and Itself(one) != one
    assert {Itself(one): "found"}.get(Itself(like)) is None
