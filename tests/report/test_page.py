"""The page: well-formed, self-contained, and safe from what it shows."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import HOSTILE, tiled

from anabranch.costs.utilisation import STEPS
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.ir.text import text_node
from anabranch.report import embed
from anabranch.report.page import render, write
from anabranch.report.parts import ReportParts
from anabranch.search.engine.backtracking import RewriteStep
from anabranch.search.result import Path as Way
from anabranch.search.result import Round

Build = Mapping[str, Callable[..., ReportParts]]
VOID = {"meta", "link", "input", "path", "br", "img"}


class Reader(HTMLParser):
    """Fails on elements that are not closed in order; keeps scripts, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._script: str | None = None
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"line {self.getpos()[0]}"
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif "style" not in self.open:
            self.text += data


def test_well_formed_with_everything_in_it(parts: Build) -> None:
    given = parts["modules"](2)
    page = Reader(render(**given))
    assert set(page.scripts) == {"facts", "data", "code"}
    data = json.loads(page.scripts["data"])
    launched = [launch.task for launch in given["plan"].schedule.launches]
    assert [task["name"] for task in data["tasks"]] == launched
    assert [timeline["name"] for timeline in data["timelines"]] == ["predicted", "measured"]
    for word in ("measured", "eager", "wave-3", "mylib.calibrate is not in the op table"):
        assert word in page.text
    assert "%mixed_1.cat: f16[1,192,35,35] = aten.cat.default" in page.text


def test_the_same_parts_give_the_same_page(parts: Build) -> None:
    assert render(**parts["small"]()) == render(**parts["small"]())


def test_facts_are_there_for_machines(parts: Build) -> None:
    given = parts["small"]()
    facts = {**given["facts"], "note": "</script><b>&", "worst": float("inf"), "of": ("a", 1)}
    changed: ReportParts = {**given, "facts": facts}
    page = Reader(render(**changed))
    read = json.loads(page.scripts["facts"])
    assert read == {**given["facts"], "note": "</script><b>&", "worst": "inf", "of": ["a", 1]}


def test_needs_no_network(parts: Build) -> None:
    page = render(**parts["small"]())
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"url\([^)]*\)", page)) <= {"url(#hatch)"}
    for word in ("@import", "fetch(", "XMLHttpRequest", "WebSocket", "importScripts", "import("):
        assert word not in page
    for tag, name, value in Reader(page).attributes:
        if name in ("src", "href", "action", "poster", "data", "srcset"):
            assert value.startswith("#") or (tag == "link" and value == "data:,")
    assert "default-src 'none'" in page


def test_shows_hostile_names_as_text(parts: Build) -> None:
    page = render(**parts["chain"](HOSTILE))
    reader = Reader(page.encode("utf-8", "replace").decode())
    names = [task["name"] for task in json.loads(Reader(page).scripts["data"])["tasks"]]
    assert names == [name.replace("\ud800", "?") for name in HOSTILE]
    assert not any(name.startswith("on") for _, name, _ in reader.attributes)
    assert not any(tag == "img" for tag, _, _ in reader.attributes)
    assert page.count("<script") == 3


def test_little_is_enough(parts: Build) -> None:
    """A plan from a file has no candidates, no events, hardly any facts."""
    given = parts["small"]()
    bare: ReportParts = {
        **given,
        "candidates": {},
        "schedules": [],
        "timelines": [],
        "events": [],
        "facts": {"latency_ms": "?", "baselines": None, "max_relative_error": 0.5},
    }
    page = Reader(render(**bare))
    assert "no latency is known" in page.text
    assert "No timeline was made" in page.text


def test_the_head_says_what_was_measured_and_what_was_not(parts: Build) -> None:
    given = parts["small"]()
    facts = {**given["facts"], "command": "anabranch compile <net>", "options": {"budget": 9}}
    more = {"called_ms": 0.031, "not_measured": {"inductor": "it broke <here>"}}
    given = {**given, "facts": {**facts, **more}}
    text = " ".join(Reader(render(**given)).text.split())
    assert "as it is called31.0 µs" in text
    assert "inductornot measured: it broke <here>" in text and "eagernot" not in text
    unasked = {key: value for key, value in given["facts"].items() if key != "not_measured"}
    plain: ReportParts = {**given, "facts": unasked}
    told = " ".join(Reader(render(**plain)).text.split())
    assert "inductornot measured: anabranch compile --report FILE --rivals" in told
    assert "commandanabranch compile <net>" in text and "optionsbudget = 9" in text


def test_the_head_says_how_far_a_forecast_may_be_off(parts: Build) -> None:
    given = parts["small"]()
    forecast = {"low_ms": 0.0493, "high_ms": 0.0604, "recorded": 1.0}
    told: ReportParts = {**given, "facts": {**given["facts"], "forecast": forecast}}
    said = "A forecast: 49.3 µs to 60.4 µs in eight of ten; all of its tasks' time is recorded."
    assert said in Reader(render(**told)).text
    assert "A forecast:" not in Reader(render(**given)).text


def test_where_numbers_come_from_is_explained(parts: Build) -> None:
    page = Reader(render(**parts["small"]()))
    assert 'id="sources"' in render(**parts["small"]())
    for source, meaning in embed.MEANINGS.items():
        assert page.text.count(meaning) == 1 + (source == "measured"), "the head says its own"


def test_large_pages_stay_small(parts: Build) -> None:
    page = render(**parts["cells"](50))
    assert len(json.loads(Reader(page).scripts["data"])["tasks"]) > 1500
    assert len(page.encode()) < 5e6


def test_sources_without_room_are_left_out(parts: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "SOURCES", 1000)
    data = json.loads(Reader(render(**parts["modules"](2))).scripts["data"])
    assert len(data["sources"]) == 1
    numbers = {candidate[5] for group in data["candidates"] for candidate in group}
    assert numbers == {0, -1, embed.LEFT_OUT}


def test_every_candidate_says_why_it_lost_and_what_its_limit_is(parts: Build) -> None:
    given = tiled(parts["small"]())
    data = json.loads(Reader(render(**given)).scripts["data"])
    task = next(task for task in data["tasks"] if task["name"] == "stem")
    tried = data["candidates"][task["candidates"]]
    assert [bool(one[7]) for one in tried] == [k != task["chosen"] for k in range(len(tried))]
    *others, tile = tried
    assert tile[7] == "100% slower than the chosen one"
    assert {one[7] for one in others} >= {
        "it did not run",
        "error 3.10e-02 where 2.00e-03 is allowed",
    }
    assert all(one[8] is None for one in others)
    limit, memory, shared, tail, fits, us = tile[8]
    assert limit == pytest.approx(memory * shared * tail * fits, rel=0.02)
    assert 0 < limit < 1 and us > 1


def test_long_graphs_lose_their_middle(parts: Build) -> None:
    graph = parts["modules"](3)["captured"]
    text = embed.graph_text(graph, most=2000)
    assert len(text) < 2100
    assert text.startswith("graph inception {")
    assert text.endswith("}\n")
    assert re.search(r"\.\.\. \d+ lines left out", text)


@pytest.mark.parametrize("found", [True, False])
def test_what_ended_a_search_stands_beside_its_way(parts: Build, found: bool) -> None:
    given = parts["small"]()
    net = given["captured"]
    done = Round((), Cost(18.34, "measured"), Cost(18.31, "measured"), net)
    path = Way(net, net, (done,) * found, "budget", 0.4)
    searched: ReportParts = {**given, "searched": path}
    text = Reader(render(**searched)).text
    assert "stopped by the clock, with 40% of its work undone" in text
    assert ("18.3 µs measured, 0.164% less" in text) == found
    assert "No equal graph is faster" not in text


def test_a_step_says_under_which_price_it_was_found(parts: Build) -> None:
    given = parts["small"]()
    net = given["captured"]
    steps = (
        RewriteStep("merge", ("a", "b"), Price(9.0), Price(6.5)),
        RewriteStep("split", ("c",), Price(4.0, 4.0), Price(3.0, 4.0)),
    )
    done = Round(steps, Cost(18.34, "measured"), Cost(17.31, "measured"), net)
    searched: ReportParts = {**given, "searched": Way(net, net, (done,))}
    page = render(**searched)
    text = " ".join(Reader(page).text.split())
    assert "Price: change in the sum of the tasks' times, each alone, plus alpha times" in text
    cells = '<td class="number">{}</td><td class="number">{}</td>'
    assert '>price</th><th class="number">alpha</th>' in page
    assert cells.format("-2.50", "0") in page and cells.format("-1.00", "4") in page


def test_each_round_shows_the_graph_before_and_after(parts: Build) -> None:
    given = parts["small"]()
    net = given["captured"]
    *first, last = net.nodes
    other = replace(net, nodes=(*first, replace(last, kwargs=(("wide", True),))))
    fewer = replace(other, nodes=other.nodes[1:])
    was, now = Cost(18.0, "measured"), Cost(17.0, "measured")
    rounds = (Round((), was, now, other), Round((), now, Cost(16.0, "measured"), fewer))
    searched: ReportParts = {**given, "searched": Way(net, fewer, rounds)}
    page = render(**searched)
    text = " ".join(Reader(page).text.split())
    assert "round 1: 0 nodes gone, 0 new, 1 made of something else" in text
    assert "round 2: 1 node gone, 0 new, 0 made of something else" in text
    assert page.count('<tr class="changed">') == 2 and "nodes the same" in text
    line = text_node(other.nodes[-1], origin=False)
    assert f"<td>|</td><td>{html.escape(line)}</td>" in page


def test_written_in_one_step(parts: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    write(file, **parts["small"]())
    assert file.read_text(encoding="utf-8") == render(**parts["small"]())

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write(file, **parts["modules"](1))
    assert file.read_text(encoding="utf-8") == render(**parts["small"]())
    assert list(tmp_path.iterdir()) == [file]


def test_what_the_plan_makes_of_the_machine(parts: Build) -> None:
    """A figure for each timeline, with a curve of as many steps as there are figures; nothing where
    it is not known what kernels take, nor of a CPU."""
    given = parts["small"]()
    page = Reader(render(**given))
    curves = [
        value for tag, name, value in page.attributes if (tag, name) == ("polyline", "points")
    ]
    assert len(curves) == 2 * len(given["timelines"])
    for curve in curves:
        points = [tuple(map(float, point.split(","))) for point in curve.split()]
        assert len(points) == 2 * STEPS
        assert points[0][0] == 0 and points[-1][0] == 100
        assert all(0 <= y <= 100 for _, y in points) and any(y < 100 for _, y in points)
    assert "of multiprocessors" in page.text and "not from hardware counters" in page.text
    plan = given["plan"]
    unknown = [
        replace(task, kernel=replace(task.kernel, resources=None))
        for task in plan.tasks.tasks
        if task.kernel is not None
    ]
    blind = replace(plan, tasks=replace(plan.tasks, tasks=tuple(unknown)))
    cpu = replace(plan, spec=replace(plan.spec, kind="cpu"))
    for other in (blind, cpu):
        given["plan"] = other
        assert "of multiprocessors" not in render(**given)
