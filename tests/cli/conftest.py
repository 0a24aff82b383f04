"""A command line run in this process: its exit status, what it wrote; models that cost little."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli import main
from anabranch.costs.recorded import Profile, save_profile
from anabranch.ir.target import TargetSpec
from anabranch.targets.sim import target as sim

MODEL = """
import torch

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = torch.relu(self.a(x))
        return torch.cat([self.b(x), torch.sigmoid(self.c(x))], 1)

def build():
    return Two(), (torch.randn(4, 8),)

def bare():
    return Two()

def wrong():
    return 3

def broken():
    raise RuntimeError("no weights here")
"""


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")

    def run(*words: str | Path) -> Ran:
        capsys.readouterr()
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def model(tmp_path: Path) -> str:
    """FILE.py:callable of a network of three linear layers, two of them side by side."""
    path = tmp_path / "two.py"
    path.write_text(MODEL)
    return f"{path}:build"


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A profile of an H200 that has recorded nothing: all its times are estimates."""
    profile = Profile(spec=TargetSpec("cuda", "NVIDIA H200", sms=132, bandwidth=4e12))
    folder = tmp_path / "profiles"
    folder.mkdir()
    save_profile(profile, folder / "h200.json")
    monkeypatch.setattr(sim, "PROFILES", folder)
    return profile
