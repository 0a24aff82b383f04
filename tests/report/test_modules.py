"""What each module of the model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from anabranch.report.modules import Module, largest, module_of, modules
from anabranch.report.parts import ReportParts
from anabranch.report.task_rows import TaskRow, rows

Build = Mapping[str, Callable[..., ReportParts]]


def at(row: TaskRow, us: float | None, *origins: str) -> TaskRow:
    """The row with another time, and nodes of these origins."""
    nodes = row.task.body.nodes
    named = tuple(replace(n, origin=o) for n, o in zip(nodes, origins, strict=False))
    body = replace(row.task.body, nodes=named + nodes[len(named) :])
    return replace(row, us=us, task=replace(row.task, body=body))


@pytest.fixture
def row(parts: Build) -> TaskRow:
    """A convolution and a relu, in one task."""
    return rows(parts["small"]())[0]


def test_a_task_is_of_the_innermost_module_that_holds_what_it_mostly_does(row: TaskRow) -> None:
    assert len(row.task.body.nodes) == 2 and row.kind == "contract"
    own = at(row, 1.0, "net.py:7 in forward (a.b.conv)", "net.py:9 in forward (c)")
    assert module_of(own) == "a.b.conv", "what is fused behind it does not count"
    folded = "net.py:7 in forward (a.b.conv) + net.py:7 in forward (a.b.norm)"
    assert module_of(at(row, 1.0, folded)) == "a.b"
    assert module_of(at(row, 1.0, "net.py:7 in forward (a.bc) + x.py:1 in f (a.bd)")) == "a"
    assert module_of(at(row, 1.0, "net.py:7 in forward", "net.py:8 in forward")) == ""
    assert module_of(at(row, 1.0, "net.py:7 in forward", "net.py:8 in forward (act)")) == "act"


def placed(row: TaskRow, **times: float) -> list[TaskRow]:
    """A row for each path and time, "_" in place of dots."""
    return [at(row, us, *[f"f.py:1 in g ({p.replace('_', '.')})"] * 2) for p, us in times.items()]


def test_all_modules_with_tasks_each_before_those_in_it(row: TaskRow) -> None:
    found = modules(placed(row, b_one_conv=1.0, b_two_conv=2.0, a=4.0))
    assert found == [
        Module("b", 2, 3.0),
        Module("b.one.conv", 1, 1.0),
        Module("b.two.conv", 1, 2.0),
        Module("a", 1, 4.0),
    ]


def test_the_largest_are_parts_of_the_whole(row: TaskRow) -> None:
    found = placed(row, e_l_0_x=2.0, e_l_0_y=1.0, e_l_1_x=3.0, e_l_2_x=3.0, h=1.0, e_l=0.5, z=0.0)
    shown = largest(found, most=9)
    assert sum(one.us for one in shown) == pytest.approx(10.5)
    assert sum(one.tasks for one in shown) == len(found)
    assert [one.us for one in shown] == sorted((one.us for one in shown), reverse=True)
    assert Module("e.l", 1, 0.5, own=True) in shown, "what is in no module of it stays its own"
    assert {"e.l.1.x", "e.l.2.x", "e.l.0.x", "e.l.0.y"} <= {one.path for one in shown}
    assert largest(found, most=2) == [Module("e.l.1.x", 1, 3.0), Module("e.l.2.x", 1, 3.0)]


def test_layers_that_are_alike_count_as_one(row: TaskRow) -> None:
    alike = {f"e_{i}_{name}": us for i in range(4) for name, us in (("a", 3.0), ("b", 1.0))}
    assert largest(placed(row, **alike, h=2.0)) == [
        Module("e.*.a", 4, 12.0),
        Module("e.*.b", 4, 4.0),
        Module("h", 1, 2.0),
    ]
    one_is_slow = largest(placed(row, **{**alike, "e_2_a": 9.0}), most=2)
    assert [one.path for one in one_is_slow] == ["e.2.a", "e.0"]
    one_has_more = largest(placed(row, **{**alike, "e_2_c": 0.1, "h": 2.0}), most=2)
    assert [one.path for one in one_has_more] == ["e.2", "e.0"]


def test_a_model_of_one_module_is_not_torn_apart(row: TaskRow) -> None:
    assert largest(placed(row, net=3.0)) == [Module("net", 1, 3.0)]
    flat = [at(row, 2.0, "f.py:1 in forward", "f.py:2 in forward")]
    assert largest(flat) == [Module("", 1, 2.0)] and modules(flat) == []


def test_without_times_there_are_no_largest(row: TaskRow) -> None:
    assert largest([at(row, None)]) == []
    assert [one.us for one in modules([at(row, None)])] == [0.0]


def test_a_report_lists_them(parts: Build) -> None:
    found = rows(parts["modules"](7))
    shown = largest(found)
    assert len(shown) == 5 and all(one.path for one in shown)
    for one in shown:
        inner = [
            r for r in found if module_of(r) == one.path or module_of(r).startswith(one.path + ".")
        ]
        assert one.tasks == len(inner)
        assert one.us == pytest.approx(sum(r.us or 0.0 for r in inner))
