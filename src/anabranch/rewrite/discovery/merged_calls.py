"""Two calls of one operator as slices of one: equations with two roots.

    matmul(x, a), matmul(x, b)   =   head, tail of matmul(x, cat([a, b], 1))

Each operand of the two calls is either the same in both or different, and then joined along some
axis; the result is cut where the first of the two would end. Whatever gives both calls' numbers is
a candidate. Contractions alone are asked: to join what is merely moved or added costs as much as is
saved, and any two calls anywhere would match.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from anabranch.ir import ops
from anabranch.ir.rule import Call, Operand, Wild, text_pattern, wildcards
from anabranch.rewrite.discovery.equations import ordered_names, short, survives, widest
from anabranch.rewrite.discovery.settings import OPERATORS, Operator, Setting
from anabranch.rewrite.discovery.terms import Tensors, TermEvaluator, fingerprint
from anabranch.rewrite.rules.found import Equation, Shapes
from anabranch.rewrite.rules.shapes_condition import fill

Pair = tuple[Call, Call]


def pairs(setting: Setting, run: TermEvaluator) -> Iterator[Equation]:
    """Those that hold on other shapes too, with the widest shapes they bear."""
    inputs = {**setting.inputs, **setting.spare}
    for both in _equal(setting, run):
        sides = fill(both, ordered_names(both, inputs))
        assert isinstance(sides, tuple)
        used = {name: inputs[name] for name in dict.fromkeys(wildcards(sides)) if name in inputs}
        make = partial(_equation, sides)
        if not any(map(survives, make(used))):
            yield from make(widest(make, used))


def _equation(sides: tuple[Operand, ...], shapes: Shapes) -> list[Equation]:
    find, replace = sides
    assert isinstance(find, tuple) and isinstance(replace, tuple)
    name = " -> ".join(", ".join(map(short, side)) for side in (find, replace))
    return [Equation(name, text_pattern(find), text_pattern(replace), shapes)]


def _equal(setting: Setting, run: TermEvaluator) -> Iterator[tuple[Pair, Pair]]:
    """Both calls, and the head and tail of the joint one that have their numbers."""
    cuts = [OPERATORS[name] for name in setting.operators if name.startswith(("head", "tail"))]
    joins = [OPERATORS[name] for name in setting.operators if name.startswith("cat")]
    for name in setting.operators:
        operator = OPERATORS[name]
        for first, second, whole in _joint(operator, joins, setting):
            wanted = _prints(run(first), run(second))
            if ops.info(first.op).kind != "contract" or None in wanted:
                continue
            for head, tail in zip(cuts[::2], cuts[1::2], strict=True):
                pieces = (head.build(whole), tail.build(whole))
                if wanted == _prints(*map(run, pieces)):
                    yield (first, second), pieces


def _prints(*values: Tensors | None) -> list[bytes | None]:
    return [None if each is None else fingerprint(each) for each in values]


def _joint(
    operator: Operator, joins: list[Operator], setting: Setting
) -> Iterator[tuple[Call, Call, Call]]:
    """Two calls on inputs, and one call where each operand is the same or joined; operands that
    commute are joined alike."""
    for names in itertools.permutations(setting.inputs, operator.arity):
        if not _in_order(names, setting):
            continue
        for ways in itertools.product([None, *joins], repeat=operator.arity):
            if ways.count(None) == len(ways) or (operator.commutes and None in ways):
                continue
            operands = [
                (Wild(name), Wild(name if way is None else f"{name}1"))
                for name, way in zip(names, ways, strict=True)
            ]
            wholes = [
                first if way is None else way.build(first, second)
                for way, (first, second) in zip(ways, operands, strict=True)
            ]
            yield (
                operator.build(*(first for first, _ in operands)),
                operator.build(*(second for _, second in operands)),
                operator.build(*wholes),
            )


def _in_order(names: tuple[str, ...], setting: Setting) -> bool:
    """Whether of the inputs of one shape the first are taken, in order."""
    for shape in {setting.inputs[name] for name in names}:
        alike = [name for name in setting.inputs if setting.inputs[name] == shape]
        taken = [name for name in names if name in alike]
        if taken != alike[: len(taken)]:
            return False
    return True
