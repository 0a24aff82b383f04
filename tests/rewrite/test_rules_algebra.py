"""Laws of algebra: one golden case by hand a family, and what they leave alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds, read

from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.rule import Rule
from anabranch.ir.types import TensorType
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.rewrite.apply import apply, apply_all, instantiate
from anabranch.rewrite.match import matches
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import CANDIDATES
from anabranch.trace import Trace

FAMILIES = (
    "matmul_algebra",
    "linearity",
    "concat_slice",
    "movement",
    "transposed_operands",
    "elementwise_algebra",
)
RULES = {rule.name: rule for family in FAMILIES for rule in CANDIDATES[family]}


def tensor(*sizes: int) -> TensorType:
    return TensorType(sizes, torch.float32)


def graph(inputs: str, *lines: str) -> Graph:
    """A graph of these inputs, as in "x:2,3 y:2,3", that returns its last line."""
    heads = (pair.split(":") for pair in inputs.split())
    typed = [
        f"input %{name}: {shape if '[' in shape else f'f32[{shape}]'}" for name, shape in heads
    ]
    last = lines[-1].split(":")[0]
    return read("graph g {\n" + "\n".join([*typed, *lines, f"return {last}"]) + "\n}")


def refusals(name: str, of: Graph) -> list[str]:
    """Why the rule does not apply where its pattern is found; it must not apply."""
    said: list[str] = []
    assert not list(matches(of, RULES[name], lambda _, why: said.append(why)))
    return said


def test_a_long_sum_becomes_a_tree() -> None:
    lines = ["%s1: f32[4] = aten.add.Tensor(%a, %b)"]
    lines += [
        f"%s{i}: f32[4] = aten.add.Tensor(%s{i - 1}, %{name})" for i, name in enumerate("cdefgh", 2)
    ]
    chain = graph(" ".join(f"{name}:4" for name in "abcdefgh"), *lines)
    rule = RULES["a + b + c + d + e + f + g + h -> balanced"]
    after = equal(chain, apply(chain, rule, next(matches(chain, rule))))
    depth: dict[str, int] = {}
    for node in after.nodes:
        depth[node.name] = 1 + max(depth.get(name, 0) for name in node.uses)
    assert kinds(after) == ["add"] * 7 and max(depth.values()) == 3


def test_neighbours_are_put_together_one_after_the_other() -> None:
    """A split whose parts are joined again is nothing; the third part is no neighbour of the
    first."""
    parts = [
        f"%p{i}: f32[2,2]{{6,1}} = aten.slice.Tensor(%x, 1, {2 * i}, {2 * i + 2})" for i in range(3)
    ]
    whole = graph("x:2,6", *parts, "%c: f32[2,6] = aten.cat.default([%p0, %p1, %p2], 1)")
    rules = list(CANDIDATES["concat_slice"])
    once = equal(whole, apply_all(whole, rules))
    assert kinds(once) == ["slice", "slice", "cat"]
    twice = equal(whole, apply_all(once, rules))
    assert kinds(twice) == ["slice"]
    swapped = graph("x:2,6", *parts, "%c: f32[2,4] = aten.cat.default([%p0, %p2], 1)")
    name = "cat(x[a:b], x[b:d]) -> cat(x[a:d])"
    assert refusals(name, swapped) == ["one ends at 2 and the other begins at 4"]


def test_a_recurrence_reads_its_parts() -> None:
    rows = graph(
        "x:1,3 y:1,3",
        "%s: f32[2,1,3] = aten.stack.default([%x, %y])",
        "%r: f32[1,3] = aten.select.int(%s, 0, -1)",
        "%t: f32[1,3] = aten.tanh.default(%r)",
    )
    rule = RULES["select(stack(parts, i), i, k) -> parts[k]"]
    assert kinds(equal(rows, apply_all(rows, [rule]))) == ["alias", "tanh"]


ADD, MUL, MM = "aten.add.Tensor", "aten.mul.Tensor", "aten.matmul.default"
LEFT_ALONE = {
    "whole numbers wrap around": (
        "(a + b) + c -> a + (b + c)",
        graph(
            "a:i64[4] b:i64[4] c:i64[4]",
            f"%d: i64[4] = {ADD}(%a, %b)",
            f"%e: i64[4] = {ADD}(%d, %c)",
        ),
        "whole numbers",
    ),
    "a sum that is promoted is rounded elsewhere": (
        "(a + b) + c -> a + (b + c)",
        graph(
            "a:f16[4] b:f16[4] c:4",
            f"%d: f16[4] = {ADD}(%a, %b)",
            f"%e: f32[4] = {ADD}(%d, %c)",
        ),
        "several dtypes",
    ),
    "a number is no operand of every sum": (
        "(a + b) + c -> a + (b + c)",
        graph("a:4", f"%d: f32[4] = {ADD}(%a, 2)", f"%e: f32[4] = {ADD}(%d, 3)"),
        "and no tensor",
    ),
    "a row is added to every row, and not to the weight": (
        "matmul(x, a) + matmul(x, b) -> matmul(x, a + b)",
        graph(
            "x:2,4 a:4,3 b:4,1",
            f"%p: f32[2,3] = {MM}(%x, %a)",
            f"%q: f32[2,1] = {MM}(%x, %b)",
            f"%r: f32[2,3] = {ADD}(%p, %q)",
        ),
        "b is (4, 1), and M is 3 elsewhere",
    ),
    "a vector in the middle is a column and a row": (
        "matmul(matmul(x, y), z) -> matmul(x, matmul(y, z))",
        graph("x:3,3 y:3 z:3,3", f"%p: f32[3] = {MM}(%x, %y)", f"%q: f32[3] = {MM}(%p, %z)"),
        "y has one axis: it is a vector",
    ),
    "a negative factor turns relu round": (
        "relu(x * s) -> relu(x) * s",
        graph("x:4", f"%m: f32[4] = {MUL}(%x, -2)", "%r: f32[4] = aten.relu.default(%m)"),
        "s is -2",
    ),
    "other parts": (
        "add(cat(parts), cat(others)) -> cat(add(part, other))",
        graph(
            "a:2,3 b:2,4",
            "%c: f32[2,7] = aten.cat.default([%a, %b], 1)",
            "%d: f32[2,7] = aten.cat.default([%b, %a], 1)",
            f"%e: f32[2,7] = {ADD}(%c, %d)",
        ),
        "is 3 elsewhere",
    ),
    "stacked along one axis, read along another": (
        "select(stack(parts, i), i, k) -> parts[k]",
        graph(
            "x:2,3 y:2,3",
            "%s: f32[2,2,3] = aten.stack.default([%x, %y])",
            "%r: f32[2,3]{6,1} = aten.select.int(%s, 1, 0)",
        ),
        "another axis",
    ),
    "a slice that reads of every part": (
        "slice(cat(parts, i), i) -> the parts it reads",
        graph(
            "x:2,3 y:2,3",
            "%c: f32[2,6] = aten.cat.default([%x, %y], 1)",
            "%s: f32[2,4]{6,1} = aten.slice.Tensor(%c, 1, 1, 5)",
        ),
        "of every part",
    ),
    "zeros around what a bias would fill": (
        "conv(conv1x1(x, w, b), v, c) -> conv(x, v @ w, sum(v) @ b + c)",
        graph(
            "x:1,2,5,5 w:3,2,1,1 b:3 v:4,3,3,3",
            "%p: f32[1,3,5,5] = aten.convolution.default"
            "(%x, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)",
            "%q: f32[1,4,5,5] = aten.convolution.default"
            "(%p, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
        ),
        "b is %b and not left out",
    ),
    "columns that are counted as rows": (
        "linear(reshape(x), w, b) -> reshape(linear(x, w, b))",
        graph(
            "x:2,6 w:5,4",
            "%r: f32[3,4] = aten.reshape.default(%x, [3, 4])",
            "%l: f32[3,5] = aten.linear.default(%r, %w)",
        ),
        "K is 6 elsewhere",
    ),
    "a column that is read": (
        "select(linear(x, w, b), row) -> linear(select(x, row), w, b)",
        graph(
            "x:2,6 w:5,6",
            "%l: f32[2,5] = aten.linear.default(%x, %w)",
            "%s: f32[2]{5} = aten.select.int(%l, 1, 0)",
        ),
        "x has one axis",
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_left_alone(case: str) -> None:
    name, of, why = LEFT_ALONE[case]
    said = refusals(name, of)
    assert any(why in each for each in said), said


def test_alpha_is_not_forgotten() -> None:
    scaled = graph(
        "x:4 y:4 z:4",
        f"%a: f32[4] = {ADD}(%x, %y, alpha=2)",
        f"%b: f32[4] = {ADD}(%a, %z, alpha=3)",
    )
    assert not any(list(matches(scaled, rule)) for rule in RULES.values())


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        (
            "matmul(matmul(x, y), z) -> matmul(x, matmul(y, z))",
            {"x": tensor(3, 3), "y": tensor(3), "z": tensor(3, 3)},
        ),
        ("relu(x * s) -> relu(x) * s", {"x": tensor(5), "s": -2}),
        (
            "cat(x[a:b], x[b:d]) -> cat(x[a:d])",
            {"x": tensor(6), "a": 0, "b": 2, "c": 3, "d": 5, "i": 0, "j": 0, "axis": 0},
        ),
        (
            "add(cat(parts), cat(others)) -> cat(add(part, other))",
            {
                "parts": (tensor(1), tensor(3)),
                "others": (tensor(3), tensor(1)),
                "axis": 0,
                "other": 0,
            },
        ),
    ],
)
def test_without_its_condition_a_law_is_wrong(name: str, drawn: Mapping[str, object]) -> None:
    """And that is found."""
    careless: Rule = replace(RULES[name], when=None, draw=lambda dice: drawn)
    instance = instantiate(careless, 0)
    try:
        after = apply(instance, careless, next(matches(instance, careless)))
        why = str(different(instance, after))
    except ValueError as refused:  # of another shape
        why = str(refused)
    assert "differs by" in why or "makes" in why or "has shape" in why, why


IN_NETWORKS = {
    "sru": {
        "select(stack(parts, i), i, k) -> parts[k]": 13,
        "select(sigmoid(x)) -> sigmoid(select(x))": 32,
        "x*s + y*(1 - s) -> y + s*(x - y)": 32,
    },
    "squeezenet_bypass": {
        "cat(relu(a), relu(b)) -> relu(cat(a, b))": 8,
        "conv(x + y, w, b) -> conv(x, w, b) + conv(y, w)": 18,
        "(a + b) + c -> a + (b + c)": 4,
    },
}
"""How often laws are found in networks of the zoo, as they are captured and simplified."""


@pytest.mark.parametrize("name", IN_NETWORKS)
def test_laws_hold_in_networks(name: str) -> None:
    network = ZOO[name]
    raw = captured(network.build("tiny"), *network.inputs("tiny", 1))
    whole = simplify(raw, Stepper(Trace()), Options())
    for law, count in IN_NETWORKS[name].items():
        found = list(matches(whole, RULES[law]))
        assert len(found) == count, law
        for match in (found[0], found[-1]):
            equal(whole, apply(whole, RULES[law], match), tolerance=1e-12)
