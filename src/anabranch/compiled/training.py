"""TrainingStep: a training step as one plan, which a loop calls in the place of its own lines.

    step = anabranch.compile_step(model, loss_fn, optimizer, (x, t))
    for x, t in loader:
        loss = step(x, t)         # parameters, moments and statistics are updated in place
        scheduler.step()

Weights, moments and running statistics are states in the user's own tensors: `model.state_dict()`
and `optimizer.state_dict()` show what the last call left, and what is loaded into them the next
call reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.compiled.calls import Compiled, Text
from anabranch.compiled.memory import MemoryUse
from anabranch.errors import CaptureError, InputError
from anabranch.frontend.optimizer import initialise
from anabranch.frontend.surroundings import neutral, surroundings
from anabranch.frontend.training import LR, EagerStep, Held, Training, held_by
from anabranch.frontend.training_capture import capture_training
from anabranch.ir.protocols import Target
from anabranch.options import Options
from anabranch.trace import Trace

STATE = "anabranch_step"


class TrainingStep:
    """One step of a training loop, compiled: forward, backward and update as one plan, for each
    form of batches one."""

    def __init__(
        self, training: Training, target: Target, options: Options, trace: Trace | None
    ) -> None:
        self.training, self.target, self.options = training, target, options
        self._found = surroundings()
        self._plans = [
            Compiled(EagerStep(training, self._found, ends), target, options, trace)
            for ends in ((False, True) if training.accumulate > 1 else (True,))
        ]
        self._calls = 0
        self._rates: list[Tensor] = []
        self._read: list[float | Tensor] = []
        self._seen: Held | None = None

    def add(self, batch: tuple[Any, ...]) -> TrainingStep:
        """Compile for one more form of batches; this object."""
        batch = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        with neutral():
            initialise(self.training.optimizer)
            held = held_by(self.training)
            for compiled in self._plans:
                model = compiled.model
                assert isinstance(model, EagerStep)
                captured = capture_training(
                    self.training, held, batch, self._found, ends=model.ends
                )
                self._take_rates()
                compiled.add((*batch, self._rates), captured=captured)
        self._seen = held
        return self

    def __call__(self, *batch: Any) -> Any:
        """What `loss_fn` returns for this batch, without gradients; the model, its statistics and
        the optimizer are one step further."""
        if self.training.rates() != self._read:
            self._take_rates()
        ends = (self._calls + 1) % self.training.accumulate == 0
        returned = self._plans[-1 if ends else 0](*batch, self._rates)
        self._calls += 1
        if ends:
            self.training.optimizer._opt_called = True  # type: ignore[attr-defined]
        return returned

    def _take_rates(self) -> None:
        self._read = self.training.rates()
        device = self.target.device
        self._rates = [torch.as_tensor(r, dtype=torch.float32, device=device) for r in self._read]

    def explain(self, *args: Any, **kwargs: Any) -> Text:
        """As `Compiled.explain`, of the newest plan."""
        return self._plans[-1].explain(*args, **kwargs)

    def memory(self) -> MemoryUse:
        """As `Compiled.memory`."""
        return self._plans[-1].memory()
