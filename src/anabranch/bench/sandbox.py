"""A rival is built in a process that can be killed first: (rival, model, ..) -> why it never stood.

TorchScript compiles fused kernels inside one native call, where no signal reaches Python. For some
networks it does not come back (DeepFM on an H200: not within two minutes), and the benchmark would
hang with it. So where such a rival is to be built, a child process builds it first, and is killed
when the time is over.
"""

from __future__ import annotations

import multiprocessing
import time

import torch

from anabranch.bench.machine import machine
from anabranch.bench.rivals import RIVALS
from anabranch.models.load import load_model

NATIVE = ("torchscript",)
"""Rivals that no signal interrupts. On a GPU only: elsewhere TorchScript does not generate code."""


def try_in_sandbox(
    rival: str, name: str, dtype: str, batch: int, target: str, trust: bool, seconds: float
) -> str:
    """Why the rival would not stand, "" if it does or fails by itself, which its builder says."""
    place = (rival, name, dtype, batch, target, trust)
    child = multiprocessing.get_context("spawn").Process(target=_build, args=place, daemon=True)
    start = time.perf_counter()
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return f"not done in {seconds:g} s"
    crashed = child.exitcode is not None and child.exitcode < 0
    after = time.perf_counter() - start
    return f"its process died of signal {-child.exitcode} after {after:.0f} s" if crashed else ""  # type: ignore[operator]


def _build(rival: str, name: str, dtype: str, batch: int, target: str, trust: bool) -> None:
    """What the child does; whatever it raises the builder will raise again, and be heard."""
    here = machine(target)
    with torch.no_grad():
        model, args = load_model(name, batch, dtype, here.device, trust=trust)
        RIVALS[rival](model, args, here)
        here.synchronize()
