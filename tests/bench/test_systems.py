"""Tables of systems side by side, from records of two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch.bench import systems
from anabranch.bench.rows import LINEUPS, variant
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
    text = systems.summary([{"rows": rows("zoo:one", 1.25)}, {"rows": rows("zoo:two", 1.0)}])
    assert "| ms | torchscript | nimble | autograph | search=none | anabranch |" in text
    assert "| one | - | 0.500 ± 0.01 | 0.400 ± 0.01 | 0.312 ± 0.01 | **0.250** ± 0.01 |" in text
    assert "| two | 0.800 (0.790 to 0.810) | - | 1.000 (0.900 to 1.000) tie |" in text
    assert "| geometric mean | 0.800 | - | 0.894 |" in text
    assert "- one fp16 batch 1: 1.200x when it was tried: a -> b x2" in text
    assert "  - a -> b: 2.0 us, 3.0 without, as a part" in text


def test_a_graph_that_was_taken_as_it_is_says_so() -> None:
    text = systems.summary([{"rows": [row("anabranch", 0.25)]}])
    assert "- net fp16 batch 1: the graph was taken as it is" in text


def test_what_is_no_record(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"rows": [row("anabranch", 1.0)]}))
    bad.write_text("[")
    assert systems.is_record(systems.read([str(good)])[0])
    assert not systems.is_record({"rows": [{"scheduler": "local"}]})
    with pytest.raises(OptionError):
        systems.read([str(good), str(bad)])


@pytest.mark.parametrize("name", LINEUPS)
def test_every_listed_system_means_something(name: str) -> None:
    assert all(variant(system) for system in LINEUPS[name])
    assert len(set(LINEUPS[name])) == len(LINEUPS[name])
