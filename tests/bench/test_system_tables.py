"""Tables of systems side by side, from records of two processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anabranch.bench import rivals, system_tables
from anabranch.bench.machine import machine
from anabranch.bench.result_rows import ABLATIONS, PUBLISHED_SYSTEMS, variant
from anabranch.errors import OptionError


def row(system: str, ms: float | None, **more: Any) -> dict[str, Any]:
    return {
        **{"model": "zoo:net", "dtype": "fp16", "batch": 1, "system": system, "median_ms": ms},
        **{"p10_ms": ms and ms - 0.01, "p90_ms": ms and ms + 0.01, "source": "measured"},
        **{"against": {}, "facts": {}, **more},
    }


def rows(model: str, gain: float) -> list[dict[str, Any]]:
    pair = {"anabranch:anabranch+search=none": [1 / gain, 0.9, 1.0, gain < 1.1]}
    step = {"rules": "a -> b x2", "us_before": 300.0, "us_after": 250.0}
    facts = {"search": [step], "substitutions": ["a -> b: 2.0 us, 3.0 without, as a part"]}
    return [
        {**one, "model": model}
        for one in (
            row("anabranch", 0.25, against=pair, facts=facts),
            row("torchscript", None, failure="no"),
            row("anabranch:anabranch+search=none", 0.25 * gain),
            row("anabranch:nimble", 0.5),
            row("anabranch:autograph", 0.4, against={"anabranch:nimble": [0.8, 0.79, 0.81, False]}),
        )
    ]


def test_tables_of_two_records() -> None:
    text = system_tables.summary([{"rows": rows("zoo:one", 1.25)}, {"rows": rows("zoo:two", 1.0)}])
    assert "| ms | torchscript (call) | nimble | autograph | search=none | anabranch |" in text
    assert "| one | - | 0.500 ± 0.01 | 0.400 ± 0.01 | 0.312 ± 0.01 | **0.250** ± 0.01 |" in text
    assert "| two | 0.800 (0.790 to 0.810) | - | 1.000 (0.900 to 1.000) tie |" in text
    assert "| geometric mean | 0.800 | - | 0.894 |" in text
    assert "- one fp16 batch 1: 1.200x when it was tried: a -> b x2" in text
    assert "  - a -> b: 2.0 us, 3.0 without, as a part" in text


def test_published_systems_stand_beside_themselves_with_bounded_memory() -> None:
    bounded = {"median_ms": 0.6, "peak_bytes": 3 << 20}
    held = [row("anabranch", 0.25), row("anabranch:nimble", 0.5, peak_bytes=6 << 20)]
    assert "bounded" not in system_tables.summary([{"rows": held}])
    held[1]["bounded"] = bounded
    text = system_tables.summary([{"rows": held}])
    assert "| ms (peak) | nimble | nimble, bounded |" in text
    assert "| net | 0.500 (6.00 MiB) | 0.600 (3.00 MiB) |" in text


def test_a_graph_that_was_taken_as_it_is_says_so() -> None:
    text = system_tables.summary([{"rows": [row("anabranch", 0.25)]}])
    assert "- net fp16 batch 1: the graph was taken as it is" in text


def test_a_call_is_compared_with_a_call_and_a_replay_with_a_replay() -> None:
    """Our call is slower than another's replay, and yet the fastest call."""
    tie = [1.0, 0.9, 1.1, True]
    held = [
        row(
            "anabranch",
            0.25,
            against={"anabranch:nimble": tie, "torchscript": [0.3, 0.3, 0.3, False]},
        ),
        row("anabranch-call", 0.3, against={"torchscript": [0.333, 0.333, 0.333, False]}),
        row("anabranch:nimble", 0.26, against={"anabranch": tie, "anabranch-call": tie}),
        row("torchscript", 0.9),
        row("inductor", 0.31, against={"anabranch-call": tie, "anabranch": [1.2, 1.2, 1.3, False]}),
        row("eager", 0.32, against={"anabranch": tie}),
    ]
    lines = system_tables.summary([{"rows": held}]).splitlines()
    head, places = lines[2].strip("| ").split(" | "), lines[4].strip("| ").split(" | ")
    assert dict(zip(head, places, strict=True)) == {
        "ms": "net",
        "torchscript (call)": "0.900 ± 0.01",
        "inductor (call)": "**0.310** ± 0.01",
        "eager (call)": "0.320 ± 0.01",
        "anabranch (call)": "**0.300** ± 0.01",
        "nimble": "**0.260** ± 0.01",
        "anabranch": "**0.250** ± 0.01",
    }
    assert list(dict(zip(head, places, strict=True)))[-3:] == [
        "anabranch (call)",
        "nimble",
        "anabranch",
    ]
    assert lines[6].startswith("Bold: the fastest of its kind. (call): timed as it is called")
    ours = "anabranch (call)"
    assert lines[8] == f"|  | {ours} / torchscript (call) | {ours} / inductor (call) |"
    assert lines[10] == "| net | 0.333 | - |"


@pytest.mark.parametrize("name", rivals.RIVALS)
def test_a_record_can_tell_by_its_name_what_a_rival_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rivals.Prepared(lambda: torch.ones(1))
    monkeypatch.setattr(rivals, "_compiled", lambda *_: made)
    monkeypatch.setattr(rivals, "_other", lambda *_: made)
    here = replace(machine("cpu"), capture=lambda fn, args: (lambda: fn(*args), 0))
    ready = rivals.RIVALS[name](torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), here)
    assert ready.replayed == (name in rivals.CAPTURED)


def test_a_rival_and_a_system_of_one_name_have_a_column_each() -> None:
    text = system_tables.summary(
        [{"rows": [row("cudagraph", 0.5), row("anabranch:cudagraph", 0.4)]}]
    )
    assert "| ms | cudagraph (rival) | cudagraph |" in text
    assert "| net | 0.500 ± 0.01 | **0.400** ± 0.01 |" in text


def test_without_calls_nothing_is_said_of_them() -> None:
    assert "call" not in system_tables.summary([{"rows": [row("anabranch", 0.25)]}])


def test_what_is_no_record(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"rows": [row("anabranch", 1.0)]}))
    bad.write_text("[")
    assert system_tables.is_record(system_tables.read([str(good)])[0])
    assert not system_tables.is_record({"rows": [{"scheduler": "local"}]})
    with pytest.raises(OptionError):
        system_tables.read([str(good), str(bad)])


@pytest.mark.parametrize("systems", [PUBLISHED_SYSTEMS, *ABLATIONS.values()])
def test_every_listed_system_means_something(systems: tuple[str, ...]) -> None:
    assert all(variant(system) for system in systems)
    assert len(set(systems)) == len(systems)
