"""anabranch fuzz: its report, its exit status, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.fuzz import campaign
from anabranch.fuzz.drawing import DrawnModel
from anabranch.fuzz.trial import TrialOutcome, TrialSetting


def test_equal_models_end_with_0(cli: Callable[..., Any], tmp_path: Path) -> None:
    words = ("--graphs", "2", "--seed", "3", "--scheduler", "opara", "--out", tmp_path / "out")
    ran = cli("fuzz", *words, "--json", "-")
    assert ran.status == 0, ran.err
    assert ran.json["counts"] == {"equal": 2} and ran.json["failures"] == []
    assert ran.json["seed"] == 3 and ran.json["options"]["scheduler"] == "opara"
    assert "[1/2] seed 3" in ran.err
    assert not (tmp_path / "out").exists()


def test_where_its_files_go_is_looked_at_first(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = cli("fuzz", "--graphs", "1", "--target", "cpu", "--out", tmp_path / "file")
    assert ran.status == 2 and "is a file, and no folder" in ran.err
    ran = cli("fuzz", "--graphs", "1", "--target", "cpu", "--log", tmp_path / "missing" / "log")
    assert ran.status == 2 and "there is no folder" in ran.err


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(drawing: DrawnModel, setting: TrialSetting) -> TrialOutcome:
        return TrialOutcome(drawing, "unequal", "unequal", ("output 0 is off by 1",))

    monkeypatch.setattr(campaign, "attempt", differs)


@pytest.mark.usefixtures("unequal")
def test_failures_end_with_1_and_say_how_to_see_them_again(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "SHRUNK_FAILURES", 1)
    ran = cli("fuzz", "--graphs", "12", "--target", "sim:h200", "--out", tmp_path)
    assert ran.status == 1
    assert "output 0 is off by 1" in ran.out and "and 2 more" in ran.out
    assert "anabranch fuzz --graphs 1 --seed 9 --target sim:h200" in ran.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.py", "0.txt"]


def test_an_interruption_shows_what_was_found(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(drawing: DrawnModel, setting: TrialSetting) -> TrialOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "attempt", interrupted)
    ran = cli("fuzz", "--json", tmp_path / "found.json")
    assert ran.status == 130
    assert "interrupted at seed 0" in ran.out and (tmp_path / "found.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--graphs", "0"), "--graphs"),
        (("--target", "tpu"), "unknown target 'tpu'"),
        (("--dtype", "fp7"), "unknown dtype 'fp7'"),
        (("--scheduler", "fifo"), "unknown scheduler 'fifo'"),
        (("--budget", "-1"), "budget"),
    ],
)
def test_wrong_usage(cli: Callable[..., Any], words: tuple[str, ...], says: str) -> None:
    ran = cli("fuzz", *words)
    assert ran.status == 2
    assert says in ran.err and "Traceback" not in ran.err


def test_a_search_can_be_chosen(cli: Callable[..., Any], tmp_path: Path) -> None:
    ran = cli("fuzz", "--graphs", "2", "--seed", "40", "--search", "taso", "--out", tmp_path)
    assert ran.status == 0, ran.err
    assert cli("fuzz", "--search", "deep").status == 2


def test_rules_alone_need_no_budget_and_say_how_many_they_were(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("fuzz", "--steps", "3", "--graphs", "2", "--seed", "40", "--out", tmp_path)
    ran = cli(*words, "--json", tmp_path / "found.json")
    assert ran.status == 0, ran.err
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["dtype"] == "torch.float64" and "budget" not in told["options"]
    said = f"rules alone: {told['steps']} steps by {len(told['rules'])} rules in 2 graphs"
    assert ran.out.splitlines()[-1] == said and told["steps"] > 3
    for option in (("--budget", "5"), ("--search", "taso")):
        refused = cli(*words, *option)
        assert refused.status == 2 and f"{option[0]} beside --steps" in refused.err


def test_what_was_compiled_says_how_far_the_rules_were_tried(cli: Callable[..., Any]) -> None:
    ran = cli("fuzz", "--graphs", "1", "--seed", "3", "--budget", "0.01")
    (said,) = (line for line in ran.out.splitlines() if line.startswith("compiled: "))
    assert "of 1 graphs were substituted, in 0 steps by 0 rules; 1 searches cut short" in said
