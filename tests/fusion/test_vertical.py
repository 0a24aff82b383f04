"""Which nodes end up in one launch, and the reasons where they do not."""

from __future__ import annotations

import pytest

from anabranch.fusion.vertical import grow
from anabranch.ir.text import parse_graph
from anabranch.trace import Trace

CONV = "aten.convolution.default({x}, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)"
IMAGE = "f16[1,4,5,5]"


def graph_text(lines: str, dtype: str = "f16") -> str:
    """Lines such as `a = conv x`, `s = add a b`, `r = relu s`, one value each, of one type."""
    body = []
    for line in lines.strip().splitlines():
        name, _, (op, *args) = (part := line.split())[0], part[1], part[2:]
        refs = [f"%{arg}" if arg[0].isalpha() else arg for arg in args]
        call = {
            "conv": CONV.format(x=refs[0]),
            "add": f"aten.add.Tensor({', '.join(refs)})",
            "mul": f"aten.mul.Tensor({', '.join(refs)})",
        }.get(op, f"aten.{op}.default({', '.join(refs)})")
        body.append(f"  %{name}: {IMAGE} = {call}")
    returned = body[-1].split(":")[0].strip()
    head = f"graph g {{\n  input %x: {IMAGE}\n  const %w: f16[4,4,1,1] = w\n"
    return (head + "\n".join(body) + f"\n  return {returned}\n}}").replace("f16", dtype)


def grown(text: str, pointwise: bool = False) -> tuple[list[str], list[str]]:
    """Groups as "a+b", and refusals as "what: why"."""
    trace = Trace()
    groups = grow(parse_graph(text), trace, pointwise)
    refused = [f"{e.what}: {e.why}" for e in trace.events if e.kind == "refused"]
    return ["+".join(node.name for node in group) for group in groups], refused


def test_convolution_and_relu() -> None:
    assert grown(graph_text("c = conv x\nr = relu c\ns = sigmoid r")) == (["c+r", "s"], [])


def test_residual_of_two_convolutions_goes_to_the_later() -> None:
    r"""
    X -- a --\
     \        add -- relu        the group waits for a anyway
      \-- b --/
    """
    groups, refused = grown(graph_text("a = conv x\nb = conv x\ns = add a b\nr = relu s"))
    assert groups == ["a", "b+s+r"]
    assert refused == [
        "%a + %s + %r: %s already runs with %b",
        "%a + %s: %s already runs with %b",
    ]


def test_residual_from_further_up_without_relu() -> None:
    """MobileNet's: the sum waits for nothing that the convolution does not wait for."""
    assert grown(graph_text("c = conv x\ns = add x c\nt = tanh s"))[0] == ["c+s", "t"]


def test_a_sum_of_branches_without_relu_stays_apart() -> None:
    groups, refused = grown(graph_text("a = conv x\nb = conv x\ns = add a b\nt = tanh s"))
    assert groups == ["a", "b", "s", "t"]
    assert refused[0] == "%b + %s: %b would wait for %a, which can run beside it"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("c = conv x\nr = relu c\ns = mul c r", "%c has 2 consumers"),
        ("c = conv x\ns = add c c\nr = relu s", "%s reads %c twice"),
        ("c = conv x\ns = add c 1\nr = relu s", "%s adds a number, not a residual"),
        ("c = conv x\ns = add c x alpha=2\nr = relu s", "%s scales what it adds"),
    ],
)
def test_refusals(lines: str, why: str) -> None:
    text = graph_text(lines).replace("%alpha=2", "alpha=2")
    groups, refused = grown(text)
    assert len(groups) == len(lines.splitlines())
    assert refused[0].endswith(f": {why}")


def test_a_returned_value_is_not_swallowed() -> None:
    text = graph_text("c = conv x\nr = relu c").replace("return %r", "return %r, %c")
    assert grown(text) == (["c", "r"], ["%c + %r: %c is returned"])


def test_layout_and_dtype_of_the_residual() -> None:
    text = graph_text("p = neg y\nc = conv x\ns = add c p\nr = relu s").replace(
        "input %x: f16[1,4,5,5]", "input %x: f16[1,4,5,5]\n  input %y: f16[1,4,1,1]"
    )
    text = text.replace("%p: f16[1,4,5,5]", "%p: f16[1,4,1,1]")
    groups, refused = grown(text)
    assert groups == ["p", "c", "s", "r"]
    assert "the residual %p is f16[1,4,1,1], the result f16[1,4,5,5]" in refused[0]
    refused = grown(graph_text("c = conv x\nr = relu c", "f64"))[1]
    assert refused == ["%c + %r: the library fuses nothing in torch.float64"]


LINEAR = """
graph g {
  input %x: f16[2,4]
  const %w: f16[4,4] = w
  const %b: f16[4] = b
  %c: f16[2,4] = aten.linear.default(%x, %w, BIAS)
  %r: f16[2,4] = ACT
  return %r
}"""


@pytest.mark.parametrize(
    ("bias", "act", "why"),
    [
        ("%b", "aten.relu.default(%c)", ""),
        ("%b", "aten.gelu.default(%c, approximate='tanh')", ""),
        ("%b", "aten.gelu.default(%c)", "the library's gelu is the tanh approximation"),
        ("None", "aten.relu.default(%c)", "adds a bias, and there is none"),
    ],
)
def test_linear(bias: str, act: str, why: str) -> None:
    text = LINEAR.replace("BIAS", bias).replace("ACT", act)
    groups, refused = grown(text)
    assert groups == (["c", "r"] if why else ["c+r"])
    assert why in "".join(refused)
    assert grown(text, pointwise=True)[0] == ["c+r"]


def test_the_library_fuses_matrices_only() -> None:
    text = LINEAR.replace("BIAS", "%b").replace("ACT", "aten.relu.default(%c)")
    text = text.replace("f16[2,4]", "f16[3,2,4]")
    groups, refused = grown(text)
    assert groups == ["c", "r"] and "is a stack of them" in refused[0]
    assert grown(text, pointwise=True)[0] == ["c+r"]


def test_transposed_convolutions_take_nothing() -> None:
    text = graph_text("c = conv x\nr = relu c").replace("False", "True")
    assert "transposed" in grown(text)[1][0]


def test_pointwise_chains_are_grown_on_request() -> None:
    lines = "n = neg x\ns = sigmoid n\nm = mul n s\ne = exp m\nk = conv e\nt = tanh k\nu = abs t"
    assert grown(graph_text(lines))[0] == ["n", "s", "m", "e", "k", "t", "u"]
    assert grown(graph_text(lines), pointwise=True)[0] == ["n+s+m+e", "k+t+u"]


def test_one_contraction_a_group() -> None:
    groups, refused = grown(graph_text("a = conv x\nb = conv x\ns = mul a b"), pointwise=True)
    assert groups == ["a", "b+s"]
    assert refused == ["%a + %s: %s already runs with %b"]


def depthwise(lines: str) -> str:
    """As `graph_text`, with every convolution a depthwise one of 3x3."""
    text = graph_text(lines).replace("False, [0, 0], 1)", "False, [0, 0], 4)")
    text = text.replace("f16[4,4,1,1]", "f16[4,1,3,3]")
    return text.replace("[1, 1], [0, 0], [1", "[1, 1], [1, 1], [1")


def test_neighbours_of_a_depthwise_convolution() -> None:
    lines = "a = relu x\nd = conv a\ns = add d x\nr = relu s\nt = tanh r"
    assert grown(depthwise(lines))[0] == ["a", "d+s+r", "t"]
    assert grown(depthwise(lines), pointwise=True)[0] == ["a+d+s+r+t"]


def test_what_is_dear_is_not_computed_for_each_window() -> None:
    groups, refused = grown(depthwise("e = exp x\nd = conv e\nr = relu d"), pointwise=True)
    assert groups == ["e", "d+r"]
    assert refused == ["%e + %d: %e would be computed again for each window it lies in"]


def test_one_reduction_a_group() -> None:
    groups, refused = grown(depthwise("d = conv x\nr = relu d\ne = conv r"), pointwise=True)
    assert groups == ["d+r", "e"]
    assert refused == ["%r + %e: %r already runs with %d"]


ROWS = """
graph g {
  input %x: f16[8,64]
  const %w: f16[64] = w
  %a: f16[8,64] = aten.add.Tensor(%x, %w)
  %n: f16[8,64] = aten.layer_norm.default(%a, [64], %w)
  %g: f16[8,64] = aten.gelu.default(%n)
  %m: f16[8] = aten.sum.dim_IntList(%g, [1])
  return %m
}"""


def test_neighbours_of_a_reduction() -> None:
    assert grown(ROWS)[0] == ["a", "n", "g", "m"]
    groups, refused = grown(ROWS, pointwise=True)
    assert groups == ["a+n", "g+m"]
    assert refused == ["%n + %g: %g already runs with %m"]


def test_what_no_template_writes_stays_apart() -> None:
    text = ROWS.replace("aten.sum.dim_IntList(%g, [1])", "aten.prod.dim_int(%g, 1)")
    groups, refused = grown(text, pointwise=True)
    assert groups == ["a+n+g", "m"]
    assert refused == ["%g + %m: aten.prod.dim_int has no lowering"]


def test_a_window_is_made_of_few_values() -> None:
    lines = "e = add y z\nf = add u v\nb = add e f\nc = add b x\nd = conv c\nr = relu d"
    inputs = "".join(f"input %{name}: f16[1,4,5,5]\n  " for name in "yzuvx")
    text = depthwise(lines).replace("input %x: f16[1,4,5,5]\n  ", inputs)
    groups, refused = grown(text, pointwise=True)
    assert groups == ["e", "f+b+c+d+r"]
    assert refused == ["%e + %b: %d would read 5 values for each point of a window"]


@pytest.mark.parametrize("one", ["1,4,1,1", "1,1,1,1"])
def test_what_is_the_same_for_a_whole_window_is_free(one: str) -> None:
    """The norm of all channels of an image, as its parts are: statistics, weights, biases."""
    lines = "e = mul x y\nf = add e z\nb = mul f u\nc = add b v\nd = conv c\nr = relu d"
    inputs = "".join(f"input %{name}: f16[{one}]\n  " for name in "yzuv")
    inputs = "input %x: f16[1,4,5,5]\n  " + inputs
    text = depthwise(lines).replace("input %x: f16[1,4,5,5]\n  ", inputs)
    groups, _ = grown(text, pointwise=True)
    assert groups == ["e+f+b+c+d+r"]


def test_padding_before_a_pool() -> None:
    text = """
    graph g {
      input %x: f16[1,8,6,6]
      %r: f16[1,8,6,6] = aten.relu.default(%x)
      %p: f16[1,8,7,7] = aten.constant_pad_nd.default(%r, [0, 1, 0, 1], 0.0)
      %m: f16[1,8,3,3] = aten.max_pool2d.default(%p, [3, 3], [2, 2])
      return %m
    }"""
    assert grown(text)[0] == ["r", "p", "m"]
    assert grown(text, pointwise=True)[0] == ["r+p+m"]


def test_embeddings_are_gathered_where_they_are_added() -> None:
    text = """
    graph g {
      input %i: i64[4]
      input %j: i64[4]
      const %w: f16[9,8] = w
      %a: f16[4,8] = aten.embedding.default(%w, %i)
      %b: f16[4,8] = aten.embedding.default(%w, %j)
      %s: f16[4,8] = aten.add.Tensor(%a, %b)
      %n: f16[4,8] = aten._softmax.default(%s, -1, False)
      return %n
    }"""
    assert grown(text, pointwise=True)[0] == ["a+b+s+n"]
