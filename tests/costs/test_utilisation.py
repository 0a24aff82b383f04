"""Active warps and SM efficiency of kernels whose times are given, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anabranch.costs.utilisation import STEPS, utilisation
from anabranch.ir.protocols import KernelSpan
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources
from anabranch.targets.cuda import profile

SPEC = TargetSpec("cuda", "ten multiprocessors", sms=10)
SMALL = Resources(ctas=5, threads=128, registers=32, shared=0)
"""On half of the multiprocessors, 20 warps."""
TURNS = Resources(ctas=30, threads=1024, registers=32, shared=0)
"""Two CTAs fit on each: 20 and 10, 15 in the mean, 480 warps of 640."""


def test_kernels_one_after_another() -> None:
    spans = [
        KernelSpan("a", 10.0, 20.0, SMALL, True),
        KernelSpan("b", 20.0, 30.0, TURNS, False),
        KernelSpan("copy", 30.0, 40.0, None, None),
    ]
    used = utilisation(spans, SPEC, "by hand")
    assert used is not None
    assert (used.us, used.unknown, used.overlap) == (30.0, 1, 0.0)
    assert used.warps == pytest.approx((20 + 480) / 3)
    assert used.warps_share == pytest.approx(used.warps / 640)
    assert used.sm_efficiency == pytest.approx((0.5 + 1.0) / 3)
    assert len(used.warps_over_time) == STEPS
    assert used.warps_over_time[0] == 20 and used.sm_efficiency_over_time[-1] == 0
    assert sum(used.warps_over_time) / STEPS == pytest.approx(used.warps, rel=1e-3)


def test_what_is_estimated_is_counted() -> None:
    guess = replace(SMALL, estimated=True)
    spans = [KernelSpan("a", 0.0, 10.0, guess, True), KernelSpan("b", 10.0, 20.0, TURNS, False)]
    used = utilisation(spans, SPEC, "by hand")
    assert used is not None and (used.unknown, used.estimated) == (0, 1)
    known = utilisation([replace(spans[0], resources=SMALL), spans[1]], SPEC, "by hand")
    assert known is not None and known == replace(used, estimated=0)


def test_what_comes_later_takes_what_is_left() -> None:
    """Beside the turns, which hold three quarters of all threads, 5 small CTAs fit: 20 warps."""
    spans = [KernelSpan("b", 0.0, 10.0, TURNS, False), KernelSpan("a", 5.0, 15.0, SMALL, True)]
    used = utilisation(spans, SPEC, "")
    assert used is not None and used.us == 15.0
    assert used.overlap == pytest.approx(5 / 15)
    fill = KernelSpan("", 0.0, 15.0, None, None)
    beside = utilisation([*spans, fill], SPEC, "")
    assert beside is not None and beside.overlap == used.overlap
    assert used.warps == pytest.approx((480 * 10 + 20 * 10) / 15)
    full = Resources(ctas=20, threads=1024, registers=32, shared=0)
    both = [KernelSpan("b", 0.0, 10.0, full, True), KernelSpan("a", 0.0, 10.0, SMALL, True)]
    used = utilisation(both, SPEC, "")
    assert used is not None and used.warps == pytest.approx(640) and used.overlap == 0


def test_what_is_not_known_has_no_figures() -> None:
    assert utilisation([KernelSpan("a", 0.0, 1.0, None, True)], SPEC, "") is None
    assert utilisation([], SPEC, "") is None


def event(name: str, ts: float, **args: Any) -> dict[str, Any]:
    given = {"grid": [4, 2, 1], "block": [64, 2, 1], "registers per thread": 40}
    return {"cat": "kernel", "name": name, "ts": ts, "dur": 2.0, "args": {**given, **args}}


def test_kernels_of_a_replay_are_known_by_those_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of one kernel, in the order of their launches; a fill belongs to nobody."""
    product = SimpleNamespace(op="aten.mm.default")
    tasks = [SimpleNamespace(name=name, body=SimpleNamespace(nodes=(product,))) for name in "ab"]
    relu = SimpleNamespace(nodes=(SimpleNamespace(op="aten.relu.default"),))
    tasks.append(SimpleNamespace(name="c", body=relu))
    outside = {"a": [event("gemm", 1.0)], "c": [event("relu", 2.0)], "b": [event("gemm", 3.0)]}
    fill = {"cat": "gpu_memset", "name": "fill", "ts": 9.0, "dur": 1.0, "args": {}}
    first = [event("gemm", 4.0, correlation=1), event("relu", 5.0, correlation=1)]
    replay = [event("relu", 12.0), event("gemm", 11.0), event("gemm", 10.0), fill]
    run: Any = SimpleNamespace(
        plan=SimpleNamespace(tasks=SimpleNamespace(tasks=tasks)), replay=lambda: None
    )
    monkeypatch.setattr(profile, "_outside", lambda run: outside)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(profile, "_trace", lambda call: [*first, *replay, {"cat": "cpu_op"}])
    how, spans = profile.kernel_spans(run)
    assert how == profile.IN_A_REPLAY
    taken = Resources(ctas=8, threads=128, registers=40, shared=0)
    assert spans == (
        KernelSpan("", 0.0, 1.0, None, None),
        KernelSpan("a", 1.0, 3.0, taken, True),
        KernelSpan("b", 2.0, 4.0, taken, True),
        KernelSpan("c", 3.0, 5.0, taken, False),
    )
    monkeypatch.setattr(profile, "_trace", lambda call: [replay[0]])
    how, spans = profile.kernel_spans(run)
    assert how == "CUPTI shows 1 of 3 kernels of a replay" and spans == ()
