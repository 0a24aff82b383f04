from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.cache import Cache


@pytest.fixture
def folder(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(folder))
    with Cache.open(folder) as cache:
        cache.put("timings", "conv 3x3", "4 us")
        cache.put("kernels", "add", "x" * 100)
    return folder


def test_path_and_stats(cli: Callable[..., Any], folder: Path) -> None:
    assert cli("cache", "path").out == f"{folder / 'cache.sqlite'}\n"
    stats = cli("cache", "stats", "--json", "-").json
    assert stats["entries"] == {"timings": 1, "kernels": 1, "graphs": 0, "plans": 0}
    assert stats["path"] == str(folder / "cache.sqlite")


def test_ls(cli: Callable[..., Any], folder: Path) -> None:
    ran = cli("cache", "ls", "timings")
    assert ran.status == 0
    assert "conv 3x3" in ran.out and "add" not in ran.out
    assert "1 more" in cli("cache", "ls", "--limit", "1").out
    assert len(cli("cache", "ls", "--json", "-").json["entries"]) == 2


def test_clear(cli: Callable[..., Any], folder: Path) -> None:
    assert cli("cache", "clear", "timings").out.startswith("forgot 1 entries")
    assert cli("cache", "stats", "--json", "-").json["entries"]["kernels"] == 1
    assert cli("cache", "clear", "--json", "-").json["entries"] == 1
    assert sum(cli("cache", "stats", "--json", "-").json["entries"].values()) == 0


def test_without_one(cli: Callable[..., Any]) -> None:
    assert cli("cache", "path").out == ""
    assert cli("cache", "path", "--json", "-").json == {"path": None}
    assert "in memory" in cli("cache", "stats").out
