"""Independent parts of a body in one launch: each computes what it would alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled

from anabranch.ir.components import components
from anabranch.ir.tiles import HorizontalTile
from anabranch.ir.variant import PdlMode
from anabranch.kernels.triton.codegen import program, variants

BRANCHES = read("""
    graph branches {
      input %x: f16[1,64,5,5]{1600,1,320,64}
      input %y: f16[3,40]
      const %w: f16[48,64,3,3]{576,1,192,64} = w
      const %b: f16[48] = b
      const %v: f16[32,64,1,1]{64,1,64,64} = v
      %left: f16[1,48,5,5]{1200,1,240,48} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
      %right: f16[1,32,5,5]{800,1,160,32} = aten.convolution.default(%x, %v, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %max: f16[1,64,5,5]{1600,1,320,64} = aten.max_pool2d.default(%x, [3, 3], [1, 1], [1, 1])
      %relu: f16[1,48,5,5]{1200,1,240,48} = aten.relu.default(%left)
      %soft: f16[3,40] = aten._softmax.default(%y, 1, False)
      %tanh: f16[1,32,5,5]{800,1,160,32} = aten.tanh.default(%right)
      return %relu, %tanh, %max, %soft
    }""")  # noqa: E501
PARTS = "contraction:16x16x64.k3.w4.s2+contraction:16x16x64.k1.w4.s3+window:8x32u1.w4+rows:2x64.w4"
LAYERS = """
    graph inception {
      input %x: f16[1,192,28,28]{150528,1,5376,192}
      const %a: f16[64,192,1,1]{192,1,192,192} = a
      const %b: f16[96,192,1,1]{192,1,192,192} = b
      %one: f16[1,64,28,28]{50176,1,1792,64} = aten.convolution.default(%x, %a, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %two: f16[1,96,28,28]{75264,1,2688,96} = aten.convolution.default(%x, %b, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %max: f16[1,192,28,28]{150528,1,5376,192} = aten.max_pool2d.default(%x, [3, 3], [1, 1], [1, 1])
      return %one, %two, %max
    }"""  # noqa: E501


def test_parts_are_what_no_node_connects() -> None:
    found = components(BRANCHES)
    assert [[node.name for node in part.nodes] for part in found] == [
        ["left", "relu"],
        ["right", "tanh"],
        ["max"],
        ["soft"],
    ]
    assert [[value.name for value in part.inputs] for part in found] == [["x"], ["x"], ["x"], ["y"]]
    assert [[value.name for value in part.constants] for part in found] == [
        ["w", "b"],
        ["v"],
        [],
        [],
    ]
    assert [part.outputs[0].name for part in found] == ["relu", "tanh", "max", "soft"]


@pytest.mark.parametrize("mode", ["", ".pl", ".pe"])
def test_all_parts_compute_what_they_do_alone(mode: str) -> None:
    check(BRANCHES, [f"horizontal:{PARTS}{mode}"])


def test_the_grid_is_that_of_all_parts_and_so_is_what_they_leave_behind() -> None:
    whole = program(BRANCHES, f"horizontal:{PARTS}")
    alone = [
        program(part, variant)
        for part, variant in zip(components(BRANCHES), PARTS.split("+"), strict=True)
    ]
    assert whole.ctas == sum(one.ctas for one in alone) and whole.warps == 4
    assert whole.counters == alone[0].counters > 0 and whole.scratch >= alone[0].scratch
    assert whole.stages == 3 and not whole.pdl
    assert sorted(whole.pointers) == sorted({name for one in alone for name in one.pointers})
    assert whole.text.count("tl.program_id") == 1 and "return\n" not in whole.text


def test_each_part_loads_as_many_steps_ahead_as_it_would_alone() -> None:
    """Two stages in the first part, three in the second; the others have no loops that load."""
    text = program(BRANCHES, f"horizontal:{PARTS}").text
    first, second = (text[text.index(f"def part_{k}(") :] for k in (0, 1))
    assert "for step in tl.range(part * 3, (part + 1) * 3, num_stages=2):" in first
    assert "for step in range(1):" in second and "num_stages=3" not in text
    alike = program(BRANCHES, f"horizontal:{PARTS}".replace(".s2", ".s3")).text
    assert "num_stages" not in alike


def test_offers_have_equal_warps_and_are_few() -> None:
    body = read(LAYERS)
    offers = variants(body, gpu())
    assert 2 <= len(offers) <= 4 and len(set(offers)) == len(offers)
    for offer in offers:
        assert isinstance(offer.tile, HorizontalTile)
        assert len({part.warps for part in offer.tile.parts}) == 1
        assert program(body, offer).ctas > 100


def test_no_horizontal_kernel_of_one_part_or_where_a_template_fits() -> None:
    for part in components(BRANCHES):
        assert not any(offer.template == "horizontal" for offer in variants(part, gpu()))
    with pytest.raises(ValueError, match="equally many warps"):
        program(BRANCHES, f"horizontal:{PARTS}".replace("u1.w4", "u1.w2"))
    with pytest.raises(ValueError, match="each of 4 parts"):
        program(BRANCHES, "horizontal:" + PARTS.rpartition("+")[0])


@pytest.mark.parametrize("mode", [None, PdlMode.HOIST_CONSTANTS])
@pytest.mark.parametrize("capability", [80, 90])
def test_they_compile_without_spills(mode: PdlMode | None, capability: int, tmp_path: Path) -> None:
    if mode and capability < 90:
        return
    body = read(LAYERS)
    variant = replace(variants(body, gpu())[0], pdl=mode)
    found = compiled(program(body, variant), capability, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert stack <= SPILLED and not local, found["usage"]
    assert found["ptx"].count("griddepcontrol.wait") == (3 if mode else 0)
    assert "call.uni" not in found["ptx"], "a part is a function still"


def test_the_mathematical_library_is_imported_for_a_part() -> None:
    body = read("""
    graph remainders {
      input %x: f32[300]
      input %y: f32[300]
      %r: f32[300] = aten.fmod.Scalar(%x, 3.0)
      %s: f32[300] = aten.relu.default(%y)
      return %r, %s
    }""")
    text = program(body, "horizontal:pointwise:128.w4+pointwise:128.w4").text
    assert "libdevice.fmod(" in text and "\nfrom triton.language.extra import libdevice\n" in text
