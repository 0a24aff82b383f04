"""What this branch changes in the kernels and plans of the zoo, against another commit.

    python tools/replay.py [--against main] [--target sim:h200] [NETWORK ...]

Both trees compile each network for the recorded GPU, with ANABRANCH_DUMP set and a cache of their
own; the texts after each stage and the generated sources are then compared line by line, the names
of modules that moved in between as they are called here, lines of the network's source aside. Exit
status 0: the same plans. 1: they differ, and the difference is on the screen. 2: a compilation
failed on this branch.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGES = {
    **{"fuse": "fusion", "kernels": "tuning", "abreast": "horizontal_fusion", "pack": "memory"},
    "overlap": "pdl",
}
"""Stages and places of events that had another name before 2026-11-26: files of a dump are named by
stages, as in 02_fuse.txt, and events in JSON say where they are from."""
TEMPLATES = {"pair": "gemm_chain", "abreast": "horizontal"}
"""Templates that had another name before 2026-11-27."""
START = "import sys; from anabranch.cli import main; sys.exit(main())"
COMPARED = {".txt", ".py", ".json"}
ALIKE = "40%"
"""Of its lines, that a file must have kept to be the same file in another place."""


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
            renamed = _renamed(chosen.against)
            networks = chosen.networks or _zoo()
            return _compare(networks, chosen.target, other, scratch, renamed)
        finally:
            _git("worktree", "remove", "--force", str(other))


def _compare(
    networks: list[str], target: str, other: Path, scratch: Path, renamed: Mapping[str, str]
) -> int:
    status = 0
    for network in networks:
        before, after = scratch / "before" / network, scratch / "after" / network
        compiles_there = _compile(other, network, target, before)
        if not _compile(ROOT, network, target, after):
            print(f"{network}: does not compile on this branch")
            status = 2
            continue
        if not compiles_there:
            print(f"{network}: new here, it does not compile there")
            continue
        changes = list(_differences(before, after, renamed))
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


def _differences(before: Path, after: Path, renamed: Mapping[str, str]) -> list[str]:
    was = {named(name): before / name for name in _files(before)}
    now = {named(name): after / name for name in _files(after)}
    lines: list[str] = []
    for name in sorted(was.keys() | now.keys()):
        old, new = _read(was.get(name), renamed), _read(now.get(name), {})
        lines += difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", "", "", 2, "")
    return lines


def _files(side: Path) -> list[str]:
    files = (file for file in side.rglob("*") if file.suffix in COMPARED)
    return [str(file.relative_to(side)) for file in files if file.name != "repro.py"]


def named(name: str) -> str:
    """A file of a dump, its stage as it is called now.

    >>> named("02_fuse.txt"), named("02_fusion.txt"), named("kernels/conv.py")
    ('02_fusion.txt', '02_fusion.txt', 'kernels/conv.py')
    """
    old = "|".join(STAGES)
    return re.sub(rf"^(\d+_)({old})(?=[._])", lambda match: match[1] + STAGES[match[2]], name)


def stages_renamed(text: str) -> str:
    """The text with names of stages and places of events in it as they are now.

    >>> stages_renamed('"where": "fuse", "what": "pack"')
    '"where": "fusion", "what": "pack"'
    """
    old = "|".join(STAGES)
    where = rf'("(?:where|room|stage)": ")({old})(?=["." ])'
    return re.sub(where, lambda match: match[1] + STAGES[match[2]], text)


def templates_renamed(text: str) -> str:
    """The text with the templates of kernels and variants, and elided concats, as they are now.

    >>> templates_renamed("triton.pair pair:64x32x32x32.k1.w8.s2")
    'triton.gemm_chain gemm_chain:64x32x32x32.k1.w8.s2'

    Of a kernel's own name the template alone: it ends where it is long, and so do its operators.

    >>> templates_renamed("def pair_linear_relu_linear(x_ptr):")
    'def gemm_chain(x_ptr):'
    """
    old = "|".join(TEMPLATES)
    where = rf'(?<=triton\.)({old})\b|\b({old})(?=:\w)|(?<=")({old})(?=")'
    text = re.sub(where, lambda match: TEMPLATES[match[0]], text)
    entry = rf"(?<=def )({old}|{'|'.join(TEMPLATES.values())})_\w+"
    text = re.sub(entry, lambda match: TEMPLATES.get(match[1], match[1]), text)
    return re.sub(r"(?m)^  join (?=%)", "  elided_concat ", text)


def without_lines(text: str) -> str:
    """The text with source files of operators, and not the lines in them, which move.

    >>> without_lines("%y = aten.relu.default(%x)    # squeezenet.py:55 in forward (features.1)")
    '%y = aten.relu.default(%x)    # squeezenet.py in forward (features.1)'
    """
    return re.sub(r"(# \w+\.py):\d+", r"\1", text)


def _read(file: Path | None, renamed: Mapping[str, str]) -> list[str]:
    """The lines of a text, modules that moved, stages and templates under their new names."""
    text = file.read_text(encoding="utf-8") if file is not None else ""
    text = without_lines(templates_renamed(stages_renamed(text)))
    if renamed:
        names = "|".join(sorted(map(re.escape, renamed), key=len, reverse=True))
        text = re.sub(rf"(?<![\w./])({names})(?!\w)", lambda match: renamed[match[0]], text)
    return text.splitlines()


def _renamed(against: str) -> dict[str, str]:
    """Modules with another place here than there, as a path and as a dotted name of the package."""
    room = "src/anabranch"
    command = ["git", "-C", str(ROOT), "diff", "--name-status", f"-M{ALIKE}", "-l0", against, "--"]
    done = subprocess.run([*command, room], capture_output=True, text=True, check=True)
    names: dict[str, str] = {}
    for line in done.stdout.splitlines():
        status, *places = line.split("\t")
        if status.startswith("R") and all(place.endswith(".py") for place in places):
            old, new = (place.removeprefix("src/").removesuffix(".py") for place in places)
            names[old.replace("/", ".")] = new.replace("/", ".")
            names[f"{old}.py".removeprefix("anabranch/")] = f"{new}.py".removeprefix("anabranch/")
    return names


def _zoo() -> list[str]:
    sys.path.insert(0, str(ROOT / "src"))
    from anabranch.models.zoo import ZOO

    return sorted(ZOO)


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
