"""Kernels of plans and profiles that call their templates by former names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.costs.former_kernels import with_former_names
from anabranch.ir.codec import tell_kernel, told_kernel
from anabranch.ir.entry_name import entry_name
from anabranch.ir.task import Kernel
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import parse_variant

BODY = parse_graph("""
graph relu {
  input %x: f32[4]
  %relu: f32[4] = aten.relu.default(%x)
  return %relu
}""")
NAMES = {
    "pair:32x64x64x64.k1.w4.s3.pe": "gemm_chain:32x64x64x64.k1.w4.s3.pe",
    "abreast:rows:1x32.w4+pair:16x16x16x16.k1.w4.s1.c50": (
        "horizontal:rows:1x32.w4+gemm_chain:16x16x16x16.k1.w4.s1.c50"
    ),
}


@pytest.mark.parametrize(("then", "now"), NAMES.items())
def test_what_was_told_in_former_names_is_read_in_those_of_today(then: str, now: str) -> None:
    variant = parse_variant(now)
    entry = entry_name(variant.template, BODY)
    source = f"# {now}\nimport triton\ndef {entry}(x_ptr):\n"
    today = Kernel("triton", variant.template, BODY, variant, source=source)
    former = with_former_names(today)
    assert former is not None
    assert (former.name, former.variant) == (then.partition(":")[0], then)
    assert former.source == f"# {then}\nimport triton\ndef {former.name}_relu(x_ptr):\n"
    assert told_kernel(tell_kernel(former, BODY), BODY) == replace(today, source="")


def test_other_kernels_were_always_called_so() -> None:
    rows = parse_variant("rows:1x32.w4")
    assert with_former_names(Kernel("triton", "rows", BODY, rows)) is None
    library = Kernel("aten", "pair", BODY)
    assert with_former_names(library) is None
    assert told_kernel(tell_kernel(library, BODY), BODY) == library
