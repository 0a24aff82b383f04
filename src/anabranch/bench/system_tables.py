"""Records of systems side by side -> what a search gains, and beside whom, as tables in markdown.

    | ms           | torchscript (call) | anabranch (call) | taso  | nimble | anabranch |
    |---|---|---|---|---|---|
    | inception_v3 | 2.715              | **0.312**        | 0.701 | 0.536  | **0.298** |

    |              | taso / nimble | anabranch (call) / torchscript (call) |
    | inception_v3 | 1.308         | 0.115                                 |
    |              | nimble          | nimble, bounded |
    | inception_v3 | 0.536 (5.8 MiB) | 0.610 (2.8 MiB) |
    and below: which substitutions paid in which network

Like is compared with like: what is timed as it is called says "(call)", all else is the replay of a
graph; each kind has its own fastest, and no ratio is of both.

Records may come from several processes, each with networks of its own: numbers of one network are
never taken from two of them. Ratios are paired within rounds; a tie is no difference by the
interval of the median, and counts as measured in geometric means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.bench.result_rows import CALL, OURS
from anabranch.bench.rivals import CAPTURED
from anabranch.errors import OptionError
from anabranch.options import SYSTEMS
from anabranch.report.units import significant, size

CALLED = " (call)"
RIVAL = " (rival)"
"""Behind the name of one that is also a system of ours."""

PAIRS = (
    ("autograph", "nimble"),
    ("autograph", "taso-nimble"),
    ("taso", "cudagraph"),
    ("taso-nimble", "nimble"),
    (OURS, "autograph"),
    (OURS, "search=none"),
    (OURS, f"cudagraph{RIVAL}"),
    (f"{OURS}{CALLED}", f"torchscript{CALLED}"),
    (f"{OURS}{CALLED}", f"inductor{CALLED}"),
)
"""Whose time over whose is worth a column, where both are there."""

Row = Mapping[str, Any]
Cells = dict[tuple[str, str, int], dict[str, Row]]


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether its rows are those of systems."""
    return any("system" in row for row in record.get("rows", ()))


def read(files: Sequence[str]) -> list[dict[str, Any]]:
    """What is in these files; OptionError for one that is no record."""
    records = []
    for name in files:
        try:
            record = json.loads(Path(name).read_text())
        except (OSError, ValueError) as failed:
            raise OptionError(
                f"{name} is no record", str(failed), "give files that bench --json wrote"
            ) from None
        records.append(record)
    return records


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables, one pair for each dtype and batch."""
    cells: Cells = {}
    for record in records:
        for row in record["rows"]:
            key = (row["dtype"], row["model"].removeprefix("zoo:"), row["batch"])
            cells.setdefault(key, {})[_title(row)] = row
    kinds = dict.fromkeys((dtype, batch) for dtype, _, batch in cells)
    lines: list[str] = []
    for dtype, batch in kinds:
        some = {m: held for (d, m, b), held in cells.items() if (d, b) == (dtype, batch)}
        lines += [f"### {dtype}, batch {batch}", "", *_times(some), "", *_ratios(some), ""]
        bounded = list(_bounded(some))
        lines += [*bounded, ""] if bounded else []
    paid = list(_paid(cells))
    lines += ["### What paid", "", *paid] if paid else []
    return "\n".join(lines).rstrip() + "\n"


def _title(row: Row) -> str:
    """A system as it is named in a table: what users get keeps its name, and a call says so."""
    system = str(row["system"])
    if system == CALL:
        return f"{OURS}{CALLED}"
    if system.startswith(OURS):
        return system.removeprefix(f"{OURS}:").removeprefix(f"{OURS}+")
    kind = (RIVAL if system in SYSTEMS else "") if system in CAPTURED else CALLED
    return f"{system}{kind}"


def _times(cells: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    """Milliseconds, half the distance from the 10th to the 90th percentile behind; bold is the
    fastest of its kind, and what ties with it. Forecasts say what they are."""
    names = _names(cells)
    yield _line(["ms", *names])
    yield _line(["---"] * (len(names) + 1))
    for model, held in cells.items():
        best = {_fastest(held, call) for call in (True, False)}
        yield _line([model, *(_place(held, name, best) for name in names)])
    if any(map(_is_call, names)):
        yield ""
        yield "Bold: the fastest of its kind. (call): timed as it is called; all else: replays."


def _is_call(title: str) -> bool:
    return title.endswith(CALLED)


def _fastest(held: Mapping[str, Row], call: bool) -> str:
    """Of calls, or of replays; empty if none was timed."""
    timed = {n: r for n, r in held.items() if r["median_ms"] is not None and _is_call(n) == call}
    return min(timed, key=lambda name: timed[name]["median_ms"], default="")


def _place(held: Mapping[str, Row], name: str, best: Collection[str]) -> str:
    row = held.get(name)
    if row is None:
        return ""
    if row["median_ms"] is None:
        return "-"
    ties = (_against(held, name, other) for other in best if _is_call(other) == _is_call(name))
    bold = name in best or any(tie is not None and tie[3] for tie in ties)
    text = significant(row["median_ms"])
    text = f"**{text}**" if bold else text
    if row["p90_ms"] is None:
        return f"{text} ({row['source']})"
    return f"{text} ± {(row['p90_ms'] - row['p10_ms']) / 2:.1g}"


def _bounded(cells: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    """Of systems that were published without a bound on memory, milliseconds and bytes as they are
    and with the waits that keep our bound; nothing where there are none."""
    names = [n for n in _names(cells) if any(held[n].get("bounded") for held in cells.values())]
    if not names:
        return
    yield _line(["ms (peak)", *(title for n in names for title in (n, f"{n}, bounded"))])
    yield _line(["---"] * (2 * len(names) + 1))
    for model, held in cells.items():
        rows = [held.get(name, {}) for name in names]
        pairs = ((row, row.get("bounded")) for row in rows)
        yield _line([model, *(_held(time) for pair in pairs for time in pair)])


def _held(time: Row | None) -> str:
    if not time or time["median_ms"] is None:
        return "-"
    held = time["peak_bytes"]
    return significant(time["median_ms"]) + ("" if held is None else f" ({size(held)})")


def _ratios(cells: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    """For each pair how many times as long the first takes, and the geometric mean."""
    names = set(_names(cells))
    pairs = [pair for pair in PAIRS if names.issuperset(pair)]
    if not pairs:
        return
    yield _line(["", *(f"{first} / {other}" for first, other in pairs)])
    yield _line(["---"] * (len(pairs) + 1))
    ratios: dict[tuple[str, str], list[float]] = {}
    for model, held in cells.items():
        texts = []
        for first, other in pairs:
            told = _against(held, first, other)
            if told is not None:
                ratios.setdefault((first, other), []).append(told[0])
            texts.append("-" if told is None else _ratio(*told))
        yield _line([model, *texts])
    means = (_mean(ratios.get(pair, [])) for pair in pairs)
    yield _line(["geometric mean", *means])


def _ratio(ratio: float, low: float, high: float, tie: bool) -> str:
    text = f"{ratio:.3f}" if low == high else f"{ratio:.3f} ({low:.3f} to {high:.3f})"
    return f"{text} tie" if tie else text


def _mean(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{math.exp(math.fsum(map(math.log, ratios)) / len(ratios)):.3f}"


def _against(
    held: Mapping[str, Row], first: str, other: str
) -> tuple[float, float, float, bool] | None:
    if first not in held or other not in held:
        return None
    ratios = held[first].get("against", {})
    system = held[other]["system"]
    return tuple(ratios[system]) if system in ratios else None


def _paid(cells: Cells) -> Iterator[str]:
    """Of ours with the search, what the device found faster."""
    for (dtype, model, batch), held in cells.items():
        facts = held[OURS]["facts"] if OURS in held else {}
        steps = facts.get("search") or []
        where = f"{model} {dtype} batch {batch}"
        if not steps:
            if OURS in held and held[OURS]["median_ms"] is not None:
                yield f"- {where}: the graph was taken as it is"
            continue
        for step in steps:
            gain = step["us_before"] / step["us_after"]
            yield f"- {where}: {gain:.3f}x when it was tried: {step['rules']}"
        for told in facts.get("substitutions", []):
            if "as a part" in told:
                yield f"  - {told}"


def _names(cells: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Calls, then replays: of both, rivals first and ours last."""
    names = list(dict.fromkeys(name for held in cells.values() for name in held))
    calls = [name for name in names if _is_call(name)]
    called = sorted(calls, key=lambda name: name.removesuffix(CALLED) == OURS)
    names = [name for name in names if name not in calls]
    ours = [name for name in names if name in (OURS, "search=none")]
    return [*called, *(name for name in names if name not in ours), *reversed(ours)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
