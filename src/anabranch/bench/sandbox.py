"""A rival is built in a process that can be killed first: (rival, model, ..) -> why it never stood.

TorchScript compiles fused kernels inside one native call, where no signal reaches Python. For some
networks it does not come back (DeepFM on an H200: not within two minutes), and the benchmark would
hang with it. So where such a rival is to be built, a child process builds it first, and is killed
when the time is over.
"""

from __future__ import annotations

import time

from anabranch.bench.rival_process import CellPlace, RivalProcess

NATIVE = ("torchscript",)
"""Rivals that no signal interrupts. On a GPU only: elsewhere TorchScript does not generate code."""


def try_in_sandbox(rival: str, place: CellPlace, seconds: float) -> str:
    """Why the rival would not stand, "" if it does or fails by itself, which its builder says."""
    start = time.perf_counter()
    try:
        RivalProcess(rival, place, seconds).close()
    except TimeoutError:
        return f"not done in {seconds:g} s"
    except ChildProcessError as died:
        return f"{died} after {time.perf_counter() - start:.0f} s"
    except Exception:
        return ""
    return ""
