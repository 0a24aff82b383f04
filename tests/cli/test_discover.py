"""anabranch discover: the table on the screen, the file, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.ir.rule import verify_rule
from anabranch.rewrite.rules.found import load, rule


def test_a_small_setting(cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    ran = cli("discover", "elements", "--size", "2", "-o", str(file), "--json", "-")
    assert ran.status == 0
    counts = ran.json["counts"]["elements"]
    assert counts["enumerated"] > counts["classes"] > counts["candidates"] > counts["kept"] > 0
    again = [each["name"] for each in ran.json["rules"] if "written" in each]
    assert "add(x, x) -> mul(x, 2)" in again
    text = file.read_text()
    assert json.loads(text)["command"] == "anabranch discover elements --size 2 --seed 0"
    assert [each.entry for each in load(text)] == ran.json["rules"]
    for each in load(text):
        verify_rule(rule(each))


def test_what_nobody_knows(cli: Callable[..., Any], tmp_path: Path) -> None:
    assert cli("discover", "everything").status == 2
    assert cli("discover", "elements", "--size", "9").status == 2
    assert cli("discover", "elements", "-o", str(tmp_path / "no" / "file")).status == 2
