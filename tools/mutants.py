"""How many small faults the tests would notice: mutation testing of what trust rests on.

    pip install cosmic-ray
    PYTHONPATH=src python3 tools/mutants.py --most 120 --json FILE        [NAME ..]

Each mutant is a module with one change that cosmic-ray's operators make (another comparison, a
number one larger, a condition turned round). It is killed where a test fails, or takes ten times as
long as all tests take without it. Every mutant runs in a fork of a process that has imported torch
and what the module imports, and nothing is written into the tree: the fork imports the changed text
in place of the file. Of each module as many mutants are drawn as `--most` says, by `--seed`.
Survivors are listed with their lines, for a reader to judge: some change nothing that anybody can
see.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch  # noqa: F401 -- once, and not in each fork

ROOT = Path(__file__).resolve().parent.parent
TESTED = {
    "memory.race_check": (
        "tests/memory/test_race_check.py",
        "tests/memory/test_race_check_elided_concats.py",
        "tests/memory/test_race_check_states.py",
    ),
    "memory.arena": ("tests/memory/test_arena.py", "tests/memory/test_packer.py"),
    "artifact.bounds": ("tests/artifact/test_bounds.py", "tests/artifact/test_file_attacks.py"),
    "artifact.bodies": ("tests/artifact/test_bodies.py",),
    "artifact.operators": (
        "tests/artifact/test_operators.py",
        "tests/artifact/test_file_attacks.py",
    ),
    "ir.tolerances": ("tests/ir/test_tolerances.py",),
}
"""The race check, the arena, loading and numerics, and the tests that stand for each."""
PATIENCE = 10
"""How many times as long as without a change tests may take before the mutant counts as killed."""


@dataclass(frozen=True, slots=True)
class Mutant:
    module: str
    operator: str
    occurrence: int
    line: int
    text: str
    """The changed line, or where several are, the first."""


def main() -> int:
    parser = argparse.ArgumentParser(description="mutation testing")
    parser.add_argument("modules", nargs="*", default=list(TESTED), metavar="NAME")
    parser.add_argument("--most", type=int, default=120, help="mutants of a module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    flags = parser.parse_args()
    rows = [figure(name, flags.most, flags.seed) for name in flags.modules]
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0


def figure(name: str, most: int, seed: int) -> dict[str, object]:
    """How many mutants of the module were tried and killed, and which survived."""
    path = ROOT / "src" / "anabranch" / f"{name.replace('.', '/')}.py"
    source = path.read_text("utf-8")
    there = places(source)
    random.Random(seed).shuffle(there)
    chosen = list(islice(mutants(name, source, there), most))
    import_imports(source)
    begun = time.monotonic()
    if not passes(name, source, 600):
        raise SystemExit(f"{name}: the tests fail without any change")
    patience = PATIENCE * (time.monotonic() - begun)
    survived = [m for m in chosen if passes(name, changed(source, m), patience)]
    killed = len(chosen) - len(survived)
    print(f"{name}: {killed} of {len(chosen)} killed, of {len(there)} places", flush=True)
    for mutant in sorted(survived, key=lambda m: m.line):
        print(f"  line {mutant.line}, {mutant.operator}: {mutant.text}", flush=True)
    counts = {"module": name, "mutants": len(there), "tried": len(chosen), "killed": killed}
    return counts | {"survived": [asdict(mutant) for mutant in survived]}


def import_imports(source: str) -> None:
    """Imports what the text imports, once and not in each fork: none of it imports the module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            importlib.import_module(node.module)


def places(source: str) -> list[tuple[str, int]]:
    """All changes: an operator, and which of the places where it applies. The tree is read once: to
    make all changes takes a minute and more."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes, changes = list(ast_nodes(get_ast(source))), list[tuple[str, int]]()
    for name in operator_names():
        operator = get_operator(name)
        if not operator.arguments():
            count = sum(1 for node in nodes for _ in operator().mutation_positions(node))
            changes += [(name, occurrence) for occurrence in range(count)]
    return changes


def mutants(name: str, source: str, there: Sequence[tuple[str, int]]) -> Iterator[Mutant]:
    """Those of these places that compile and say something else than the source."""
    unchanged = _said(source)
    for operator, occurrence in there:
        text = mutated(source, operator, occurrence)
        if text is not None and _said(text) not in (unchanged, None):
            pairs = zip(source.splitlines(), text.splitlines(), strict=False)
            line = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), 0)
            yield Mutant(name, operator, occurrence, line, text.splitlines()[line - 1].strip())


def _said(source: str) -> str | None:
    """What the text does, whatever its annotations say, which nobody reads as it runs; None where
    it is no text of Python: `{**table}` becomes `{+table}`."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def mutated(source: str, operator: str, occurrence: int) -> str | None:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    text: str | None = mutate_code(source, get_operator(operator)(), occurrence)
    return text


def changed(source: str, mutant: Mutant) -> str:
    text = mutated(source, mutant.operator, mutant.occurrence)
    assert text is not None, "an occurrence that was counted is there"
    return text


def passes(name: str, source: str, seconds: float) -> bool:
    """Whether all tests of the module pass with this text in its place, in a fork."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        sys.meta_path.insert(0, Instead(f"anabranch.{name}", source))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            words = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *TESTED[name]]
            code = pytest.main(words)
        os._exit(int(code != pytest.ExitCode.OK))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, whose text is another than that of its file."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, f"<{self.name}, changed>", "exec"), module.__dict__)


if __name__ == "__main__":
    sys.exit(main())
