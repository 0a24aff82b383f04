"""One way through a model that is cut: steps in turn, each a plan or what runs as eager does.

    values {x}  --section--> {addmm, gt} --eager--> {index} --section--> ...

A step reads values by name and gives others; a value is let go after its last reader. An eager step
raises `Unseen` where the call goes another way than the example did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.errors import AnabranchError, InputError, NumericsError
from anabranch.frontend.cut_checks import Cut, Unseen
from anabranch.frontend.cut_sections import CutStep, writes_last
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.structure import same_literal
from anabranch.ir.ambient import without_autocast
from anabranch.ir.key import digest_tensor
from anabranch.ir.protocols import Cost
from anabranch.ir.tolerances import PLAIN_ERRORS, relative_error, unit
from anabranch.tuning.verify.plan import EAGER_TOLERANCE

CutValues = dict[str, Any]
OPERATOR_ERRORS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What operators raise, of tensors and of numbers."""


class StepFailed(Exception):
    """An operator of a way raised `error`, before anything was written; the model may catch it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step that is ready to run. `section`: the place of its plan among those of the model, None
    for one that runs as eager does; `held`: the weights that such a one reads, by the model's
    names; `cost`: None where it was not timed."""

    step: CutStep
    call: Callable[[Sequence[Any]], Sequence[Any]]
    section: int | None
    held: tuple[str, ...]
    identity: str
    cost: Cost | None = None
    last: tuple[str, ...] = ()
    """Values that nobody reads after it."""


@dataclass(frozen=True, slots=True)
class CutPath:
    """`states`: by name of a value the model's name of the state that it is; `leaves`: of the
    result, a value by name or what it is in every call; `draws`: whether random numbers are
    drawn; `written`: the numbers of inputs that are written to; `first_writing`: of the first step
    that writes to one, or to a state, -1 if none does; no step from there on is found to be of
    another way."""

    inputs: tuple[str, ...]
    states: Mapping[str, str]
    steps: tuple[RunStep, ...]
    leaves: tuple[tuple[str | None, Any], ...]
    out_tree: pytree.TreeSpec
    cuts: tuple[Cut, ...] = field(compare=False)
    draws: bool = False
    written: tuple[int, ...] = ()
    first_writing: int = -1

    def results(self, values: Mapping[str, Any]) -> list[Any]:
        """The leaves of the result."""
        return [leaf if name is None else values[name] for name, leaf in self.leaves]


def run(
    paths: Sequence[CutPath],
    tensors: Sequence[Tensor],
    places: Mapping[str, Tensor],
    may_write: Callable[[CutPath], None] | None = None,
) -> tuple[CutPath, list[Any]]:
    """The first of the paths that the call goes, and the leaves of its result. `places`: where
    states lie, by the model's names. The common beginning of a path and the one before it is not
    run again, but where numbers are drawn: those that a path drew which the call does not go are
    drawn again. Unseen where it goes none: nothing is written to then, for a path writes at its
    end, and nothing drawn; so it is where `may_write` raises InputError, which is asked of a path
    before it writes. StepFailed where an operator fails before that."""
    unseen: Unseen | None = None
    failure: StepFailed | None = None
    drawn = _Generators(tensors) if any(path.draws for path in paths) else None
    before: CutPath | None = None
    values: CutValues = {}
    came = 0
    with torch.no_grad(), without_autocast():
        for path in paths:
            begin = 0
            if before is not None and drawn is None:
                begin = min(came, _alike_at_first(before, path))
            if not begin:
                read = (
                    x if i in path.written else x.resolve_conj().resolve_neg()
                    for i, x in enumerate(tensors)
                )
                values = dict(zip(path.inputs, read, strict=True))
            values.update({name: places[path.states[name]] for name in path.states})
            came = begin
            try:
                for number, step in enumerate(path.steps[begin:], begin):
                    if may_write is not None and number == path.first_writing:
                        may_write(path)
                    results = step.call([values[name] for name in step.step.reads])
                    values.update(zip(step.step.gives, results, strict=True))
                    if len(paths) == 1:
                        for name in step.last:
                            del values[name]
                    came += 1
            except Unseen as another:
                unseen, before = another, path
                if drawn is not None:
                    drawn.go_back()
                continue
            except InputError:
                if drawn is not None:
                    drawn.go_back()
                raise
            except OPERATOR_ERRORS as failed:
                if _has_written(path, came) or isinstance(failed, AnabranchError):
                    raise
                failure, before = failure or StepFailed(failed), path
                if drawn is not None:
                    drawn.go_back()
                continue
            return path, path.results(values)
    if failure is not None:
        raise failure
    assert unseen is not None, "a call has a path"
    raise unseen


def _has_written(path: CutPath, number: int) -> bool:
    """Whether something is written to by the time that this step of the path fails."""
    if not 0 <= path.first_writing <= number:
        return False
    return path.first_writing < number or not writes_last(path.steps[number].step)


class _Generators:
    """Where the random numbers are, of the CPU and of the devices of these tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        devices = {x.device for x in tensors if x.device.type not in ("cpu", "meta")}
        self._others = [(d, torch.get_device_module(d).get_rng_state(d)) for d in devices]

    def go_back(self) -> None:
        """Draw again what was drawn since."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others:
            torch.get_device_module(device).set_rng_state(state, device)


def _alike_at_first(first: CutPath, other: CutPath) -> int:
    """How many steps two paths begin with alike."""
    count = 0
    for mine, theirs in zip(first.steps, other.steps, strict=False):
        if mine.identity != theirs.identity:
            break
        count += 1
    return count


def leaves_of(trace: CutTrace) -> tuple[tuple[str | None, Any], ...]:
    """What the result is made of."""
    output = next(node for node in reversed(trace.graph.nodes) if node.op == "output")
    results: Any = output.args[0]
    return tuple(
        (leaf.name, None) if isinstance(leaf, torch.fx.Node) else (None, leaf) for leaf in results
    )


def last_reads(
    steps: Sequence[CutStep], leaves: Sequence[tuple[str | None, Any]]
) -> list[tuple[str, ...]]:
    """By step the values that nobody reads after it."""
    kept = {name for name, _ in leaves}
    dead: list[tuple[str, ...]] = []
    for step in reversed(steps):
        named = dict.fromkeys((*step.reads, *step.gives))
        dead.append(tuple(name for name in named if name not in kept))
        kept.update(named)
    return dead[::-1]


def identity(step: CutStep) -> str:
    """Steps of one identity compute the same of values and weights of the same names, with the same
    constants."""
    kinds = [f"{name} {digest_tensor(held)}" for name, held in step.module.named_buffers()]
    kinds += [part.code for part in step.module.modules() if isinstance(part, torch.fx.GraphModule)]
    for node in step.module.graph.nodes:
        if "check" in node.meta:
            kinds.append(node.meta["check"].text)
        if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor):
            value = node.meta["val"]
            kinds.append(f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())}")
    held = [f"{name} at {path}" for name, path in step.states.items()]
    held += [f"{name} becomes {new}" for name, new in step.news.items()]
    return "\n".join((step.kind, *step.weights, *step.reads, *held, *kinds))


def same(first: CutPath, other: CutPath) -> bool:
    """Whether two paths are the same steps with the same checks."""
    return [step.identity for step in first.steps] == [step.identity for step in other.steps]


def compare(
    trace: CutTrace,
    path: CutPath,
    values: Mapping[str, Any],
    inputs: Sequence[Tensor],
    moved: Callable[[], Sequence[Mapping[str, Any]]],
) -> None:
    """NumericsError where the trace, operator by operator, does not compute what the model did, or
    leaves something else in states, or in the tensors of the call. `values`: those of the trace by
    name, states as they were left among them; `moved`: the same of runs a rounding away, asked for
    where a value is off by more than its size explains."""
    if path.draws:
        return
    theirs, tree = pytree.tree_flatten(trace.results)
    wrong = "" if tree == trace.out_tree else "the results have another structure"
    states = {state: name for name, state in trace.states.items()}
    lost = sorted(trace.left.keys() - states.keys())
    wrong = wrong or (f"it writes to {lost[0]}, and the trace does not" if lost else "")
    runs: list[Sequence[Mapping[str, Any]]] = []

    def spread(name: str) -> float:
        """How far the values of runs lie apart, as a norm; 0 where they say nothing."""
        if not runs:
            runs.append(moved())
        near = [run[name] for run in runs[0] if isinstance(run.get(name), Tensor)]
        offs = [_off(x, near[0]) for x in near[1:] if x.shape == near[0].shape]
        return max((off for off in offs if math.isfinite(off)), default=0.0)

    def differs(what: str, name: str | None, mine: Tensor, own: Tensor) -> str:
        if mine.shape != own.shape or mine.dtype != own.dtype:
            return f"{what} has another shape or dtype"
        error = relative_error(mine, own)
        if error <= EAGER_TOLERANCE.get(own.dtype, 0.0):
            return ""
        if name is not None and _off(mine, own) <= PLAIN_ERRORS * spread(name):
            return ""
        return f"{what} has the relative error {error:.2e}"

    for state, left in trace.left.items():
        if not wrong:
            wrong = differs(f"the state {state}", states[state], values[states[state]], left)
    for name, mine, own in zip(trace.inputs, inputs, trace.left_inputs, strict=False):
        wrong = wrong or differs(f"the input {name}", name, mine, own)
    results = zip(path.leaves, path.results(values), theirs, strict=False)
    for number, ((leaf, _), mine, own) in enumerate(results):
        if not isinstance(own, Tensor):
            alike = same_literal(mine, own)
            wrong = wrong or ("" if alike else f"result {number} is {mine!r}, and not {own!r}")
            continue
        wrong = wrong or differs(f"result {number}", leaf, mine, own)
    if wrong:
        raise NumericsError(
            f"the model that was cut computes something else than the model: {wrong}",
            "the model does something that a trace does not see",
            "compile the parts before and after the cut, and report the model",
        )


def _off(mine: Tensor, own: Tensor) -> float:
    """How far one lies from the other, as a norm."""
    return relative_error(mine, own) * unit(own)


def path_facts(path: CutPath) -> dict[str, Any]:
    """Its steps and cuts, ready for JSON."""
    return {
        "states": sorted(path.states.values()),
        "steps": [
            {
                "kind": "plan" if step.section is not None else "eager",
                "plan": None if step.section is None else step.section + 1,
                "operators": list(step.step.operators),
                "us": None if step.cost is None else step.cost.us,
                "spread_us": None if step.cost is None else step.cost.spread,
                "source": None if step.cost is None else step.cost.source,
            }
            for step in path.steps
        ],
        "cuts": [
            {
                "operator": cut.operator,
                "step": next(
                    i for i, step in enumerate(path.steps, 1) if cut.node.name in step.step.nodes
                ),
                "origin": cut.origin,
                "why": cut.why,
                "checks": [{"holds": check.text, "origin": check.origin} for check in cut.checks],
            }
            for cut in path.cuts
        ],
    }
