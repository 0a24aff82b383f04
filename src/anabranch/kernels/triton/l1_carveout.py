"""The carve-out of a kernel: how much of a multiprocessor's L1 memory is shared memory under it.

    contraction:64x32x64.k1.w4.s3.pa.c50      for two that are on a multiprocessor at once, 50%

A multiprocessor parts its memory for one kernel at a time: a CTA of a kernel that asks for another
part waits until the multiprocessor is empty. Left to itself the driver chooses for each kernel by
what it needs, and then kernels that could run beside each other do not, or crowd on the few
multiprocessors that are free. On an H200 a convolution of 114 CTAs that was launched while a
pooling kernel without shared memory ended took 24 us instead of 6. So all kernels of a plan, those
of libraries too, ask for the same: generated ones for all of it, or for less if the plan is faster
with more L1 (`tuning.launch.l1_carveout`). Their variants say it, and the captured graph is told.

Where all kernels are a library's, it is a quarter. Poolings live by L1: with all of it shared
GoogLeNet takes 8 to 13% longer than as the driver chooses, SqueezeNet 4 to 6. With a quarter they
take as long, or less where kernels had been in each other's way (243 to 227 us).
"""

from __future__ import annotations

from anabranch.ir.task import TaskGraph
from anabranch.ir.variant import Variant

LIBRARY = 25
"""Where no kernel of a plan was generated. A kernel that needs more gets more."""
CARVEOUTS_PERCENT = (75, 50, 25)


def carveout_of(tasks: TaskGraph) -> int:
    """What the kernels of a plan ask for, in percent: what the generated ones say, the most where
    they do not agree."""
    kernels = [task.kernel for task in tasks.tasks if task.kernel is not None]
    said = (k.variant.carveout for k in kernels if isinstance(k.variant, Variant))
    return max(said, default=LIBRARY)
