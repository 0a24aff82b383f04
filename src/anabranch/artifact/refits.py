"""How a saved plan takes other weights: a plan's recipe <-> plain data beside the plan.

    state    conv.weight f16[64,3,3,3] ...                names that the model holds
    given    const %conv_weight: f16[64,3,3,3] = 5e.. of ("conv.weight",)
    steps    mul(%0: .., %1: ..) of -1, 4                  calls of functional operators
    relied   %7 "finite"                                   what rewrites saw in values

Reading trusts nothing: calls are checked like those of a graph and must compute and no more, a step
reads only what is there before it, and what a constant is made by has the constant's type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from anabranch.artifact.weights import flatten, restore
from anabranch.ir import derive
from anabranch.ir.conditions import KINDS
from anabranch.ir.graph import Condition, Constant, Graph, Node
from anabranch.ir.plan import Plan
from anabranch.ir.recipe import ModelTensor, Recipe, follows
from anabranch.ir.rule import computable
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.types import DTYPE_NAMES, DTYPES, TensorType, type_of

CheckNode = Callable[[Node, Mapping[str, TensorType] | None], None]
"""Looks at a call by itself, or, given the types of its operands, at what it computes."""

Size = Annotated[int, Field(ge=0, lt=1 << 40)]


class StrictModel(BaseModel):
    """What a saved plan says: nothing else, of these types, and unchanging."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants"
    )


class HeldModel(StrictModel):
    """A tensor of the model under one of its names."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    persistent: bool


class GivenModel(StrictModel):
    """A captured constant: its declaration, the model's names for it, and the type and the name in
    the weights file of a value that no state dict has."""

    constant: str
    names: tuple[str, ...]
    type: str | None
    tensor: str | None


class ConditionModel(StrictModel):
    """A condition; its constant is made by the steps under the condition's own name."""

    type: str
    digest: str
    kind: str
    numbers: tuple[int | float, ...]


class RecipeModel(StrictModel):
    """A recipe, with the steps by which constants are computed."""

    state: tuple[HeldModel, ...]
    given: tuple[GivenModel, ...]
    read: tuple[str, ...]
    sorts: tuple[str, ...]
    steps: tuple[tuple[int, ...], ...]
    made: dict[str, int]
    conditions: tuple[ConditionModel, ...]


def write(plan: Plan, tensors: dict[str, torch.Tensor]) -> RecipeModel | None:
    """The plan's recipe; None where it has none, or none that can be told. The tensors that it
    keeps go to `tensors`."""
    recipe = plan.recipe
    if recipe is None or not recipe.state or recipe.lost:
        return None
    derived = [c for c in plan.tasks.constants if c.derived is not None and follows(c)]
    relied = [replace(c.constant, name=_name(i)) for i, c in enumerate(recipe.conditions)]
    try:
        steps = derive.write(recipe.sources, (*derived, *relied))
    except ValueError:
        return None
    given_models = tuple(_given_model(constant, recipe, tensors) for constant in recipe.sources)
    model = RecipeModel(
        state=tuple(
            HeldModel(
                name=h.name, shape=h.shape, dtype=DTYPE_NAMES[h.dtype], persistent=h.persistent
            )
            for h in recipe.state
            if h.dtype in DTYPE_NAMES
        ),
        given=given_models,
        read=tuple(steps.given),
        sorts=tuple(steps.sorts),
        steps=tuple(map(tuple, steps.steps)),
        made=steps.made,
        conditions=tuple(
            ConditionModel(
                type=c.constant.type.text, digest=c.constant.digest, kind=c.kind, numbers=c.numbers
            )
            for c in recipe.conditions
        ),
    )
    return model


def _name(number: int) -> str:
    return f"?{number}"


def _given_model(
    constant: Constant, recipe: Recipe, tensors: dict[str, torch.Tensor]
) -> GivenModel:
    line = text_graph(Graph("g", (), (constant,), (), ())).splitlines()[1].strip()
    kept = recipe.kept.get(constant.name)
    if kept is None or not kept.numel():
        return GivenModel(constant=line, names=constant.source, type=None, tensor=None)
    name = f"kept{sum(key.startswith('kept') for key in tensors):05}"
    flat = flatten(kept)
    tensors[name] = flat.view(torch.uint8) if kept.dtype.is_complex else flat
    return GivenModel(constant=line, names=constant.source, type=type_of(kept).text, tensor=name)


def read(
    model: RecipeModel,
    plan: Plan,
    tensors: Mapping[str, torch.Tensor],
    check_type: Callable[[TensorType], None],
    check_node: CheckNode,
) -> Plan:
    """The plan with the recipe. ValueError, and what parsers raise, for what is none of it."""
    captured = [_read_given(given_model, check_type) for given_model in model.given]
    steps = derive.Steps(
        given=list(model.read),
        sorts=list(model.sorts),
        steps=[list(step) for step in model.steps],
        made=dict(model.made),
    )
    relied = [
        Constant(_name(i), _type(c.type, check_type), c.digest)
        for i, c in enumerate(model.conditions)
    ]
    derived = [c for c in plan.tasks.constants if c.name in steps.made]
    _check(steps, {c.name: c for c in captured}, (*derived, *relied), check_type, check_node)
    told = {c.name: c for c in derive.told(steps, (*derived, *relied), captured)}
    by_content = {(c.digest, c.type): c.source for c in captured}
    constants = tuple(
        told.get(c.name) or replace(c, source=by_content.get((c.digest, c.type), ()))
        for c in plan.tasks.constants
    )
    for condition in model.conditions:
        if condition.kind not in KINDS or len(condition.numbers) != KINDS[condition.kind].numbers:
            raise ValueError(
                f"there is no condition {condition.kind!r} of {len(condition.numbers)} numbers"
            )
    kept = {
        constant.name: _kept(given_model, constant, tensors, check_type)
        for given_model, constant in zip(model.given, captured, strict=True)
        if given_model.tensor is not None or not constant.type.numel
    }
    _check_values(model, captured, kept, constants)
    recipe = Recipe(
        tuple(ModelTensor(h.name, h.shape, DTYPES[h.dtype], h.persistent) for h in model.state),
        tuple(captured),
        kept,
        tuple(Condition(told[_name(i)], c.kind, c.numbers) for i, c in enumerate(model.conditions)),
    )
    return replace(plan, tasks=replace(plan.tasks, constants=constants), recipe=recipe)


def _read_given(model: GivenModel, check_type: Callable[[TensorType], None]) -> Constant:
    (constant,) = parse_graph(model.constant).constants
    check_type(constant.type)
    return replace(constant, source=model.names)


def _type(text: str, check_type: Callable[[TensorType], None]) -> TensorType:
    type = parse_graph(f"const %held: {text} = -").constants[0].type
    check_type(type)
    return type


def _check_values(
    model: RecipeModel,
    captured: Sequence[Constant],
    kept: Mapping[str, torch.Tensor],
    constants: Sequence[Constant],
) -> None:
    """ValueError where new weights would be asked for something that is neither kept nor held by
    the model, under whatever name."""
    held, by_content = {h.name for h in model.state}, {(c.digest, c.type): c for c in captured}
    read = [c for c in captured if c.name in model.read]
    read += [by_content[c.digest, c.type] for c in constants if c.derived is None and c.source]
    for constant in read:
        if constant.name not in kept and held.isdisjoint(constant.source):
            raise ValueError(f"nobody has the value of %{constant.name}")


def _kept(
    model: GivenModel,
    constant: Constant,
    tensors: Mapping[str, torch.Tensor],
    check_type: Callable[[TensorType], None],
) -> torch.Tensor:
    if model.tensor is None:  # nothing of which there is nothing to keep
        return torch.empty_strided(
            constant.type.shape, constant.type.strides, dtype=constant.type.dtype
        )
    type = _type(model.type or "", check_type)
    if (type.shape, type.dtype) != (constant.type.shape, constant.type.dtype):
        raise ValueError(f"%{constant.name} is kept as {type.text}")
    return restore(tensors[model.tensor].view(type.dtype), type)


def _check(
    steps: derive.Steps,
    captured: Mapping[str, Constant],
    derived: tuple[Constant, ...],
    check_type: Callable[[TensorType], None],
    check_node: CheckNode,
) -> None:
    """ValueError for steps that read what is not there, or do more than compute."""
    sorts = derive.sorts_of(steps)
    for sort in sorts:
        if isinstance(sort, TensorType):
            check_type(sort)
            continue
        check_node(sort, None)
        if not computable(sort):
            raise ValueError(f"a constant is computed by {sort.op}, which does more than compute")
    types: dict[int, TensorType] = {
        -1 - i: captured[name].type for i, name in enumerate(steps.given)
    }
    count, seen = 0, set[tuple[object, ...]]()
    for step in steps.steps:
        if not step or not 0 <= step[0] < len(sorts):
            raise ValueError("a step is of no sort")
        number, *reads = step
        sort = sorts[number]
        wanted = 1 if isinstance(sort, TensorType) else len(set(sort.uses))
        if len(reads) != wanted or not types.keys() >= set(reads):
            raise ValueError("a step reads what is not there")
        operands = {str(i): types[read] for i, read in enumerate(reads)}
        asked = number, *operands.values()
        if isinstance(sort, Node) and asked not in seen:
            check_node(sort, operands)
        if isinstance(sort, TensorType) and not _alike(operands["0"], sort):
            raise ValueError(f"{operands['0'].text} is laid out as {sort.text}")
        seen.add(asked)
        results = (sort,) if isinstance(sort, TensorType) else sort.types
        types.update(enumerate(results, count))
        count += len(results)
    if {c.name for c in derived} != steps.made.keys():
        raise ValueError("a constant is made that the plan does not have")
    for constant in derived:
        if types.get(steps.made[constant.name]) != constant.type:
            raise ValueError(f"%{constant.name} is made of another type")


def _alike(type: TensorType, other: TensorType) -> bool:
    return (type.shape, type.dtype) == (other.shape, other.dtype)
