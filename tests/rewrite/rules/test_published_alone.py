"""All rules that TASO ships are reached by the rules of published searches.

`taso.txt` has the 133 equations of its file of generated rules, in its order, a line each, with
shapes that admit them:

    cat1(mm(a, b), mm(a, c)) -> mm(a, cat1(b, c)) | a b c: 6 6

`cat1`: a concatenation along axis 1; `part0_1`: the first of the two parts along axis 1 of what was
computed of a concatenation; `conv`: of three by three taps with a rim of one, in as many groups as
its weight says. A relu that TASO has inside of a convolution stands behind it here, so that some
lines repeat others, and some have the same on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests.rewrite.graphs import error

from anabranch.ir.graph import Constant, Graph, Input, Ref
from anabranch.ir.inputs import random_tensor
from anabranch.ir.types import TensorType, contiguous_strides
from anabranch.rewrite.build import Builder
from anabranch.rewrite.rules import PUBLISHED
from anabranch.search.engine.neighbours import NeighbourFilter, Neighbours

LINES = Path(__file__).with_name("taso.txt").read_text(encoding="utf-8").splitlines()
STEPS = 3
"""That lead from one side to the other at most; most equations are one rule of ours, or two."""
ANY = NeighbourFilter("all", lambda names: True, lambda match: True)
NEIGHBOURS = Neighbours(PUBLISHED)
TOKEN = re.compile(r"\w+|[(),]")
BINARY = {"mm": "aten.mm.default", "add": "aten.add.Tensor", "mul": "aten.mul.Tensor"}


@dataclass(frozen=True, slots=True)
class Term:
    """An operator of terms, or a name."""

    head: str
    parts: tuple[Term, ...] = ()


def terms(text: str) -> list[Term]:
    """The terms of one side, between commas."""
    return _arguments([*TOKEN.findall(text), ")"])


def _arguments(tokens: list[str]) -> list[Term]:
    found: list[Term] = []
    while (token := tokens.pop(0)) != ")":
        if token == "(":
            found[-1] = replace(found[-1], parts=tuple(_arguments(tokens)))
        elif token != ",":
            found.append(Term(token))
    return found


def declared(text: str) -> tuple[list[Input], list[Constant]]:
    """The tensors that a line is of."""
    inputs, constants = list[Input](), list[Constant]()
    for group in text.split("; "):
        names, _, sizes = group.partition(": ")
        shape = tuple(int(size) for size in sizes.split() if size.isdigit())
        type = TensorType(shape, torch.float32, contiguous_strides(shape))
        for name in names.split():
            if sizes.endswith("const"):
                constants.append(Constant(name, type, name, random_tensor(type, ord(name))))
            else:
                inputs.append(Input(name, type))
    return inputs, constants


def graph(side: str, tensors: str) -> Graph:
    """One side of an equation."""
    inputs, constants = declared(tensors)
    builder = Builder(Graph("side", tuple(inputs), tuple(constants), (), ()))
    made: dict[Term, Ref] = {}
    outputs = tuple(_put(builder, term, made) for term in terms(side))
    nodes = tuple(builder.nodes.values())
    return replace(builder.source, nodes=nodes, outputs=outputs)


def _put(builder: Builder, term: Term, made: dict[Term, Ref]) -> Ref:
    if not term.parts:
        return Ref(term.head)
    if term not in made:
        made[term] = _call(builder, term.head, [_put(builder, part, made) for part in term.parts])
    return made[term]


def _call(builder: Builder, head: str, values: list[Ref]) -> Ref:
    size = builder.facts.types
    if head in BINARY:
        return builder.call(BINARY[head], *values)
    if head == "relu":
        return builder.call("aten.relu.default", *values)
    if head == "conv":
        groups = size[values[0].name].shape[1] // size[values[1].name].shape[1]
        ones = ((1, 1),) * 3
        op = "aten.convolution.default"
        return builder.call(op, *values, None, *ones, False, (0, 0), groups)
    if head.startswith("cat"):
        return builder.call("aten.cat.default", tuple(values), int(head[3:]))
    which, axis = int(head[4]), int(head[6])
    (whole,), end = values, size[values[0].name].shape[axis]
    ends = ((0, end // 2), (end // 2, end))[which]  # both parts are of one size in all lines
    return builder.call("aten.slice.Tensor", whole, axis, *ends)


def steps(before: Graph, after: Graph) -> int | None:
    """How many rules lead from one to the other, at the least; None if more than STEPS."""
    wanted, seen, level = NEIGHBOURS.key(after), {NEIGHBOURS.key(before)}, [before]
    if wanted in seen:
        return 0
    for count in range(1, STEPS + 1):
        further: list[Graph] = []
        for parent in level:
            for one in NEIGHBOURS.of(parent, ANY, None):
                if one.key == wanted:
                    return count
                if one.key not in seen:
                    seen.add(one.key)
                    further.append(one.graph)
        level = further
    return None


def sides(line: str) -> Sequence[Graph]:
    equation, _, tensors = line.partition(" | ")
    return [graph(side, tensors) for side in equation.split(" -> ")]


def test_the_list_is_whole() -> None:
    assert len(LINES) == 133


@pytest.mark.parametrize("line", dict.fromkeys(LINES), ids=lambda line: line.partition(" | ")[0])
def test_it_is_reached(line: str) -> None:
    before, after = sides(line)
    assert error(before, after) < 1e-12, "the line itself is wrong"
    assert steps(before, after) is not None
