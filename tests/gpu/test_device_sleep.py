"""The kernel that waits."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.patience import patiently

from anabranch.targets.cuda.device_sleep import device_sleep

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.mark.parametrize("us", [0.0, 50.0, 3000.0])
def test_a_stream_waits_as_long_as_it_was_told(us: float) -> None:
    def check() -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        device_sleep(2000.0)  # the host is ahead
        begin.record()
        device_sleep(us)
        end.record()
        end.synchronize()
        assert us <= 1e3 * begin.elapsed_time(end) + 2 <= 1.1 * us + 25

    patiently(check)
