"""What stands around a stage: its event, its dump, the stop, and Python's garbage collector."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anabranch.compiler.stage_runner import StageRunner, Stopped
from anabranch.errors import NumericsError
from anabranch.frontend.captured import Captured
from anabranch.frontend.from_torch import capture
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

GRAPH = parse_graph("""
graph one {
  input %x: f32[4]
  %y: f32[4] = aten.relu.default(%x)
  return %y
}""")
OPTIONS = Options.read({"cache_dir": None}, environment=False)
NOUNS = {"first": lambda made: made[0], "second": lambda made: made}


def runner(stop_after: str | None = None, **options: Any) -> tuple[StageRunner, Trace]:
    trace = Trace()
    chosen = Options.read({"cache_dir": None, **options}, environment=False)
    job = Job(nn.Identity(), (), {}, resolve("cpu"), chosen, None, trace)
    trace.add("applied", "before", "anything")
    return StageRunner(job, NOUNS, stop_after), trace


def beside(graph: Graph, number: int) -> tuple[Graph, int]:
    """A stage with something beside its noun."""
    return graph, number


def test_a_stage_returns_everything_and_stops_with_its_noun_alone() -> None:
    stage, trace = runner()
    assert stage("first", beside, GRAPH, 3) == (GRAPH, 3)
    assert [event.what for event in stage.events] == ["first"]
    assert len(trace.events) == 2
    stage, _ = runner("first")
    with pytest.raises(Stopped) as stopped:
        stage("first", beside, GRAPH, 3)
    assert stopped.value.noun is GRAPH


def test_what_was_recalled_as_a_part_of_more_may_be_stopped_at() -> None:
    stage, trace = runner("second")
    with pytest.raises(Stopped) as stopped:
        stage.passed("second", GRAPH)
    assert stopped.value.noun is GRAPH and len(trace.events) == 1


def test_several_stages_are_recalled_as_their_last_one_or_run() -> None:
    stage, trace = runner()

    def decide(graph: Graph) -> Graph:
        stage("first", beside, graph, 3)
        return stage("second", lambda: graph)

    assert stage.recalled_or("first", "second", None, decide, GRAPH) == (GRAPH, stage.events)
    assert [event.what for event in stage.events] == ["first", "second"]
    stage, trace = runner()
    assert stage.recalled_or("first", "second", GRAPH, decide, GRAPH) == (GRAPH, None)
    assert len(trace.events) == 1
    with pytest.raises(Stopped):
        runner("second")[0].recalled_or("first", "second", GRAPH, decide, GRAPH)


def test_a_captured_graph_is_refused_after_its_stage_unless_it_is_the_last_one() -> None:
    captured = capture(nn.ReLU().eval(), (torch.ones(2),))
    seen: list[Captured] = []

    def refuse(graph: Captured) -> None:
        seen.append(graph)
        raise NumericsError("known", "to be wrong", "do less")

    for stop, raised in ((None, NumericsError), ("first", Stopped)):
        job = Job(nn.Identity(), (), {}, resolve("cpu"), OPTIONS, None, Trace())
        stage = StageRunner(job, NOUNS, stop, refuse)
        with pytest.raises(raised):
            stage("first", lambda: (captured, None))
        assert stage.captured is captured
    assert seen == [captured]


def test_dumps_are_numbered_as_they_are_written(tmp_path: Path) -> None:
    stage, _ = runner(dump=tmp_path)
    stage("second", lambda: None)
    stage("first", beside, GRAPH, 3)
    (file,) = tmp_path.iterdir()
    assert file.name == "00_first.txt" and file.read_text() == text_graph(GRAPH)


def test_who_looks_at_a_stage_is_known() -> None:
    assert runner("first")[0].wants("first", "second")
    assert not runner("first")[0].wants("second")
    assert runner(dump=Path("here"))[0].wants("second")


def test_events_of_stages_are_told_apart() -> None:
    stage, trace = runner()

    def telling(what: str) -> tuple[str]:
        trace.add("applied", "here", what)
        return (what,)

    stage("first", telling, "a")
    telling("between")
    stage("second", telling, "b")
    telling("after")
    told = [event.what for event in stage.events_of("first", "second")]
    assert told == ["a", "first", "between", "b", "second"]
    begin, end = stage.span("second", "second")
    assert [event.what for event in trace.events[begin:end]] == ["b", "second"]


def test_garbage_is_collected_again_after_a_stage_without() -> None:
    stage, _ = runner()
    assert gc.isenabled()
    assert not stage("second", gc.isenabled, pause_gc=True)
    assert gc.isenabled() and stage("second", gc.isenabled)
