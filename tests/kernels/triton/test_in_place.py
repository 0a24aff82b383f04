"""Kernels that write a result where one of their inputs lies."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.kernels.triton.interpreter import check
from tests.tuning.states import ADAM, COUNTER, MOMENTUM, OF_ROWS, TO_WEIGHTS

from anabranch.ir.graph import Graph, State
from anabranch.ir.state import elementwise
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant, parse_variant
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.in_place import (
    TEMPLATES,
    why_not_in_place,
    why_text_not_in_place,
)
from anabranch.targets import resolve
from anabranch.tuning.joint_tasks import joint

pytest.importorskip("triton")

UPDATES = {
    "pointwise": (MOMENTUM, {"new_m": "m", "new_p": "p"}),
    "three results": (ADAM, {"new_m": "m", "new_v": "v", "new_p": "p"}),
    "rows": (OF_ROWS, {"new_m": "m", "new_p": "p"}),
    "contraction": (TO_WEIGHTS, {"new_m": "m"}),
    "one element": (COUNTER, {"new_n": "n"}),
}


def spec() -> TargetSpec:
    return resolve("sim:h200").spec


def offered(body: Graph) -> list[Variant]:
    """The first variant of each tile's shape: of all warps and stages the text is alike."""
    found: dict[str, Variant] = {}
    for variant in variants(body, spec()):
        if variant.template in TEMPLATES:
            found.setdefault(str(variant).partition(".")[0], variant)
    return list(found.values())[:4]


@pytest.mark.parametrize("name", UPDATES)
def test_a_state_is_updated_where_it_lies(name: str) -> None:
    text, over = UPDATES[name]
    body = parse_graph(text)
    several = offered(body)
    assert several
    for variant in several:
        written = program(body, variant)
        for new, old in over.items():
            assert why_text_not_in_place(written, new, old) is None, written.text
    check(body, several, over=over)


def test_one_element_is_written_over_by_one_thread_alone() -> None:
    """Another thread might read it when it is written already."""
    written = program(body := parse_graph(COUNTER), offered(body)[0])
    every = replace(written, text=written.text.replace(", mask=i_in", ""))
    assert every.text != written.text
    assert why_text_not_in_place(written, "new_n", "n") is None
    assert why_text_not_in_place(every, "new_n", "n") is not None


def two_updates() -> Graph:
    """Two updates as one launch."""
    first, second = parse_graph(OF_ROWS), parse_graph(re.sub(r"%(\w+)", r"%other_\1", MOMENTUM))
    first = replace(first, states=(State("m", 0), State("p", 1)))
    second = replace(second, states=(State("other_m", 0), State("other_p", 1)))
    return joint((Task("first", first), Task("second", second))).body


def test_parts_of_one_launch_update_states_of_their_own() -> None:
    body = two_updates()
    tile = parse_variant("horizontal:rows:8x64.w4+pointwise:128.w4")
    over = Task("both", body).overwrites
    assert over == {"new_m": "m", "new_p": "p", "other_new_m": "other_m", "other_new_p": "other_p"}
    kernel = Kernel("triton", "horizontal", body, tile)
    for new, old in over.items():
        assert elementwise(body, new, old)
        assert why_not_in_place(kernel, {new: old}) is None
    check(body, [tile], over=over)


def test_what_another_part_reads_is_not_written_over() -> None:
    text = re.sub(r"%(\w+)", r"%other_\1", OF_ROWS).replace("%other_m", "%m")
    parts = [parse_graph(OF_ROWS), parse_graph(text)]
    body = joint(tuple(Task(graph.name, graph) for graph in parts)).body
    tile = parse_variant("horizontal:rows:8x64.w4+rows:8x64.w4")
    kernel = Kernel("triton", "horizontal", body, tile)
    assert "another part" in str(why_not_in_place(kernel, {"new_m": "m"}))
    assert why_not_in_place(kernel, {"new_p": "p"}) is None


@pytest.mark.parametrize("mode", "nwleaf")
def test_launch_modes_change_nothing(mode: str) -> None:
    """What may be read before the wait are constants."""
    body = parse_graph(TO_WEIGHTS)
    variant = parse_variant(f"{offered(body)[0]}.p{mode}")
    kernel = Kernel("triton", "contraction", body, variant)
    assert why_not_in_place(kernel, {"new_m": "m"}) is None


BODY = parse_graph("""
graph step {
  input %m: f32[64]
  input %g: f32[64]
  %n: f32[64] = aten.add.Tensor(%m, %g)
  return %n
}
""")
KERNEL = """
@triton.jit
def step(m_ptr, g_ptr, n_ptr):
    i = tl.program_id(0) * 32 + tl.arange(0, 32)
    g = tl.load(g_ptr + (63 - i))
    m = tl.load(m_ptr + i)
    tl.store(n_ptr + i, m + g)
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("m_ptr + i)", "m_ptr + (63 - i))", "other elements of %m"),
        ("m + g)", "m + g)\n    tl.store(g_ptr + i, tl.load(m_ptr + i))", "after %n is stored"),
        ("m = tl.load(m_ptr + i)", "m = far(m_ptr, i)", "more than loads and stores"),
        ("m + g)", "m + g)\n    tl.store(n_ptr + 2 * i, m)", "at several places"),
    ],
)
def test_why_an_input_is_not_written_over(before: str, after: str, why: str) -> None:
    written = replace(program(BODY, variants(BODY, spec())[0]), text=KERNEL, entry="step")
    assert written.pointers == ("m", "g", "n")
    assert why_text_not_in_place(written, "n", "m") is None
    assert before in KERNEL
    other = replace(written, text=KERNEL.replace(before, after))
    assert why in str(why_text_not_in_place(other, "n", "m"))


def test_templates_that_compute_an_element_twice_write_over_none() -> None:
    body = parse_graph(UPDATES["pointwise"][0])
    variant = offered(body)[0]
    kernel = Kernel("triton", "k", body, variant, source=program(body, variant).text)
    assert why_not_in_place(kernel, {"new_m": "m"}) is None
    other = replace(kernel, variant=parse_variant("gemm_chain:16x16x16x16.k1.w4.s2"))
    assert "more than once" in str(why_not_in_place(other, {"new_m": "m"}))


def test_a_result_of_another_shape_may_have_elements_computed_again() -> None:
    """In a space of its own shape, where the smaller result is computed for each row."""
    text = MOMENTUM.replace(
        "  return %new_m, %new_p",
        "  %row: f32[37,1] = aten.neg.default(%s)\n  return %new_m, %row",
    ).replace("  input %rate: f32[]", "  input %rate: f32[]\n  input %s: f32[37,1]")
    body = parse_graph(text)
    kernel = Kernel("triton", "k", body, offered(body)[0])
    assert "another shape" in str(why_not_in_place(kernel, {"row": "s"}))
    assert "another shape" in str(why_not_in_place(kernel, {"new_m": "m"}))


def test_what_is_no_kernel_or_no_parameter_is_written_over_by_nobody() -> None:
    written = program(BODY, variants(BODY, spec())[0])
    assert why_text_not_in_place(written, "n", "m") is None
    assert "no kernel" in str(why_text_not_in_place(replace(written, text="x = 1\n"), "n", "m"))
    assert "none of its parameters" in str(why_text_not_in_place(written, "far", "m"))
