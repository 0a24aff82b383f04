"""Waits for memory: only where bytes are shared, always backwards."""

from __future__ import annotations

from functools import partial
from typing import Any

from anabranch.ir.schedule import Launch, Schedule
from anabranch.memory.lifetime import lifetimes
from anabranch.memory.tighten import tighten


def test_one_wait_lets_a_late_branch_reuse_an_early_one(networks: Any) -> None:
    """Two chains of two on two streams; d may take a's bytes only if it waits for b."""
    rows = [("a", ("x",), 512), ("b", ("a",), 1), ("c", ("x",), 512), ("d", ("c",), 1)]
    tasks = networks.tasks(rows, ["b", "d"])
    launches = (Launch("a", 0), Launch("b", 0), Launch("c", 1), Launch("d", 1))
    schedule = Schedule("chains", launches)
    order = {name: i for i, name in enumerate("abcd")}
    buffers_of = partial(lifetimes, tasks)
    same, loose = tighten(schedule, buffers_of, 1 << 20, order)
    assert same == schedule
    assert loose.total == 2 * 1024 + 2 * 512
    tight, placement = tighten(schedule, buffers_of, 1024 + 2 * 512, order)
    assert placement.total == 1024 + 2 * 512
    assert [launch.waits for launch in tight.launches] == [(), (), ("b",), ()]


def test_the_sequential_schedule_cannot_be_tightened(networks: Any) -> None:
    tasks = networks.inception(2)
    schedule = networks.sequential(tasks)
    order = {task.name: i for i, task in enumerate(tasks.tasks)}
    assert tighten(schedule, partial(lifetimes, tasks), 0, order)[0] == schedule


def test_launches_are_issued_in_another_order_if_theirs_holds_too_much(networks: Any) -> None:
    """Four branches of three tasks: issued level by level all four are alive at once, issued
    branch by branch their large first values may share bytes."""
    rows: list[tuple[str, tuple[str, ...], int]] = []
    for i in range(4):
        rows += [(f"a{i}", ("x",), 4096), (f"b{i}", (f"a{i}",), 64), (f"c{i}", (f"b{i}",), 64)]
    tasks = networks.tasks(rows, [f"c{i}" for i in range(4)])
    levels = tuple(Launch(f"{level}{i}", i) for level in "abc" for i in range(4))
    schedule = Schedule("levels", levels)
    order = {row[0]: i for i, row in enumerate(rows)}
    limit = 2 * 8192 + 8 * 512
    tight, placement = tighten(schedule, partial(lifetimes, tasks), limit, order)
    assert placement.total <= limit < 4 * 8192
    assert [launch.task for launch in tight.launches] == list(order)
    assert tight.streams == 4
    assert 0 < tight.waits <= 3
