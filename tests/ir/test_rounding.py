"""What is strict: quotients, roots and products on the way to what decides by them."""

from __future__ import annotations

import pytest
import torch

from anabranch.fusion.partition import singly
from anabranch.ir.eval import eval_graph, kept_as_they_are
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_key
from anabranch.ir.rounding import marked, narrower, strict_values
from anabranch.ir.text import parse_graph, text_graph


def graph(*lines: str, returned: str = "y") -> Graph:
    declared = ["input %a: f32[4]", "input %b: f32[4]", "input %w: f32[4,4]", "input %i: i64[4]"]
    body = "\n".join(f"  {line}" for line in (*declared, *lines))
    return parse_graph(f"graph g {{\n{body}\n  return %{returned}\n}}")


DIV = "%d: f32[4] = aten.div.Tensor(%a, %b)"


@pytest.mark.parametrize(
    ("lines", "strict"),
    [
        ((DIV, "%y: f32[4] = aten.floor.default(%d)"), {"a", "b", "d"}),
        ((DIV, "%y: f32[4] = aten.relu.default(%d)"), set()),
        ((DIV, "%y: b1[4] = aten.gt.Tensor(%d, %a)"), {"a", "b", "d"}),
        ((DIV, "%y: i64[4] = aten._to_copy.default(%d, dtype=torch.int64)"), {"a", "b", "d"}),
        ((DIV, "%y: i64[] = aten.argmax.default(%d)"), {"a", "b", "d"}),
        ((DIV, "%y: f32[4] = aten.fmod.Tensor(%d, %b)"), {"a", "b", "d"}),
        ((DIV, "%y: f32[4] = aten.hardshrink.default(%d)"), {"a", "b", "d"}),
        ((DIV, "%y: f32[4] = aten.softshrink.default(%d)"), set()),
        (
            (
                DIV,
                "%s: f32[] = aten.sum.default(%d)",
                "%r: f32[1] = aten.reshape.default(%s, [1])",
                "%y: f32[1] = aten.ceil.default(%r)",
            ),
            {"a", "b", "d", "s", "r"},
        ),
        (
            (
                DIV,
                "%m: f32[4] = aten.mv.default(%w, %d)",
                "%y: f32[4] = aten.round.default(%m)",
            ),
            {"m"},
        ),
        (
            ("%v: f32[4], %j: i64[4] = aten.sort.default(%a)", "%y: f32[4] = aten.neg.default(%v)"),
            set(),
        ),
        (("%d: f32[4] = aten.div.Tensor(%i, %i)", "%y: f32[4] = aten.trunc.default(%d)"), {"d"}),
    ],
)
def test_what_decides_makes_strict_what_it_is_computed_of(
    lines: tuple[str, ...], strict: set[str]
) -> None:
    if "%j" in lines[0]:
        lines = (lines[0].replace("%j", "%v.1"), *lines[1:])
    assert strict_values(graph(*lines)) == strict


def test_marks_are_told_and_read_back_and_part_of_keys() -> None:
    plain = graph(DIV, "%y: f32[4] = aten.floor.default(%d)")
    found = marked(plain)
    assert [node.strict for node in found.nodes] == [True, False]
    assert "%d: f32[4] = aten.div.Tensor!(%a, %b)" in text_graph(found)
    assert parse_graph(text_graph(found)) == found != plain
    assert structure_key(found) != structure_key(plain)
    assert marked(found) == found and marked(graph(DIV, returned="d")) == graph(DIV, returned="d")


def test_a_task_alone_knows_what_another_one_decides() -> None:
    tasks = singly(graph(DIV, "%y: f32[4] = aten.floor.default(%d)")).tasks
    assert strict_values(tasks[0].body) == {"a", "b", "d"}


def test_the_reference_rounds_what_the_model_rounds() -> None:
    lines = (DIV, "%y: f32[4] = aten.floor.default(%d)")
    a = torch.tensor([1.0, 14.999999, 148.0, 7.0])
    b = torch.tensor([0.1, 3.0, 37.0, 2.0])
    given = [a, b, torch.ones(4, 4), torch.ones(4, dtype=torch.int64)]
    (found,) = eval_graph(graph(*lines), given, precision=torch.float64)
    assert found.tolist() == torch.floor(a / b).tolist() == [10.0, 4.0, 4.0, 3.0]
    (plain,) = eval_graph(graph(DIV, returned="d"), given, precision=torch.float64)
    assert torch.equal(plain, a.double() / b.double())


def test_the_reference_rounds_where_the_model_casts() -> None:
    narrow = graph(
        "%h: bf16[4] = aten._to_copy.default!(%a, dtype=torch.bfloat16)",
        "%y: f32[4] = aten._to_copy.default(%h, dtype=torch.float32)",
    )
    a = torch.tensor([1.01171875, 3.14159, -2.71828, 65520.0])
    given = [a, a, torch.ones(4, 4), torch.ones(4, dtype=torch.int64)]
    (found,) = eval_graph(narrow, given, precision=torch.float64)
    assert found.dtype == torch.float64 and torch.equal(found.float(), a.bfloat16().float())


def test_which_casts_lose_numbers() -> None:
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    assert narrower(half, single) and narrower(brain, half) and narrower(half, brain)
    assert narrower(torch.float8_e4m3fn, half) and narrower(single, torch.float64)
    assert not narrower(single, half) and not narrower(half, torch.float8_e5m2)
    assert not narrower(half, half) and not narrower(torch.int8, single)


def test_the_reference_has_the_largest_number_of_the_models_type() -> None:
    plain = graph("%y: f32[4] = aten.nan_to_num.default(%a)")
    a = torch.tensor([torch.inf, -torch.inf, torch.nan, 2.0])
    given = [a, a, torch.ones(4, 4), torch.ones(4, dtype=torch.int64)]
    (found,) = eval_graph(plain, given, precision=torch.float64)
    assert found.dtype == torch.float64 and torch.equal(found.float(), a.nan_to_num())


def test_a_transform_whose_angle_is_asked_for_is_the_models_own() -> None:
    """Its zeros have signs of their own in another precision, and the angle of a zero jumps."""
    lines = (
        "%p: f32[4] = aten.mul.Tensor(%a, %b)",
        "%f: c64[3] = aten._fft_r2c.default(%p, [0], 0, True)",
    )
    jumps = graph(*lines, "%y: f32[3] = aten.angle.default(%f)")
    assert strict_values(jumps) == {"f"}
    assert [node.strict for node in marked(jumps).nodes] == [False, True, False]
    assert not strict_values(graph(*lines, "%y: f32[3] = aten.abs.default(%f)"))
    assert kept_as_they_are(jumps)["f"] == "own"


def test_reflected_places_are_folded_as_eager_folds_them() -> None:
    """A place of 1e12 is somewhere else in another precision."""
    lines = (
        "input %x: f32[1,1,5,7]\n input %g: f32[1,2,2,2]\n"
        "%r: f32[1,1,2,2] = aten.grid_sampler_2d.default(%x, %g, 0, {beyond}, False)\n return %r"
    )
    for beyond, strict in ((0, set()), (1, set()), (2, {"x", "g"})):
        folded = parse_graph("graph g {\n" + lines.format(beyond=beyond) + "\n}")
        assert strict_values(folded) == strict
