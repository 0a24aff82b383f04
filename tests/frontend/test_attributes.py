"""What modules are beside their tensors, told apart and written down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from anabranch.frontend.attributes import attributes, other, read_attributes


class Holder(nn.Module):
    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held


def twice(x: float) -> float:
    return 2 * x


HELD: list[Callable[[], tuple[object, object]]] = [
    lambda: (1, 2),
    lambda: (1, 1.0),
    lambda: (True, 1),
    lambda: ("relu", "gelu"),
    lambda: ((1, 2), (1, 3)),
    lambda: ({"a": 1}, {"a": 2}),
    lambda: (torch.float16, torch.float32),
    lambda: (torch.relu, torch.tanh),
    lambda: (twice, abs),
    lambda: ([torch.ones(2)], [torch.zeros(2)]),
]


@pytest.mark.parametrize("pair", HELD)
def test_plain_attributes_are_told_apart(pair: Callable[[], tuple[object, object]]) -> None:
    first, second = pair()
    recorded = attributes(Holder(first))
    assert other(Holder(first), recorded) is None
    assert other(Holder(second), recorded) == ""


def test_tensors_that_are_attributes_and_objects_of_unknown_classes_say_nothing() -> None:
    recorded = attributes(Holder(torch.ones(2)))
    assert other(Holder(torch.zeros(2)), recorded) is None
    assert other(Holder(object()), attributes(Holder(object()))) is None


def test_who_says_nothing_differs_from_nobody() -> None:
    assert attributes(len) == {}
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    assert attributes(graph) == {}
    assert other(graph, attributes(nn.ReLU())) is None
    assert other(nn.ReLU(), {}) is None


def test_what_is_no_record_is_none() -> None:
    recorded = attributes(nn.Sequential(nn.ReLU()))
    assert read_attributes(recorded) == recorded
    for given in (None, [1], {"a": 1}, {"a": None}, 3):
        assert read_attributes(given) == {}
