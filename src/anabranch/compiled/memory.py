"""What a compiled model holds on its device, in bytes by kind.

>>> print(MemoryUse(weights=102_228_128, inputs=301_056, arena=2_408_448, pool=0, kernels=64))
weights 102,228,128 B, inputs 301,056 B, arena 2,408,448 B, pool 0 B, kernels 64 B, libraries 0 B
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from anabranch.compiled.entry import Entry
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import HeldMemory


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the plans of a compiled model; memory that two of them share counts once.

    weights: constants that the plans own, apart from the model's own. inputs: the buffers that a
    call copies its inputs into. arena: values between kernels, and most results. pool: results of
    library kernels that allocate, in the private pool of the CUDA graph. kernels: scratch memory of
    kernels outside the arena. libraries: what cuBLAS keeps for the streams that products were
    captured on, for as long as the process lives, also when the model is gone. Results that a call
    hands out as clones, and what the driver takes for code and contexts, are not in it. Of a
    simulated target: as planned, `kernels` unknown.
    """

    weights: int
    inputs: int
    arena: int
    pool: int
    kernels: int
    libraries: int = 0

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(astuple(self))

    def __str__(self) -> str:
        return ", ".join(f"{f.name} {getattr(self, f.name):,} B" for f in fields(self))


def memory_of(entries: Sequence[Entry]) -> MemoryUse:
    """What the plans of these entries hold together."""
    seen: set[int] = set()
    found = dict.fromkeys((f.name for f in fields(MemoryUse)), 0)
    for entry in entries:
        if entry.run is None:
            for kind, count in _planned(entry.plan).items():
                found[kind] += count
            continue
        held: HeldMemory = entry.run.held()
        for kind, places in held.places.items():
            found[kind] += sum(count for place, count in places.items() if place not in seen)
            seen.update(places)
        found["pool"] += held.pool
        found["kernels"] += held.kernels
    return MemoryUse(**found)


def _planned(plan: Plan) -> dict[str, int]:
    tasks = plan.tasks
    return {
        "weights": sum(constant.type.nbytes for constant in tasks.constants),
        "inputs": sum(value.type.nbytes for value in tasks.inputs),
        "arena": plan.arena_bytes,
        "pool": plan.pool_bytes,
    }
