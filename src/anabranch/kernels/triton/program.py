"""Program: the text of one generated kernel, and how it is compiled and launched.

    entry(x, weight, bias, out, [scratch], [counters])     one pointer each, nothing else
    grid (49, 8, 1), 4 warps, 3 stages

Sizes and strides are literals of the text, so that equal texts are equal kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LaunchGrid = tuple[int, int, int]
"""CTAs of a launch along three axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """How a kernel is called.

    entry: the name of the kernel. pointers: the kernel's parameters in order, as names of values of
    the task's body: inputs, constants, then what it writes. dtypes: what each points to. grid: CTAs
    along three axes. warps, stages: as Triton counts them.

    scratch: bytes of memory that one run may use as it likes, one more pointer (to bytes) if not 0.
    counters: 32-bit integers that are 0 before the first run and that each run leaves at 0, one
    more pointer, the last, if not 0; unlike scratch they belong to this kernel alone.

    described: which of the pointers tensor descriptors are made of, by position: the text is for
    such as point to multiples of 16 bytes.

    pdl: the text waits for the kernel before it by itself (programmatic dependent launch, compute
    capability 9.0 and up), so it may be launched while that one still runs.
    """

    entry: str
    pointers: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    grid: LaunchGrid
    warps: int = 4
    stages: int = 1
    scratch: int = 0
    counters: int = 0
    described: tuple[int, ...] = ()
    pdl: bool = False

    @property
    def ctas(self) -> int:
        """CTAs of the launch."""
        x, y, z = self.grid
        return x * y * z


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(KernelCall):
    """A kernel as text: a Triton module, and how its kernel is called."""

    text: str
