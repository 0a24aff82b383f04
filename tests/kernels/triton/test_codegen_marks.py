"""Marks in padding, as generated kernels read them: numbers near the end of what a type holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import compiled

from anabranch.ir.graph import Graph
from anabranch.ir.padding_marks import MARKS
from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.codegen import program, variants

KINDS = {torch.int64: "i64", torch.int32: "i32"}


def reading(dtype: torch.dtype) -> Graph:
    kind, mark, end = KINDS[dtype], MARKS[dtype], torch.iinfo(dtype).min
    return parse_graph(f"""
    graph body {{
      input %ids: {kind}[3,8]
      %row: {kind}[8] = aten.select.int(%ids, 0, 0)
      %padding: b1[8] = aten.eq.Scalar(%row, {mark})
      %marks: b1[3,8] = aten.eq.Scalar(%ids, {mark})
      %unmarked: {kind}[3,8] = aten.masked_fill.Scalar(%ids, %marks, 0)
      %hidden: {kind}[3,8] = aten.masked_fill.Scalar(%unmarked, %padding, {end})
      return %unmarked, %hidden
    }}""")


@pytest.mark.parametrize("dtype", KINDS)
def test_marks_are_found_in_a_kernel(dtype: torch.dtype, tmp_path: Path) -> None:
    body = reading(dtype)
    ids = torch.randint(-9, 9, (3, 8), dtype=dtype)
    ids[:, 5:] = MARKS[dtype]
    ids[0, 0] = torch.iinfo(dtype).min  # a number beside
    tried = variants(body, gpu(132))[:2]
    check(body, tried, [ids])
    ptx = compiled(program(body, tried[0]), 90, tmp_path)["ptx"]
    assert all(str(number) in ptx for number in (MARKS[dtype], torch.iinfo(dtype).min))
