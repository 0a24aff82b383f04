"""Machines and calibrations: texts that read back, with what takes no part in equality."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.ir.calibration import Calibration
from anabranch.ir.target import TargetSpec
from anabranch.ir.target_text import (
    parse_calibration,
    parse_target,
    text_calibration,
    text_target,
)

H200 = TargetSpec(
    "cuda", "NVIDIA 'H200'", 132, (9, 0), (("f16", 1e15),), 4.8e12, 1, 2, tf32=True, simulated=True
)
CALIBRATION = Calibration(fork_us=0.26, bandwidth=3.0, cold=2.27, origin='an "H200"')


@pytest.mark.parametrize(
    "spec", [H200, replace(H200, calibration=CALIBRATION), TargetSpec("cpu", "a host")]
)
def test_a_machine_reads_back(spec: TargetSpec) -> None:
    read = parse_target(text_target(spec))
    assert read == spec and read.fingerprint == spec.fingerprint
    assert (read.simulated, read.calibration) == (spec.simulated, spec.calibration)


def test_a_calibration_reads_back() -> None:
    for calibration in (CALIBRATION, Calibration()):
        assert parse_calibration(text_calibration(calibration)) == calibration


@pytest.mark.parametrize(
    "text",
    [
        "",
        "target 'x' {\n}",
        "target 'x' {\n  kind = 'cpu'\n",
        "target 'x' {\n  kind = 'cpu'\n  cores = 3\n}",
        "target 'x' {\n  kind = [\n}",
        "target 'x' {\n  kind = open('x')\n}",
        "target 'x' {\n  kind = 'cpu'\n  calibration {\n    forks = 1\n  }\n}",
    ],
)
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_target(text)
