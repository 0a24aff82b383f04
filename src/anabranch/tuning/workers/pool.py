"""The policy of workers: who gets which job, what is given back, who is refused, when it ends.

    queue: a b c d      worker 0: a -> Done          worker 1: b, died -> b goes to another
                        worker 0: b -> Done                    c ...

A job that two workers died of is refused and named. A worker that is another caller's in version or
GPU gets no job. A worker that dies twice before it is ready is not started again; one that died of
a job is. Who waits hears of each worker: an event of progress with its name.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from anabranch.cache import Cache
from anabranch.deadline import ENDLESS, TIME, Deadline
from anabranch.errors import WorkerError
from anabranch.ir.refused import Refused
from anabranch.trace import Event, Trace
from anabranch.tuning.workers.crew import Link, WorkerCrew
from anabranch.tuning.workers.identity import Identity
from anabranch.tuning.workers.job import Done, Failed, JobRefusal, Outcome, Undone, WorkerJob
from anabranch.tuning.workers.messages import (
    Ahead,
    AheadDone,
    Answered,
    Begin,
    EventTold,
    Interrupt,
    NotStarted,
    PartTold,
    Ready,
    Stop,
    Stored,
    read,
    written,
    written_job,
)

WHERE = "workers"
"""Of their events of progress."""
MOST_DEATHS = 2
"""Of workers by one job, and of one worker before it is ready."""


@dataclass(slots=True)
class _Place:
    """`job`: the number of the one that runs; `ahead`: how many calls to `prepare` are not over;
    `deaths`: in a row, before it was ready."""

    number: int
    link: Link | None = None
    gpu: str = ""
    ready: bool = False
    job: int | None = None
    ahead: int = 0
    deaths: int = 0
    refused: Refused | None = None


@dataclass(slots=True)
class _Batch:
    """What is under way: jobs that wait, by number, and by job who died of it."""

    jobs: Sequence[WorkerJob]
    until: Deadline
    trace: Trace
    queue: deque[int]
    part: Callable[[WorkerJob, Any], None]
    died: dict[int, list[str]] = field(default_factory=dict)
    asked_to_end: bool = False
    interrupted: bool = False


class WorkerPool:
    """Workers of one crew, started when there are jobs for them, ended with the block. `mine`: what
    they must be like; `cache_dir`: the caller's cache, which what they store is written to."""

    def __init__(self, crew: WorkerCrew, mine: Identity, cache_dir: Path | None = None) -> None:
        self._crew, self._mine = crew, mine
        self._cache = Cache.open(cache_dir) if cache_dir is not None else None
        self._places = [_Place(number) for number in range(crew.places)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            self._end(place)
        self._crew.close()
        if self._cache is not None:
            self._cache.close()

    @property
    def size(self) -> int:
        """How many workers there may be at once."""
        return len(self._places)

    def start(self, ahead: WorkerJob | None = None) -> None:
        """Start the workers ahead of jobs: it takes seconds. `ahead`: what each calls first, to get
        ready; nobody hears what it returns or raises."""
        for place in self._places:
            if place.link is None and place.refused is None:
                place.link = self._crew.start(place.number)
                if ahead is not None:
                    place.link.send(written(Ahead(written_job(ahead))))

    def prepare(self, calls: Sequence[WorkerJob]) -> None:
        """Have the workers that there are make these calls, each one of them, before their next
        jobs. As in `start` nobody hears of it, but what they store comes back (`settle`)."""
        there = [place for place in self._places if place.link is not None and place.ready]
        for number, call in enumerate(calls if there else ()):
            place = there[number % len(there)]
            assert place.link is not None
            place.link.send(written(Ahead(written_job(call), heard=True)))
            place.ahead += 1

    def settle(self, trace: Trace, until: Deadline = ENDLESS) -> bool:
        """Wait for what was to be prepared, until then at most; whether all is over."""
        batch = _Batch((), until, trace, deque(), lambda job, value: None)
        while any(place.ahead for place in self._places):
            messages = self._heard(until, until.over())
            for place, message in messages:
                for _ in self._hear(place, message, batch):
                    pass
            if not messages and until.over():
                return False
        return True

    def outcomes(
        self,
        jobs: Sequence[WorkerJob],
        trace: Trace,
        until: Deadline = ENDLESS,
        first_interrupt_asks: bool = False,
        step: Callable[[], bool] = lambda: False,
        part: Callable[[WorkerJob, Any], None] = lambda job, value: None,
    ) -> Iterator[Outcome]:
        """One for each job, as they come. `until`: no job is begun later, and those that run have
        what is left of it. `first_interrupt_asks`: the first Ctrl-C is a KeyboardInterrupt in the
        jobs that run, and no other is begun; else it ends them. `step`: a short piece of the
        caller's own work, done while jobs run; whether there is another piece now. `part`: hears
        of what a job tells before its outcome, which it may tell again if its worker dies.
        WorkerError for a job that cannot be sent, for two of one key, and where no worker can be
        started."""
        if len({job.key for job in jobs}) != len(jobs):
            raise WorkerError("two jobs have one key", "results go by key", "give each its own")
        batch = _Batch(jobs, until, trace, deque(range(len(jobs))), part)
        try:
            with _noted(batch) if first_interrupt_asks else nullcontext():
                for place, message in self._heard(until, busy=True):  # who got ready ahead of them
                    yield from self._hear(place, message, batch)
                while batch.queue or any(place.job is not None for place in self._places):
                    yield from self._ended(batch)
                    self._begin(batch)
                    try:
                        messages = self._heard(until, step())
                    except KeyboardInterrupt:  # raised by a handler of somebody else's, or again
                        if not first_interrupt_asks or batch.interrupted:
                            raise
                        batch.interrupted = True
                        continue
                    for place, message in messages:
                        yield from self._hear(place, message, batch)
        finally:
            for place in self._places:  # jobs that nobody waits for any more
                if place.job is not None:
                    self._end(place)

    def _ended(self, batch: _Batch) -> Iterator[Outcome]:
        """Where no more is begun: what waits is undone, what runs is asked to end, or is ended."""
        cause = "stop" if batch.interrupted else batch.until.cause()
        if not cause:
            return
        yield from (Undone(batch.jobs[number].key, cause) for number in batch.queue)
        batch.queue.clear()
        running = [place for place in self._places if place.job is not None]
        if not batch.asked_to_end and cause == "stop":  # of a budget they know themselves
            batch.asked_to_end = True
            message = written(Interrupt() if batch.interrupted else Stop())
            for place in running:
                if place.link is not None:
                    place.link.send(message)
        late = not batch.interrupted and not batch.until.stopped()
        if late and batch.until.earlier(-TIME.worker_grace_s).over():
            for place in running:
                assert place.job is not None and place.link is not None
                key, why = batch.jobs[place.job].key, Refused("it went on after the budget")
                yield JobRefusal(key, (place.link.name,), why)
                self._end(place)

    def _begin(self, batch: _Batch) -> None:
        """Give jobs to whoever is ready; start workers where jobs wait."""
        starting = 0
        for place in self._places:
            if len(batch.queue) <= starting or place.refused is not None or place.job is not None:
                continue
            if place.link is None:
                place.link = self._crew.start(place.number)
            if not place.ready:
                starting += 1
                continue
            self._give(place, batch)
        if batch.queue and all(place.refused is not None for place in self._places):
            told = {str(place.refused) for place in self._places}
            raise WorkerError(
                "there is no worker for the jobs that are left",
                "; ".join(sorted(told)),
                "give all machines the same versions, or use fewer workers",
            )

    def _give(self, place: _Place, batch: _Batch) -> None:
        number = batch.queue.popleft()
        assert place.link is not None
        payload = written_job(batch.jobs[number])  # of one at a time: each may hold a model
        place.job = number
        place.link.send(written(Begin(payload, batch.until.left())))
        _show(batch.trace, place, batch.jobs[number].name, 0)

    def _heard(self, until: Deadline, busy: bool) -> list[tuple[_Place, bytes | None]]:
        """Messages that have come; a death is None, after all that was said before it. `busy`: who
        asks has something else to do than to wait."""
        by_link = {id(p.link): p for p in self._places if p.link is not None}
        links = [place.link for place in self._places if place.link is not None]
        if not links:
            return []
        patience = 0.0 if busy else min(TIME.stop_look_s, until.left() or TIME.stop_look_s)
        messages = self._crew.wait(links, patience)
        return [(by_link[id(link)], message) for link, message in messages]

    def _hear(self, place: _Place, data: bytes | None, batch: _Batch) -> Iterator[Outcome]:
        if place.link is None:
            return  # it was ended meanwhile
        if data is None:
            yield from self._died(place, batch)
            return
        message = read(data)
        if isinstance(message, Ready):
            place.gpu = message.gpu
            self._accept(place, self._mine.differs(message.identity), batch.trace)
        elif isinstance(message, NotStarted):
            self._accept(place, message.refused, batch.trace)
        elif isinstance(message, EventTold) and place.job is not None:
            _tell(batch.trace, place, batch.jobs[place.job].name, message.event)
        elif isinstance(message, AheadDone):
            place.ahead -= 1
            self._store(message.stored)
        elif isinstance(message, PartTold) and place.job is not None:
            self._store(message.stored)
            batch.part(batch.jobs[place.job], read(message.value))
        elif isinstance(message, Answered) and place.job is not None:
            job, place.job = batch.jobs[place.job], None
            self._store(message.stored)
            _show(batch.trace, place, job.name, 1)
            yield _outcome(job, message, place)

    def _accept(self, place: _Place, refused: Refused | None, trace: Trace) -> None:
        assert place.link is not None
        if refused is None:
            place.ready, place.deaths = True, 0
            return
        trace.add("warning", WHERE, f"{place.link.name} is refused", str(refused))
        place.refused = refused
        self._end(place)

    def _died(self, place: _Place, batch: _Batch) -> Iterator[Outcome]:
        """Give its job back, or refuse it; a worker that never gets ready is given up."""
        assert place.link is not None
        name, number, was_ready = place.link.name, place.job, place.ready
        self._end(place)
        if number is None:
            place.deaths += 0 if was_ready else 1
            if place.deaths >= MOST_DEATHS:
                place.refused = Refused(f"{name} died {MOST_DEATHS} times while it started")
                batch.trace.add("warning", WHERE, f"{name} is refused", str(place.refused))
            return
        key = batch.jobs[number].key
        died = batch.died.setdefault(number, [])
        died.append(name)
        what = f"{name} died of {batch.jobs[number].name}"
        cause = "stop" if batch.interrupted else batch.until.cause()
        if cause:
            batch.trace.add("warning", WHERE, what, "its work is left out")
            yield Undone(key, cause)
        elif len(died) < MOST_DEATHS:
            batch.trace.add("warning", WHERE, what, "its work goes to another")
            batch.queue.appendleft(number)
            self._places.append(self._places.pop(self._places.index(place)))  # others go first
        else:
            why = Refused(f"{MOST_DEATHS} workers died of it, {' and '.join(died)}")
            batch.trace.add("warning", WHERE, f"{batch.jobs[number].name} is refused", str(why))
            yield JobRefusal(key, tuple(died), why)

    def _store(self, stored: Stored) -> None:
        if self._cache is not None:
            for table, items in stored.items():
                self._cache.write(table, items)

    def _end(self, place: _Place) -> None:
        link, place.link, place.ready, place.job = place.link, None, False, None
        place.ahead = 0
        if link is not None:
            link.end()


@contextmanager
def _noted(batch: _Batch) -> Iterator[None]:
    """The first Ctrl-C within is noted, wherever it comes; the next one is a KeyboardInterrupt. It
    is left as it is where somebody else handles it, and in threads that hear none."""

    def note(number: int, frame: FrameType | None) -> None:
        if batch.interrupted:
            signal.default_int_handler(number, frame)
        batch.interrupted = True

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _outcome(job: WorkerJob, answer: Answered, place: _Place) -> Outcome:
    assert place.link is not None
    name = place.link.name
    if answer.value is not None:
        return Done(job.key, read(answer.value), name, place.gpu, answer.seconds)
    return Undone(job.key, "stop") if answer.error is None else Failed(job.key, answer.error, name)


def _show(trace: Trace, place: _Place, what: str, done: int) -> None:
    assert place.link is not None
    trace.add("progress", WHERE, what, done=done, total=1, worker=place.link.name)


def _tell(trace: Trace, place: _Place, job: str, event: Event) -> None:
    """An event of a job, under the name of its worker."""
    assert place.link is not None
    if event.kind != "progress":
        trace.add(event.kind, event.where, event.what, event.why)
        return
    what = " ".join(itertools.chain([job], filter(None, [event.where, event.what])))
    data = dict(event.data)
    done, total = data["done"], data["total"]
    trace.add("progress", WHERE, what, done=done, total=total, worker=place.link.name)
