from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from anabranch.bench.verdicts import means, merged, verdicts
from anabranch.errors import OptionError


def row(model: str, name: str, us: float | None, spread: float = 0.0) -> dict[str, Any]:
    numbers = {"us": us, "spread": spread, "streams": 1, "waits": 0}
    return {"model": model, "dtype": "fp16", "batch": 1, "scheduler": name, **numbers}


def test_geometric_means() -> None:
    rows = [row("a", "local", 10), row("a", "nimble", 20), row("a", "greedy", 40)]
    rows += [row("b", "local", 10), row("b", "nimble", 5), row("b", "greedy", None)]
    found = means(rows)
    assert found["local"] == pytest.approx({"nimble": 1.0, "greedy": 4.0})
    assert found["best"]["nimble"] == pytest.approx(math.sqrt(2.0))
    assert found["best"]["local"] == pytest.approx(math.sqrt(2.0))


def test_best_is_what_users_get() -> None:
    """Of version 2, whose rows say what packing costs: nimble counts as it was scheduled, and what
    `best` would choose of it as packed. A plan that could not run is not chosen."""

    def both(name: str, scheduled: float, packed: float | None) -> dict[str, Any]:
        held = {"scheduled": {"us": scheduled}, "packed": packed and {"us": packed}}
        return {**row("a", name, scheduled), **held}

    found = means([both("nimble", 8, 12), both("wavefront", 9, None), both("critical", 10, 10)])
    assert found["best"] == pytest.approx({"nimble": 0.8, "wavefront": 0.9, "critical": 1.0})


def test_ours_against_the_fastest_other() -> None:
    """Ties are within both spreads; ours with priorities is no other."""
    rows = [row("a", "local", 10, 0.2), row("a", "nimble", 9.5, 0.3), row("a", "ios", 20)]
    rows += [row("b", "local", 10), row("b", "local-urgent", 8), row("b", "opara", 12)]
    rows += [row("c", "local", 10, 0.2), row("c", "opara", 9.4, 0.3), row("d", "opara", 3)]
    found = {v["model"]: (v["other"], v["ratio"], v["tie"]) for v in verdicts(rows)}
    assert found == {"a": ("nimble", 0.95, True), "b": ("opara", 1.2, False), "c": found["c"]}
    assert found["c"] == ("opara", pytest.approx(0.94), False)


def test_records_of_several_processes_are_one(tmp_path: Path) -> None:
    def file(name: str, rows: list[dict[str, Any]], device: str = "a GPU") -> str:
        (tmp_path / name).write_text(json.dumps({"device": device, "rows": rows}))
        return str(tmp_path / name)

    a = file("a.json", [row("a", "local", 10), row("a", "nimble", 20)])
    b = file("b.json", [row("b", "local", 10), row("b", "nimble", 5)])
    record = merged((a, b))
    assert len(record["rows"]) == 4 and record["means"]["local"]["nimble"] == pytest.approx(1.0)
    assert [v["model"] for v in record["verdicts"]] == ["a", "b"]
    with pytest.raises(OptionError, match=r"b\.json does not fit"):
        merged((b, b))
    with pytest.raises(OptionError, match="does not fit"):
        merged((a, file("c.json", [row("c", "local", 1)], "another")))
    with pytest.raises(OptionError, match="cannot read"):
        merged((a, str(tmp_path / "none.json")))
    with pytest.raises(OptionError, match="cannot read"):
        merged((file("d.json", [{"model": "d"}]),))
    (tmp_path / "e.json").write_text("{}")
    with pytest.raises(OptionError, match="it has no 'rows', and is a record of something else"):
        merged((str(tmp_path / "e.json"),))
