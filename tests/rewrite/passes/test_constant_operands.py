from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.text import text_graph
from anabranch.options import Options
from anabranch.rewrite.apply import apply_all
from anabranch.rewrite.passes.constant_operands import beside
from anabranch.rewrite.rules import CANDIDATES
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

IMAGE = "f32[2,4,5,5]"
CONV = "aten.convolution.default(%{}, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)"
UP = "aten.convolution.default(%{}, %w, %b, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)"
FORMS = [rule for rule in CANDIDATES["channel_scales"] if "-> conv(x, w) + b" not in rule.name]


def graph(*lines: str) -> Graph:
    """Of an image, a layer's constants, one number for each channel, and these lines."""
    body = "".join(f"  %{line}\n" for line in lines)
    last = lines[-1].split(":")[0]
    text = (
        f"graph g {{\n  input %x: {IMAGE}\n  input %y: {IMAGE}\n  const %w: f32[4,4,1,1] = w\n"
        f"  const %b: f32[4] = b\n  const %p: f32[4,1,1] = p\n{body}  return %{last}\n}}"
    )
    return read(text)


def after(*lines: str) -> Graph:
    whole = graph(*(line.replace(" = ", f": {IMAGE} = ") for line in lines))
    found = equal(whole, beside(whole, Trace()))
    assert beside(found, Trace()) is found
    return found


def shown(of: Graph) -> list[str]:
    names = [line.split(" = ")[-1] for line in text_graph(of).splitlines()]
    return [name.removeprefix("aten.") for name in names if name.startswith("aten.")]


def test_constants_are_added_and_multiplied() -> None:
    made = after(
        f"c = {CONV.format('x')}",
        "s = aten.sub.Tensor(%c, %p)",
        "t = aten.sub.Tensor(%s, 0.5, alpha=2)",
        "d = aten.div.Tensor(%t, 4)",
        "n = aten.neg.default(%d)",
    )
    assert shown(made)[1:] == [
        *("neg.default(%p)", "add.Tensor(%c, %neg)", "add.Tensor(%s, -1.0)"),
        *("mul.Tensor(%t, 0.25)", "mul.Tensor(%d, -1)"),
    ]


def test_before_a_layer_too() -> None:
    made = after(
        "s = aten.sub.Tensor(%x, 0.5)", "d = aten.div.Tensor(%s, 4)", f"c = {CONV.format('d')}"
    )
    assert kinds(made) == ["add", "mul", "convolution"]


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("aten.neg.default(%c)", ["neg", "neg", "convolution"]),
        ("aten.rsub.Scalar(%c, 1)", ["neg", "neg", "convolution", "add"]),
        ("aten.sub.Tensor(%p, %c)", ["neg", "neg", "convolution", "add"]),
    ],
)
def test_a_layer_takes_the_sign(line: str, left: list[str]) -> None:
    assert kinds(after(f"c = {CONV.format('x')}", f"r = {line}")) == left


@pytest.mark.parametrize(
    "lines",
    [
        ("s = aten.sub.Tensor(%x, %p)", "d = aten.div.Tensor(%s, 4)"),  # no layer
        ("r = aten.relu.default(%x)", "n = aten.neg.default(%r)", "m = aten.mul.Tensor(%n, %n)"),
        (f"c = {CONV.format('x')}", "d = aten.div.Tensor(%c, %p)"),  # would be rounded
        (f"c = {CONV.format('x')}", "d = aten.div.Tensor(%p, %c)"),
        (f"c = {CONV.format('x')}", "s = aten.sub.Tensor(%c, %y)"),  # no constant
        (f"c = {CONV.format('x')}", "s = aten.sub.Tensor(%c, %c)"),
        (f"c = {CONV.format('x')}", "s = aten.sub.Tensor(%c, %p, alpha=2)"),
        (f"c = {CONV.format('x')}", "d = aten.div.Tensor(%c, 1e-45)"),  # 1/c is infinite
        (
            f"c = {CONV.format('x')}",
            "r = aten.rsub.Scalar(%c, 1)",
            "m = aten.mul.Tensor(%r, %c)",  # the layer is read with both signs
        ),
    ],
)
def test_what_keeps_its_spelling(lines: tuple[str, ...]) -> None:
    before = graph(*(line.replace(" = ", f": {IMAGE} = ") for line in lines))
    assert beside(before, Trace()) is before


@pytest.mark.parametrize(
    "lines",
    [
        ("s = aten.sub.Tensor(%c, %p)",),
        ("s = aten.sub.Tensor(%c, 0.5)", "d = aten.div.Tensor(%s, 3)"),
        ("n = aten.neg.default(%c)", "d = aten.div.Tensor(%n, %p)"),
        ("r = aten.rsub.Scalar(%c, 2)", "d = aten.div.Tensor(%r, %p)"),
        ("m = aten.mul.Tensor(%c, %p)",),
    ],
)
@pytest.mark.parametrize("layer", [CONV, UP])
def test_all_of_it_is_folded(lines: tuple[str, ...], layer: str) -> None:
    """By the rules of sums and factors: one layer is left."""
    every = (f"c = {layer.format('x')}", *lines)
    whole = graph(*(line.replace(" = ", f": {IMAGE} = ") for line in every))
    found = simplify(whole, Stepper(Trace()), Options())
    for _ in lines:
        found = simplify(equal(whole, apply_all(found, FORMS)), Stepper(Trace()), Options())
    assert kinds(found) == ["convolution"]


MATRIX = """
graph g {{
  input %x: f32[3,4]
  const %w: f32[4,5] = w
  const %b: f32[{bias}] = b
  const %m: f32[5] = m
  const %v: f32[5] = v
  %p: f32[3,5] = {product}
  %n: f32[3,5] = aten.batch_norm.default(%p, None, None, %m, %v, False, 0.1, 1e-05, True)
  return %n
}}"""


@pytest.mark.parametrize(
    ("bias", "product"),
    [("5", "aten.mm.default(%x, %w)"), ("1,5", "aten.addmm.default(%b, %x, %w)")],
)
def test_a_norm_joins_a_product_with_a_constant(bias: str, product: str) -> None:
    whole = read(MATRIX.format(bias=bias, product=product))
    assert kinds(equal(whole, simplify(whole, Stepper(Trace()), Options()))) == ["linear"]
