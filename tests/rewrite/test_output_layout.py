"""Results come in the layout that was promised, and who depends on strides is asked."""

from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, read

from anabranch.ir.graph import Graph, types
from anabranch.rewrite.output_layout import as_promised, with_readers_kept

HEAD = "graph g {\n  input %x: f32[2,6]\n"
BEFORE = read(
    HEAD + "  %a: f32[2,3]{6,1} = aten.slice.Tensor(%x, 1, 0, 3)\n"
    "  %out: f32[2,3] = aten.relu.default(%a)\n  return %out, %x\n}"
)


def test_a_strided_result_is_copied() -> None:
    after = read(
        HEAD + "  %r: f32[2,6] = aten.relu.default(%x)\n"
        "  %out: f32[2,3]{6,1} = aten.slice.Tensor(%r, 1, 0, 3)\n  return %out, %x\n}"
    )
    found = equal(BEFORE, as_promised(after, BEFORE))
    assert [node.op for node in found.nodes][-1] == "aten.clone.default"
    assert found.nodes[-1].type.contiguous and found.outputs[1].name == "x"


def test_what_is_as_promised_is_left_alone() -> None:
    assert as_promised(BEFORE, BEFORE) is BEFORE


def test_one_value_returned_twice_is_copied_once() -> None:
    before = read(
        HEAD + "  %r: f32[2,6] = aten.relu.default(%x)\n"
        "  %out: f32[2,6] = aten.neg.default(%r)\n  return %out, %out\n}"
    )
    after = read(
        HEAD + "  %t: f32[6,2]{1,6} = aten.t.default(%x)\n  %c: f32[6,2] = aten.clone.default(%t, "
        "memory_format=torch.contiguous_format)\n  %r: f32[6,2] = aten.relu.default(%c)\n"
        "  %n: f32[6,2] = aten.neg.default(%r)\n  %out: f32[2,6]{1,2} = aten.t.default(%n)\n"
        "  return %out, %out\n}"
    )
    found = equal(before, as_promised(after, before))
    assert [node.op for node in found.nodes].count("aten.clone.default") == 2
    assert found.outputs[0] == found.outputs[1]


def strided(strides: str, relu: bool) -> Graph:
    value = "aten.relu.default(%t)" if relu else "aten.neg.default(%t)"
    return read(
        f"graph g {{\n  input %x: f32[3,4]\n  %t: f32[4,3]{{1,4}} = aten.t.default(%x)\n"
        f"  %a: f32[4,3]{strides} = {value}\n"
        "  %out: f32[12] = aten.as_strided.default(%a, [12], [1])\n  return %out\n}"
    )


def test_who_depends_on_strides_refuses() -> None:
    before, after = strided("{1,4}", True), strided("", True)
    assert as_promised(before, before) is before
    with pytest.raises(ValueError, match="must find %a as it was"):
        as_promised(after, before)


def test_who_depends_on_strides_gets_a_copy_behind_passes() -> None:
    before, after = strided("{1,4}", True), strided("", True)
    found = equal(before, with_readers_kept(after, before))
    assert [node.op.split(".")[1] for node in found.nodes].count("clone") == 1
    assert with_readers_kept(before, before) is before


def drawing(lies: str, made: str) -> Graph:
    return read(
        f"graph g {{\n  input %x: f32[2,3,4,5]{{60,1,15,3}}\n  %a: f32[2,3,4,5]{lies} = {made}\n"
        f"  %r: f32[2,3,4,5]{lies} = aten.rand_like.default(%a)\n"
        "  %out: f32[2,3,4,5] = aten.add.Tensor(%r, %x)\n  return %out\n}"
    )


def test_who_draws_in_the_order_of_memory_gets_a_copy_too() -> None:
    """A pass has left rows where there was channels_last: the draw finds that, and gives it."""
    before = drawing("{60,1,15,3}", "aten.relu.default(%x)")
    after = drawing("", "aten.clone.default(%x, memory_format=torch.contiguous_format)")
    found = with_readers_kept(after, before)
    (draw,) = (node for node in found.nodes if node.op == "aten.rand_like.default")
    assert types(found)[draw.uses[0]].strides == draw.type.strides == (60, 1, 15, 3)


def test_strides_that_no_copy_makes() -> None:
    held = "graph g {{\n  input %x: f32[2,4]\n  %out: f32[2,2]{} = {}\n  return %out\n}}"
    before = read(held.format("{4,2}", "aten.slice.Tensor(%x, 1, 0, 4, 2)"))
    after = read(held.format("{4,1}", "aten.slice.Tensor(%x, 1, 0, 2)"))
    with pytest.raises(ValueError, match="which no copy makes"):
        as_promised(after, before)
