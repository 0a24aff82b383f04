"""A pool of threads, also where the system starts none, or only one."""

from __future__ import annotations

import threading
import time

import pytest

from anabranch.ir.threads import Pool


@pytest.mark.parametrize("allowed", [0, 1, 9])
def test_all_work_is_done_with_however_few_threads(
    allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, 0

    def limited(thread: threading.Thread) -> None:
        nonlocal started
        if started >= allowed:
            raise RuntimeError("can't start new thread")
        started += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    names: set[str] = set()

    def square(x: int) -> int:
        names.add(threading.current_thread().name)
        time.sleep(0.002)
        return x * x

    with Pool(3, "squares") as pool:
        assert list(pool.map(square, range(20))) == [x * x for x in range(20)]
        failed = pool.submit(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            failed.result()
    assert started == min(allowed, 3)
    assert (threading.current_thread().name in names) == (allowed == 0)
    with pytest.raises(RuntimeError, match="has ended"):
        pool.submit(square, 1)


def test_what_has_not_begun_can_be_cancelled() -> None:
    go, pool = threading.Event(), Pool(1, "slow")
    first, *others = [pool.submit(go.wait, 10) for _ in range(5)]
    while not first.running():
        time.sleep(0.001)
    pool.shutdown(wait=False, cancel_futures=True)
    go.set()
    pool.shutdown(wait=True)
    assert first.result() and all(other.cancelled() for other in others)
