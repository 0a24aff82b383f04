"""The mixed cost of the graphs in its docstring, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from anabranch.costs.alpha_cost import mixed, mixed_price, observed_alpha
from anabranch.ir import ops
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph, Input, Ref
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.types import TensorType

TYPE = TensorType((4, 4), torch.float32)
US = {"a": 1.0, "b": 3.0, "c": 3.0, "bc": 5.0, "d": 1.0}
PARALLEL = ("a x", "b a", "c a", "d b c")
MERGED = ("a x", "bc a", "d bc")


def alone(task: Task) -> Cost:
    return Cost(US[task.name], "measured")


def network(lines: tuple[str, ...], transposed: str = "") -> TaskGraph:
    """Tasks `name reads...`; readers of `transposed` read it through an alias."""
    alias = ops.make_node("alias", "aten.t.default", (Ref(transposed),), {transposed: TYPE})
    tasks = []
    for name, *reads in map(str.split, lines):
        reads = ["alias" if read == transposed else read for read in reads]
        args = tuple(map(Ref, (reads * 2)[:2]))
        node = ops.make_node(name, "aten.add.Tensor", args, dict.fromkeys(reads, TYPE))
        inputs = tuple(Input(read, TYPE) for read in reads)
        tasks.append(Task(name, Graph(name, inputs, (), (node,), (Ref(name),))))
    last = (Ref(tasks[-1].name),)
    aliases = (alias,) if transposed else ()
    return TaskGraph("net", (Input("x", TYPE),), (), tuple(tasks), aliases, last)


@pytest.mark.parametrize(
    ("lines", "alpha", "cost"),
    [
        (PARALLEL, 0.0, 8.0),
        (MERGED, 0.0, 7.0),
        (PARALLEL, 1.0, 13.0),
        (MERGED, 1.0, 14.0),
        (PARALLEL, 0.5, 10.5),
        (MERGED, 0.5, 10.5),
    ],
)
def test_merging_lowers_the_sum_and_lengthens_the_path(
    lines: tuple[str, ...], alpha: float, cost: float
) -> None:
    assert mixed(network(lines), alone, alpha) == Price(cost, alpha)


def test_dependencies_are_seen_through_aliases() -> None:
    """Both b and c wait for a, which they read as a transposed matrix."""
    tasks = network(PARALLEL, transposed="a")
    assert "alias" in tasks.tasks[1].reads
    assert mixed(tasks, alone, 1.0) == Price(13.0, 1.0)


def test_bare_times() -> None:
    assert mixed_price([], [], 2.0) == Price(0, 2.0)
    times, preds = [2, 5, 1, 3], [(), (), (0,), (2,)]
    assert mixed_price(times, preds, 2.0) == Price(2 * 6 + 11, 2.0)
    assert mixed_price(times, preds, 2.0, behind=4) == Price(2 * (6 + 4) + 11 + 4, 2.0)


@pytest.mark.parametrize(
    ("lines", "latency", "alpha"),
    [
        (PARALLEL, 8.0, 0.0),  # the path is 5, the sum 8: of the 3 off the path all show,
        (PARALLEL, 9.0, 0.0),
        (PARALLEL, 6.0, 2.0),  # or a third,
        (PARALLEL, 5.0, 16.0),  # or none
        (PARALLEL, 4.0, 16.0),
        (MERGED, 7.0, 0.0),  # there is nothing off the path
    ],
)
def test_alpha_is_what_a_run_shows(lines: tuple[str, ...], latency: float, alpha: float) -> None:
    assert observed_alpha(network(lines), alone, Cost(latency, "measured")) == alpha


def test_alpha_is_nothing_where_side_by_side_takes_longer() -> None:
    """A small branch off a chain costs more, by its fork, than it takes."""
    us, tasks = {"a": 6.0, "b": 6.0, "c": 0.1, "d": 6.0}, network(PARALLEL)
    machine = Calibration(fork_us=0.5, lane_us=1.0, short_us=3.0, release_us=0.5)

    def taken(task: Task) -> Cost:
        return Cost(us[task.name], "measured")

    total, wide = mixed(tasks, taken, 0.0).us, mixed(tasks, taken, 1.0).us
    assert mixed(tasks, taken, 1.0, machine).us - total > total > wide - total
    assert observed_alpha(tasks, taken, Cost(total + 3.0, "measured"), machine) == 0.0
