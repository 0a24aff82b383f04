"""Small hand-written programs, kernels that name them, and a driver that only takes notes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anabranch.errors import TargetError
from anabranch.ir.graph import Graph
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton import Program
from anabranch.targets.cuda.driver import LaunchConfig

ADD = """\
import triton
import triton.language as tl


@triton.jit
def add(x, y, out):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    inside = i < 5000
    tl.store(out + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)
"""
UNDESCRIBED = "contraction:64x32x32.k1.w4.s2"
BROKEN = ADD.replace("inside = i < 5000", "inside = i < nowhere")
BODY = """\
graph add {
  input %x: f16[5000]
  input %y: f16[5000]
  %out: f16[5000] = aten.add.Tensor(%x, %y)
  return %out
}
"""
PROGRAM = Program(
    text=ADD,
    entry="add",
    pointers=("x", "y", "out"),
    dtypes=(torch.float16,) * 3,
    grid=(5, 1, 1),
)
PROGRAMS = {
    "plain": PROGRAM,
    "pdl": replace(PROGRAM, pdl=True),
    "broken": replace(PROGRAM, text=BROKEN),
    "short": replace(PROGRAM, pointers=("x", "out"), dtypes=(torch.float16,) * 2),
    "scratch": replace(
        PROGRAM,
        text=ADD.replace("add(x, y, out)", "add(x, y, out, scratch, counters)"),
        scratch=4096,
        counters=8,
    ),
    f"{UNDESCRIBED}.g3": replace(PROGRAM, described=(0,)),
    UNDESCRIBED: replace(PROGRAM, text=ADD.replace("def add(", "def plain("), entry="plain"),
}


def write(body: Graph, variant: Variant | str) -> Program:
    """A writer of these programs."""
    if str(variant) not in PROGRAMS:
        raise TargetError(f"no variant {variant}", "this writer has few", "ask for another")
    return PROGRAMS[str(variant)]


def kernel(variant: str, source: str | None = None) -> Kernel:
    text = PROGRAMS[variant].text if source is None else source
    return Kernel("triton", "add", parse_graph(BODY), variant, writes_out=True, source=text)


def task(variant: str) -> Task:
    return Task("add", parse_graph(BODY), kernel(variant))


def values(shift: int = 0) -> dict[str, torch.Tensor]:
    """Real tensors; %x begins `shift` elements after a multiple of 16 bytes."""
    return {"x": placed(shift), "y": placed(0), "out": placed(0)}


def placed(shift: int) -> torch.Tensor:
    whole = torch.zeros(5000 + 16, dtype=torch.float16)
    start = (-whole.data_ptr() // 2) % 8 + shift
    return whole[start : start + 5000]


@dataclass
class NotedLaunch:
    function: str
    launch: LaunchConfig
    stream: int
    addresses: tuple[int, ...]


@dataclass
class FakeDriver:
    """Loads anything, launches nothing, remembers all."""

    loaded: list[str] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    launches: list[NotedLaunch] = field(default_factory=list)

    def version(self) -> int:
        return 12080

    def load(self, code: bytes, entry: str) -> Any:
        assert code[:4] == b"\x7fELF"
        self.loaded.append(entry)
        return f"{entry} {len(self.loaded)}"

    def attribute(self, function: Any, name: str) -> int:
        return {"shared": 16, "local": 0, "registers": 30, "most_shared": 0}[name]

    def set(self, function: Any, name: str, value: int) -> None:
        assert name == "most_shared"
        self.shared.append(value)

    def launch(
        self, function: Any, launch: LaunchConfig, stream: int, addresses: Sequence[int]
    ) -> None:
        self.launches.append(NotedLaunch(function, launch, stream, tuple(addresses)))


@pytest.fixture
def made() -> Any:
    return SimpleNamespace(kernel=kernel, task=task, values=values, write=write, programs=PROGRAMS)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def gpu_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of a GPU that is not there begin, in a directory of this test's own."""
    gpu = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"anabranch-{os.getuid()}"
    folder.mkdir(mode=0o700)
    return folder / "GPU-1234"
