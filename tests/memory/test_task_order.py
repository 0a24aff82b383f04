"""What frees bytes runs at once, where the arena is smaller by it."""

from __future__ import annotations

from typing import Any

from anabranch.ir.target import TargetSpec
from anabranch.memory.planner import pack
from anabranch.memory.task_order import frugal
from anabranch.schedule.sequential import in_a_row

CPU = TargetSpec("cpu", "a CPU")


def test_weight_gradients_do_not_wait_for_all_data_gradients(networks: Any) -> None:
    """Each data gradient lives until the weight gradient that reads it, which is small."""
    rows: list[tuple[str, tuple[str, ...], int]]
    rows = [("rate", ("x",), 1), ("g3", ("x",), 512), ("g2", ("g3",), 512), ("g1", ("g2",), 512)]
    rows += [(f"w{i}", (f"g{i}", "rate"), 1) for i in (3, 2, 1)]
    tasks = networks.tasks(rows, ["w1", "w2", "w3"])
    made = frugal(tasks, CPU)
    assert [task.name for task in made.tasks] == ["rate", "g3", "w3", "g2", "w2", "g1", "w1"]
    sizes = [pack(one, in_a_row(one), CPU).arena_bytes for one in (made, tasks)]
    assert sizes[0] < sizes[1]
    assert frugal(made, CPU) is made, "nothing is gained any more"
