"""A captured model, taken from graph to graph by rules drawn at random: is it still the same?

    captured, steps -> ""                                                 equal at the end
                       "output 0 is off by 3.1e-01 where 1.0e-09 is allowed, first after step 3:
                        x + y -> x at %add_1"                             else, and since when

Both graphs are evaluated by the oracle in fp64 on the same random inputs. Models are captured in
fp64 as well, unless another dtype was asked for: there constants that are folded are rounded, and
that much is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.frontend.from_torch import capture
from anabranch.fuzz import script_prelude
from anabranch.fuzz.drawing import DrawnModel, built_model
from anabranch.fuzz.substitute import Applied, Crash, Substitution, substituted
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.pass_runner import Stepper, rounding
from anabranch.ir.text import text_graph
from anabranch.ir.tolerances import relative_error
from anabranch.options import Options
from anabranch.rewrite.passes.round_factors import ERROR
from anabranch.rewrite.simplify import ROUNDING_GAIN, simplify
from anabranch.targets import resolve
from anabranch.trace import Trace

TRIALS = 2
RELATIVE = 1e-9
"""The error that sums in another order may have in fp64, with room for a few divisions by small
numbers; any wrong rule makes far more."""
CANCELLED = 1e-13
"""Outputs that are no larger are what rounding leaves of terms that cancel: a convolution less
itself in another layout has no right value to be compared with."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What was done to a graph. `why`: what is wrong, "" if nothing; `wrong`: the first
    substitution since which it is, with the graphs before and after it as text."""

    done: tuple[Substitution, ...]
    why: str = ""
    wrong: Substitution | None = None
    shown: str = ""


def walked(
    drawing: DrawnModel, steps: int, dtype: torch.dtype, target: str, options: Options
) -> Walked:
    """The drawing, captured, by so many substitutions. CaptureError if it cannot be."""
    build, inputs = built_model(drawing)
    example = script_prelude.cast(inputs(0), torch.device("cpu"), dtype)
    captured = capture(build().eval().to(dtype), example).graph
    allowed = max(RELATIVE, rounding(captured))
    if options.tf32:
        allowed = max(allowed, ROUNDING_GAIN * ERROR)
    kind = resolve(target, options.tf32).spec.kind
    stepper = Stepper(Trace(), check=options.check)
    path: list[Applied] = []
    crashed: Crash | None = None
    walk = substituted(
        captured, steps, drawing.seed, lambda graph: simplify(graph, stepper, options, kind)
    )
    try:
        path += walk  # keeps those before a crash
    except Crash as crash:
        crashed = crash
    done = tuple(each.done for each in path)
    fault = _first_wrong(captured, path, drawing.seed, allowed)
    if fault is not None:
        at, why = fault
        number = sum(bool(each.nodes) for each in done[: at + 1])
        said = f"{why}, first after step {number}: {done[at].text}"
        return Walked(done, said, done[at], _shown(captured, path, at))
    if crashed is not None:
        raise crashed
    return Walked(done)


def _first_wrong(
    captured: Graph, path: Sequence[Applied], seed: int, allowed: float
) -> tuple[int, str] | None:
    """The place of the first graph that is not the captured one, and why; None if the last is."""
    for trial in range(TRIALS):
        inputs = random_inputs(captured, 1000 * seed + 100 * trial)
        truth = eval_graph(captured, inputs, precision=torch.float64)
        if not path or not differing(path[-1].graph, inputs, truth, allowed):
            continue
        for at, each in enumerate(path):
            if why := differing(each.graph, inputs, truth, allowed):
                return at, why
    return None


def differing(
    graph: Graph, inputs: Sequence[Tensor], truth: Sequence[Tensor], allowed: float
) -> str:
    """What differs, "" if nothing does."""
    try:
        outs = eval_graph(graph, inputs, precision=torch.float64)
    except Exception as failed:
        return f"it cannot be evaluated, {type(failed).__name__}: {str(failed).splitlines()[:1]}"
    for i, (out, true) in enumerate(zip(outs, truth, strict=True)):
        if out.shape != true.shape:
            return f"output {i} has shape {list(out.shape)} instead of {list(true.shape)}"
        if out.dtype != true.dtype:
            return f"output {i} is {out.dtype} instead of {true.dtype}"
        error = relative_error(out, true)
        if not error <= allowed and not _cancelled(out, true):
            return f"output {i} is off by {error:.2e} where {allowed:.2e} is allowed"
    return ""


def _cancelled(*outs: Tensor) -> bool:
    """Whether all of them are rounding alone."""
    return all(out.is_floating_point() and bool((out.abs() <= CANCELLED).all()) for out in outs)


def _shown(captured: Graph, path: Sequence[Applied], at: int) -> str:
    before = path[at - 1].graph if at else captured
    return f"{text_graph(before)}\n# {path[at].done.text}\n\n{text_graph(path[at].graph)}"
