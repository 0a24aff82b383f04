"""Adam leaves parameters as they are while its learning rate is zero, as a warm-up begins.

    eager      p - lr * m / (sqrt(v) + eps)
    a graph    p + m / (sqrt(v) / -lr + eps / -lr)     0 / 0 where the gradient was zero as yet

torch divides by the learning rate where that is a tensor on the device, so a weight without a
gradient (a row of an embedding that no batch had, a unit that is not active) would become NaN.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

ADAM = inspect.unwrap(torch.optim.Adam.step)
"""The step that divides by the rate; AdamW has the same."""


@contextmanager
def kept_at_rate_zero(optimizer: Optimizer) -> Iterator[None]:
    """Within it a step of Adam or AdamW with a learning rate of zero leaves the parameters as they
    were, whatever it divides by. Moments do not depend on the rate."""
    before = [
        (parameter, parameter.clone(), group["lr"])
        for group in optimizer.param_groups
        if isinstance(group.get("lr"), Tensor) and group.get("capturable")
        for parameter in group["params"]
        if parameter.grad is not None and inspect.unwrap(type(optimizer).step) is ADAM
    ]
    yield
    for parameter, old, rate in before:
        parameter.copy_(torch.where(rate.reshape(()) == 0, old, parameter))
