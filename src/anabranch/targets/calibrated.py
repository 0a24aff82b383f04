"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits. The record that
these numbers come from is in `benchmarks/results`, with the errors on networks that were held out.
GPUs of another generation have none, and are predicted by a rule of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(
        start_us=2.31,
        split_us=5.98,
        root_us=1.18,
        fork_us=0.34,
        launch_us=0.58,
        lane_us=1.38,
        short_us=2.38,
        dispatch_us=0.27,
        sharing=0.37,
        bandwidth=2.23,
        arithmetic=0.6,
        cold=2.56,
        origin="NVIDIA H200, fp16, batch 1, 2026-11-21",
    ),
}
