"""What candidate rules must leave alone, and the sentence that says why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from anabranch.ir.graph import Graph, Node, Ref, types
from anabranch.ir.ops import make_node
from anabranch.ir.text import parse_graph
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import CANDIDATES

RULES = {rule.name: rule for table in CANDIDATES.values() for rule in table}

STACKED = "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(w, v), cat(b, c))"
PADDED = "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(pad(w), pad(v)), cat(b, c))"
SUM = "sum(stack([a, b, ...], i), i) -> a + b + ..."
BATCHES = "conv(x, w, b), conv(y, w, b) -> slices of conv(cat(x, y), w, b)"
OF_CAT = "conv(cat(x, y), w, b) -> conv(x, w[:, :x], b) + conv(y, w[:, x:])"
OF_SUM = "conv(x, w, b) + conv(y, v, c) -> conv(cat(x, y), cat(w, v), b + c)"
PAIRS = "conv(x, w, b) of g groups -> conv(x, w in pairs, b) of g/2 groups"
DENSE = "conv(x, w, b) of g groups -> conv(x, w on the diagonal, b) of one group"
OWN_PAD = "conv(pad(x), w, b) -> conv(x, pad(w), b) with padding of its own"
ONE = "conv1x1(conv(x, w, b), v, c) -> conv(x, v @ w, v @ b + c)"
FACTOR = "conv(x, w, b) * s -> conv(x, w * s, b * s)"
TERM = "conv(x + t, w, b) -> conv(x, w, b + sum(w * t))"
DEPTHWISE = "avg_pool(x) -> depthwise(x, 1/n)"
PASSES = "avg_pool(conv1x1(x, w, b)) -> conv1x1(avg_pool(x), w, b)"
LARGEST = "max_pool(pad(x, -inf)) -> max_pool(x) with padding of its own"
MEAN = "avg_pool(pad(x)) -> avg_pool(x) with padding of its own"
GROUPS = "group_norm(x, g, d) -> (x - m) r g + d, m and r of parts of few long groups"
INSTANCES = "instance_norm(x, g, d) -> (x - m) r g + d, m and r of parts of few large channels"
RELU = "relu(max_pool(x)) -> max_pool(relu(x))"
LINEARS = "linear(x, w, b), linear(x, v, c) -> slices of linear(x, cat(w, v), cat(b, c))"
LEFT = "matmul(x, w), matmul(y, w) -> slices of matmul(cat(x, y), w)"


def graph(values: str, *calls: str) -> Graph:
    """A graph of these inputs and constants, as in "x: 1,4,8,8 | w: 4,4,1,1", and of these calls,
    whose types are inferred; all of them are returned."""
    inputs, _, constants = values.partition("|")
    declared = [f"input %{name}: f32[{shape}]" for name, shape in _pairs(inputs)]
    declared += [f"const %{name}: f32[{shape}] = {name}" for name, shape in _pairs(constants)]
    nodes = [f"%n{i}: f32[] = aten.{call}" for i, call in enumerate(calls)]
    rough = parse_graph("graph g {\n" + "\n".join([*declared, *nodes]) + "\n  return %n0\n}")
    table = types(replace(rough, nodes=()))
    made: list[Node] = []
    for node in rough.nodes:
        made.append(make_node(node.name, node.op, node.args, table, node.kwargs))
        table[node.name] = made[-1].type
    outputs = tuple(Ref(node.name) for node in made)
    return Graph("g", rough.inputs, rough.constants, tuple(made), outputs)


def _pairs(text: str) -> list[tuple[str, str]]:
    found = (part.split(":") for part in text.split(";") if part.strip())
    return [(name.strip(), shape.strip()) for name, shape in found]


def conv(
    x: str,
    w: str,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    groups: int = 1,
    bias: str = "None",
) -> str:
    sides = ", ".join(f"[{n}, {n}]" for n in (stride, padding, dilation))
    return f"convolution.default(%{x}, %{w}, {bias}, {sides}, {transposed}, [0, 0], {groups})"


X = "x: 2,4,8,8 | w: 4,4,1,1; v: 4,4,3,3; u: 4,1,3,3; e: 4,4,2,2; b: 4"

REFUSED = [
    # Windows of two convolutions.
    (
        STACKED,
        graph(X, conv("x", "w", transposed=True), conv("x", "w", transposed=True)),
        "transposed",
    ),
    (STACKED, graph(X, conv("x", "u", groups=4), conv("x", "u", groups=4)), "has 4 groups"),
    (STACKED, graph("x: 1,4,8,8; w: 4,4,1,1 |", conv("x", "w"), conv("x", "w")), "%w is no const"),
    (PADDED, graph(X, conv("x", "w", stride=2), conv("x", "v", padding=1)), "a window of stride"),
    (
        PADDED,
        graph(X, conv("x", "v"), conv("x", "v", dilation=2)),
        "dilation .1, 1. is no part",
    ),
    (PADDED, graph(X, conv("x", "w"), conv("x", "v")), "the results have another size"),
    (PADDED, graph(X, conv("x", "w"), conv("x", "e", padding=1)), "the results have another size"),
    (
        PADDED,
        graph(X, conv("x", "w", dilation=2), conv("x", "v", padding=1, dilation=2)),
        "less a multiple of the dilation",
    ),
    (PADDED, graph(X, conv("x", "u", groups=4), conv("x", "v")), "it has 4 groups"),
    (
        SUM,
        graph("x: 2,3; y: 2,3 |", "stack.default([%x, %y])", "sum.dim_IntList(%n0, [1])"),
        "over other axes",
    ),
    (
        BATCHES,
        graph("x: 1,4,8,8; y: 1,4,9,9 | w: 4,4,3,3", conv("x", "w"), conv("y", "w")),
        re.escape("y is (1, 4, 9, 9), and room is (8, 8) elsewhere"),
    ),
    # Channels and groups.
    (
        OF_CAT,
        graph("x: 1,2,8,8 | w: 4,1,3,3", "cat.default([%x, %x], 1)", conv("n0", "w", groups=4)),
        "a group does not read all channels",
    ),
    (
        OF_CAT,
        graph("x: 1,4,4,8 | w: 4,4,3,3", "cat.default([%x, %x], 2)", conv("n0", "w")),
        "another axis than that of C",
    ),
    (
        OF_SUM,
        graph(
            "x: 1,4,8,8; y: 1,4,4,4 | w: 4,4,1,1",
            *(conv("x", "w", stride=2), conv("y", "w"), "add.Tensor(%n0, %n1)"),
        ),
        re.escape("room is (8, 8) elsewhere"),
    ),
    (
        OF_SUM,
        graph(X, conv("x", "w"), conv("x", "v", padding=1), "add.Tensor(%n0, %n1)"),
        "they read one input",
    ),
    (PAIRS, graph(X, conv("x", "v")), "it has one group"),
    (PAIRS, graph("x: 1,3,8,8 | w: 3,1,3,3", conv("x", "w", groups=3)), "its 3 groups do not pair"),
    (
        DENSE,
        graph("x: 1,70,8,8 | w: 70,1,3,3", conv("x", "w", groups=70)),
        "its weight would be 70 times as large",
    ),
    # What stands before and behind.
    (
        OWN_PAD,
        graph(X, "constant_pad_nd.default(%x, [-1, 0], 0)", conv("n0", "v", padding=1)),
        "what is cut away before would be seen",
    ),
    (
        OWN_PAD,
        graph(
            "x: 1,2,8,8 | w: 4,4,3,3",
            *("constant_pad_nd.default(%x, [1, 1, 1, 1, 1, 1], 0)", conv("n0", "w")),
        ),
        "it pads the channels",
    ),
    (OWN_PAD, graph(X, "constant_pad_nd.default(%x, [1, 1], 2)", conv("n0", "v")), None),
    (ONE, graph(X, conv("x", "v"), conv("n0", "w", stride=2)), "its stride is .2, 2."),
    (ONE, graph(X, conv("x", "v"), conv("n0", "w", padding=1)), "its padding is .1, 1."),
    (
        TERM,
        graph(X, "add.Tensor(%x, 1)", conv("n0", "w", transposed=True)),
        "it is transposed",
    ),
    (FACTOR, graph(X, conv("x", "w"), "mul.Tensor(%n0, %x)"), "is not a number for each channel"),
    (
        FACTOR,
        graph("x: 2,4,8,8; s: 4,1,1 | w: 4,4,1,1", conv("x", "w"), "mul.Tensor(%n0, %s)"),
        "%s is no constant",
    ),
    (TERM, graph(X, "add.Tensor(%x, 1)", conv("n0", "v", padding=1)), "zeros around its input"),
    # Pooling: average, then largest.
    *(
        (DEPTHWISE, graph(X, f"avg_pool2d.default(%x, {args})"), why)
        for args, why in (
            ("[3, 3], [1, 1], [1, 1], False, False", "count_include_pad is False"),
            ("[3, 3], [2, 2], [0, 0], True", "cut short: ceil_mode"),
        )
    ),
    (
        PASSES,
        graph(X, conv("x", "w", bias="%b"), "avg_pool2d.default(%n0, [3, 3], [1, 1], [1, 1])"),
        "the bias would be less at the rim",
    ),
    (PASSES, graph(X, conv("x", "v"), "avg_pool2d.default(%n0, [2, 2])"), "is not 1x1"),
    (
        INSTANCES,
        graph(
            "x: 1,0,72,64",
            "instance_norm.default(%x, None, None, None, None, True, 0.1, 1e-05, True)",
        ),
        "its rows are many, or short, or none",
    ),
    (
        GROUPS,
        graph("x: 0,4,72,64", "group_norm.default(%x, 2)"),
        "its rows are many, or short, or none",
    ),
    (
        LARGEST,
        graph(X, "constant_pad_nd.default(%x, [1, 1], 0)", "max_pool2d.default(%n0, [2, 2])"),
        "zeros of the padding may be the largest",
    ),
    (
        LARGEST,
        graph(
            X,
            "constant_pad_nd.default(%x, [2, 2], float('-inf'))",
            "max_pool2d.default(%n0, [2, 2])",
        ),
        re.escape("a pooling of (2, 2) takes no padding of (0, 2)"),
    ),
    (
        MEAN,
        graph(
            X,
            "constant_pad_nd.default(%x, [1, 1, 1, 1], 0)",
            "avg_pool2d.default(%n0, [5, 5], [1, 1], [1, 1], False, False)",
        ),
        "it counts the zeros before, and not its own",
    ),
    (
        RELU,
        graph(
            "x: 1,1,1,1 |",
            *("max_pool2d.default(%x, [2, 2], [1, 1], [1, 1], [2, 2])", "relu.default(%n0)"),
        ),
        "a window sees nothing but padding",
    ),
    # Products.
    (
        LINEARS,
        graph(
            "x: 2,4; v: 3,4 | w: 4,4",
            *("linear.default(%x, %w, None)", "linear.default(%x, %v, None)"),
        ),
        "%v is no constant",
    ),
    (
        LEFT,
        graph(
            "x: 2,3,4; y: 5,6,4 | w: 4,4",
            *("matmul.default(%x, %w)", "matmul.default(%y, %w)"),
        ),
        "the left sides are",
    ),
]


@pytest.mark.parametrize(("name", "graph", "why"), REFUSED, ids=range(len(REFUSED)))
def test_it_is_left_alone(name: str, graph: Graph, why: str | None) -> None:
    """With a sentence, or (None) because the pattern is not there."""
    refused: list[str] = []
    assert not list(matches(graph, RULES[name], lambda _, sentence: refused.append(sentence)))
    if why is None:
        assert refused == []
    else:
        assert any(re.search(why, sentence) for sentence in refused), refused


def test_a_norm_whose_weights_are_wider_than_its_rows_is_left_alone() -> None:
    """As networks in bfloat16 have it on a CPU, with norms in fp32: the product would be of two
    types."""
    mixed = parse_graph("""
    graph g {
      input %x: bf16[4,64]
      const %g: f32[64] = g
      const %d: f32[64] = d
      const %w: bf16[5,64] = w
      %n: bf16[4,64] = aten.layer_norm.default(%x, [64], %g, %d)
      %y: bf16[4,5] = aten.linear.default(%n, %w)
      return %y
    }""")
    for rule in CANDIDATES["linear_after_norm"]:
        assert not list(matches(mixed, rule)), rule.name


def test_a_norm_of_rows_in_fp32_stays_before_its_linear() -> None:
    """Where all numbers of a row are 1 its product with centred weights is what rounding leaves,
    and the scale makes that 300 times as large."""
    plain = """
    graph g {{
      input %x: {0}[4,64]
      const %w: {0}[5,64] = w
      %n: {0}[4,64] = aten.layer_norm.default(%x, [64])
      %y: {0}[4,5] = aten.linear.default(%n, %w)
      return %y
    }}"""
    found = {
        kind: sum(
            len(list(matches(parse_graph(plain.format(kind)), rule)))
            for rule in CANDIDATES["linear_after_norm"]
        )
        for kind in ("f16", "bf16", "f32")
    }
    assert found == {"f16": 1, "bf16": 1, "f32": 0}


def test_a_norm_that_is_cut_to_whole_numbers_is_left_alone() -> None:
    cut = """
    graph g {{
      input %x: f16[4,64]
      const %g: f16[64] = g
      const %w: f16[5,64] = w
      %f: f32[4,64] = aten._to_copy.default(%x, dtype=torch.float32)
      %q: f32[4,64] = aten.pow.Tensor_Scalar(%f, 2)
      %m: f32[4,1] = aten.mean.dim(%q, [-1], True)
      %e: f32[4,1] = aten.add.Tensor(%m, 0.1)
      %r: f32[4,1] = aten.rsqrt.default(%e)
      %n: f32[4,64] = aten.mul.Tensor(%f, %r)
      %c: {0}[4,64] = aten._to_copy.default(%n, dtype={1})
      %s: f16[4,64] = aten.mul.Tensor(%g, %c)
      %y: f16[4,5] = aten.linear.default(%s, %w)
      return %y
    }}"""
    rounded, whole = (
        parse_graph(cut.format(*kind)) for kind in (("f16", "torch.float16"), ("i8", "torch.int8"))
    )
    rules = CANDIDATES["linear_after_norm"]
    assert [len(list(matches(rounded, rule))) for rule in rules] == [0, 0, 0, 1]
    assert not any(list(matches(whole, rule)) for rule in rules)
