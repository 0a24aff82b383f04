"""Ctrl-C: the first ends the search with the best so far, the second the command."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import fresh
from tests.cli.conftest import Ran

from anabranch.artifact import file as artifact_file
from anabranch.cli import main
from anabranch.cli.stopping import SAID, stoppable
from anabranch.ir.gc_pause import uncollected

PATIENCE = 60.0
"""Seconds that no command may take to end once it was told to, however busy the machine is."""


AS_MODULE = "import runpy; runpy.run_module('anabranch', run_name='__main__', alter_sys=True)"


class Command:
    """A command line in a process of its own, whose stderr is read as it comes."""

    def __init__(self, cache: Path, *words: str) -> None:
        changed = {"ANABRANCH_CACHE_DIR": str(cache), "COLUMNS": "200"}
        self.process = fresh.Process(AS_MODULE, *words, env=changed)
        self.err = ""

    def press(self, after: str) -> None:
        """Ctrl-C, once a line of stderr has said this."""
        for line in self.process.stderr:
            self.err += line
            if after in line:
                self.process.send_signal(signal.SIGINT)
                return
        pytest.fail(f"it never said {after!r}: {self.err}")

    def end(self) -> str:
        """What is on stdout, when it has ended."""
        out, err = self.process.communicate(timeout=PATIENCE)
        self.err += err
        return out


Start = Callable[..., Command]


pytestmark = pytest.mark.usefixtures("ctrl_c_is_heard")


class Pressing:
    """stderr, on which Ctrl-C is pressed once it has said this."""

    def __init__(self, stream: Any, after: str) -> None:
        self._stream, self._after = stream, after
        self._said, self.pressed = "", False

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        self._said += text
        if self._after in self._said and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


Press = Callable[..., Ran]


@pytest.fixture
def press(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Press:
    """A command line run in this process, with Ctrl-C pressed once stderr has said `after`."""
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str, after: str) -> Ran:
        with monkeypatch.context() as patch:
            stderr = Pressing(sys.stderr, after)
            patch.setattr(sys, "stderr", stderr)
            status = main(words)
        captured = capfd.readouterr()
        assert stderr.pressed, f"it never said {after!r}: {captured.err}"
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[Command] = []

    def command(*words: str) -> Command:
        begun.append(Command(tmp_path / "cache", *words))
        return begun[-1]

    yield command
    for one in begun:
        one.process.close()


@pytest.mark.parametrize(
    ("target", "after"), [("cpu", "zoo:"), ("cpu", "capture"), ("sim:h200", "schedule ")]
)
def test_the_first_ends_with_the_best_so_far(
    press: Press, tmp_path: Path, target: str, after: str
) -> None:
    """Before anything is known, before there are kernels, and while graphs are searched."""
    plan, told = tmp_path / "plan.anabranch", tmp_path / "told.json"
    files = "-o", str(plan), "--report", str(tmp_path / "report.html"), "--json", str(told)
    ran = press("compile", "zoo:squeezenet/tiny", "--target", target, *files, after=after)
    assert ran.status == 0, ran.err
    assert ran.err.count(SAID) == 1 and "interrupted" not in ran.err
    assert "stopped before the search was done" in ran.out and f"saved: {plan}" in ran.out
    facts = json.loads(told.read_text())
    assert facts["cut_short"] == "stop"
    saved, kept = artifact_file.load(plan)
    assert kept["cut_short"] == "stop" and len(saved.tasks.tasks) == facts["tasks"]
    assert "stopped before the search was done" in (tmp_path / "report.html").read_text()


def test_the_second_ends_the_command(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.anabranch"
    command = start("compile", "zoo:squeezenet/tiny", "--target", "cpu", "-o", str(plan))
    command.press("zoo:")
    command.press(SAID)
    command.end()
    assert command.process.returncode == 130
    assert command.err.rstrip().endswith("interrupted") and not plan.exists()


def test_explain_tells_it(press: Press) -> None:
    ran = press("explain", "zoo:squeezenet/tiny", "--target", "sim:h200", after="zoo:")
    assert ran.status == 0 and "stopped before the search was done" in ran.out


def test_a_comparison_of_schedulers_keeps_what_is_done(press: Press, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    models = "zoo:squeezenet/tiny", "zoo:resnet50"
    words = ("bench", "schedulers", *models, "--target", "sim:h200", "--json", str(told))
    ran = press(*words, after="[1/2]")
    assert ran.status == 0, ran.err
    record = json.loads(told.read_text())
    assert record["cut_short"] == "stop"
    assert {row["model"] for row in record["rows"]} == {"zoo:squeezenet/tiny"}
    assert {row["failure"] for row in record["rows"] if row["us"] is None} == {
        "stopped before it was done"
    }


def test_ctrl_c_is_as_it_was_afterwards() -> None:
    """No garbage is collected meanwhile: what is raised while others hear of that is lost."""
    with uncollected(), stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with uncollected(), stoppable(stop), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # it is stopping already


def test_it_is_heard_where_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(number: int, text: bytes) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(os, "write", closed)
    with stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()


def test_whoever_handles_ctrl_c_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with stoppable() as stop:
            signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT] and not stop.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_nothing() -> None:
    found: list[Any] = []

    def work() -> None:
        with stoppable() as stop:
            found.append((stop.is_set(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, signal.default_int_handler)]
