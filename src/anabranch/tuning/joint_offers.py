"""Sharing a launch: which tasks may, and by which kernels: a selection with times -> offers.

    conv1   contraction:64x32x64.w4 2.2 us, ..w8 2.4      offered together:
    conv2   contraction:32x32x64.w8 2.9 us, ..w4 3.0        horizontal:64x32x64.w4+32x32x64.w4
    pool    window:16x32u2.w4 1.9 us                        horizontal:64x32x64.w8+32x32x64.w8

The gain that a task could bring is known from when its kernel was chosen: every kernel written for
it has a time. The parts of a launch have equally many warps, so each brings its fastest of so many.
All CTAs of a launch must find room at once: what waits for a second turn had better be launched
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.costs.work import CONTRACT, per_processor
from anabranch.ir.components import components
from anabranch.ir.key import digest_text, structure_text
from anabranch.ir.protocols import KernelOffer, Provider, offered
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Resources, Task, TaskGraph
from anabranch.ir.tiles import HORIZONTAL, HorizontalTile, PartTile
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.horizontal import joint_tiles
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.joint_tasks import MOST_TASKS, TaskGroup, joint, levelled, name_of
from anabranch.tuning.select import Selection

SHORT = 12.0
"""Microseconds: what a fork or a launch costs is nothing beside a longer task."""
SLOWER = 1.3
"""A task that a library runs may join in if a generated kernel takes no longer than this times
as long."""
EACH = 2
"""Kernels that are offered for one group; one for many leaves, which take long to compile."""
Offers = Mapping[str, tuple[Variant, ...]]
"""Variants to try, by structure."""


@dataclass(frozen=True, slots=True)
class JointPart:
    """What a task brings: its time by its fastest written kernel, the tiles of these, fastest
    first, and the CTAs and resources of the fastest."""

    us: float
    tiles: tuple[PartTile, ...]
    resources: Resources


@dataclass(frozen=True, slots=True)
class Sharing:
    """A provider's kernels of horizontal fusions, as they are offered, by structure."""

    of: Provider
    offers: Offers

    @property
    def name(self) -> str:
        """The name of the provider whose kernels these are."""
        return self.of.name

    @property
    def version(self) -> str:
        """The provider's version with all offers, for they decide which kernels there are."""
        return f"{self.of.version} horizontal {digest_text(repr(sorted(self.offers.items())))}"

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """As the provider writes it."""
        return self.of.kernel(task, spec, name, variant)

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """One kernel for each variant that was offered for a task of this structure."""
        kernels: list[Kernel] = []
        for variant in self.offers.get(structure_text(task.body), ()):
            try:
                kernels.append(self.of.kernel(task, spec, HORIZONTAL, variant))
            except ValueError:  # of a part with so many warps there is none
                continue
        return kernels

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels: only those that can be written are any."""
        return list(map(offered, self.kernels(task, spec)))


def parts(selection: Selection, spec: TargetSpec) -> dict[str, JointPart]:
    """By name the tasks that may share a launch with others, and what each would bring."""
    part_of: dict[str, JointPart] = {}
    for task in selection.tasks.tasks:
        written = _written(selection.candidates.get(task.name, ()))
        if task.kernel is None or not written:
            continue
        us, best = written[0]
        verdicts = (c.verdict for c in selection.candidates[task.name])
        chosen = next((v.cost for v in verdicts if v.chosen), None)
        if us > SHORT or (chosen is not None and us > SLOWER * chosen.us):
            continue
        if len(components(task.body)) == 1:
            part_of[task.name] = JointPart(
                us, tuple(tile for _, tile in written), _resources(task, best)
            )
    return part_of


def grouped(
    tasks: TaskGraph, part_of: Mapping[str, JointPart], spec: TargetSpec
) -> list[list[TaskGroup]]:
    """Groups of tasks that could be one launch each, those of equal structure together: by levels
    from the start, then by levels from the end what these have otherwise. The one may share tasks
    with the other, or wait for it in a circle, so they are kept apart."""
    us = {name: part.us for name, part in part_of.items()}
    fits = partial(_fits, part_of=part_of, spec=spec)
    groups_by_key: dict[tuple[bool, str], list[TaskGroup]] = {}
    seen: set[str] = set()
    for late in (False, True):
        for group in levelled(tasks, us, fits, late):
            if name_of(group) not in seen:
                seen.add(name_of(group))
                key = late, structure_text(joint(group).body)
                groups_by_key.setdefault(key, []).append(group)
    return list(groups_by_key.values())


def offers(
    groups: Sequence[TaskGroup], part_of: Mapping[str, JointPart]
) -> dict[str, tuple[Variant, ...]]:
    """By structure of the whole the variants to try."""
    table: dict[str, tuple[Variant, ...]] = {}
    for group in groups:
        each = EACH if len(group) <= MOST_TASKS else 1
        tiles = joint_tiles([part_of[task.name].tiles for task in group])[:each]
        table.setdefault(structure_text(joint(group).body), tuple(map(Variant, tiles)))
    return table


def sketch(group: TaskGroup, part_of: Mapping[str, JointPart]) -> Task:
    """The group as one task, as far as it is known before it has a kernel."""
    task = joint(group)
    ctas = sum(part_of[part.name].resources.ctas for part in group)
    kernel = Kernel(GENERATED, HORIZONTAL, task.body, writes_out=True)
    return replace(task, kernel=replace(kernel, resources=_largest(group, part_of, ctas)))


def joint_resources(
    kernel: Kernel, group: TaskGroup, part_of: Mapping[str, JointPart]
) -> Resources:
    """The resources of a group's launch, by those of its parts: CTAs of all, all else of the part
    that needs most."""
    written = program(kernel.body, kernel.variant)
    held = _largest(group, part_of, written.ctas)
    return replace(held, threads=32 * written.warps)


def _largest(group: Sequence[Task], part_of: Mapping[str, JointPart], ctas: int) -> Resources:
    own = [part_of[task.name].resources for task in group]
    return Resources(
        ctas,
        max(resources.threads for resources in own),
        max(resources.registers for resources in own),
        max(resources.shared for resources in own),
        any(resources.estimated for resources in own),
    )


def _written(tried: Sequence[Candidate]) -> list[tuple[float, PartTile]]:
    """Times and tiles of the generated kernels, the fastest first."""
    timed_tiles: list[tuple[float, PartTile]] = []
    for candidate in tried:
        variant, took = candidate.kernel.variant, candidate.verdict.usable
        if took is None or not isinstance(variant, Variant):
            continue
        if not isinstance(variant.tile, HorizontalTile):
            timed_tiles.append((took.us, variant.tile))
    return sorted(timed_tiles, key=lambda pair: pair[0])


def _resources(task: Task, tile: PartTile) -> Resources:
    """Of the task's fastest generated kernel; what nobody has told is taken as of a middling
    contraction."""
    written = program(task.body, Variant(tile))
    same = task.kernel is not None and task.kernel.variant == Variant(tile)
    told = task.kernel.resources if task.kernel and same else None
    held = told or CONTRACT
    return replace(held, ctas=written.ctas, threads=32 * written.warps)


def _fits(group: Sequence[Task], part_of: Mapping[str, JointPart], spec: TargetSpec) -> bool:
    """Whether all CTAs run at once, each with what the part that needs most takes."""
    ctas = sum(part_of[task.name].resources.ctas for task in group)
    return ctas <= spec.sms * per_processor(_largest(group, part_of, ctas), spec)
