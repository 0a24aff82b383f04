from __future__ import annotations

import pytest

from anabranch.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (999.9, "1,000"), (12.345, "12.3"), (-4.2, "-4.20"), (float("inf"), "inf")],
)
def test_three_digits_that_matter(value: float, text: str) -> None:
    assert units.significant(value) == text


def test_sizes_change_their_unit_in_time() -> None:
    assert units.size(1023) == "1,023 B"
    assert units.size(1024) == "1.00 KiB"
    assert units.size(5 * 1024**3) == "5.00 GiB"
