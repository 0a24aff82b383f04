"""How constants were computed is written down and done again: the same operators, the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import captured, drawn
from torch import nn

from anabranch.ir import derive
from anabranch.ir.graph import Constant, Derivation, Graph, Node, Ref
from anabranch.ir.key import digest_tensor
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.types import TensorType, type_of
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.trace import Trace

CPU = torch.device("cpu")


class Folds(nn.Module):
    """A norm that goes into a weight, one that stays pointwise, a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, groups=8)
        self.last = nn.BatchNorm2d(8)
        for buffer in self.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((8, 1, 1), 0.5) + self.norm.weight[:, None, None].exp()
        return torch.relu(self.last(torch.relu(self.deep(self.norm(self.conv(x)))))) * scale


def simplified(graph: Graph, kind: str = "cuda", tf32: bool = True) -> Graph:
    return simplify(graph, Stepper(Trace()), Options(tf32=tf32), kind)


def done_again(before: Graph, after: Graph) -> None:
    """The steps give the very values, laid out alike, and read only what is given."""
    steps = derive.write(before.constants, after.constants)
    steps = derive.Steps.model_validate_json(steps.model_dump_json())
    given = {c.name: c.value for c in before.constants if c.value is not None}
    values = derive.read(steps, given, CPU)
    assert list(values) == [c.name for c in after.constants]
    for constant in after.constants:
        want, got = constant.value, values[constant.name]
        assert want is not None and type_of(got) == type_of(want)
        assert torch.equal(got, want)
        if constant in before.constants:
            assert got is given[constant.name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_passes_fold_is_computed_again(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    graph = captured(Folds().to(dtype), torch.randn(1, 3, 9, 9, dtype=dtype))
    after = simplified(graph)
    assert any(c.derived is not None for c in after.constants)
    done_again(graph, after)
    done_again(graph, simplified(graph, "cpu"))
    done_again(after, simplified(after))


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_steps_of_random_graphs_are_done_again(seed: int) -> None:
    graph = drawn(seed)
    done_again(graph, simplified(graph))


def test_calls_that_read_other_values_are_one_sort() -> None:
    def steps(norms: int) -> derive.Steps:
        parts = (nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) for _ in range(norms))
        graph = captured(nn.Sequential(*parts), torch.randn(1, 4, 2, 2))
        return derive.write(graph.constants, simplified(graph).constants)

    one, five = steps(1), steps(5)
    assert len(five.steps) == 5 * len(one.steps)
    assert len(five.sorts) == len(one.sorts) < len(one.steps)


def test_a_constant_of_unknown_origin_is_refused() -> None:
    value = torch.ones(2)
    unknown = Constant("w", type_of(value), digest_tensor(value), value)
    with pytest.raises(ValueError, match="nobody says how %w"):
        derive.write((), (unknown,))
    other = Constant("w", type_of(value), "of other content", value)
    with pytest.raises(ValueError, match="nobody says how %w"):
        derive.write((other,), (unknown,))


def test_steps_without_end_are_refused() -> None:
    type = TensorType((2,), torch.float32)
    last: Constant | Derivation = Constant("w", type, "w", torch.ones(2))
    given = last
    for _ in range(3000):
        last = Derivation(Node("n", "aten.neg.default", (Ref("w"),), (), (type,)), 0, {"w": last})
    assert isinstance(last, Derivation) and isinstance(given, Constant)
    with pytest.raises(ValueError, match="too many steps"):
        derive.write((given,), (Constant("made", type, "made", None, last),))


def test_constants_that_are_made_again_say_how() -> None:
    before = captured(Folds(), torch.randn(2, 3, 9, 9))
    after = simplified(before)
    steps = derive.write(before.constants, after.constants)
    bare = [Constant(c.name, c.type, c.digest, c.value) for c in after.constants]
    again = derive.told(steps, bare, before.constants)
    assert again == after.constants
    told = derive.write(before.constants, again)
    assert (told.given, told.made.keys()) == (steps.given, steps.made.keys())
    assert len(told.steps) == len(steps.steps)
    given = {c.name: c.value for c in before.constants if c.value is not None}
    one, other = (derive.read(s, given, CPU) for s in (steps, told))
    assert all(torch.equal(one[name], other[name]) for name in one)
