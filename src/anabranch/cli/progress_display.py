"""Progress: events of a trace -> one moving line on a terminal, a line per stage elsewhere.

    tuning   ━━━━━━━━━━╺━━━━━━━━━  41/94  0:00:07        capture   1.21 s
                                                         rewrite   0.08 s

Of work that is spread over several processes each has a line of its own. Warnings and fallbacks are
always shown; ANABRANCH_DEBUG, or the option debug, shows the rest, as `trace.LEVELS` says.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from anabranch.cli import screen
from anabranch.compiler.pipeline import STAGES
from anabranch.options import Options
from anabranch.trace import LEVELS, Event
from anabranch.tuning.workers.pool import WHERE as WORKERS


class ProgressDisplay:
    """A listener for `Trace(watch)`, shown while it is open. `title`: what is under way; `where`:
    whose progress counts ("bench"), None for the compiler's, stage by stage; `level`: how much is
    shown, None for what ANABRANCH_DEBUG says."""

    def __init__(self, title: str, where: str | None = None, level: int | None = None) -> None:
        self._console = screen.notices()
        self._title, self._where = title, where
        self._level = Options.read().debug if level is None else level
        self._bars: Progress | None = None
        self._seen: set[tuple[str, str]] = set()
        self._begun: dict[str, str] = {}
        self._workers: dict[str, TaskID] = {}
        if self._console.is_terminal:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bar = self._bars.add_task(self._describe("" if where else STAGES[0]), total=None)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        elif self._where is None:
            self._say(self._title)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event of the trace, if it is of a kind that is shown at this level."""
        if event.kind in ("warning", "fallback"):
            self._notice(event)
        elif event.kind == "progress" and event.where == WORKERS:
            self._worker(event)
        elif event.kind == "progress":
            if self._where in (None, event.where):
                self._progress(event)
        elif event.kind == "stage" and self._where is None and event.what in STAGES:
            self._stage(event)
        elif LEVELS[event.kind] <= self._level:
            self._say(f"{event.kind} {event.where}: {event.what}{_because(event)}")

    def _stage(self, event: Event) -> None:
        if self._bars is None or self._level:
            self._say(f"  {event.what:<10} {float(dict(event.data)['seconds']):7.2f} s")
        if self._bars is not None:
            rest = STAGES[STAGES.index(event.what) + 1 :]
            self._bars.reset(self._bar, total=None, start=True)
            self._bars.update(self._bar, description=self._describe(rest[0] if rest else ""))

    def _progress(self, event: Event) -> None:
        data = dict(event.data)
        done, total = float(data["done"]), float(data["total"])
        if self._bars is not None:
            self._bars.update(self._bar, completed=done, total=total)
            if self._where and event.what:
                self._bars.update(self._bar, description=self._describe(event.what))
        elif self._where and event.what and done < total:
            self._say(f"[{int(done) + 1}/{int(total)}] {event.what}")

    def _worker(self, event: Event) -> None:
        """What one of several processes is at: a bar of its own, or a line when it begins."""
        data = dict(event.data)
        name, done, total = str(data["worker"]), float(data["done"]), float(data["total"])
        what = f"  {name}: {event.what}"
        if self._bars is None:
            if not done and total == 1 and self._begun.get(name) != event.what:
                self._begun[name] = event.what
                self._say(what)
            return
        if name not in self._workers:
            self._workers[name] = self._bars.add_task(what, total=None)
        self._bars.update(self._workers[name], description=what, completed=done, total=total)

    def _notice(self, event: Event) -> None:
        """Once each: a network asks for the same thing many times."""
        if (event.what, event.why) not in self._seen:
            self._seen.add((event.what, event.why))
            self._say(f"{event.kind}: {event.what}{_because(event)}")

    def _say(self, text: str) -> None:
        self._console.print(text)

    def _describe(self, what: str) -> str:
        return f"{self._title}: {what}" if what else self._title


def _because(event: Event) -> str:
    return f": {event.why}" if event.why else ""
