"""Drawn models trained: three compiled steps, each beside the loop that it takes the place of.

    state --compiled step----------> loss, gradients, state     all three begin from the same state,
          --eager, as the model is-> loss, gradients            for later ones go apart by what the
          --eager, fp64------------> loss, gradients            first ones round

An optimizer's first steps go by the sign of a gradient, however small. So gradients are compared
with those of the fp64 copy, and what the step leaves with what the optimizer itself makes of the
gradients that the plan kept.

    |compiled - fp64|  <=  2 |eager - fp64| + what the dtype allows       (`ir.tolerances`)

Where a model jumps (a maximum of equals, a sign of zero), eager's own error is looked at again, on
numbers that differ by a rounding from those given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

import anabranch
from anabranch.errors import CaptureError
from anabranch.frontend.training import loss_of
from anabranch.fuzz.drawn_training import Loss, StepForm, trainable, twin
from anabranch.fuzz.script_prelude import Inputs, cast, device_of, legal
from anabranch.ir import tolerances
from anabranch.targets import resolve

STEPS = 3
NEIGHBOURS = 4
AUTOCAST_DTYPE = torch.bfloat16


def training_differences(
    build: Callable[[], nn.Module],
    inputs: Inputs,
    dtype: torch.dtype,
    target: str,
    seed: int,
    keep: Callable[[Any], None] = lambda compiled: None,
    **options: Any,
) -> list[str]:
    """What is wrong with the compiled step, a sentence for each thing. Simulated targets only plan.
    `keep` is given what was compiled. CaptureError for a step that eager itself cannot take."""
    opened = resolve(target, bool(options.get("tf32")))
    device = device_of(opened)
    drawn = _Drawn.draw(build, inputs, dtype, device, seed)
    model, form = twin(drawn.model), drawn.form
    optimizer = form.optimizer_of(model)
    how: dict[str, Any] = {"clip_norm": form.clip_norm, "accumulate": form.accumulate}
    how |= {"keep_grad": form.keep_grad, **options}
    step = anabranch.compile_step(
        model, drawn.loss, optimizer, drawn.batches[0], target=target, **how
    )
    for compiled in step._plans[-1:]:
        keep(compiled)
        if compiled.executable() is None:
            return []
    mine = _Side(model, optimizer)
    own, wide = drawn.side(), drawn.side(torch.float64)
    faults: list[str] = []
    for number in range(STEPS):
        batches = drawn.batches[number * form.accumulate :][: form.accumulate]
        with opened.full_precision():
            faults += [
                f"step {number + 1}: {why}"
                for why in _one_update(step, drawn, batches, mine, own, wide, opened.spec.tf32)
            ]
        if faults or not all(t.isfinite().all() for _, t in own.tensors()):
            break
    return list(dict.fromkeys(faults))


@dataclass(frozen=True)
class _Drawn:
    """What was drawn: the model as it begins, and a batch for each call."""

    model: nn.Module
    loss: Loss
    form: StepForm
    batches: list[tuple[Tensor, ...]]
    exact: torch.dtype

    @staticmethod
    def draw(
        build: Callable[[], nn.Module],
        inputs: Inputs,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
    ) -> _Drawn:
        """CaptureError where eager cannot take a step of it."""
        form = StepForm.draw(seed)
        samples = [inputs(1000 * i) for i in range(STEPS * form.accumulate)]
        if device.type != "cpu" and not all(legal(build, each) for each in samples):
            raise CaptureError(
                "an index is none that the model may read",
                "on a GPU that ends the process's use of it",
                "draw another model, with another seed",
            )
        examples = [cast(each, device, dtype) for each in samples]
        for scaled, trains in ((False, True), (True, True), (False, False), (True, False)):
            model = trainable(build().to(device, dtype), seed, scaled).train(trains)
            try:
                loss = Loss.draw(seed, twin(model), _clones(examples[0]))
                batches = [
                    (*x, *cast(loss.targets(seed + i, twin(model), _clones(x)), device, dtype))
                    for i, x in enumerate(examples)
                ]
                drawn = _Drawn(model, loss, form, batches, dtype)
                for kind in (None, torch.float64):  # which judges it, and knows fewer casts
                    _eager(drawn.side(kind), drawn, batches[: form.accumulate])
            except (CaptureError, RuntimeError, ValueError, IndexError, TypeError) as error:
                why = error
                continue
            return drawn
        raise CaptureError(
            "eager itself cannot take this step, or not in fp64",
            (str(why).strip().splitlines() or [type(why).__name__])[0],
            "draw another model, with another seed",
        )

    def side(self, dtype: torch.dtype | None = None) -> _Side:
        """A copy of the model, with an optimizer of its own."""
        model = twin(self.model, dtype)
        return _Side(model, self.form.optimizer_of(model))


@dataclass(frozen=True)
class _Side:
    """A model and its optimizer, as they are after a step."""

    model: nn.Module
    optimizer: Optimizer

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters, running statistics, and what the optimizer keeps of each parameter."""
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{key} of {name}", value

    def trained(self) -> dict[str, Tensor]:
        """The parameters that require a gradient."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def state(self) -> dict[str, Tensor]:
        """Copies of all tensors."""
        return {name: tensor.detach().clone() for name, tensor in self.tensors()}

    @torch.no_grad()
    def begin(self, state: dict[str, Tensor], drop: bool = True) -> None:
        """Have this state. `drop`: forget of the optimizer's what is not in it."""
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            tensor.copy_(state[name])
        for name, parameter in self.model.named_parameters():
            values = self.optimizer.state.get(parameter, {})
            for key, value in list(values.items()):
                if f"{key} of {name}" in state:
                    value.copy_(state[f"{key} of {name}"])
                elif isinstance(value, Tensor) and drop:
                    self.optimizer.state.pop(parameter, None)
                    break


def _one_update(
    step: anabranch.TrainingStep,
    drawn: _Drawn,
    batches: Sequence[tuple[Tensor, ...]],
    mine: _Side,
    own: _Side,
    wide: _Side,
    tf32: bool,
) -> list[str]:
    """The faults of one update, which begins with the state that eager has."""
    before, kept = own.state(), drawn.form.keep_grad
    mine.begin(before, drop=False)
    wide.begin(before)
    ours = dict[str, Tensor]()
    for i, batch in enumerate(batches):
        ours |= _told(i, step(*_clones(batch)))
    buffers = {name for name, _ in own.model.named_buffers()}
    left = {name: tensor.detach() for name, tensor in mine.tensors()}
    ours |= {name: tensor for name, tensor in left.items() if not kept or name in buffers}
    if kept:
        ours |= {f"gradient of {name}": _grad(p) for name, p in mine.trained().items()}
    many, truth = [_eager(own, drawn, batches)], _eager(wide, drawn, batches)
    after = own.state()

    def near() -> Iterator[dict[str, Tensor]]:
        yield many[0]
        for number in range(1, NEIGHBOURS + 1):
            if number == len(many):
                many.append(_neighbour(drawn, before, batches, number))
            yield many[number]

    rounds = AUTOCAST_DTYPE if drawn.loss.autocast else None
    said = {name: _wrong(name, out, near, truth, tf32, rounds) for name, out in ours.items()}
    if kept:
        for side in (own, wide):
            side.begin(before)
            for name, parameter in side.trained().items():
                if f"gradient of {name}" in many[0]:
                    parameter.grad = _grad(mine.model.get_parameter(name)).to(parameter.dtype)
            side.optimizer.step()
            side.optimizer.zero_grad()
        plain, truth = own.state(), wide.state()
        said |= {
            name: _wrong(name, out, lambda: iter([plain]), truth, tf32, None)
            for name, out in left.items()
            if name not in buffers
        }
        own.begin(after)
    return [f"{name} {why}" for name, why in said.items() if why]


def _told(call: int, returned: Any) -> dict[str, Tensor]:
    """The loss, and further results, by name."""
    loss, *extras = pytree.tree_leaves(returned)
    values = {f"result {i} of call {call}": x for i, x in enumerate(extras)}
    values[f"the loss of call {call}"] = loss
    return {name: x.detach().clone() for name, x in values.items() if isinstance(x, Tensor)}


def _eager(side: _Side, drawn: _Drawn, batches: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """An update as a loop does it: losses, results, gradients, and the state after it, by name."""
    values = dict[str, Tensor]()
    wide = next(side.model.parameters()).dtype == torch.float64
    for i, batch in enumerate(batches):
        args = _clones(batch)
        returned = drawn.loss(
            side.model, *(cast(args, args[0].device, torch.float64) if wide else args)
        )
        values |= _told(i, returned)
        loss: Any = loss_of(returned) / len(batches)
        loss.backward()
    if drawn.form.clip_norm is not None:
        nn.utils.clip_grad_norm_(side.trained().values(), drawn.form.clip_norm)
    for name, parameter in side.trained().items():
        if parameter.grad is not None:
            values[f"gradient of {name}"] = parameter.grad.clone()
    side.optimizer.step()
    side.optimizer.zero_grad()
    return values | side.state()


def _neighbour(
    drawn: _Drawn, state: dict[str, Tensor], batches: Sequence[tuple[Tensor, ...]], number: int
) -> dict[str, Tensor]:
    """What eager makes of numbers that are a rounding away."""
    dice = torch.Generator().manual_seed(number)
    size = torch.finfo(AUTOCAST_DTYPE if drawn.loss.autocast else drawn.exact).eps

    def moved(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.clone()
        off = torch.randn(tensor.shape, generator=dice).to(tensor)
        return tensor * (1 + size * off) + size * 1e-3 * off.roll(1)

    side = drawn.side()
    side.begin({name: moved(value) for name, value in state.items()})
    return _eager(side, drawn, [tuple(map(moved, batch)) for batch in batches])


def _wrong(
    name: str,
    out: Tensor,
    near: Callable[[], Iterator[dict[str, Tensor]]],
    truths: dict[str, Tensor],
    tf32: bool,
    rounds: torch.dtype | None,
) -> str:
    """Why this is not what it is to be; "" where it is."""
    said = ""
    for plain in near():
        if name not in plain:
            return "is not zero, and eager has none" if out.count_nonzero() else ""
        why = _compared(out, plain[name], truths[name], tf32, rounds)
        if not why:
            return ""
        said = said or why
    return said


def _compared(
    out: Tensor, own: Tensor, truth: Tensor, tf32: bool, rounds: torch.dtype | None
) -> str:
    """By norm and for each element. `rounds`: the dtype of autocast, whose roundings all have."""
    if out.shape != own.shape or out.dtype != own.dtype:
        return f"is {out.dtype}{list(out.shape)} and not {own.dtype}{list(own.shape)}"
    if not out.is_floating_point():
        same = torch.equal(out, own) or torch.equal(out, truth.to(out.dtype))
        return (
            "" if same else f"is {out.flatten()[:4].tolist()} and not {own.flatten()[:4].tolist()}"
        )
    if torch.equal(out, own):
        return ""
    if rounds is not None and rounds != out.dtype:  # each of three as autocast would have it
        out, own = out.to(rounds), own.to(rounds)
    if said := tolerances.mistaken(out, own, truth, None, tf32, spread=True):
        return f"is wrong: {said}"
    both = own.isfinite() & truth.isfinite() & out.isfinite()
    out, own, truth = (torch.where(both, each, 0) for each in (out, own, truth))
    ((error, allowed),) = tolerances.compare([out], [own], [truth], tf32)
    if error <= allowed or tolerances.relative_error(out, own) <= allowed:
        return ""
    return f"is off by {error:.2e} where {allowed:.2e} is allowed"


def _grad(parameter: Tensor) -> Tensor:
    return (
        parameter.grad.detach().clone()
        if parameter.grad is not None
        else torch.zeros_like(parameter)
    )


def _clones(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)
