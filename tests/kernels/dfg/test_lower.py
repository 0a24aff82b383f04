"""What bodies become: the text of their data-flow graphs, and the reasons where there is none."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.types import TensorType
from anabranch.kernels.dfg import Dfg, lower
from anabranch.kernels.dfg.lower import held
from anabranch.kernels.dfg.text import text_dfg


def text(graph: str) -> str:
    found = lower(parse_graph(graph))
    return found.sentence if isinstance(found, Refused) else text_dfg(found)


def test_fusion_in_registers() -> None:
    """Nothing between the loads and the store is in memory; half types are rounded once."""
    assert text("""
    graph g {
      input %x: f16[1,64,56,56]{200704,1,3584,64}
      const %b: f16[64,1,1] = b
      %a: f16[1,64,56,56]{200704,1,3584,64} = aten.add.Tensor(%x, %b)
      %r: f16[1,64,56,56]{200704,1,3584,64} = aten.relu.default(%a)
      return %r
    }""") == (
        "for n < 1, c < 64, h < 56, w < 56:\n"
        "  r[0, c, h, w] = f16(max((f32(x[0, c, h, w]) + f32(b[c, 0, 0])), 0.0))"
    )


def test_what_is_shared_is_computed_once() -> None:
    assert text("""
    graph g {
      input %x: f32[8,64]
      %s: f32[8,64] = aten._softmax.default(%x, -1, False)
      return %s
    }""") == (
        "for n < 8, c < 64:\n"
        "  t0 = max[s_1 < 64](x[n, s_1])\n"
        "  s[n, c] = (exp((x[n, c] - t0)) / sum[s_1 < 64](exp((x[n, s_1] - t0))))"
    )


def test_views_and_joins_are_indices() -> None:
    assert text("""
    graph g {
      input %x: f32[6,4]
      input %y: f32[2,6]
      %t: f32[4,6]{1,4} = aten.t.default(%x)
      %c: f32[6,6] = aten.cat.default([%t, %y])
      %v: f32[36] = aten.view.default(%c, [36])
      return %v
    }""") == (
        "for c < 36:\n"
        "  v[c] = where((0 <= c // 6 < 4), (x[c % 6, c // 6] if 0 <= c // 6 < 4 else 0), "
        "(y[c // 6 - 4, c % 6] if 4 <= c // 6 < 6 else 0))"
    )


def test_padding_is_what_a_masked_load_fills_in() -> None:
    assert text("""
    graph g {
      input %x: f16[1,8,8]
      %p: f16[1,4,4] = aten.max_pool2d.default(%x, [3, 3], [2, 2], [1, 1])
      return %p
    }""") == (
        "for n < 1, l < 4, c < 4:\n"
        "  p[0, l, c] = f16(max[p_i < 3, p_j < 3](f32((x[0, 2*l + p_i - 1, 2*c + p_j - 1] "
        "if 1 <= 2*l + p_i < 9 and 1 <= 2*c + p_j < 9 else -inf))))"
    )


def test_an_anchor_is_given_and_the_rest_lowered() -> None:
    """The contraction itself has no pointwise lowering; what follows it has."""
    graph = parse_graph("""
    graph g {
      input %x: f16[1,64,8,8]
      input %r: f16[1,32,8,8]
      const %w: f16[32,64,3,3] = w
      %conv: f16[1,32,8,8] = aten.convolution.default(%x, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
      %sum: f16[1,32,8,8] = aten.add.Tensor(%conv, %r)
      %out: f16[1,32,8,8] = aten.relu.default(%sum)
      return %out
    }""")  # noqa: E501
    found = lower(graph, {"conv": held("acc", TensorType((1, 32, 8, 8), torch.float16))})
    assert isinstance(found, Dfg)
    assert text_dfg(found).splitlines()[1] == (
        "  out[0, c, h, w] = f16(max((acc[0, c, h, w] + f32(r[0, c, h, w])), 0.0))"
    )


def test_refusals() -> None:
    head = "graph g {\n input %x: f32[4,4]\n "
    for line, why in (
        ("%r: f32[4] = aten.prod.dim_int(%x, 0)", "aten.prod.dim_int has no lowering"),
        ("%r: f32[4,4]{0,1} = aten.relu.default(%x)", "%r has several elements at one place"),
        ("%r: f8e4m3[4,4] = aten._to_copy.default(%x)", "is of torch.float8_e4m3fn"),
        ("%r: f32[4] = aten.linalg_vector_norm.default(%x, 3, [1])", "a norm of order 3"),
    ):
        assert why in text(f"{head}{line}\n return %r\n}}")


def test_results_must_share_a_space() -> None:
    why = text("""
    graph g {
      input %x: f32[4,6]
      %a: f32[4,6] = aten.relu.default(%x)
      %b: f32[6,4]{1,6} = aten.t.default(%a)
      %c: f32[6,4] = aten.neg.default(%b)
      return %a, %c
    }""")
    assert why == "results of shapes (4, 6) and (6, 4) share no space"


def test_deep_chains_take_no_exponential_time() -> None:
    lines = [f"%v{k + 1}: f32[8] = aten.add.Tensor(%v{k}, %v{k})" for k in range(90)]
    graph = "graph g {\n input %v0: f32[8]\n " + "\n ".join(lines) + "\n return %v90\n}"
    assert len(text(graph).splitlines()) == 91


def test_digits_are_rounded_by_the_library() -> None:
    graph = parse_graph("""graph g {
      input %x: f32[4]
      %r: f32[4] = aten.round.decimals(%x, decimals=1)
      return %r
    }""")
    assert "rounds to digits" in str(lower(graph))


def test_results_whose_axes_others_have_as_one() -> None:
    """A residual stream, kept as an image and normalised as a sequence: no quotients."""
    assert text("""
    graph g {
      input %x: f32[2,3,4]
      %a: f32[2,3,4] = aten.relu.default(%x)
      %v: f32[6,4] = aten.reshape.default(%a, [6, 4])
      %b: f32[6,4] = aten.exp.default(%v)
      return %a, %b
    }""") == (
        "for n < 2, l < 3, c < 4:\n"
        "  t0 = max(x[n, l, c], 0.0)\n"
        "  a[n, l, c] = t0\n"
        "  b[3*n + l, c] = exp(t0)"
    )


def test_a_body_is_lowered_once_and_keeps_no_weight() -> None:
    body = parse_graph("""
    graph g {
      input %x: f32[2,3]
      const %w: f32[3] = w
      %a: f32[2,3] = aten.mul.Tensor(%x, %w)
      return %a
    }""")
    weight = torch.ones(3)
    held_by = replace(body.constants[0], value=weight)
    found = lower(replace(body, name="one", constants=(held_by,)))
    assert lower(replace(body, name="other")) is found
    other = parse_graph(text_graph(body).replace("mul", "add"))
    assert lower(other) != found
    gone = weakref.ref(weight)
    del weight, held_by
    gc.collect()
    assert gone() is None
