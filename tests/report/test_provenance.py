"""How a report came to be, as far as its facts say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from anabranch.report.parts import ReportParts
from anabranch.report.provenance import provenance

Build = Mapping[str, Callable[..., ReportParts]]
FACTS = {
    "compiled_at": "2026-11-26T07:19:30+01:00",
    "command": "anabranch compile net.py:build",
    "options": {"budget": 60.0, "scheduler": "ios"},
    "made_with": {"anabranch": "0.1.0", "torch": "2.9"},
    "versions": {"torch": "2.11", "cuda": "13.0"},
}


def test_date_command_options_and_versions(parts: Build) -> None:
    assert provenance({**parts["small"](), "facts": FACTS}) == [
        ("compiled", "26 November 2026, 06:19 UTC"),
        ("command", "anabranch compile net.py:build"),
        ("options", "budget = 60.0, scheduler = ios"),
        ("versions", "anabranch 0.1.0, torch 2.9"),
        ("device", "torch 2.11, cuda 13.0"),
    ]


def test_a_recorded_machine_is_told_from_this_one(parts: Build) -> None:
    given = parts["small"]()
    plan = replace(given["plan"], spec=replace(given["plan"].spec, simulated=True))
    lines = dict(provenance({**given, "plan": plan, "facts": FACTS}))
    assert lines["versions"] == "anabranch 0.1.0, torch 2.9"
    assert lines["recorded"].startswith("torch 2.11, cuda 13.0, on the machine")
    assert "device" not in lines


@pytest.mark.parametrize("odd", [None, 7, "yesterday", [], {"a": 1}])
def test_what_is_not_known_leaves_its_line_out(parts: Build, odd: object) -> None:
    given = parts["small"]()
    facts = dict.fromkeys(("compiled_at", "made_with", "versions"), odd)
    lines = dict(provenance({**given, "facts": facts}))
    assert "compiled" not in lines and "command" not in lines and "options" not in lines
    assert dict(provenance({**given, "facts": {"options": {}}}))["options"] == "the default ones"
