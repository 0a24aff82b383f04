"""The performance upper limit: what a tile can reach at best, before it is written or compiled.

DeepCuts (section 4): the part of the machine's peak that a kernel may reach is at most

    memory    operations a block does for each byte it moves, against the machine's balance
    shared    operations a warp does for each byte of shared memory it reads, against an SM's
    tail      how full the waves of blocks are, the last one above all
    fits      0 where the block needs more threads, registers or shared memory than there are

and at most their product. What is surely slow is never generated.

The paper's tail term, as published, gives 0.99 where one block of 81 waits for a second wave on 80
multiprocessors; `tail` is the share of slots that work, 0.51 there. Registers, and how many blocks
an SM holds at once, are not in the paper.

At batch 1 layers are too small for any of this to bind: what they pay is latency. So tiles are
ranked by a time, of which the limit is one part:

    us = start + waves * (first + steps * STEP) + split + store

with steps one after the other that a block takes through the depth, each as long as the slowest of
its load (hidden by as many stages as there are), its bytes, and what its warps issue: copies,
reads of shared memory, products. The numbers are a `Pace`: TILES is a least-squares fit to 700
kernels of 21 layers, measured on an H200, which it meets within 3 to 10% (17% over all tiles of one
layer, fast and slow); ROWS was fitted by hand to kernels of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.ir.target import TargetSpec

WARP = 32
SHARED_BYTES_PER_CLOCK = 128.0
QUARTERS = 4
"""Of an SM: a warp stays in one, which has a quarter of the tensor cores."""
LANES = 128
"""Single additions or conversions of an SM in a cycle."""
CLOCK = 1.7e3
"""Cycles in a microsecond, of GPUs of this time under load."""
ROW_BYTES = 64
"""Rows of a result that are shorter than this are stored in more pieces."""
SPARE = 40
"""Registers of a thread that hold no sums: addresses, fragments, masks."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What takes how long, in microseconds where nothing else is said.

    start: launch and ramp. block: of each block for each multiprocessor, before it begins. first:
    the first load through L2, the first product; warp: and for each warp of a block. latency: of a
    load from L2 into shared memory, barriers and the product that waits for it included; fetch: and
    for each 16 KiB of it. issue: of a step whose loads are all there; work: and for each 1024
    products of one of its threads. copy_clocks: of one warp for 512 bytes of loads. meet: what
    blocks that share a tile pay for the counter and the last one's round through L2; split: and for
    each of them. store: the epilogue. l2: bytes that one SM gets from L2 in a clock while all of
    them read.
    """

    start: float
    first: float
    warp: float
    latency: float
    issue: float
    meet: float
    l2: float
    block: float = 0.0
    fetch: float = 0.0
    work: float = 0.0
    split: float = 0.0
    copy_clocks: float = 0.0
    store: float = 0.0


TILES = Pace(
    start=1.5,
    first=0.468,
    warp=0.0844,
    latency=0.276,
    issue=0.0479,
    meet=0.752,
    l2=65.1,
    block=0.24,
    fetch=0.13,
    work=0.0096,
    split=0.0092,
)
ROWS = Pace(
    start=1.0,
    first=0.85,
    warp=0.01,
    latency=0.55,
    issue=0.03,
    meet=0.9,
    l2=48.0,
    copy_clocks=22.0,
    store=0.35,
)


@dataclass(frozen=True, slots=True)
class Block:
    """What a variant asks for: rows, columns and depth of its tile, blocks in all, steps of each,
    bytes of an element, warps, stages, how many blocks share a tile; `reads`: of how many values
    each number of the left factor is made, the taps of a window before a product."""

    m: int
    n: int
    k: int
    blocks: int
    steps: int
    itemsize: int
    warps: int
    stages: int
    split: int = 1
    reads: int = 1

    @property
    def read(self) -> int:
        """Bytes that a step loads."""
        return (self.m * self.reads + self.n) * self.k * self.itemsize

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the factors of every stage. The taps of a window take much of it,
        so they are counted as they are: the last stage is in registers."""
        return (self.stages if self.reads == 1 else max(self.stages - 1, 1)) * self.read

    @property
    def registers(self) -> int:
        """Of a thread: its sums, its fragments and what else it holds."""
        sums = self.m * self.n // (self.warps * WARP)
        window = WARP + self.m * self.k // (self.warps * WARP) if self.reads > 1 else 0
        return sums + SPARE + (self.m + self.n) * 16 // (self.warps * WARP) // 2 + window

    @property
    def operations(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.steps


@dataclass(frozen=True, slots=True)
class Bound:
    """The four terms, each from 0 to 1, and the time that tiles are ranked by."""

    memory: float
    shared: float
    tail: float
    fits: float
    us: float

    @property
    def limit(self) -> float:
        """The part of the machine's peak that is reached at best."""
        return self.memory * self.shared * self.tail * self.fits

    @property
    def text(self) -> str:
        terms = f"memory {self.memory:.2f}, shared {self.shared:.2f}, tail {self.tail:.2f}"
        return f"at most {self.limit:.3f} of peak ({terms}), about {self.us:.1f} us"


def bound(block: Block, spec: TargetSpec, peak: float) -> Bound:
    """The limit of a block on a machine whose `peak` is in operations a second."""
    held = resident(block, spec)
    if not held:
        return Bound(0.0, 0.0, 0.0, 0.0, math.inf)
    moved = block.read * block.steps
    moved += block.m * block.n * block.itemsize
    memory = min(1.0, block.operations / moved / (peak / spec.bandwidth))
    waves = math.ceil(block.blocks / (held * spec.sms))
    return Bound(memory, shared(block, spec, peak), tail(block.blocks, spec.sms), 1.0,
                 time_us(block, spec, peak, waves, min(held, _per_sm(block, spec))))  # fmt: skip


def tail(blocks: int, sms: int) -> float:
    """The share of multiprocessors that work, over all waves.

    >>> [round(tail(blocks, 80), 4) for blocks in (79, 80, 81, 120, 160)]
    [0.9875, 1.0, 0.5062, 0.75, 1.0]
    """
    return blocks / (sms * math.ceil(blocks / sms)) if blocks else 1.0


def shared(block: Block, spec: TargetSpec, peak: float) -> float:
    """Operations for each byte that its warps read of shared memory, against what an SM can do."""
    across = max(1, min(block.warps, block.n // 16))
    down = max(1, block.warps // across)
    read = block.k * block.itemsize * (block.m * across + block.n * down)
    balance = peak / spec.sms / (SHARED_BYTES_PER_CLOCK * CLOCK * 1e6)
    return min(1.0, 2.0 * block.m * block.n * block.k / read / balance)


def resident(block: Block, spec: TargetSpec) -> int:
    """How many blocks an SM holds at once; 0 if not one."""
    return holds(block.warps, block.registers, block.shared, spec)


def holds(warps: int, registers: int, shared: int, spec: TargetSpec) -> int:
    """How many blocks of so many warps, registers a thread and bytes of shared memory an SM holds
    at once; 0 if not one."""
    threads = warps * WARP
    if threads > 1024 or registers > 255:
        return 0
    fits = (
        spec.threads_per_sm // threads,
        spec.registers_per_sm // (threads * registers),
        spec.shared_per_sm // (shared + 1024),
        spec.ctas_per_sm,
    )
    return min(fits)


def time_us(block: Block, spec: TargetSpec, peak: float, waves: int, together: int) -> float:
    """The time of the whole launch; `together`: blocks that share an SM at a time."""
    pace = pace_of(block)
    steps = block.steps * step_us(block, spec, peak, together)
    pieces = ROW_BYTES / (block.n * block.itemsize) if block.m > 1 else 1.0
    first = pace.first + pace.warp * block.warps
    begin = pace.start + pace.block * block.blocks / spec.sms
    return begin + waves * (first + steps) + meet_us(block) + pace.store * max(1.0, pieces)


def pace_of(block: Block) -> Pace:
    return ROWS if block.m == 1 else TILES


def step_us(block: Block, spec: TargetSpec, peak: float, together: int) -> float:
    """One step through the depth: the slowest of its load, its bytes and what its warps issue."""
    pace = pace_of(block)
    bytes_a_step = block.read
    load = bytes_a_step * together / (pace.l2 * CLOCK)
    crowd = max(1.0, together * block.warps / 16)
    copies = bytes_a_step / 512 / block.warps * pace.copy_clocks / CLOCK * crowd
    hidden = latency_us(block) / max(1, min(block.stages - 1, block.steps))
    products = block.m * block.n * block.k / (1024 * WARP * block.warps)
    issue = pace.issue + pace.work * products * max(1.0, together * block.warps / 8) + copies
    return max(issue + _products(block, spec, peak, together), load, hidden)


def latency_us(block: Block) -> float:
    """From the request for what a step reads to its being there."""
    pace = pace_of(block)
    return pace.latency + pace.fetch * block.read / (16 << 10)


def meet_us(block: Block) -> float:
    """What blocks that share a tile pay for adding up."""
    if block.split == 1:
        return 0.0
    pace, sums = pace_of(block), block.split * block.m * block.n * 4
    return pace.meet + pace.split * block.split + 2 * sums / (pace.l2 * CLOCK)


def _products(block: Block, spec: TargetSpec, peak: float, together: int) -> float:
    """Microseconds of an SM for the products of a step of all blocks that share it, and for what
    they read of shared memory."""
    if block.m == 1:  # element by element, out of registers: two conversions and an addition each
        return 3.0 * block.n * block.k / (LANES * CLOCK) * together
    read = block.read / (SHARED_BYTES_PER_CLOCK * CLOCK) * 1.8
    compute = 2.0 * block.m * block.n * block.k / (peak / spec.sms * 1e-6)
    # A warp multiplies 16 by 8 at least; more warps than that repeat each other's work. Fewer than
    # four leave quarters of the SM idle.
    compute *= max(1.0, block.warps * 128 / (block.m * block.n))
    # Each tap of a window is widened, multiplied and added; one warp alone waits for each of them.
    window = 3.0 * block.m * block.k * block.reads / (LANES * CLOCK) if block.reads > 1 else 0.0
    window *= max(1.0, 2 * QUARTERS / (block.warps * together))
    return (read + window + compute * max(1.0, QUARTERS / (block.warps * together))) * together


def _per_sm(block: Block, spec: TargetSpec) -> int:
    return math.ceil(block.blocks / spec.sms)
