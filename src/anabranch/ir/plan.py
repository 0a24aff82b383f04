"""Plan: everything needed to run, and nothing that runs by itself.

A value lives in a *slot*: the caller's input, a constant, a region of the one arena, the graph's
own pool (results of kernels that allocate), the place of a state, the memory of the value it is an
alias of, or a slice of the elided concat it is a part of. A result may lie *over* a value that its
kernel reads and nobody needs afterwards, where the kernel reads each element before it writes the
one of the same place.

    plan resnet50 for NVIDIA H200
      arena 2,473,984 B, pool 4,096 B, 53 tasks on 3 streams, 4 waits
      %relu                     arena            0  +1605632
      %relu_1                   arena      1605632  +802816
      %add                      arena      1605632  +802816   over %relu_1
      %softmax                  pool    until linear
      workspace of conv3        arena      2408448  +65536
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from anabranch.ir.ambient import Ambient
from anabranch.ir.graph import Ref
from anabranch.ir.input_guards import InputGuard
from anabranch.ir.recipe import Recipe
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph

SpaceName = Literal["input", "state", "constant", "arena", "pool", "alias", "part"]
ALIGNMENT = 512
"""Bytes: what the GPU allocator guarantees and cuDNN's fastest kernels ask for."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lives; a new value of a state where the state does. `offset` and `nbytes` in
    bytes, of the arena; a pool value may be released before the launch of `release` (a task name),
    or is held to the end (None). `over`: the value of the arena whose place it takes, of those that
    its own task reads; "" if it takes none."""

    value: str
    space: SpaceName
    offset: int = 0
    nbytes: int = 0
    release: str | None = None
    over: str = ""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A region of the arena that a task's kernel uses while it runs."""

    task: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a nested structure: a value by name, or a plain constant (int, float, bool, str,
    None) that the plan was specialised to. `offset`: where the tensor must begin in its memory, in
    elements, if the model counts from the start of that (`as_strided`). `number`: results of one
    name are one tensor where this is the same, too. A name has as many numbers as inputs that its
    value is written to, in that order, and then those of tensors that the model makes."""

    ref: Ref | None
    literal: int | float | bool | str | None = None
    offset: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """A condition on a value: where it does not hold, a call raises as the model does. `linalg`: it
    is 0 everywhere, which is how operators of torch.linalg say that they succeeded, `text` the name
    of the function; `assert` and `true`: it is not 0, `text` what is said otherwise. They differ on
    a GPU, where the device asserts the first and the call waits for the second. `ref` None: nobody
    knows how to make the check, and no call does."""

    kind: Literal["linalg", "assert", "true"]
    ref: Ref | None
    text: str = ""
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Signature:
    """How calls look: the tree of (args, kwargs) and of the result as torch's pytree text, and
    their leaves in order. `mutations`: inputs that the model writes to, and the value they get.
    `ambient`: torch's switches that calls are made under; `asked`: what else of the inputs must be
    as it was, for the model asked; `distinct`: no two of them may be one tensor, for the model goes
    another way then; `exact`: it does, too, for a tuple in place of a list, or a dict in another
    order; `checks`: what the model checks of values."""

    input_tree: str
    inputs: tuple[Leaf, ...]
    output_tree: str
    outputs: tuple[Leaf, ...]
    mutations: tuple[tuple[str, Ref], ...] = ()
    ambient: Ambient = field(default_factory=Ambient)
    asked: tuple[InputGuard, ...] = ()
    distinct: bool = False
    exact: bool = False
    checks: tuple[ValueCheck, ...] = ()

    @property
    def read(self) -> list[Ref]:
        """The values that a call reads at its end: to write to inputs, to return, to check."""
        refs = [ref for _, ref in self.mutations]
        refs += [leaf.ref for leaf in self.outputs if leaf.ref is not None]
        return [*refs, *(check.ref for check in self.checks if check.ref is not None)]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that a plan takes for intermediate values: the arena, and what kernels allocate."""

    arena_bytes: int
    pool_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of what kernels allocate beside it, together."""
        return self.arena_bytes + self.pool_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Tasks with kernels, a schedule over them, and a place for every byte."""

    tasks: TaskGraph
    schedule: Schedule
    slots: tuple[Slot, ...]
    workspaces: tuple[Workspace, ...]
    arena_bytes: int
    spec: TargetSpec
    signature: Signature | None = None
    recipe: Recipe | None = field(default=None, compare=False, repr=False)
    """How its constants come of the weights of a model; None if nobody told."""
    graph: bool = True
    """Whether its launches are captured as one CUDA graph: an operator that launches on a stream of
    its own is not captured, and must be launched anew by each call."""

    @property
    def pool_bytes(self) -> int:
        """What kernels that allocate hold at once: per stream the most, for an allocator hands a
        freed block only to the stream it came from, and its own rounding is not counted."""
        allocated = {slot.value: slot for slot in self.slots if slot.space == "pool"}
        own = {task.name: task.kernel.temporary for task in self.tasks.tasks if task.kernel}
        freed: dict[str | None, int] = {}
        for slot in allocated.values():
            freed[slot.release] = freed.get(slot.release, 0) + aligned(slot.nbytes)
        writes = {task.name: task.writes for task in self.tasks.tasks}
        live: dict[int, int] = {}
        peak: dict[int, int] = {}
        for launch in self.schedule.launches:
            gained = sum(
                aligned(allocated[v].nbytes) for v in writes[launch.task] if v in allocated
            )
            held = live.get(launch.stream, 0) - freed.get(launch.task, 0) + gained
            live[launch.stream] = held
            during = held + aligned(own.get(launch.task, 0))
            peak[launch.stream] = max(peak.get(launch.stream, 0), during)
        return sum(peak.values())

    @property
    def peak_bytes(self) -> int:
        """Memory for intermediate values: arena (workspaces in it) and pool; no weights, inputs."""
        return self.footprint.peak_bytes

    @property
    def footprint(self) -> Footprint:
        """Bytes that intermediate values take; weights and inputs do not count."""
        return Footprint(self.arena_bytes, self.pool_bytes)


def aligned(nbytes: int) -> int:
    """The bytes rounded up to a multiple of ALIGNMENT, as every place in an arena is.

    >>> aligned(1), aligned(512), aligned(513)
    (512, 512, 1024)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def text_plan(plan: Plan) -> str:
    """What a person reads of a plan; `artifact.file` writes the form that is read back."""
    lines = [
        f"plan {plan.tasks.name} for {plan.spec.name}",
        f"  arena {plan.arena_bytes:,} B, pool {plan.pool_bytes:,} B, "
        f"{_counted(len(plan.tasks.tasks), 'task')} on "
        f"{_counted(plan.schedule.streams, 'stream')}, {_counted(plan.schedule.waits, 'wait')}",
    ]
    for slot in plan.slots:
        place = f"{slot.offset:>10}  +{slot.nbytes}" if slot.space == "arena" else ""
        place += f"   over %{slot.over}" if slot.over else ""
        if slot.space == "pool":
            place = f"until {slot.release}" if slot.release else "to the end"
        lines.append(f"  %{slot.value:<24} {slot.space:<8}{place}".rstrip())
    for item in plan.workspaces:
        what = f"workspace of {item.task}"
        lines.append(f"  {what:<25} arena   {item.offset:>10}  +{item.nbytes}")
    return "\n".join(lines) + "\n"
