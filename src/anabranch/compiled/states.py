"""The states of a compiled model: what all its plans read and write.

    path       place                          begins as
    cache.k    the model's own tensor, or     the value when it was first compiled,
    steps      memory of the compiled model   or that of a loaded file

Plans of one compiled model share places by the model's names for them: what the plan for a prompt
wrote the plan for one token reads. A session has places of its own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anabranch.compiled.entry import Entry
from anabranch.compiled.sharing import waiting
from anabranch.ir.graph import State
from anabranch.ir.plan import Plan


@dataclass(frozen=True, slots=True)
class StateMemory:
    """By what the model calls each state: its place, the value it began with, and all its names."""

    places: dict[str, Tensor] = field(default_factory=dict)
    first: dict[str, Tensor] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def learn(self, entry: Entry) -> None:
        """The states of one more plan, as they are now."""
        if entry.run is None:
            return
        for state in entry.plan.tasks.states:
            place = self.places.setdefault(state.path, entry.run.states[state.name])
            self.first.setdefault(state.path, place.clone())
            self.names.setdefault(state.path, state.source or (state.name,))

    def present(self) -> dict[str, Tensor]:
        """The states as they are, under each of their names."""
        return {name: self.places[path] for path in self.places for name in self.names[path]}

    def over(self, weights: Mapping[str, Tensor], wanted: Container[str]) -> dict[str, Tensor]:
        """These weights with the states as they are, where they are among them or `wanted`."""
        now = self.present().items()
        return {**weights, **{n: x for n, x in now if n in wanted or n in weights}}

    def paths(self) -> dict[str, str]:
        """By each name of a state the one under which it is found."""
        return {name: path for path, names in self.names.items() for name in names}


def write(entries: Sequence[Entry], memory: StateMemory, values: Mapping[str, Tensor]) -> None:
    """Give states these values, by path, while no call of these plans runs."""
    with waiting(entries), torch.no_grad():
        for path, value in values.items():
            memory.places[path].copy_(value)


def with_values(plan: Plan, values: Mapping[str, Tensor]) -> Plan:
    """The plan whose states begin with these values, by path."""

    def begun(state: State) -> State:
        return replace(state, value=values.get(state.path, state.value))

    tasks = plan.tasks
    if not tasks.states:
        return plan
    return replace(plan, tasks=replace(tasks, states=tuple(map(begun, tasks.states))))
