"""Searches of all tiles: they go on where they were left, and a record gives both figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.kernel_timing import Batch, Times
from benchmarks.layers import LARGE, SAMPLE, convolution
from benchmarks.pruning import (
    AT_ONCE,
    PruningRecord,
    explore,
    holds,
    judge,
    load,
    read,
    save,
    table,
)
from tests.kernels.triton.bodies import gpu

from anabranch.costs.recorded import Provenance
from anabranch.errors import TargetError
from anabranch.ir.tiles import text_tile
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton import contraction
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import TRIED_TILES, ranked

BODY = convolution(64, 56, 64, 1)
BODIES = {"layer": BODY}


def tiles() -> list[str]:
    found = contraction_of(lower(BODY))
    assert isinstance(found, Contraction)
    return [text_tile(tile) for tile, _ in ranked(found, gpu())]


def kept_tiles() -> list[str]:
    return [text_tile(tile) for tile in contraction.tiles(BODY, gpu())]


class Machine:
    """Times tiles as it is told to, and remembers what it was asked."""

    def __init__(self, us: dict[str, float], broken: Sequence[str] = ()) -> None:
        self.us, self.broken = us, broken
        self.asked: list[list[str]] = []
        self.soon: list[list[str]] = []

    def __call__(self, batch: Batch, soon: Batch | None, each: float) -> Times:
        self.asked.append([str(one) for one in batch[1]])
        self.soon.append([str(one) for one in soon[1]] if soon else [])
        return {v: "broken" if v in self.broken else self.us[v] for v in self.asked[-1]}


def recorded(us: dict[str, float], broken: Sequence[str] = ()) -> PruningRecord:
    record = PruningRecord(spec=gpu())
    assert explore(record, BODIES, Machine(us, broken), 60, lambda record: None)
    return record


def test_every_tile_is_tried_once_and_what_is_kept_first() -> None:
    machine, record = Machine(dict.fromkeys(tiles(), 5.0)), PruningRecord(spec=gpu())
    assert explore(record, BODIES, machine, 60, lambda record: None)
    *batches, finals = machine.asked
    flat = [variant for batch in batches for variant in batch]
    assert sorted(flat) == sorted(tiles()) and max(map(len, batches)) == AT_ONCE
    assert flat[:TRIED_TILES] == kept_tiles()
    assert machine.soon == [*batches[1:], [], []], "the next batch is compiled meanwhile"
    assert 8 <= len(finals) <= 16


def test_a_search_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path, machine = tmp_path / "bound.json", Machine(dict.fromkeys(tiles(), 5.0))
    hours = iter(range(100))
    record = load(path, gpu(), Provenance())
    done = explore(record, BODIES, machine, 1.5, lambda r: save(r, path), lambda: next(hours))
    assert not done and len(machine.asked) == 1
    assert judge(read(path), "layer").left == len(tiles()) - AT_ONCE
    assert not holds([judge(read(path), "layer")]), "half a search says nothing"
    again = Machine(dict.fromkeys(tiles(), 5.0))
    record = load(path, gpu(), Provenance())
    assert explore(record, BODIES, again, 60, lambda r: save(r, path))
    assert not set(machine.asked[0]) & {v for batch in again.asked[:-1] for v in batch}
    assert judge(read(path), "layer").left == 0


def test_where_not_all_are_tried_the_best_ranked_are_and_others_by_chance() -> None:
    machine, record = Machine(dict.fromkeys(tiles(), 5.0)), PruningRecord(spec=gpu())
    assert explore(record, BODIES, machine, 60, lambda record: None, most=60)
    tried = [variant for batch in machine.asked[:-1] for variant in batch]
    kept = kept_tiles()
    rest = [variant for variant in tiles() if variant not in kept]
    assert tried[: TRIED_TILES + 15] == [*kept, *rest[:15]] and len(set(tried)) == len(tried) == 60
    judgement = judge(record, "layer")
    assert (judgement.tiles, judgement.tried, judgement.left) == (len(tiles()), 60, 0)
    silent = Machine({})
    assert explore(record, BODIES, silent, 60, lambda record: None), "the record says how many"
    assert not silent.asked


def test_both_figures_of_a_known_search() -> None:
    order, kept = tiles(), kept_tiles()
    fastest = next(variant for variant in reversed(order) if variant not in kept)
    us = {variant: 5.0 + at for at, variant in enumerate(order)}
    us |= {fastest: 4.0, kept[3]: 4.1}
    judgement = judge(recorded(us), "layer")
    assert (judgement.tiles, judgement.kept, judgement.left) == (len(order), TRIED_TILES, 0)
    assert judgement.pruned == pytest.approx(1 - TRIED_TILES / len(order))
    assert judgement.loss == pytest.approx(0.025) and not holds([judgement])
    assert judgement.rank == order.index(fastest) + 1
    assert holds([judge(recorded(us | {kept[3]: 4.05}), "layer")])
    assert "2.5% at most" in table([judgement])


def test_the_second_round_decides() -> None:
    """The fastest of the first round was lucky."""
    us = dict.fromkeys(tiles(), 5.0)
    lucky = next(variant for variant in reversed(tiles()) if variant not in kept_tiles())
    record = recorded(us | {lucky: 2.0})
    assert judge(record, "layer").loss == pytest.approx(1.5)
    record.searches["layer"].finals[lucky] = 5.5
    assert judge(record, "layer").loss == 0


def test_tiles_that_do_not_run_are_not_tried_again_and_count_as_pruned_or_kept() -> None:
    kept = kept_tiles()
    record = recorded(dict.fromkeys(tiles(), 5.0), broken=kept[:2])
    assert sorted(record.searches["layer"].refused) == sorted(kept[:2])
    assert judge(record, "layer").left == 0
    silent = Machine({})
    assert explore(record, BODIES, silent, 60, lambda record: None) and not silent.asked
    with pytest.raises(TargetError, match="nothing that the ranking keeps"):
        judge(recorded(dict.fromkeys(tiles(), 5.0), broken=kept), "layer")


def test_a_record_is_of_one_machine(tmp_path: Path) -> None:
    save(PruningRecord(spec=gpu(100)), tmp_path / "bound.json")
    with pytest.raises(TargetError, match="of a GPU"):
        load(tmp_path / "bound.json", gpu(132), Provenance())
    (tmp_path / "bound.json").write_text("{}")
    with pytest.raises(TargetError, match="cannot read"):
        read(tmp_path / "bound.json")


def test_layers_of_the_sample_are_contractions_of_some_hundred_tiles() -> None:
    sizes = {}
    for name, body in {**SAMPLE, **LARGE}.items():
        found = contraction_of(lower(body))
        assert isinstance(found, Contraction), name
        sizes[name] = len(ranked(found, gpu()))
    assert len(SAMPLE) == 12 and sum(sizes[name] for name in SAMPLE) < 4000
    assert min(sizes[name] for name in LARGE) > max(sizes[name] for name in SAMPLE)
