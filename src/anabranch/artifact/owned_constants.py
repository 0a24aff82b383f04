"""A plan that owns its constants: a plan -> the same plan, each constant in memory of its own.

A captured graph reads the weights of the user's model where they are, and a pass that folds a view
of a weight makes another name of the same memory. A plan must not: whoever changes the model
afterwards (load_state_dict, an optimizer's step, a merged adapter) would change some constants of
the plan and not those that were computed of them.

    model.conv.weight ──── captured %w ──copy──> plan %w       the plan's own
    model.bn.*  ──folded──────────────────────── plan %b       is nobody else's: no copy

Plans of one Compiled share a constant that comes of the same weights with the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from anabranch.ir.graph import Constant, Graph
from anabranch.ir.plan import Plan
from anabranch.ir.recipe import Recipe
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.types import TensorType, copy_into, type_of

Shared = Mapping[tuple[str, TensorType], Tensor]
"""Constants in memory of a Compiled, by digest and type."""


def owned(
    plan: Plan, foreign: Collection[Tensor], device: torch.device | None, shared: Shared
) -> Plan:
    """The plan with constants that nobody else writes to. `foreign`: tensors of the user, whose
    memory is left to him. `device`: where they are to lie; None: where they are. `shared`: what
    other plans of the same Compiled own already."""
    theirs = {tensor.untyped_storage()._cdata for tensor in foreign}
    values: dict[tuple[str, TensorType], Tensor] = {}
    for constant in constants_of(plan.tasks):
        key = constant.digest, constant.type
        if constant.value is not None and key not in values:
            shared_value = shared.get(key)
            values[key] = _own(constant, device, theirs) if shared_value is None else shared_value
    bodies: dict[int, Graph] = {}

    def own(body: Graph) -> Graph:
        if id(body) not in bodies:
            bodies[id(body)] = replace(body, constants=bound(body.constants, values))
        return bodies[id(body)]

    def task(plan_task: Task) -> Task:
        kernel = plan_task.kernel
        held = kernel if kernel is None else replace(kernel, body=own(kernel.body))
        return Task(plan_task.name, own(plan_task.body), held)

    tasks = replace(
        plan.tasks,
        constants=bound(plan.tasks.constants, values),
        tasks=tuple(map(task, plan.tasks.tasks)),
    )
    return replace(plan, tasks=tasks, recipe=_moved(plan.recipe, device))


def _moved(recipe: Recipe | None, device: torch.device | None) -> Recipe | None:
    """What a loaded plan keeps beside its constants, where these are."""
    if recipe is None or device is None:
        return recipe
    return replace(recipe, kept={name: kept.to(device) for name, kept in recipe.kept.items()})


def bound(constants: tuple[Constant, ...], values: Shared) -> tuple[Constant, ...]:
    """The constants with these values; those that have none stay without."""
    return tuple(replace(c, value=values.get((c.digest, c.type))) for c in constants)


def shared_of(plans: Collection[Plan]) -> dict[tuple[str, TensorType], Tensor]:
    """What these plans own."""
    return {
        (constant.digest, constant.type): constant.value
        for plan in plans
        for constant in plan.tasks.constants
        if constant.value is not None
    }


def owned_bytes(plan: Plan) -> int:
    """Bytes of memory that the plan's constants take, and what it keeps to compute them of."""
    held = {}
    for constant in plan.tasks.constants:
        if constant.value is not None and constant.value.device.type != "meta":
            storage = constant.value.untyped_storage()
            held[storage._cdata] = storage.nbytes()
    kept = plan.recipe.kept.values() if plan.recipe is not None else ()
    return sum(held.values()) + sum(tensor.nbytes for tensor in kept)


def constants_of(tasks: TaskGraph) -> Iterator[Constant]:
    """All constants, where they are declared and where tasks and their kernels read them."""
    yield from tasks.constants
    for task in tasks.tasks:
        yield from task.body.constants
        if task.kernel is not None and task.kernel.body is not task.body:
            yield from task.kernel.body.constants


def _own(constant: Constant, device: torch.device | None, theirs: Collection[int]) -> Tensor:
    """The value in memory that holds nothing else."""
    value, type = constant.value, constant.type
    assert value is not None
    device = value.device if device is None or value.device.type == "meta" else device
    storage = value.untyped_storage()
    alone = storage._cdata not in theirs and storage.nbytes() == type.nbytes
    if alone and value.device == device and type_of(value) == type and not value.is_inference():
        return value
    with torch.inference_mode(False), torch.no_grad():  # it may be written to in any mode
        copy = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=device)
        return copy_into(copy, value)
