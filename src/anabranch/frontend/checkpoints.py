"""torch.utils.checkpoint within a training step: what it would compute again is computed once.

    checkpoint(layers, x, use_reentrant=True)     -->     layers(x)

The reentrant form is an autograd function that runs the layers without gradients, and in backward
once more with them: gradients of their weights come about by the way, where `torch.autograd.grad`
does not see them. A step that was captured so would leave these weights as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor


class _ComputedOnce:
    """In the place of the autograd function: the layers themselves. Where none of the inputs
    requires gradients, the weights get none, of which torch warns."""

    @staticmethod
    def apply(layers: Callable[..., Any], preserve_rng_state: bool, *inputs: Any) -> Any:
        needed = any(isinstance(each, Tensor) and each.requires_grad for each in inputs)
        with torch.set_grad_enabled(needed and torch.is_grad_enabled()):
            return layers(*inputs)


@contextmanager
def checkpoints_computed_once() -> Iterator[None]:
    """Within it the reentrant form of torch's checkpoint calls its layers."""
    module: Any = torch.utils.checkpoint
    was = module.CheckpointFunction
    module.CheckpointFunction = _ComputedOnce
    try:
        yield
    finally:
        module.CheckpointFunction = was
