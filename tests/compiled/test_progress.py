"""Progress of a compilation: said late, through the package's logger, on terminals only."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from typing import Any

import pytest
import torch

import anabranch
from anabranch.compiled import progress
from anabranch.compiled.progress import Progress, telling
from anabranch.trace import Trace


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, first: float, configured: bool = False
) -> str:
    """What a compilation of a fifth of a second says there."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "FIRST_S", first)
    if not configured:  # as it is without pytest
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(progress.LOGGER, "handlers", [])
    with telling(Progress("Net")):
        time.sleep(0.2)
    return stream.getvalue()


def test_a_terminal_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = progress.LOGGER.level
    text = said(Terminal(), monkeypatch, 0.01)
    assert text.startswith("anabranch compiling Net: capture, 0 s so far")
    assert (progress.LOGGER.level, progress.LOGGER.handlers) == (before, [])


def test_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(io.StringIO(), monkeypatch, 0.01) == ""


def test_what_takes_no_time_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(Terminal(), monkeypatch, progress.FIRST_S) == ""


def test_who_configured_logging_gets_it_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "anabranch"):
        assert said(Terminal(), monkeypatch, 0.01, configured=True) == ""
    assert "compiling Net" in caplog.text


def test_the_stage_and_what_is_left_of_it() -> None:
    heard = Progress("Net")
    trace = Trace(heard)
    with trace.stage("capture"):
        pass
    trace.progress("tuning", 5, 20)
    line = heard.line(time.monotonic() + 10)
    assert line.startswith("compiling Net: rewrite, 5 of 20, 10 s so far, about 30 s more")


def test_compiling_leaves_logging_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = list(logging.getLogger("anabranch").handlers)
    fast = anabranch.compile(lambda x: x + 1, (torch.ones(2),), **quick)
    assert fast.trace.events and logging.getLogger("anabranch").handlers == before


def test_without_threads_it_compiles_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with telling(Progress("Net")):
        pass
    fast = anabranch.compile(torch.relu, (torch.ones(2),), target="cpu", cache_dir=None)
    assert torch.equal(fast(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
