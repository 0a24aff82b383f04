"""Scans of rows, in one tile or carried from block to block, in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check, run

from anabranch.ir.graph import Graph, Ref
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program, variants, why_none

BLOCKS = ("rows:2x16.w4", "rows:1x8.w1")
CALLS = ("aten.cumsum.default", "aten.cumprod.default", "aten.logcumsumexp.default")
ARG_SCANS = ("aten.cummax.default", "aten.cummin.default")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)


def rows_of(graph: Graph) -> list[Variant]:
    found = variants(graph, gpu(132))
    assert found and all(variant.template == "rows" for variant in found), why_none(graph)
    return found


def everywhere(text: str, *tensors: torch.Tensor) -> None:
    """Two tiles that hold rows, and two that walk them."""
    graph = parse_graph(text)
    check(graph, [*rows_of(graph)[:2], *BLOCKS], tensors)


@settings(max_examples=8, deadline=None)
@given(st.data(), st.sampled_from(CALLS), st.sampled_from(DTYPES))
def test_running_folds(data: st.DataObject, op: str, dtype: torch.dtype) -> None:
    """Along any axis of rows of any size, in any layout."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 8, 19]), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    if op == "aten.logcumsumexp.default" and not dtype.is_floating_point:
        dtype = torch.float32
    order = data.draw(st.permutations(range(len(shape))))
    if shape[dim] == 1:
        shape[dim] = 2
    x = torch.randn([shape[d] for d in order])
    x = (x if dtype.is_floating_point else (2 * x).round()).to(dtype)
    x = x.permute([order.index(d) for d in range(len(shape))])
    graph, tensors = body(op, (x, dim))
    check(graph, [*rows_of(graph)[:1], *BLOCKS], tensors)


@pytest.mark.parametrize("op", [*CALLS, *ARG_SCANS])
def test_rows_of_one_element_and_of_none(op: str) -> None:
    """The one is what it is; where there is none there is no kernel."""
    graph, tensors = body(op, (torch.randn(5, 1, 7), 1))
    outputs = tuple(map(Ref, graph.nodes[0].results))
    found = variants(replace(graph, outputs=outputs), gpu(132))
    assert found and all(variant.template == "pointwise" for variant in found)
    check(replace(graph, outputs=outputs), found[:1], tensors)
    for shape in ((0, 3), (3, 0)):
        empty, _ = body(op, (torch.randn(shape), 1))
        assert not variants(empty, gpu(132)) and "is empty" in why_none(empty)


@pytest.mark.parametrize("op", ARG_SCANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8])
def test_cummax_and_cummin_with_their_places(op: str, dtype: torch.dtype) -> None:
    """Of several equal ones the last; nan is larger, and smaller, than all others."""
    x = torch.randint(-3, 3, (5, 19)).to(dtype)
    if dtype.is_floating_point:
        x[2, 3], x[3, 5], x[3, 9] = float("inf"), float("nan"), float("nan")
        x[4] = -float("inf")
    for dim in (0, 1):
        graph, tensors = body(op, (x, dim))
        both = replace(graph, outputs=tuple(map(Ref, graph.nodes[0].results)))
        check(both, [*rows_of(both)[:1], *BLOCKS], tensors)


def test_infinite_sums_of_exponentials_so_far() -> None:
    inf = float("inf")
    x = torch.tensor([[-inf, -inf, 3.0, inf, 1.0], [1000.0, 999.0, -inf, -1000.0, 0.0]])
    graph, tensors = body("aten.logcumsumexp.default", (x, 1))
    check(graph, [*rows_of(graph)[:2], "rows:1x2.w1"], tensors)


def test_of_probabilities() -> None:
    """As nucleus sampling has them: what is summed up is itself reduced."""
    everywhere(
        """
    graph nucleus {
      input %x: f16[3,37]
      %p: f32[3,37] = aten.softmax.int(%x, -1, torch.float32)
      %c: f32[3,37] = aten.cumsum.default(%p, -1)
      %before: f32[3,37] = aten.sub.Tensor(%c, %p)
      %m: b1[3,37] = aten.gt.Scalar(%before, 0.9)
      %y: f32[3,37] = aten.masked_fill.Scalar(%p, %m, 0.0)
      return %y
    }""",
        torch.randn(3, 37).half(),
    )


def test_positions_of_what_is_no_padding() -> None:
    """mask.cumsum(1) * mask + padding, as language models number their tokens."""
    everywhere(
        """
    graph positions {
      input %ids: i64[2,41]
      %ne: b1[2,41] = aten.ne.Scalar(%ids, 1)
      %mask: i32[2,41] = aten._to_copy.default(%ne, dtype=torch.int32)
      %sum: i64[2,41] = aten.cumsum.default(%mask, 1)
      %near: i32[2,41] = aten._to_copy.default(%sum, dtype=torch.int32)
      %kept: i32[2,41] = aten.mul.Tensor(%near, %mask)
      %wide: i64[2,41] = aten._to_copy.default(%kept, dtype=torch.int64)
      %y: i64[2,41] = aten.add.Tensor(%wide, 1)
      return %y
    }""",
        torch.randint(0, 3, (2, 41)),
    )


def test_from_the_end() -> None:
    """Turned round, summed up and turned back: nothing is turned."""
    text = """
    graph back {
      input %x: f32[3,37]
      %r: f32[3,37] = aten.flip.default(%x, [1])
      %c: f32[3,37] = aten.cumsum.default(%r, 1)
      %y: f32[3,37] = aten.flip.default(%c, [1])
      return %y
    }"""
    everywhere(text, torch.randn(3, 37))
    assert "reverse=True" in program(parse_graph(text), "rows:1x64.w1").text


def test_in_both_directions() -> None:
    """As long as rows are held: none is walked both ways at once."""
    text = """
    graph ways {
      input %x: f32[3,37]
      %r: f32[3,37] = aten.flip.default(%x, [1])
      %c: f32[3,37] = aten.cumsum.default(%r, 1)
      %b: f32[3,37] = aten.flip.default(%c, [1])
      %f: f32[3,37] = aten.cumsum.default(%x, 1)
      %y: f32[3,37] = aten.mul.Tensor(%b, %f)
      return %y
    }"""
    graph = parse_graph(text)
    check(graph, rows_of(graph)[:3], [torch.randn(3, 37)])
    with pytest.raises(ValueError, match="one way alone"):
        program(graph, BLOCKS[0])
    long = parse_graph(text.replace("37", "9000"))
    assert not variants(long, gpu(132))
    assert "in both directions" in why_none(long)


def test_of_all_before() -> None:
    """Without the element itself: moved by one, with a zero at the start."""
    everywhere(
        """
    graph exclusive {
      input %x: f32[3,37]
      %c: f32[3,37] = aten.cumsum.default(%x, 1)
      %s: f32[3,36]{37,1} = aten.slice.Tensor(%c, 1, 0, 36)
      %y: f32[3,37] = aten.constant_pad_nd.default(%s, [1, 0], 0.0)
      return %y
    }""",
        torch.randn(3, 37),
    )


def test_what_begins_late_stays_alone() -> None:
    text = """
    graph late {
      input %x: f32[3,37]
      %c: f32[3,37] = aten.cumsum.default(%x, 1)
      %s: f32[3,36]{37,1} = aten.slice.Tensor(%c, 1, 1, 37)
      %y: f32[3,36] = aten.relu.default(%s)
      return %y
    }"""
    assert "begin before what is stored" in why_none(parse_graph(text))


def test_reductions_of_scans() -> None:
    """The largest of all sums so far, how many are small, and a running sum of running sums."""
    everywhere(
        """
    graph deep {
      input %x: f32[3,37]
      %c: f32[3,37] = aten.cumsum.default(%x, 1)
      %m: f32[3,1] = aten.amax.default(%c, [1], True)
      %d: f32[3,37] = aten.cumsum.default(%c, 1)
      %y: f32[3,37] = aten.sub.Tensor(%d, %m)
      return %y
    }""",
        torch.randn(3, 37),
    )
    everywhere(
        """
    graph counted {
      input %x: f32[3,37]
      %c: f32[3,37] = aten.cumsum.default(%x, 1)
      %m: b1[3,37] = aten.lt.Scalar(%c, 0.5)
      %n: i64[3] = aten.sum.dim_IntList(%m, [1])
      return %n
    }""",
        torch.randn(3, 37),
    )


def test_along_the_first_axis() -> None:
    """Neighbouring rows are neighbours in memory, and what is repeated is folded again."""
    everywhere(
        """
    graph first {
      input %x: f16[37,3,5]
      input %b: f16[5]
      %a: f16[37,3,5] = aten.add.Tensor(%x, %b)
      %c: f16[37,3,5] = aten.cumsum.default(%a, 0)
      %y: f16[37,3,5] = aten.silu.default(%c)
      return %y
    }""",
        torch.randn(37, 3, 5).half(),
        torch.randn(5).half(),
    )
    everywhere(
        """
    graph spread {
      input %m: i64[2,37]
      input %x: f32[2,37,4]
      %c: i64[2,37] = aten.cumsum.default(%m, 1)
      %v: i64[2,37,1] = aten.unsqueeze.default(%c, 2)
      %y: f32[2,37,4] = aten.mul.Tensor(%x, %v)
      return %y
    }""",
        torch.randint(0, 3, (2, 37)),
        torch.randn(2, 37, 4),
    )


def test_of_what_is_everywhere_the_same() -> None:
    """Ones that are counted are no tile before somebody makes them one."""
    everywhere(
        """
    graph ones {
      input %x: f32[3,37]
      %o: f32[3,37] = aten.ones_like.default(%x)
      %c: f32[3,37] = aten.cumsum.default(%o, 1)
      %y: f32[3,37] = aten.mul.Tensor(%c, %x)
      return %y
    }""",
        torch.randn(3, 37),
    )


def test_what_is_refused() -> None:
    graph, _ = body("aten.cummax.default", (torch.ones(3, 4) > 0, 1))
    assert "of b1[3,4] has no lowering" in why_none(graph)
    text = """
    graph wrapped {
      input %x: f32[24]
      %c: f32[24] = aten.cumsum.default(%x, 0)
      %v: f32[4,6] = aten.view.default(%c, [4, 6])
      %y: f32[4,6] = aten.relu.default(%v)
      return %y
    }"""
    assert "asked for at" in why_none(parse_graph(text))


@settings(max_examples=8, deadline=None)
@given(st.data(), st.sampled_from((torch.float32, torch.float16, torch.bfloat16)), st.booleans())
def test_recurrences(data: st.DataObject, dtype: torch.dtype, begun: bool) -> None:
    """Steps along any axis, from zeros or from something else."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 8, 19]), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    if shape[dim] == 1:
        shape[dim] = 2
    rest = [n for d, n in enumerate(shape) if d != dim % len(shape)]
    x, first = torch.randn(shape).to(dtype), torch.randn(rest).to(dtype) if begun else None
    factor = torch.rand(shape).to(data.draw(st.sampled_from((dtype, torch.float32))))
    graph, tensors = body("anabranch.recurrence.default", (x, factor, first, dim))
    check(graph, [*rows_of(graph)[:1], *BLOCKS], tensors)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", ["[1,3,1]", "[1,1,1]", "[20,1,8]"])
@pytest.mark.parametrize("expanded", ["f", "x"])
def test_factors_and_terms_of_fewer_elements(expanded: str, shape: str, dim: int) -> None:
    """One decay for all, or one for each step: tiles of unlike shape, which a scan wants alike."""
    other = "x" if expanded == "f" else "f"
    everywhere(
        f"""
    graph expanded {{
      input %{expanded}0: f16{shape}
      input %{other}: f16[20,3,8]
      %{expanded}: f16[20,3,8] = aten.expand.default(%{expanded}0, [20, 3, 8])
      %y: f16[20,3,8] = anabranch.recurrence.default(%x, %f, None, {dim})
      return %y
    }}"""
    )


def test_a_recurrence_from_its_end() -> None:
    """What runs from the last step to the first, beyond whose end a tile has more."""
    everywhere(
        """
    graph back {
      input %x: f32[5,19]
      input %f: f32[5,19]
      %a: f32[5,19] = aten.flip.default(%x, [1])
      %b: f32[5,19] = aten.flip.default(%f, [1])
      %y: f32[5,19] = anabranch.recurrence.default(%a, %b, None, 1)
      %z: f32[5,19] = aten.flip.default(%y, [1])
      return %z
    }"""
    )


@pytest.mark.parametrize("op", ARG_SCANS)
def test_of_equal_zeros_cummax_names_the_latest(op: str) -> None:
    """As eager has it, which compares with >= and <=; what is not a number stays so."""
    nan, inf = float("nan"), float("inf")
    row = [0.0, -0.0, 0.0, -0.0, -inf, -0.0, 0.0, inf, -0.0, nan, 0.0, -0.0]
    x = torch.tensor([row, [-abs(n) for n in row], row[::-1], [-0.0] * 12])
    graph, tensors = body(op, (x, 1))
    name = graph.nodes[0].results[0]
    want = torch.cummax(x, 1).values if "max" in op else torch.cummin(x, 1).values
    tried: list[Variant | str] = [*rows_of(graph)[:1], *BLOCKS]
    for variant in tried:
        type = graph.nodes[0].types[0]
        got = run(program(graph, variant), {"a0": tensors[0]}, {name: type})[name]
        torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)
        zero = want == 0
        assert torch.equal(got[zero].signbit(), want[zero].signbit()), variant
