"""The parts of a training step, and the step as eager runs it.

    loss = loss_fn(model, *batch)            forward
    loss.backward()                          backward
    clip_grad_norm_(parameters, clip_norm)   update
    optimizer.step()

With `accumulate` calls of the step to an update, gradients are means over these calls; with a
`scaler` the loss is scaled, and a step whose gradients are not finite updates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, InputError
from anabranch.frontend.checkpoints import checkpoints_computed_once
from anabranch.frontend.closed_over import modules_beside
from anabranch.frontend.draws import Draws, without_fused_dropout
from anabranch.frontend.exact_numbers import COUNT, exact_numbers
from anabranch.frontend.python_state import Holder
from anabranch.frontend.rate_zero import kept_at_rate_zero
from anabranch.frontend.state import tensors_of
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.varying import numbers_of

NO_DRAWS = torch.zeros(2, dtype=torch.int64)
"""Of a training step that is only looked at."""
MOST_SEED = 2**62 - 1
LR = "lr"
"""The one hyperparameter that schedules change, and that calls read anew."""


@dataclass(frozen=True, eq=False)
class Training:
    """A training step. `loss_fn(model, *batch)` returns the loss, a tensor of one element,
    (loss, extras), or a dict with the loss by its name. `random`: i64[2], the seed and the number
    of the next call, of which random numbers are made. `clip_norm`: the largest norm of all
    gradients together, None for no limit.
    `accumulate`: calls to an update. `sums`: by the id of a parameter where its gradients are added
    up until then; `gradients`: where those of an update are left. Both are empty where neither is
    asked for. `varying`: settings of the optimizer that change, beside its learning rates."""

    model: nn.Module
    loss_fn: Callable[..., Any]
    optimizer: Optimizer
    random: Tensor
    clip_norm: float | None = None
    accumulate: int = 1
    scaler: GradScaler | None = None
    sums: Mapping[int, Tensor] = field(default_factory=dict)
    gradients: Mapping[int, Tensor] = field(default_factory=dict)
    varying: tuple[str, ...] = ()

    def modules(self) -> list[tuple[str, nn.Module]]:
        """The modules that a step calls, and how names of their tensors begin: the model, a loss
        that is one, and what the loss refers to beside."""
        called = [("", self.model)]
        if isinstance(self.loss_fn, nn.Module):
            called.append(("loss.", self.loss_fn))
        within = {id(part) for _, module in called for part in module.modules()}
        for name, module in modules_beside(self.loss_fn):
            if id(module) not in within:
                called.append((f"loss.{name}.", module))
                within |= set(map(id, module.modules()))
        return called

    def rates(self) -> list[float | Tensor]:
        """The learning rate of each group of parameters, as it is now, and after these the settings
        that vary."""
        rates = [group[LR] for group in self.optimizer.param_groups]
        for rate in rates:
            _check_rate(rate)
        return [*rates, *numbers_of(self.optimizer, self.varying)]

    def rate_tensors(self, rates: Sequence[float | Tensor]) -> list[Tensor]:
        """These as 0-d tensors: learning rates in fp32, or in fp64 of parameters in fp64, what
        varies beside in fp64."""
        device, groups = self.random.device, self.optimizer.param_groups
        exact = [any(p.dtype == torch.float64 for p in group["params"]) for group in groups]
        return [
            torch.as_tensor(
                rate,
                dtype=torch.float64 if i >= len(exact) or exact[i] else torch.float32,
                device=device,
            )
            for i, rate in enumerate(rates)
        ]

    def trained(self) -> list[Tensor]:
        """The parameters that the optimizer has, but for frozen ones."""
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def scale(self) -> tuple[Tensor, Tensor] | None:
        """The scaler's tensors: the scale, and its count of steps without an overflow."""
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        scaler: Any = self.scaler
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(self.random.device)
        return scaler._scale, scaler._growth_tracker


def _check_rate(rate: Any) -> None:
    """InputError for a learning rate that is no number."""
    single = isinstance(rate, Tensor) and rate.numel() == 1 and not rate.is_complex()
    if not single and not isinstance(rate, Real):
        shape = f" of shape {list(rate.shape)}" if isinstance(rate, Tensor) else f": {rate!r:.80}"
        raise InputError(
            f"a learning rate is a {type(rate).__name__}{shape}",
            "each group of parameters has one number, which each call of a step reads",
            "set optimizer.param_groups[i]['lr'] to a number, or to a tensor of one element",
        )


def with_places(training: Training, keep_grad: bool) -> Training:
    """The training step with memory for sums of gradients, and for those of an update, where such
    are needed."""

    def places() -> dict[int, Tensor]:
        return {id(p): torch.zeros_like(p, requires_grad=False) for p in training.trained()}

    sums = places() if training.accumulate > 1 else {}
    return replace(training, sums=sums, gradients=places() if keep_grad else {})


@dataclass(frozen=True)
class Held:
    """The tensors of a step, in order, each under its first name. `place`: by the id of a tensor
    its number. `alike`: numbers of tensors that are equal, and stay so: counts of steps."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    place: Mapping[int, int] = field(repr=False)
    alike: tuple[tuple[int, ...], ...] = ()

    def ids(self, names: Collection[str]) -> frozenset[int]:
        """The ids of the tensors that have these names."""
        pairs = zip(self.names, self.tensors, strict=True)
        return frozenset(id(tensor) for name, tensor in pairs if name in names)


def held_by(training: Training) -> Held:
    """What the model, the loss, the optimizer and the scaler hold: each tensor once."""
    held: dict[int, tuple[str, Tensor]] = {}

    def hold(name: str, tensor: Tensor) -> None:
        held.setdefault(id(tensor), (name, tensor))

    for begin, module in training.modules():
        for name, tensor in tensors_of(module):
            hold(f"{begin}{name}", tensor)
    optimizer = training.optimizer
    for number, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            hold(f"parameter.{number}.{i}", parameter)
    counts: dict[tuple[Any, ...], list[int]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            of = held[id(parameter)][0]
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    hold(f"optimizer.{of}.{key}", value)
                    if key == COUNT and not value.dim():
                        same = number, value.dtype, value.device, value.item()
                        counts.setdefault(same, []).append(id(value))
    for parameter in training.trained():
        of = held[id(parameter)][0]
        for kind, places in (("sum", training.sums), ("gradient", training.gradients)):
            if id(parameter) in places:
                hold(f"{kind}.{of}", places[id(parameter)])
    for name, value in zip(("scale", "growth_tracker"), training.scale() or (), strict=False):
        hold(f"scaler.{name}", value)
    hold("random", training.random)
    names, tensors = zip(*held.values(), strict=True)
    place = {key: i for i, key in enumerate(held)}
    alike = (tuple(place[key] for key in keys) for keys in counts.values() if len(keys) > 1)
    return Held(names, tensors, place, tuple(alike))


LOSS = "loss"
"""The key of the loss in a dict that `loss_fn` returns."""


def loss_of(returned: Any) -> Tensor:
    """The loss among what `loss_fn` returned; CaptureError where there is none."""
    loss = returned[0] if isinstance(returned, tuple) and returned else returned
    loss = loss[LOSS] if isinstance(loss, dict) and LOSS in loss else loss
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return loss
    what = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        what = f"a tensor of shape {list(loss.shape)}"
        what += "" if loss.requires_grad else " that requires no gradient"
    raise CaptureError(
        f"the loss is {what}",
        "gradients are those of one number, which depends on trainable parameters",
        'have loss_fn(model, *batch) return the loss, (loss, extras) or {"loss": loss, ...}',
    )


def detached(returned: Any) -> Any:
    """The same without gradients."""
    return pytree.tree_map_only(Tensor, lambda x: x.detach(), returned)


StatePlace = tuple[MutableMapping[str, Tensor | None], str, Tensor]
"""A mapping, a key of it, and the tensor that it has there."""


def places_of(training: Training) -> Iterator[tuple[str, StatePlace]]:
    """Where the modules of model and loss hold their tensors, with their names."""
    for _, module in training.modules():
        for path, part in module.named_modules():
            for mapping in (part._parameters, part._buffers):
                for key, tensor in mapping.items():
                    if tensor is not None:
                        yield f"{path}.{key}" if path else key, (mapping, key, tensor)


@contextmanager
def kept_in_place(training: Training) -> Iterator[list[str]]:
    """A tensor that forward assigns in the place of another (`self.mean = 0.9 * self.mean`) is
    written to that other, at the end, and the module has it again. Gives the names, once it is
    left."""
    before, assigned = list(places_of(training)), list[str]()
    yield assigned
    for name, (mapping, key, tensor) in before:
        now = mapping.get(key)
        if now is tensor:
            continue
        mapping[key] = tensor
        assigned.append(name)
        if now is None or now.shape != tensor.shape or now.dtype != tensor.dtype:
            raise CaptureError(
                f"forward makes {name} anew, in another shape",
                "what a step changes has a fixed place",
                "register it as a buffer of its last shape beforehand",
            )
        with torch.no_grad():
            tensor.copy_(now)


@dataclass(frozen=True)
class Roles:
    """The tensors that an update reads and writes: of each parameter where its gradients add up,
    and where they are left; `updated`: of each parameter all that the optimizer writes."""

    parameters: Sequence[Tensor]
    sums: Sequence[Tensor]
    gradients: Sequence[Tensor]
    scale: tuple[Tensor, Tensor] | None
    updated: Sequence[Sequence[Tensor]]


def roles(training: Training, of: Callable[[Tensor], Tensor]) -> Roles:
    """Those of a training step. `of`: the tensor that stands for one that is held."""
    parameters, scale = training.trained(), training.scale()
    state = training.optimizer.state
    values = ([v for v in state.get(p, {}).values() if isinstance(v, Tensor)] for p in parameters)
    return Roles(
        [*map(of, parameters)],
        [of(training.sums[id(p)]) for p in parameters if training.sums],
        [of(training.gradients[id(p)]) for p in parameters if training.gradients],
        None if scale is None else (of(scale[0]), of(scale[1])),
        [[*map(of, (p, *mine))] for p, mine in zip(parameters, values, strict=True)],
    )


def update(
    training: Training,
    on: Roles,
    gradients: Sequence[Tensor | None],
    step: Callable[[], None],
    ends: bool,
) -> None:
    """What is done with the gradients of a call. `step`: the optimizer's own; `ends`: whether an
    update comes, as it does each `accumulate`-th call."""
    for place, gradient in zip(on.sums, gradients, strict=bool(on.sums)):
        if gradient is not None:
            place.add_(gradient / training.accumulate)
    if not ends:
        return
    for i, (parameter, gradient) in enumerate(zip(on.parameters, gradients, strict=True)):
        summed = on.sums[i].clone() if on.sums and gradient is not None else gradient
        parameter.grad = summed
    overflow = _unscaled(on.parameters, on.scale[0]) if on.scale is not None else None
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(on.parameters, training.clip_norm, foreach=False)
    for place, parameter in zip(on.gradients, on.parameters, strict=bool(on.gradients)):
        if parameter.grad is not None:
            place.copy_(parameter.grad)
    if overflow is None or on.scale is None:
        step()
    else:
        pairs = zip(on.parameters, on.updated, strict=True)
        moving = (tensor for p, mine in pairs if p.grad is not None for tensor in mine)
        before = [(tensor, tensor.clone()) for tensor in moving]
        step()
        for tensor, old in before:
            tensor.copy_(torch.where(overflow, old, tensor))
        _rescaled(training, on.scale, overflow)
    for place in on.sums:
        place.zero_()


def _unscaled(parameters: Sequence[Tensor], scale: Tensor) -> Tensor:
    """Divides gradients by the scale; whether one of them is not finite."""
    factor = scale.double().reciprocal().float()
    overflow = torch.zeros((), dtype=torch.bool, device=scale.device)
    for parameter in parameters:
        if parameter.grad is not None:
            overflow = overflow | ~torch.isfinite(parameter.grad).all()
            parameter.grad = (parameter.grad * factor).to(parameter.grad.dtype)
    return overflow


def _rescaled(training: Training, scale: tuple[Tensor, Tensor], overflow: Tensor) -> None:
    """The scaler's own rule for the next scale."""
    scaler, (now, count) = training.scaler, scale
    assert scaler is not None
    grown = count + 1 == scaler.get_growth_interval()
    larger = now * scaler.get_growth_factor()
    larger = torch.where(torch.isfinite(larger), larger, now)
    fine = torch.where(grown, larger, now)
    following = torch.where(grown, torch.zeros_like(count), count + 1)
    now.copy_(torch.where(overflow, now * scaler.get_backoff_factor(), fine))
    count.copy_(torch.where(overflow, torch.zeros_like(count), following))


@dataclass(frozen=True)
class EagerStep(Holder):
    """The step as eager runs it, called as the graph is: with the batch and the learning rates,
    which it takes from the optimizer all the same. `surroundings`: torch's switches for the loss;
    `ends`: whether an update comes; `draws`, `assigns`: whether random numbers are drawn, and
    tensors are assigned anew by forward, so that this has to be looked after; `mentions`: which
    questions about tensors its code may ask, `asks`: those about the call that it asks;
    `by_strides`: the line of a write that may reach more in one layout of the batch than in
    another."""

    training: Training
    surroundings: Surroundings
    ends: bool = True
    draws: bool = True
    assigns: bool = True
    mentions: frozenset[str] = frozenset()
    asks: tuple[str, ...] = ()
    by_strides: str | None = None

    @property
    def holds(self) -> tuple[Any, ...]:
        """The model and the loss."""
        return self.training.model, self.training.loss_fn

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Those of the modules that the step calls."""
        modules = self.training.modules()
        return {f"{of}{name}": t for of, module in modules for name, t in tensors_of(module)}

    def __call__(self, *args: Any) -> Any:
        """What `loss_fn` returns, detached; the model is updated."""
        training, optimizer = self.training, self.training.optimizer
        on = roles(training, lambda tensor: tensor)
        before = [p.grad for p in on.parameters]
        try:
            returned, gradients = without_fused_dropout(lambda: self.gradients(on, args))
            with torch.no_grad():
                if self.draws:
                    training.random[1] += 1
                update(training, on, gradients, lambda: plain_step(optimizer), self.ends)
        finally:
            for parameter, gradient in zip(on.parameters, before, strict=True):
                parameter.grad = gradient
        return detached(returned)

    def gradients(self, on: Roles, args: Sequence[Any]) -> tuple[Any, Sequence[Tensor | None]]:
        """What `loss_fn` returns, and the gradients of the parameters."""
        training = self.training
        drawing = Draws(training.random) if self.draws else nullcontext()
        kept = kept_in_place(training) if self.assigns else nullcontext()
        with drawing as draws, torch.enable_grad():
            with self.surroundings.restored(), kept, checkpoints_computed_once(draws):
                returned = training.loss_fn(training.model, *args[:-1])
            return returned, gradients_of(returned, on.parameters, on.scale)


@dataclass(frozen=True)
class EagerGradients(Holder):
    """A step without its update: gives what `loss_fn` returns, and the gradients."""

    step: EagerStep

    @property
    def holds(self) -> tuple[Any, ...]:
        """The model and the loss."""
        return self.step.holds

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Those of the modules that the step calls."""
        return self.step.tensors

    def __call__(self, *args: Any) -> Any:
        """What `loss_fn` returns, detached, and of each parameter its gradient or None."""
        on = roles(self.step.training, lambda tensor: tensor)
        returned, gradients = without_fused_dropout(lambda: self.step.gradients(on, args))
        return detached(returned), list(gradients)


def plain_step(optimizer: Optimizer) -> None:
    """The optimizer's own step, without what torch wraps around it: hooks, and notes for its
    profiler."""
    step = type(optimizer).step
    with exact_numbers(optimizer), kept_at_rate_zero(optimizer):
        getattr(step, "__wrapped__", step)(optimizer)


def gradients_of(
    returned: Any, parameters: Sequence[Tensor], scale: tuple[Tensor, Tensor] | None
) -> Sequence[Tensor | None]:
    """The gradients of the loss, times the scale; None for a parameter that it does not read."""
    loss = loss_of(returned)
    scaled = loss if scale is None else loss * scale[0]
    return torch.autograd.grad(scaled, parameters, allow_unused=True)
