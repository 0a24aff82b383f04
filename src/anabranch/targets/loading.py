"""From a plan to tensors and calls: what every target that really runs has in common.

`Placed` holds one tensor per value, cut from the arena where the plan says; a task becomes a call
without arguments that reads and writes those tensors. What decides *when* calls run is the target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from anabranch.errors import TargetError
from anabranch.ir import ops
from anabranch.ir.deterministic_switch import in_order
from anabranch.ir.domains import ANY, Domain, domains
from anabranch.ir.graph import Node, types
from anabranch.ir.plan import Plan
from anabranch.ir.samples import delicate
from anabranch.ir.state import overwrites_few
from anabranch.ir.task import (
    IN_ORDER,
    IN_PLACE_IN_ORDER,
    Kernel,
    Task,
    alias_roots,
    slices,
    value_types,
    writes_over,
)
from anabranch.ir.types import TensorType, copy_into, once, type_of
from anabranch.kernels.writers import overwriter, writer, writes_there
from anabranch.targets.calling import UserOperators

LaunchCall = Callable[[], None]
CPU = torch.device("cpu")
POISON = 0xFF
"""Every byte of a fresh arena: a floating-point value that nobody wrote reads as NaN."""


class Runner(Protocol):
    """Makes the call that runs a task with a kernel of one provider: it reads and writes `values`,
    and may use `workspace` (bytes, None if the kernel asked for none)."""

    def __call__(
        self, task: Task, values: dict[str, Tensor], workspace: Tensor | None
    ) -> LaunchCall:
        """A call without arguments that runs the task; TargetError if it cannot be made."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan's memory and calls: `values` by name, `calls` by task, in no particular order. `call`
    makes the call of a task of the plan that has another kernel, on the same memory. `operators`:
    those of the user's among the calls. `inputs`: all buffers, the places of `states` last."""

    arena: Tensor
    values: dict[str, Tensor]
    inputs: tuple[Tensor, ...]
    calls: dict[str, LaunchCall]
    call: Callable[[Task], LaunchCall]
    operators: UserOperators
    states: Mapping[str, Tensor] = field(default_factory=dict)


class LoadedPlan:
    """What plans have in common that are loaded on any device: memory by address and by name."""

    plan: Plan
    _placed: Placed

    @property
    def arena(self) -> Tensor:
        """One flat tensor of bytes, in which values and workspaces have their offsets, at the same
        addresses as long as the plan is loaded."""
        return self._placed.arena

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that the last run left its results in, in the plan's order."""
        return tuple(self._placed.values[ref.name] for ref in self.plan.tasks.outputs)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The buffers a call copies its inputs into."""
        return self._placed.inputs

    @property
    def states(self) -> Mapping[str, Tensor]:
        """The places of states, by the names of their inputs."""
        return self._placed.states

    def strays(self) -> str:
        """Which bytes of the arena hold something else than what they were filled with, though no
        value or workspace lies there; "" if none do."""
        return strays(self.plan, self._placed.arena)


def check_providers(plan: Plan, runners: Mapping[str, Runner], why: str, next: str) -> None:
    """TargetError, with this reason and advice, for a kernel that nothing here runs."""
    for task in plan.tasks.tasks:
        if task.kernel is not None and task.kernel.provider not in runners:
            needs = f"task {task.name} needs kernels of provider {task.kernel.provider!r}"
            raise TargetError(needs, why, next)


def needs_values(plan: Plan) -> bool:
    """Whether the plan's operators may read values that are computed on the way alone, or that
    nobody but its caller knows: drawn inputs are none to run it on."""
    tasks, bases = plan.tasks, alias_roots(plan.tasks)
    safe = {value.name for value in tasks.inputs} | {value.name for value in tasks.constants}
    safe.update(name for name, base in bases.items() if base in safe)
    return delicate((task.body for task in tasks.tasks), safe)


def place(
    plan: Plan,
    device: torch.device,
    runners: Mapping[str, Runner],
    contents: Mapping[str, Tensor] | None = None,
    arena: Tensor | None = None,
    states: Mapping[str, Tensor] | None = None,
    beside: Placed | None = None,
) -> Placed:
    """Allocate the arena, constants and input buffers of a plan and prepare its tasks. `contents`:
    what buffers hold at first; the others hold numbers that operators may read, as far as those
    are known that read them. `arena`: that of another plan, used here as well if it is no smaller
    than this plan's. `states`: the places of states, by name. Without, a run leaves no
    states behind that another run would go on from, for a plan is run many times to be timed: what
    copies a new value to its place leaves it beside, and only single elements are written over.
    `beside`: the same plan with other constants, whose arena and inputs are used here as well."""
    tasks = plan.tasks
    if beside is not None:
        arena = beside.arena
    if arena is None or arena.numel() < plan.arena_bytes:
        arena = torch.full((plan.arena_bytes,), POISON, dtype=torch.uint8, device=device)
    values: dict[str, Tensor] = {}
    readable: dict[str, Domain] = {}
    now = {state.name: state.value for state in tasks.states if state.value is not None}
    there = beside.values if beside is not None else states or {}
    for task in () if beside is not None else tasks.tasks:
        for name, domain in domains(task.body).items():
            readable[name] = domain.meet(readable.get(name, ANY))
    for declared in tasks.inputs:
        name = declared.name
        if name in there:
            values[name] = there[name]
            continue
        values[name] = _some(declared.type, device, readable.get(name, ANY))
        if now.get(name) is not None:
            copy_into(values[name], now[name])
        if contents is not None and name in contents:
            copy_into(values[name], contents[name])
    inputs = tuple(values[declared.name] for declared in tasks.inputs)
    for constant in tasks.constants:
        if constant.value is None:
            raise TargetError(
                f"constant %{constant.name} of plan {tasks.name} has no value",
                "the plan was read without its weights",
                "load it from the saved file, or compile the model again",
            )
        values[constant.name] = _with_strides(constant.value.to(device), constant.type)
    table, starts = value_types(tasks), {}
    for slot in plan.slots:
        if slot.space == "arena":
            values[slot.value] = _cut(arena, slot.offset, table[slot.value])
            starts[slot.value] = slot.offset
    for name, lies in slices(tasks).items():
        start = starts[lies.whole] + lies.offset * table[name].dtype.itemsize
        values[name] = _cut(arena, start, table[name])
    own = {state.name for state in tasks.states}.difference(states or ())
    for task in tasks.tasks:
        for new, old in task.overwrites.items():
            apart = old in own and not overwrites_few(task.body, new)
            values[new] = _empty(table[new], device) if apart else values[old]
    pool = {slot.value for slot in plan.slots if slot.space == "pool"}
    late = _aliases(tasks.aliases, alias_roots(tasks), pool, values, device)
    workspaces = {w.task: arena[w.offset : w.offset + w.nbytes] for w in plan.workspaces}

    def call(task: Task) -> LaunchCall:
        assert task.kernel is not None, f"task {task.name} has no kernel"
        own = runners[task.kernel.provider](task, values, workspaces.get(task.name))
        renamed = [node for name in task.writes for node in late.get(name, ())]
        return operators.timed(task, _then_aliases(own, renamed, values, device))

    operators = UserOperators(tasks.name)
    calls = {task.name: call(task) for task in tasks.tasks}
    held = {state.name: values[state.name] for state in tasks.states}
    return Placed(arena, values, inputs, calls, call, operators, held)


def with_own_constants(plan: Plan) -> Plan:
    """The plan with copies of its constants."""
    copies = [
        replace(constant, value=None if constant.value is None else constant.value.clone())
        for constant in plan.tasks.constants
    ]
    return replace(plan, tasks=replace(plan.tasks, constants=tuple(copies)))


def kept_places(plan: Plan) -> frozenset[int]:
    """Places of the outputs that are new values of states, and that no call returns."""
    leaves = plan.signature.outputs if plan.signature is not None else ()
    returned, outputs = {leaf.ref.name for leaf in leaves if leaf.ref}, plan.tasks.outputs
    places = {state.output for state in plan.tasks.states}
    return frozenset(place for place in places if outputs[place].name not in returned)


def copied(outputs: Sequence[Tensor], kept: Collection[int]) -> tuple[Tensor, ...]:
    """Copies of the outputs that the caller owns, but for those at the places `kept`: states."""
    if not kept:
        return tuple([out.clone() for out in outputs])
    return tuple([out if i in kept else out.clone() for i, out in enumerate(outputs)])


def held_at(plan: Plan, placed: Placed, arena: bool = True) -> dict[str, dict[int, int]]:
    """By kind the bytes at each address that a placed plan holds; without the `arena` where that is
    another plan's."""
    kinds = {
        "weights": [placed.values[constant.name] for constant in plan.tasks.constants],
        "inputs": [placed.values[value.name] for value in plan.tasks.call_inputs],
        "states": list(placed.states.values()),
        "arena": [placed.arena] if arena else [],
    }
    return {kind: _storages(tensors) for kind, tensors in kinds.items()}


def _storages(tensors: Sequence[Tensor]) -> dict[int, int]:
    held = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in held if storage.nbytes()}


def strays(plan: Plan, arena: Tensor) -> str:
    """Where bytes that no value and no workspace of the plan owns are not as a fresh arena has
    them; "" if nowhere. What lies between the elements of a value belongs to others too."""
    owned = torch.zeros(arena.numel(), dtype=torch.bool, device=arena.device)
    named: list[tuple[int, int, str]] = []
    table = value_types(plan.tasks)
    for slot in plan.slots:
        if slot.space == "arena":
            named.append((slot.offset, slot.nbytes, f"%{slot.value}"))
            type, size = table[slot.value], table[slot.value].dtype.itemsize
            strides = (*(stride * size for stride in type.strides), 1)
            owned.as_strided((*type.shape, size), strides, slot.offset).fill_(True)
    for w in plan.workspaces:
        named.append((w.offset, w.nbytes, f"the workspace of {w.task}"))
        owned[w.offset : w.offset + w.nbytes] = True
    written = ((arena != POISON) & ~owned).nonzero()
    if not written.numel():
        return ""
    first = int(written[0])
    gaps = [(max(start - first, first - start - size + 1), name) for start, size, name in named]
    near, name = min(gaps, default=(first, "the arena"))
    return f"{written.numel()} bytes are written outside all places, {near} B beside {name}"


def run_aten(
    task: Task,
    values: dict[str, Tensor],
    workspace: Tensor | None,
    device: torch.device = CPU,
) -> LaunchCall:
    """The runner of provider "aten": the kernel's body, operator by operator. `device`: where
    operators that read no tensor make theirs."""
    kernel = task.kernel
    assert kernel is not None
    declared = types(task.body)
    own: dict[str, Tensor] = {}
    """What only this task sees: two bodies may use one name, and run at once."""
    steps = [
        _step(node, kernel, task.writes, declared, values, own, device)
        for node in kernel.body.nodes
    ]

    def call() -> None:
        try:
            for step in steps:
                step()
        finally:
            own.clear()

    def ordered() -> None:
        with in_order():
            call()

    return ordered if kernel.variant in (IN_ORDER, IN_PLACE_IN_ORDER) else call


def _step(
    node: Node,
    kernel: Kernel,
    writes: Sequence[str],
    declared: Mapping[str, TensorType],
    values: dict[str, Tensor],
    own: dict[str, Tensor],
    device: torch.device,
) -> LaunchCall:
    over = {kernel.body.outputs[state.output].name for state in kernel.body.states}
    writes_out = kernel.writes_out and bool(set(writes) & set(node.results))
    direct = writes_out and writes_there(node, types(kernel.body))
    write = writer(node.op) if direct else None
    if writes_over(kernel) and any(name in over for name in node.results):
        write = overwriter(node)
    unread = {name: type.dtype for name, type in zip(node.results, node.types, strict=True)}
    overload = ops.resolve(node.op)
    device_kwargs: dict[str, Any] = {}
    borrows: dict[str, bool] = {}  # by result, known after the first run

    inner = {name for operator in kernel.body.nodes for name in operator.results}.difference(writes)

    def either(name: str) -> Tensor:
        return own[name] if name in inner else values[name]

    get = either if inner.intersection(node.uses) else values.__getitem__

    def run() -> None:
        args = [ops.map_refs(arg, get) for arg in node.args]
        kwargs = {key: ops.map_refs(arg, get) for key, arg in node.kwargs}
        if write is not None:
            results = [values[name] if name in writes else unread[name] for name in node.results]
            write(results, *args, **kwargs)
            return
        result = overload(*args, **kwargs, **device_kwargs)
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        for name, tensor in zip(node.results, tensors, strict=True):
            if name not in writes:
                own[name] = tensor
            elif writes_out:  # a slice of a join: whoever cannot write there pays for a copy
                values[name].copy_(tensor)
            else:
                if name not in borrows:
                    borrows[name] = _shares_memory(tensor, (*args, *kwargs.values()))
                whole = tensor.clone() if borrows[name] else tensor
                values[name] = _as_declared(whole, declared[name])

    if ops.takes_device(node.op):
        device_kwargs["device"] = device
    return run


def _shares_memory(result: Tensor, arguments: Sequence[Any]) -> bool:
    """Whether an operator returned what it was given, or a view of it. Some do, and their schemas
    say otherwise; but the arena's bytes are given to others as soon as the operand is dead."""
    flat = [
        value for arg in arguments for value in (arg if isinstance(arg, (tuple, list)) else (arg,))
    ]
    memory = result.untyped_storage().data_ptr()
    return result.numel() > 0 and any(
        isinstance(value, Tensor) and value.untyped_storage().data_ptr() == memory for value in flat
    )


def _as_declared(tensor: Tensor, type: TensorType) -> Tensor:
    """A result in the strides that its readers were chosen for. A kernel that answers in others
    pays for the copy, and is timed with it."""
    if ops.same_layout(type_of(tensor), type):
        return tensor
    return copy_into(_empty(type, tensor.device), tensor)


def _aliases(
    aliases: Sequence[Node],
    bases: Mapping[str, str],
    pool: set[str],
    values: dict[str, Tensor],
    device: torch.device,
) -> dict[str, list[Node]]:
    """Make the aliases of placed values now; those of pool values, by the value, for later."""
    late: dict[str, list[Node]] = {}
    for node in aliases:
        base = bases[node.name]
        if base in pool:
            late.setdefault(base, []).append(node)
        else:
            results = ops.call(node, values.__getitem__, device)
            values.update(zip(node.results, results, strict=True))
    return late


def _then_aliases(
    call: LaunchCall, nodes: Sequence[Node], values: dict[str, Tensor], device: torch.device
) -> LaunchCall:
    if not nodes:
        return call

    def both() -> None:
        call()
        for node in nodes:
            results = ops.call(node, values.__getitem__, device)
            values.update(zip(node.results, results, strict=True))

    return both


def _cut(arena: Tensor, offset: int, type: TensorType) -> Tensor:
    flat = arena[offset : offset + type.nbytes].view(type.dtype)
    return flat.as_strided(type.shape, type.strides)


def _some(type: TensorType, device: torch.device, domain: Domain) -> Tensor:
    """An input buffer with content that is safe to index by and fair to time: zeros would run
    faster than data, and uninitialised integers may point anywhere."""
    tensor = _empty(type, device)
    if not type.dtype.is_floating_point or type.dtype.itemsize == 1:
        once(tensor).fill_(1 if domain.nonzero else 0)
        return tensor
    if domain.low is not None:
        once(tensor).zero_()
        return tensor
    generator = torch.Generator(device).manual_seed(0)
    if domain.unit:
        once(tensor).uniform_(generator=generator)
    else:
        once(tensor).normal_(generator=generator)
    if domain.positive:
        once(tensor).abs_()
    return tensor


def _empty(type: TensorType, device: torch.device) -> Tensor:
    return torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=device)


def _with_strides(tensor: Tensor, type: TensorType) -> Tensor:
    if tuple(tensor.stride()) == type.strides:
        return tensor
    return copy_into(_empty(type, tensor.device), tensor)
