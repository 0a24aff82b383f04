from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.costs.recorded import Profile
from anabranch.targets import cuda
from anabranch.targets.cuda import callables


def test_without_a_gpu(
    cli: Callable[..., Any], simulated: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "available", lambda: False)
    ran = cli("doctor", "--json", "-")
    assert ran.status == 0
    found = {finding["name"]: finding for finding in ran.json["findings"]}
    assert found["torch"]["state"] == "ok"
    assert found["gpu"]["state"] == "absent"
    assert found["target sim:h200"] == {
        "state": "ok",
        "name": "target sim:h200",
        "detail": "NVIDIA H200",
    }
    assert ran.json["default_target"] == "cpu"
    assert "memory only" in found["cache"]["detail"]


def test_with_a_gpu_says_what_it_lacks(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {
        "gpu": "NVIDIA H200",
        "capability": "9.0",
        "sms": 132,
        "memory_bytes": 1 << 37,
        "cuda": "13.0",
        "cudnn": "91900",
        "driver": "580",
    }
    monkeypatch.setattr(cuda, "available", lambda: True)
    monkeypatch.setattr(callables, "survey", lambda: gpu)
    ran = cli("doctor")
    assert ran.status == 0
    assert "NVIDIA H200, compute capability 9.0, 132 SMs, 128 GiB" in ran.out
    assert "target cuda" in ran.out
