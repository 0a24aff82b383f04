"""Plans whose kernels compute and write parts of states: a decoder call by call against the model,
what is proved of them, and what is refused of files."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzz.interpreted import results
from tests.tuning.test_state_stores import SPEC, proved, tasks_of

import anabranch
from anabranch.artifact.bodies import check_bodies
from anabranch.errors import VerifyError
from anabranch.ir.determinism import unordered
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.plan import Plan
from anabranch.ir.proof import answer
from anabranch.ir.state import part_types
from anabranch.ir.task import GENERATED, Kernel, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import parse_variant
from anabranch.ir.verify import verify_states
from anabranch.kernels.library import ALL, in_order
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory.guard_bytes import fenced
from anabranch.memory.race_check import check_plan
from anabranch.targets import resolve
from benchmarks import decoding

pytest.importorskip("triton")
OPTIONS: dict[str, Any] = {
    **{"target": "sim:h200", "cache_dir": None, "search": "none", "scheduler": "nimble"},
}
SCATTER = """
graph g {
  input %x: f32[3,8]
  input %at: i64[3]
  state %k: f32[9,8] -> %k_1
  %y: f32[3,8] = aten.mul.Tensor(%x, 2.0)
  %z: f32[3,8] = aten.exp.default(%y)
  %k_1: f32[9,8] = aten.index_copy.default(%k, 0, %at, %z)
  %s: f32[9] = aten.sum.dim_IntList(%k_1, [1])
  return %s, %k_1
}
"""


def kernels_of(plan: Plan) -> dict[str, str]:
    """By the name of each task that writes over something the variant of its kernel."""
    return {
        task.name: str(task.kernel.variant)
        for task in plan.tasks.tasks
        if task.overwrites and task.kernel
    }


def decoder() -> tuple[Any, Any]:
    """A decoder of one layer, its cache empty, and a plan of it."""
    torch.manual_seed(0)
    model, _ = decoding.decoder(replace(decoding.TINY, layers=1), 1)
    for name, held in model.named_buffers():
        if name.endswith(("keys", "values")):
            held.zero_()
    given = torch.tensor([[3]]), torch.tensor([0])
    return model, anabranch.compile(copy.deepcopy(model), given, **OPTIONS)


def test_a_decoder_writes_its_keys_and_values_as_it_computes_them(tmp_path: Path) -> None:
    model, fast = decoder()
    fast.save(tmp_path / "fast")
    plan = anabranch.load(tmp_path / "fast", target="sim:h200").entries[-1].plan
    assert all("scatter:" in variant for variant in kernels_of(plan).values())
    assert kernels_of(plan) == kernels_of(fast.entries[-1].plan)
    states = {state.name: state.value for state in plan.tasks.states if state.value is not None}
    ran = Counter[str]()
    for number, word in enumerate((5, 7, 1)):
        given = torch.tensor([[word]]), torch.tensor([number])
        with torch.no_grad():
            wanted = model(*given)
        values = results(plan, (*given, *states.values()), ran)
        for state in plan.tasks.states:
            states[state.name] = values[plan.tasks.outputs[state.output].name]
        torch.testing.assert_close(values[plan.tasks.outputs[0].name], wanted)
    held = [t for n, t in model.named_buffers() if n.endswith(("keys", "values"))]
    for mine, theirs in zip(states.values(), held, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert not bool(mine[:, :, 3:].any()) and bool(mine[:, :, :3].any())
    assert ran["scatter"] + ran["horizontal"] >= 3


def test_the_library_runs_what_is_computed_and_writes_it_in_place() -> None:
    """What is chosen where no generated kernel passes: operator by operator."""
    tasks = tasks_of(parse_graph(SCATTER), generated=False)
    task = tasks.tasks[0]
    assert task.overwrites == {"k_1": "k"} and len(task.body.nodes) == 3
    assert task.kernel and (task.kernel.variant, task.kernel.launches) == ("in_place", 3)
    given = random_inputs(task.body, 1)
    given = [
        torch.tensor([8, 0, 3]) if v.name == "at" else x
        for v, x in zip(task.body.inputs, given, strict=True)
    ]
    wanted = eval_graph(task.body, given)
    target = resolve("cpu")
    run = target.load(
        fenced(task, (), target.spec),
        contents={v.name: x for v, x in zip(task.body.inputs, given, strict=True)},
    )
    (new,) = run(given)
    torch.testing.assert_close(new, wanted[0])
    assert not run.strays()


def test_readers_of_a_state_come_before_and_after_who_writes_a_part() -> None:
    tasks = tasks_of(parse_graph(SCATTER))
    assert [task.overwrites for task in tasks.tasks] == [{"k_1": "k"}, {}]
    plan = proved(tasks)
    launches = plan.schedule.launches
    backwards = replace(plan, schedule=replace(plan.schedule, launches=launches[::-1]))
    with pytest.raises(VerifyError, match="reads %k_1"):
        check_plan(backwards)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("aten.exp.default(%y)", "aten.sub.Tensor(%y, %w)"),  # reads the old value
        ("%k_1, [1]", "%k_2, [1]"),  # reads the new one on the way
    ],
)
def test_who_sees_the_state_shares_no_launch_with_who_writes_it(before: str, after: str) -> None:
    text = SCATTER.replace(before, after)
    assert text != SCATTER
    view = "  %w: f32[3,8] = aten.slice.Tensor(%k, 0, 2, 5)\n"
    text = text.replace("  %y", f"{view}  %y", 1) if "%w" in after else text
    text = text.replace("  %s", "  %k_2: f32[9,8] = aten.neg.default(%k_1)\n  %s", 1)
    tasks = tasks_of(parse_graph(text))
    writer = next(task for task in tasks.tasks if task.overwrites)
    own = {node.name for node in writer.body.nodes}
    assert own.isdisjoint({"w", "k_2", "s"} | ({"z"} if "%w" in after else set()))
    proved(tasks)


def refused(tasks: TaskGraph) -> str:
    with pytest.raises(VerifyError) as why:
        verify_states(tasks)
        check_bodies(tasks)
        proved(tasks)
    return str(why.value)


def with_kernel(kernel: Kernel, body: Graph | None = None) -> TaskGraph:
    """The tasks of `SCATTER`, of which the first has another kernel."""
    tasks = tasks_of(parse_graph(SCATTER))
    task = tasks.tasks[0]
    return replace(
        tasks, tasks=(replace(task, kernel=kernel, body=body or task.body), *tasks.tasks[1:])
    )


def test_files_have_kernels_of_parts_only_where_the_state_lies() -> None:
    body = tasks_of(parse_graph(SCATTER)).tasks[0].body
    kernel = Kernel(GENERATED, "scatter", body, parse_variant("scatter:32.w1"), writes_out=True)
    proved(with_kernel(kernel))
    check_bodies(with_kernel(kernel))
    bare = replace(kernel, body=replace(body, states=()))
    assert "no part of a state" in refused(with_kernel(bare))
    elsewhere = with_kernel(kernel, replace(body, states=()))
    assert "lie in the place" in refused(elsewhere)
    elsewhere = replace(elsewhere, states=(), outputs=elsewhere.outputs[:1])
    assert "but a part" in refused(elsewhere)
    with pytest.raises(VerifyError, match="writes over what it reads"):
        proved(elsewhere)


def test_equal_bits_in_each_run_are_asked_of_one_row_alone() -> None:
    many = tasks_of(parse_graph(SCATTER)).tasks[0]
    text = SCATTER.replace("[3,8]", "[1,8]").replace("i64[3]", "i64[1]")
    single = tasks_of(parse_graph(text)).tasks[0]
    ordered = TritonProvider(in_order=True)
    assert in_order(ALL)[-1].version == ordered.version != TritonProvider().version
    assert ordered.kernels(single, SPEC) and not ordered.kernels(many, SPEC)
    assert unordered(single, "cuda") is None
    assert "may be equal" in str(unordered(many, "cuda"))


@pytest.mark.parametrize(
    "call", ["index_copy.default(%k, 0, %at, %z)", "index_put.default(%k, [%at], %z)"]
)
def test_verification_compares_what_is_written_and_what_stays(call: str) -> None:
    """What was there before to the bit, however few elements are written."""
    text = SCATTER.replace("index_copy.default(%k, 0, %at, %z)", call)
    body = tasks_of(parse_graph(text.replace("f32", "f16").replace("[9,", "[999,"))).tasks[0].body
    _, wanted = answer(body, "finite", 3, resolve("cpu"))
    places = next(x for x in wanted.inputs if x.dtype == torch.long)
    assert wanted.judged and wanted.differs(wanted.own) is None
    for row, part in ((int(places[1]), 0.05), (int((places[1] + 1) % 999), 0.01)):
        new = wanted.own[0].clone()
        assert row in places or part == 0.01
        new[row, 3] += part * max(abs(float(new[row, 3])), 1.0)
        assert wanted.differs([new]) is not None


@pytest.mark.parametrize(
    ("indices", "shape", "stored"),
    [("[%b, %at]", "[3,6]", (9, 8, 6)), ("[%at, None, %at]", "[3,8]", (3, 8))],
)
def test_places_that_no_kernel_takes_are_left_to_the_library(
    indices: str, shape: str, stored: tuple[int, ...]
) -> None:
    """Truth values beside numbers, whose shapes do not broadcast; axes that lie apart."""
    text = SCATTER.replace(
        "index_copy.default(%k, 0, %at, %z)", f"index_put.default(%k, {indices}, %z)"
    )
    text = text.replace("f32[3,8]", f"f32{shape}").replace("f32[9,8]", "f32[9,8,6]")
    text = text.replace("f32[9]", "f32[9,6]").replace("  state", "  input %b: b1[9]\n  state")
    tasks = tasks_of(parse_graph(text))
    proved(tasks)
    (body,) = (task.body for task in tasks.tasks if task.overwrites)
    assert part_types(body)["k_1"].shape == stored


TWO = """
graph g {
  input %x: f32[1,8]
  input %w: f32[8,8]
  input %y: f32[1,8]
  input %at: i64[1]
  state %k: f32[8,8] -> %k_1
  state %v: f32[8,8] -> %v_1
  %p: f32[1,8] = aten.mm.default(%x, %w)
  %q: f32[1,8] = aten.neg.default(%p)
  %k_1: f32[8,8] = aten.index_copy.default(%k, 0, %at, %q)
  %z: f32[1,8] = aten.exp.default(%y)
  %v_1: f32[8,8] = aten.index_copy.default(%v, 0, %at, %z)
  %a: f32[8,8] = aten.mm.default(%k_1, %v_1)
  return %a, %k_1, %v_1
}
"""


def test_states_with_the_same_readers_are_written_in_one_launch() -> None:
    """One of two that different ones read would have its reader wait for the other."""
    tasks = tasks_of(parse_graph(TWO)).tasks
    assert [task.overwrites for task in tasks if task.overwrites] == [{"k_1": "k", "v_1": "v"}]
    proved(tasks_of(parse_graph(TWO)))
    apart = TWO.replace("%k_1, %v_1)", "%k_1, %w)\n  %b: f32[8,8] = aten.mm.default(%w, %v_1)")
    tasks = tasks_of(parse_graph(apart.replace("return %a,", "return %a, %b,"))).tasks
    assert sorted(str(t.overwrites) for t in tasks if t.overwrites) == [
        "{'k_1': 'k'}",
        "{'v_1': 'v'}",
    ]
