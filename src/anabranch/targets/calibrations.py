"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits. The record that
these numbers come from is in `benchmarks/results`, with the errors on networks that were held out.
GPUs of another generation have none, and are predicted by a rule of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(
        start_us=2.92,
        end_us=0.26,
        split_us=3.74,
        root_us=1.25,
        fork_us=0.26,
        launch_us=1.04,
        lane_us=1.33,
        short_us=3.04,
        release_us=0.23,
        dispatch_us=0.08,
        sharing=0.41,
        bandwidth=3.0,
        arithmetic=0.55,
        cold=4.0,
        hidden_us=0.75,
        origin="NVIDIA H200, fp16, batch 1, 2026-11-22",
    ),
}
