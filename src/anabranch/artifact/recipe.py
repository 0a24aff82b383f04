"""The recipe of a plan: a plan and the graph it was captured as -> how new weights become its own.

    plan %w ── derived of ──> %conv_weight (conv.weight), %norm_var (norm.running_var), %mask
                                                                                          └ kept

Values that a plan relies on and no state dict brings are kept beside it: tensors that the model's
code makes, and buffers that are not persistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anabranch.ir.conditions import conditioned, index_bounds
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.plan import Plan
from anabranch.ir.recipe import ModelTensor, Recipe, bare, follows, leaves
from anabranch.ir.types import TensorType


def with_recipe(
    plan: Plan, captured: Graph, rewritten: Sequence[Graph], state: tuple[ModelTensor, ...]
) -> Plan:
    """The plan with its recipe. `rewritten`: graphs whose conditions it depends on, the last of
    them its own. The condition of a lookup's index is a condition of the plan, too, where the
    lookup is folded.
    """
    by_content = {(c.digest, c.type): c for c in captured.constants}
    constants = tuple(_sourced(c, by_content) for c in plan.tasks.constants)
    graphs = {id(graph): graph for graph in (captured, *rewritten)}.values()  # some are one
    looked_up = [conditioned(graph, index_bounds(graph)) for graph in graphs]
    relied = dict.fromkeys(c for graph in looked_up for c in graph.conditions)
    lost = [c.name for c in leaves(constants) if (c.digest, c.type) not in by_content]
    held = [c for c in (*constants, *(condition.constant for condition in relied)) if follows(c)]
    recipe = Recipe(
        state,
        tuple(map(bare, captured.constants)),
        _kept(held, captured, {tensor.name for tensor in state if tensor.persistent}, constants),
        tuple(relied),
        f"nobody says how %{lost[0]} was computed" if lost else "",
    )
    tasks = replace(plan.tasks, constants=constants)
    return replace(plan, tasks=tasks, recipe=recipe)


def _sourced(constant: Constant, by_content: Mapping[tuple[str, TensorType], Constant]) -> Constant:
    """One that was captured says where it comes from, under whatever name."""
    same = by_content.get((constant.digest, constant.type))
    if constant.derived is not None or same is None:
        return constant
    return replace(constant, source=same.source)


def _kept(
    held: Iterable[Constant],
    captured: Graph,
    persistent: set[str],
    constants: Iterable[Constant],
) -> dict[str, Tensor]:
    """Copies of what derived constants are computed of and no state dict has."""
    values = {c.name: c.value for c in captured.constants if c.value is not None}
    device = next((c.value.device for c in constants if c.value is not None), None)
    computed = [constant for constant in held if constant.derived is not None]
    return {
        leaf.name: _copy(values[leaf.name], device)
        for leaf in leaves(computed)
        if leaf.name in values and persistent.isdisjoint(leaf.source)
    }


def _copy(value: Tensor, device: torch.device | None) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # it may be written to in any mode
        return value.to(device, copy=True)
