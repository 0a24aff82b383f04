"""anabranch space, on SqueezeNet's fire with a bypass convolution: Table 1 of IOS has its numbers.

     +--> 1 --+
0 -->|        +--> 3 --+
     +--> 2 --+        +--> 5
4 ---------------------+
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anabranch.schedule.ios.schedule_space import space

FIRE = {"nodes": 6, "edges": [[0, 1], [0, 2], [1, 3], [2, 3], [3, 5], [4, 5]]}
ROW = {
    "operators": 6,
    "width": 3,
    "bound": 216,
    "states": 12,
    "transitions": 51,
    "schedules": 131,
}

SUMS = """
import torch

class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x):
        a, b = torch.tanh(self.a(x)), torch.tanh(self.b(x))
        return torch.cat([self.c(torch.tanh(a + b)), torch.tanh(self.d(b))], 1)

def build():
    return Sums(), (torch.randn(1, 4, 8, 8),)
"""


@pytest.fixture
def fire(tmp_path: Path) -> Path:
    path = tmp_path / "fire.json"
    path.write_text(json.dumps(FIRE))
    return path


def test_a_dag_from_a_file(cli: Callable[..., Any], fire: Path) -> None:
    ran = cli("space", "--dag", fire)
    assert ran.status == 0
    assert "131" in ran.out and "216" in ran.out


def test_json_is_exactly_the_blocks(cli: Callable[..., Any], fire: Path, tmp_path: Path) -> None:
    ran = cli("space", "--dag", fire, "--json", "-")
    assert (ran.status, ran.json) == (0, {"blocks": [ROW]})
    out = tmp_path / "out.json"
    assert cli("space", "--dag", fire, "--json", out).status == 0
    assert json.loads(out.read_text()) == {"blocks": [ROW]}


def test_pruning_leaves_fewer(cli: Callable[..., Any], fire: Path) -> None:
    words = ("space", "--dag", fire, "--max-group-size", "1", "--max-groups", "1", "--json", "-")
    (pruned,) = cli(*words).json["blocks"]
    assert pruned["transitions"] < 51
    assert pruned["schedules"] == 10  # the orders in which six can run one by one


def test_a_single_node_and_a_chain(cli: Callable[..., Any], tmp_path: Path) -> None:
    dag = tmp_path / "dag.json"
    dag.write_text('{"nodes": 1, "edges": []}')
    (row,) = cli("space", "--dag", dag, "--json", "-").json["blocks"]
    assert (row["operators"], row["width"], row["transitions"], row["schedules"]) == (1, 1, 1, 1)
    dag.write_text('{"nodes": 3, "edges": [[2, 1], [1, 0]]}')
    (row,) = cli("space", "--dag", dag, "--json", "-").json["blocks"]
    assert (row["width"], row["transitions"], row["schedules"]) == (1, 6, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"nodes": 2, "edges": [[0, 1], [1, 0]]}', "cycle"),
        ('{"nodes": 2, "edges": [[1, 1]]}', "self loop"),
        ('{"nodes": 2}', "edges: Field required"),
        ("{}", "nodes: Field required"),
        ('{"nodes": 0, "edges": []}', "greater than or equal to 1"),
        ('{"nodes": -3, "edges": []}', "greater than or equal to 1"),
        ('{"nodes": 2, "edges": [[0, -1]]}', "does not exist"),
        ('{"nodes": 2, "edges": [[0, 2]]}', "does not exist"),
        ('{"nodes": 2, "edges": [[0]]}', "edges.0"),
        ('{"nodes": 2, "edges": [["a", "b"]]}', "edges.0"),
        ('{"nodes": "2", "edges": []}', "nodes"),
        ('{"edges": []}', "nodes"),
        ('{"nodes": 99999999, "edges": []}', "less than or equal"),
        ("[1, 2]", "is not a dag"),
        ("", "is not a dag"),
        ("\x00\xff garbage", "is not a dag"),
    ],
)
def test_what_is_no_dag(cli: Callable[..., Any], tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "dag.json"
    path.write_text(text)
    ran = cli("space", "--dag", path)
    assert ran.status == 2
    assert says in ran.err and "\n  next: " in ran.err
    assert "Traceback" not in ran.err


def test_a_file_that_is_not_there(cli: Callable[..., Any], tmp_path: Path) -> None:
    ran = cli("space", "--dag", tmp_path / "none.json")
    assert ran.status == 2
    assert "No such file" in ran.err


def test_model_or_dag_but_one(cli: Callable[..., Any], fire: Path, model: str) -> None:
    assert cli("space").status == 2
    assert cli("space", model, "--dag", fire).status == 2


def test_an_edge_given_twice_counts_once(cli: Callable[..., Any], tmp_path: Path) -> None:
    dag = tmp_path / "dag.json"
    dag.write_text(json.dumps(FIRE | {"edges": FIRE["edges"] * 2}))  # type: ignore[operator]
    assert cli("space", "--dag", dag, "--json", "-").json == {"blocks": [ROW]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--max-group-size", "-1"), "--max-group-size cannot be -1"),
        (("--max-groups", "0"), "--max-groups cannot be 0"),
        (("--operators", "launches"), "choose one of: ios, tasks"),
    ],
)
def test_wrong_options(
    cli: Callable[..., Any], fire: Path, words: tuple[str, ...], says: str
) -> None:
    ran = cli("space", "--dag", fire, *words)
    assert ran.status == 2
    assert says in ran.err and "\n  next: " in ran.err


def test_too_wide_for_an_exact_count(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three chains of eight, 10^5 transitions, where nobody counts as many. With r and s they can
    be counted."""
    monkeypatch.setattr("anabranch.cli.space.space", partial(space, most=50_000))
    dag = tmp_path / "dag.json"
    edges = [[8 * chain + i, 8 * chain + i + 1] for chain in range(3) for i in range(7)]
    dag.write_text(json.dumps({"nodes": 24, "edges": edges}))
    ran = cli("space", "--dag", dag, "--json", "-")
    (row,) = ran.json["blocks"]
    assert (row["max_group_size"], row["max_groups"]) == (3, 8)
    assert row["states"] == 9**3 - 1 and 10**4 < row["transitions"] < 50_000
    assert "width 3, bound 91,125" in ran.err
    assert "groups of at most 3, 8 a stage" in ran.err


def test_too_wide_even_when_pruned(cli: Callable[..., Any], tmp_path: Path) -> None:
    """5,000 nodes that nothing joins: a bound of 2,386 digits, and no counts."""
    dag = tmp_path / "dag.json"
    dag.write_text('{"nodes": 5000, "edges": []}')
    ran = cli("space", "--dag", dag, "--json", "-")
    (row,) = ran.json["blocks"]
    assert (row["width"], row["bound"], row["states"]) == (5000, 3**5000, None)
    assert "width 5000, bound 4.04e+2385" in ran.err and "also with groups" in ran.err
    ran = cli("space", "--dag", dag, "--max-group-size", "2")
    assert "is too large to count\n" in ran.err and "at most 3" not in ran.err


def test_solving(cli: Callable[..., Any], fire: Path) -> None:
    """Nodes of 1 us that fill an eighth: the longest path takes 4, and each fork something."""
    ran = cli("space", "--dag", fire, "--solve", "--json", "-")
    assert ran.status == 0, ran.err
    (row,) = ran.json["blocks"]
    assert {key: row[key] for key in ROW} == ROW
    assert 4 < row["us"] < 6 and 0 < row["seconds"] < 10 and row["looked_at"] == 51
    for key in ("seconds", "command", "commit", "date", "versions", "machine", "estimates"):
        assert ran.json[key], key
    assert "solved in" in ran.err


def test_solving_with_pruning_looks_at_less(cli: Callable[..., Any], fire: Path) -> None:
    """Groups of two, two a stage: a bound leaves some of what is counted out."""
    words = ("--max-group-size", "2", "--max-groups", "2")
    (row,) = cli("space", "--dag", fire, "--solve", *words, "--json", "-").json["blocks"]
    (whole,) = cli("space", "--dag", fire, "--solve", "--json", "-").json["blocks"]
    assert 0 < row["looked_at"] < row["transitions"] < whole["transitions"]
    assert row["us"] >= whole["us"]


def test_solving_what_is_too_wide(cli: Callable[..., Any], tmp_path: Path) -> None:
    """Sixty nodes apart: nothing can be counted, the scheduler finds stages all the same."""
    dag = tmp_path / "dag.json"
    dag.write_text('{"nodes": 60, "edges": []}')
    ran = cli("space", "--dag", dag, "--solve", "--json", "-")
    (row,) = ran.json["blocks"]
    assert row["states"] is None and row["stages"] > 1
    assert 60 / 8 < row["us"] < 60
    assert (
        "width 60" in ran.err and "too wide for the exact programme; instead: two halves" in ran.err
    )


def test_solving_obeys_the_budget(cli: Callable[..., Any], fire: Path) -> None:
    """A microsecond is over at the first look at the clock: the counts are there, no answer."""
    ran = cli("space", "--dag", fire, "--solve", "--budget", "1e-6", "--json", "-")
    assert ran.status == 0, ran.err
    (row,) = ran.json["blocks"]
    assert {key: row[key] for key in ROW} == ROW
    assert row["us"] is None and row["stages"] is None and row["looked_at"] is None
    assert "0 of 1 different blocks solved" in ran.err
    assert "out of time" in cli("space", "--dag", fire, "--solve", "--budget", "1e-6").out
    for words in (("--budget", "5"), ("--solve", "--budget", "0"), ("--solve", "--budget", "nan")):
        ran = cli("space", "--dag", fire, *words)
        assert ran.status == 2 and "more than 0" in ran.err


def test_ios_operators_and_tasks(cli: Callable[..., Any], tmp_path: Path) -> None:
    """Four convolutions and a concat; tanh and the sum are launches, but no operators of IOS."""
    path = tmp_path / "sums.py"
    path.write_text(SUMS)
    counts = {}
    for units in ("ios", "tasks"):
        ran = cli("space", f"{path}:build", "--operators", units, "--target", "cpu", "--json", "-")
        assert ran.status == 0, ran.err
        counts[units] = [row["operators"] for row in ran.json["blocks"]]
    assert counts == {"ios": [5], "tasks": [10]}


def test_a_model(cli: Callable[..., Any], model: str) -> None:
    ran = cli("space", model, "--target", "cpu", "--json", "-")
    assert ran.status == 0, ran.err
    for row in ran.json["blocks"]:
        assert set(row) == set(ROW)
        assert row["operators"] > 1 and row["width"] >= 1
    assert any(row["width"] == 2 for row in ran.json["blocks"])


def test_exact_gaps(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    pytest.importorskip("ortools", reason="OR-tools is not installed")
    out = tmp_path / "gaps.json"
    words = ("--exact", "--target", "cpu", "--schedulers", "sequential,local")
    ran = cli("space", model, *words, "--json", out)
    assert ran.status == 0, ran.err
    assert "bound us" in ran.out
    (block,) = json.loads(out.read_text())["blocks"]
    assert set(block["gaps"]) == {"sequential", "local", "searched", "exact"}
    assert all(gap >= 0 for gap in block["gaps"].values())
    assert block["exact_us"] >= block["bound_us"] > 0


def test_exact_needs_a_model_and_known_schedulers(
    cli: Callable[..., Any], model: str, tmp_path: Path
) -> None:
    dag = tmp_path / "dag.json"
    dag.write_text('{"nodes": 2, "edges": [[0, 1]]}')
    assert cli("space", "--dag", dag, "--exact").status == 2
    pytest.importorskip("ortools", reason="OR-tools is not installed")
    ran = cli("space", model, "--exact", "--schedulers", "fifo", "--target", "cpu")
    assert ran.status == 2 and "fifo" in ran.err
