"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits. The record that
these numbers come from is in `benchmarks/results`, with the errors on networks that were held out.
GPUs of another generation have none, and are predicted by a rule of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(
        start_us=2.93,
        split_us=6.14,
        root_us=1.13,
        fork_us=0.29,
        launch_us=0.85,
        lane_us=1.18,
        short_us=1.65,
        release_us=0.14,
        dispatch_us=0.0,
        sharing=0.42,
        bandwidth=3.0,
        arithmetic=0.31,
        cold=2.42,
        origin="NVIDIA H200, fp16, batch 1, 2026-11-21",
    ),
}
