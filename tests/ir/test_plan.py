"""What a plan takes for intermediate values: its arena, and what kernels allocate at once.

stream 0    a (600 B, until c)    c (600 B, to the end)
stream 1    b (600 B, until d)            d (512 B, to the end)
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.plan import Plan, Slot, Workspace, text_plan
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph


def task(name: str, temporary: int = 0) -> Task:
    body = parse_graph(f"""
    graph {name} {{
      input %x: f32[150]
      %{name}: f32[150] = aten.relu.default(%x)
      return %{name}
    }}""")
    return Task(name, body, Kernel("aten", "relu", body, temporary=temporary))


def plan(*tasks: Task) -> Plan:
    graph = TaskGraph("net", tasks[0].body.inputs, (), tasks, (), ())
    launches = (Launch("a", 0), Launch("b", 1), Launch("c", 0), Launch("d", 1))
    slots = (
        Slot("a", "pool", 0, 600, "c"),
        Slot("b", "pool", 0, 600, "d"),
        Slot("c", "pool", 0, 600),
        Slot("d", "pool", 0, 512),
    )
    spec = TargetSpec("cpu", "a host")
    return Plan(graph, Schedule("drawn", launches), slots, (), 2048, spec)


PLAN = plan(*map(task, "abcd"))


def test_what_is_freed_before_a_launch_is_reused_on_its_stream() -> None:
    """600 bytes are two blocks of 512; each stream holds the most of its own."""
    assert PLAN.pool_bytes == 1024 + 1024
    assert PLAN.peak_bytes == PLAN.footprint.peak_bytes == 2048 + 2048


def test_what_is_held_to_the_end_adds_up() -> None:
    held = tuple(replace(slot, release=None) for slot in PLAN.slots)
    assert replace(PLAN, slots=held).pool_bytes == 2 * 1024 + 1024 + 512


def test_what_a_kernel_takes_while_it_runs_counts_beside_its_result() -> None:
    tasks = (*map(task, "abc"), task("d", temporary=1000))
    assert plan(*tasks).pool_bytes == 1024 + (512 + 1024)


def test_a_person_reads_where_each_value_lies() -> None:
    slots = (Slot("a", "arena", 512, 600), *PLAN.slots[1:])
    told = replace(PLAN, slots=slots, workspaces=(Workspace("d", 1024, 64),))
    assert text_plan(told).splitlines() == [
        "plan net for a host",
        "  arena 2,048 B, pool 2,048 B, 4 tasks on 2 streams, 0 waits",
        "  %a                        arena          512  +600",
        "  %b                        pool    until d",
        "  %c                        pool    to the end",
        "  %d                        pool    to the end",
        "  workspace of d            arena         1024  +64",
    ]
