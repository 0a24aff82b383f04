from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds, read
from torch import Tensor, nn

from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.passes.matrix_transposes import matrix_transposes
from anabranch.rewrite.rules import CANDIDATES
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace


class Module(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


TRANSPOSES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.mT,
    lambda x: x.transpose(-1, -2),
    lambda x: x.transpose(-2, -1),
    lambda x: x.permute(*range(x.dim() - 2), -1, -2),
]


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("turn", TRANSPOSES)
def test_a_turn_moves_through_a_product_however_it_is_spelled(
    rank: int, turn: Callable[[Tensor], Tensor]
) -> None:
    """(x.T @ y.T).T is y @ x."""
    x, y = torch.rand(2, 3, 4), torch.rand(2, 5, 3)
    sides = (x, y) if rank == 3 else (x[0], y[0])
    raw = captured(Module(lambda a, b: turn(turn(a) @ turn(b))), *sides)
    whole = equal(raw, simplify(raw, Stepper(Trace()), Options()))
    rule, match = next(
        (rule, m) for rule in CANDIDATES["transposed_operands"] for m in matches(whole, rule)
    )
    after = simplify(apply(whole, rule, match), Stepper(Trace()), Options())
    assert kinds(equal(raw, after)) == ["mm" if rank == 2 else "bmm"]


def test_other_turns_stay() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3,4]
      input %y: f32[2,4,3]
      %p: f32[4,2,3]{1,12,4} = aten.permute.default(%x, [2, 0, 1])
      %q: f32[2,4,3]{12,1,4} = aten.permute.default(%x, [0, 2, 1])
      %b: f32[2,3,3] = aten.bmm.default(%x, %y)
      %t: f32[2,3,3]{9,1,3} = aten.transpose.int(%b, 1, 2)
      %r: f32[3,2,3]{3,9,1} = aten.transpose.int(%b, 0, 1)
      return %p, %q, %t, %r
    }""")
    assert matrix_transposes(graph, Trace()) is graph
