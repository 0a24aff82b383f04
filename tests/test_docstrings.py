"""Examples in docstrings say what the code answers."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "anabranch"
PROMPT = ">>> "


def test_examples_in_docstrings_are_true() -> None:
    """Of all modules that have some; what a module imports is at hand, as for a reader."""
    said: list[str] = []
    runner, finder, tried = doctest.DocTestRunner(verbose=False), doctest.DocTestFinder(), 0
    for file in sorted(PACKAGE.rglob("*.py")):
        if PROMPT in file.read_text(encoding="utf-8"):
            parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
            module = import_module(".".join(part for part in parts if part != "__init__"))
            for example in finder.find(module):
                tried += runner.run(example, out=said.append).attempted
    assert tried > 100 and "".join(said) == ""
