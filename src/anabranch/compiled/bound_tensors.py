"""The tensors that a training step writes to are still those of model and optimizer.

optimizer.load_state_dict(...)      makes new tensors: their values come to the places of the
                                    plan, and the optimizer has these places again
optimizer.state.clear()             the values of a first step come there
model.load_state_dict(...)          writes in place: nothing is to be done, but for what the step
                                    only reads, of which plans have copies: they are refitted
weight.data = ...                   comes to the memory that the plan writes to, which it has again
model.to(...), another parameter    refused: the optimizer would not have it either
model.register_buffer(...)          refused, as layers and parameters are that come later
model.eval()                        refused, where modules compute something else then
parameter.requires_grad_(...)       refused: the plan trains those that it was compiled to train
group["betas"] = ...                refused: the plan has the number it was compiled with
group["lr"] = ...                   read by each call
scaler.set_growth_interval(...)     refused: the plan has the number it was compiled with
loss.backward(), and no zero_grad() refused: eager adds the next gradients to these
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_not
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from anabranch.compiled.bound_modes import BoundModes
from anabranch.compiled.registries import Registries
from anabranch.compiled.scaling import check_scaling, scaling_of
from anabranch.errors import InputError, WeightsError
from anabranch.frontend.optimizer import initialise
from anabranch.frontend.state import same_memory
from anabranch.frontend.training import LR, Held, StatePlace, Training, places_of
from anabranch.frontend.varying import MAY_VARY, OF_SCHEDULES

REQUIRES, DTYPE = attrgetter("requires_grad"), attrgetter("dtype")


@dataclass(slots=True)
class BoundTensors:
    """`weights`: the places of the model's `tensors`, and `trained` whether each requires
    gradients; `registries`: all that modules register;
    `moments`: the places of the optimizer's, with `owners` the parameters that they are of;
    `states`: all that the optimizer has, by parameter; `kept_gradients`: parameters that show a
    gradient after an update, and this gradient; `settings`: of each group what may not change, with
    `members` its parameters and `updated` those that are trained. `memory`: where weights lie,
    `layouts` how; `modes`: of modules; `hooks`: how many torch had given out when none was one that
    matters. `counts`: tensors that are equal and stay so, with `versions` the sum of
    how often they had been written to; `fixed`: tensors that the step only reads, of which plans
    have copies, with `written` that sum; `scaling`: how the scaler's scale changes."""

    training: Training
    weights: list[tuple[str, StatePlace]]
    registries: Registries
    tensors: list[Tensor]
    trained: list[bool]
    memory: list[Tensor]
    layouts: list[tuple[Any, ...]]
    modes: BoundModes
    hooks: int
    moments: list[StatePlace]
    owners: list[Tensor]
    states: list[Any]
    kept_gradients: list[tuple[Tensor, Tensor]]
    state: Any
    groups: Any
    settings: list[dict[str, Any]]
    members: list[list[int]]
    updated: list[tuple[str, Tensor]]
    counts: list[list[Tensor]]
    versions: int
    fixed: list[Tensor]
    written: int
    scaling: dict[str, Any]

    @staticmethod
    def of(
        training: Training, held: Held, fixed: Collection[str], written: Collection[str]
    ) -> BoundTensors:
        """Those of a step that was just captured. `fixed`: names of tensors that plans have copies
        of; `written`: of those that they write to, without the moments of what has no gradient."""
        copied = [t for name, t in zip(held.names, held.tensors, strict=True) if name in fixed]
        optimizer = training.optimizer
        moving = held.ids(written)
        owned: list[tuple[Tensor, StatePlace]] = [
            (parameter, (values, key, value))
            for parameter, values in optimizer.state.items()
            for key, value in values.items()
            if id(value) in moving
        ]
        gradients = [(p, training.gradients.get(id(p))) for p in training.trained()]
        alike = ([held.tensors[i] for i in places] for places in held.alike)
        counts = [[tensor for tensor in each if id(tensor) in moving] for each in alike]
        weights, members = list(places_of(training)), _members(optimizer.param_groups)
        tensors = [tensor for _, (_, _, tensor) in weights]
        in_groups = {parameter for group in members for parameter in group}
        named_weights = [(name, tensor) for name, (_, _, tensor) in weights]
        return BoundTensors(
            training,
            weights,
            Registries.of(
                (path, mapping)
                for _, module in training.modules()
                for path, part in module.named_modules()
                for mapping in (part._parameters, part._buffers)
            ),
            tensors,
            [tensor.requires_grad for tensor in tensors],
            [tensor.detach() for tensor in tensors],
            _layouts(tensors),
            BoundModes.of(training.loss_fn, *(module for _, module in training.modules())),
            -1,
            [place for _, place in owned],
            [parameter for parameter, _ in owned],
            list(optimizer.state.values()),
            [(p, kept) for p, kept in gradients if kept is not None and id(kept) in moving],
            optimizer.state,
            optimizer.param_groups,
            [_settings(group, training.varying) for group in optimizer.param_groups],
            members,
            [(name, t) for name, t in named_weights if t.requires_grad and id(t) in in_groups],
            counts,
            _versions(counts),
            copied,
            _versions([copied]),
            scaling_of(training.scaler),
        )

    def refitted(self) -> bool:
        """Whether a tensor was written to of which plans have a copy. It is said once."""
        now = _versions([self.fixed])
        changed, self.written = now != self.written, now
        return changed

    def follow(self) -> None:
        """Take what was loaded. InputError where a setting is another one, WeightsError where a
        tensor is."""
        optimizer = self.training.optimizer
        self.modes.check()
        if _members(optimizer.param_groups) != self.members:
            raise _other_groups(self.members, _members(optimizer.param_groups))
        if (
            optimizer.state is not self.state
            or optimizer.param_groups is not self.groups
            or len(optimizer.state) != len(self.states)
            or any(map(is_not, optimizer.state.values(), self.states))
        ):
            self._take_state()
        if list(map(REQUIRES, self.tensors)) != self.trained:
            self._refuse_other_gradients()
        now = _layouts(self.tensors)
        if now != self.layouts:
            for at, (name, _) in enumerate(self.weights):
                if now[at] != self.layouts[at]:
                    _come_back(name, self.tensors[at], self.memory[at])
        if self.registries.changed():
            self._check_registries()
        if any(mapping.get(key) is not tensor for mapping, key, tensor in self.moments):
            self._take_state()
        for group, was in zip(self.groups, self.settings, strict=True):
            for key, value in was.items():
                if group.get(key) != value:
                    raise InputError(
                        f"{key} was {value} when the step was compiled, and is {group.get(key)}",
                        "a plan reads the learning rate anew, and of other settings those that "
                        "compile_step was told of",
                        _told_of(optimizer, key),
                    )
        check_scaling(self.scaling, scaling_of(self.training.scaler))
        if self.counts and _versions(self.counts) != self.versions:
            self.check_counts()

    def stepped(self) -> None:
        """A call has written to these tensors. Have parameters show the gradients of the last
        update, where these are kept."""
        self.versions = _versions(self.counts)
        for parameter, gradient in self.kept_gradients:
            parameter.grad = gradient

    def check_gradients(self) -> None:
        """InputError where a gradient waits that nothing has cleared: eager adds the next one to
        it. One of zeros goes, as zero_grad at the end of a step has it. InputError also for a hook
        of a parameter or of the optimizer that came after the step was compiled."""
        gradients = (tensor.grad for _, tensor in self.updated)
        if any(map(is_not, gradients, repeat(None))):
            for name, tensor in self.updated:
                self._check_no_gradient(name, tensor)
        if RemovableHandle.next_id != self.hooks:
            self._check_no_hooks()

    def _check_no_hooks(self) -> None:
        """Asked only where torch has given out a hook, of anything, since there was none here."""
        given_out = RemovableHandle.next_id
        for name, tensor in self.updated:
            after = getattr(tensor, "_post_accumulate_grad_hooks", None)
            if tensor._backward_hooks or after:
                raise _hooked(f"the parameter {name}")
        optimizer = self.training.optimizer
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise _hooked("the optimizer")
        self.hooks = given_out

    def _check_no_gradient(self, name: str, parameter: Tensor) -> None:
        waiting = parameter.grad
        if waiting is None or waiting is self.training.gradients.get(id(parameter)):
            return
        if waiting.layout is not torch.strided or torch.any(waiting != 0):
            raise InputError(
                f"{name} has a gradient already",
                "eager would add the next one to it, and a plan knows of its own gradients alone",
                "call optimizer.zero_grad() after steps of your own",
            )
        parameter.grad = None

    def _take_state(self) -> None:
        """The optimizer has loaded a state, or begins anew: its values, in the plan's places."""
        optimizer = self.training.optimizer
        begun, moved = initialise(optimizer), {*map(id, self.owners)}
        for parameter in begun:
            if id(parameter) not in moved:  # no plan writes its state, and eager makes none
                del optimizer.state[parameter]
        moments: list[StatePlace] = []
        for owner, (_, key, place) in zip(self.owners, self.moments, strict=True):
            values = optimizer.state.get(owner, {})
            value = values.get(key)
            if not isinstance(value, Tensor) or value.shape != place.shape:
                description = (
                    f"of shape {list(value.shape)}" if isinstance(value, Tensor) else "missing"
                )
                raise WeightsError(
                    f"the optimizer's {key} is {description}",
                    f"the step was compiled for one of shape {list(place.shape)}",
                    "load the state of the same optimizer, or compile the step again",
                )
            if value is not place:
                with torch.no_grad():
                    place.copy_(value)
                values[key] = place
            moments.append((values, key, place))
        self.moments, self.states = moments, list(optimizer.state.values())
        self.state, self.groups = optimizer.state, optimizer.param_groups
        for group, was in zip(self.groups, self.settings, strict=False):
            if "capturable" in was:  # the plan counts on the device, whatever the file says
                group["capturable"] = was["capturable"]
            for key in ("foreach", "fused"):
                if key in was:
                    group[key] = was[key]
        if self.counts:
            self.check_counts()

    def check_counts(self) -> None:
        """WeightsError where counts are no longer equal of which the plan reads one."""
        for tensors in self.counts:
            values = {tensor.item() for tensor in tensors}
            if len(values) > 1:
                raise WeightsError(
                    f"counts of steps that were equal are {sorted(values)[:4]}",
                    "the plan reads one of them for all parameters of a group",
                    "compile the step again",
                )
        self.versions = _versions(self.counts)

    def _check_registries(self) -> None:
        """WeightsError where a tensor came, went, or is another one that lies elsewhere."""
        for name, was, now in self.registries.changes():
            if was is None:
                raise WeightsError(
                    f"{name} was added since the step was compiled",
                    "the plan reads and updates the tensors that it was compiled with",
                    "take it away again, or compile the step again, with an optimizer that has all "
                    "parameters",
                )
            if not isinstance(now, Tensor) or not same_memory(now, was):
                raise WeightsError(
                    f"{name} is another tensor than when the step was compiled"
                    if now is not None
                    else f"{name} was removed since the step was compiled",
                    "the plan reads and writes the one that it was compiled with",
                    "write into the tensor (load_state_dict without assign=True), or compile again",
                )

    def _refuse_other_gradients(self) -> None:
        for (name, _), tensor, trained in zip(
            self.weights, self.tensors, self.trained, strict=True
        ):
            if tensor.requires_grad is not trained:
                raise _other_gradients(name, trained)


def _hooked(what: str) -> InputError:
    return InputError(
        f"{what} was given a hook after the step was compiled",
        "a plan is one graph, which calls no Python",
        "remove it (hook.remove()), and do what it does in loss_fn or after the step",
    )


def _other_gradients(name: str, trained: bool) -> WeightsError:
    now, then = ("no gradients", "did") if trained else ("gradients", "did not")
    return WeightsError(
        f"{name} requires {now}, and {then} when the step was compiled",
        "a plan trains the parameters that it was compiled to train, and leaves the others",
        f"give it back with requires_grad_({trained}), or compile the step again",
    )


def _come_back(name: str, tensor: Tensor, memory: Tensor) -> None:
    """A weight that was given other memory, or reads it otherwise, has the plan's again, with the
    values that it has."""
    kinds = [(x.dtype, x.shape, x.device) for x in (tensor, memory)]
    if kinds[0] != kinds[1]:
        now, then = (f"{kind[0]}{list(kind[1])} on {kind[2]}" for kind in kinds)
        raise WeightsError(
            f"{name} is {now}, and was {then} when the step was compiled",
            "a plan computes with tensors of fixed types, in their memory",
            "convert the model before compile_step, or compile the step again",
        )
    with torch.no_grad():
        memory.copy_(tensor.clone())  # which may lie in the same memory, transposed
    tensor.data = memory


def _layouts(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    """Where each lies, and how: address, type and strides."""
    kinds = map(Tensor.data_ptr, tensors), map(DTYPE, tensors), map(Tensor.stride, tensors)
    return list(zip(*kinds, strict=True))


def _members(groups: list[dict[str, Any]]) -> list[list[int]]:
    """The parameters of each group."""
    return [list(map(id, group["params"])) for group in groups]


def _other_groups(then: list[list[int]], now: list[list[int]]) -> WeightsError:
    counts = [f"{sum(map(len, each))} parameters in {len(each)} groups" for each in (now, then)]
    return WeightsError(
        f"the optimizer has {counts[0]}, and had {counts[1]} when the step was compiled"
        if counts[0] != counts[1]
        else "the optimizer has other parameters than when the step was compiled",
        "a plan updates the parameters that it was compiled to update",
        "compile the step again once the optimizer has all its parameters",
    )


def _told_of(optimizer: Any, key: str) -> str:
    if key in MAY_VARY.get(type(optimizer), ()):
        return f"give compile_step changing=({key!r},), or make the schedule before it"
    return f"leave {key} as it was (schedules: cycle_momentum=False), or compile the step again"


def _settings(group: dict[str, Any], varying: Collection[str]) -> dict[str, Any]:
    """What a plan has of a group as it was."""
    read_anew = ("params", LR, *OF_SCHEDULES, *varying)
    return {
        key: value
        for key, value in group.items()
        if key not in read_anew and isinstance(value, int | float | tuple | str)
    }


def _versions(counts: list[list[Tensor]]) -> int:
    return sum(tensor._version for tensors in counts for tensor in tensors)
