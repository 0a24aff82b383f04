"""docs/papers.md: numbers of the four papers beside ours, in each paper's own terms.

    python tools/papers.py          writes it (make benchmarks)

The papers' numbers are in tools/papers.toml; ours come from the records in benchmarks/results,
found by what their rows say, whatever a file is called. A row is one record: of those that time
published systems as they were published, the one with the most of its numbers, then with the most
of the table's systems, then the newest. Numbers of two records never stand in one row. What a row
lacks stands below the table: the command that runs it, or why the record has no number there. A
test compares the page with the records.

    [[paper.table.column]]         a ratio: how many times as long `over` takes as `under`
    over, under = "anabranch:nimble", "anabranch:autograph"
    paper = { sru = 1.26, "sru 16" = 1.1 }          by network, and batch where that is not 1

    [[paper.table.column]]         or a number of a row, by the names on the way to it
    system, path = "anabranch:opara", "facts order_s"
"""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.reproduce import reproduction
from anabranch.bench.result_rows import CALL, OURS, BenchmarkMatrix

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tools" / "papers.toml"
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "papers.md"

NAMES = {
    "attention_rnn": "Attention-RNN",
    "bert_base": "BERT-base",
    "deepfm": "DeepFM",
    "deepspeech2": "Deep Speech 2",
    "densenet121": "DenseNet-121",
    "dlrm": "DLRM",
    "googlenet": "GoogLeNet",
    "inception_v3": "Inception-v3",
    "mobilenet_v2": "MobileNet-v2",
    "nasnet_cell": "a cell of NASNet-A",
    "nasnet_ios": "NASNet of IOS's code",
    "nasnet_large": "NASNet-A Large",
    "nasnet_mobile": "NASNet-A Mobile",
    "randwire_ios": "RandWire of IOS's code",
    "resnet50": "ResNet-50",
    "resnext50": "ResNeXt-50",
    "squeezenet_bypass": "SqueezeNet with bypass",
    "sru": "SRU",
    "t5": "T5-base",
}
OLD = {"local-overlap": "local-pdl"}
UNFAIR = "2026-11-27"
"""Records of published systems from before this day are marked: they were taken with waits that
bound memory, and with searches that estimated operators."""
SLOWER = 1.25
"""What a run under a profiler may take longer than without."""
USE = "utilisation"
"""Where a row says what a plan makes of the machine."""
Place = tuple[str, int]
"""A network and its batch."""
SYSTEMS, TRAINING, SCHEDULERS, BATCHES = "systems", "training", "schedulers", "batches"


@dataclass(frozen=True, slots=True)
class Run:
    """One network in one record: what each system took, by name, and the rows themselves."""

    kind: str
    place: Place
    dtype: str
    date: str
    gpu: str
    took: Mapping[str, float]
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def unfair(self) -> bool:
        """Whether published systems were held back in it."""
        return self.kind == SYSTEMS and self.date < UNFAIR

    @property
    def seen(self) -> str:
        """Where and when."""
        return f"{self.gpu}, {self.dtype}, {self.date[:10]}{' †' if self.unfair else ''}"


@dataclass(frozen=True, slots=True)
class Column:
    """`over`, `under`: a ratio of times of two systems, or with `path` of numbers of their rows;
    else `system`, `path`: one number, times `scale`. `paper`: what the paper has, by network and
    batch. `digits`: behind the point."""

    head: str
    over: str = ""
    under: str = ""
    system: str = ""
    path: str = ""
    scale: float = 1.0
    digits: int = 2
    paper: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The systems that it asks for."""
        return tuple(name for name in (self.over, self.under, self.system) if name)

    def lacks(self, run: Run | None) -> bool:
        """Whether one of its systems was not run."""
        return run is None or any(name not in run.rows for name in self.names)

    def why(self, run: Run) -> Iterator[str]:
        """Of a number that is not there though all was run, what kept each system from it."""
        if self.lacks(run) or self.ours(run) is not None:
            return
        for name in self.names:
            row = run.rows[name]
            if row.get("failure"):
                yield f"{name}: {row['failure']}"
            elif self.path.startswith(USE) and _slowed(row):
                yield f"{name} took more than {SLOWER} times as long under the profiler"
            elif self._of(run, name) is None:
                yield f"{name} has no such number"

    def told(self, place: Place) -> float | None:
        """What the paper has."""
        model, batch = place
        return self.paper.get(model if batch == 1 else f"{model} {batch}")

    def ours(self, run: Run) -> float | None:
        """What a record has."""
        if self.over:
            over, under = self._of(run, self.over), self._of(run, self.under)
            return over / under if over and under else None
        figure = self._of(run, self.system)
        return None if figure is None else figure * self.scale

    def _of(self, run: Run, system: str) -> float | None:
        if not self.path:
            return run.took.get(system)
        figure: Any = run.rows.get(system)
        if self.path.startswith(USE) and _slowed(figure):
            return None
        for name in self.path.split():
            figure = figure.get(name) if isinstance(figure, Mapping) else None
        return None if figure is None else float(figure)


def _slowed(row: Mapping[str, Any] | None) -> bool:
    """Whether a profiler made a plan so slow that what it saw says nothing of it."""
    used = (row or {}).get("utilisation")
    return bool(used and row and used["us"] > SLOWER * row["us"])


@dataclass(frozen=True, slots=True)
class Table:
    """A table: `command` runs it; `says`: what its numbers are; `differs`: what stands between the
    paper's and ours. `kind`: of which records. `systems`: that the command runs, as rows name
    them. `dtype`: the only one that it is of, "" for any."""

    title: str
    command: str
    says: str
    differs: str
    places: tuple[Place, ...]
    columns: tuple[Column, ...]
    kind: str
    systems: frozenset[str] = frozenset()
    dtype: str = ""

    @property
    def words(self) -> str:
        """Behind `anabranch reproduce`."""
        return f"{self.command} --dtype {self.dtype}" if self.dtype else self.command


def tables_of(paper: Mapping[str, Any]) -> Iterator[Table]:
    """Those of a paper, as the file has them; one that has several `dtypes` once for each."""
    for entry in paper["table"]:
        columns = tuple(Column(**column) for column in entry["column"])
        batches = entry.get("batches", [1])
        places = tuple((model, batch) for model in entry["models"] for batch in batches)
        texts = {name: entry[name].strip() for name in ("title", "command", "says", "differs")}
        kind = entry.get("kind", SYSTEMS)
        systems = systems_of(texts["command"])
        dtypes = entry.get("dtypes", [""])
        for dtype in dtypes:
            own = dict(texts)
            if dtype:
                own["title"] += f", {dtype}"
            if dtype != dtypes[-1]:
                own["differs"] = ""
            yield Table(
                **own, places=places, columns=columns, kind=kind, systems=systems, dtype=dtype
            )


def systems_of(command: str) -> frozenset[str]:
    """The rows of each network under `anabranch reproduce` and these words: none where they are
    batches or devices."""
    paper, table = command.split()
    matrix = reproduction(paper, table).matrix
    if isinstance(matrix, ScheduleMatrix):
        return frozenset(matrix.schedulers)
    if not isinstance(matrix, BenchmarkMatrix):
        return frozenset()
    own = {f"{OURS}:{name}" for name in matrix.systems}
    return frozenset({*own, *(matrix.rivals or ()), *((OURS, CALL) if matrix.ours else ())})


def page() -> str:
    """docs/papers.md."""
    parts = [HEAD]
    for paper in tomllib.loads(DATA.read_text(encoding="utf-8"))["paper"]:
        parts += [f"## {paper['title']}", "", paper["taken"], ""]
        for table in tables_of(paper):
            parts += [*_table(table), ""]
        parts += ["### What Anabranch adds to it", "", paper["adds"], ""]
    return "\n".join(parts).rstrip() + "\n"


HEAD = """# The four papers, and ours beside them

Made by `make benchmarks` from the records under `benchmarks/results`. Each cell has the paper's
number and ours: "1.43 / 1.30". "-" is a number that the paper has not, or that we do not have from
it; "not run" is one that no record of ours holds, and "none" one that its record could not have:
below the table stand the command that runs it, and why. All numbers of a row are of one run.
Other GPUs, libraries and years stand between both, so ratios are compared and times are not.
Papers run fp32; the record's dtype stands in its row. † marks records of published systems that
were taken before 2026-11-27, with waits that bound their memory and searches that estimated
operators; they are to be taken again.
"""


def _table(table: Table) -> Iterator[str]:
    yield f"### {table.title}"
    yield ""
    yield f"`anabranch reproduce {table.words}`. {table.says}"
    yield ""
    batched = len({batch for _, batch in table.places}) > 1
    heads = ["network", *(["batch"] if batched else []), *(c.head for c in table.columns), "ours"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    pairs: list[tuple[float, float]] = []
    for place in _worth_showing(table):
        run = _best(table, place)
        cells = [_cell(column, place, run) for column in table.columns]
        for column in table.columns:
            told, ours = column.told(place), None if run is None else column.ours(run)
            if column.over and told is not None and ours is not None:
                pairs.append((told, ours))
        name = NAMES.get(place[0], place[0])
        seen = "not run" if run is None else run.seen + _how(table, run)
        own = [name, *([str(place[1])] if batched else []), *cells, seen]
        yield f"| {' | '.join(own)} |"
    yield ""
    yield from _below(table)
    if pairs:
        above = sum(ours > told for told, ours in pairs)
        told, ours = (_mean(values) for values in zip(*pairs, strict=True))
        yield (
            f"Ours is above the paper's in {above} of {len(pairs)} ratios; in geometric mean of "
            f"these the paper's is {told:.2f} and ours {ours:.2f}. {table.differs}".rstrip()
        )
    else:
        yield table.differs


def _below(table: Table) -> Iterator[str]:
    """What runs the numbers that are not there, and why others cannot be."""
    lacking: dict[tuple[int, ...], list[str]] = {}
    reasons: dict[str, list[str]] = {}
    batches: dict[str, list[int]] = {}
    for place in _worth_showing(table):
        run, name = _best(table, place), NAMES.get(place[0], place[0])
        if any(column.lacks(run) for column in table.columns):
            batches.setdefault(place[0], []).append(place[1])
        if run is not None:
            for reason in (reason for column in table.columns for reason in column.why(run)):
                reasons.setdefault(reason, []).append(name)
    for model, sizes in batches.items():
        lacking.setdefault(tuple(sizes), []).append(model)
    batched = len({batch for _, batch in table.places}) > 1
    for own, models in lacking.items():
        words = f"--models {','.join(f'zoo:{model}' for model in models)}"
        if batched:
            words += f" --batch {','.join(map(str, own))}"
        yield f"- not run: `anabranch reproduce {table.words} {words}`"
    for reason, names in reasons.items():
        yield f"- none, {reason} ({', '.join(dict.fromkeys(names))})"
    if lacking or reasons:
        yield ""


def _how(table: Table, run: Run) -> str:
    """Of figures of utilisation, whether a profiler saw them."""
    asked = {
        n for c in table.columns if c.path.startswith(USE) for n in (c.system, c.over, c.under)
    }
    rows = [run.rows[name] for name in asked if name in run.rows]
    used = [row.get(USE) for row in rows if not _slowed(row)]
    hows = {"forecast" if use["how"].startswith("forecast") else "CUPTI" for use in used if use}
    return f"; {' and '.join(sorted(hows))}" if hows else ""


def _worth_showing(table: Table) -> Iterator[Place]:
    """Where a paper has numbers, places of which neither it nor a record has one are left out."""
    some = any(column.paper for column in table.columns)
    for place in table.places:
        told = any(column.told(place) is not None for column in table.columns)
        if told or not some or _best(table, place) is not None:
            yield place


def _cell(column: Column, place: Place, run: Run | None) -> str:
    told, ours = column.told(place), None if run is None else column.ours(run)
    theirs = "-" if told is None else f"{told:,.{column.digits}f}"
    if ours is not None:
        return f"{theirs} / {ours:,.{column.digits}f}"
    return f"{theirs} / {'not run' if column.lacks(run) else 'none'}"


def _best(table: Table, place: Place) -> Run | None:
    return best(_runs(), table, place)


def best(runs: Iterable[Run], table: Table, place: Place) -> Run | None:
    """Of the runs of this network that have the table's first column the one whose published
    systems are as published, of these the one with the most numbers of the table, then with the
    most times of its systems, then the newest."""
    first, *_ = table.columns
    own = (
        run
        for run in runs
        if run.kind == table.kind and run.place == place and table.dtype in ("", run.dtype)
    )

    def worth(run: Run) -> tuple[bool, int, int, str]:
        numbers = sum(column.ours(run) is not None for column in table.columns)
        return not run.unfair, numbers, len(table.systems & run.took.keys()), run.date

    return max((run for run in own if first.ours(run) is not None), key=worth, default=None)


@functools.cache
def _runs() -> tuple[Run, ...]:
    """All networks of all records that were measured on a GPU."""
    runs = []
    for file in sorted(RESULTS.glob("*/*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(record, Mapping) and {"rows", "date"} <= record.keys():
            runs += list(_runs_of(record))
    return tuple(runs)


def _runs_of(record: Mapping[str, Any]) -> Iterator[Run]:
    here = record.get("machine", {})
    device = str(record.get("device") or here.get("gpu") or here.get("device") or "")
    target = str(here.get("target") or record.get("target") or "")
    if target.startswith("sim") or "NVIDIA" not in device:
        return
    gpu, date = device.split(" ")[1], str(record["date"])
    cells: dict[tuple[str, Place, str], dict[str, Mapping[str, Any]]] = {}
    for row in record["rows"]:
        kind, name = _named(record, row)
        if kind:
            place = str(row["model"]).rpartition(":")[2], int(row["batch"])
            dtype = str(row.get("dtype") or record.get("settings", {}).get("dtype", ""))
            cells.setdefault((kind, place, dtype), {})[name] = row
    for (kind, place, dtype), rows in cells.items():
        took = {name: value for name, row in rows.items() if (value := _took(row)) is not None}
        yield Run(kind, place, dtype, date, gpu, took, rows)


def _named(record: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, str]:
    """Of what kind of record the row is, "" for none of these, and what it is called there."""
    if "made_for" in row and "us" in row:
        return BATCHES, str(row.get("device") or row["made_for"])
    if "system" in row and "median_ms" in row:
        kind = TRAINING if record.get("kind") == TRAINING else SYSTEMS
        return kind, str(row["system"])
    own = record.get("kind") == SCHEDULERS and record["settings"].get("kernels") == "library"
    if own and "scheduler" in row:
        return SCHEDULERS, OLD.get(row["scheduler"], str(row["scheduler"]))
    return "", ""


def _took(row: Mapping[str, Any]) -> float | None:
    value = row.get("median_ms", row.get("us"))
    return float(value) if value else None


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
