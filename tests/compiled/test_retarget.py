"""A plan that another machine made: what does not run here gives way, and is told."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.compiled.test_memory import QUICK, Layers, X

import anabranch
from anabranch.cache import Cache
from anabranch.compiled import retarget
from anabranch.compiled.retarget import resettled
from anabranch.deadline import TIME
from anabranch.errors import TargetError
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Target
from anabranch.ir.text import text_kernel
from anabranch.options import Options
from anabranch.report.kernel import kernel_facts, kernel_text
from anabranch.trace import Trace
from anabranch.tuning.select import Selection
from anabranch.tuning.tuner import Tuner

W = torch.randn(64, 256)


class Wide(torch.nn.Module):
    """What a generated kernel does in one launch, and the library in three."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1).sin()


@pytest.fixture(scope="module")
def made() -> tuple[Plan, Target, torch.Tensor]:
    model = Layers().eval()
    fast = anabranch.compile(model, (X,), target="cpu", cache_dir=None, **QUICK)
    return fast.entries[0].plan, fast.target, fast(X)


def of_another(plan: Plan, **changes: Any) -> Plan:
    """Made on another machine, with another kernel for its first task."""
    first, *others = plan.tasks.tasks
    assert first.kernel is not None
    tasks = replace(first, kernel=replace(first.kernel, **changes)), *others
    versions = (("torch", "1.0"), ("threads", dict(plan.spec.versions)["threads"]))
    spec = replace(plan.spec, name="an old CPU", versions=versions)
    return replace(plan, spec=spec, tasks=replace(plan.tasks, tasks=tasks))


def test_a_plan_of_this_machine_stays_what_it_is(made: tuple[Plan, Target, torch.Tensor]) -> None:
    plan, target, _ = made
    trace = Trace()
    assert resettled(plan, target, None, trace, "a file") is plan and not trace.events


def test_kernels_of_the_library_stay(made: tuple[Plan, Target, torch.Tensor]) -> None:
    plan, target, _ = made
    foreign, trace = of_another(plan), Trace()
    assert resettled(foreign, target, None, trace, "a file") is foreign
    (event,) = trace.events
    assert event.kind == "warning" and event.what == "a file"
    here = f"tuned on an old CPU (here {target.spec.name}), torch 1.0 (here {torch.__version__})"
    assert event.why == f"{here}; compile the model again to tune for this machine"


def test_texts_of_a_file_neither_break_nor_fill_the_warning(
    made: tuple[Plan, Target, torch.Tensor],
) -> None:
    plan, target, _ = made
    foreign, trace = of_another(plan), Trace()
    many = tuple((f"v{i}\n", "2\x1b[2J" + "9" * 10_000) for i in range(50))
    spec = replace(foreign.spec, name="old\nwarning: all is well " + "x" * 10_000, versions=many)
    resettled(replace(foreign, spec=spec), target, None, trace, "a file")
    (event,) = trace.events
    assert event.why.isprintable() and len(event.why) < 1500
    assert "old?warning: all is well" in event.why and " more versions; compile" in event.why


def test_a_kernel_that_does_not_run_here_gives_way(
    made: tuple[Plan, Target, torch.Tensor],
) -> None:
    """On this target no generated kernel does."""
    plan, target, want = made
    foreign = of_another(plan, provider="triton", variant="rows:1.w4", source="no text of ours")
    trace = Trace()
    with Cache.open(None) as cache:
        found = resettled(foreign, target, cache, trace, "a file")
    kernels = [[text_kernel(t.kernel) for t in p.tasks.tasks if t.kernel] for p in (found, plan)]
    assert kernels[0] == kernels[1]
    assert found.spec == target.spec and found.signature == plan.signature
    assert torch.equal(target.load(found)([X])[0], want)
    chosen, event = trace.events
    name = plan.tasks.tasks[0].name
    assert "; one kernel was compared with the operators it stands for, 1 gave way to" in event.why
    failed = f"failed: task {name} needs kernels of provider 'triton'"
    assert f"({name}: {failed}), of which 1 chosen anew by time; compile" in event.why
    assert (chosen.kind, chosen.where, chosen.what) == ("chosen", "retarget", name)
    assert re.fullmatch(
        rf"aten\.\S+ \([\d.]+ us, measured\) in .*, which here {failed}", chosen.why
    )
    told = kernel_text(kernel_facts(found, name, None, trace.events))
    assert failed in " ".join(told.split())


def test_in_want_of_time_it_is_what_should_be_fastest(
    made: tuple[Plan, Target, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, target, want = made
    foreign = of_another(plan, provider="triton", variant="rows:1.w4", source="no text of ours")
    monkeypatch.setattr(retarget, "TIME", replace(TIME, retarget_s=0.0))
    trace = Trace()
    found = resettled(foreign, target, None, trace, "a file")
    assert torch.equal(target.load(found)([X])[0], want)
    assert " us, estimated) in place of" in trace.events[0].why
    assert ", which nobody has timed; compile" in trace.events[1].why


def test_where_none_of_the_others_runs_it_is_the_librarys(
    made: tuple[Plan, Target, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, target, want = made
    foreign = of_another(plan, provider="triton", variant="rows:1.w4", source="no text of ours")

    def none_runs(*_: object) -> Selection:
        raise TargetError("no kernel of it runs", "none did", "take another")

    monkeypatch.setattr(Tuner, "in_place", none_runs)
    trace = Trace()
    found = resettled(foreign, target, None, trace, "a file")
    assert torch.equal(target.load(found)([X])[0], want)
    assert "(not timed) in place of" in trace.events[0].why
    assert ", which nobody has timed; compile" in trace.events[1].why


def test_kernels_are_chosen_anew_of_all_that_may_be_generated() -> None:
    """For the machine at hand, which has a cost for each: here a simulated one."""
    quick = {**QUICK, "kernels": "library"}
    fast = anabranch.compile(Wide().eval(), (W,), target="sim:h200", cache_dir=None, **quick)
    plan = fast.entries[0].plan
    names = [task.name for task in plan.tasks.tasks]
    found = retarget._chosen_anew(plan, names, fast.target, None, Options())
    assert found.keys() == set(names)
    assert any(kernel.provider == "triton" and kernel.source for kernel, _ in found.values())
    assert all(cost.us > 0 for _, cost in found.values())
