"""What published searches may apply: TASO's rules, and none that are ours alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.ir import ops
from anabranch.ir.rule import Call, Result, Rule
from anabranch.rewrite.rules import ALL, PUBLISHED, PUBLISHED_ALONE
from anabranch.rewrite.rules.published import OPERATORS

NAMES = {rule.name for rule in PUBLISHED}


def test_they_are_some_of_all_rules_each_once() -> None:
    assert len(NAMES) == len(PUBLISHED) < len(ALL)
    ours = (*ALL, *PUBLISHED_ALONE)
    assert all(any(rule is other for other in ours) for rule in PUBLISHED)
    assert not {rule.name for rule in PUBLISHED_ALONE} & {rule.name for rule in ALL}


@pytest.mark.parametrize(
    "name",
    [
        "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(w, v), cat(b, c))",
        "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(pad(w), pad(v)), cat(b, c))",
        "relu(conv(x, w, b)), relu(conv(x, v, c)) -> "
        "slices of relu(conv(x, cat(pad(w), pad(v)), cat(b, c)))",
        "conv(x, w, b) of g groups -> conv(x, w in pairs, b) of g/2 groups",
        "conv(x, w, b) * s -> conv(x, w * s, b * s)",
        "matmul(x, w), matmul(x, v) -> slices of matmul(x, cat(w, v))",
        "matmul(matmul(x, y), z) -> matmul(x, matmul(y, z))",
        "matmul(x, a) + matmul(x, b) -> matmul(x, a + b)",
        "(a + b) + c -> a + (b + c)",
    ],
)
def test_what_taso_has(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize(
    "word",
    [
        *("avg_pool", "layer_norm", "rms_norm", "embedding", "gelu", "sigmoid"),
        *("diagonal", "squares", "balanced", "one group", "[::s, ::s]", "conv1x1", "maximum"),
    ],
)
def test_what_taso_does_not_have(word: str) -> None:
    assert any(word in rule.name for rule in ALL)
    assert not any(word in name for name in NAMES)


WRITTEN_OUT = [rule for rule in PUBLISHED if not callable(rule.replace)]


@pytest.mark.parametrize("rule", WRITTEN_OUT, ids=lambda rule: rule.name)
def test_what_they_put_is_of_the_same_operators(rule: Rule) -> None:
    """And of those that move weights: halves, rims of zeros, sums of biases."""
    calls = [*_calls(rule.replace)]
    assert {ops.packet_name(call.op) for call in calls} <= OPERATORS | MOVES


MOVES = {f"aten.{name}" for name in ("reshape", "constant_pad_nd", "sum", "expand", "narrow")}


def _calls(put: object) -> Iterator[Call]:
    if isinstance(put, tuple):
        for one in put:
            yield from _calls(one)
    elif isinstance(put, Result):
        yield from _calls(put.call)
    elif isinstance(put, Call):
        yield put
        yield from _calls(put.args)
