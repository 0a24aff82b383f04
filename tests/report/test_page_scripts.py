"""The page in Chromium: drawn, laid out, clicked and typed at, in every width, light and dark."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser, Tab
from tests.report.conftest import HOSTILE, tiled

from anabranch.report.page import write
from anabranch.report.parts import ReportParts

pytestmark = pytest.mark.xdist_group("browser")

Build = Mapping[str, Callable[..., ReportParts]]
Open = Callable[..., Tab]
WIDTHS = (390, 1024, 1440)
LONG = "contraction:128x256x64.k4.w8.s4.l2.pa.pe.c50"
LAYERS = [f"e.{i}.{name}" for i in range(12) for name in ("attention", "mlp")]
NO_ERROR = "document.documentElement.dataset.error === undefined"


def renamed(given: ReportParts, variant: str) -> ReportParts:
    """The parts with a generated kernel of a long name for each task, chosen from its others."""
    tasks = given["plan"].tasks
    long = tuple(
        replace(task, kernel=replace(task.kernel, provider="triton.contraction", variant=variant))
        for task in tasks.tasks
        if task.kernel
    )
    return {**given, "plan": replace(given["plan"], tasks=replace(tasks, tasks=long))}


@pytest.fixture(scope="session")
def pages(parts: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "modules": renamed(parts["modules"](7), LONG),
        "small": tiled(parts["small"]()),
        "hostile": parts["chain"](HOSTILE),
        "cells": parts["cells"](50),
        "layers": parts["chain"](LAYERS),
    }
    for name, given in made.items():
        write(folder / f"{name}.html", **given)
    return folder


@pytest.fixture
def open(browser: Browser, pages: Path) -> Iterator[Open]:
    tabs: list[Tab] = []

    def opened(name: str, *args: Any, **kwargs: Any) -> Tab:
        tabs.append(browser.open(pages / f"{name}.html", *args, **kwargs))
        assert tabs[-1].value(NO_ERROR), tabs[-1].value("document.documentElement.dataset.error")
        return tabs[-1]

    yield opened
    for tab in tabs:
        assert tab.value(NO_ERROR), tab.value("document.documentElement.dataset.error")
        tab.close()


def rows_of(tab: Tab) -> list[str]:
    found: list[str] = tab.value(
        "[...document.querySelectorAll('#tasks-table tbody[data-task]')]"
        ".map((body) => body.dataset.task)"
    )
    return found


def shown(tab: Tab) -> list[str]:
    """The tasks of rows that no filter hides."""
    found: list[str] = tab.value(
        "[...document.querySelectorAll('#tasks-table tbody[data-task]:not(.hidden)')]"
        ".map((body) => body.dataset.task)"
    )
    return found


def in_window(tab: Tab, selector: str) -> bool:
    box = tab.box(selector)
    size = tab.value("[innerWidth, innerHeight]")
    across = box["left"] >= 0 and box["right"] <= size[0]
    return bool(across and box["top"] >= 0 and box["bottom"] <= size[1])


def opened_rows(tab: Tab) -> list[str]:
    found: list[str] = tab.value(
        "[...document.querySelectorAll('#tasks-table .detail')].filter((row) => !row.hidden)"
        ".map((row) => row.parentNode.dataset.task)"
    )
    return found


@pytest.mark.parametrize("name", ["modules", "cells"])
def test_everything_is_drawn(parts: Build, open: Open, name: str) -> None:
    given = {"modules": parts["modules"], "cells": parts["cells"]}[name](
        {"modules": 7, "cells": 50}[name]
    )
    tab = open(name)
    assert rows_of(tab) == [launch.task for launch in given["plan"].schedule.launches]
    for drawing in ("#timeline-surface canvas", "#graph-surface canvas", "#graph-map"):
        drawn = (
            f"new Set(new Uint32Array(document.querySelector('{drawing}').getContext('2d')"
            ".getImageData(0, 0, 80, 300).data.buffer)).size > 2"
        )
        assert tab.value(drawn), drawing
    assert tab.value("document.querySelectorAll('#memory-drawing rect.held').length") > 10


def test_hostile_names_are_texts(open: Open) -> None:
    tab = open("hostile")
    assert tab.value("document.documentElement.dataset.owned === undefined")
    assert rows_of(tab) == [name.replace("\ud800", "?") for name in HOSTILE]
    for i, name in enumerate(rows_of(tab)):
        tab.value(f"location.hash = '#task=' + encodeURIComponent({json.dumps(name)})")
        tab.settle()
        assert tab.value("selected") == i
    assert tab.value("document.documentElement.dataset.owned === undefined")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_and_nothing_overlaps(open: Open, width: int, dark: bool) -> None:
    tab = open("modules", "#task=mixed_1.cat", width=width, dark=dark)
    assert tab.value("document.documentElement.scrollWidth") == width
    assert in_window(tab, "#inspector")
    boxes = tab.value(
        "[...document.querySelectorAll('#inspector .facts > div, #inspector .group, "
        "#inspector .close')].map((part) => part.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 6
    tall = tab.value("[...document.querySelectorAll('#inspector b')].map((b) => b.offsetHeight)")
    assert max(tall) <= 60, "a name has three lines at most"
    for a, b in combinations(boxes, 2):
        apart_x = a["right"] <= b["left"] + 0.5 or b["right"] <= a["left"] + 0.5
        assert apart_x or a["bottom"] <= b["top"] + 0.5 or b["bottom"] <= a["top"] + 0.5
    cut = tab.value(
        "[...document.querySelectorAll('#inspector b, #inspector .group, #inspector button, "
        "tr.task > td, .tried td, .versus span, .made dd')].filter((part) => part.offsetWidth && "
        "part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== 'inline')"
        ".map((part) => part.outerHTML.slice(0, 200))"
    )
    assert cut == []
    detail, tried = tab.box("tr.detail > td"), tab.box(".tried")
    assert detail["left"] <= tried["left"] and tried["right"] <= detail["right"] - 8
    assert LONG in tab.value("document.querySelector('tr.task .col-kernel').innerText")
    # What every candidate lost by has room for several words in a line.
    why = tab.value(
        "[...document.querySelectorAll('.tried td.why')].filter((cell) => cell.innerText)"
        ".map((cell) => [cell.offsetWidth, cell.innerText])"
    )
    assert why and all(wide >= min(160, 5 * len(text)) for wide, text in why), why


@pytest.mark.parametrize("name", ["modules", "small"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_of_a_table_is_broken(open: Open, name: str, width: int) -> None:
    """A word of at most twelve letters stands in one line, whatever else its row holds."""
    tab = open(name, width=width)
    broken, seen = tab.value(BROKEN_WORDS)
    assert seen > 20 and broken == []


BROKEN_WORDS = """(() => {
  const broken = []; let seen = 0;
  for (const cell of document.querySelectorAll('.plain td, .plain th')) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/\\w{2,12}/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (range.getClientRects().length > 1) broken.push(word[0]);
      seen += 1;
    }
  }
  return [broken, seen];
})()"""
"""The words in tables that lie in several lines, and how many there are in all."""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_map_stands_beside_the_streams(open: Open, width: int) -> None:
    tab = open("modules", width=width)
    graph, chart = tab.box("#graph-surface"), tab.box("#graph-map")
    assert chart["width"] == 0 if width < 700 else chart["left"] >= graph["right"]
    before = tab.value("document.getElementById('graph-surface').scrollTop")
    if width > 700:
        tab.value("document.getElementById('graph-map').scrollIntoView({block: 'center'})")
        box = tab.box("#graph-map")
        tab.point(box["x"] + 30, box["y"] + 0.8 * box["height"])
        assert tab.value("document.getElementById('graph-surface').scrollTop") > before


def test_a_link_to_a_task_scrolls_and_opens_it_whenever_it_comes(open: Open) -> None:
    tab = open("modules", "#task=mixed_1.cat")
    assert opened_rows(tab) == ["mixed_1.cat"]
    assert in_window(tab, "[data-task='mixed_1.cat'] tr.task")
    assert tab.value("document.querySelectorAll('#memory-drawing .selected').length") == 1
    tab.value("location.hash = '#task=mixed_5.cat'")
    tab.settle()
    assert opened_rows(tab) == ["mixed_1.cat", "mixed_5.cat"]
    assert in_window(tab, "[data-task='mixed_5.cat'] tr.task")
    assert tab.value("tasks[selected].name") == "mixed_5.cat"
    for odd in ("#task=no such task", "#task=%E0%A4%A", "#timeline", "#task="):
        tab.value(f"location.hash = {json.dumps(odd)}")
        tab.settle()
        assert tab.value("tasks[selected].name") == "mixed_5.cat"


def test_a_click_on_a_row_opens_and_closes_it(open: Open) -> None:
    tab = open("small")
    tab.click("[data-task=stem] td.col-kernel")
    assert opened_rows(tab) == ["stem"] and tab.value("tasks[selected].name") == "stem"
    tab.click("[data-task=stem] td.open button")
    assert opened_rows(tab) == []
    tab.click("[data-task=stem] td.col-us")
    reasons = tab.value("[...document.querySelectorAll('.tried .why')].map((c) => c.innerText)")
    assert "100% slower than the chosen one" in reasons
    assert tab.value("document.querySelector('.tried .why.refused').innerText") in reasons
    limits = tab.value("[...document.querySelectorAll('.tried .limit[title]')].map((c) => c.title)")
    assert any(re.match(r"at most [0-9.]+% of peak: memory [0-9.]+, shared", t) for t in limits)
    tab.click("[data-task=stem] .detail .facts button")
    assert opened_rows(tab) == ["stem", tab.value("tasks[selected].name")]
    assert tab.value("selected") in tab.value("readers[position.get('stem')]")


def test_the_keyboard_reaches_what_the_pointer_reaches(open: Open) -> None:
    tab = open("small")
    tab.value("document.querySelector('#tasks-tools input').focus()")
    tab.type("ste")
    assert shown(tab) == ["stem"]
    tab.press("j")
    assert tab.value("selected") == -1, "a key that is typed into a field selects nothing"
    tab.value("document.querySelector('#tasks-tools input').select()")
    tab.type("stem")
    while tab.value("document.activeElement.closest('tbody') === null"):
        tab.press("Tab")
    tab.press("Enter")
    assert opened_rows(tab) == ["stem"]
    assert tab.value("document.activeElement.getAttribute('aria-expanded')") == "true"
    tab.press("Escape")
    assert tab.value("selected") == -1 and tab.value("document.getElementById('inspector').hidden")
    for key, task in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
        tab.press(key)
        assert tab.value("selected") == task
    outlined = "getComputedStyle(document.activeElement).outlineStyle"
    tab.press("Tab")
    assert tab.value(outlined) == "solid"


def test_one_module_at_a_time(parts: Build, open: Open) -> None:
    given = parts["modules"](7)
    names = [launch.task for launch in given["plan"].schedule.launches]
    tab = open("modules")
    assert shown(tab) == names
    tab.click(".modules a")
    path = tab.value("document.querySelector('.modules a').innerText")
    inner = [name for name in names if name == path or name.startswith(f"{path}.")]
    assert shown(tab) == inner and 0 < len(inner) < len(names)
    assert tab.value("document.querySelector('#tasks-tools select').value") == path
    assert tab.value("document.querySelector('#tasks-tools output').innerText").startswith(
        f"{len(inner)} of {len(names)} tasks"
    )
    tab.value(
        "(() => { const pick = document.querySelector('#tasks-tools select');"
        "pick.value = 'mixed_1'; pick.dispatchEvent(new Event('change')); })()"
    )
    assert shown(tab) == [name for name in names if name.startswith("mixed_1.")]
    tab.value("location.hash = '#task=pool'")
    tab.settle()
    assert shown(tab) == names, "what a link asks for is not left hidden"


def test_all_layers_of_a_list_at_once(open: Open) -> None:
    tab = open("layers")
    links = tab.value("[...document.querySelectorAll('.modules a')].map((a) => a.innerText)")
    assert sorted(links) == ["e.*.attention", "e.*.mlp"]
    tab.value("location.hash = '#module=e.*.mlp'")
    tab.settle()
    assert shown(tab) == [f"e.{i}.mlp" for i in range(12)]
    assert tab.value("document.querySelector('#tasks-tools select').value") == "e.*.mlp"
    tab.value("location.hash = '#module=e.1'")
    tab.settle()
    assert shown(tab) == ["e.1.attention", "e.1.mlp"], "e.10 and e.11 are other modules"


def test_the_trace_is_what_the_timelines_are(parts: Build, open: Open, tmp_path: Path) -> None:
    given = parts["modules"](7)
    tab = open("modules")
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    tab.browser.ask("Browser.setDownloadBehavior", **behaviour)
    tab.click("#timeline-tools .download")
    file = tmp_path / "inception.trace.json"
    end = time.monotonic() + 20
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.02)
    events = json.loads(file.read_text())["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for k, (name, timeline) in enumerate(given["timelines"], 1):
        assert named[k] == f"{name} ({timeline.source})"
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == k]
        spans = [(s.task, s.stream, s.start, s.end - s.start) for s in timeline.spans]
        assert [e["name"] for e in slices] == [task for task, *_ in spans]
        for event, (_, stream, start, took) in zip(slices, spans, strict=True):
            assert event["tid"] == stream
            assert (event["ts"], event["dur"]) == pytest.approx((start, took), abs=2e-3)
        waits = [(w, x.task) for x in given["plan"].schedule.launches for w in x.waits]
        arrows = {e["id"]: e for e in events if e["ph"] == "f" and e["pid"] == k}
        begun = {e["id"]: e for e in events if e["ph"] == "s" and e["pid"] == k}
        assert len(waits) == len(arrows) > 0 and arrows.keys() == begun.keys()
        by_stream: dict[int, list[dict[str, Any]]] = {}
        for event in slices:
            by_stream.setdefault(event["tid"], []).append(event)
        for of in by_stream.values():
            assert all(a["ts"] + a["dur"] <= b["ts"] + 2e-3 for a, b in pairwise(of))
        for ends in (arrows, begun):  # each inside a slice, which the viewer ties it to
            for e in ends.values():
                within = (s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in by_stream[e["tid"]])
                assert any(within)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_stand_out_from_what_they_stand_on(open: Open, dark: bool) -> None:
    """As WCAG 2 asks: 4.5 for text, 3 for what is drawn."""
    tab = open("small", dark=dark)
    names = tab.value("Object.keys(paint)")
    grounds = [n for n in ("paper", "surface", "sunk", "faint", "accent-soft") if n in names]
    light = {name: luminance(tab.value(f"paint[{json.dumps(name)}]")) for name in names[:-2]}
    for text in ("ink", "soft", "dim", "accent"):
        for ground in grounds:
            assert contrast(light[text], light[ground]) >= 4.5, (text, ground)
    for kind in ("contract", "pointwise", "reduce", "move", "opaque"):
        pale = kind in ("pointwise", "reduce")
        assert contrast(light[kind], light["surface"]) >= 3, kind
        assert contrast(light[kind], light["on-pale" if pale else "on-kind"]) >= 4.5, kind


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_keyboard_reaches_all_that_scrolls(open: Open, width: int) -> None:
    tab = open("modules", "#task=mixed_1.cat", width=width)
    tab.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    out_of_reach = tab.value(
        "[...document.querySelectorAll('main *')].filter((part) => "
        "/auto|scroll/.test(getComputedStyle(part).overflow) && part.tabIndex < 0 && "
        "(part.scrollHeight > part.clientHeight + 1 || part.scrollWidth > part.clientWidth + 1) && "
        "!part.querySelector('button, a, input, select, summary, [tabindex]'))"
        ".map((part) => part.outerHTML.slice(0, 80))"
    )
    assert out_of_reach == []


def test_headings_go_one_level_at_a_time_and_columns_have_names(open: Open) -> None:
    tab = open("modules", "#task=mixed_1.cat")
    levels = tab.value(
        "[...document.querySelectorAll('h1, h2, h3, h4, h5')].map((part) => +part.tagName[1])"
    )
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    heads = "[...document.querySelectorAll('th')].filter((head) => !head.innerText.trim())"
    assert tab.value(f"{heads}.map((head) => head.outerHTML)") == []


@pytest.mark.parametrize("still", [True, False])
def test_nothing_moves_for_who_wants_no_motion(open: Open, still: bool) -> None:
    tab = open("small", still=still)
    wanted = "auto" if still else "smooth"
    assert tab.value("getComputedStyle(document.documentElement).scrollBehavior") == wanted
