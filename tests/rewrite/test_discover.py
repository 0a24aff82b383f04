"""Discovery: what is equal is found and kept, what is not is refuted, and the file can be made
again."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from anabranch.ir.rule import Call, Wild, text_pattern
from anabranch.ir.rule_text import parse_pattern
from anabranch.rewrite.apply import instantiate
from anabranch.rewrite.discover import Discovery, discover, text_discovery
from anabranch.rewrite.discovery.equations import (
    blows_up,
    equations,
    named,
    renamed,
    survives,
    widened,
)
from anabranch.rewrite.discovery.generalise import generalised
from anabranch.rewrite.discovery.implied import Theory, implied, prune
from anabranch.rewrite.discovery.merged_calls import pairs
from anabranch.rewrite.discovery.settings import OPERATORS, SETTINGS, Setting
from anabranch.rewrite.discovery.terms import EquationSide, TermEvaluator, enumerate_terms
from anabranch.rewrite.discovery.written import written_as
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import elementwise_algebra, found, linear_merging
from anabranch.rewrite.rules.found import Equation, Shapes, load

SMALL = {"elements": 2, "extremes": 2, "matrices": 2, "pieces": 2}
FEW = {"extremes": 2}
ELEMENTS: Shapes = dict.fromkeys("xyz", ("...",))
MATRICES: Shapes = {"x": ("N", "K"), "a": ("K", "M"), "b": ("K", "M")}
IMAGES: Shapes = dict.fromkeys("xy", ("B", "C", "I", "J"))

TOGETHER = pytest.mark.xdist_group("a small discovery")
"""Of tests that look at one discovery, which takes ten seconds."""


@pytest.fixture(scope="module")
def small() -> Discovery:
    return discover(SMALL, seed=0, tables=elementwise_algebra.RULES)


def side(text: str) -> EquationSide:
    """A pattern, from the short form that names of rules are in."""
    ops = {"add": "Tensor", "mul": "Tensor", "sub": "Tensor", "maximum": "default"}
    ops |= dict.fromkeys(("relu", "matmul", "cat", "t", "avg_pool2d", "max_pool2d"), "default")
    for name, overload in ops.items():
        text = re.sub(rf"\b{name}\(", f"aten.{name}.{overload}(", text)
    pattern = parse_pattern(text)
    assert isinstance(pattern, Call | Wild)
    return pattern


def equation(name: str, shapes: Shapes) -> Equation:
    find, replace = (text_pattern(side(each)) for each in name.split(" -> "))
    return Equation(name, find, replace, {k: v for k, v in shapes.items()})


@TOGETHER
def test_what_everybody_knows_is_found(small: Discovery) -> None:
    names = {each.name: each for each in small.rules}
    for known in (
        "relu(relu(x)) -> relu(x)",
        "t(t(a)) -> a",
        "add(x, x) -> mul(x, 2)",
        "matmul(matmul(x, a), c) -> matmul(x, matmul(a, c))",
        "mul(mul(x, y), s) -> mul(mul(y, s), x)",
        "slice(cat([x, y], 1), 1, 0, C) -> x",
        "maximum(relu(x), y) -> relu(maximum(x, y))",
    ):
        assert known in names, sorted(names)
    assert names["add(x, x) -> mul(x, 2)"].written == "x + x -> x*2"


@TOGETHER
def test_laws_are_found_for_all_their_inputs(small: Discovery) -> None:
    """Graphs of two calls are relu(cat([x, x])) and cat([relu(x), relu(x)]); the law has three, and
    is generalised from them, for parts of different sizes."""
    names = {each.name: each for each in small.rules}
    law = names["relu(cat([x, y], 1)) -> cat([relu(x), relu(y)], 1)"]
    assert law.shapes == {"x": ("N", "C", "..."), "y": ("N", "D", "...")}


@TOGETHER
def test_what_is_found_is_read_again(small: Discovery) -> None:
    assert load(text_discovery(small, "x")) == small.rules


def test_the_same_of_another_seed() -> None:
    """The numbers are random, the equations are not."""
    first, other = (discover(FEW, seed=seed, tables=elementwise_algebra.RULES) for seed in (0, 17))
    assert first.rules
    assert {each.name for each in other.rules} == {each.name for each in first.rules}


def test_what_is_shipped_is_what_is_found() -> None:
    """Of the file's first setting, in graphs of an operator less, with its seed; what graphs of all
    sizes give, and the other settings, follow by the command."""
    shipped = json.loads(found.FILE.read_text())
    (name, setting), *_ = shipped["settings"].items()
    again = discover({name: setting["most"] - 1}, shipped["seed"])
    fields = ("name", "find", "replace", "shapes")
    entries = [{key: entry[key] for key in fields} for entry in shipped["rules"]]
    here = [{key: each.entry[key] for key in fields} for each in again.rules]
    assert len(here) > 20
    assert [each for each in entries if each in here] == here  # a run repeats itself


WRONG = [
    ("add(relu(x), relu(y)) -> relu(add(x, y))", ELEMENTS),
    ("maximum(mul(x, x), x) -> mul(x, x)", ELEMENTS),  # for whole numbers it holds
    ("maximum(mul(maximum(mul(x, x), y), x), y) -> maximum(mul(mul(x, x), x), y)", ELEMENTS),
    ("sub(x, y) -> sub(y, x)", ELEMENTS),
    ("relu(mul(x, s)) -> mul(relu(x), s)", ELEMENTS),  # for positive numbers
    # For whole ones.
    ("relu(mul(mul(x, add(x, mul(x, s))), s)) -> mul(mul(x, add(x, mul(x, s))), s)", ELEMENTS),
    ("matmul(x, add(a, b)) -> matmul(x, a)", MATRICES),
    ("cat([x, y], 0) -> cat([y, x], 0)", {"x": ("N", "K"), "y": ("N", "K")}),
    ("matmul(x, y) -> matmul(y, x)", {"x": ("N", "N"), "y": ("N", "N")}),
    ("relu(avg_pool2d(x, *averaged)) -> avg_pool2d(relu(x), *averaged)", IMAGES),
    ("max_pool2d(mul(x, s), *largest) -> mul(max_pool2d(x, *largest), s)", IMAGES),
    (
        "add(max_pool2d(x, *largest), max_pool2d(y, *largest)) -> max_pool2d(add(x, y), *largest)",
        IMAGES,
    ),
]


@pytest.mark.parametrize(("name", "shapes"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_equation_does_not_survive(name: str, shapes: Shapes) -> None:
    why = str(survives(equation(name, shapes)) or "")
    assert "differs by" in why


@pytest.mark.parametrize(
    "name",
    [
        "avg_pool2d(mul(x, s), *averaged) -> mul(avg_pool2d(x, *averaged), s)",
        "avg_pool2d(add(x, y), *averaged) -> add(avg_pool2d(x, *averaged), "
        "avg_pool2d(y, *averaged))",
        "max_pool2d(relu(x), *largest) -> relu(max_pool2d(x, *largest))",
        "cat([max_pool2d(x, *largest), max_pool2d(y, *largest)], 1) -> "
        "max_pool2d(cat([x, y], 1), *largest)",
    ],
)
def test_equations_of_pools_hold_for_other_windows(name: str) -> None:
    """Than the one of 3x3 that they are found with."""
    made = equation(name, IMAGES)
    assert not survives(made)
    drawn = [found.rule(made).draw(random.Random(seed)) for seed in range(20)]  # type: ignore[misc]
    kind = "largest" if "largest" in name else "averaged"
    assert len({str(each[kind]) for each in drawn}) > 10


def _given(drawn: Mapping[str, object], dice: random.Random) -> Mapping[str, object]:
    return drawn


def test_windows_that_are_cut_short_are_left_alone() -> None:
    """relu(max(nothing)) is 0 and max(relu(nothing)) is not; no equation was tried with such."""
    name = "max_pool2d(relu(x), *largest) -> relu(max_pool2d(x, *largest))"
    rule = found.rule(equation(name, IMAGES))
    whole = ((3, 3), (2, 2), (1, 1), (1, 1), False)
    for pool, wanted in ((whole, 1), ((*whole[:4], True), 0), ((*whole[:3], (2, 2), False), 0)):
        image = found.tensor(("B", "C", "I", "J"), dict.fromkeys("BCIJ", 8))
        drawn: dict[str, object] = {"x": image, "largest": pool}
        graph = instantiate(replace(rule, draw=partial(_given, drawn)), 0)
        assert len([*matches(graph, rule)]) == wanted


def test_a_planted_equation_is_refuted_on_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is the identity on the shapes that are enumerated, and not on others."""
    cut = OPERATORS["head0N"]
    planted = {
        **OPERATORS,
        "planted": type(cut)(1, lambda x: Call("aten.slice.Tensor", (x, 0, 0, 5))),
    }
    for user in ("terms", "merged_calls"):
        monkeypatch.setattr(f"anabranch.rewrite.discovery.{user}.OPERATORS", planted)
    setting = Setting({"x": ("N", "K")}, ("planted", "relu"))
    monkeypatch.setitem(SETTINGS, "planted", setting)
    result = discover({"planted": 2})
    assert [each.name for each in result.rules] == ["relu(relu(x)) -> relu(x)"]
    assert any("slice(x, 0, 0, 5) -> x" in refuted for refuted in result.refuted)


def test_larger_terms_are_built_of_one_of_each_class() -> None:
    """relu(relu(x)) is relu(x): of size three there is nothing on top of it."""
    result = enumerate_terms(Setting({"x": ("...",)}, ("relu",)), 3, seed=0)
    assert (result.enumerated, result.classes) == (2, 2)
    ((one, two),) = result.equal
    assert (text_pattern(one), text_pattern(two)) == (
        "aten.relu.default(aten.relu.default(x))",
        "aten.relu.default(x)",
    )


def test_what_follows_from_others_is_not_kept() -> None:
    run, theory = TermEvaluator(SETTINGS["elements"], 0), Theory()
    asked = (side("add(relu(relu(add(x, y))), z)"), side("add(z, relu(add(y, x)))"))
    assert not implied(*asked, theory, run)
    theory.add(side("relu(relu(x))"), side("relu(x)"), ELEMENTS)
    assert implied(*asked, theory, run)
    assert not implied(side("relu(x)"), side("relu(y)"), theory, run)


def test_equal_operands_make_equal_calls() -> None:
    """relu(x * x) is x * x, so x * x stands where a law asks for a relu: congruence, and no step
    that is spelled."""
    run, theory = TermEvaluator(SETTINGS["elements"], 0), Theory()
    theory.add(side("relu(mul(x, x))"), side("mul(x, x)"), ELEMENTS)
    theory.add(side("relu(add(relu(x), relu(y)))"), side("add(relu(x), relu(y))"), ELEMENTS)
    squares = side("add(mul(x, x), mul(y, y))")
    assert implied(Call("aten.relu.default", (squares,)), squares, theory, run)
    assert not implied(side("relu(add(mul(x, x), y))"), side("add(mul(x, x), y)"), theory, run)


def test_special_cases_go_when_their_law_is_found() -> None:
    run, theory = TermEvaluator(SETTINGS["elements"], 0), Theory()
    theory.add(side("relu(relu(x))"), side("relu(x)"), ELEMENTS)
    theory.add(side("add(add(x, x), y)"), side("add(add(x, y), x)"), ELEMENTS)
    theory.add(side("add(add(x, y), z)"), side("add(add(y, z), x)"), ELEMENTS)
    prune(theory, 0, run)
    assert [one for one, _, _ in theory.equations] == [
        side("relu(relu(x))"),
        side("add(add(x, y), z)"),
    ]


def test_an_equation_is_not_used_where_its_shapes_are_not() -> None:
    run, theory = TermEvaluator(SETTINGS["matrices"], 0), Theory()
    theory.add(side("relu(relu(x))"), side("relu(x)"), {"x": ("N", "N")})
    assert not implied(side("relu(relu(a))"), side("relu(a)"), theory, run)
    theory.add(side("relu(relu(x))"), side("relu(x)"), {"x": ("N", "K")})
    assert implied(side("relu(relu(a))"), side("relu(a)"), theory, run)


def test_more_inputs() -> None:
    run = TermEvaluator(SETTINGS["matrices"], 0)
    one, two = side("add(matmul(x, a), matmul(x, a))"), side("matmul(x, add(a, a))")
    law = generalised(one, two, run)
    assert [text_pattern(each).count("a1") for each in law] == [1, 1]
    assert generalised(side("mul(relu(x), x)"), side("mul(relu(x), relu(x))"), run) == (
        side("mul(relu(x), x)"),
        side("mul(relu(x), relu(x))"),
    )


def test_the_widest_shapes() -> None:
    shapes: Shapes = {name: ("N", "C", "...") for name in "xy"}
    one, two = side("cat([relu(x), relu(y)], 1)"), side("relu(cat([x, y], 1))")
    assert widened(one, two, shapes) == {"x": ("N", "C", "..."), "y": ("N", "D", "...")}
    assert widened(side("add(x, y)"), side("add(y, x)"), shapes) == shapes


def test_names_are_given_in_order() -> None:
    assert renamed(side("sub(z, y)"), side("relu(y)"), ELEMENTS) == (
        side("sub(x, y)"),
        side("relu(y)"),
    )


def test_blow_ups() -> None:
    x = side("relu(x)")
    assert isinstance(x, Call)
    assert blows_up(x, side("relu(relu(x))"))
    assert not blows_up(x, side("maximum(x, mul(x, 0))"))
    product = side("matmul(x, add(a, b))")
    assert isinstance(product, Call)
    assert not blows_up(product, side("add(matmul(x, a), matmul(x, b))"))
    large = side("mul(relu(mul(relu(x), y)), x)")
    assert isinstance(large, Call)
    assert blows_up(large, side("mul(relu(mul(x, y)), relu(x))"))
    assert not blows_up(large, side("mul(relu(mul(x, y)), x)"))


def test_a_direction_needs_all_that_it_puts() -> None:
    made = list(equations(side("sub(add(x, y), y)"), side("x"), ELEMENTS))
    assert [each.name for each in made] == ["sub(add(x, y), y) -> x"]


def test_what_is_written_is_recognised() -> None:
    twice = equation("add(x, x) -> mul(x, 2)", ELEMENTS)
    assert written_as(twice, elementwise_algebra.RULES) == "x + x -> x*2"
    assert (
        written_as(equation("relu(relu(x)) -> relu(x)", ELEMENTS), elementwise_algebra.RULES) == ""
    )


def test_two_calls_become_one() -> None:
    setting = SETTINGS["layers"]
    merged = {
        each.name.split(" -> ")[0]: each for each in pairs(setting, TermEvaluator(setting, 0))
    }
    assert set(merged) == {
        "linear(x, w, b), linear(x, v, c)",
        "linear(x, w, b), linear(y, w, b)",
    }
    columns = merged["linear(x, w, b), linear(x, v, c)"]
    assert columns.shapes["w"] == ("M", "K") and columns.shapes["v"] == ("D", "K")
    assert not survives(columns)
    known = next(rule for rule in linear_merging.RULES if len(rule.roots) == 2)
    assert written_as(columns, [*elementwise_algebra.RULES, known]) == known.name


def test_a_narrower_rule_is_not_the_same() -> None:
    """One that asks for a square matrix replaces some instances only."""
    turned = equation("relu(t(x)) -> t(relu(x))", {"x": ("N", "K")})
    whole, square = found.rule(turned), found.rule(equation(turned.name, {"x": ("N", "N")}))
    assert written_as(turned, [square]) == ""
    assert written_as(turned, [square, whole]) == whole.name


def test_one_name_for_two_ranks() -> None:
    flat, deep = ({"x": ("N", "K")}, {"x": ("N", "K", "M")})
    both = [equation("relu(relu(x)) -> relu(x)", shapes) for shapes in (flat, deep, flat)]
    assert [each.name for each in named(both)] == [
        "relu(relu(x)) -> relu(x)",
        "relu(relu(x)) -> relu(x) for x[N K M]",
        "relu(relu(x)) -> relu(x) for x[N K]",
    ]
