"""TrainingStep: a training step as one plan, which a loop calls in the place of its own lines.

    step = anabranch.compile_step(model, loss_fn, optimizer, (x, t))
    for x, t in loader:
        loss = step(x, t)         # parameters, moments and statistics are updated in place
        scheduler.step()

Weights, moments and running statistics are states in the user's own tensors: `model.state_dict()`
and `optimizer.state_dict()` show what the last call left, and what is loaded into them the next call
reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anabranch.compiled.calls import Compiled
from anabranch.frontend.surroundings import neutral, surroundings
from anabranch.frontend.training import EagerStep, Training, capture_training, initialise
from anabranch.ir.protocols import Target
from anabranch.options import Options
from anabranch.trace import Trace


class TrainingStep:
    """One step of a training loop, compiled: forward, backward and update as one plan."""

    def __init__(
        self, training: Training, target: Target, options: Options, trace: Trace | None
    ) -> None:
        self.training = training
        self._found = surroundings()
        self._compiled = Compiled(EagerStep(training, self._found), target, options, trace)
        self._rates: list[Tensor] = []
        self._read: list[float | Tensor] = []

    def add(self, batch: tuple[Any, ...]) -> TrainingStep:
        """Compile for one more form of batches."""
        with neutral():
            initialise(self.training.optimizer)
            captured, _ = capture_training(self.training, batch, self._found)
        self._take_rates()
        self._compiled.add((*batch, self._rates), captured=captured)
        return self

    def __call__(self, *batch: Any) -> Any:
        """The loss, or (loss, extras); the model and the optimizer are one step further."""
        if self.training.rates() != self._read:
            self._take_rates()
        returned = self._compiled(*batch, self._rates)
        self.training.optimizer._opt_called = True  # type: ignore[attr-defined]
        return returned

    def _take_rates(self) -> None:
        self._read = self.training.rates()
        device = self._compiled.target.device
        self._rates = [torch.as_tensor(r, dtype=torch.float32, device=device) for r in self._read]

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled.explain(*args, **kwargs)
