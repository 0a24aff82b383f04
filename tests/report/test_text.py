"""The plain text: a golden, and the limits that hold for every network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from anabranch.report.parts import Parts
from anabranch.report.text import explain

Build = Mapping[str, Callable[..., Parts]]


def test_golden(parts: Build, golden: Callable[[str, str], None]) -> None:
    golden("report/explain_small.txt", explain(**parts["small"]()))


@pytest.mark.parametrize(("network", "size"), [("small", None), ("modules", 7), ("cells", 50)])
def test_a_hundred_lines_of_a_hundred_columns(parts: Build, network: str, size: int | None) -> None:
    text = explain(**parts[network](*([] if size is None else [size])))
    assert 30 < text.count("\n") <= 100
    assert max(map(len, text.splitlines())) <= 100


def test_little_is_enough(parts: Build) -> None:
    given = parts["small"]()
    bare: Parts = {
        **given,
        "candidates": {},
        "schedules": [],
        "timelines": [],
        "events": [],
        "facts": {},
    }
    text = explain(**bare)
    assert text.startswith("small on NVIDIA H200, f16[1,32,56,56]\n  6 tasks (6 kernels) on ")
    assert "Fused: " in text
    assert "Schedules" not in text


def test_names_with_line_breaks_stay_in_their_line(parts: Build) -> None:
    names = ("a\nb", "c\x1b[31m", "d" * 300)
    text = explain(**parts["chain"](names))
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
