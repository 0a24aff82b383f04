"""Offsets: legal for any order, near the lower bound, quick, and the same twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ir.plan import ALIGNMENT, aligned
from anabranch.memory.arena import lower_bound, place
from anabranch.memory.lifetime import Lifetime, before_masks, lifetimes, may_share


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), streams=st.integers(1, 5))
def test_buffers_that_may_not_share_bytes_do_not(
    networks: Any, seed: int, n: int, streams: int
) -> None:
    tasks = networks.chance(seed, n)
    schedule = networks.shuffled(tasks, seed, streams)
    buffers, before = lifetimes(tasks, schedule), before_masks(schedule)
    found = place(buffers, before, work=500)
    assert found.total >= lower_bound(buffers, before)
    for i, a in enumerate(buffers):
        assert found.offsets[i] % ALIGNMENT == 0
        assert 0 <= found.offsets[i] <= found.offsets[i] + a.nbytes <= found.total
        for k, b in enumerate(buffers[:i]):
            apart = (
                found.offsets[i] + a.nbytes <= found.offsets[k]
                or found.offsets[k] + b.nbytes <= found.offsets[i]
            )
            assert apart or not (a.nbytes and b.nbytes) or may_share(a, b, before)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), streams=st.integers(1, 5))
def test_who_has_no_use_for_more_finds_the_same_or_hears_of_it(
    networks: Any, seed: int, n: int, streams: int
) -> None:
    tasks = networks.chance(seed, n)
    schedule = networks.shuffled(tasks, seed, streams)
    buffers, before = lifetimes(tasks, schedule), before_masks(schedule)
    found = place(buffers, before, work=100)
    assert place(buffers, before, 100, useless=found.total) == found
    assert place(buffers, before, 100, useless=found.total - 1).total >= found.total


def test_one_stream_needs_its_live_range_peak_and_no_more(networks: Any) -> None:
    for tasks in (networks.inception(), networks.nasnet(), networks.chance(1, 300)):
        schedule = networks.sequential(tasks)
        buffers, before = lifetimes(tasks, schedule), before_masks(schedule)
        exact = max(
            sum(
                aligned(value.nbytes)
                for value in buffers
                if value.writer <= t < value.touches.bit_length()
            )
            for t in range(len(tasks.tasks))
        )
        assert lower_bound(buffers, before) == exact
        assert place(buffers, before).total <= 1.02 * exact


def test_several_streams_come_near_a_clique_of_conflicts(networks: Any) -> None:
    """Two inception modules side by side on streams: all branches may be alive at once, which a
    maximum weight clique of the conflicts (found once by an exact search) shows to be needed."""
    tasks = networks.inception()
    schedule = networks.parallel(tasks)
    assert place(lifetimes(tasks, schedule), before_masks(schedule)).total == 2_079_744


def test_fifteen_hundred_values_take_about_a_second(networks: Any) -> None:
    tasks = networks.nasnet(50)
    schedule = networks.parallel(tasks)
    buffers, before = lifetimes(tasks, schedule), before_masks(schedule)
    start = time.process_time()
    first = place(buffers, before)
    assert time.process_time() - start < 5
    assert len(buffers) > 1500
    assert place(buffers, before) == first


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0, 512)])
def test_few_or_empty_buffers(sizes: tuple[int, ...]) -> None:
    buffers = [Lifetime(f"v{i}", size, 0, 1) for i, size in enumerate(sizes)]
    assert place(buffers, [0, 1]).total == sum(sizes)
