from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.text import text_graph
from anabranch.rewrite.passes.canonical import canonical
from anabranch.trace import Trace


def test_one_graph_before_and_after() -> None:
    graph = read("""
    graph g {
      input %x: f16[1,4,6,6]
      const %w: f16[4,2,3,3] = w
      const %m: f16[4] = m
      const %v: f16[4] = v
      %c: f16[1,4,6,6] = aten.conv2d.default(%x, %w, None, [1], [1, 1], [1, 1], 2)    # net.py:1
      %n: f16[1,4,6,6], %n.1: f16[0], %n.2: f16[0] = aten._native_batch_norm_legit_no_training.default(%c, None, None, %m, %v, 0.1, 1e-05)
      %f: f16[1,144] = aten.view.default(%n, [1, -1])
      %s: f16[1,144] = aten.add.Scalar(%f, 2)
      return %s
    }""")  # noqa: E501
    after = equal(graph, canonical(graph, Trace()))
    assert text_graph(after).splitlines()[5:] == [
        "  %c: f16[1,4,6,6] = aten.convolution.default(%x, %w, None, [1, 1], [1, 1], [1, 1], "
        "False, [0, 0], 2)    # net.py:1",
        "  %n: f16[1,4,6,6] = aten.batch_norm.default(%c, None, None, %m, %v, False, 0.1, 1e-05, "
        "True)",
        "  %f: f16[1,144] = aten.reshape.default(%n, [1, 144])",
        "  %s: f16[1,144] = aten.add.Tensor(%f, 2)",
        "  return %s",
        "}",
    ]


CASES = {
    "aten.conv2d.padding(%x, %w, None, [1, 1], 'same')": ("f32[3,4,4,4]", "f32[2,3,6,6]"),
    "aten.conv2d.padding(%x, %w, None, [2, 2], 'valid')": ("f32[3,4,3,3]", "f32[2,3,2,2]"),
    "aten.conv_transpose2d.input(%x, %w, None, [2, 2], [0, 0], [1, 1], 2)": (
        "f32[4,3,2,2]",
        "f32[2,6,13,13]",
    ),
    "aten._convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, "
    "False, True, True)": ("f32[3,4,2,2]", "f32[2,3,5,5]"),
    "aten.addmm.default(%b, %w, %v)": ("f32[2,2]", "f32[2,2]"),
    "aten.addmm.default(%b, %w, %v, beta=2)": ("f32[2,2]", "f32[2,2]"),
    "aten.flatten.using_ints(%x, 1, 2)": ("f32[1]", "f32[2,24,6]"),
    "aten.full_like.default(%x, 2.5)": ("f32[1]", "f32[2,4,6,6]"),
    "aten.zeros_like.default(%x)": ("f32[1]", "f32[2,4,6,6]"),
    "aten.sub.Scalar(%x, 2, 3)": ("f32[1]", "f32[2,4,6,6]"),
    "aten.softmax.int(%x, -1)": ("f32[1]", "f32[2,4,6,6]"),
    "aten.log_softmax.int(%x, 1, torch.float64)": ("f32[1]", "f64[2,4,6,6]"),
    "aten.to.dtype(%x, torch.float16)": ("f32[1]", "f16[2,4,6,6]"),
    "aten.contiguous.default(%x)": ("f32[1]", "f32[2,4,6,6]"),
}


@pytest.mark.parametrize("call", CASES)
def test_forms_are_equal(call: str) -> None:
    weight, result = CASES[call]
    graph = read(
        f"graph g {{\n  input %x: f32[2,4,6,6]\n  const %w: {weight} = w\n"
        f"  const %v: f32[2,2] = v\n  const %b: f32[2] = b\n"
        f"  %y: {result} = {call}\n  return %y\n}}"
    )
    after = equal(graph, canonical(graph, Trace()))
    assert canonical(after, Trace()) is after
    assert (after is graph) == ("beta" in call)


def test_what_is_spread_out_to_meet_a_larger_one_meets_it_as_it_is() -> None:
    graph = read(
        """
    graph g {
      input %x: f32[2,3,4]
      input %y: f32[3,1]
      %e: f32[2,3,4]{0,1,0} = aten.expand.default(%y, [2, 3, 4])
      %d: f32[2,3,4] = aten.div.Tensor(%x, %e)
      %w: f32[2,3,4] = aten.where.self(%b, %e, %d)
      %n: f32[2,3,4] = aten.neg.default(%e)
      %m: f32[2,3,4] = aten.add.Tensor(%e, %e)
      return %w, %n, %m
    }""".replace("  %d:", "  %b: b1[2,3,4] = aten.gt.Scalar(%x, 0)\n      %d:")
    )
    after = equal(graph, canonical(graph, Trace()))
    read_by = {node.name: node.uses for node in after.nodes}
    assert read_by["d"] == ("x", "y") and read_by["w"] == ("b", "y", "d")
    assert read_by["n"] == ("e",) and read_by["m"] == ("e", "e")  # they are as large as that


def test_a_number_without_axes_stays_spread_out_where_it_decides_the_type() -> None:
    """All in int64, and not in uint8, where 300 would be 44."""
    text = """
    graph g {
      input %x: u8[2,3]
      const %y: i64[] = y
      %e: i64[2,3]{0,0} = aten.expand.default(%y, [2, 3])
      %q: b1[2,3] = aten.eq.Tensor(%x, %e)
      return %q
    }"""
    graph = read(text)
    assert canonical(graph, Trace()) is graph
    same = read(text.replace("u8", "i64"))
    assert canonical(same, Trace()).nodes[-1].uses == ("x", "y")


COPIED = """
    graph g {
      input %x: f32[2,3,5]
      input %row: f32[2,5]
      state %k: DTYPE[2,9,5] -> %k_2
      %s: DTYPE[2,3,5]{45,5,1} = aten.slice.Tensor(%k, 1, 4, 7)
      %c: DTYPE[2,3,5]{45,5,1} = aten.copy.default(%s, %x)
      %k_1: DTYPE[2,9,5] = aten.slice_scatter.default(%k, %c, 1, 4, 7)
      %t: DTYPE[2,5]{45,1} = aten.select.int(%k_1, 1, 0)
      %d: DTYPE[2,5]{45,1} = aten.copy.default(%t, %row)
      %k_2: DTYPE[2,9,5] = aten.select_scatter.default(%k_1, %d, 1, 0)
      return %k_2
    }"""


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_is_copied_over_a_part_is_written_there_itself(dtype: str) -> None:
    graph = read(COPIED.replace("DTYPE", dtype))
    converted = ["_to_copy"] if dtype == "f16" else []
    wanted = [*converted, "slice_scatter", *converted, "select_scatter"]
    assert kinds(equal(graph, canonical(graph, Trace()))) == wanted


@pytest.mark.parametrize("moved", ["%k", "%k_1"])
def test_elements_of_a_state_are_moved_through_a_copy(moved: str) -> None:
    """They may be written over before they are read."""
    text = COPIED.replace("DTYPE", "f32")
    view = f"      %row_1: f32[2,5]{{45,1}} = aten.select.int({moved}, 1, 5)\n      %d"
    graph = read(text.replace("      %d", view).replace("%t, %row)", "%t, %row_1)"))
    after = equal(graph, canonical(graph, Trace()))
    assert kinds(after).count("copy") == 1


STORED = """
    graph g {
      input %x: f32[2,3]
      input %y: f32[2,3]
      %b: f32[2,3] = aten.neg.default(%y)
      %r: f32[2,3] = aten.relu.default(%x)
      %c: f32[2,3] = aten.copy.default(%b, %r)
      %z: f32[2,3] = aten.exp.default(%c)
      return %z
    }"""


def test_a_value_is_its_own_copy_over_another_that_lies_alike() -> None:
    graph = read(STORED)
    assert kinds(equal(graph, canonical(graph, Trace()))) == ["relu", "exp"]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("return %z", "return %z, %r"),  # the caller may write to one of them
        ("%b, %r", "%b, %x"),  # so may a copy of an input be
        ("aten.exp.default(%c)", "aten.add.Tensor(%c, %r)"),
        (
            "%b: f32[2,3] = aten.neg.default(%y)",
            "%s: f32[3,2] = aten.reshape.default(%y, [3, 2])\n"
            "      %b: f32[2,3]{1,2} = aten.t.default(%s)",
        ),
    ],
)
def test_other_copies_over_a_value_stay(was: str, now: str) -> None:
    text = STORED.replace(was, now)
    if "aten.t." in now:
        text = text.replace("%c: f32[2,3] =", "%c: f32[2,3]{1,2} =")
        text = text.replace("%z: f32[2,3] =", "%z: f32[2,3]{1,2} =")
    graph = read(text)
    assert "copy" in kinds(equal(graph, canonical(graph, Trace())))


def test_one_image_without_a_batch() -> None:
    graph = read("""
    graph g {
      input %x: f32[4,6,6]
      const %w: f32[3,4,3,3] = w
      %y: f32[3,4,4] = aten.conv2d.default(%x, %w)
      return %y
    }""")
    assert kinds(equal(graph, canonical(graph, Trace()))) == ["unsqueeze", "convolution", "squeeze"]


def test_statistics_that_somebody_reads_stay() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,4]
      const %m: f32[4] = m
      %n: f32[2,4], %n.1: f32[4], %n.2: f32[4] = aten.native_batch_norm.default(%x, None, None, %m, %m, True, 0.1, 1e-05)
      return %n, %n.1
    }""")  # noqa: E501
    assert canonical(graph, Trace()) is graph
