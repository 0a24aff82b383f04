from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.ir.dag import dag_of
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.memory import pack
from anabranch.memory.guard_bytes import FENCE, fence
from anabranch.memory.race_check import check_plan
from anabranch.targets.cpu import target as cpu
from anabranch.targets.loading import LaunchCall, run_aten
from anabranch.tuning.verify.kernel import verify_kernel

BODY = """\
graph add {
  input %x: f32[100]
  %out: f32[100] = aten.neg.default(%x)
  return %out
}
"""


def test_every_place_has_bytes_of_its_own(networks: Any) -> None:
    tasks = networks.tasks([("a", ["x"], 1024), ("b", ["a"], 100), ("c", ["b"], 1024)], ["c"])
    tasks = replace(
        tasks,
        tasks=tuple(
            replace(t, kernel=Kernel("aten", "aten", t.body, writes_out=True, workspace=300))
            for t in tasks.tasks
        ),
    )
    plan = pack(tasks, Schedule("one", sequential_launches(dag_of(tasks))), networks.spec)
    fenced = fence(plan)
    check_plan(fenced)
    places = sorted(
        [(slot.offset, slot.nbytes) for slot in fenced.slots if slot.space == "arena"]
        + [(item.offset, item.nbytes) for item in fenced.workspaces]
    )
    assert len(places) == 6
    end = 0
    for offset, nbytes in places:
        assert offset >= end + FENCE
        end = offset + nbytes
    assert fenced.arena_bytes >= end + FENCE


@pytest.mark.parametrize(
    ("at", "verdict"),
    [
        (None, ""),
        (-1, "1 bytes are written outside all places, 1 B beside %out"),
        (400, "1 bytes are written outside all places, 1 B beside %out"),
        (900, "1 bytes are written outside all places, 1 B beside the workspace of add"),
    ],
)
def test_a_kernel_that_writes_beside_its_place_is_refused(
    at: int | None, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results are right; one byte is not its own."""

    def careless(task: Task, values: dict[str, torch.Tensor], workspace: Any) -> LaunchCall:
        right = run_aten(task, values, workspace)

        def call() -> None:
            right()
            if at == 900:
                storage = torch.empty(0, dtype=torch.uint8).set_(workspace.untyped_storage())
                storage[workspace.storage_offset() + workspace.numel()] = 0
            elif at is not None:
                out = values["out"]
                storage = torch.empty(0, dtype=torch.uint8).set_(out.untyped_storage())
                storage[4 * out.storage_offset() + at] = 0

        return call

    monkeypatch.setitem(cpu.RUNNERS, "careless", careless)
    body = parse_graph(BODY)
    kernel = Kernel("careless", "add", body, writes_out=True, workspace=300)
    found = verify_kernel(Task("add", body, kernel), cpu.CpuTarget(), None)
    assert str(found or "") == verdict
