"""anabranch buckets: what it shows and writes; the choice itself is tested apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_sizes_become_buckets(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps({"1": 0.9, "64": 0.1}))
    ran = cli("buckets", "zoo:squeezenet/tiny", "--histogram", str(path), "--json", "-")
    assert ran.status == 0, ran.err
    rows = ran.json["buckets"]
    assert rows[0]["bucket"] == [64] and sum(row["share"] for row in rows) == pytest.approx(1)
    assert ran.json["expected_us"] <= ran.json["largest_alone_us"]
    assert 1 <= ran.json["beside_exact"] <= ran.json["worst"]["beside_exact"]


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("[]", (), "there are none"),
        ("[1]", ("--target", "cpu"), "come from a recorded GPU"),
        ("[1]", ("--dims", "batch"), "is not AXIS=NAME"),
        ("[1", (), "cannot be read"),
    ],
)
def test_wrong_usage(
    text: str, words: tuple[str, ...], why: str, cli: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "sizes.json"
    path.write_text(text)
    ran = cli("buckets", "zoo:squeezenet/tiny", "--histogram", str(path), *words)
    assert ran.status == 2 and why in ran.err
