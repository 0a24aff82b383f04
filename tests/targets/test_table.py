"""Targets by name, on machines with GPUs that are made up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anabranch.errors import OptionError, TargetError
from anabranch.targets import resolve, table
from anabranch.targets.cuda import target


class Gpu:
    def __init__(self, device: torch.device, tf32: bool) -> None:
        self.device, self.tf32 = device, tf32


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "available", lambda: True)
    monkeypatch.setattr(target, "CudaTarget", Gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.usefixtures("two_gpus")
def test_gpus_have_numbers() -> None:
    found: list[Any] = [resolve(name, True) for name in ("cuda:0", "cuda:1", "cuda", "auto")]
    assert [one.device.index for one in found[:2]] == [0, 1]
    assert all(one.tf32 for one in found[:2])
    with pytest.raises(TargetError, match="there is no GPU cuda:2") as refused:
        resolve("cuda:2")
    assert "torch sees 2" in str(refused.value)
    assert found[2].device.index == found[3].device.index == 1


@pytest.mark.parametrize("name", ["cuda:x", "cuda:-1", "cuda:", "CUDA:0", "cuda:1 "])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="unknown target"):
        resolve(name)


@pytest.mark.parametrize("name", [None, torch.device("cpu"), 3])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(OptionError, match=f"the target is a {type(name).__name__}"):
        resolve(name)


def test_without_a_gpu_none_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "available", lambda: False)
    with pytest.raises(TargetError, match="target 'cuda:1' needs a CUDA GPU"):
        resolve("cuda:1")


@pytest.mark.usefixtures("two_gpus")
def test_not_while_a_graph_is_captured_nor_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(TargetError, match="while a CUDA graph is captured"):
            resolve("cuda")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(TargetError, match="forked process"):
        resolve("cuda:0")
