"""Costs from a profile: what another machine measured, for planning without it.

A profile is one JSON file: the machine, when and how it was recorded, a time for each task key,
and what kernels took of the machine. What it does not hold is estimated, and says so.

    {"version": 1, "spec": {...}, "provenance": {"date": "2026-11-20", ...},
     "tasks": {"9f3c...": {"us": 4.4, "spread": 0.1, "label": "conv 64x56x56 -> 64"}},
     "kernels": {"17ab...": {"workspace": 0, "temporary": 0, "launches": 1, "resources": {...}}}}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer

from anabranch.cache.whole_file import whole_file
from anabranch.costs.estimate_correction import Corrected
from anabranch.costs.forecast import begun, forecast
from anabranch.costs.former_kernels import with_former_names
from anabranch.costs.per_task import Memo
from anabranch.costs.profile_limits import disbelieved
from anabranch.costs.roofline import Roofline
from anabranch.costs.significance import comparable
from anabranch.costs.work import contracts_in_f32, work
from anabranch.errors import TargetError
from anabranch.ir.key import digest_text, structure_text, task_text
from anabranch.ir.protocols import Cost, Probe, ScheduledGraphs
from anabranch.ir.schedule import Schedule, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph

VERSION = 1
LONGEST_US, MOST_BYTES, MOST_LAUNCHES = 1e12, 1 << 50, 1 << 20
"""What is believed of a task or a kernel."""


class _ProfileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Timing(_ProfileModel):
    """A task's median and spread in microseconds; `label` is for people who read the file."""

    us: float = Field(ge=0, le=LONGEST_US)
    spread: float = Field(default=0.0, ge=0, le=LONGEST_US)
    label: str = ""


class KernelFact(_ProfileModel):
    """What a kernel takes of the machine, as `Probe` has it."""

    workspace: int = Field(default=0, ge=0, le=MOST_BYTES)
    temporary: int = Field(default=0, ge=0, le=MOST_BYTES)
    launches: int = Field(default=1, ge=0, le=MOST_LAUNCHES)
    resources: Resources | None = None

    @field_serializer("resources")
    def _written(self, resources: Resources | None) -> dict[str, int] | None:
        """Without `estimated`: a profile keeps what a compiler or a GPU told."""
        if resources is None:
            return None
        return {name: n for name, n in asdict(resources).items() if name != "estimated" or n}


class Provenance(_ProfileModel):
    """When, with which versions, of which commit and by which command something was recorded."""

    date: str = ""
    commit: str = ""
    versions: dict[str, str] = {}
    command: str = ""


class Profile(_ProfileModel):
    """A recorded machine. `elsewhere`: of tasks that were timed on another one with the same
    multiprocessors, its name."""

    version: int = VERSION
    spec: TargetSpec
    provenance: Provenance = Provenance()
    elsewhere: dict[str, str] = {}
    tasks: dict[str, Timing] = {}
    kernels: dict[str, KernelFact] = {}


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in this file. TargetError if there is none, or not one that we can read."""
    try:
        profile = Profile.model_validate_json(Path(path).read_bytes())
    except (OSError, ValueError) as broken:
        first = _first(broken) if isinstance(broken, ValidationError) else str(broken)
        why = broken.strerror if isinstance(broken, OSError) else first
        raise TargetError(
            f"cannot read the profile {path}",
            str(why),
            "record it again with `anabranch record`, or choose another target",
        ) from None
    if profile.version != VERSION:
        raise TargetError(
            f"cannot read the profile {path}",
            f"it has format {profile.version}, this version reads {VERSION}",
            "record it again with `anabranch record`",
        )
    taken = {key: fact.resources for key, fact in profile.kernels.items() if fact.resources}
    if refused := disbelieved(profile.spec, taken):
        raise TargetError(
            f"cannot read the profile {path}",
            str(refused),
            "record it again with `anabranch record`, or choose another target",
        )
    return profile


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write it readably, sorted by key, so that two recordings can be compared line by line; the
    file is replaced as a whole."""
    ordered = profile.model_copy(
        update={
            "elsewhere": dict(sorted(profile.elsewhere.items())),
            "tasks": dict(sorted(profile.tasks.items())),
            "kernels": dict(sorted(profile.kernels.items())),
        }
    )
    with whole_file(path) as stream:
        stream.write(f"{ordered.model_dump_json(indent=1)}\n".encode())


def timing_key(task: Task, tf32: bool) -> str:
    """A task's name in a profile. Where its time depends on tf32, both can be held."""
    return digest_text(task_text(task) + ("\ntf32" if tf32 and contracts_in_f32(task) else ""))


def kernel_key(kernel: Kernel) -> str:
    """A kernel's name in a profile: who made it, in which variant, what it computes. Its code does
    not count, as for its time: a template is edited more often than profiles are recorded."""
    return digest_text(_without_code(kernel))


def kernel_text(kernel: Kernel) -> str:
    """All that a kernel is, its code too: what a machine remembers of it is known by this."""
    return _without_code(kernel) + kernel.source


def _without_code(kernel: Kernel) -> str:
    title = f"{kernel.provider} {kernel.name} {kernel.variant}\n"
    return title + structure_text(kernel.body)


def probe_of(fact: KernelFact) -> Probe:
    """The facts of a kernel that a profile keeps, as a probe of the device would tell them, sizes
    in bytes."""
    return Probe(fact.workspace, fact.temporary, fact.launches, fact.resources)


def find_timing(profile: Profile, task: Task, tf32: bool, key: str) -> Timing | None:
    """The profile's entry of a task, by its `timing_key` of today or, where its kernel had another
    name when the profile was recorded, by that of then."""
    timing = profile.tasks.get(key)
    if timing is None and task.kernel is not None and (then := with_former_names(task.kernel)):
        timing = profile.tasks.get(timing_key(replace(task, kernel=then), tf32))
    return timing


def find_probe(profile: Profile, kernel: Kernel) -> Probe | None:
    """The profile's entry of a kernel, by its name of today or of then; profiles of before
    2026-11-27 have keys of the code, too."""
    for named in (kernel, with_former_names(kernel)):
        if named is not None:
            fact = profile.kernels.get(kernel_key(named))
            fact = fact or profile.kernels.get(digest_text(kernel_text(named)))
            if fact is not None:
                return probe_of(fact)
    return None


class Estimates(Protocol):
    """What answers for tasks that nobody timed."""

    def task(self, task: Task) -> Cost:
        """The estimated time of one task alone."""

    def most(self, task: Task) -> float:
        """Microseconds that it takes at most in nine of ten cases; infinite where nobody knows."""


ExpectedResources = Callable[[Kernel, TargetSpec], Resources | None]
"""What a kernel is expected to take of such a machine; None where nobody can tell."""


class Recorded:
    """Costs of the profile's machine. `spec`, if given, is that machine with other switches (tf32);
    `fallback` answers for tasks that are not in the profile, `expected` for the resources of
    kernels that it lacks."""

    settled = True
    cold = None

    def __init__(
        self,
        profile: Profile,
        fallback: Estimates | None = None,
        spec: TargetSpec | None = None,
        expected: ExpectedResources | None = None,
    ) -> None:
        self.profile = profile
        self.spec = spec or profile.spec
        self._expected = expected
        self._fallback = fallback or Roofline(self.spec)
        self._keys = Memo(lambda task: timing_key(task, self.spec.tf32))
        self._timings = Memo(
            lambda task: find_timing(profile, task, self.spec.tf32, self._keys(task))
        )
        self._work = Memo(lambda task: work(task, self.spec))
        self._unknown: dict[str, None] = {}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that were asked for and are not in the profile, once each."""
        return tuple(self._unknown)

    @property
    def estimates(self) -> Estimates:
        """What answers for tasks that are not in the profile."""
        return self._fallback

    def missing(self, tasks: TaskGraph) -> int:
        """How many of these tasks the profile does not hold."""
        return sum(self.task(task).source == "estimated" for task in tasks.tasks)

    def task(self, task: Task) -> Cost:
        """The recorded time, or the fallback's for a task that the profile lacks, which is
        noted."""
        timing = self._timings(task)
        if timing is not None:
            return Cost(timing.us, "recorded", timing.spread)
        self._unknown.setdefault(self._keys(task))
        return self._fallback.task(task)

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        """None for kernels that were not recorded where another way to run the task was, but for
        those that `comparable` takes for faster all the same."""
        return comparable(tasks, [self.task(task) for task in tasks], self._fallback.most)

    def probe(self, tasks: TaskGraph) -> dict[str, Probe]:
        """For tasks whose kernels the profile knows what they allocate and launch, by task name;
        for others the resources that they are expected to take, where somebody can tell."""
        probes = {
            task.name: self._probe(task.kernel) for task in tasks.tasks if task.kernel is not None
        }
        return {name: probe for name, probe in probes.items() if probe is not None}

    def _probe(self, kernel: Kernel) -> Probe | None:
        probe = find_probe(self.profile, kernel)
        if self._expected is None or (probe is not None and probe.resources is not None):
            return probe
        expected = self._expected(kernel, self.spec)
        if probe is not None:
            return replace(probe, resources=expected)
        if expected is None:
            return None
        return Probe(kernel.workspace, kernel.temporary, kernel.launches, expected)

    def schedule(self, tasks: TaskGraph, schedule: Schedule) -> Cost:
        """Simulated; "recorded" only if the profile holds every task."""
        timeline = self.timeline(tasks, schedule)
        return Cost(timeline.latency, timeline.source)

    def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        """The predicted cost of each schedule, in their order."""
        return [self.schedule(tasks, schedule) for schedule in schedules]

    def race(self, plans: ScheduledGraphs, in_a_row: int = 1, captures: int = 1) -> list[Cost]:
        """A task that was not recorded is estimated as those of these plans that were came out:
        numbers of two scales do not say which plan is faster. By how much it is faster or slower
        than the first one may change with all of these estimates, which may be off (`Corrected`):
        that change is the spread. Parts, which run several times in a row, are of several graphs,
        and have none."""
        tasks = [task for plan, _ in plans for task in plan.tasks]
        costs = [(task, self.task(task), self._fallback.task(task)) for task in tasks]
        recorded = [entry for entry in costs if entry[1].source != "estimated"]
        scale = Corrected(recorded)

        def raced(longer: float = 1.0) -> list[Timeline]:
            def cost(task: Task) -> Cost:
                said = self.task(task)
                if said.source != "estimated":
                    return said
                said = scale.of(task, said)
                return replace(said, us=said.us * longer)

            return [forecast(*plan, cost, spec, self._work) for plan in plans]

        spec = begun(self.spec) if in_a_row > 1 else self.spec
        lines = raced()
        if len(recorded) == len(costs) or in_a_row > 1 or not scale.error:
            return [Cost(line.latency, line.source) for line in lines]
        later = raced(1.0 + scale.error)
        off = [late.latency - line.latency for late, line in zip(later, lines, strict=True)]
        return [
            Cost(line.latency, line.source, spread=abs(more - off[0]))
            for line, more in zip(lines, off, strict=True)
        ]

    def timeline(self, tasks: TaskGraph, schedule: Schedule) -> Timeline:
        """What would run when on the recorded machine."""
        return forecast(tasks, schedule, self.task, self.spec, self._work)


def _first(broken: ValidationError) -> str:
    error = broken.errors()[0]
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])
