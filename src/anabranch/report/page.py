"""The report as one HTML page: ReportParts -> text that needs no other file and no network.

Jinja writes what can be read without a script (result, schedules, events, texts); the script draws
timeline, graph, task table and memory from the JSON beside it. Names and sources come from foreign
models: Jinja escapes them, the script only ever sets them as text, and the page's own policy lets
no script run but this one and nothing load from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from anabranch.cache.whole_file import whole_file
from anabranch.errors import unwritable
from anabranch.report import embed, graph_diff, history, units
from anabranch.report.flow import flow
from anabranch.report.headline import headline
from anabranch.report.machine_use import machine_uses
from anabranch.report.modules import largest
from anabranch.report.parts import ReportParts
from anabranch.report.provenance import provenance
from anabranch.report.search_summary import PRICES, ended, gained, in_parts
from anabranch.report.task_rows import KINDS, TaskRow, rows
from anabranch.search.result import Path as SearchPath

FOLDER = Path(__file__).parent
SCRIPTS = (
    *("start.js", "surface.js", "timeline.js", "trace.js", "graph.js", "table.js", "memory.js"),
    "end.js",
)
MOST_GROUPS = 1_000
"""Refusals shown, after grouping: more than this nobody reads, and a page must open."""


def render(**parts: Unpack[ReportParts]) -> str:
    """The page. It is the same for the same parts: no clock, no random names."""
    task_rows, streams = rows(parts), flow(parts["plan"])
    script = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=lambda us: units.duration(us).replace(" us", " \u00b5s"),
        size=units.size,
        ratio=lambda value: units.ratio(value).replace("x", "\u00d7"),
        number=units.significant,
        count=units.count,
        quoted=lambda name: quote(name, safe="", errors="replace"),
        in_parts=in_parts,
        gained=lambda round: gained(round.before, round.after).replace(" us", " \u00b5s"),
    )
    refused = history.grouped(parts["events"], "refused")
    return environment.get_template("page.html.j2").render(
        name=parts["name"],
        head=headline(parts),
        provenance=provenance(parts),
        sources=embed.MEANINGS,
        kinds=_kinds(task_rows),
        modules=largest(task_rows),
        whole=sum(row.us or 0.0 for row in task_rows),
        schedules=_schedules(parts),
        concerns=history.concerns(parts["events"]),
        changes=history.changes(parts["events"]),
        refused=refused[:MOST_GROUPS],
        refusals=sum(len(group.events) for group in refused),
        unseen=sum(len(group.events) for group in refused[MOST_GROUPS:]),
        searched=parts["searched"],
        prices=PRICES,
        ended=ended(parts["searched"]) if parts["searched"] else "",
        sides=_sides(parts["searched"]),
        stages=history.stages(parts["events"]),
        plan=parts["plan"],
        graphs=(
            ("captured", len(parts["captured"].nodes), embed.graph_text(parts["captured"])),
            ("rewritten", len(parts["rewritten"].nodes), embed.graph_text(parts["rewritten"])),
        ),
        timelines=parts["timelines"],
        uses=machine_uses(parts["plan"], parts["timelines"]),
        data=Markup(embed.dump(embed.content(parts, task_rows, streams))),
        facts=Markup(embed.dump(parts["facts"])),
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def write(path: str | os.PathLike[str], **parts: Unpack[ReportParts]) -> None:
    """Write the page in one step: a reader sees the old file or the new one, never half of it."""
    text = render(**parts).encode("utf-8", "replace")
    try:
        with whole_file(path) as stream:
            stream.write(text)
    except OSError as failed:
        raise unwritable(path, failed) from None


def _sides(path: SearchPath | None) -> list[dict[str, Any]]:
    """For each round its rows, and how many nodes are gone, new, and made of something else."""
    told = []
    for before, after in graph_diff.graphs(path) if path is not None else ():
        diff = graph_diff.rows(graph_diff.in_full(before), graph_diff.in_full(after))
        signs = "".join(row.sign for row in diff)
        counts = {"gone": signs.count("-"), "new": signs.count("+"), "other": signs.count("|")}
        told.append({"rows": graph_diff.folded(diff), **counts})
    return told


def _kinds(task_rows: list[TaskRow]) -> list[dict[str, Any]]:
    """For each kind of task how many there are, and their part of all tasks' time alone."""
    whole = sum(row.us or 0.0 for row in task_rows) or 1.0
    table = []
    for kind in KINDS:
        members = [row for row in task_rows if row.kind == kind]
        us = sum(row.us or 0.0 for row in members)
        if members:
            table.append({"name": kind, "tasks": len(members), "us": us, "part": us / whole})
    return table


def _schedules(parts: ReportParts) -> list[dict[str, Any]]:
    """All that were compared; packing may have added waits to the chosen one, not renamed it."""
    slowest = max((cost.us for _, cost in parts["schedules"]), default=1.0) or 1.0
    fastest = min((cost.us for _, cost in parts["schedules"]), default=1.0) or 1.0
    return [
        {
            "schedule": schedule,
            "cost": cost,
            "part": cost.us / slowest,
            "over": cost.us / fastest - 1,
            "chosen": schedule.scheduler == parts["plan"].schedule.scheduler,
        }
        for schedule, cost in parts["schedules"]
    ]
