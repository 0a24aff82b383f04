"""torch.utils.checkpoint within a training step: what it would compute again is computed once.

    checkpoint(layers, x, use_reentrant=True)     -->     layers(x)

The reentrant form is an autograd function that runs the layers without gradients, and in backward
once more with them: gradients of their weights come about by the way, where `torch.autograd.grad`
does not see them. A step that was captured so would leave these weights as they are.

Running them again also writes again to what the layers write to (running statistics, counters). So
they are run twice here, too, the second time after forward and in the order of backward, for these
writes alone: all else of it is what was computed already.

The other form (use_reentrant=False) runs its layers again in backward, as it does in eager: with
the random numbers that they had, where it was not told to draw others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from anabranch.frontend.draws import Draws

GENERATOR = "_checkpoint_without_reentrant_generator"
"""Torch's name of what goes around the layers of the form that is not reentrant."""


class _ComputedOnce:
    """In the place of the autograd function: the layers themselves. Where none of the inputs
    requires gradients, the weights get none, of which torch warns, and nothing is run again.
    `draws`: those of the step, None where it draws nothing."""

    def __init__(self, draws: Draws | None) -> None:
        self._draws = draws
        self._later: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = []

    def apply(self, layers: Callable[..., Any], preserve_rng_state: bool, *inputs: Any) -> Any:
        needed = any(isinstance(each, Tensor) and each.requires_grad for each in inputs)
        count = self._draws.count if self._draws is not None else 0
        with torch.set_grad_enabled(needed and torch.is_grad_enabled()):
            results = layers(*inputs)
            if torch.is_grad_enabled():
                self._later.append((layers, inputs, count))
        return results

    @torch.no_grad()
    def run_again(self) -> None:
        """The layers, the last first, with the random numbers that they had. Their inputs are
        copies, for layers may write to them."""
        end = self._draws.count if self._draws is not None else 0
        for layers, inputs, count in reversed(self._later):
            if self._draws is not None:
                self._draws.count = count
            layers(*(x.detach().clone() if isinstance(x, Tensor) else x for x in inputs))
        if self._draws is not None:
            self._draws.count = end


def _with_its_draws(draws: Draws) -> Callable[..., Any]:
    """In the place of the generator that goes around the layers of the other form. The function
    that it is given is what it runs again."""

    def around(function: Any, preserve_rng_state: bool = True, *rest: Any, **kwargs: Any) -> Any:
        count = draws.count

        def again(*args: Any, **named: Any) -> Any:
            with draws.again_from(count):
                return function(*args, **named)

        layers = again if preserve_rng_state else function
        return _GENERATOR(layers, preserve_rng_state, *rest, **kwargs)

    return around


_GENERATOR: Any = getattr(torch.utils.checkpoint, GENERATOR, None)


@contextmanager
def checkpoints_computed_once(draws: Draws | None) -> Iterator[None]:
    """Within it the reentrant form of torch's checkpoint calls its layers, and the other one draws
    again what they drew. `draws`: those of the step."""
    module: Any = torch.utils.checkpoint
    was, computed_once = module.CheckpointFunction, _ComputedOnce(draws)
    module.CheckpointFunction = computed_once
    if draws is not None and _GENERATOR is not None:
        setattr(module, GENERATOR, _with_its_draws(draws))
    try:
        yield
        computed_once.run_again()
    finally:
        module.CheckpointFunction = was
        if _GENERATOR is not None:
            setattr(module, GENERATOR, _GENERATOR)
