"""A training step, run on other tensors than its own: those of somebody who looks on.

    forward     loss_fn(model, *batch), with these tensors in the place of the model's
    backward    the gradients of the loss
    update      the optimizer's own step, on these tensors

Who looks on may record it as a graph (`training_capture`), or list what it calls
(`training_cache`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError
from anabranch.frontend.call_profiler import watched
from anabranch.frontend.checkpoints import checkpoints_computed_once
from anabranch.frontend.draws import Draws
from anabranch.frontend.export_patches import dropout_between_layers
from anabranch.frontend.idle_dropout import IdleDropout
from anabranch.frontend.library_switches import libraries_off
from anabranch.frontend.mode_queries import check_seeds, unsettled
from anabranch.frontend.observe import observe
from anabranch.frontend.optimizer import step_on
from anabranch.frontend.python_checks import checks_by_operators
from anabranch.frontend.source import raised_at
from anabranch.frontend.state import in_their_places
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.tensor_places import PlacesByOperators
from anabranch.frontend.training import (
    EagerStep,
    Held,
    Training,
    detached,
    gradients_of,
    kept_in_place,
    roles,
    update,
)
from anabranch.frontend.written_by_strides import WrittenByStrides


@dataclass(frozen=True)
class StepCall:
    """The leaves of a batch and where its tensors are among them; the learning rates."""

    leaves: Sequence[Any]
    tree: pytree.TreeSpec
    places: Sequence[int]
    rates: Sequence[Tensor]

    def batch(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The batch with these tensors."""
        whole = list(self.leaves)
        for i, value in zip(self.places, tensors, strict=True):
            whole[i] = value
        batch: tuple[Any, ...] = pytree.tree_unflatten(whole, self.tree)
        return batch

    def flat(self, held: Held) -> list[Tensor]:
        """All tensors that a step reads, in the order in which `run_on` takes them: those that are
        held, the batch's and the learning rates."""
        batch = (self.leaves[i] for i in self.places)
        return [tensor.detach() for tensor in (*held.tensors, *batch, *self.rates)]


def call_of(training: Training, batch: tuple[Any, ...]) -> StepCall:
    """The call with this batch, and the learning rates as they are now."""
    leaves, tree = pytree.tree_flatten(batch)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    return StepCall(leaves, tree, places, training.rate_tensors(training.rates()))


@dataclass(frozen=True)
class SeenStep:
    """The result of `loss_fn`, whether the step drew random numbers and assigned tensors, and what
    it read and which files it wrote beside; `mentions`: which questions about tensors lines of the
    code that ran may ask; `asks`: what it and the optimizer ask torch about the call;
    `by_strides`: the line of a write that reaches more in one layout of the batch than in another,
    None where there is none."""

    returned: Any
    draws: bool
    assigns: bool
    reads: tuple[str, ...]
    files: tuple[str, ...]
    mentions: frozenset[str] = frozenset()
    asks: tuple[str, ...] = ()
    by_strides: str | None = None


@contextmanager
def recurrences_by_steps() -> Iterator[None]:
    """Within it recurrent layers are recorded step by step: oneDNN's kernel of a whole layer, which
    torch takes on a CPU, has a backward that returns no tensor for what needs no gradient, and for
    cuDNN's a layer asks where its weights lie, which tensors without values do not know."""
    with libraries_off(), dropout_between_layers():
        yield


def run_on(
    training: Training,
    held: Held,
    call: StepCall,
    flat: Sequence[Tensor],
    surroundings: Surroundings,
    ends: bool,
    drawing: Callable[[Tensor], Draws] = Draws,
) -> SeenStep:
    """The step on these tensors: those in the place of what is held, which it writes to, the
    batch's, and the learning rates. `drawing` is made of the counter of random numbers."""
    count, end = len(held.tensors), len(held.tensors) + len(call.places)
    tensors, batch, rates = flat[:count], call.batch(flat[count:end]), flat[end:]

    def of(tensor: Tensor) -> Tensor:
        return tensors[held.place[id(tensor)]]

    reads, files, names, asks = list[str](), list[str](), set[str](), list[str]()
    writes = WrittenByStrides(tensors)
    on, random = roles(training, of), of(training.random)
    trained = [held.place[id(p)] for p in training.trained()]
    leaf = {i: tensors[i].detach().requires_grad_() for i in trained}
    exchanged = [leaf.get(i, tensor) for i, tensor in enumerate(tensors)]
    with drawing(random) as draws:
        # Backward, too: a checkpoint runs modules again there, which write to their tensors.
        with torch.enable_grad(), _exchanged(training, held, exchanged):
            with (
                surroundings.restored(),
                kept_in_place(training) as assigned,
                PlacesByOperators(),
                IdleDropout(),
                watched(reads, asks, names, files),
                checkpoints_computed_once(draws),
                writes,
                draws.told_to(writes),
                checks_by_operators(),
            ):
                returned = training.loss_fn(training.model, *batch)
            if any(parameter.grad is not None for parameter in leaf.values()):
                raise CaptureError(
                    "loss_fn calls backward()",
                    "a step takes the gradients of the loss that it returns, and of nothing else",
                    "leave that out, and return the loss; for a sum of losses return the sum",
                )
            draws.enters("backward")
            gradients = gradients_of(returned, [leaf[i] for i in trained], on.scale)
        draws.enters("update")
        with torch.no_grad():
            if draws.count:
                random.add_(torch.tensor([0, 1], device=random.device))
            varying = training.varying
            step = partial(step_on, training.optimizer, held, tensors, rates, varying)
            heard = watched(reads, asks, set(), files) if _is_users(training) else nullcontext()
            with heard:
                update(training, on, gradients, step, ends)
    if draws.count:
        check_seeds(asks)
    told = tuple(dict.fromkeys((*reads, *unsettled(asks)))), tuple(dict.fromkeys(files))
    seen = bool(draws.count), bool(assigned), *told, frozenset(names)
    return SeenStep(detached(returned), *seen, tuple(dict.fromkeys(asks)), writes.line)


def _is_users(training: Training) -> bool:
    """Whether the optimizer is of a class of the user's: none of torch's asks anything, and to
    listen takes half as long as to record."""
    kinds = type(training.optimizer).__mro__
    return any(kind.__module__.partition(".")[0] not in ("torch", "builtins") for kind in kinds)


@contextmanager
def _exchanged(training: Training, held: Held, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Within it the modules that a step calls have these tensors."""
    with ExitStack() as stack:
        exchanged = [
            (
                module,
                {name: tensors[held.place[id(t)]] for name, t in in_their_places(module).items()},
            )
            for _, module in training.modules()
        ]  # all before the first: one may be a part of another
        for module, mine in exchanged:
            stack.enter_context(_reparametrize_module(module, mine))
        yield


def eager_step(
    training: Training, surroundings: Surroundings, ends: bool, seen: SeenStep
) -> EagerStep:
    """The step as eager runs it, of which this was seen."""
    of_tensors = seen.mentions, seen.asks, seen.by_strides
    return EagerStep(training, surroundings, ends, seen.draws, seen.assigns, *of_tensors)


def check_runs(step: EagerStep, args: tuple[Any, ...], surroundings: Surroundings) -> None:
    """CaptureError where the step fails as the user has it, with this batch and the learning rates:
    of values, which no tensor has while a graph is made. The training is as it was."""
    try:
        observe(step, args, {}, surroundings)
    except torch.OutOfMemoryError:
        return
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        of_range = re.search(r"out of (bounds|range)", first)
        raise CaptureError(
            "the training step itself fails with this batch",
            f"{type(error).__name__}: {first}",
            "give labels and indices that are in their range"
            if of_range
            else "run loss_fn(model, *batch).backward() and optimizer.step() until they do",
            raised_at(error),
        ) from error
