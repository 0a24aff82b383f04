"""What each module of the user's model takes: rows -> a tree of modules, and the largest of them.

    (all)      677 us  109 tasks
    Mixed_6e    74 us   10 tasks      a part of the whole
    Mixed_6d    69 us   10 tasks

A task counts for one module and those around it: the innermost that holds all operators of the
task's kind. So a convolution counts for its own module, whatever is fused behind it, and one kernel
for query, key and value counts for the attention around the three. Among the largest, layers of a
list that are alike count as one, "encoder.layer.*.output".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from anabranch.ir import ops
from anabranch.report.task_rows import TaskRow

LARGEST = 5
LARGE_SHARE = 0.25
"""A part of the whole: of a module that takes more, its own modules are shown."""
LAYERS = 3
ALIKE = 1.25
"""Numbered modules count as one where there are so many, and none takes so many times another."""
MODULE = re.compile(r"\(([^()]+)\)")
"""In an origin, "net.py:7 in forward (layer1.0.conv1)"."""


@dataclass(frozen=True, slots=True)
class Module:
    """`us`: its tasks' times alone, added up; a time that nobody knows adds nothing. `own`: it
    stands for those of its tasks alone that are in no module of its own."""

    path: str
    tasks: int
    us: float
    own: bool = False


@dataclass(slots=True)
class _Branch:
    rows: list[TaskRow] = field(default_factory=list)
    inner: dict[str, _Branch] = field(default_factory=dict)

    def module(self, path: str) -> Module:
        return Module(path, len(self.rows), sum(row.us or 0.0 for row in self.rows))


def module_of(row: TaskRow) -> str:
    """The path of its module, "" where that is the model itself or unknown."""
    nodes = row.task.body.nodes
    main = [node.origin for node in nodes if ops.kind_of(node) == row.kind]
    for origins in (main, [node.origin for node in nodes]):
        paths = [path.split(".") for origin in origins for path in MODULE.findall(origin)]
        if paths:
            levels = zip(*paths, strict=False)
            shared = takewhile(lambda names: len(set(names)) == 1, levels)
            return ".".join(names[0] for names in shared)
    return ""


def modules(rows: Sequence[TaskRow]) -> list[Module]:
    """All modules that have tasks, each before those in it, in the order of their first launches.
    One that has the very tasks of a module in it is left out."""
    all_modules: list[Module] = []

    def walk(branch: _Branch, path: str) -> None:
        for name, inner in _inner(branch).items():
            below = f"{path}.{name}" if path else name
            all_modules.append(inner.module(below))
            walk(inner, below)

    walk(_tree(rows), "")
    return all_modules


def largest(rows: Sequence[TaskRow], most: int = LARGEST) -> list[Module]:
    """The modules that take most, none of them within another; "*" stands for all of a list of
    layers that are alike. A module that takes a large part of the whole, or stands among few, gives
    way to those in it."""
    whole = _tree(rows)
    total = whole.module("").us
    shown = [(whole, "")]
    while True:
        shown.sort(key=lambda pair: -pair[0].module(pair[1]).us)
        open = [
            (k, inner)
            for k, (branch, _) in enumerate(shown)
            if (inner := _inner(_folded(branch)))
            and (branch.module("").us > LARGE_SHARE * total or len(shown) < most)
        ]
        if not open or not total:
            break
        k, inner = open[0]
        branch, path = shown.pop(k)
        shown += [(below, f"{path}.{name}" if path else name) for name, below in inner.items()]
        within = {id(row) for below in inner.values() for row in below.rows}
        rest = [row for row in branch.rows if id(row) not in within]
        shown += [(_Branch(rest), path)] * bool(rest)
    return [_named(branch, path, shown) for branch, path in shown[:most]] if total else []


def _folded(branch: _Branch) -> _Branch:
    """With one module for its numbered ones, if they are many and alike."""
    layers = [inner for name, inner in branch.inner.items() if name.isdigit()]
    forms = {frozenset(inner.inner) for inner in layers}
    times = [inner.module("").us for inner in layers]
    if len(layers) < LAYERS or len(forms) > 1 or max(times) > ALIKE * min(times):
        return branch
    others = {name: inner for name, inner in branch.inner.items() if not name.isdigit()}
    return _Branch(branch.rows, {"*": _joined(layers), **others})


def _joined(branches: Sequence[_Branch]) -> _Branch:
    names = dict.fromkeys(name for branch in branches for name in branch.inner)
    inner = {
        name: _joined([branch.inner[name] for branch in branches if name in branch.inner])
        for name in names
    }
    return _Branch([row for branch in branches for row in branch.rows], inner)


def _named(branch: _Branch, path: str, shown: Sequence[tuple[_Branch, str]]) -> Module:
    """`own` where modules in it are shown beside it."""
    module = branch.module(path)
    inside = any(other != path and (not path or other.startswith(f"{path}.")) for _, other in shown)
    return Module(path, module.tasks, module.us, own=inside)


def _tree(rows: Sequence[TaskRow]) -> _Branch:
    root = _Branch()
    for row in rows:
        branch = root
        branch.rows.append(row)
        path = module_of(row)
        for name in path.split(".") if path else ():
            branch = branch.inner.setdefault(name, _Branch())
            branch.rows.append(row)
    return root


def _inner(branch: _Branch) -> dict[str, _Branch]:
    """The modules in it; of one that has all its tasks in one module, that one in its place."""
    branches = {}
    for name, inner in branch.inner.items():
        while len(inner.inner) == 1:
            ((below, only),) = inner.inner.items()
            if len(only.rows) < len(inner.rows):
                break
            name, inner = f"{name}.{below}", only
        branches[name] = inner
    return branches
