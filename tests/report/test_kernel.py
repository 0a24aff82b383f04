"""One task alone: its body, kernel, source and candidates, and why the others lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from anabranch.errors import OptionError
from anabranch.ir.task import Kernel, Resources
from anabranch.kernels.triton.codegen import variants
from anabranch.report.kernel import NAMED, REPLACED, kernel_facts, kernel_text, task_named
from anabranch.report.lines import cut
from anabranch.report.parts import ReportParts

Build = Mapping[str, Callable[..., ReportParts]]


def test_golden(parts: Build, golden: Callable[[str, str], None]) -> None:
    given = parts["small"]()
    told = kernel_facts(given["plan"], "b", given["candidates"], given["events"])
    golden("report/explain_kernel.txt", kernel_text(told))


def test_every_loser_has_its_reason(parts: Build) -> None:
    given = parts["small"]()
    told = kernel_facts(given["plan"], "stem", given["candidates"], given["events"])
    json.dumps(told, allow_nan=False)
    assert len(told["candidates"]) == len(given["candidates"]["stem"]) > 2
    assert sum(one["chosen"] for one in told["candidates"]) == 1
    for one in told["candidates"]:
        assert bool(one["why_not"]) != one["chosen"]
        assert one["source"] == ("recorded" if one["us"] else None)
    refused = [one for one in told["candidates"] if one["refused"]]
    assert {one["why_not"] for one in refused} == {
        "it did not run",
        "error 3.10e-02 where 2.00e-03 is allowed",
    }
    text = kernel_text(told)
    assert "refused: error 3.10e-02" in text and "lost: as fast, and offered" in text
    assert "model.py:40 in forward (stem)" in text
    assert "stem by cudnn" not in text and "fusion, refused: a + stem: a has 3 consumers" in text


def test_what_a_plan_from_a_file_does_not_hold_is_said(parts: Build) -> None:
    plan = parts["small"]()["plan"]
    told = kernel_facts(plan, "b", None)
    assert told["candidates"] is None and told["us"] is None
    text = kernel_text(told)
    assert "Candidates: not in the file" in text and "compile the model again" in text
    assert "Source\n# fused" in text and "aten.max_pool2d.default(%stem, [3, 3]" in text


def test_a_generated_kernel_has_a_limit_and_a_launch_shape_before_it_ever_ran(
    parts: Build,
) -> None:
    given = parts["small"]()
    task = task_named(given["plan"], "a")
    spec = replace(given["plan"].spec, peak_flops=(("f16", 9.9e14),), bandwidth=4.8e12)
    spec = replace(spec, capability=(9, 0))
    variant = next(v for v in variants(task.body, spec) if v.template == "contraction")
    kernel = Kernel("triton", "contraction", task.body, variant, writes_out=True, source="text")
    tasks = tuple(replace(t, kernel=kernel) if t is task else t for t in given["plan"].tasks.tasks)
    plan = replace(given["plan"], spec=spec, tasks=replace(given["plan"].tasks, tasks=tasks))
    told = kernel_facts(plan, "a", given["candidates"], ())
    limit = told["kernel"]["limit"]
    assert limit["part_of_peak"] == pytest.approx(
        limit["memory"] * limit["shared"] * limit["tail"] * limit["fits"]
    )
    assert told["kernel"]["ctas"] > 0 and told["kernel"]["threads"] % 32 == 0
    assert told["kernel"]["registers"] is None
    text = kernel_text(told)
    assert f"of peak (memory {limit['memory']:.2f}" in text
    assert "registers and shared memory are known where it has run" in text
    for estimated, said in (
        (False, "16.0 KiB of shared memory a CTA;"),
        (True, "CTA, both estimated;"),
    ):
        taken = Resources(7, 128, 96, 16384, estimated)
        known = replace(kernel, resources=taken)
        tasks = tuple(replace(t, kernel=known) if t.name == "a" else t for t in plan.tasks.tasks)
        of = kernel_facts(replace(plan, tasks=replace(plan.tasks, tasks=tasks)), "a", None)
        assert of["kernel"]["resources_estimated"] is estimated
        assert said in " ".join(kernel_text(of).split())
    won = next(one for one in given["candidates"]["a"] if one.verdict.chosen)
    why = {one["why_not"] for one in told["candidates"] if one["kernel"].startswith("cudnn")}
    assert won.kernel.provider == "cudnn" and REPLACED in why


def test_a_kernel_that_nobody_writes_any_more_is_still_shown(parts: Build) -> None:
    plan = parts["small"]()["plan"]
    kernel = Kernel("triton", "rows", plan.tasks.tasks[0].body, "rows:odd", source="its text")
    tasks = tuple(replace(task, kernel=kernel) for task in plan.tasks.tasks)
    told = kernel_facts(replace(plan, tasks=replace(plan.tasks, tasks=tasks)), "stem", None)
    assert told["kernel"]["ctas"] is None
    assert kernel_text(told).endswith("Source\nits text\n")


def test_a_name_may_be_cut_as_in_the_list(parts: Build) -> None:
    long = "features_of_the_second_block", "features_of_the_third_block"
    plan = parts["chain"](long)["plan"]
    assert task_named(plan, "features_…ond_block").name == long[0]
    twice = parts["chain"](("features_a_of_the_block", "features_b_of_the_block"))["plan"]
    assert task_named(twice, "features_a_of_the_block").name == "features_a_of_the_block"


def test_two_names_that_are_cut_alike_are_told_apart(parts: Build) -> None:
    long = "features_of_a_second_block", "features_of_b_second_block"
    assert cut(long[0], NAMED) == cut(long[1], NAMED) == "features_…ond_block"
    with pytest.raises(OptionError, match="means several tasks") as refused:
        task_named(parts["chain"](long)["plan"], "features_…ond_block")
    assert all(name in refused.value.next for name in long)


@pytest.mark.parametrize(
    ("name", "next"), [("steam", "did you mean stem"), ("xyz", "explain lists them, for example")]
)
def test_a_wrong_name_says_which_are_near(parts: Build, name: str, next: str) -> None:
    with pytest.raises(OptionError, match="6 tasks") as refused:
        task_named(parts["small"]()["plan"], name)
    assert next in refused.value.next
