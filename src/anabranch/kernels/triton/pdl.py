"""Programmatic dependent launch: a kernel that may be launched while the one before still runs.

    pointwise:512.w2.pl        it waits by itself, and lets the next kernel start before it stores

The modes are those of `ir.variant.PdlMode`.

The work of a kernel before its wait overlaps with the kernel before it: its launch, its ramp. Every
write stands behind the wait, and so does every read but those of constants, which no kernel writes;
so memory may be shared as if kernels ran one after the other. The place of the trigger decides: on
an H200, over a chain of 52 convolutions, it made between 8% less and 35% more (CTAs that wait hold
their multiprocessor).
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.variant import PdlMode
from anabranch.kernels.triton.pdl_hoist import early_first
from anabranch.kernels.triton.statements import Effect, KernelTree, stores

AT_ONCE = (PdlMode.TRIGGER_AT_WAIT, PdlMode.PREFETCH_L2_EARLY)
"""Modes that let the next kernel start right after the wait."""
EARLY = (PdlMode.HOIST_CONSTANTS, PdlMode.PREFETCH_L2, PdlMode.PREFETCH_L2_EARLY)
"""Modes in which constants are read before the wait."""
ASKED = {PdlMode.PREFETCH_L2: 1, PdlMode.PREFETCH_L2_EARLY: 8}
"""Lines of weights that a thread asks for in a mode; 8 are 128 KiB of 4 warps, which few CTAs need,
for they share what they read."""
WAIT, TRIGGER = "tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()"


def dependent(tree: KernelTree, mode: PdlMode, constants: frozenset[str]) -> KernelTree:
    """The same kernel, launched in this mode. `constants`: which of its pointers no kernel writes
    to."""
    first, rest = early_first(tree, constants) if mode in EARLY else ([], list(tree.statements))
    if mode not in (PdlMode.WAIT_ONLY, *AT_ONCE):
        # Where it first stores in a loop, before the loop.
        rest.insert(
            next(at for at, statement in enumerate(rest) if stores(statement)), Effect(TRIGGER)
        )
    wait = [Effect(WAIT), *([Effect(TRIGGER)] if mode in AT_ONCE else [])]
    return replace(tree, statements=(*first, *wait, *rest), pdl=True)
