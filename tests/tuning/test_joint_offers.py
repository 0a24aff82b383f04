"""What a task brings to a common launch: short kernels, of equal warps, with room for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.kernels.triton.bodies import gpu
from tests.tuning.test_joint_tasks import cell

from anabranch.fusion.partition import partition
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused
from anabranch.ir.task import GENERATED, Kernel, Resources, Task
from anabranch.ir.variant import Variant
from anabranch.kernels.library import aten_kernel
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.trace import Trace
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.joint_offers import (
    SHORT,
    JointPart,
    Sharing,
    grouped,
    joint_resources,
    offers,
    parts,
    sketch,
)
from anabranch.tuning.joint_tasks import TaskGroup, joint
from anabranch.tuning.select import Selection
from anabranch.tuning.verdict import Verdict

SPEC = gpu()


def selected(us: Sequence[float] = (2.0, 3.0), library: float | None = None) -> Selection:
    """A cell of three branches: each task by written kernels of these times, the last the fastest
    in the order of variants; `library`: the time of ATen's, which then runs it."""
    tasks, chosen, tried = partition(cell(3), Trace(), SPEC), [], {}
    for task in tasks.tasks:
        offered = TritonProvider().kernels(task, SPEC)[: len(us)]
        found = [
            Candidate(kernel, Verdict("ran", Cost(time, "measured")))
            for kernel, time in zip(offered, reversed(us), strict=False)
        ]
        if library is not None:
            own = aten_kernel("aten", task.body)
            found.insert(0, Candidate(own, Verdict("chosen", Cost(library, "measured"))))
        else:
            verdict = replace(found[-1].verdict, reached="chosen")
            found[-1] = replace(found[-1], verdict=verdict)
        won = next(candidate.kernel for candidate in found if candidate.verdict.chosen)
        chosen.append(replace(task, kernel=won))
        tried[task.name] = tuple(found)
    return Selection(replace(tasks, tasks=tuple(chosen)), tried)


def group_of(selection: Selection, known: dict[str, JointPart]) -> TaskGroup:
    alike = grouped(selection.tasks, known, SPEC)
    (group,) = {group for groups in alike for group in groups if len(group) == 3}
    return group


def test_the_fastest_written_kernel_is_brought_first() -> None:
    selection = selected()
    known = parts(selection, SPEC)
    assert known.keys() == {task.name for task in selection.tasks.tasks}
    for task in selection.tasks.tasks:
        tried = selection.candidates[task.name]
        slow, fast = (candidate.kernel.variant for candidate in tried)
        assert isinstance(slow, Variant) and isinstance(fast, Variant)
        assert known[task.name].us == 2.0 and known[task.name].tiles == (fast.tile, slow.tile)
        assert known[task.name].resources.ctas == program(task.body, fast).ctas


@pytest.mark.parametrize(
    ("us", "library", "brings"),
    [
        ((SHORT - 1,), None, True),
        ((SHORT + 1,), None, False),
        ((2.5,), 2.0, True),
        ((3.0,), 2.0, False),
        ((), 2.0, False),
    ],
)
def test_long_tasks_and_those_a_library_runs_much_faster_stay_alone(
    us: Sequence[float], library: float | None, brings: bool
) -> None:
    assert bool(parts(selected(us, library), SPEC)) == brings


def test_what_was_refused_is_not_offered_again() -> None:
    selection, why = selected(), Refused("error 1e9")
    wrong: dict[str, tuple[Candidate, ...]] = {
        name: (tried[0], replace(tried[1], verdict=Verdict("ran", tried[1].verdict.cost, why)))
        for name, tried in selection.candidates.items()
    }
    known = parts(replace(selection, candidates=wrong), SPEC)
    assert all(part.us == 3.0 and len(part.tiles) == 1 for part in known.values())


def test_offers_have_the_fastest_of_equal_warps() -> None:
    selection = selected()
    known = parts(selection, SPEC)
    group = group_of(selection, known)
    (table,) = [offers([group], known)]
    (found,) = table.values()
    assert list(table) == [structure_text(joint(group).body)] and 1 <= len(found) <= 2
    for variant in found:
        assert len(set(re.findall(r"\.w(\d+)", str(variant)))) == 1
        assert program(joint(group).body, variant).text
    makers = Sharing(TritonProvider(), table)
    kernels = makers.kernels(joint(group), SPEC)
    assert [kernel.variant for kernel in kernels] == list(found)
    assert all(k.provider == GENERATED and k.writes_out and k.source for k in kernels)
    assert makers.kernels(Task("other", selection.tasks.tasks[0].body), SPEC) == []
    assert makers.version != replace(makers, offers={}).version


def test_a_group_takes_what_its_parts_take() -> None:
    selection = selected()
    known = parts(selection, SPEC)
    group = group_of(selection, known)
    held = [known[task.name].resources for task in group]
    rough = sketch(group, known).kernel
    assert rough is not None and rough.resources is not None
    assert rough.resources.ctas == sum(one.ctas for one in held)
    body = joint(group).body
    variant = variants(body, SPEC)[0]
    kernel = Kernel(GENERATED, "horizontal", body, variant)
    told = joint_resources(kernel, group, known)
    written = program(body, variant)
    assert (told.ctas, told.threads) == (written.ctas, 32 * written.warps)
    assert told.registers == max(one.registers for one in held)


def test_all_ctas_must_find_room_at_once() -> None:
    selection = selected()
    known = parts(selection, SPEC)
    large = Resources(SPEC.sms * 2, 128, 128, 32768)  # a processor holds four such CTAs
    for count, together in ((1, True), (2, False)):
        most = {name: replace(part, resources=large) for name, part in known.items()}
        names = [task.name for task in group_of(selection, known)]
        for name in names[count + 1 :]:
            del most[name]
        some = {name: part for name, part in most.items() if name in names}
        found = [group for groups in grouped(selection.tasks, some, SPEC) for group in groups]
        assert any(len(group) == 2 for group in found)
        assert all(len(group) == 2 for group in found) or not together
        assert not any(len(group) > 2 for group in found)
