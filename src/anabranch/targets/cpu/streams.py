"""Threads that run the streams of plans, and jobs that run at most once.

    workers.ready(2)       both threads run, or it says that one cannot be started
    workers.submit(0, job) the thread of that number runs the job
    job.settle()           it has ended, or it will never begin

An interrupt may end the caller between any two steps. So each job is known before it is submitted,
and whoever comes next settles those that were left. Threads are daemons: a process ends whatever
they wait for. They know their queue alone, and end when their `Workers` go; after a fork, which no
thread survives, new ones are started.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal

from anabranch.targets.forks import FORKS

Who = Literal["thread", "caller"]


class Flag:
    """Set once or more often, and waited for by any number of threads.

    Not a `threading.Event`: that is Python code around a lock, and an interrupt in it would leave
    the lock taken for ever. A queue is C code, which an interrupt finds before or after a step.
    """

    def __init__(self) -> None:
        self._set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Let all go on who wait, now or later."""
        self._set = True
        self._queue.put(None)

    def wait(self) -> None:
        """Return once the flag is set."""
        if not self._set:
            self._queue.get()
            self._queue.put(None)  # for the next who waits


class StreamWork:
    """Work for a thread. `failure`: what it raised, once it has ended."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._begun_by: dict[str, Who] = {}
        self._ended = Flag()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """By a thread: nothing where the caller has settled it before."""
        if self._begun_by.setdefault("who", "thread") != "thread":
            return
        try:
            self._work()
        except BaseException as failed:  # for the caller to hear
            self.failure = failed
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Until it has ended; it must have been submitted."""
        self._ended.wait()

    def settle(self) -> None:
        """Until it has ended, or can begin no more. May be interrupted, and done again."""
        if self._begun_by.setdefault("who", "caller") == "thread":
            self._ended.wait()


class Workers:
    """Numbered threads, started when they are first needed."""

    def __init__(self, name: str) -> None:
        self._name, self._forks = name, FORKS.count
        self._queues: list[SimpleQueue[StreamWork | None]] = []
        weakref.finalize(self, _dismiss, self._queues).atexit = False

    def ready(self, count: int) -> bool:
        """Whether so many threads run; False where the system gives no more."""
        if self._forks != FORKS.count:
            self._queues.clear()
            self._forks = FORKS.count
        while len(self._queues) < count:
            queue: SimpleQueue[StreamWork | None] = SimpleQueue()
            name = f"{self._name}-{len(self._queues)}"
            thread = threading.Thread(target=_serve, args=(queue,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            except BaseException:
                queue.put(None)
                raise
            self._queues.append(queue)
        return True

    def submit(self, number: int, job: StreamWork) -> None:
        """Let the thread of this number do the work after what it was given before."""
        self._queues[number].put(job)


def _serve(queue: SimpleQueue[StreamWork | None]) -> None:
    while (job := queue.get()) is not None:
        job.run()
        del job  # while it waits for the next one it holds no tensor


def _dismiss(queues: list[SimpleQueue[StreamWork | None]]) -> None:
    for queue in queues:
        queue.put(None)
