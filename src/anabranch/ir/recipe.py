"""Recipe: how the constants of a plan come of the weights of a model.

A plan's constants say it themselves (`Constant.source`, `Constant.derived`); a recipe is what they
leave out: the names that the model holds, the values of what its code makes and weights are
computed with, and the conditions under which the rewritten graph is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from anabranch.ir.graph import Condition, Constant, Derivation


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of the model under one of its names. `persistent`: it is part of `state_dict`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    persistent: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """`state`: all that the model holds. `kept`: by the name of a captured constant, values that
    no state dict has and that derived constants are computed of. `conditions`: what the graph
    relies on. `sources`: the captured constants that derivations begin with, without values.
    `lost`: why the plan cannot be refitted, "" if it can."""

    state: tuple[ModelTensor, ...]
    sources: tuple[Constant, ...]
    kept: Mapping[str, torch.Tensor] = field(compare=False, repr=False)
    conditions: tuple[Condition, ...] = ()
    lost: str = ""


def bare(constant: Constant) -> Constant:
    """The constant for a derivation, which keeps no memory alive."""
    return replace(constant, value=None)


def follows(constant: Constant) -> bool:
    """Whether its value comes of a weight that the model holds by name, and may be refitted."""
    return any(leaf.source for leaf in leaves([constant]))


def leaves(constants: Iterable[Constant]) -> Iterator[Constant]:
    """The constants that these were computed of, once each: those that are not derived."""
    todo: list[Constant | Derivation] = list(constants)
    seen: set[int] = set()
    told: set[str] = set()
    while todo:
        item = todo.pop()
        how = item.derived if isinstance(item, Constant) else item
        if how is None:
            assert isinstance(item, Constant)
            if item.name not in told:
                told.add(item.name)
                yield item
        elif id(how.reads) not in seen:
            seen.add(id(how.reads))
            todo += how.reads.values()
