"""Reductions over whole axes, held in one tile or walked in blocks, in any layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check, run

from anabranch.ir.graph import Graph, Ref
from anabranch.ir.text import parse_graph
from anabranch.ir.tolerances import relative_error
from anabranch.kernels.triton.codegen import program, variants, why_none

X = torch.randn(3, 5, 37)
IMAGE = torch.randn(2, 12, 5, 7)
CALLS: dict[str, tuple[object, ...]] = {
    "aten.sum.dim_IntList": (X, [0, 2]),
    "aten.sum.default": (torch.arange(40).reshape(5, 8),),
    "aten.mean.dim": (IMAGE, [-1, -2], True),
    "aten.amax.default": (X, [1]),
    "aten.amin.default": (torch.randint(-9, 9, (4, 33)), [1], True),
    "aten.softmax.int": (X, -1),
    "aten._softmax.default": (X, 1, False),
    "aten._log_softmax.default": (X, 2, False),
    "aten.var.correction": (X, [2]),
    "aten.layer_norm.default": (X, [5, 37], torch.randn(5, 37), torch.randn(5, 37)),
    "aten.rms_norm.default": (X, [37], torch.randn(37)),
    "aten.adaptive_avg_pool2d.default": (IMAGE, [1, 1]),
    "aten.adaptive_max_pool2d.default": (IMAGE, [1, 1]),
    "aten.linalg_vector_norm.default": (X, 2, [0, 1]),
    "aten.logsumexp.default": (X, [2], True),
    "aten.cumsum.default": (X, -2),
    "aten.max.default": (X,),
    "aten.argmin.default": (X, 1),
    "aten.argmax.default": (X, None, True),
    "aten.any.dim": (X > 1.5, 1),
    "aten.all.default": (X > -9,),
    "aten.instance_norm.default": (IMAGE, None, None, None, None, True, 0.1, 1e-5, False),
    "aten.group_norm.default": (IMAGE, 3, torch.randn(12), torch.randn(12)),
    "aten.linear.default": (torch.randn(2, 70), torch.randn(9, 70), torch.randn(9)),
    "aten.addmm.default": (torch.randn(9), torch.randn(1, 70), torch.randn(70, 9)),
}


@pytest.mark.parametrize("op", CALLS)
def test_calls(op: str) -> None:
    graph, tensors = body(op, CALLS[op])
    found = [variant for variant in variants(graph, gpu(132)) if variant.template == "rows"]
    check(graph, [*found[:2], "rows:2x16.w4"], tensors)


def both(op: str, x: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """A call with two results, both of them wanted."""
    graph, tensors = body(op, (x, 1) if op != "aten.aminmax.default" else (x, {"dim": 1}))
    results = graph.nodes[0].results
    return replace(graph, outputs=tuple(map(Ref, results))), tensors


@pytest.mark.parametrize("op", ["aten.max.dim", "aten.min.dim", "aten.aminmax.default"])
def test_argreduce_with_its_places(op: str) -> None:
    """Of several equal ones the first; nan is larger, and smaller, than all others."""
    x = torch.randint(-3, 3, (6, 37)).float()
    x[2, 20], x[4, 5], x[4, 9] = float("inf"), float("nan"), float("nan")
    x[5] = -float("inf")
    for given in (x, x.nan_to_num(0, 9, -9).int()):
        graph, tensors = both(op, given)
        check(graph, [*variants(graph, gpu(132))[:2], "rows:2x16.w4"], tensors)


def test_infinite_sums_of_exponentials() -> None:
    x = torch.tensor([[float("inf"), 1.0], [-float("inf"), -float("inf")], [1000.0, 999.0]])
    graph, tensors = body("aten.logsumexp.default", (x, [1]))
    check(graph, variants(graph, gpu(132))[:2], tensors)


@pytest.mark.parametrize("order", [0, 1, float("inf"), -float("inf")])
def test_norms_of_other_orders(order: float) -> None:
    graph, tensors = body("aten.linalg_vector_norm.default", (X.round(), order, [-1], True))
    check(graph, variants(graph, gpu(132))[:2], tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_a_norm_adds_is_of_the_type_that_it_is_computed_in(dtype: torch.dtype) -> None:
    """Where nobody said how much: rows so near to 0 that it counts."""
    x = (torch.randn(6, 40) * 3e-4).to(dtype)
    graph, given = body("aten.rms_norm.default", (x, [40]))
    values, wanted = dict(zip(("a0",), given, strict=True)), {"made": graph.nodes[0].type}
    for variant in variants(graph, gpu())[:2]:
        (found,) = run(program(graph, variant), values, wanted).values()
        assert relative_error(found, torch.rms_norm(x, (40,))) < 1e-2


LARGE = torch.randn(1, 24, 40, 37).contiguous(memory_format=torch.channels_last)
LONG = torch.randn(3, 2111)
SHARED: dict[str, tuple[object, ...]] = {
    "aten.adaptive_avg_pool2d.default": (LARGE, [1, 1]),
    "aten.mean.dim": (LARGE.half(), [2, 3]),
    "aten.sum.default": (LONG,),
    "aten.amax.default": (torch.cat([LONG, torch.full((3, 1), torch.nan)], 1), [1]),
    "aten.amin.default": (LARGE.to(torch.bfloat16), [2, 3], True),
    "aten.any.dim": (LONG > 3.0, 1),
    "aten.all.default": (LONG > -9,),
    "aten.linalg_vector_norm.default": (LONG, 2, [1]),
    "aten.max.default": ((LONG * 9).int(),),
}


@pytest.mark.parametrize("op", SHARED)
def test_rows_that_several_ctas_share(op: str) -> None:
    """Also such of which the last part has nothing, and of a size that no tile divides."""
    graph, tensors = body(op, SHARED[op])
    found = [variant for variant in variants(graph, gpu(132)) if ".k" in str(variant)]
    assert found, why_none(graph)
    check(graph, [found[0], found[-1], "rows:2x64.k32.w1"], tensors)


@pytest.mark.parametrize(
    "op", ["aten.any.dim", "aten.sum.default", "aten.linalg_vector_norm.default"]
)
def test_the_first_two_offers_have_a_shared_row_among_them(op: str) -> None:
    """With `effort="fast"` there may be no more, and one CTA leaves the machine empty."""
    graph, _ = body(op, SHARED[op])
    first, second = variants(graph, gpu(132))[:2]
    assert ".k" not in str(first) and ".k" in str(second)


def test_two_reductions_meet_at_once() -> None:
    """What is made of both follows from all parts."""
    text = """
    graph two {
      input %x: f32[3,2111]
      %s: f32[3] = aten.sum.dim_IntList(%x, [1])
      %m: f32[3] = aten.amax.default(%x, [1])
      %d: f32[3] = aten.div.Tensor(%s, %m)
      return %d
    }"""
    graph = parse_graph(text)
    found = [variant for variant in variants(graph, gpu(132)) if ".k" in str(variant)]
    check(graph, [found[0], "rows:1x128.k4.w1"])


def test_bags_of_embeddings() -> None:
    """Rows of two tables that are gathered, weighted and summed up beside each other, in one."""
    text = """
    graph bags {
      input %t: f16[40,24]
      input %u: f16[9,24]
      input %i: i64[7,5]
      input %j: i64[7,5]
      input %w: f16[7,5]
      %e: f16[7,5,24] = aten.embedding.default(%t, %i)
      %v: f16[7,5,1] = aten.view.default(%w, [7, 5, 1])
      %m: f16[7,5,24] = aten.mul.Tensor(%e, %v)
      %a: f16[7,24] = aten.sum.dim_IntList(%m, [1])
      %f: f16[7,5,24] = aten.embedding.default(%u, %j)
      %b: f16[7,24] = aten.mean.dim(%f, [1])
      %s: f16[7,2,24] = aten.stack.default([%a, %b], 1)
      return %s
    }"""
    graph = parse_graph(text)
    ids = [torch.randint(0, 40, (7, 5)), torch.randint(0, 9, (7, 5))]
    tensors = [torch.randn(40, 24), torch.randn(9, 24), *ids, torch.randn(7, 5)]
    given = [t.half() if t.is_floating_point() else t for t in tensors]
    found = [variant for variant in variants(graph, gpu(132)) if variant.template == "rows"]
    check(graph, [*found[:2], "rows:4x8.w1"], given)


def test_rows_that_a_cta_must_see_whole() -> None:
    for op, given in (("aten.softmax.int", (LONG, -1)), ("aten.var.correction", (LONG, [1]))):
        graph, _ = body(op, given)
        found = variants(graph, gpu(132))
        assert found and not any(".k" in str(variant) for variant in found)
        with pytest.raises(ValueError, match="shares rows"):
            program(graph, "rows:1x1024.k2.w4")
    short, _ = body("aten.sum.dim_IntList", (X, [0, 2]))
    assert not any(".k" in str(variant) for variant in variants(short, gpu(132)))
    many, _ = body("aten.sum.dim_IntList", (torch.zeros(400, 2111), [1]))
    assert not any(".k" in str(variant) for variant in variants(many, gpu(132)))


HEADS = """
graph heads {
  input %y: f16[5,7,192]
  const %w: f16[20] = w
  %s: f16[5,7,180]{1344,192,1} = aten.slice.Tensor(%y, 2, 12, 192)
  %v: f16[5,7,3,3,20]{1344,192,60,20,1} = aten.reshape.default(%s, [5, 7, 3, 3, 20])
  %q: f16[5,7,3,20]{1344,192,20,1} = aten.select.int(%v, 2, 1)
  %t: f16[5,3,7,20]{1344,20,192,1} = aten.transpose.int(%q, 1, 2)
  %n: f16[5,3,7,20]{420,20,60,1} = aten.rms_norm.default(%t, [20])
  %m: f16[5,3,7,20]{420,20,60,1} = aten.mul.Tensor(%n, %w)
  return %m
}"""


def test_heads_are_rows_though_they_lie_in_one() -> None:
    """A norm of each head's queries, where those are stretches of what one product wrote."""
    graph = parse_graph(HEADS.replace("const", "input"))
    check(graph, [*variants(graph, gpu(132))[:3], "rows:4x16.w1"])


def test_short_stretches_and_those_that_overlap_are_windows() -> None:
    pooled = "aten.avg_pool2d.default(%x, [1, 4], [1, 4])"
    text = "graph p {{\n input %x: f16[2,8,8,64]\n %y: f16[2,8,8,{}] = {}\n return %y\n}}"
    for size, op in ((16, pooled), (2, pooled.replace("4]", "32]")), (17, "")):
        op = op or "aten.avg_pool2d.default(%x, [1, 32], [1, 2])"
        found = variants(parse_graph(text.format(size, op)), gpu(132))
        rows = [variant for variant in found if variant.template == "rows"]
        assert bool(rows) == (size == 2), why_none(parse_graph(text.format(size, op)))


def side_by_side(channels: int, side: int) -> Graph:
    """What a batch norm needs of images that lie channels last."""
    strides = f"{{{channels * side * side},1,{channels * side},{channels}}}"
    return parse_graph(
        f"""graph g {{
          input %x: f32[2,{channels},{side},{side}]{strides}
          %v: f32[1,{channels},1,1], %v.1: f32[1,{channels},1,1] =
            aten.var_mean.correction(%x, [0, 2, 3], correction=0, keepdim=True)
          return %v, %v.1
        }}""".replace("=\n            ", "= ")
    )


def test_rows_that_lie_side_by_side_are_walked_in_short_blocks() -> None:
    graph = side_by_side(4096, 17)
    found = [str(variant) for variant in variants(graph, gpu(132))]
    assert {"rows:64x64.w8", "rows:32x64.w4"} <= set(found)
    few = side_by_side(48, 17)
    assert not any("x64." in str(variant) for variant in variants(few, gpu(132)))
    x = torch.randn(2, 48, 17, 17).contiguous(memory_format=torch.channels_last) + 1
    check(few, ["rows:64x64.w8", "rows:16x128.w4"], [x])


def test_weights_are_on_their_way_while_the_norm_of_a_row_is_computed() -> None:
    graph = parse_graph("""
    graph g {
      input %x: f16[1,1,192]
      input %g: f16[192]
      input %w: f16[37,192]
      %n: f16[1,1,192] = aten.rms_norm.default(%x, [192], %g, 1e-05)
      %y: f16[1,1,37] = aten.linear.default(%n, %w)
      return %y
    }""")
    check(graph, ["rows:4x256.w2", "rows:2x64.w1"])
    text = program(graph, "rows:4x256.w2").text
    assert text.index("tl.load(w") < text.index("tl.sum(")
