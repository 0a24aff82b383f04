"""A pool of threads that does without them where the system starts no more.

    with Pool(8, "anabranch-digest") as pool:
        futures = [pool.submit(digest, tensor) for tensor in tensors]

`concurrent.futures.ThreadPoolExecutor` raises from `submit` then, and leaves what was submitted in
its queue. Here it runs on the thread that submits it, unless the pool has a thread already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Work = tuple[Future[Any], Callable[[], Any]]


class Pool(Executor):
    """At most so many threads, started as work comes. They end with the pool."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Run the call in a thread, or at once in this one where no thread can be started.
        RuntimeError if the pool has ended."""
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("this pool has ended")
            alone = not self._grown()
            if not alone:
                self._queue.put((future, lambda: fn(*args, **kwargs)))
        if alone:
            _run(future, lambda: fn(*args, **kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`: no further work is taken; `wait`: until what was taken is
        done."""
        with self._lock:
            self._closed = True
            while cancel_futures:
                try:
                    work = self._queue.get_nowait()
                except Empty:
                    break
                if work is not None:
                    work[0].cancel()
            for _ in self._threads:
                self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _grown(self) -> bool:
        """Whether there is a thread; one more is started where that may be."""
        if len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=_serve, args=(self._queue,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return bool(self._threads)
            self._threads.append(thread)
        return True


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    while (work := queue.get()) is not None:
        _run(*work)
        del work


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as failed:
        future.set_exception(failed)
