"""Successive halving with times that are written down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.tuning import halving
from anabranch.tuning.halving import successive_halving

BODIES = {
    width: parse_graph(
        f"graph g {{\n  input %x: f32[{width}]\n  %r: f32[{width}] = aten.relu.default(%x)\n"
        "  return %r\n}\n"
    )
    for width in (4, 8)
}


def measured(us: float) -> Cost:
    return Cost(us, "measured", 0.1)


def answered(
    rough: dict[int, float], precise: dict[int, Cost | None], bodies: Sequence[int]
) -> tuple[list[Cost | None], list[int]]:
    """The answer for tasks of these bodies, and which were timed precisely."""
    tasks = [Task(str(i), BODIES[width]) for i, width in enumerate(bodies)]
    asked: list[int] = []

    def trial(given: Sequence[Task]) -> list[Cost | None]:
        asked.extend(int(task.name) for task in given)
        return [precise[int(task.name)] for task in given]

    return successive_halving(tasks, {i: measured(us) for i, us in rough.items()}, trial), asked


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halving, "FINALISTS", 3)


def test_the_example_of_the_module() -> None:
    rough = {0: 3.1, 1: 3.0, 2: 4.9, 3: 3.3, 4: 6.0}
    precise = {0: measured(3.2), 1: measured(3.3), 3: measured(3.4)}
    found, asked = answered(rough, dict(precise), [4] * 5)
    assert asked == [0, 1, 3]
    assert [cost.us for cost in found if cost] == [3.2, 3.3, 4.9, 3.4, 6.0]


def test_who_is_out_is_no_faster_than_who_is_not() -> None:
    found, _ = answered(
        {0: 3.0, 1: 3.0, 2: 3.0, 3: 3.1}, {i: measured(5.0 + i) for i in range(3)}, [4] * 4
    )
    assert found[3] is not None and found[3].us == 7.0


def test_every_body_has_its_own_heat_and_what_has_no_rough_time_is_always_timed() -> None:
    rough = {0: 1.0, 1: 1.1, 2: 1.2, 3: 1.25, 4: 9.0}
    precise: dict[int, Cost | None] = {i: measured(float(i)) for i in range(6)}
    found, asked = answered(rough, precise, [4, 4, 4, 4, 8, 8])
    assert asked == [0, 1, 2, 4, 5] and found[5] == precise[5] and found[4] == precise[4]


def test_who_is_far_behind_is_not_timed_but_the_second_always_is() -> None:
    precise: dict[int, Cost | None] = {i: measured(1.0 + i) for i in range(4)}
    _, asked = answered({0: 1.0, 1: 1.2, 2: 1.4}, precise, [4] * 3)
    assert asked == [0, 1]
    found, asked = answered({0: 1.0, 1: 3.0, 2: 3.1}, precise, [4] * 3)
    assert asked == [0, 1] and found[2] == measured(3.1)


def test_a_rough_time_is_better_than_none() -> None:
    precise = {0: Cost(0.5, "estimated"), 1: None}
    found, _ = answered({0: 2.0, 1: 3.0}, precise, [4, 4])
    assert found == [measured(2.0), None]
