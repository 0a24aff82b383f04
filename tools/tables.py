"""docs/benchmarks.md and the table of the README, made from the records in benchmarks/results.

    python tools/tables.py          writes both (make benchmarks)

A row is one record: numbers of two runs never stand in one row, so a network that was run twice has
two rows. A test compares both files with the records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- table: made by make benchmarks -->", "<!-- end of table -->"

OURS, CALL = "anabranch", "anabranch-call"
NAMES = {
    "bert_base": "BERT-base, 128 tokens",
    "deepfm": "DeepFM",
    "googlenet": "GoogLeNet",
    "inception_v3": "Inception-v3",
    "nasnet_large": "NASNet-A Large",
    "nasnet_mobile": "NASNet-A Mobile",
    "randwire": "RandWire",
    "randwire_ios": "RandWire of IOS's paper",
    "resnet50": "ResNet-50",
    "resnext50": "ResNeXt-50",
    "squeezenet": "SqueezeNet 1.0",
    "squeezenet_bypass": "SqueezeNet with bypass",
    "sru": "SRU, 4 layers",
}


@dataclass(frozen=True, slots=True)
class Column:
    """The median of a system, in ms; or, with `over`, how many times as long it takes."""

    head: str
    system: str
    over: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: str
    sources: tuple[str, ...]
    """Folders of records, or single files."""
    dtype: str
    batch: int
    columns: tuple[Column, ...]
    mean: bool = True
    """Whether the last row is the geometric mean of ratios."""


CALLS = (
    Column("Anabranch, ms", CALL),
    Column("`max-autotune`, ms", "inductor-max"),
    Column("`reduce-overhead`, ms", "inductor"),
    Column("eager, ms", "eager"),
    Column("`max-autotune` / Anabranch", "inductor-max", CALL),
    Column("`reduce-overhead` / Anabranch", "inductor", CALL),
)
WITHOUT = "anabranch:anabranch+search=none"

SECTIONS = (
    Section(
        "Calls beside torch.compile and eager, fp16, batch 1",
        "Each system is timed as its user calls it: copies of inputs and results and the work of "
        "the host are included. torch.compile has frozen weights. Calls of less than 0.1 ms are "
        "decided by the host.",
        ("2026-11-22-h200-max-autotune", "2026-11-23-h200-search/inception_v3.json"),
        "fp16",
        1,
        CALLS,
    ),
    Section(
        "Replays beside the eager model in one CUDA graph, fp16, batch 1",
        "The same runs: a replay of our CUDA graph beside a replay of the eager model captured in "
        "one CUDA graph.",
        ("2026-11-22-h200-max-autotune", "2026-11-23-h200-search/inception_v3.json"),
        "fp16",
        1,
        (
            Column("Anabranch, ms", OURS),
            Column("eager in one graph, ms", "cudagraph"),
            Column("eager in one graph / Anabranch", "cudagraph", OURS),
        ),
    ),
    Section(
        "Calls beside torch.compile, fp16, batch 16",
        "",
        (
            "2026-11-22-h200-max-autotune-batch16",
            "2026-11-23-h200-max-autotune-batch16",
            "2026-11-24-h200-max-autotune-more",
            "2026-11-25-h200-max-autotune-rest",
            "2026-11-25-h100-max-autotune-batch16/nasnet_large.json",
        ),
        "fp16",
        16,
        tuple(column for column in CALLS if column.system != "eager"),
    ),
    Section(
        "Calls beside torch.compile, tf32, batch 1",
        "",
        (
            "2026-11-23-h200-max-autotune-tf32",
            "2026-11-24-h200-max-autotune-more",
            "2026-11-25-h200-max-autotune-tf32",
            "2026-11-25-h200-max-autotune-rest",
            "2026-11-25-h100-max-autotune",
        ),
        "tf32",
        1,
        tuple(column for column in CALLS if column.system != "eager"),
    ),
    Section(
        "Networks outside the zoo, fp16, batch 1",
        "Models of torchvision, timm and transformers, without the search for an equal graph. "
        "Those of transformers have random weights and 128 tokens, or 30 seconds of sound.",
        ("2026-11-25-h200-unseen",),
        "fp16",
        1,
        (
            Column("Anabranch, ms", CALL),
            Column("`reduce-overhead`, ms", "inductor"),
            Column("`reduce-overhead` / Anabranch", "inductor", CALL),
        ),
    ),
    Section(
        "What the search for an equal graph is worth, fp16, batch 1",
        "Replays with the search and without it, in one run at one commit, kernels known.",
        ("2026-11-25-h100-search-warm",),
        "fp16",
        1,
        (
            Column("with, ms", OURS),
            Column("without, ms", WITHOUT),
            Column("without / with", WITHOUT, OURS),
        ),
    ),
    *(
        Section(
            f"Published systems, {dtype}, batch 1",
            "Replays. The published systems run the library's kernels; each of their searches had "
            "the seconds that the record's command says. Rows of before 2026-11-27 have them with "
            "waits that bound memory, and searches that estimated operators, which none of them "
            "has as published: [their papers' tables](papers.md) prefer later rows.",
            sources,
            dtype,
            1,
            (
                Column("sequential, ms", "anabranch:cudagraph"),
                Column("TASO, ms", "anabranch:taso"),
                Column("TASO and Nimble, ms", "anabranch:taso-nimble"),
                Column("Nimble, ms", "anabranch:nimble"),
                Column("IOS, ms", "anabranch:ios"),
                Column("AutoGraph, ms", "anabranch:autograph"),
                Column("Anabranch, ms", OURS),
                Column("AutoGraph / Anabranch", "anabranch:autograph", OURS),
            ),
        )
        for dtype, sources in (
            ("fp16", ("2026-11-22-h200-systems", "2026-11-25-h100-systems")),
            ("tf32", ("2026-11-23-h200-systems-tf32", "2026-11-24-h200-systems-tf32")),
        )
    ),
    Section(
        "Where it is slower: the library's kernels alone, fp16, batch 1",
        'Without generated kernels (`kernels="library"`) and without the search, '
        "inductor's fused kernels win where a network is a chain of small operators: below 1 "
        "Anabranch is slower. A profiler was attached to these processes, which made "
        "launches of every system slower.",
        ("2026-11-21-h200-fp16-batch1",),
        "fp16",
        1,
        (
            Column("Anabranch, library's kernels, ms", CALL),
            Column("`reduce-overhead`, ms", "inductor"),
            Column("`reduce-overhead` / Anabranch", "inductor", CALL),
        ),
    ),
)


def page() -> str:
    """docs/benchmarks.md."""
    parts = [
        "# Benchmarks",
        "",
        "Made by `make benchmarks` from the records under `benchmarks/results`, whose READMEs say "
        "how each was taken. Times are medians; a ratio above 1 means that Anabranch is faster. "
        '"-" was not run, or was not built in its time. All systems of a row ran in one process, '
        "timed in interleaved rounds.",
        "",
    ]
    for section in SECTIONS:
        parts += [f"## {section.title}", "", *([section.text, ""] if section.text else [])]
        parts += [*_table(section), ""]
        parts += [f"Records: {', '.join(f'`{source}`' for source in section.sources)}.", ""]
    parts += [*_schedulers(), *_builds(), *_starts(), *_forecasts()]
    return "\n".join(parts).rstrip() + "\n"


def readme_table() -> str:
    """The README's table: calls beside torch.compile and eager."""
    section = SECTIONS[0]
    lines = ["| network | Anabranch, ms | torch.compile, ms | eager, ms |", "|---|---|---|---|"]
    rows = sorted(
        _records(section),
        key=lambda record: -_best_rival(record.rows)[0] / record.rows[CALL]["median_ms"],
    )
    ratios = []
    for record in rows:
        if "eager" not in record.rows:
            continue  # the second run of a network, whose first has all columns
        ms, how = _best_rival(record.rows)
        ratios.append(ms / record.rows[CALL]["median_ms"])
        ours, eager = (_ms(record.rows[name]["median_ms"]) for name in (CALL, "eager"))
        lines.append(f"| {_name(record.model)} | {ours} | {_ms(ms)}{how} | {eager} |")
    lines += [
        "",
        f"In geometric mean a call takes 1/{_mean(ratios):.1f} of torch.compile's time.",
    ]
    return "\n".join(lines)


def _best_rival(rows: Mapping[str, Mapping[str, Any]]) -> tuple[float, str]:
    """torch.compile at its best: the faster of its two modes that were built."""
    times = {name: rows[name]["median_ms"] for name in ("inductor-max", "inductor") if name in rows}
    built = {name: ms for name, ms in times.items() if ms is not None}
    name = min(built, key=lambda name: built[name])
    return built[name], "" if name == "inductor-max" else " (r)"


@dataclass(frozen=True, slots=True)
class Record:
    """One network in one run: its systems by name, the day and the machine."""

    model: str
    day: str
    gpu: str
    rows: dict[str, Mapping[str, Any]]


def _records(section: Section) -> list[Record]:
    records = []
    for source in section.sources:
        path = RESULTS / source
        for file in [path] if path.suffix else sorted(path.glob("*.json")):
            record = json.loads(file.read_text(encoding="utf-8"))
            rows = {
                row["system"]: row
                for row in record.get("rows", ())
                if row.get("dtype") == section.dtype and row.get("batch") == section.batch
            }
            if not rows:
                continue
            gpu = record.get("machine", {}).get("gpu", "")
            model = next(iter(rows.values()))["model"]
            records.append(
                Record(model, record["date"][:10], gpu.split(" ")[1] if gpu else "", rows)
            )
    assert records, f"no records for {section.title}"
    return records


def _table(section: Section) -> Iterator[str]:
    heads = [column.head for column in section.columns]
    yield f"| network | date | GPU | {' | '.join(heads)} |"
    yield "|---" * (3 + len(heads)) + "|"
    ratios: dict[str, list[float]] = {column.head: [] for column in section.columns if column.over}
    for record in _records(section):
        cells = []
        for column in section.columns:
            value, base = _median(record, column.system), _median(record, column.over)
            if value is None or (column.over and base is None):
                cells.append("-")
            elif base is None:
                cells.append(_ms(value))
            else:
                ratios[column.head].append(value / base)
                cells.append(f"{value / base:.2f}")
        yield f"| {_name(record.model)} | {record.day} | {record.gpu} | {' | '.join(cells)} |"
    if any(ratios.values()):
        means = [f"{_mean(ratios[head]):.2f}" if ratios.get(head) else "" for head in heads]
        yield f"| geometric mean | | | {' | '.join(means)} |"


def _median(record: Record, system: str) -> float | None:
    ms: float | None = record.rows.get(system, {}).get("median_ms")
    return ms


OLD = {"local-overlap": "local-pdl"}
"""What records of version 1 call a scheduler."""
SCHEDULERS = ("sequential", "nimble", "opara-paper", "ios", "local", "local-pdl")


def _schedulers() -> Iterator[str]:
    folder = RESULTS / "2026-11-22-h200-schedulers"
    yield "## Published schedulers on the same kernels, fp16"
    yield ""
    yield (
        "Microseconds of one plan on an H200, 2026-11-22: all schedulers on the same tasks with "
        "the same kernels, in one interleaved run. `local` is ours; `local-pdl` is its plan "
        "with kernels that start before those they follow have ended, which no published one has. "
        "All plans were packed within 1.25 times the sequential plan's arena, which adds waits; "
        "published schedulers have no such bound."
    )
    yield ""
    yield f"| network | batch | {' | '.join(SCHEDULERS)} |"
    yield "|---" * (2 + len(SCHEDULERS)) + "|"
    ratios: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    for file in sorted(folder.glob("*.json"), key=lambda file: _batch_first(file.stem)):
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        us = {OLD.get(row["scheduler"], row["scheduler"]): row["us"] for row in rows}
        cells = [f"{us[name]:,.1f}" if us.get(name) else "-" for name in SCHEDULERS]
        for name in SCHEDULERS:
            if us.get(name):
                ratios[name].append(us[name] / us["local-pdl"])
        yield f"| {_name(rows[0]['model'])} | {rows[0]['batch']} | {' | '.join(cells)} |"
    means = " | ".join(f"{_mean(ratios[name]):.2f}" for name in SCHEDULERS)
    yield f"| times as long as `local-pdl` | | {means} |"
    yield ""


def _batch_first(stem: str) -> tuple[int, str]:
    network, _, batch = stem.rpartition("-batch")
    return int(batch), network


def _builds() -> Iterator[str]:
    section = SECTIONS[0]
    yield "## Seconds to build, fp16, batch 1"
    yield ""
    yield (
        "Of the first table's runs, on sixteen cores, with most of our kernels compiled before; "
        "first compilations with an empty cache are in the next table."
    )
    yield ""
    yield "| network | date | Anabranch | `max-autotune` | `reduce-overhead` |"
    yield "|---|---|---|---|---|"
    for record in _records(section):
        cells = [
            f"{record.rows[name]['compile_s']:.0f}"
            if record.rows.get(name, {}).get("compile_s") and _median(record, name) is not None
            else "-"
            for name in (OURS, "inductor-max", "inductor")
        ]
        yield f"| {_name(record.model)} | {record.day} | {' | '.join(cells)} |"
    yield ""


STARTS = (
    "2026-11-22-h200-starts/nasnet_large_2.json",
    "2026-11-24-h200-starts/resnet50-none.json",
    "2026-11-24-h200-starts/resnet50-compared.json",
)
WAYS = ("first", "warm", "saved", "again")


def _starts() -> Iterator[str]:
    yield "## Seconds until a model is ready, fp16, batch 1, H200"
    yield ""
    yield (
        "`first`: an empty cache. `warm`: a new process that finds the plan in the cache. `saved`: "
        "a saved plan, with its weights, loaded for the first time; `again`: after that. With an "
        "empty cache and the search NASNet-A Large took "
        f"{_cold():.0f} s ({COLD[:10]}). More has been checked at each start since then: the next "
        "table is newer."
    )
    yield ""
    yield f"| network | date | command | {' | '.join(WAYS)} |"
    yield "|---" * (3 + len(WAYS)) + "|"
    for name in STARTS:
        record = json.loads((RESULTS / name).read_text(encoding="utf-8"))
        ready = {row["way"]: row["ready_s"] for row in record["rows"]}
        cells = [f"{ready[way]:.3g}" if way in ready else "-" for way in WAYS]
        model = _name(record["rows"][0]["model"])
        command = re.sub(r" --(json|ways) \S+", "", record["command"])
        yield f"| {model} | {record['date'][:10]} | `{command}` | {' | '.join(cells)} |"
    yield ""
    runs = json.loads((RESULTS / PAIR).read_text(encoding="utf-8"))
    yield (
        f"On an H100, {PAIR[:10]}, without the search; medians over runs, two to four networks at "
        "once when the cache is empty: seconds that `anabranch.compile` takes in a new process."
    )
    yield ""
    yield "| network | first | warm |"
    yield "|---|---|---|"
    new = [run for run in runs if run["tree"] == "new"]
    for net in sorted({run["net"] for run in new}):
        seconds = {
            what: [run["compile"] for run in new if run["net"] == net and run["what"] == what]
            for what in ("cold", "warm")
        }
        cells = [
            f"{median(seconds_of_runs):.3g}" if seconds_of_runs else "-"
            for seconds_of_runs in seconds.values()
        ]
        yield f"| {_name(net)} | {' | '.join(cells)} |"
    yield ""


PAIR = "2026-11-26-h100-checks/pair.json"


COLD = "2026-11-24-h200-starts/nasnet_large-cold.json"


def _cold() -> float:
    rows = json.loads((RESULTS / COLD).read_text(encoding="utf-8"))["rows"]
    return float(rows[0]["compile_s"])


def _forecasts() -> Iterator[str]:
    file = "2026-11-22-h200-corun/calibration.json"
    record = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    held = record["held_out"]
    graphs = sum(len(network["schedules"]) for network in record["networks"])
    yield "## How well schedules are predicted, fp16, batch 1, H200"
    yield ""
    yield (
        f"Latencies of {graphs} captured graphs of the zoo, each network predicted by numbers that "
        "were fitted without it and its kin. The form of the model was chosen with all of these "
        "networks in view. GPUs other than Hopper's have no such numbers. Median over networks: "
        f"error {held['median_error']:.1%}, Kendall's tau of the order "
        f"{held['median_tau']:.2f}; worst: {held['worst_error']:.1%} and {held['worst_tau']:.2f}."
    )
    yield ""
    yield "| network | kernels | graphs | median error | Kendall's tau |"
    yield "|---|---|---|---|---|"
    for network in record["networks"]:
        tau = "-" if network["tau"] is None else f"{network['tau']:.2f}"
        yield (
            f"| {_name(network['network'])} | {network['kernels']} | {len(network['schedules'])} "
            f"| {network['median_error']:.1%} | {tau} |"
        )
    yield ""
    yield f"Record: `{file}`."


def _name(model: str) -> str:
    name = model.rpartition(":")[2]
    return NAMES.get(name, name)


def _ms(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def with_table(readme: str) -> str:
    """The README with the table as the records have it."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{readme_table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
