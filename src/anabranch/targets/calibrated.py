"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits. The record that
these numbers come from is in `benchmarks/results`, with the errors on networks that were held out.
GPUs of another generation have none, and are predicted by a rule of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(
        start_us=3.13,
        end_us=0.27,
        split_us=3.83,
        root_us=1.28,
        fork_us=0.25,
        launch_us=0.81,
        lane_us=2.76,
        short_us=3.02,
        release_us=0.31,
        dispatch_us=0.0,
        sharing=0.3,
        bandwidth=3.0,
        arithmetic=0.36,
        cold=2.28,
        origin="NVIDIA H200, fp16, batch 1, 2026-11-22",
    ),
}
