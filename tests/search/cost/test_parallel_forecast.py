"""Outlooks: what tasks would take side by side, by the model of kernels that share a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.search.cost.test_estimator import SPEC, taken, twins

from anabranch.costs.work import Work
from anabranch.fusion import partition
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph
from anabranch.ir.task import Task
from anabranch.search.cost.estimator import Appraiser
from anabranch.search.cost.parallel_forecast import outlook
from anabranch.search.cost.task_cuts import TaskCut, TaskCutter, TaskPiece
from anabranch.trace import Trace

MACHINE = replace(SPEC, fork_us=0.5, calibration=Calibration(fork_us=0.5, split_us=0.5))
TASK = Task("t", Graph("t", (), (), (), ()))


def forked(branches: int) -> TaskCut:
    """A task, so many that read it, and one that reads them all."""
    pieces = tuple(TaskPiece(str(i), str(i), 1.0, (), False, TASK) for i in range(branches + 2))
    after = frozenset(range(1, branches + 1))
    return TaskCut(pieces, (frozenset(), *(frozenset({0}) for _ in after), after))


def us(branches: int, each: float, ctas: int) -> float:
    cut = forked(branches)
    works = [Work(0.0, 0.0, 0, 1.0, 1, ctas, 1)] * len(cut.pieces)
    times = [1.0, *(each for _ in range(branches)), 1.0]
    return outlook(cut, times, works, MACHINE)


def test_each_branch_more_costs_a_fork() -> None:
    assert us(1, 3.0, 4) == pytest.approx(5.0)
    assert us(2, 3.0, 4) == pytest.approx(5.5)
    assert us(4, 3.0, 4) == pytest.approx(6.5)


def test_a_branch_shorter_than_a_fork_stays_in_line() -> None:
    assert us(2, 0.2, 4) == pytest.approx(2.4)


def test_branches_that_fill_the_machine_gain_nothing_by_it() -> None:
    assert us(2, 3.0, SPEC.sms) >= us(2, 3.0, 4) + 2.0


def test_a_graph_is_seen_with_what_is_known_of_its_tasks() -> None:
    tasks = partition(twins(16), Trace(), MACHINE)
    price = Appraiser(taken(tasks), TaskCutter(MACHINE, False), 0.0)
    each, found = price(twins(16)).us / 2, price.outlook(twins(16))
    assert found.us == pytest.approx(each + 0.5) and found.source == "estimated"
    assert price.fresh(twins(16)) == frozenset() and len(price.fresh(twins(32))) == 1
