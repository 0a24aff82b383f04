"""Answers: the tensors of a call -> what the model returns; what can be decided before, is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from anabranch.compiled.binding import names_of
from anabranch.compiled.entry import Entry, signature_of
from anabranch.compiled.gradients import (
    Seal,
    Trained,
    any_requires_grad,
    asked_of,
    reached,
    trained,
    warn_of_inputs,
)
from anabranch.compiled.layouts import relaid
from anabranch.compiled.transforms import check_plain, functions, modes
from anabranch.errors import TargetError
from anabranch.frontend.memory import (
    StateSpans,
    check_apart,
    check_foreign,
    check_writable,
    share,
)
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import RunCall
from anabranch.ir.task import alias_roots, value_types
from anabranch.options import Options

TensorAnswer = Callable[..., Any]
"""From the tensors of a call to what the model returns; for a padded call, what runs the plan for
it comes with them."""
CallAnswer = tuple[Callable[[tuple[Any, ...], Mapping[str, Any]], Any], Callable[..., Any]]
"""The first function reads a call: its tensors, or None for a call of another plan. The second one
answers what was read."""


def answering(entry: Entry, options: Options) -> TensorAnswer:
    """What a call of this plan does once its tensors are read. It checks only what may go wrong:
    memory where the plan writes to inputs, strides where results depend on those of inputs,
    gradients in grad mode."""
    run, assemble = entry.run, entry.assemble
    if run is None:
        return _absent(entry)
    clone = options.outputs == "clone"
    check = _memory(entry, clone)
    seal, relay = _sealing(entry), relaid(entry)
    grad_mode = torch.is_grad_enabled
    # A graph that torch.compile made has in it what its caller's modes do.
    watched = modes if signature_of(entry).ambient.device else _no_modes
    constants = [] if clone else _constants(entry)

    def answer(tensors: Sequence[Tensor], padded: RunCall | None = None) -> Any:
        # As `transforming`, without a call of it: it is asked in every call.
        if functions() is not None or forward_ad._current_level >= 0 or watched():
            check_plain(tensors)
        if check is not None:
            check(tensors)
        results: Sequence[Tensor] = (run if padded is None else padded)(tensors, clone)
        if relay is not None and padded is None:  # whose tensors lie as the example's do
            results = relay(tensors, results)
        if constants:  # nobody may write to them
            results = [
                result.clone() if i in constants else result for i, result in enumerate(results)
            ]
        if grad_mode():
            results = seal(tensors, results)
        return assemble(tensors, results)

    return answer


def _no_modes() -> int:
    return 0


def _constants(entry: Entry) -> list[int]:
    """Places of results that are constants of the plan, or views of some."""
    tasks = entry.plan.tasks
    bases, held = alias_roots(tasks), {constant.name for constant in tasks.constants}
    names = [ref.name for ref in tasks.outputs]
    return [place for place, name in enumerate(names) if bases.get(name, name) in held]


def _absent(entry: Entry) -> TensorAnswer:
    def answer(tensors: Sequence[Tensor], padded: RunCall | None = None) -> Any:
        raise TargetError(
            f"a plan for a simulated {entry.plan.spec.name} cannot run",
            "there is no such device here",
            "compile for target='cpu', or on the GPU itself",
        )

    return answer


def _memory(entry: Entry, clone: bool) -> Callable[[Sequence[Tensor]], None] | None:
    """The check of inputs that share memory; None where nothing is written that a caller has."""
    signature, run = signature_of(entry), entry.run
    names = [value.name for value in entry.plan.tasks.call_inputs]
    told = names_of(entry)
    written = [names.index(name) for name, _ in signature.mutations]
    returned = {leaf.ref.name for leaf in signature.outputs if leaf.ref is not None}
    kept = sorted({*written, *(i for i, name in enumerate(names) if name in returned)})
    buffers: Sequence[Tensor] = () if clone else getattr(run, "outputs", ())
    filled = getattr(run, "inputs", ())[: len(names)]  # and states, which nobody copies to
    if any(share(buffer, other) for buffer in buffers for other in filled):
        kept = list(range(len(names)))  # results that are where inputs are copied to
    states = entry.plan.tasks.states if run is not None else ()
    if not written and not (kept and buffers) and not states:
        return None
    spans = StateSpans({state.path: run.states[state.name] for state in states} if run else {})

    def check(tensors: Sequence[Tensor]) -> None:
        check_apart(tensors, told, written)
        check_writable(tensors, told, written)
        check_foreign(tensors, told, kept, buffers)
        spans.check(tensors, told)

    return check


def _sealing(
    entry: Entry,
) -> Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]:
    """What is done to results in grad mode: those that the model would find gradients for require
    some, and refuse to give them."""
    compilation, frozen = entry.compilation, entry.trained.frozen
    graph = compilation.captured.graph if compilation is not None else None
    always, asked, first = _seals(entry, entry.trained, graph)
    warned = False

    def thawed() -> None:
        """Parameters require gradients that did not."""
        nonlocal always, asked, first, frozen
        assert compilation is not None and entry.job is not None, (
            "a loaded plan knows of no parameters"
        )
        now = trained(entry.job.model, compilation.captured)
        frozen = now.frozen
        always, asked, first = _seals(entry, now, graph)

    def seal(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> Sequence[Tensor]:
        nonlocal warned
        if frozen and any_requires_grad(*frozen):
            thawed()
            results = [result.detach() if result.requires_grad else result for result in results]
        for tensor in tensors:
            if tensor.requires_grad:
                if not warned:
                    warned = True
                    warn_of_inputs()
                return asked(results, asked_of(tensors))
        if first is None or results[first].requires_grad:
            return results  # without gradients, or sealed by the executable
        return always(results)

    return seal


def _seals(entry: Entry, trained: Trained, graph: Graph | None) -> tuple[Seal, Seal, int | None]:
    """The functions that seal results in every call, and in calls whose inputs require gradients;
    the first result that the model has gradients of weights for. The executable is told."""
    count = len(entry.plan.tasks.outputs)
    inputs = frozenset(value.name for value in entry.plan.tasks.inputs)
    kept = {state.output for state in entry.plan.tasks.states}
    places = trained.places - kept  # what is written to has no history
    varied = places | (reached(graph, inputs) if graph else frozenset(range(count))) - kept
    roots = trained.roots if places else ()
    always = Seal(sorted(places), count, roots)
    beforehand = getattr(entry.run, "seal", None)
    if places and beforehand is not None:
        beforehand(always)
    return always, Seal(_floating(entry, varied), count, roots), min(places, default=None)


def _floating(entry: Entry, places: frozenset[int]) -> list[int]:
    """Those of the results that can have gradients."""
    types = value_types(entry.plan.tasks)
    names = [ref.name for ref in entry.plan.tasks.outputs]
    kinds = {place: types[names[place]].dtype for place in sorted(places)}
    return [place for place, d in kinds.items() if d.is_floating_point or d.is_complex]
