"""The json files of a run -> a folder of benchmarks/results: without this machine's paths.

    python tools/keep_run.py RESULTS/papers benchmarks/results/2026-11-28-h100-papers \\
        --commit 8e532429 --title "Tables of the four papers"

A file that a benchmark wrote with `--json` is kept with the commit it ran at, and FILE for paths in
its command, notes and failures; one without rows, of a run that was ended before its first network,
is left out and named. README.md has the title, GPU, versions, and for each file its command and
networks, and may be edited: it is written only where there is none. Afterwards: a line in
benchmarks/results/README.md, and `make benchmarks`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH = re.compile(r"(?<![\w.:/])(/[\w.+-]+)+/?")
"""A path from the root on, not of a URL."""
SHOWN = ("torch", "triton", "nvidia-cudnn-frontend", "python")
"""Of the versions those that the README says."""


def kept(record: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """The record at this commit, FILE for every path in its texts."""
    return {**{name: _without_paths(value) for name, value in record.items()}, "commit": commit}


def _without_paths(value: Any) -> Any:
    if isinstance(value, str):
        return PATH.sub("FILE", value)
    if isinstance(value, Mapping):
        return {name: _without_paths(own) for name, own in value.items()}
    return [_without_paths(own) for own in value] if isinstance(value, list) else value


def readme(title: str, commit: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """What the folder says of itself."""
    machines = sorted({str(r.get("machine", {}).get("gpu", "")) for r in records.values()})
    versions = {
        f"{name} {r['versions'][name]}"
        for r in records.values()
        for name in SHOWN
        if name in r.get("versions", {})
    }
    lines = [
        f"# {title}",
        "",
        f"{', '.join(machines)}; at {commit}; {', '.join(sorted(versions))}.",
    ]
    lines += ["", "| file | networks | command |", "|---|---|---|"]
    for name, record in records.items():
        models = (str(row["model"]) for row in record["rows"] if "model" in row)
        networks = dict.fromkeys(model.rpartition(":")[2] for model in models)
        lines.append(f"| `{name}` | {', '.join(networks)} | `{record['command']}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="keep the json files of a run as a record")
    parser.add_argument("run", type=Path, help="the folder that the commands wrote to")
    parser.add_argument("folder", type=Path, help="the record: benchmarks/results/DATE-GPU-WHAT")
    parser.add_argument("--commit", required=True, help="at which it ran")
    parser.add_argument("--title", required=True, help="of its README")
    asked = parser.parse_args()
    records: dict[str, dict[str, Any]] = {}
    for file in sorted(asked.run.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not record.get("rows") or "command" not in record:
            print(f"left out, for it has no rows or no command: {file.name}")
            continue
        records[file.name] = kept(record, asked.commit)
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (asked.folder / name).write_text(f"{text}\n", encoding="utf-8")
    page = asked.folder / "README.md"
    if not page.exists():
        page.write_text(readme(asked.title, asked.commit, records), encoding="utf-8")
    print(f"{len(records)} files in {asked.folder}")


if __name__ == "__main__":
    main()
