from __future__ import annotations

import pytest

from anabranch.schedule.ios.stage_cost import stage_estimate


def test_the_docstring() -> None:
    """Tasks a 4, b 3, c 3 us, each half of the machine."""
    cost = stage_estimate([4, 3, 3], [0.5, 0.5, 0.5], 0.5)
    assert cost((0b001, 0b010)) == pytest.approx(4.5)
    assert cost((0b001, 0b010, 0b100)) == pytest.approx(6.0)


def test_one_group_is_its_tasks_in_a_row() -> None:
    assert stage_estimate([4, 3], [1.0, 1.0], 0.5)((0b11,)) == 7
