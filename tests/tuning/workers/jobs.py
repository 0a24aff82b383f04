"""What workers do in tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from anabranch.cache import Cache
from anabranch.options import Options
from anabranch.tuning.workers.job import WorkerPlace


def double(here: WorkerPlace, number: int, delay: float = 0.0) -> int:
    time.sleep(delay)
    return 2 * number


def ready(here: WorkerPlace, what: str) -> None:
    """Leaves something for later jobs, and fails."""
    here.kept[what] = True
    raise ValueError(what)


def found_ready(here: WorkerPlace, what: str) -> bool:
    return bool(here.kept.pop(what, False))


def die(here: WorkerPlace, mark: Path | None = None) -> str:
    """Dies, where there is a mark only as long as nobody has died here."""
    if mark is None or not mark.exists():
        if mark is not None:
            mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"


def fail(here: WorkerPlace) -> None:
    raise ValueError("no such thing")


def told(here: WorkerPlace) -> dict[str, Any]:
    here.trace.progress("tuning", 3, 7, "kernels tried")
    here.trace.add("warning", "tuning", "a kernel", "is wrong")
    return {"workers": Options.read().workers, "cache": Options.read().cache_dir == here.cache_dir}


def keep(here: WorkerPlace, key: str) -> str | None:
    """What the cache says before something is stored there."""
    with Cache.open(here.cache_dir) as cache:
        before = cache.get("plans", key)
        cache.put("plans", key, f"stored by {here.worker}")
    return before


def store(here: WorkerPlace, key: str, delay: float) -> str:
    """Stores who it is, some time later."""
    time.sleep(delay)
    with Cache.open(here.cache_dir) as cache:
        cache.put("plans", key, here.worker)
    return here.worker


def tell(here: WorkerPlace, key: str) -> str:
    """Tells a part when something was stored, and another one before it ends."""
    with Cache.open(here.cache_dir) as cache:
        cache.put("plans", key, "stored")
    here.tell("a part")
    here.tell("another")
    return "the whole"


def tell_much(here: WorkerPlace, count: int, size: int) -> float:
    """Seconds that it takes to tell so many parts of so many bytes."""
    start = time.perf_counter()
    for _ in range(count):
        here.tell(bytes(size))
    return time.perf_counter() - start


def until_stopped(here: WorkerPlace, mark: Path) -> tuple[str, bool]:
    """Works until its deadline is over, and says why it was."""
    mark.touch()
    for _ in range(400):
        if here.deadline.over():
            break
        time.sleep(0.05)
    return here.deadline.cause(), here.deadline.left() == 0.0


def until_interrupted(here: WorkerPlace, mark: Path) -> str:
    mark.touch()
    try:
        time.sleep(20)
    except KeyboardInterrupt:
        return "interrupted"
    return "not interrupted"
