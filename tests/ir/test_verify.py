"""Broken nouns are found, and shown where they are broken."""

from __future__ import annotations

import pytest

from anabranch.errors import VerifyError
from anabranch.ir.dag import Dag
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_graph, verify_schedule

DAG = Dag.of(("a", "b", "c"), [(0, 2), (1, 2)])
"""
a --+
    +--> c
b --+
"""


def test_a_sound_graph_passes() -> None:
    verify_graph(
        parse_graph(
            "graph g {\n input %x: f32[2]\n %y: f32[2] = aten.relu.default(%x)\n return %y\n}"
        ),
        infer=True,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (" %y: f32[2] = aten.relu.default(%z)\n return %y", "reads %z before it is defined"),
        (" %x: f32[2] = aten.relu.default(%x)\n return %x", "defined twice"),
        (" %y: f32[2] = aten.relu.default(%x)\n return %z", "output %z is not defined"),
        (" %y: f32[3] = aten.relu.default(%x)\n return %y", "declared otherwise"),
    ],
)
def test_a_broken_graph_is_shown(body: str, words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify_graph(parse_graph(f"graph g {{\n input %x: f32[2]\n{body}\n}}"), infer=True)


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ((Launch("a", 0), Launch("c", 0)), "missing \\['b'\\]"),
        ((Launch("a", 0), Launch("b", 1), Launch("c", 0)), "before its input b"),
        ((Launch("a", 0), Launch("c", 0, ("b",)), Launch("b", 1)), "launched later"),
    ],
)
def test_illegal_schedules(launches: tuple[Launch, ...], words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify_schedule(Schedule("test", launches), DAG)


def test_a_legal_schedule() -> None:
    launches = (Launch("a", 0), Launch("b", 1), Launch("c", 0, ("b",)))
    verify_schedule(Schedule("test", launches), DAG)
