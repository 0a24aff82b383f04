"""The performance upper limit: what a tile can reach at best, before it is written or compiled.

DeepCuts (section 4): the part of the machine's peak that a kernel may reach is at most

    memory    operations a block does for each byte it moves, against the machine's balance
    shared    arithmetic of a thread for each load from shared memory, in cycles, against how long
              such a load takes, and how often lanes that ask one bank make it come again
    tail      how full the waves of blocks are, the last one above all
    fits      0 where the block needs more threads, registers or shared memory than there are

and at most their product. What is surely slow is never generated.

The paper's tail term, as published, gives 0.99 where one block of 81 waits for a second wave on 80
multiprocessors; `tail` is the share of slots that work, 0.51 there. Registers, and how many blocks
an SM holds at once, are not in the paper.

At batch 1 layers are too small for any of this to bind: what they pay is latency. So tiles are
ranked by a time, of which the limit is one part:

    us = start + block * blocks / SMs + waves * (steps * step + last) + split

with steps one after the other that a block takes through the depth. Three things go on in a step at
once: its load is on its way (hidden by as many stages as there are), its bytes come through L2, and
its warps issue reads of shared memory and products. The slowest decides, and a little more than
that where two are equally slow: warps do not wait in turn. The numbers are a `Pace`: TILES is what
`benchmarks/pace.py` fits to the tiles of 21 layers at batch 1 that an H200 was timed on, fast and
slow, and of twelve products of 554 to 10,880 rows, ROWS to those of three layers of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anabranch.ir.target import TargetSpec
from anabranch.ir.types import DTYPE_NAMES

WARP = 32
USUAL_PEAK = 5e13
"""Operations a second where nobody knows better: fp32 without tensor cores."""
RESERVED_SHARED_BYTES = 1024
"""Of each block, for the system."""
SHARED_BYTES_PER_CLOCK = 128.0
QUARTERS = 4
"""Of an SM: a warp stays in one, which has a quarter of the tensor cores."""
SHARED_LATENCY_CLOCKS = 29.0
"""From a load from shared memory to its being there, as published for A100 and H100."""
LOAD_BYTES = 16
"""Of a load from shared memory, for each thread."""
BANKS, BANK_BYTES = 32, 4
SIDE_HELD = 4
"""Neighbouring sums of a thread along either side of a tile, without tensor cores."""
LANES = 128
"""Single additions or conversions of an SM in a cycle."""
CLOCK = 1.7e3
"""Cycles in a microsecond, of GPUs of this time under load."""
SPARE = 40
"""Registers of a thread that hold no sums: addresses, fragments, masks."""
PRODUCTS = 32
"""Products of a step for each register that holds a factor, without tensor cores."""
GROUP, GROUP_ROWS = 4, 64
"""Hopper multiplies by groups of four warps, of 64 rows at least: their factors stay in shared
memory, and the product goes on while they do something else."""
AT_ONCE = 5.0
"""Of what goes on in a step at once: how nearly the slowest alone decides (a p-norm)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What takes how long, in microseconds where nothing else is said.

    start: launch and ramp. block: of all blocks for each multiprocessor, before they begin.
    latency: of a load from L2 into shared memory, barriers and the product that waits for it
    included; copy_clocks: of one warp for 512 bytes of it. issue: of each warp in a step whose
    loads are all there. read: how often a byte of shared memory is read, without groups of warps.
    product: how many times as long as at the peak products take; of one row, clocks of a lane for
    one. last: of 1024 results of a warp, their end and their way to memory. more: of what the last
    of several waves leaves empty, the part that it takes all the same. meet: what blocks that share
    a tile pay for the counter and the last one's round through L2; split: and for each of them. l2:
    bytes that one SM gets from L2 in a clock while all of them read.
    """

    start: float
    block: float
    issue: float
    product: float
    more: float
    meet: float
    l2: float
    latency: float = 0.0
    copy_clocks: float = 0.0
    read: float = 0.0
    last: float = 0.0
    split: float = 0.0


TILES = Pace(
    start=1.68,
    block=0.0954,
    latency=0.175,
    copy_clocks=25.7,
    issue=0.0156,
    read=2.1,
    product=1.44,
    last=0.155,
    more=0.724,
    meet=0.964,
    split=0.0482,
    l2=52.9,
)
ROWS = Pace(
    start=1.51,
    block=0.0339,
    issue=0.021,
    product=9.35,
    more=0.424,
    meet=0.791,
    l2=48.0,
)


@dataclass(frozen=True, slots=True)
class TileWork:
    """What a variant asks for: rows, columns and depth of its tile, blocks in all, steps of each,
    bytes of an element, warps, stages, how many blocks share a tile; `reads`: of how many values
    each number of the left factor is made, the taps of a window before a product; `cores`: whether
    tensor cores multiply."""

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
    cores: bool = True

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
        """Of a thread: its sums, its fragments and what else it holds. Without tensor cores a step
        is one long line of products, of which many wait for each other's numbers."""
        sums = self.m * self.n // (self.warps * WARP)
        if not self.cores and self.m > 1:
            return sums + SPARE + sums * self.k // PRODUCTS
        each = self.m * self.k // (self.warps * WARP)
        window = WARP + each if self.reads > 1 else 0
        return sums + SPARE + (self.m + self.n) * 16 // (self.warps * WARP) // 2 + window

    @property
    def operations(self) -> float:
        """Multiplications and additions of the whole launch."""
        return 2.0 * self.m * self.n * self.k * self.steps


@dataclass(frozen=True, slots=True)
class TileBound:
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
        """The limit as percent of peak with its four terms, and the time in microseconds."""
        terms = f"memory {self.memory:.2f}, shared {self.shared:.2f}, tail {self.tail:.2f}"
        terms += f", fits {self.fits:.0f}"
        time = f", about {self.us:.1f} us" if math.isfinite(self.us) else ""
        return f"at most {100 * self.limit:.2g}% of peak ({terms}){time}"


def bound(block: TileWork, spec: TargetSpec, peak: float) -> TileBound:
    """The limit of a block on a machine whose `peak` is in operations a second."""
    held = resident(block, spec)
    if not held:
        return TileBound(0.0, 0.0, 0.0, 0.0, math.inf)
    moved = block.read * block.steps
    moved += block.m * block.n * block.itemsize
    memory = min(1.0, block.operations / moved / (peak / spec.bandwidth))
    held_back = tail(block.blocks, spec.sms)
    us = _whole_us(block, spec, peak, pace_of(block), held)
    return TileBound(memory, shared(block, spec, peak), held_back, 1.0, us)


def tail(blocks: int, sms: int) -> float:
    """The share of multiprocessors that work, over all waves.

    >>> [round(tail(blocks, 80), 4) for blocks in (79, 80, 81, 120, 160)]
    [0.9875, 1.0, 0.5062, 0.75, 1.0]
    """
    return blocks / (sms * math.ceil(blocks / sms)) if blocks else 1.0


@dataclass(frozen=True, slots=True)
class LightWork:
    """A launch without products: warps of a block, blocks, operations and bytes of all of them, and
    how often each thread loads from shared memory."""

    warps: int
    blocks: int
    operations: float
    moved: float
    loads: int = 0


def light_bound(work: LightWork, spec: TargetSpec) -> TileBound:
    """The limit of such a launch, on a machine's ordinary lanes; nobody expects a time of it."""
    threads, peak = work.warps * WARP, dict(spec.peak_flops).get("f32", USUAL_PEAK)
    if threads > 1024:
        return TileBound(0.0, 0.0, 0.0, 0.0, math.inf)
    memory = min(1.0, work.operations / work.moved / (peak / spec.bandwidth)) if work.moved else 1.0
    clocks = _clocks(work.operations / (work.blocks * threads), spec, peak)
    waited = min(1.0, clocks / work.loads / SHARED_LATENCY_CLOCKS) if work.loads else 1.0
    return TileBound(memory, waited, tail(work.blocks, spec.sms), 1.0, math.inf)


def _clocks(operations: float, spec: TargetSpec, peak: float) -> float:
    """Cycles of so many operations of a thread, at the peak of a lane."""
    return operations / (peak / (spec.sms * LANES * CLOCK * 1e6))


def bank_conflicts(block: TileWork) -> float:
    """How many times a load from shared memory comes, of the factor whose rows lie one behind the
    other: as often as lanes ask for other words of one bank. Tensor cores read swizzled rows.

    >>> bank_conflicts(TileWork(64, 16, 32, 1, 1, 4, 4, 1, cores=False))
    8.0
    """
    if block.cores:
        return 1.0
    rows = WARP // max(1, min(WARP, block.n // SIDE_HELD))
    words = SIDE_HELD * block.k * block.itemsize // BANK_BYTES
    return rows / len({row * words % BANKS for row in range(rows)})


def shared(block: TileWork, spec: TargetSpec, peak: float) -> float:
    """Cycles of arithmetic of a thread for each of its loads from shared memory, against those that
    a load takes, as published. A tile of one row has its factors in registers."""
    if block.m == 1:
        return 1.0
    across = max(1, min(block.warps, block.n // 16))
    down = max(1, block.warps // across)
    read = block.k * block.itemsize * (block.m * across + block.n * down)
    threads = block.warps * WARP
    clocks = _clocks(2.0 * block.m * block.n * block.k / threads, spec, peak)
    loads = read / (threads * LOAD_BYTES)
    return min(1.0, clocks / loads / (SHARED_LATENCY_CLOCKS * bank_conflicts(block)))


def resident(block: TileWork, spec: TargetSpec) -> int:
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
        spec.shared_per_sm // (shared + RESERVED_SHARED_BYTES),
        spec.ctas_per_sm,
    )
    return min(fits)


def has_cores(dtype: torch.dtype, spec: TargetSpec) -> bool:
    """Whether tensor cores multiply these: fp32 only where it may be rounded to tf32."""
    return dtype.itemsize < 4 or (dtype == torch.float32 and spec.tf32)


def peak_of(dtype: torch.dtype, spec: TargetSpec) -> float:
    """Operations a second of products in this type."""
    name = "tf32" if dtype == torch.float32 and spec.tf32 else DTYPE_NAMES[dtype]
    return dict(spec.peak_flops).get(name, USUAL_PEAK)


def time_us(block: TileWork, spec: TargetSpec, peak: float, pace: Pace | None = None) -> float:
    """The time of the whole launch, infinite where an SM does not hold a block. `pace`: instead of
    the one that suits the block."""
    held = resident(block, spec)
    return _whole_us(block, spec, peak, pace or pace_of(block), held) if held else math.inf


def _whole_us(block: TileWork, spec: TargetSpec, peak: float, pace: Pace, held: int) -> float:
    """As `time_us`; `held`: blocks that an SM holds."""
    together = min(held, math.ceil(block.blocks / spec.sms))
    steps = block.steps * step_us(block, spec, peak, together, pace)
    whole = steps + pace.last * block.m * block.n / (1024 * block.warps)
    begin = pace.start + pace.block * block.blocks / spec.sms
    return begin + waves(block.blocks, held, spec, pace) * whole + meet_us(block, pace)


def waves(blocks: int, held: int, spec: TargetSpec, pace: Pace) -> float:
    """How many times as long as its first wave a launch takes; `held`: blocks an SM holds. The last
    wave takes nearly as long as a full one, however few blocks it has."""
    full = blocks / (held * spec.sms)
    return max(1.0, full + pace.more * (math.ceil(full) - full))


def pace_of(block: TileWork) -> Pace:
    """How fast blocks of this kind go: those of a single row are bound by memory."""
    return ROWS if block.m == 1 else TILES


def grouped(block: TileWork, spec: TargetSpec) -> bool:
    """Whether groups of warps multiply."""
    fits = block.m >= GROUP_ROWS and block.warps % GROUP == 0
    return block.cores and fits and spec.capability[0] == 9


def step_us(block: TileWork, spec: TargetSpec, peak: float, together: int, pace: Pace) -> float:
    """One step through the depth: its load, its bytes, and what its warps issue. `together`: blocks
    that share an SM at a time."""
    load = block.read * together / (pace.l2 * CLOCK)
    hidden = latency_us(block, pace) / steps_ahead(block)
    busy = pace.issue * block.warps + _products(block, spec, peak, together, pace)
    slowest = max(busy, load, hidden)
    every = math.pow(busy / slowest, AT_ONCE) + math.pow(load / slowest, AT_ONCE)
    every += math.pow(hidden / slowest, AT_ONCE)
    return slowest * math.pow(every, 1 / AT_ONCE)


def steps_ahead(block: TileWork) -> int:
    """Steps that a load is asked for ahead."""
    return max(1, min(block.stages - 1, block.steps))


def latency_us(block: TileWork, pace: Pace) -> float:
    """From the request for what a step reads to its being there."""
    return pace.latency + block.read / 512 / block.warps * pace.copy_clocks / CLOCK


def meet_us(block: TileWork, pace: Pace) -> float:
    """What blocks that share a tile pay for adding up."""
    if block.split == 1:
        return 0.0
    sums = block.split * block.m * block.n * 4
    return pace.meet + pace.split * block.split + 2 * sums / (pace.l2 * CLOCK)


def _products(block: TileWork, spec: TargetSpec, peak: float, together: int, pace: Pace) -> float:
    """Microseconds of an SM for the products of a step of all blocks that share it, and for what
    they read of shared memory."""
    # Fewer warps than four leave quarters of the SM idle.
    idle = max(1.0, QUARTERS / (block.warps * together))
    if block.m == 1:  # element by element, out of registers
        return pace.product * block.n * block.k / (LANES * CLOCK) * idle * together
    compute = pace.product * 2.0 * block.m * block.n * block.k / (peak / spec.sms * 1e-6)
    read = 0.0
    if not grouped(block, spec):
        read = pace.read * block.read / (SHARED_BYTES_PER_CLOCK * CLOCK)
        # A warp multiplies 16 by 8 at least; more warps than that repeat each other's work.
        compute *= max(1.0, block.warps * 128 / (block.m * block.n))
    # Each tap of a window is widened, multiplied and added; one warp alone waits for each of them.
    window = 3.0 * block.m * block.k * block.reads / (LANES * CLOCK) if block.reads > 1 else 0.0
    window *= max(1.0, 2 * QUARTERS / (block.warps * together))
    return (read + window + compute * idle) * together
