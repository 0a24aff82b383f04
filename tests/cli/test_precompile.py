"""anabranch precompile: what it shows and writes; `ahead` is tested apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli import precompile
from anabranch.compiler.precompile import PrecompileCounts
from anabranch.errors import TargetError
from anabranch.tuning.job import Job


def test_a_row_for_each(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool, int]] = []

    def told(job: Job) -> PrecompileCounts:
        assert job.cache is not None
        asked.append((job.target.spec.name, job.target.spec.tf32, job.args[0].shape[0]))
        if len(asked) == 3:
            raise TargetError("no compiler today", "it is a holiday", "wait")
        return PrecompileCounts(9, 9 - len(asked), 1)

    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile, "precompile_kernels", told)
    words = ("zoo:squeezenet/tiny", "--dtype", "fp16,tf32", "--batch", "1,2")
    ran = cli("precompile", *words, "--json", "-")
    assert ran.status == 1  # for one fails
    assert asked == [("NVIDIA H200", tf32, batch) for tf32 in (False, True) for batch in (1, 2)]
    assert ran.json["target"] == "sim:h200" and ran.json["cache"].startswith(str(tmp_path))
    rows = [{**row, "seconds": 0} for row in ran.json["rows"]]
    first = {"model": "zoo:squeezenet/tiny", "dtype": "fp16", "batch": 1, "failure": ""}
    assert rows[0] == {**first, "kernels": 9, "compiled": 8, "refused": 1, "seconds": 0}
    assert [row["compiled"] for row in rows] == [8, 7, 0, 5]
    assert [row["failure"] for row in rows] == ["", "", "no compiler today", ""]


@pytest.mark.parametrize(
    ("words", "folder", "why"),
    [
        (("--target", "cpu"), "here", "there are no kernels to compile for"),
        ((), "", "there is no cache to compile into"),
        (("--batch", "0"), "here", "--batch"),
        (("--dtype", "fp12"), "here", "fp12"),
    ],
)
def test_wrong_usage(
    words: tuple[str, ...],
    folder: str,
    why: str,
    cli: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(tmp_path / folder) if folder else "")
    ran = cli("precompile", "zoo:sru/tiny", *words)
    assert ran.status == 2 and why in ran.err
