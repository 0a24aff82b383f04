from __future__ import annotations

import signal
import threading
import time

import pytest

from anabranch.bench.deadline import Expired, within


def test_interrupts_what_survives_exceptions() -> None:
    start = time.perf_counter()
    with pytest.raises(Expired), within(0.05):
        while True:
            try:
                time.sleep(5)
            except Exception:
                continue
    assert time.perf_counter() - start < 3


def test_leaves_nothing_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with within(10):
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_no_limit_outside_the_main_thread() -> None:
    done = []

    def work() -> None:
        with within(0.01):
            time.sleep(0.05)
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]
