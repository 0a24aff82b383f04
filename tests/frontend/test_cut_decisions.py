"""What Python computes and decides by floating-point numbers of a model that is cut."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import anabranch
from anabranch.errors import DataDependentError
from anabranch.frontend.cut_checks import Unseen
from anabranch.frontend.cut_trace import trace_cuts
from anabranch.frontend.structure import same_literal
from anabranch.frontend.surroundings import surroundings

VALUES = (1.5, 0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, 3.0, 1e-45, 1e38, -2.0)
DECIDED: dict[str, Callable[[float], bool]] = {
    "is_nan": lambda v: v != v,
    "is_finite": lambda v: v - v == 0,
    "is_finite_by_0": lambda v: v * 0 == 0,
    "is_0": lambda v: v == 0,
    "between": lambda v: v <= 0 and v >= 0,
    "not_less": lambda v: not v < 1,
    "rounded": lambda v: (v + 0.1) + 0.2 == v + (0.1 + 0.2),
    "lost": lambda v: (v + 1.0) - 1.0 == v,
    "square": lambda v: v * v >= 0,
    "absolute": lambda v: abs(v) >= 0,
    "quotient": lambda v: bool(v) and v / v == 1,
}


@pytest.mark.parametrize("example", [1.5, 0.0, -0.0, math.nan])
@pytest.mark.parametrize("name", DECIDED)
def test_a_way_is_taken_only_where_the_model_takes_it(name: str, example: float) -> None:
    decides = DECIDED[name]

    def model(x: Tensor) -> tuple[float, bool]:
        v = x.item()
        return (v, True) if decides(v) else (v * 2, False)

    trace = trace_cuts(model, (torch.tensor(example),), {}, surroundings())
    module = torch.fx.GraphModule(trace.held, trace.graph)
    came = 0
    for value in (example, *VALUES):
        x = torch.tensor(value)
        try:
            found = module(x)
        except Unseen:
            continue
        came += 1
        assert all(map(same_literal, found, model(x))), value
    assert came, "the example goes its own way"


CAUGHT: dict[str, tuple[Tensor, Callable[[float], float]]] = {
    "quotient": (torch.tensor(0.0), lambda v: 1 / v),
    "whole quotient": (torch.tensor(0), lambda v: 5 // v),
    "rest": (torch.tensor(0), lambda v: 5 % v),
    "whole": (torch.tensor(math.nan), int),
    "rounded": (torch.tensor(math.inf), round),
    "power": (torch.tensor(1e300, dtype=torch.float64), lambda v: v**2),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_what_raises_for_a_number_and_is_caught_does_so_for_this_number(name: str) -> None:
    example, compute = CAUGHT[name]

    def model(x: Tensor) -> tuple[float, bool]:
        try:
            return compute(x.item()), True
        except (ArithmeticError, ValueError):
            return 0.0, False

    trace = trace_cuts(model, (example,), {}, surroundings())
    module = torch.fx.GraphModule(trace.held, trace.graph)
    assert module(example) == [0.0, False]
    with pytest.raises(Unseen, match="item == "):
        module(torch.ones_like(example))


def test_numbers_are_those_of_python() -> None:
    def model(x: Tensor) -> tuple[float, ...]:
        v, w = x.tolist()
        quotients = v // 0.1, divmod(v, 0.1)[0], 1.0 // (abs(v) + 0.1), -v // 3
        return *quotients, v - v, w - w, v * 0, w * 0, v + 0.1 + 0.2, v + (0.1 + 0.2), v + 0

    trace = trace_cuts(model, (torch.tensor([1.5, 2.5]),), {}, surroundings())
    module = torch.fx.GraphModule(trace.held, trace.graph)
    for value in VALUES:
        for x in (torch.tensor([value, 1.0]), torch.tensor([1.0, value])):
            assert all(map(same_literal, module(x), model(x))), x


def test_what_was_decided_is_said() -> None:
    def model(x: Tensor) -> float:
        v: float = x.item()
        return v if v * 2 > 1 and v == v else 0.0

    trace = trace_cuts(model, (torch.tensor(1.5),), {}, surroundings())
    (cut,) = trace.cuts
    assert [check.text for check in cut.checks] == ["(item * 2.0) > 1.0", "item == item"]


@pytest.mark.parametrize("name", ["is_nan", "is_finite", "rounded", "square", "absolute"])
def test_a_plan_decides_nothing_by_them(name: str) -> None:
    decides = DECIDED[name]

    def model(x: Tensor) -> Tensor:
        return x + 1 if decides(x[0].item()) else x * 2

    with pytest.raises(DataDependentError, match=r"floating-point|depends on the values"):
        anabranch.compile(
            model, (torch.ones(3),), target="cpu", search="none", cache_dir=None, fullgraph=True
        )


@pytest.mark.parametrize("name", ["square", "absolute", "is_finite"])
def test_what_is_checked_of_them_is_checked_though_it_is_true_of_real_numbers(name: str) -> None:
    decides = DECIDED[name]

    def model(x: Tensor) -> Tensor:
        torch._check(decides(x[0].item()))  # type: ignore[no-untyped-call] # torch annotates none
        return x.sin().cos().exp()

    fast = anabranch.compile(model, (torch.ones(3),), target="cpu", search="none", cache_dir=None)
    x = torch.tensor([math.nan, 1.0, 2.0])
    for call in (model, fast):
        with pytest.raises(RuntimeError, match="Expected cond to be True"):
            call(x)
    torch.testing.assert_close(fast(torch.ones(3)), model(torch.ones(3)))
