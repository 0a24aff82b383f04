"""What this branch changes in the kernels and plans of the zoo, against another commit.

    python tools/replay.py [--against main] [--target sim:h200] [NETWORK ...]

Both trees compile each network for the recorded GPU, with ANABRANCH_DUMP set and a cache of their
own; the texts after each stage and the generated sources are then compared line by line. Exit
status 0: the same plans. 1: they differ, and the difference is on the screen. 2: a compilation
failed on this branch.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = "import sys; from anabranch.cli import main; sys.exit(main())"
COMPARED = {".txt", ".py", ".json"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("networks", nargs="*", default=[], help="all of the zoo if none is named")
    parser.add_argument("--against", default="main", help="the commit to compare with")
    parser.add_argument("--target", default="sim:h200")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        other = scratch / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(other), chosen.against)
        try:
            return _compare(chosen.networks or _zoo(), chosen.target, other, scratch)
        finally:
            _git("worktree", "remove", "--force", str(other))


def _compare(networks: list[str], target: str, other: Path, scratch: Path) -> int:
    status = 0
    for network in networks:
        before, after = scratch / "before" / network, scratch / "after" / network
        known = _compile(other, network, target, before)
        if not _compile(ROOT, network, target, after):
            print(f"{network}: does not compile on this branch")
            status = 2
            continue
        if not known:
            print(f"{network}: new here, it does not compile there")
            continue
        changes = list(_differences(before, after))
        print(f"{network}: {'the same' if not changes else f'{len(changes)} lines of difference'}")
        sys.stdout.writelines(f"{line}\n" for line in changes)
        status = max(status, 1 if changes else 0)
    return status


def _compile(tree: Path, network: str, target: str, out: Path) -> bool:
    out.mkdir(parents=True)
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ANABRANCH_")}
    environment |= {
        "PYTHONPATH": str(tree / "src"),
        "ANABRANCH_DUMP": str(out),
        "ANABRANCH_CACHE_DIR": "",
    }
    command = [sys.executable, "-c", START, "compile", f"zoo:{network}", "--target", target]
    done = subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip()[-2000:])
    return done.returncode == 0


def _differences(before: Path, after: Path) -> list[str]:
    names = sorted(
        {
            str(file.relative_to(side))
            for side in (before, after)
            for file in side.rglob("*")
            if file.suffix in COMPARED and file.name != "repro.py"
        }
    )
    lines: list[str] = []
    for name in names:
        old, new = _read(before / name), _read(after / name)
        lines += difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", "", "", 2, "")
    return lines


def _read(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _zoo() -> list[str]:
    sys.path.insert(0, str(ROOT / "src"))
    from anabranch.zoo import ZOO

    return sorted(ZOO)


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
