"""Rivals beside one compiled model: built, and timed in common rounds with calls of ours -> facts.

    time_rivals(compiled, BenchmarkCase("zoo:resnet50", ...), ("eager", "inductor"))
      -> {"called_ms": 0.41, "baselines": {"eager": 1.9, "inductor": 0.63},
          "called_beside": ["eager", "inductor"], "not_measured": {}}

All are timed as users call them, the host included, but for those that are a graph's replay; a
rival that fails says why it has no time.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from anabranch.bench.built import BenchmarkCase, build_rival, outputs, reason
from anabranch.bench.machine import Machine, machine
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.bench.rivals import forget_compiled
from anabranch.bench.statistics import summary
from anabranch.compiled.calls import Compiled
from anabranch.errors import OptionError
from anabranch.models.load import ModelAndArgs, batch_of

SECONDS = 1.0
"""Of timing, for each of them."""


def check_rivals(rivals: Sequence[str], target: str) -> None:
    """OptionError where there is nothing to time rivals on."""
    if rivals and target.startswith("sim:"):
        raise OptionError(
            "--rivals has nothing to time",
            f"{target} is simulated: nothing runs there",
            "leave it out, or compile for --target cuda or --target cpu",
        )


def time_rivals(
    compiled: Compiled,
    name: str,
    dtype: str,
    loaded: ModelAndArgs,
    rivals: Sequence[str],
    trust: bool = False,
) -> dict[str, Any]:
    """`called_ms` of ours, `baselines` of the rivals in ms, those that were `called_beside` ours,
    and why the others are `not_measured`. `name`, `dtype`: as the command line has them."""
    here = machine(compiled.target.spec.kind)
    model, args = loaded
    try:
        with torch.no_grad(), compiled.target.own_precision():
            batch = batch_of(name, args, None) or 1
            cell = BenchmarkCase(name, dtype, batch, model, args, outputs(model(*args)))
            return _timed(
                compiled, cell, rivals, here, BenchmarkMatrix(models=(name,), trust=trust)
            )
    finally:
        forget_compiled()
        gc.collect()
        with suppress(RuntimeError):
            here.release()


def _timed(
    compiled: Compiled,
    cell: BenchmarkCase,
    rivals: Sequence[str],
    here: Machine,
    matrix: BenchmarkMatrix,
) -> dict[str, Any]:
    with here.building():
        built = [build_rival(rival, cell, here, matrix) for rival in rivals]
    failed = {system.name: system.failure for system in built if system.call is None}
    calls = {system.name: system.call for system in built if system.call is not None}
    called = [system.name for system in built if system.name in calls and not system.replayed]
    replays = [i for i, name in enumerate(calls, 1) if name not in called]
    asked = [lambda: compiled(*cell.args), *calls.values()]
    try:
        with here.alone(lambda: None):
            ours, *taken = here.sample(asked, SECONDS * len(asked), replays)
    except Exception as wrong:
        failed |= dict.fromkeys(calls, f"while timing: {reason(wrong)}")
        return {"baselines": {}, "not_measured": failed}
    medians = {name: summary(ms).median for name, ms in zip(calls, taken, strict=True)}
    return {
        "called_ms": summary(ours).median,
        "called_beside": called,
        "baselines": medians,
        "not_measured": failed,
    }
