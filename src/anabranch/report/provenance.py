"""How a report came to be: ReportParts -> when, by which command, with which options and versions.

compiled   26 November 2026, 06:19 UTC
command    anabranch compile zoo:inception_v3 --target sim:h200 --report report.html
options    budget = 60.0
versions   anabranch 0.1.0, python 3.11.7, torch 2.10.0
recorded   torch 2.11.0, cuda 13.0, on the machine that the profile is of

Facts that are absent leave their line out; options that are none say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from anabranch.report.parts import ReportParts


def provenance(parts: ReportParts) -> list[tuple[str, str]]:
    """Labels and what stands beside them."""
    facts, spec = parts["facts"], parts["plan"].spec
    there = _listed(facts.get("versions") or dict(spec.versions))
    profile = f"{there}, on the machine that the profile is of" if there else ""
    lines = [
        ("compiled", _moment(facts.get("compiled_at"))),
        ("command", str(facts.get("command") or "")),
        ("options", _options(facts.get("options"))),
        ("versions", _listed(facts.get("made_with"))),
        ("recorded", profile) if spec.simulated else ("device", there),
    ]
    return [(label, text) for label, text in lines if text]


def _moment(value: Any) -> str:
    """A time of ISO 8601 in words, in UTC; "" for what is none."""
    with suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(value).astimezone(UTC)
        return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
    return ""


def _options(options: Any) -> str:
    if not isinstance(options, Mapping):
        return ""
    return ", ".join(f"{name} = {value}" for name, value in options.items()) or "the default ones"


def _listed(versions: Any) -> str:
    if not isinstance(versions, Mapping):
        return ""
    return ", ".join(f"{name} {value}" for name, value in versions.items())
