"""docs/papers.md: which record a row is, and what a number that is not there says."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

from anabranch.bench.reproduce import asked_as, reproduction

ROOT = Path(__file__).parent.parent


def test_a_row_is_the_record_with_most_of_its_table() -> None:
    """Never a mix of two: a later run of fewer of its systems does not replace it."""
    papers = runpy.run_path(str(ROOT / "tools" / "papers.py"))
    columns = tuple(papers["Column"](name, over=name, under="ios") for name in ("eager", "ours"))
    systems = papers["systems_of"]("ios frameworks")
    assert {"eager", "anabranch:cudagraph", "anabranch", "anabranch-call", "xla"} < systems
    systems = frozenset({"eager", "ours", "ios", "own"})
    table = papers["Table"]("", "", "", "", (("net", 1),), columns, "systems", systems)

    def run(date: str, *systems: str) -> Any:
        took = dict.fromkeys(systems, 2.0)
        return papers["Run"]("systems", ("net", 1), "fp32", date, "H100", took, {})

    whole = run("2026-11-27", "eager", "ours", "ios")
    part = run("2026-11-28", "eager", "ios")
    wide = run("2026-11-27", "eager", "ios", "own")
    other = run("2026-11-27", "eager", "ios", "strange")
    early = run("2026-11-23", "eager", "ours", "ios")
    later = run("2026-11-29", "eager", "ours", "ios")
    chosen = papers["best"]
    for runs, right in (
        ([whole, part], whole),
        ([wide, part], wide),
        ([other, part], part),
        ([part, early], part),
        ([whole, later], later),
        ([run("2026-11-28", "ours", "ios")], None),
    ):
        assert all(chosen(order, table, ("net", 1)) is right for order in (runs, runs[::-1]))
    assert chosen([whole], table, ("net", 8)) is None
    halves = replace(table, dtype="fp16")
    other = replace(whole, dtype="fp16", date="2026-11-20")
    assert chosen([whole, other], halves, ("net", 1)) is other
    assert chosen([whole, other], table, ("net", 1)) is whole and halves.words == " --dtype fp16"


def test_a_table_of_several_dtypes_is_one_for_each() -> None:
    """Below the last of them stands what differs."""
    papers = runpy.run_path(str(ROOT / "tools" / "papers.py"))
    texts = dict.fromkeys(("title", "says", "differs"), "Words.") | {"command": "autograph systems"}
    column = {"head": "Nimble", "over": "anabranch:nimble", "under": "anabranch:autograph"}
    entry = {**texts, "models": ["sru"], "column": [column], "dtypes": ["tf32", "fp16"]}
    first, second = papers["tables_of"]({"table": [entry]})
    assert (first.title, first.differs) == ("Words., tf32", "")
    assert (second.title, second.differs) == ("Words., fp16", "Words.")
    assert second.words == "autograph systems --dtype fp16"


def test_a_number_that_is_not_there_says_what_makes_it() -> None:
    """Every network of a row that lacks one stands in a command below, which means something."""
    papers = runpy.run_path(str(ROOT / "tools" / "papers.py"))
    names = {title: name for name, title in papers["NAMES"].items()}
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    for section in page.split("\n### "):
        networks: set[str] = set()
        command = (
            r"- not run: `anabranch reproduce (\w+) (\w+)(?: --dtype (\w+))? --models (\S+?)"
            r"(?: --batch (\S+))?`"
        )
        for paper, table, dtype, models, batches in re.findall(command, section):
            asked = tuple(models.split(",")), tuple(int(n) for n in batches.split(",") if n)
            matrix = asked_as(
                reproduction(paper, table).matrix, asked[0], dtype or None, "cpu", asked[1]
            )
            assert matrix.models == asked[0]
            networks |= {model.removeprefix("zoo:") for model in asked[0]}
        rows = [line for line in section.splitlines() if line.startswith("| ")]
        assert networks == {names[row.split(" | ")[0][2:]] for row in rows if "not run" in row}
        assert any("/ none |" in row for row in rows) == ("\n- none, " in section)


def test_a_number_that_cannot_be_says_why() -> None:
    papers = runpy.run_path(str(ROOT / "tools" / "papers.py"))
    column = papers["Column"]("warps", system="ios", path="utilisation warps")
    row = {"us": 10.0, "utilisation": {"us": 20.0, "warps": 3}}

    def why(row: dict[str, Any]) -> list[str]:
        run = papers["Run"]("schedulers", ("net", 1), "fp32", "", "", {"ios": 10.0}, {"ios": row})
        return list(column.why(run))

    assert why(row) == ["ios took more than 1.25 times as long under the profiler"]
    assert why({"us": 10.0, "failure": "tvm is not there"}) == ["ios: tvm is not there"]
    assert why({"us": 10.0}) == ["ios has no such number"]
    assert why({"us": 10.0, "utilisation": {"us": 10.0, "warps": 3}}) == []
