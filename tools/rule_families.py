"""The table of rule families in docs/search.md: how many rules each has, and who needs them.

    python tools/rule_families.py   writes it (make benchmarks)

Who needs a family: networks whose recorded searches (benchmarks/results) ended with a graph that
one of its rules led to, and the published searches, whose list `rewrite/rules/published` has. A
test compares the page with both.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anabranch.models.zoo import ZOO
from anabranch.rewrite.rules import CANDIDATES, PUBLISHED

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- families: made by make benchmarks -->", "<!-- end of families -->"
HEAD = (
    "| family | rules | of TASO's list | taken for, by our search | by published ones |",
    "|---|---|---|---|---|",
)
AS_PUBLISHED = ("taso", "autograph")
"""How the names of systems begin whose searches are as published."""


def table() -> str:
    """A row for each family, in the order in which they are tried."""
    ours, theirs = needed()
    lines = list(HEAD)
    for name, rules in CANDIDATES.items():
        listed = sum(any(rule is other for other in PUBLISHED) for rule in rules)
        counts = f"{len(rules)} | {listed or '-'}"
        taken = (", ".join(sorted(networks[name])) or "-" for networks in (ours, theirs))
        lines.append(f"| `{name}` | {counts} | {' | '.join(taken)} |")
    return "\n".join(lines)


def needed() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By family the networks that a rule of it is in the path of: of our search, with whatever
    settings, and of a published one."""
    family = {rule.name: name for name, rules in CANDIDATES.items() for rule in rules}
    ours, theirs = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for file in sorted(RESULTS.rglob("*.json")):
        for network, system, rule in steps(json.loads(file.read_text(encoding="utf-8")), "", ""):
            if rule in family and network in ZOO:
                networks_of = theirs if system.startswith(AS_PUBLISHED) else ours
                networks_of[family[rule]].add(network)
    return ours, theirs


def steps(record: Any, network: str, system: str) -> Iterator[tuple[str, str, str]]:
    """Of the paths to graphs that were taken, of those in a record of a real GPU, the network, the
    system that searched, and each rule."""
    if isinstance(record, list):
        for item in record:
            yield from steps(item, network, system)
    if not isinstance(record, dict) or "sim:" in str(record.get("machine")):
        return
    network = str(record.get("model", network)).removeprefix("zoo:")
    system = str(record.get("system", system)).removeprefix("anabranch:")
    rounds = record.get("search")
    for taken in rounds if isinstance(rounds, list) else ():
        told = re.split(r"(?: x\d+)?(?:; |$)", taken.get("rules", ""))
        yield from ((network, system, rule) for rule in told if rule)
    for item in record.values():
        yield from steps(item, network, system)


def with_table(page: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
