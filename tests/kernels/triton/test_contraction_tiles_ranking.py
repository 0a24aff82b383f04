"""The ranking of tiles, judged by recorded searches on a GPU: of all tiles, or 400 of a layer."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.pruning import LEAST_PRUNED, MOST_LOST, PruningRecord, judge, read

from anabranch.ir.text import parse_graph
from anabranch.ir.tiles import text_tile
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import (
    LIKES,
    ContractionSizes,
    chosen,
    limit_of,
    ranked,
    space,
)
from anabranch.kernels.triton.tile_ranking import by_bound

RECORDS = Path(__file__).parents[3] / "benchmarks/results/2026-11-22-h200-bound"
FAST = 1.5
"""Times the fastest: what is slower need not be told apart."""


def searches() -> list[tuple[PruningRecord, str]]:
    records = [read(path) for path in sorted(RECORDS.glob("*.json"))]
    return [(record, name) for record in records for name in record.searches]


SEARCHES = searches()
NAMES = [name for _, name in SEARCHES]


def contraction(record: PruningRecord, name: str) -> Contraction:
    found = contraction_of(lower(parse_graph(record.searches[name].body)))
    assert isinstance(found, Contraction)
    return found


@pytest.mark.parametrize(("record", "name"), SEARCHES, ids=NAMES)
def test_what_is_kept_has_one_of_the_fastest(record: PruningRecord, name: str) -> None:
    assert judge(record, name).loss <= MOST_LOST


@pytest.mark.parametrize(("first", "most"), [(2, 1.05), (4, 1.025), (8, 1.01)])
def test_little_effort_has_one_of_the_fastest(first: int, most: float) -> None:
    """In geometric mean over layers of which some of the first few tiles were timed."""
    lost = []
    for record, name in SEARCHES:
        timed = record.searches[name].timed
        few = [text_tile(tile) for tile in chosen(contraction(record, name), record.spec)[:first]]
        if there := [us for text in few if isinstance(us := timed.get(text), float)]:
            lost.append(min(there) / min(us for us in timed.values() if isinstance(us, float)))
    assert len(lost) > 20 and statistics.geometric_mean(lost) < most


def test_nearly_all_tiles_are_pruned() -> None:
    found = [judge(record, name) for record, name in SEARCHES]
    assert sum(one.kept for one in found) <= (1 - LEAST_PRUNED) * sum(one.tiles for one in found)
    for record, name in SEARCHES:
        kept = chosen(contraction(record, name), record.spec)
        assert max(Counter((t.m, t.n, t.k, t.split, t.warps) for t in kept).values()) <= LIKES


def test_tiles_are_in_the_order_of_their_bounds() -> None:
    """Though the limit is found out of those alone that are equally fast."""
    ties = 0
    for record, name in SEARCHES[::7]:
        sums = contraction(record, name)
        order = ranked(sums, record.spec)
        sizes = ContractionSizes.of(sums)
        every = {tile: limit_of(sums, tile, record.spec) for tile in space(sizes, record.spec)}
        assert tuple(order) == by_bound(every.items())
        ties += len(order) - len({limit.us for _, limit in order})
    assert ties > 0


def test_the_model_tells_fast_tiles_times_to_a_tenth() -> None:
    """In the median over the tiles of a layer; of nine layers in ten to a fifth."""
    errors = []
    for record, name in SEARCHES:
        us = record.searches[name].timed
        limits = {
            text_tile(tile): b.us for tile, b in ranked(contraction(record, name), record.spec)
        }
        fast = [v for v in us if us[v] <= FAST * min(us.values()) and v in limits]
        errors.append(statistics.median(abs(math.log(limits[v] / us[v])) for v in fast))
    assert statistics.median(errors) <= 0.1
    assert sorted(errors)[math.ceil(0.9 * len(errors)) - 1] <= 0.2
