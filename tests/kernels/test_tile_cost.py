"""The performance upper limit: the paper's terms at their test points, and what it must refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.kernels.triton.bodies import gpu

from anabranch.kernels.tile_cost import (
    TileWork,
    bank_conflicts,
    bound,
    resident,
    shared,
    tail,
    time_us,
)

SPEC = gpu()
PEAK = 9.9e14
BLOCK = TileWork(m=64, n=64, k=64, blocks=132, steps=8, itemsize=2, warps=4, stages=3)


@pytest.mark.parametrize(
    ("blocks", "share"), [(79, 0.9875), (80, 1.0), (81, 81 / 160), (120, 0.75), (160, 1.0)]
)
def test_the_last_wave_counts(blocks: int, share: float) -> None:
    """Algorithms: one block more than there are multiprocessors halves what is used."""
    assert tail(blocks, 80) == pytest.approx(share)


def test_no_term_leaves_its_range() -> None:
    for m in (16, 32, 64, 128):
        for n in (16, 64, 128):
            for k in (32, 128):
                for blocks in (1, 131, 133, 5000):
                    found = bound(replace(BLOCK, m=m, n=n, k=k, blocks=blocks), SPEC, PEAK)
                    for term in (found.memory, found.shared, found.tail, found.fits):
                        assert 0.0 <= term <= 1.0
                    assert found.limit <= min(found.memory, found.shared, found.tail)


def test_larger_tiles_do_more_with_each_byte() -> None:
    small, large = (bound(replace(BLOCK, m=s, n=s), SPEC, PEAK) for s in (16, 128))
    assert small.memory < large.memory
    assert shared(replace(BLOCK, m=16, n=16, warps=1), SPEC, PEAK) < shared(BLOCK, SPEC, PEAK)


def test_a_load_from_shared_memory_must_be_covered_by_arithmetic() -> None:
    """Of 64x64x64 by 4 warps a thread does 4096 operations, and loads 20 times 16 bytes."""
    lane = PEAK / (SPEC.sms * 128 * 1.7e9)
    assert shared(BLOCK, SPEC, PEAK) == pytest.approx(4096 / lane / 20 / 29)
    assert shared(replace(BLOCK, m=1), SPEC, PEAK) == 1.0


@pytest.mark.parametrize(("n", "k", "ways"), [(16, 32, 8), (64, 32, 2), (128, 32, 1), (16, 4, 4)])
def test_lanes_that_ask_one_bank_wait_for_each_other(n: int, k: int, ways: int) -> None:
    """Without tensor cores; rows of the left factor are `k` words apart, a thread has four."""
    plain = replace(BLOCK, n=n, k=k, itemsize=4, cores=False)
    assert bank_conflicts(plain) == ways and bank_conflicts(replace(plain, cores=True)) == 1


def test_what_does_not_fit_is_worth_nothing() -> None:
    too_much_memory = replace(BLOCK, m=128, n=128, k=128, stages=5)
    too_many_registers = replace(BLOCK, m=128, n=128, warps=1)
    for block in (too_much_memory, too_many_registers):
        assert resident(block, SPEC) == 0 and time_us(block, SPEC, PEAK) == math.inf
        assert bound(block, SPEC, PEAK).limit == 0.0


def test_stages_hide_what_a_step_waits_for() -> None:
    times = [bound(replace(BLOCK, stages=s), SPEC, PEAK).us for s in (2, 3, 4)]
    assert times == sorted(times, reverse=True)
