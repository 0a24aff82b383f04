"""Facts of how kernels are launched, told of their variants."""

from __future__ import annotations

import pytest

from anabranch.ir.task import Kernel, Task, TaskGraph, read_variant
from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.l1_carveout import carveout_of
from anabranch.report.summary import _modes

BODY = parse_graph("""
graph g {
  input %x: f32[256]
  %y: f32[256] = aten.exp.default(%x)
  return %y
}""")


def tasks(*kernels: tuple[str, str]) -> TaskGraph:
    """Of providers and variants."""
    made = tuple(
        Task(f"t{i}", BODY, Kernel(provider, "k", BODY, read_variant(provider, variant)))
        for i, (provider, variant) in enumerate(kernels)
    )
    return TaskGraph("g", BODY.inputs, (), made, (), BODY.outputs)


@pytest.mark.parametrize(
    ("variants", "modes", "carveout"),
    [
        (["pointwise:1.w2", "pointwise:1.w2"], {"none": 2}, 100),
        (["pointwise:1.w2.pa", "pointwise:1.w2.pe", "pointwise:2.w2.pa"], {"a": 2, "e": 1}, 100),
        (["pointwise:1.w2.pa.c50", "pointwise:1.w2.c50"], {"a": 1, "none": 1}, 50),
        (["pointwise:1.w2.c50", "pointwise:1.w2"], {"none": 2}, 100),
        ([], {}, 25),
    ],
)
def test_modes_and_carve_out(variants: list[str], modes: dict[str, int], carveout: int) -> None:
    """Kernels of libraries have neither in their variants, whatever those are."""
    plan = tasks(("cudnn", "3.c25"), *(("triton", variant) for variant in variants), ("aten", ""))
    assert _modes(plan) == modes
    assert carveout_of(plan) == carveout
