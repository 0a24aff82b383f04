"""Two processes that time on one GPU: each measures itself alone. The other one's kernels sleep, so
they take the GPU and none of its power."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.gpu.patience import patiently

from anabranch.costs.samples import summarised
from anabranch.targets.cuda import timing
from anabranch.targets.cuda.callables import capture_callable

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

OTHER = """
import time, torch
from anabranch.targets.cuda import timing
from anabranch.targets.cuda.device_sleep import device_sleep
print("ready", flush=True)
until = time.monotonic() + 8
while time.monotonic() < until:
    timing.interleaved([lambda: device_sleep(280.0)], 0.5)
"""


@pytest.mark.parametrize("of", [256, 2048])
def test_a_process_that_times_at_the_same_time_is_not_seen(of: int) -> None:
    x = torch.randn(of, of, device="cuda", dtype=torch.float16)
    replay, _ = capture_callable(lambda: x @ x)

    def unseen() -> None:
        alone = summarised(timing.interleaved([replay], 0.3)[0]).us
        with subprocess.Popen([sys.executable, "-c", OTHER], stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None and other.stdout.readline() == b"ready\n"
                beside = summarised(timing.interleaved([replay], 0.3)[0]).us
            finally:
                other.kill()
        assert beside == pytest.approx(alone, rel=0.1)

    patiently(unseen)
