"""Trying elided concats: a selection with concatenations -> one without those that an elided concat
outruns.

    fitting -> promising -> kernels chosen again for what reads or writes slices -> worth

A kernel that is known already says whether a trial can pay: the parts must be written by kernels
that write where they are told, and if the fastest of those, each into memory of its own, lose more
than the concatenation takes, an elided concat loses too. Only kernels that were fast before are
tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.errors import TargetError
from anabranch.fusion.concat_elision import fitting, touching, with_elided, worth
from anabranch.ir.key import digest_text, structure_text
from anabranch.ir.protocols import Cost, Costs, KernelOffer, Provider, offered
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import PLAIN_VARIANT, Kernel, Task, TaskGraph, leaves, wholes
from anabranch.ir.variant import Variant
from anabranch.trace import Trace
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.select import MOST_KERNELS, Selection, SelectionConfig, select

RETRIED_KERNELS = 3
"""Of each provider's kernels for a task, how many are tried again: strides change times a little,
and hardly the order of what differs much."""
TriedConcats = Mapping[str, frozenset[tuple[str, str, str]]]
"""By structure: provider, name and variant of the kernels to try."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A provider's kernels that write where they are told, of those that are `tried`, or of all for
    what is new; ATen's others run and then copy. What is `free` may allocate its results."""

    of: Provider
    tried: TriedConcats
    free: frozenset[str]

    @property
    def name(self) -> str:
        """The name of the provider whose kernels these are."""
        return self.of.name

    @property
    def version(self) -> str:
        """The provider's version with what is known and free, for both decide which kernels there
        are."""
        known_names = sorted((key, sorted(names)) for key, names in self.tried.items())
        return f"{self.of.version} writing {digest_text(repr((known_names, sorted(self.free))))}"

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """That kernel, told to write into the concatenation; ValueError if it cannot."""
        kernel = self.of.kernel(task, spec, name, variant)
        told = kernel if structure_text(task.body) in self.free else _told(kernel)
        if told is None:
            raise ValueError(f"kernel {name} {variant} does not write where it is told")
        return told

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """The provider's kernels for the task that write where they are told, known ones and ATen's
        alone where some are known."""
        return [offer.write() for offer in self.kernel_offers(task, spec)]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels; those that are not known are not written."""
        key, every = structure_text(task.body), self.of.kernel_offers(task, spec)
        names = self.tried.get(key)
        kept = [o for o in every if names is None or o.provider == "aten" or _name(o) in names]
        if key in self.free:
            return kept
        return [told for offer in kept if (told := _told_offer(offer)) is not None]


def with_elided_concats(
    selection: Selection, config: SelectionConfig, costs: Costs, trace: Trace, hopeful: bool = False
) -> Selection:
    """The selection with elided concats where they are faster; the very same one if nowhere.
    `hopeful`: also where that shows only in the whole, if at all."""
    plain = selection.tasks
    names = _promising(selection, costs.task, trace)
    if not names:
        return selection
    whole = with_elided(plain, names)
    changed = touching(plain, whole)
    again = writing(changed, whole, selection.candidates, config.providers)
    try:
        cut = replace(whole, tasks=changed)
        picked = select(cut, replace(config, providers=again, most=MOST_KERNELS), trace)
    except TargetError as failed:
        trace.add("refused", "fusion", ", ".join(names), str(failed).partition("\n")[0])
        return selection
    if unproved := [task.name for task in picked.tasks.tasks if _at_last(task)]:
        why = f"no kernel runs {unproved[0]} in slices, but eager's, which nothing has checked"
        trace.add("refused", "fusion", ", ".join(names), why)
        return selection
    kept = worth(plain, _with_kernels(whole, picked.tasks), costs.task, trace, hopeful)
    if not kept:
        return selection
    tasks = _with_kernels(with_elided(plain, kept), picked.tasks)
    was = {task.name: task for task in plain.tasks}
    tried = {
        task.name: (selection if task is was.get(task.name) else picked).candidates[task.name]
        for task in tasks.tasks
    }
    return Selection(tasks, tried)


def writing(
    changed: Sequence[Task],
    whole: TaskGraph,
    tried: Mapping[str, Sequence[Candidate]],
    providers: Sequence[Provider],
) -> tuple[Writing, ...]:
    """The providers, to choose kernels again for tasks that read or write slices."""
    parts = {name for node in whole.elided_concats for name in node.uses}
    fast_names: dict[str, frozenset[tuple[str, str, str]]] = {}
    told: set[str] = set()
    for task in changed:
        key = structure_text(task.body)
        if task.name in tried:
            fast_names[key] = fast_names.get(key, frozenset()) | _fast(tried[task.name])
        if parts.intersection(task.writes):
            told.add(key)
    free = frozenset(fast_names.keys() - told)
    return tuple(Writing(provider, fast_names, free) for provider in providers)


def _told(kernel: Kernel) -> Kernel | None:
    """The kernel, writing where it is told; None if it cannot."""
    if kernel.writes_out or kernel.provider != "aten":
        return kernel if kernel.writes_out else None
    return replace(kernel, writes_out=True, launches=kernel.launches + 1)


def _told_offer(offer: KernelOffer) -> KernelOffer | None:
    """The same of an offer: generated kernels write where they are told, and stay unwritten."""
    if offer.generated:
        return offer
    told = _told(offer.write())
    return None if told is None else offered(told)


def _promising(selection: Selection, cost: Callable[[Task], Cost], trace: Trace) -> list[str]:
    """The concatenations whose parts are made by kernels that write where they are told and are
    fast enough, as far as is known. Those that would lie in one memory all or none; if none, then
    without the outermost."""
    plain, promising = selection.tasks, list[str]()
    names = fitting(plain, trace)
    while names:
        whole, left = with_elided(plain, names), list[str]()
        homes, parts = wholes(whole), leaves(whole)
        for home in dict.fromkeys(homes.get(name, name) for name in names):
            inside = [name for name in names if homes.get(name, name) == home]
            why = _why_not_promising(inside, parts[home], selection, cost)
            if why:
                trace.add("refused", "fusion", ", ".join(inside), str(why))
                left += [name for name in inside if name != home]
            else:
                promising += inside
        names = tuple(left)
    return promising


def _why_not_promising(
    inside: Sequence[str],
    parts: Collection[str],
    selection: Selection,
    cost: Callable[[Task], Cost],
) -> Refused | None:
    """Why these concatenations, joined of these parts, lose; None if they may win."""
    tasks = {task.name: task for task in selection.tasks.tasks}
    lost = -sum(cost(tasks[name]).us for name in inside)
    for task in tasks.values():
        if set(task.writes).isdisjoint(parts):
            continue
        tried = selection.candidates.get(task.name, ())
        usable = (c.verdict.usable for c in tried if c.kernel.writes_out)
        told = [took.us for took in usable if took is not None]
        if not told:
            return Refused(f"no kernel of {task.name} writes where it is told")
        lost += min(told) - cost(task).us
    why = f"kernels that write where they are told lose {lost:.2f} us more than it takes"
    return Refused(why) if lost >= 0 else None


def _at_last(task: Task) -> bool:
    """Whether it runs as eager runs it, for want of a kernel that passed."""
    return task.kernel is not None and task.kernel.variant == PLAIN_VARIANT


def _fast(tried: Sequence[Candidate]) -> frozenset[tuple[str, str, str]]:
    """The fastest of each provider."""
    by_provider: dict[str, list[tuple[float, tuple[str, str, str]]]] = {}
    for c in tried:
        if c.verdict.usable is not None:
            by_provider.setdefault(c.kernel.provider, []).append(
                (c.verdict.usable.us, _name(c.kernel))
            )
    return frozenset(
        name for ranked in by_provider.values() for _, name in sorted(ranked)[:RETRIED_KERNELS]
    )


def _name(kernel: Kernel | KernelOffer) -> tuple[str, str, str]:
    return kernel.provider, kernel.name, str(kernel.variant)


def _with_kernels(tasks: TaskGraph, chosen: TaskGraph) -> TaskGraph:
    """Kernels of the chosen tasks for those of the same body that have none."""
    named = {task.name: task for task in chosen.tasks}

    def kernel_of(task: Task) -> Task:
        if task.kernel is not None:
            return task
        chosen_task = named[task.name]
        assert chosen_task.body == task.body, "sets of elided concats share no task"
        return chosen_task

    return replace(tasks, tasks=tuple(map(kernel_of, tasks.tasks)))
