"""Threads that compile at once wait for each other; a child process waits for nobody."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.frontend.capture_lock import capture_lock

FAST: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}


def test_threads_compile_and_load_at_once(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast = anabranch.compile(model, (torch.randn(1, 4),), **FAST)
    fast.save(tmp_path / "plan")
    inputs = {size: torch.randn(size, 4) for size in (2, 3, 4, 5)}
    failed: list[BaseException] = []
    together = threading.Barrier(4)

    def run(size: int) -> None:
        try:
            together.wait()
            fast.add((inputs[size],))
            anabranch.load(tmp_path / "plan", target="cpu")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(size,)) for size in inputs]
    torch.set_default_dtype(torch.float64)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert not failed
    for x in inputs.values():
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with capture_lock():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        with capture_lock():
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0


def test_inputs_of_inference_mode_are_compiled_outside_of_it() -> None:
    model = nn.Linear(4, 4).eval()
    with torch.inference_mode():
        x = torch.randn(2, 4)
    fast = anabranch.compile(model, (x,), **FAST)
    other = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(other), model(other))
        torch.testing.assert_close(fast(x), model(x))
