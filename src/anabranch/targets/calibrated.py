"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits. The record that
these numbers come from is in `benchmarks/results`, with the errors on networks that were held out.
GPUs of another generation have none, and are predicted by a rule of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(
        start_us=2.25,
        split_us=5.97,
        root_us=1.28,
        fork_us=0.34,
        launch_us=0.54,
        lane_us=1.96,
        short_us=2.37,
        dispatch_us=0.27,
        sharing=0.26,
        bandwidth=1.61,
        arithmetic=0.6,
        cold=2.47,
        origin="NVIDIA H200, fp16, batch 1, 2026-11-21",
    ),
}
