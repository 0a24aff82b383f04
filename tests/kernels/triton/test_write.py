"""Tools written before today's names find what they ask for."""

from __future__ import annotations

from anabranch.ir.task import TaskGraph
from anabranch.kernels.triton import codegen, write


def test_former_names_lead_to_what_they_named() -> None:
    assert write.program is codegen.program
    empty = TaskGraph("empty", (), (), (), (), ())
    assert empty.joins == empty.elided_concats == ()
