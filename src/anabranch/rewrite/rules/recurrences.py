r"""Steps that follow each other as one recurrence of whole tensors. Rules that might help.

    c1 = f[0] * c0 + u[0]
    c2 = f[1] * c1 + u[1]        ->    c = recurrence(u, f, c0)
    ...                                h = r * tanh(c)
    h = stack([r[0] * tanh(c1), r[1] * tanh(c2), ...])

Each step waits for the one before it, however a kernel is written. But what a step does to its
state is a factor and a term, and two steps one after the other are a factor and a term again: so
steps may be put together by pairs, and pairs of pairs (Blelloch, CMU-CS-90-190, section 1.4). That
is more arithmetic in fewer steps, and whether it pays is for the device to say: sixteen steps of
512 channels are four levels of pairs, which run where the products end of which they are made.
Gates and decays are at most one; factors that are larger, many of them, have products that may
overflow where the state itself does not.

`columns` says how steps become whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import partial

from anabranch.ir.graph import Node, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Patterns, Rule, ValueFacts, wild
from anabranch.rewrite.pattern_ops import call, linear
from anabranch.rewrite.rules.algebra_conditions import values
from anabranch.rewrite.rules.drawing import Drawing, OneOf
from anabranch.rewrite.rules.embedding_merging import CAT
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import refuses, unrefused
from anabranch.rewrite.rules.recurrence_columns import ADDCMUL, FEWEST_STEPS, FLIP, Column, Columns
from anabranch.rewrite.rules.recurrence_values import (
    SELECT,
    SUM,
    UNSQUEEZE,
    Differing,
    Whole,
    selected,
)
from anabranch.rewrite.rules.shapes import either, shapes

(parts,) = wild("parts")


@dataclass(frozen=True, slots=True)
class Rolled:
    """Steps that were put together: what comes in place of them, and of the states that their
    recurrences end with, by their names."""

    steps: Operand
    ends: Mapping[str, Pattern]


def rolled(match: Match) -> Rolled | Refused:
    """The steps that are put together as whole tensors, or why they are no recurrence. Parts
    of a concatenation are steps if each is one long."""
    steps, rank = values(match, "parts"), len(match.root.type.shape)
    axis = match.axis.arg
    assert isinstance(axis, int)
    at, joins = axis % rank, match.root.op == CAT
    if len(steps) < FEWEST_STEPS or not match.root.type.dtype.is_floating_point:
        return Refused("its steps are few, or no floating numbers")
    if joins and any(match.value_facts.types[step.name].shape[at] != 1 for step in steps):
        return Refused("a part that is joined is longer than one step")
    if not match.root.type.numel:
        return Refused("it is empty")
    assembled = _whole(match.value_facts, steps)
    if isinstance(assembled, Refused):
        back = _whole(match.value_facts, steps[::-1])
        if isinstance(back, Refused) or back[0].at is None:
            return assembled
        whole, ends = back
        assembled = replace(whole, value=call(FLIP, whole.value, (whole.at,))), ends
    whole, ends = assembled
    if joins:
        selection = (Whole(at), Whole(0))
        whole = selected((whole, *selection), (*whole.shape[:at], *whole.shape[at + 1 :]))
    put = whole.moved(rank - 1 - at)
    held, read = _within(put)
    ends = {name: end for name, end in ends.items() if id(end.value) in held and name not in read}
    return Rolled(put, {name: _end(end) for name, end in ends.items()})


def _whole(facts: ValueFacts, steps: Column) -> tuple[Whole, Mapping[str, Whole]] | Refused:
    """These steps as one value, if there is a recurrence in it, and all recurrences by the states
    that they end with."""
    columns = Columns(facts)
    try:
        whole = columns.whole(steps)
    except Differing as differing:
        return Refused(str(differing))
    if not columns.recurrences:
        return Refused("nothing is carried from one of its steps to the next")
    return whole, columns.recurrences


def _end(steps: Whole) -> Pattern:
    """The last state of a recurrence, in memory of its own where it would lie in pieces."""
    assert steps.at is not None
    last = call(SELECT, steps.value, steps.at, -1)
    return call("aten.clone.default", last) if math.prod(steps.shape[: steps.at]) > 1 else last


def _within(pattern: Operand) -> tuple[Container[int], Container[str]]:
    """The parts that it is made of, by their ids, for many are there several times; and the values
    of the graph that it reads."""
    parts, read, stack = set[int](), set[str](), [pattern]
    while stack:
        item = stack.pop()
        if isinstance(item, Ref):
            read.add(item.name)
        elif id(item) not in parts:
            parts.add(id(item))
            stack.extend(
                item if isinstance(item, tuple) else item.args if isinstance(item, Call) else ()
            )
    return parts, read


def _ends(match: Match) -> tuple[Node, ...]:
    """Last states, which may be read beside the steps."""
    recurrence = unrefused(rolled)(match)
    return tuple(match.value_facts.producers[name] for name in recurrence.ends)


def _put(match: Match) -> Patterns:
    recurrence = unrefused(rolled)(match)
    assert isinstance(recurrence.steps, Pattern)
    return (recurrence.steps, *recurrence.ends.values())


def _steps(drawing: Drawing, joins: bool) -> tuple[Pattern, ...]:
    """Steps of a state of some axes, as models spell them, and what is read of it."""
    x, f, r, c, w, v = wild("x f r c w v")
    rank = len(drawing.sizes(STATE.split()))
    at = drawing.value("axis", AXIS)
    assert isinstance(at, int)
    at %= rank + 1
    kind, read, dim = (drawing.dice.randrange(count) for count in (8, 5, rank))
    steps: list[Pattern] = []
    state: Pattern = c
    for number in range(drawing.size("S")):
        u, by, out = (call(SELECT, sequence, at, number) for sequence in (x, f, r))
        state = (
            by * state + u,
            u + state * by,
            u - by * state,
            state * by - u,
            w * state + call("aten.tanh.default", by) * u,
            -(state * by) + u if number else u,
            call("aten.lerp.Tensor", state, u, by),
            call(ADDCMUL, u, by, state),
        )[kind]
        step = (
            state,
            out * call("aten.tanh.default", state) + u,
            state + w,
            call(SUM, state * out, (dim,), True),
            linear(state, v),
        )[read]
        steps.append(call(UNSQUEEZE, step, at) if joins else step)
    return tuple(steps)


STATE, AXIS = "A.. B.. K", "S of x"
DRAWN: dict[str, object] = {
    **{"c": STATE, "w": OneOf(STATE, "B.. K", "K"), "v": "M K const", "axis": AXIS},
    **{"A": (0, 1), "B": (0, 1), "S": range(FEWEST_STEPS, FEWEST_STEPS + 3)},
}


def _drawn(joins: bool) -> Draw:
    """The axis of steps before some of the state's, or behind all of them."""
    return either(
        *(
            shapes(DRAWN, dict.fromkeys("xfr", whole), parts=partial(_steps, joins=joins))
            for whole in ("A.. S B.. K", "A.. B.. S K", "A.. B.. K S")
        )
    )


RULES: tuple[Rule, ...] = tuple(
    equation(
        f"{join}([f[0] * c + u[0], ...]) -> recurrence(u, f, c)",
        when=refuses(rolled),
        find=f"{join}(parts, axis)",
        put=_put,
        also=_ends,
        draw=_drawn(joins=join == "cat"),
        scope="first",
    )
    for join in ("stack", "cat")
)
