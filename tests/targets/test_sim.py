"""Planning for an H200 that is not here: from the profile that ships with the package."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import anabranch
from anabranch.bench.machine import machine
from anabranch.costs import Recorded
from anabranch.costs.recorded import Profile, find_probe, save_profile
from anabranch.ir.task import GENERATED
from anabranch.kernels.expected_resources import expected_resources
from anabranch.models.zoo import ZOO
from anabranch.targets import resolve
from anabranch.targets.sim import SimTarget, open_sim


def planned(name: str, size: str = "paper", **options: Any) -> anabranch.Compiled:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x.half() if x.is_floating_point() else x

    model = ZOO[name].build(size).half()
    args = tuple(half(x) for x in ZOO[name].inputs(size, 1))
    told = {"search": "none", "target": "sim:h200", "cache_dir": None, **options}
    return anabranch.compile(model, args, **told)


@functools.cache
def recorded(name: str) -> anabranch.Compiled:
    """As the shipped profile has it, planned once in a process."""
    return planned(name)


SQUEEZENET = pytest.mark.xdist_group("recorded squeezenet")


def test_the_profile_says_where_it_comes_from() -> None:
    target = open_sim("h200", tf32=False)
    assert isinstance(target, SimTarget)
    assert target.spec.name == "NVIDIA H200" and target.spec.sms == 132 and target.spec.simulated
    provenance = target.profile.provenance
    assert provenance.date and provenance.command.startswith("anabranch record")
    assert {"torch", "triton"} <= set(provenance.versions)


@pytest.mark.parametrize(
    ("name", "ms"),
    [pytest.param("squeezenet", 0.0564, marks=SQUEEZENET)],
)
def test_a_recorded_network_is_planned_from_records(name: str, ms: float) -> None:
    """Its tasks are in the profile; the plan is concurrent, faster than one stream, and small. It
    takes what it took on the device, within 25%, by the kernels of the profile, before they are
    launched while those before them drain, which is not simulated."""
    fast = recorded(name)
    assert fast.facts["latency_source"] == "recorded"
    assert fast.facts["latency_ms"] == pytest.approx(ms, rel=0.25)
    made = fast.entries[0].compilation
    assert made is not None
    target = open_sim("h200", tf32=False)
    tasks = made.plan.tasks
    assert Recorded(target.profile, spec=target.spec).missing(tasks) <= len(tasks.tasks) // 10
    by_name = {schedule.scheduler: cost for schedule, cost in made.compiled.schedules}
    assert by_name["critical"].us < by_name["sequential"].us
    assert made.plan.peak_bytes <= 1.25 * made.compiled.sequential.peak_bytes


@SQUEEZENET
def test_a_kernel_is_expected_to_have_the_ctas_that_a_gpu_said() -> None:
    """And the threads, of all kernels that were asked for; registers are a guess."""
    target = open_sim("h200", tf32=False)
    made = recorded("squeezenet").entries[0].compilation
    assert made is not None
    compared = 0
    for task in made.plan.tasks.tasks:
        assert task.kernel is not None
        told = find_probe(target.profile, task.kernel)
        said = expected_resources(task.kernel, target.spec)
        if told is not None and told.resources is not None and said is not None:
            assert (said.ctas, said.threads) == (told.resources.ctas, told.resources.threads)
            assert said.estimated and not told.resources.estimated
            compared += 1
    assert compared >= 10


def test_kernels_that_nobody_ran_have_the_resources_that_are_expected() -> None:
    made = planned("inception_v3", "tiny", scheduler="sequential").entries[0].compilation
    assert made is not None
    kernels = [task.kernel for task in made.plan.tasks.tasks if task.kernel is not None]
    generated = [kernel for kernel in kernels if kernel.provider == GENERATED]
    assert generated and all(kernel.resources is not None for kernel in generated)


def test_an_unrolled_recurrence_is_a_launch_a_layer_even_where_no_record_has_it(
    tmp_path: Path,
) -> None:
    """Its hundreds of steps are recorded one by one. Where its clusters are not, what is estimated
    must save half of what was measured, and does."""
    shipped = open_sim("h200", tf32=False).profile
    clusters = ": split sigmoid sigmoid"
    steps = {key: one for key, one in shipped.tasks.items() if clusters not in one.label}
    assert len(shipped.tasks) - len(steps) >= 4
    path = tmp_path / "steps.json"
    save_profile(shipped.model_copy(update={"tasks": steps}), path)
    for target, source in ((f"sim:{path}", "estimated"), ("sim:h200", "recorded")):
        fast = planned("sru", target=target, cache_dir=tmp_path / "captured once")
        made = fast.entries[0].compilation
        assert made is not None and len(made.plan.tasks.tasks) == 8
        assert fast.facts["latency_source"] == source


def test_unknown_networks_are_estimated_and_say_so() -> None:
    fast = planned("bert_base", "tiny")
    assert fast.facts["latency_source"] == "estimated"


@SQUEEZENET
def test_a_profile_of_ones_own_is_a_target(tmp_path: Path) -> None:
    """What `anabranch record` wrote elsewhere plans here, by its numbers and nobody else's."""
    shipped = open_sim("h200", tf32=False).profile
    slower = {key: one.model_copy(update={"us": 2 * one.us}) for key, one in shipped.tasks.items()}
    path = tmp_path / "mine.json"
    save_profile(shipped.model_copy(update={"tasks": slower}), path)
    own, theirs = planned("squeezenet", target=f"sim:{path}"), recorded("squeezenet")
    assert own.facts["latency_ms"] > 1.5 * theirs.facts["latency_ms"]
    assert machine(f"sim:{path}").simulated


def test_a_profile_that_is_none_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{}")
    with pytest.raises(anabranch.TargetError, match="anabranch record"):
        planned("squeezenet", "tiny", target=f"sim:{path}")
    with pytest.raises(anabranch.TargetError, match="No such file"):
        planned("squeezenet", "tiny", target="sim:nowhere.json")
    with pytest.raises(anabranch.OptionError, match=r"sim:FILE\.json"):
        planned("squeezenet", "tiny", target="sim:a100")
    save_profile(Profile(spec=resolve("cpu").spec), path)
    with pytest.raises(anabranch.TargetError, match="no GPU"):
        planned("squeezenet", "tiny", target=f"sim:{path}")


def test_it_cannot_run_and_says_what_can() -> None:
    fast = planned("squeezenet", "tiny")
    with pytest.raises(anabranch.TargetError, match="target='cpu'"):
        fast(*(x.half() for x in ZOO["squeezenet"].inputs("tiny", 1)))
