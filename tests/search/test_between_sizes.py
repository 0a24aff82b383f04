"""Of many sizes a few are searched; those between two that ended alike are done the same, and say
so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.ir.graph import Graph
from anabranch.options import Options
from anabranch.search import between_sizes
from anabranch.search.between_sizes import RuleAtPlaces, SizeSearched
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.among_sizes import FARTHEST, AmongSizes, among_sizes
from anabranch.tuning.job import Job


@pytest.mark.parametrize(
    ("sizes", "searched"),
    [
        ([(8,)], [8]),
        ([(64,), (1,)], [1, 64]),
        ([(1,), (2,), (3,), (4,), (5,), (6,), (16,), (17,)], [1, 4, 16, 17]),
        ([(2, 64), (1, 128), (4, 128), (32, 512)], [128, 512, 16384]),
    ],
)
def test_searched_sizes_lie_a_factor_apart(sizes: list[Any], searched: list[int]) -> None:
    among = among_sizes(sizes)
    assert sorted(size.amount for size in among.values() if size.own) == searched
    for size in among.values():
        assert size.below <= size.amount <= size.above
        assert size.own or size.above <= FARTHEST * size.below
        assert {size.below, size.above} <= set(searched)


class Sibling(nn.Module):
    """Three layers that read one input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = (self.first(x) * self.second(x)).relu() + self.third(x)
        return made


TARGET = resolve("sim:h200"), Options(search="at-once")
SIZES = [16, 24, 32, 48, 64]
OWN = {16, 64}


def compiled(cache: Path, **changed: Any) -> anabranch.Compiled:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        **{"target": "sim:h200", "effort": "fast", "cache_dir": cache, "buckets": len(SIZES)},
        **{"dynamic_shapes": ({0: Dim("rows", min=1, max=64)},), "sizes": SIZES},
    }
    model = nn.Sequential(Sibling(), Sibling()).half().eval()
    return anabranch.compile(model, (torch.randn(64, 128).half(),), **(given | changed))


def paths(fast: anabranch.Compiled) -> dict[int, Any]:
    """By size; every plan was searched for, or told."""
    found = {entry.at[0]: entry.compilation.path for entry in fast.entries if entry.compilation}
    assert set(found) == set(SIZES) and None not in found.values()
    return found


def test_sizes_between_two_that_ended_alike_are_not_searched(tmp_path: Path) -> None:
    fast = compiled(tmp_path)
    found = paths(fast)
    assert all(found[n].beside == (() if n in OWN else (16, 64)) for n in SIZES)
    rules = {tuple((s.rule, s.nodes) for s in path.steps) for path in found.values()}
    assert len(rules) == 1
    graphs = [entry.plan.tasks for entry in fast.entries]
    assert len({len(tasks.tasks) for tasks in graphs}) == 1
    again = paths(compiled(tmp_path))
    assert {n: path.beside for n, path in again.items()} == {n: found[n].beside for n in SIZES}
    assert "beside this one" in str(fast.explain())


class Told:
    """In place of the table: how searches ended in order of their sizes, whatever they found."""

    def __init__(self, *told: SizeSearched | None) -> None:
        self._answers = dict(zip(sorted(OWN), told, strict=True))

    def key(self, *parts: str) -> str:
        return "\n".join(parts)

    def put(self, cache: Any, key: str, value: SizeSearched) -> None:
        pass

    def get_many(self, cache: Any, keys: dict[int, str]) -> dict[int, SizeSearched]:
        found = {n: self._answers[n] for n in keys}
        return {n: told for n, told in found.items() if told is not None}


MERGED = SizeSearched((RuleAtPlaces("x", 3),))
NOTHING = SizeSearched(())


@pytest.mark.parametrize(
    ("told", "spared"),
    [
        ((NOTHING, NOTHING), True),
        ((NOTHING, MERGED), False),
        ((NOTHING, None), False),
        ((MERGED, MERGED), False),  # no rule of the name, so not at three places
    ],
)
def test_where_neighbours_differ_a_size_is_searched(
    told: Any, spared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_sizes, "SEARCHED", Told(*told))
    found = paths(compiled(tmp_path, search="at-once"))
    assert all(bool(found[n].beside) == (spared and n not in OWN) for n in SIZES)
    assert all(not found[n].steps for n in SIZES if found[n].beside)


def test_what_another_width_found_is_not_taken() -> None:
    """A model of the same operators and names has searches of its own."""
    keys = list[str]()
    for width in (16, 32):
        job = Job(nn.Linear(width, 8), (), {}, *TARGET, None, Trace())
        keys.append(between_sizes._key(job, Graph("g", (), (), (), ()), 4))
    assert keys[0] != keys[1]


def test_searches_of_an_earlier_process_tell_as_well(tmp_path: Path) -> None:
    """Both sizes at the ends are in the cache, those between are not."""
    compiled(tmp_path, sizes=sorted(OWN), buckets=2)
    found = paths(compiled(tmp_path))
    assert all(found[n].beside == (() if n in OWN else (16, 64)) for n in SIZES)


def test_one_size_alone_is_searched(tmp_path: Path) -> None:
    assert among_sizes([(3,)]) == {(3,): AmongSizes(3, 3, 3, True)}
    fast = compiled(tmp_path, sizes=[64], buckets=1)
    (entry,) = fast.entries
    assert entry.compilation is not None and entry.compilation.path is not None
    assert entry.compilation.path.beside == ()


def test_a_size_that_was_told_is_searched_where_it_has_no_neighbours(tmp_path: Path) -> None:
    """Neither the way nor the plan of a size between two others answers for it then."""
    compiled(tmp_path)
    fast = compiled(tmp_path, sizes=[32, 64])
    (own,) = (entry for entry in fast.entries if entry.at == (32,))
    assert own.compilation is not None and own.compilation.path is not None
    assert own.compilation.path.beside == ()


@pytest.mark.parametrize(("effort", "anew"), [("fast", True), ("max", False)])
def test_plans_of_fewer_kernels_are_kept_apart(tmp_path: Path, effort: str, anew: bool) -> None:
    """Where all is tried between sizes too, a plan is the same."""
    rest: dict[str, Any] = {"effort": effort, "search": "none"}

    def decided(sizes: list[int]) -> int:
        fast = compiled(tmp_path, sizes=sizes, buckets=len(sizes), **rest)
        return sum(event.where == "memory" and event.kind == "stage" for event in fast.trace.events)

    assert decided([16, 32, 64]) == 3 and decided([16, 32, 64]) == 0
    assert decided([32, 64]) == int(anew)
    assert decided([16, 32, 64]) == 0
