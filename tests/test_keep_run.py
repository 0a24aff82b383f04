"""tools/keep_run.py: what a run wrote becomes a record without the machine's paths."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

TOOL = str(Path(__file__).parent.parent / "tools" / "keep_run.py")


def keep(run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [TOOL, str(run), str(folder), "--commit", "abc1234", "--title", "Tables"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(TOOL, run_name="__main__")


def test_a_run_becomes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run", tmp_path / "record"
    run.mkdir()
    record = {
        "command": "anabranch reproduce ios warps --models zoo:sru --json /home/me/out/a.json",
        "commit": "",
        "machine": {"gpu": "NVIDIA H100"},
        "versions": {"torch": "2.11.0", "numpy": "2"},
        "rows": [{"model": "zoo:sru", "note": "1/2 of w + v/x", "median_ms": 0.125}, {"us": 1}],
        "cut_short": "see /home/me/x.log, https://pytorch.org/a/b",
    }
    (run / "a.json").write_text(json.dumps(record))
    (run / "ended.json").write_text(json.dumps({**record, "rows": []}))
    keep(run, folder, monkeypatch)
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "a.json"]
    command = "anabranch reproduce ios warps --models zoo:sru --json FILE"
    wanted = {**record, "command": command, "commit": "abc1234"}
    wanted["cut_short"] = "see FILE, https://pytorch.org/a/b"
    assert json.loads((folder / "a.json").read_text()) == wanted
    page = (folder / "README.md").read_text()
    assert page.startswith("# Tables\n\nNVIDIA H100; at abc1234; torch 2.11.0.\n")
    assert f"| `a.json` | sru | `{command}` |\n" in page and "ended.json" in capsys.readouterr().out

    (folder / "README.md").write_text("edited")
    keep(run, folder, monkeypatch)
    assert (folder / "README.md").read_text() == "edited"
