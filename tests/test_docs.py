"""The tour runs, and what the README shows is what the package has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tour_runs() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "ANABRANCH_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "tour.py")],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--- A Plan" in done.stdout and "Schedules" in done.stdout
