"""What every call of a loaded plan needs, whatever the device.

    alone(run, name, call)       refuses a call that an operator of the same plan makes
    operators.wait_for(lock)     waits for another call, but not for ever for an operator in it
    Turn                         what executables share whose plans use one arena
    without_gradients(call)      gradients are off in it, and as they were after it, also on Ctrl-C

A plan runs one call at a time. An operator that calls its own plan would wait for itself, so the
plans that run are remembered along the chain of calls, in a context variable: threads that run
parts of a plan run them in a copy of the caller's context.

A thread that an operator of the user's starts, or gives work to, has no such context, and nobody
can tell it from a thread that calls by itself. Both wait; where one and the same call of such an
operator keeps the plan busy for `TIME.operator_wait_s`, whoever waits is told so instead. Operators
of torch may take as long as they like.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import torch

from anabranch.deadline import TIME
from anabranch.errors import TargetError
from anabranch.ir.task import Task
from anabranch.targets.forks import FORKS

_T = TypeVar("_T")

TORCH = frozenset({"aten", "prims", "anabranch"})
"""Namespaces of operators that call nobody back."""

INSTEAD = "call the model as it is, or another compiled plan of it, inside the operator"

_running: ContextVar[tuple[int, ...]] = ContextVar("anabranch_running", default=())
"""Identities of the executables whose calls led here."""


def alone(run: object, name: str, call: Callable[[], _T]) -> _T:
    """What the call returns. TargetError where it is made by an operator of this executable."""
    # In a context of its own, which is simply dropped: an interrupt cannot leave anything behind.
    return copy_context().run(_marked, _with(run, name), call)


@contextmanager
def running(run: object, name: str) -> Iterator[None]:
    """Within it calls of this executable are refused as those of its own operators are, and so is
    entering it where one of these runs."""
    token = _running.set(_with(run, name))
    try:
        yield
    finally:
        _running.reset(token)


def _with(run: object, name: str) -> tuple[int, ...]:
    outer = _running.get()
    if id(run) in outer:
        raise TargetError(
            f"an operator of plan {name} calls that plan itself",
            "a plan runs one call at a time, so the inner call would wait for the outer one for "
            "ever",
            INSTEAD,
        )
    return (*outer, id(run))


def _marked(running: tuple[int, ...], call: Callable[[], _T]) -> _T:
    _running.set(running)
    return call()


class Turn:
    """Executables that use one arena run one at a time: they share this. `left`: what an
    interrupted call of one of them has left running; `writer`: the thread that writes to constants,
    which may do so for several of them."""

    def __init__(self) -> None:
        self.lock, self.writer = threading.Lock(), 0
        self.left: Sequence[Any] = ()
        self._forks = FORKS.count

    def after_fork(self) -> None:
        """In a forked process, who held the lock, and who wrote, stayed with the parent: unless the
        thread that forked did, which is this one."""
        if self._forks != FORKS.count:
            self._forks, self.lock, self.left = FORKS.count, threading.Lock(), ()
            self.writer = self.writer if self.writer == threading.get_ident() else 0

    @contextmanager
    def writing(self, name: str, wait: Callable[[], None]) -> Iterator[bool]:
        """Within it no call runs. False if this thread writes already. `wait`: what comes before
        the lock is asked for."""
        if self.writer == threading.get_ident():
            yield False
            return
        with running(self, name):
            wait()
            with self.lock:
                self.writer = threading.get_ident()
                try:
                    yield True
                finally:
                    self.writer = 0


class UserOperators:
    """The operators of one loaded plan that are not torch's, and since when one of them runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: dict[str, str] = {}
        self._since: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._told)

    def timed(self, task: Task, call: Callable[[], None]) -> Callable[[], None]:
        """The call of the task; where it is of such an operator, it is known while it runs."""
        body = task.body if task.kernel is None else task.kernel.body
        own = [node.op for node in body.nodes if node.op.partition(".")[0] not in TORCH]
        if not own:
            return call
        self._told[task.name] = own[0].removesuffix(".default")

        def run() -> None:
            self._since[task.name] = time.monotonic()
            try:
                call()
            finally:
                self._since.pop(task.name, None)

        return run

    def forget(self) -> None:
        """None of them runs here: in a forked process, whose threads stayed with the parent."""
        self._since.clear()

    def wait_for(self, lock: threading.Lock) -> None:
        """Until nobody holds the lock. TargetError where such an operator keeps it for longer than
        it may. Not by `lock.acquire`: of an interrupt right behind it nobody would give it back."""
        if not self._told:
            return
        began = time.monotonic()
        while lock.locked():
            now = time.monotonic()
            for task, since in list(self._since.items()):
                if now - max(since, began) > TIME.operator_wait_s:
                    raise self._busy(task)
            time.sleep(TIME.operator_look_s)

    def _busy(self, task: str) -> TargetError:
        return TargetError(
            f"plan {self._name} is busy: its operator {self._told[task]} has run for "
            f"{TIME.operator_wait_s:.0f} s while another thread wants to call or refit the plan",
            "a plan runs one call at a time; if the operator waits for this thread, both would "
            "wait for ever",
            f"{INSTEAD}; if it just takes that long, give each thread a plan of its own "
            "(copy.deepcopy)",
        )


def without_gradients(call: Callable[[], _T]) -> _T:
    """What the call returns. Unlike in `torch.no_grad`, no interrupt falls between turning
    gradients off and the block that turns them on again."""
    before = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(False)
        return call()
    finally:
        torch._C._set_grad_enabled(before)
