from __future__ import annotations

import json

import pytest

from anabranch.cli import screen
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.trace import Trace


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay("net") as watch:
        trace = Trace(watch)
        trace.add("stage", "capture", "capture", seconds=0.5)
        trace.add("stage", "frontend.export", "frontend.export", seconds=0.4)
        trace.add("refused", "fusion", "conv + relu", "3 consumers")
        trace.add("warning", "schedule", "[ios]", "it was slow")
        trace.add("warning", "schedule", "[ios]", "it was slow")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "net",
        "  capture       0.50 s",
        "warning: [ios]: it was slow",
    ]


def test_debug_shows_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_DEBUG", "3")
    with ProgressDisplay("net") as watch:
        Trace(watch).add("refused", "fusion", "conv + relu", "3 consumers")
    assert "refused fusion: conv + relu: 3 consumers" in capsys.readouterr().err


def test_only_the_progress_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay("benchmark", "bench") as watch:
        trace = Trace(watch)
        trace.progress("bench", 0, 2, "resnet50")
        trace.progress("costs", 0, 9, "tasks measured")
        trace.progress("bench", 2, 2)
    assert capsys.readouterr().err == "[1/2] resnet50\n"


def test_numbers_that_json_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    screen.write_json("-", {"a": float("nan"), "b": (1, float("inf")), "c": {"d": None}})
    written = json.loads(capsys.readouterr().out)
    assert written == {"a": None, "b": [1, None], "c": {"d": None}}


def test_each_worker_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay("benchmark", "bench") as watch:
        trace = Trace(watch)
        for name, what in (("worker 0", "a"), ("worker 1", "b"), ("worker 0", "a")):
            trace.add("progress", "workers", what, done=0, total=1, worker=name)
        trace.add("progress", "workers", "a tuning", done=3, total=7, worker="worker 0")
        trace.add("progress", "workers", "a", done=1, total=1, worker="worker 0")
        trace.add("progress", "workers", "c", done=0, total=1, worker="worker 0")
    told = capsys.readouterr().err.splitlines()
    assert told == ["  worker 0: a", "  worker 1: b", "  worker 0: c"]
