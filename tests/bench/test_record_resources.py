"""What kernels take, asked apart from their times: of which kernels, how, and what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.small import BRANCHING, SMALL
from torch import Tensor, nn

from anabranch import api
from anabranch.bench.record_resources import (
    KernelFacts,
    asking,
    compiled,
    profile_of,
    resources,
    with_kernels,
)
from anabranch.cli.app import main
from anabranch.costs.recorded import (
    KernelFact,
    Profile,
    kernel_key,
    load_profile,
    save_profile,
)
from anabranch.deadline import Deadline
from anabranch.errors import CaptureError, OptionError
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable, Probe
from anabranch.ir.task import GENERATED, Resources, Task
from anabranch.targets import resolve
from anabranch.targets.cpu.target import CpuExecutable, CpuTarget
from anabranch.targets.cuda import triton
from anabranch.trace import Trace

SIM = "sim:h200"
TRITON = dict(profile_of(SIM).spec.versions)["triton"]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


class Fork(nn.Module):
    """Two layers of different widths that read one value."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(8, 4), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        return torch.cat([self.narrow(x), self.wide(x)], 1)


def taken(task: Task) -> KernelFact:
    """The wider a result, the less its kernel takes."""
    width = task.body.nodes[-1].type.shape[-1]
    return KernelFact(resources=Resources(1, 32, 8, 16384 // width))


def ask(tasks: Sequence[Task]) -> KernelFacts:
    return {kernel_key(task.kernel): taken(task) for task in tasks if task.kernel is not None}


def test_kernels_that_plans_use_are_asked_for_once_the_librarys_first() -> None:
    asked: list[Task] = []

    def noted(tasks: Sequence[Task]) -> KernelFacts:
        asked.extend(tasks)
        return ask(tasks)

    facts = resources((SMALL,), ("fp32", "fp16"), (1,), SIM, noted, {})
    keys = [kernel_key(task.kernel) for task in asked if task.kernel is not None]
    assert len(set(keys)) == len(keys) == len(facts)
    providers = [task.kernel.provider for task in asked if task.kernel is not None]
    first = providers.index(GENERATED)
    assert {"aten.linear.default", "aten.sigmoid.default", "aten.cat.default"} <= {
        node.op for task in asked[:first] for node in task.body.nodes
    }
    again: list[Task] = []
    known = {**facts, keys[0]: KernelFact()}  # of this one it is not known what it takes

    def more(tasks: Sequence[Task]) -> KernelFacts:
        again.extend(tasks)
        return ask(tasks)

    assert resources((SMALL,), ("fp32",), (1,), SIM, more, known) == {keys[0]: facts[keys[0]]}
    assert len(again) == 1


def test_nothing_is_asked_when_the_time_is_over() -> None:
    def never(tasks: Sequence[Task]) -> KernelFacts:
        raise AssertionError("there is no time")

    assert not resources((SMALL,), ("fp32",), (1,), SIM, never, {}, Deadline.after(0))


def test_a_network_that_cannot_be_planned_is_a_warning() -> None:
    trace = Trace()
    kept: list[KernelFacts] = []
    both = (BRANCHING, SMALL)
    facts = resources(both, ("fp32",), (1,), SIM, ask, {}, trace=trace, save=kept.append)
    assert facts and kept and kept[-1] == facts
    assert [event for event in trace.events if event.kind == "warning" and event.where == "record"]
    with pytest.raises(CaptureError):
        resources((BRANCHING,), ("fp32",), (1,), SIM, ask, {})


class OneFails(CpuTarget):
    """Runs no plan in which something is concatenated, and tells of all others."""

    def load(self, plan: Plan, *args: Any, **options: Any) -> CpuExecutable:
        if any(node.op == "aten.cat.default" for t in plan.tasks.tasks for node in t.body.nodes):
            raise RuntimeError("no such kernel")
        return super().load(plan)

    def probe(self, run: Executable) -> dict[str, Probe]:
        return {
            task.name: Probe(64, 0, 2, Resources(2, 64, 8, 512)) for task in run.plan.tasks.tasks
        }


def test_a_kernel_that_fails_costs_no_other_ones_answer() -> None:
    fast = api.compile(
        Fork().eval(), (torch.ones(2, 8),), target="cpu", verify=False, system="cudagraph"
    )
    tasks = fast.entries[-1].plan.tasks.tasks
    facts = asking(OneFails(), Trace())(tasks)
    (cat,) = (task for task in tasks if task.body.nodes[-1].op == "aten.cat.default")
    assert cat.kernel is not None and kernel_key(cat.kernel) not in facts
    assert len(facts) == len(tasks) - 1 > 2
    expected = KernelFact(workspace=64, launches=2, resources=Resources(2, 64, 8, 512))
    assert set(facts.values()) == {expected}


def launched(profile: Profile, path: Path) -> tuple[list[int], list[str]]:
    """Widths of layers in the order in which Opara launches them there, and what it refused."""
    save_profile(profile, path)
    trace = Trace()
    fast = api.compile(
        Fork().eval(),
        (torch.ones(2, 8),),
        target=f"sim:{path}",
        verify=False,
        system="opara",
        trace=trace,
    )
    plan = fast.entries[-1].plan
    width = {t.name: t.body.nodes[-1].type.shape[-1] for t in plan.tasks.tasks}
    layers = {t.name for t in plan.tasks.tasks if t.body.nodes[-1].op == "aten.linear.default"}
    order = [width[one.task] for one in plan.schedule.launches if one.task in layers]
    return order, [e.why for e in trace.events if e.kind == "refused" and e.where == "schedule"]


def test_opara_orders_launches_on_a_simulated_gpu_that_knows_what_kernels_take(
    tmp_path: Path,
) -> None:
    """The wide layer takes less and comes first, where without it is first come, first served."""
    model = tmp_path / "fork.py"
    text = "from tests.bench.test_record_resources import Fork, torch\n"
    model.write_text(text + "def build():\n    return Fork().eval(), (torch.ones(2, 8),)\n")
    before = profile_of(SIM)
    order, refused = launched(before, tmp_path / "before.json")
    assert order == [4, 16] and "what 4 of 4 kernels take is not known" in refused[0]
    facts = resources((f"{model}:build",), ("fp32",), (1,), SIM, ask, before.kernels)
    told = Profile(spec=before.spec, kernels=facts)
    order, refused = launched(with_kernels(before, [told]), tmp_path / "after.json")
    assert order == [16, 4] and not refused


def test_only_profiles_of_gpus_alike_tell_each_other_what_kernels_take() -> None:
    spec = profile_of(SIM).spec
    small, large = (KernelFact(resources=Resources(1, 32, 8, n)) for n in (1, 2))
    one = Profile(spec=spec, kernels={"a": small, "b": KernelFact()})
    other = Profile(
        spec=replace(spec, name="sister"), kernels={"a": large, "b": large, "c": KernelFact()}
    )
    assert with_kernels(one, [other]).kernels == {"a": small, "b": large}
    larger = other.model_copy(update={"spec": replace(spec, sms=spec.sms + 1)})
    with pytest.raises(OptionError, match="NVIDIA H200"):
        with_kernels(one, [larger])


def test_the_command_writes_them_apart_and_adds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU, from the compiler, of generated kernels."""
    pytest.importorskip("triton", reason="compiles kernels")
    monkeypatch.setattr(triton, "installed", lambda: TRITON)
    apart, whole = tmp_path / "apart.json", tmp_path / "whole.json"
    words = ["record", SMALL, "--dtype", "fp32", "--target", "cpu", "-o", str(apart)]
    assert main([*words, "--resources", SIM]) == 0
    facts = load_profile(apart)
    assert facts.kernels and not facts.tasks and facts.spec == profile_of(SIM).spec
    taken = [fact.resources for fact in facts.kernels.values() if fact.resources]
    assert len(taken) == len(facts.kernels)
    assert all(one.threads in (32, 64, 128, 256, 512) for one in taken)
    assert all(0 < one.registers <= 255 and one.ctas for one in taken)
    assert main([*words, "--resources", "cpu"]) == 2
    key, *_ = facts.kernels
    known = KernelFact(resources=Resources(1, 32, 8, 64))
    save_profile(facts.model_copy(update={"kernels": {key: known}}), apart)
    save_profile(Profile(spec=facts.spec), whole)
    assert main(["record", "--kernels-of", str(apart), "-o", str(whole)]) == 0
    assert load_profile(whole).kernels == {key: known}
    assert "1 kernels (1 new)" in capsys.readouterr().out


def test_another_compiler_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = profile_of(SIM).spec
    monkeypatch.setattr(triton, "installed", lambda: "2.0.0")
    with pytest.raises(OptionError, match=f"pip install triton=={TRITON}"):
        compiled(spec, Trace())
    monkeypatch.setattr(triton, "available", lambda: False)
    with pytest.raises(OptionError, match="no Triton here"):
        compiled(spec, Trace())


def test_a_target_without_a_profile_is_refused() -> None:
    assert resolve("cpu").spec.kind == "cpu"
    with pytest.raises(OptionError, match="sim:h200"):
        profile_of("cpu")
