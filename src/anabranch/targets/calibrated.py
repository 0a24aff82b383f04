"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits. The record that
these numbers come from is in `benchmarks/results`, with the errors on networks that were held out.
GPUs of another generation have none, and are predicted by a rule of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(
        start_us=2.38,
        split_us=4.74,
        root_us=1.4,
        fork_us=0.33,
        launch_us=0.54,
        lane_us=1.32,
        short_us=1.68,
        dispatch_us=0.3,
        sharing=0.34,
        bandwidth=3.0,
        arithmetic=0.27,
        cold=2.53,
        origin="NVIDIA H200, fp16, batch 1, 2026-11-21",
    ),
}
