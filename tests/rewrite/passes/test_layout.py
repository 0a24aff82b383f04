from __future__ import annotations

import pytest
import torch
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.graph import Graph
from anabranch.ir.text import text_graph
from anabranch.rewrite.passes.layout import layout
from anabranch.trace import Trace

CONV = "[1, 1], [1, 1], [1, 1], False, [0, 0], 1"
TEXT = f"""
graph g {{
  input %x: f16[1,3,4,4]
  const %w: f16[8,3,3,3] = w
  const %v: f16[8,8,1,1] = v
  %c: f16[1,8,4,4] = aten.convolution.default(%x, %w, None, {CONV})
  %r: f16[1,8,4,4] = aten.relu.default(%c)
  %d: f16[1,8,6,6] = aten.convolution.default(%r, %v, None, {CONV})
  %f: f16[1,288] = aten.reshape.default(%d, [1, 288])
  return %d, %f
}}"""


def arranged(graph: Graph, **more: bool) -> Graph:
    after = equal(graph, layout(graph, Trace(), **more))
    assert layout(after, Trace(), **more) is after
    return after


def test_one_graph_before_and_after() -> None:
    lines = text_graph(arranged(read(TEXT))).splitlines()[4:-1]
    assert lines == [
        "  %x_cl: f16[1,3,4,4]{48,1,12,3} = aten.clone.default(%x, "
        "memory_format=torch.channels_last)",
        "  %w_cl: f16[8,3,3,3]{27,1,9,3} = aten.clone.default(%w, "
        "memory_format=torch.channels_last)",
        f"  %c: f16[1,8,4,4]{{128,1,32,8}} = aten.convolution.default(%x_cl, %w_cl, None, {CONV})",
        "  %r: f16[1,8,4,4]{128,1,32,8} = aten.relu.default(%c)",
        "  %v_cl: f16[8,8,1,1]{8,1,8,8} = aten.clone.default(%v, "
        "memory_format=torch.channels_last)",
        f"  %d: f16[1,8,6,6]{{288,1,48,8}} = aten.convolution.default(%r, %v_cl, None, {CONV})",
        "  %f: f16[1,288] = aten.reshape.default(%d, [1, 288])",
        "  %d_dense: f16[1,8,6,6] = aten.clone.default(%d, memory_format=torch.contiguous_format)",
        "  return %d_dense, %f",
    ]


def test_single_precision_only_with_tensor_cores() -> None:
    graph, trace = read(TEXT.replace("f16", "f32")), Trace()
    assert layout(graph, trace) is graph
    assert "no tensor cores for torch.float32" in trace.events[0].why
    assert arranged(graph, tf32=True) is not graph


def test_what_needs_the_old_strides_gets_them() -> None:
    graph = read(
        TEXT.replace(
            "%f: f16[1,288] = aten.reshape.default(%d, [1, 288])",
            "%f: f16[2,2]{144,1} = aten.as_strided.default(%d, [2, 2], [144, 1], 0)",
        )
    )
    after = arranged(graph)
    assert kinds(after)[-2:] == ["clone", "as_strided"]


def test_an_input_is_returned_as_it_came() -> None:
    graph = read(TEXT.replace("return %d, %f", "return %f, %x"))
    after = arranged(graph)
    assert [ref.name for ref in after.outputs] == ["f", "x"]


def test_other_readers_share_the_copy() -> None:
    """Else pooled and convolved branches would meet in a cat with different layouts."""
    pool = "%p: f16[1,3,4,4] = aten.max_pool2d.default(%x, [3, 3], [1, 1], [1, 1])\n  %c:"
    graph = read(TEXT.replace("%c:", pool).replace("return %d, %f", "return %f, %p"))
    after = arranged(graph)
    made = {node.name: node for node in after.nodes}
    assert made["p"].uses == ("x_cl",) and made["p"].type.strides == (48, 1, 12, 3)
    assert made["p"].type.dtype == torch.float16


def sliced(dtype: str, channels: int, *cuts: tuple[int, ...]) -> Graph:
    """A convolution of some of the channels that another one makes, cut out one after the other."""
    lines, last, left = list[str](), "r", channels
    for i, (start, end, *step) in enumerate(cuts):
        every = step[0] if step else 1
        left = (end - start) // every
        type = f"{dtype}[1,{left},4,4]{{{16 * channels},{16 * every},4,1}}"
        lines.append(f"%s{i}: {type} = aten.slice.Tensor(%{last}, 1, {start}, {end}, {every})")
        last = f"s{i}"
    cut = "\n  ".join(lines)
    return read(
        f"""
graph g {{
  input %x: {dtype}[1,16,4,4]
  const %w: {dtype}[{channels},16,3,3] = w
  const %v: {dtype}[8,{left},1,1] = v
  %c: {dtype}[1,{channels},4,4] = aten.convolution.default(%x, %w, None, {CONV})
  %r: {dtype}[1,{channels},4,4] = aten.relu.default(%c)
  {cut}
  %d: {dtype}[1,8,6,6] = aten.convolution.default(%{last}, %v, None, {CONV})
  return %d
}}"""
    )


@pytest.mark.parametrize(
    ("dtype", "channels", "cuts", "copied"),
    [
        ("f16", 48, [(16, 48)], False),
        ("f32", 20, [(4, 16)], False),  # starts and rows of as many bytes as one load takes
        ("f16", 48, [(12, 48)], True),  # would start in the middle of one
        ("f16", 52, [(8, 40)], True),  # its rows would, those of a copy would not
        ("f16", 52, [(8, 44)], False),  # nor would those of a copy be any better
        ("f16", 48, [(12, 48), (4, 36)], False),  # starts where both say
        ("f16", 48, [(8, 48), (4, 36)], True),
        ("f16", 24, [(0, 24, 2)], True),  # every second one: no load is wider than that
    ],
)
def test_slices_of_channels_are_read_in_place(
    dtype: str, channels: int, cuts: list[tuple[int, ...]], copied: bool
) -> None:
    after = arranged(sliced(dtype, channels, *cuts), tf32=dtype == "f32")
    made = {node.name: node for node in after.nodes}
    last = f"s{len(cuts) - 1}"
    assert made["d"].uses[0] == (f"{last}_cl" if copied else last)
    assert made["d"].type.strides[1] == 1
