"""What a machine may say of itself: a profile is a file, and forecasts divide by its numbers.

    sms = 0                 "spec.sms is 0, and from 1 to 16384 are believed"
    bandwidth = inf         "spec.bandwidth is inf, and from 1.0 to 1e+18 are believed"

The limits are far beyond what there is, and near enough that no forecast runs out of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields

from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources

SizeLimits = tuple[float, float]
SIZES: dict[str, SizeLimits] = {
    **{"sms": (1, 1 << 14), "threads_per_sm": (1, 1 << 16), "registers_per_sm": (1, 1 << 24)},
    **{"shared_per_sm": (0, 1 << 30), "ctas_per_sm": (1, 1 << 12), "bandwidth": (1.0, 1e18)},
    **{"l2_bytes": (0, 1 << 50), "memory_bytes": (0, 1 << 60)},
    **{"launch_us": (0.0, 1e6), "fork_us": (0.0, 1e6)},
}
PEAK: SizeLimits = (1.0, 1e24)
VERSION: SizeLimits = (0, 1000)
CALIBRATED: SizeLimits = (0.0, 1e6)
SHARES = ("bandwidth", "arithmetic")
"""Of a calibration, what is divided by."""
TAKEN: SizeLimits = (0, 1 << 50)
LARGEST_NUMBER = 1e308
"""What can be told of a number: integers may be larger than floats."""
LONGEST_NAME = 300
"""Characters of a name."""


def disbelieved(spec: TargetSpec, taken: dict[str, Resources]) -> Refused | None:
    """The first number or name that no machine has, None if there is none. `taken`: what kernels
    take of the machine, by key."""
    for name, value, (low, high) in _numbers(spec, taken):
        if not low <= value <= high:
            told = (
                value
                if isinstance(value, float)
                else max(-LARGEST_NUMBER, min(value, LARGEST_NUMBER))
            )
            return Refused(f"{name} is {told:.6g}, and from {low:g} to {high:g} are believed")
    texts = (spec.kind, spec.name, *(text for pair in spec.versions for text in pair))
    if not all(text.isprintable() and len(text) <= LONGEST_NAME for text in texts):
        return Refused(
            f"a name in its spec has more than {LONGEST_NAME} characters, or some that do not print"
        )
    return None


def _numbers(
    spec: TargetSpec, taken: dict[str, Resources]
) -> Iterator[tuple[str, float, SizeLimits]]:
    for name, limits in SIZES.items():
        yield f"spec.{name}", getattr(spec, name), limits
    yield from (("spec.peak_flops", rate, PEAK) for _, rate in spec.peak_flops)
    yield from (("spec.capability", number, VERSION) for number in spec.capability)
    if spec.calibration is not None:
        for name, value in asdict(spec.calibration).items():
            if name != "origin":
                low = 1e-6 if name in SHARES else CALIBRATED[0]
                yield f"spec.calibration.{name}", value, (low, CALIBRATED[1])
    for name in (field.name for field in fields(Resources)):
        for resources in taken.values():  # thousands: `asdict` would copy each number
            yield f"kernels.resources.{name}", getattr(resources, name), TAKEN
