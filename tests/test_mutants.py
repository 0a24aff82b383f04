"""tools/mutants.py: the files that it names are there."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_modules_and_their_tests_are_where_the_tool_looks() -> None:
    tree = ast.parse((ROOT / "tools" / "mutants.py").read_text("utf-8"))
    (tested,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TESTED"
    )
    modules = [ROOT / "src" / "anabranch" / f"{name.replace('.', '/')}.py" for name in tested]
    files = [ROOT / file for files in tested.values() for file in files]
    assert [str(path) for path in (*modules, *files) if not path.is_file()] == []
