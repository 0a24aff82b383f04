"""What a compiled model holds on its device, in bytes by kind.

>>> print(MemoryUse(weights=102_228_128, inputs=301_056, arena=2_408_448, pool=0, kernels=64))
weights 102,228,128 B, inputs 301,056 B, arena 2,408,448 B, pool 0 B, kernels 64 B, libraries 0 B,\
 states 0 B
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.compiled.entry import Entry
from anabranch.ir.library_calls import library_bytes
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import HeldMemory


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the plans of a compiled model; memory that two of them share counts once.

    weights: constants that the plans own, apart from the model's own. inputs: the buffers that a
    call copies its inputs into. states: what calls read and write, the model's own tensors where
    they lie there, which `memory_limit` does not count. arena: values between kernels, and most
    results. pool: results of library kernels that allocate, in the private pool of the CUDA graph.
    kernels: scratch memory of kernels outside the arena. libraries: what cuBLAS keeps for the
    streams that products were captured on, also when the model is gone, until something else is
    compiled. Results that a call hands out as clones, and what the driver takes for code and
    contexts, are not in it. Of a simulated target: as planned, `kernels` unknown. `buckets`: by
    the sizes of each plan, where sizes vary, what it uses itself: of weights and of the arena the
    most is others' as well.
    """

    weights: int
    inputs: int
    arena: int
    pool: int
    kernels: int
    libraries: int = 0
    states: int = 0
    buckets: Mapping[str, MemoryUse] = field(default_factory=dict, compare=False, repr=False)

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(getattr(self, kind) for kind in KINDS)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {getattr(self, kind):,} B" for kind in KINDS)


KINDS = ("weights", "inputs", "arena", "pool", "kernels", "libraries", "states")


def memory_of(entries: Sequence[Entry]) -> MemoryUse:
    """What the plans of these entries hold together."""
    whole = _together(entries)
    sized = [entry for entry in entries if entry.sized is not None]
    return replace(whole, buckets={named(entry): _together([entry]) for entry in sized})


def named(entry: Entry) -> str:
    """What a bucket is called: "batch 8, seq 128"."""
    assert entry.sized is not None
    dimensions = entry.sized.shapes.dimensions
    return ", ".join(
        f"{dimension.name} {n}" for dimension, n in zip(dimensions, entry.at, strict=True)
    )


def _together(entries: Sequence[Entry]) -> MemoryUse:
    seen: set[int] = set()
    totals = dict.fromkeys(KINDS, 0)
    planned: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.run is None:
            for kind, count in _planned(entry.plan, planned).items():
                most = max(totals[kind], count)
                totals[kind] = most if kind in ("arena", "libraries") else totals[kind] + count
            continue
        held: HeldMemory = entry.run.held()
        for kind, places in held.places.items():
            totals[kind] += sum(count for place, count in places.items() if place not in seen)
            seen.update(places)
        totals["pool"] += held.pool
        totals["kernels"] += held.kernels
    weights, inputs, arena, pool, kernels, libraries, states = (totals[kind] for kind in KINDS)
    return MemoryUse(weights, inputs, arena, pool, kernels, libraries, states)


def _planned(plan: Plan, seen: set[tuple[str, str]]) -> dict[str, int]:
    """`seen`: constants that other plans have as well; those of this one are put into it."""
    tasks = plan.tasks
    new = {(c.digest, c.type.text): c.type.nbytes for c in tasks.constants}
    own = {key: count for key, count in new.items() if key not in seen}
    seen.update(own)
    return {
        "weights": sum(own.values()),
        "inputs": sum(value.type.nbytes for value in tasks.call_inputs),
        "states": sum(v.type.nbytes for v in tasks.inputs if v not in tasks.call_inputs),
        "arena": plan.arena_bytes,
        "pool": plan.pool_bytes,
        "libraries": library_bytes(plan),
    }
