from __future__ import annotations

import pytest
from tests.rewrite.graphs import read

from anabranch.errors import VerifyError
from anabranch.rewrite.passes.functional import functional
from anabranch.trace import Trace


def test_an_operator_that_writes_is_a_defect() -> None:
    graph = read("""
    graph g {
      input %x: f32[2]
      %y: f32[2] = aten.add_.Tensor(%x, 1)
      return %y
    }""")
    with pytest.raises(VerifyError, match=r"aten\.add_\.Tensor writes to its arguments"):
        functional(graph, Trace())
