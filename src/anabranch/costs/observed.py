"""What a machine did with schedules: the data that a model of simultaneous kernels is fitted to.

One JSON file, packed where its name ends in .gz. A *task* is what one kernel takes alone and of the
machine; a *graph* is a list of tasks, each by its number, with the dependencies between them; a
*run* is one schedule of a graph, its tasks called t0, t1, ..., and what the device took for it. All
runs of a graph were timed in turns with each other, in one process; tasks of a network alone just
before, in the same process.

    {"version": 1, "spec": {...}, "sessions": [{"date": ..., "commit": ..., "command": ...}],
     "tasks": [{"label": "cudnn.convolution 5: ...", "us": 4.4, "resources": {...}, ...}, ...],
     "graphs": [{"name": "zoo:resnet50", "kind": "network", "batch": 1, "dtype": "fp16",
                 "tasks": [0, 1, 1, 2], "preds": [[], [0], [0], [1, 2]],
                 "runs": [{"schedule": "schedule critical-2 {\\n  t0 @0 ...", "us": 91.2}]}]}

Graphs are whole networks, or small ones made to show one thing: equal tasks side by side
("copies"), a chain beside another ("pair"), forks and joins of tiny kernels ("steps").
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anabranch.cache.whole_file import whole_file
from anabranch.costs.recorded import Provenance
from anabranch.costs.work import bound
from anabranch.errors import TargetError
from anabranch.ir.dag import Dag
from anabranch.ir.schedule import Schedule, parse_schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources

VERSION = 1
GraphKind = Literal["network", "copies", "pair", "steps"]
KernelSource = Literal["library", "all"]


class _ObservationModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ObservedTask(_ObservationModel):
    """A kernel: its time alone, in a chain of itself; `launches` of it; its arithmetic and traffic
    at peak rates in microseconds (`costs.work`); bytes of its weights and of what else crosses its
    border; `key`: its name in a profile."""

    key: str
    label: str = ""
    us: float = Field(ge=0)
    spread: float = Field(default=0.0, ge=0)
    launches: int = Field(default=1, ge=0)
    busy_us: float = 0.0
    moved_us: float = 0.0
    flops: int = 0
    weights: int = 0
    traffic: int = 0
    resources: Resources | None = None


class ObservedRun(_ObservationModel):
    """A schedule in its text form, and the median and spread of the device's microseconds."""

    schedule: str
    us: float = Field(gt=0)
    spread: float = Field(default=0.0, ge=0)


class ObservedGraph(_ObservationModel):
    """Tasks by number, their dependencies by position, and the runs; `session`: who took them;
    `of`: the network whose tasks a small graph is made of; `kernels`: whether generated ones were
    among those chosen from."""

    name: str
    kind: GraphKind
    batch: int = 1
    dtype: str = ""
    of: str = ""
    kernels: KernelSource = "library"
    session: int = 0
    tasks: tuple[int, ...]
    preds: tuple[tuple[int, ...], ...]
    runs: tuple[ObservedRun, ...]

    @model_validator(mode="after")
    def _fits(self) -> ObservedGraph:
        if len(self.preds) != len(self.tasks):
            raise ValueError(f"{self.name}: {len(self.tasks)} tasks, {len(self.preds)} preds")
        if any(not 0 <= p < v for v, preds in enumerate(self.preds) for p in preds):
            raise ValueError(f"{self.name}: a dependency on a task that comes later, or on none")
        return self


class Observations(_ObservationModel):
    """All that was taken on one machine."""

    version: int = VERSION
    spec: TargetSpec
    sessions: tuple[Provenance, ...] = ()
    tasks: tuple[ObservedTask, ...] = ()
    graphs: tuple[ObservedGraph, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Observations:
        for graph in self.graphs:
            if any(not 0 <= task < len(self.tasks) for task in graph.tasks):
                raise ValueError(f"{graph.name} names a task that is not there")
        return self


def merged(parts: Sequence[Observations]) -> Observations:
    """All of them as one, of one kind of machine: tasks and sessions are counted on. TargetError if
    they are of several, or a network is in two of them."""
    whole = parts[0]
    for part in parts[1:]:
        if part.spec.name != whole.spec.name:
            why = f"they are of {whole.spec.name} and {part.spec.name}"
            raise TargetError("cannot merge observations", why, "merge those of one machine")
        twice = _networks(whole) & _networks(part)
        if twice:
            what = " ".join(map(str, min(twice)))
            raise TargetError("cannot merge observations", f"{what} is in two", "leave one out")
        shift, session = len(whole.tasks), len(whole.sessions)
        has_steps = any(graph.kind == "steps" for graph in whole.graphs)
        graphs = tuple(
            graph.model_copy(
                update={
                    "tasks": tuple(task + shift for task in graph.tasks),
                    "session": graph.session + session,
                }
            )
            for graph in part.graphs
            if graph.kind != "steps" or not has_steps  # tiny kernels count once
        )
        update = {
            "tasks": (*whole.tasks, *part.tasks),
            "sessions": (*whole.sessions, *part.sessions),
            "graphs": (*whole.graphs, *graphs),
        }
        whole = whole.model_copy(update=update)
    return whole


def _networks(observations: Observations) -> set[tuple[str, str, int, str]]:
    return {
        (graph.name, graph.dtype, graph.batch, graph.kernels)
        for graph in observations.graphs
        if graph.kind == "network"
    }


def load_observations(path: str | os.PathLike[str]) -> Observations:
    """What this file holds. TargetError if there is none, or not one that we can read."""
    advice = "take it again with `anabranch record --schedules`"
    try:
        data = Path(path).read_bytes()
        data = gzip.decompress(data) if Path(path).suffix == ".gz" else data
        observations = Observations.model_validate_json(data)
    except (OSError, EOFError, ValidationError) as broken:
        why = str(broken)
        if isinstance(broken, ValidationError):
            error = broken.errors()[0]
            why = f"{'.'.join(map(str, error['loc'])) or 'file'}: {error['msg']}"
        raise TargetError(f"cannot read the observations {path}", why, advice) from None
    if observations.version != VERSION:
        why = f"it has format {observations.version}, this version reads {VERSION}"
        raise TargetError(f"cannot read the observations {path}", why, advice)
    return observations


def save_observations(observations: Observations, path: str | os.PathLike[str]) -> None:
    """Write it compactly, the file replaced as a whole."""
    place = Path(path)
    data = observations.model_dump_json(exclude_defaults=True).encode()
    data = gzip.compress(data, mtime=0) if place.suffix == ".gz" else data + b"\n"
    with whole_file(place) as stream:
        stream.write(data)


def observed_dag(graph: ObservedGraph) -> Dag:
    """The dependencies, with the names that the schedules use."""
    edges = [(p, v) for v, preds in enumerate(graph.preds) for p in preds]
    return Dag.of(tuple(f"t{i}" for i in range(len(graph.tasks))), edges)


def observed_bound(row: ObservedTask) -> bool:
    """Whether its launches go on along their stream alone (`costs.work.bound`), by its label: the
    kernel, its operators, and what goes in and out."""
    kernel, _, rest = row.label.partition(": ")
    return bound(kernel, rest.partition(" of ")[0].split())


def observed_schedule(run: ObservedRun) -> Schedule:
    """The run's schedule. TargetError if its text cannot be read."""
    try:
        return parse_schedule(run.schedule)
    except ValueError as broken:
        raise TargetError(
            "cannot read an observed schedule", str(broken), "take the observations again"
        ) from None
