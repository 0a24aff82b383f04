"""Moves whose places are computed, in any layout, alone and with neighbours in one kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import check, run

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Arg, Graph, Input, Node, Ref
from anabranch.ir.ops import make_node
from anabranch.ir.types import DTYPE_NAMES, TensorType
from anabranch.kernels.triton.codegen import program, variants, why_none

LINE = torch.randn(2, 5, 9)
IMAGE = torch.randn(2, 12, 5, 7)
LAST = IMAGE.to(memory_format=torch.channels_last)
SOLID = torch.randn(1, 2, 4, 3, 5)
GRID = torch.randn(2, 6, 4, 2)
CALLS: list[tuple[str, tuple[object, ...]]] = [
    ("aten.pixel_shuffle.default", (LAST, 2)),
    ("aten.pixel_unshuffle.default", (torch.randn(2, 3, 6, 9), 3)),
    ("aten.channel_shuffle.default", (LAST, 3)),
    ("aten.flip.default", (IMAGE, [1, -1])),
    ("aten.roll.default", (IMAGE, [2, -9], [1, 3])),
    ("aten.repeat.default", (LINE, [3, 1, 2, 2])),
    ("aten.diagonal.default", (IMAGE, -1, 3, 1)),
    ("aten.diagonal.default", (LINE, 2, 1, -1)),
    ("aten.unfold.default", (LINE, -1, 4, 2)),
    ("aten.tril.default", (LINE, 1)),
    ("aten.triu.default", (torch.arange(20).reshape(5, 4), -2)),
    ("aten.reflection_pad1d.default", (LINE, [8, 8])),
    ("aten.reflection_pad2d.default", (LAST, [1, 0, 3, 4])),
    ("aten.reflection_pad2d.default", (IMAGE, [2, -3, -1, 2])),
    ("aten.reflection_pad3d.default", (SOLID, [1, 2, 0, 1, 3, 0])),
    ("aten.replication_pad1d.default", (LINE, [11, 2])),
    ("aten.replication_pad2d.default", (LAST, [0, 9, 1, 2])),
    ("aten.upsample_nearest1d.vec", (LINE, None, [2.0])),
    ("aten.upsample_nearest2d.vec", (LAST, [13, 3], None)),
    ("aten.upsample_nearest2d.vec", (IMAGE, None, [1.7, 2.3])),
    ("aten.upsample_nearest2d.default", (IMAGE, [10, 21], 2.0, 3.0)),
    ("aten.upsample_nearest3d.vec", (SOLID, [8, 4, 5], None)),
    ("aten._upsample_nearest_exact2d.vec", (IMAGE, [13, 3], None)),
    ("aten._upsample_nearest_exact1d.vec", (LINE, None, [3.0])),
    ("aten.upsample_linear1d.vec", (LINE, [25], True, None)),
    ("aten.upsample_bilinear2d.vec", (LAST, None, False, [2.0, 1.5])),
    ("aten.upsample_bilinear2d.vec", (IMAGE, [3, 1], True, None)),
    ("aten.upsample_bilinear2d.default", (IMAGE, [5, 20], False)),
    ("aten.upsample_trilinear3d.vec", (SOLID, [7, 3, 2], False, None)),
    ("aten.upsample_bicubic2d.vec", (LAST, [11, 4], False, None)),
    ("aten.upsample_bicubic2d.vec", (IMAGE, None, True, [1.4, 3.0])),
    ("aten.upsample_bicubic2d.default", (IMAGE, [5, 20], False, 1.0, 2.9)),
    *(
        ("aten.grid_sampler_2d.default", (image, GRID, mode, beyond, corners))
        for image, mode, beyond, corners in (
            *((LAST, 0, 0, False), (IMAGE, 0, 0, True), (IMAGE, 0, 1, False)),
            *((LAST, 0, 1, True), (IMAGE, 1, 0, False), (LAST, 1, 1, True)),
        )
    ),
    ("aten.im2col.default", (LAST, [3, 2], [1, 1], [1, 0], [2, 1])),
    ("aten.im2col.default", (IMAGE[0], [2, 3], [2, 1], [1, 2], [1, 2])),
    ("aten.slice_scatter.default", (LINE, torch.randn(2, 5, 3), 2, -7, 5)),
    ("aten.slice_scatter.default", (LINE, torch.randn(2, 4, 9), 1, 1)),
    ("aten.select_scatter.default", (LINE, torch.randn(2, 9), 1, -2)),
    ("aten.copy.default", (LINE.int(), torch.randn(9) * 5)),
    ("aten.gather.default", (LINE, 1, torch.tensor([[[4, 0, 1]], [[2, 2, 3]]]))),
    ("aten.index.Tensor", (LINE, [None, torch.tensor([-1, 0, 4])])),
    ("aten.index.Tensor", (IMAGE, [None, None, torch.tensor([[0], [4]]), torch.tensor([6, -7])])),
]


@pytest.mark.parametrize("at", range(len(CALLS)), ids=[op for op, _ in CALLS])
def test_calls(at: int) -> None:
    graph, tensors = body(*CALLS[at])
    found = variants(graph, gpu(132))
    check(graph, found[:2], tensors)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_samples_from_nowhere_are_eagers(mode: int, beyond: int, corners: bool) -> None:
    """As far away as no int counts, and where no number says: zeros, or the edge (of what is no
    number, the first one). Beside zeros a processor's eager multiplies what is no number by 0; a
    GPU's, which is what counts here, finds nothing there."""
    grid = GRID.clone()
    grid[0, :, 0, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 7e9])
    grid[1, :, 1, 1] = torch.tensor([3e38, 1e10, -1e10, torch.nan, 2.5, -2.5])
    call = ("aten.grid_sampler_2d.default", (IMAGE, grid, mode, beyond, corners))
    graph, tensors = body(*call)
    want = torch.grid_sampler_2d(IMAGE, grid, mode, beyond, corners)
    want = want.nan_to_num(0.0) if beyond == 0 else want
    assert bool(want.isfinite().all())
    values = {value.name: tensor for value, tensor in zip(graph.inputs, tensors, strict=True)}
    (out,) = graph.outputs
    for variant in variants(graph, gpu(132))[:2]:
        found = run(program(graph, variant), values, {out.name: graph.nodes[0].type})[out.name]
        torch.testing.assert_close(found, want)


def test_what_is_sampled_in_other_ways_is_the_librarys() -> None:
    for mode, beyond in ((2, 0), (0, 2)):
        graph, _ = body("aten.grid_sampler_2d.default", (IMAGE, GRID, mode, beyond, False))
        assert not variants(graph, gpu(132))
        assert "bicubic pixels or reflections" in why_none(graph)


def test_an_image_in_squares() -> None:
    """Zeros around it, squares as channels, and those side by side, in one kernel."""
    graph = read(
        """graph g {
          input %x: f16[1,3,8,11]
          %l: f16[1,3,8,11]{264,1,33,3} = aten.clone.default(%x, memory_format=torch.channels_last)
          %pad: f16[1,3,10,14]{420,1,42,3} = aten.constant_pad_nd.default(%l, [1, 2, 1, 1])
          %out: f16[1,12,5,7]{420,1,84,12} = aten.pixel_unshuffle.default(%pad, 2)
          return %out
        }"""
    )
    check(graph, variants(graph, gpu(132))[:2])


PLACES: tuple[tuple[str, tuple[Arg, ...]], ...] = (
    ("reflection_pad2d.default", ((2, 1, 1, 2),)),
    ("replication_pad2d.default", ((1, 0, 2, 1),)),
    ("upsample_bilinear2d.vec", (None, False, (2.0, 1.5))),
    ("upsample_nearest2d.vec", (None, (1.5, 2.0))),
    ("roll.default", ((1, 2), (2, 3))),
    ("slice.Tensor", (2, 1, 5)),
    ("max_pool2d.default", ((2, 2), (1, 1))),
    ("gelu.default", ()),
)


@given(st.lists(st.sampled_from(PLACES), min_size=2, max_size=3, unique=True))
@settings(max_examples=12)
def test_places_that_are_computed_from_computed_places(
    ways: list[tuple[str, tuple[Arg, ...]]],
) -> None:
    """Mirrored what is in between, enlarged what was mirrored: wherever an index, or what it must
    lie within, is an expression of its own."""
    inputs, nodes = (Input("x", TensorType((1, 2, 9, 8), torch.float32)),), list[Node]()
    table = {"x": inputs[0].type}
    for i, (op, rest) in enumerate(ways):
        last = Ref(nodes[-1].name if nodes else "x")
        nodes.append(make_node(f"n{i}", f"aten.{op}", (last, *rest), table))
        table[f"n{i}"] = nodes[-1].type
    graph = Graph("g", inputs, (), tuple(nodes), (Ref(nodes[-1].name),))
    found = variants(graph, gpu(132))[:1]
    assert found or "max_pool2d" in str(ways)  # which is no window of what is computed
    if found:
        check(graph, found)


@given(st.data())
@settings(max_examples=15)
def test_nearest_pixels_are_those_of_aten(data: st.DataObject) -> None:
    """Sizes of which floats say another pixel than fractions do. On a GPU ATen multiplies in fp32;
    on the CPU it may round otherwise where a place is a whole number but for that."""
    n, m = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 200))
    exact = data.draw(st.booleans())
    name = "_upsample_nearest_exact1d" if exact else "upsample_nearest1d"
    x = torch.arange(n, dtype=torch.float32).reshape(1, 1, n) + 1.0
    graph, _ = body(f"aten.{name}.vec", (x, [m], None))
    (value,), (result,), (node,) = graph.inputs, graph.outputs, graph.nodes
    written = program(graph, "pointwise:64.w1")
    made = run(written, {value.name: x}, {result.name: node.type})[result.name].flatten()
    step = torch.tensor(n, dtype=torch.float32) / m
    place = (torch.arange(m, dtype=torch.float32) + (0.5 if exact else 0.0)) * step
    assert torch.equal(made, x[0, 0, place.floor().long().clamp(max=n - 1)])
    own = eval_graph(graph, [x])[0].flatten()
    whole = (place - place.round()).abs() < 1e-5
    assert torch.equal(made[~whole], own[~whole])


@given(st.data(), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
@settings(max_examples=8)
def test_convolutions_behind_and_before_moves(data: st.DataObject, dtype: torch.dtype) -> None:
    """Mirrored before, an enlarged residual behind: both in the convolution's own kernel."""
    n, c, k = (data.draw(st.sampled_from([1, 3, 8])) for _ in range(3))
    h, w = data.draw(st.integers(2, 5)), data.draw(st.integers(2, 5))
    name, mode = DTYPE_NAMES[dtype], data.draw(st.sampled_from(["reflection", "replication"]))
    graph = read(f"""
    graph g {{
      input %x: {name}[{n},{c},{2 * h},{2 * w}]
      input %y: {name}[{n},{k},{h},{w}]
      const %w: {name}[{k},{c},3,3] = w
      %pad: {name}[{n},{c},{2 * h + 2},{2 * w + 2}] = aten.{mode}_pad2d.default(%x, [1, 1, 1, 1])
      %conv: {name}[{n},{k},{2 * h},{2 * w}] = aten.convolution.default(%pad, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %up: {name}[{n},{k},{2 * h},{2 * w}] = aten.upsample_nearest2d.vec(%y, None, [2.0, 2.0])
      %sum: {name}[{n},{k},{2 * h},{2 * w}] = aten.add.Tensor(%conv, %up)
      return %sum
    }}""")  # noqa: E501
    if k == 1:
        return  # one column is no work for a contraction
    found = variants(graph, gpu(132))
    assert found[0].template == "contraction"
    check(graph, [found[0], "contraction:16x16x16.k2.w4.s2"])
