from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.bench.reproduce import REPRODUCTIONS


def test_tables_are_listed(cli: Callable[..., Any]) -> None:
    ran = cli("reproduce")
    assert ran.status == 0, ran.err
    for paper, tables in REPRODUCTIONS.items():
        assert paper in ran.out and all(table in ran.out for table in tables)
    listed = cli("reproduce", "--json", "-").json["tables"]
    assert ("ios", "batches") in [(one["paper"], one["table"]) for one in listed]


def test_schedulers_of_ios(cli: Callable[..., Any]) -> None:
    words = ("--models", "zoo:squeezenet_bypass/tiny", "--target", "sim:h200", "--dtype", "fp16")
    ran = cli("reproduce", "ios", "schedulers", *words, "--json", "-")
    assert ran.status == 0, ran.err
    names = [row["scheduler"] for row in ran.json["rows"]]
    assert names == [*("sequential", "greedy", "ios-merge", "ios-barrier", "ios-both", "ios-paper")]


def test_wrong_usage_says_what_there_is(cli: Callable[..., Any]) -> None:
    for words, said in (
        (("ios",), "schedulers, frameworks"),
        (("halide",), "unknown paper 'halide'"),
        (("halide", "systems"), "autograph"),
        (("ios", "systems"), "schedulers, frameworks"),
        (("ios", "schedulers", "--search-seconds", "3"), "no graph is searched"),
        (("ios", "batches", "--dtype", "fp12"), "fp12"),
    ):
        ran = cli("reproduce", *words)
        assert ran.status == 2 and not ran.out and said in ran.err
