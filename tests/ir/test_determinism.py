"""Which of torch's operators give other bits in another run, and which have another kernel."""

from __future__ import annotations

import pytest

from anabranch.ir import determinism
from anabranch.ir.determinism import any_order, switched, unordered
from anabranch.ir.ops import resolve
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph

CONVOLUTION = """graph g {{
  input %x: f32[1,4,6,6]
  input %w: f32[4,4,3,3]
  %y: f32[1,4,6,6] = aten.convolution.default(%x, %w, None, [1, 1], [1, 1], [1, 1], {}, [0, 0], 1)
  return %y
}}"""
PUT = """graph g {
  input %x: f32[9]
  input %i: i64[4]
  input %v: f32[4]
  %y: f32[9] = aten.index_put.default(%x, [%i], %v, True)
  return %y
}"""
RUNNING = """graph g {{
  input %x: {0}[9]
  %y: {0}[9] = aten.cumsum.default(%x, 0)
  return %y
}}"""
UNPOOLED = """graph g {
  input %x: f32[1,2,2,2]
  input %i: i64[1,2,2,2]
  %y: f32[1,2,4,4] = aten.max_unpool2d.default(%x, %i, [4, 4])
  return %y
}"""


@pytest.mark.parametrize(
    ("text", "gpu", "cpu", "other_kernel"),
    [
        (CONVOLUTION.format(False), False, False, True),
        (CONVOLUTION.format(True), True, False, True),
        (PUT, True, True, True),
        (RUNNING.format("f32"), True, False, False),
        (RUNNING.format("i64"), False, False, True),
        (UNPOOLED, True, True, False),
    ],
)
def test_calls_whose_order_is_not_fixed(
    text: str, gpu: bool, cpu: bool, other_kernel: bool
) -> None:
    body = parse_graph(text)
    assert (any_order(body, "cuda") is not None) == gpu
    assert (any_order(body, "cpu") is not None) == cpu
    assert switched(body, "cuda") == other_kernel


def test_the_reason_names_the_operator_and_only_kernels_of_torch_are_meant() -> None:
    body = parse_graph(PUT)

    def why(provider: str, variant: str = "") -> str:
        return str(unordered(Task("t", body, Kernel(provider, "k", body, variant)), "cuda") or "")

    assert why("aten") == "aten.index_put works in any order on a GPU"
    assert why("aten", "in_order") == why("triton") == why("cudnn") == ""


def test_the_table_names_operators_that_there_are() -> None:
    for packet in determinism._TABLE:
        assert packet.startswith("anabranch.") or any(
            _exists(f"{packet}.{overload}")
            for overload in ("default", "dim", "src", "two", "input")
        ), packet


def _exists(op: str) -> bool:
    try:
        resolve(op)
    except Exception:
        return False
    return True
