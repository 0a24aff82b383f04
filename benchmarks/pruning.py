"""Pruning: what the ranking of tiles leaves untried, and what that costs.

    bodies --> | every tile, compiled and timed | --> PruningRecord --> | judge | --> pruned, loss

Pruned is the share of all tiles that is never compiled; loss is how much slower the best of the
rest is than the best of all. The record holds the times of all tiles and says nothing of ranking,
so a later ranking is judged by the same record. A search goes on where it was left. Of layers with
thousands of tiles so many as are asked for are tried: what is kept, the next best ranked, and
others by chance; then the best of all is that of these.

    name                    tiles  tried  kept  pruned  best us  kept us   loss  rank
    64x56x56 -> 256, 1x1      184    184    20   89.1%     2.42     2.44   0.8%    23
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.kernel_timing import Batch, Times
from pydantic import BaseModel, ConfigDict, ValidationError

from anabranch.costs.recorded import Provenance
from anabranch.errors import TargetError
from anabranch.ir.graph import Graph
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.tiles import text_tile
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.contraction import tiles
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import ranked

AT_ONCE = 64
"""Kernels that are compiled, then timed together."""
FINALISTS = 8
"""Of all tiles, and of those that are kept, timed again side by side for longer: the least of
hundreds of times is not the time of the fastest."""
SCREEN, FINAL = 0.01, 0.05
"""Seconds of timing for each tile, and for each of these."""
RANKED = 1 / 4
"""Of the tiles that are tried, where not all are, the share that is taken by rank."""
LEAST_PRUNED, MOST_LOST = 0.8, 0.02
"""What is asked of the ranking."""

Try = Callable[[Batch, Batch | None, float], Times]
"""The times of a batch while the next one is compiled, with so many seconds for each kernel (on a
GPU `benchmarks.kernel_timing.Bench.times`)."""


class PruningSearch(BaseModel):
    """Tiles of one body, at most `most` of them: microseconds, refusals, and the times of the
    second round."""

    model_config = ConfigDict(extra="forbid")
    body: str
    most: int | None = None
    timed: dict[str, float] = {}
    refused: dict[str, str] = {}
    finals: dict[str, float] = {}


class PruningRecord(BaseModel):
    """Searches of one machine, by name."""

    model_config = ConfigDict(extra="forbid")
    spec: TargetSpec
    provenance: Provenance = Provenance()
    searches: dict[str, PruningSearch] = {}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the ranking makes of one search. `tried`: tiles that were, timed or refused; `left`:
    those that are still to be; `rank`: where the fastest stands among all tiles; times in
    microseconds."""

    name: str
    tiles: int
    tried: int
    kept: int
    left: int
    best: float
    kept_best: float
    rank: int

    @property
    def pruned(self) -> float:
        """The share of tiles that are never compiled, from 0 to 1."""
        return 1 - self.kept / self.tiles

    @property
    def loss(self) -> float:
        """How much slower the best kept tile is than the best of all, as a fraction."""
        return self.kept_best / self.best - 1

    @property
    def text(self) -> str:
        """One line of the table; times in microseconds."""
        line = f"{self.name:26} {self.tiles:5} {self.tried:5} {self.kept:5} {self.pruned:7.1%}"
        line += f" {self.best:8.2f}"
        line += f" {self.kept_best:8.2f} {self.loss:6.1%} {self.rank:5}"
        return line + (f"  {self.left} left to try" if self.left else "")


def explore(
    record: PruningRecord,
    bodies: Mapping[str, Graph],
    attempt: Try,
    seconds: float,
    save: Callable[[PruningRecord], None],
    clock: Callable[[], float] = time.perf_counter,
    most: int | None = None,
) -> bool:
    """Times every tile of every body that the record has no time of, or of each body that is new
    `most`, saving after each batch; False where time was up before. What is kept comes first, the
    rest in random order."""
    deadline = clock() + seconds
    for name, body in bodies.items():
        record.searches.setdefault(name, PruningSearch(body=text_graph(body), most=most))
    work = [(name, batch) for name in bodies for batch in _batches(record, name)]
    for (name, batch), (_, soon) in pairwise([*work, ("", None)]):
        if clock() > deadline:
            return False
        assert batch is not None
        _note(record.searches[name], attempt(batch, soon, SCREEN))
        save(record)
    for name in bodies:
        search = record.searches[name]
        if search.finals or not search.timed:
            continue
        if clock() > deadline:
            return False
        again = attempt((parse_graph(search.body), _finalists(record, name)), None, FINAL)
        search.finals = {v: us for v, us in again.items() if isinstance(us, float)}
        save(record)
    return True


def judge(record: PruningRecord, name: str) -> Judgement:
    """What the ranking, as it is now, makes of a search. TargetError if none of what it keeps was
    timed."""
    search, order = record.searches[name], _tiles(record, name)
    kept = _kept(record, name)
    times = {v: us for v, us in (search.finals or search.timed).items() if v in set(order)}
    among = [times[v] for v in kept if v in times]
    among = among or [search.timed[v] for v in kept if v in search.timed]
    if not among or not times:
        raise TargetError(
            f"nothing that the ranking keeps of {name} was timed",
            f"{len(search.timed)} tiles were timed, {len(search.refused)} refused",
            "record it again",
        )
    best = min(times, key=times.__getitem__)
    tried = sum(v in search.timed or v in search.refused for v in order)
    left = max(0, min(len(order), search.most or len(order)) - tried)
    return Judgement(
        name,
        len(order),
        tried,
        len(kept),
        left,
        times[best],
        min(among),
        order.index(best) + 1,
    )


def holds(judgements: Sequence[Judgement]) -> bool:
    """Whether the ranking prunes and loses what is asked of it, in searches that are done."""
    done = [judgement for judgement in judgements if not judgement.left]
    return bool(done) and (_pruned(done) >= LEAST_PRUNED and max(v.loss for v in done) <= MOST_LOST)


def table(judgements: Sequence[Judgement]) -> str:
    """All judgements, and both figures."""
    head = f"{'name':26} {'tiles':>5} {'tried':>5} {'kept':>5} {'pruned':>7} {'best us':>8}"
    lines = [
        f"{head} {'kept us':>8} {'loss':>6} {'rank':>5}",
        *(judgement.text for judgement in judgements),
    ]
    done = [judgement for judgement in judgements if not judgement.left]
    if done:
        losses = [judgement.loss for judgement in done]
        within = sum(loss <= MOST_LOST for loss in losses)
        lines.append(
            f"{len(done)} of {len(judgements)} searches are done: {_pruned(done):.1%} of the tiles"
            f" pruned; the best kept is within {MOST_LOST:.0%} of the best in {within},"
            f" loss {statistics.median(losses):.1%} in the median, {max(losses):.1%} at most"
        )
    return "\n".join(lines)


def load(path: Path, spec: TargetSpec, provenance: Provenance) -> PruningRecord:
    """The record in this file, a new one if there is none. TargetError for another machine's."""
    if not path.exists():
        return PruningRecord(spec=spec, provenance=provenance)
    record = read(path)
    if record.spec.fingerprint != spec.fingerprint:
        raise TargetError(
            f"{path} is of {record.spec.name}",
            "times of several machines, or versions, cannot be compared",
            "name another file",
        )
    return record


def read(path: Path) -> PruningRecord:
    """The record in this file. TargetError if there is none, or not one that we can read."""
    try:
        return PruningRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as broken:
        why = str(broken).partition("\n")[0]
        raise TargetError(f"cannot read {path}", why, "record it again") from None


def save(record: PruningRecord, path: Path) -> None:
    """Whole or not at all: a run that is interrupted leaves what was there."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _batches(record: PruningRecord, name: str) -> Iterator[Batch]:
    """What is left to try of a search, in batches."""
    search = record.searches[name]
    kept, order = _kept(record, name), _tiles(record, name)
    rest = [v for v in order if v not in set(kept)]
    most = len(order) if search.most is None else search.most
    ranked = rest[: round(RANKED * most)] if most < len(order) else []
    chance = sorted(set(rest) - set(ranked))
    random.Random(0).shuffle(chance)
    tried = [*kept, *ranked, *chance][:most]
    left = [v for v in tried if v not in search.timed and v not in search.refused]
    body = parse_graph(search.body)
    for at in range(0, len(left), AT_ONCE):
        yield body, left[at : at + AT_ONCE]


def _note(search: PruningSearch, times: Times) -> None:
    search.timed |= {variant: us for variant, us in times.items() if isinstance(us, float)}
    search.refused |= {variant: why for variant, why in times.items() if isinstance(why, str)}


def _finalists(record: PruningRecord, name: str) -> list[str]:
    timed = record.searches[name].timed
    order = sorted(timed, key=timed.__getitem__)
    kept = set(_kept(record, name))
    best_kept = [variant for variant in order if variant in kept]
    return list(dict.fromkeys([*order[:FINALISTS], *best_kept[:FINALISTS]]))


def _kept(record: PruningRecord, name: str) -> list[str]:
    return [text_tile(tile) for tile in tiles(parse_graph(record.searches[name].body), record.spec)]


def _tiles(record: PruningRecord, name: str) -> list[str]:
    """All tiles that fit, best ranked first."""
    contraction = contraction_of(lower(parse_graph(record.searches[name].body)))
    assert isinstance(contraction, Contraction), contraction
    return [text_tile(tile) for tile, _ in ranked(contraction, record.spec)]


def _pruned(judgements: Sequence[Judgement]) -> float:
    return 1 - sum(v.kept for v in judgements) / sum(v.tiles for v in judgements)
