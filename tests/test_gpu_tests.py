"""`make test-gpu`: shards are whole and balanced, and no test is lost that ends its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.gpu_worker import share, take

ROOT = Path(__file__).resolve().parent.parent
PLANTED = """
import os, time, pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_ends_its_process(): os._exit(9)
def test_takes_too_long(): time.sleep(60)
@pytest.mark.skip(reason="for a reason")
def test_is_skipped(): pass
@pytest.mark.alone
def test_is_alone(): pass
"""


def test_shards_are_a_partition_and_take_as_long() -> None:
    seconds = {f"t{i}": float(i % 7 * 10 + 1) for i in range(40)}
    tests = [*seconds, "unknown"]
    shards = [share(tests, seconds, i, 3) for i in (1, 2, 3)]
    assert sorted(test for shard in shards for test in shard) == sorted(tests)
    sums = [sum(seconds.get(test, 15.0) for test in shard) for shard in shards]
    assert max(sums) - min(sums) < 61
    assert share(tests, seconds, 1, 1)[0] in {"t6", "t13", "t20", "t27", "t34"}


def test_each_asker_gets_the_next_number(tmp_path: Path) -> None:
    assert [take(tmp_path / "next") for _ in range(12)] == list(range(12))


def test_all_that_happens_is_told(tmp_path: Path) -> None:
    planted, out = tmp_path / "test_planted.py", tmp_path / "out"
    planted.write_text(PLANTED)
    command = [sys.executable, str(ROOT / "tools" / "gpu_tests.py"), str(planted)]
    command += ["--jobs", "1", "--timeout", "1", "--out", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    rows = {
        row["test"].partition("::")[2]: row
        for row in json.loads((out / "results.json").read_text())
    }
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_ends_its_process": "failed",
        "test_takes_too_long": "failed",
        "test_is_skipped": "skipped",
        "test_is_alone": "passed",
    }
    assert "assert 1 == 2" in rows["test_fails"]["text"]
    assert "ended with status 9" in rows["test_ends_its_process"]["text"]
    assert "took more than 1 s" in rows["test_takes_too_long"]["text"]
    assert ran.stdout.rstrip().splitlines()[-2].startswith("slowest: ")
    assert 'failures="3"' in (out / "junit.xml").read_text()
