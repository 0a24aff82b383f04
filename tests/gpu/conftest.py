"""What every test of the GPU leaves as it was: a benchmark in the process of the tests sets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.targets import tf32


@pytest.fixture(autouse=True)
def precision_stays() -> Iterator[None]:
    with tf32.kept():
        yield
