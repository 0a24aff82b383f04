"""The plans of a model that is cut: they share weights, and own them.

steps of a trace   --section--> the plan that computes it, made if there is none
--eager-->   operators as they are; they read weights where plans have them
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anabranch.artifact.owned_constants import Shared, shared_of
from anabranch.compiled.calls import Compiled
from anabranch.compiled.cut_path import (
    OPERATOR_ERRORS,
    CutPath,
    RunStep,
    compare,
    identity,
    last_reads,
    leaves_of,
)
from anabranch.compiled.cut_rounding import moved_runs, stored
from anabranch.compiled.entry import Entry
from anabranch.compiled.layouts import relaid
from anabranch.compiled.memory import MemoryUse, memory_of
from anabranch.compiled.sharing import share_arena
from anabranch.deadline import TIME
from anabranch.errors import AnabranchError, CaptureError
from anabranch.frontend.cut_sections import (
    CutStep,
    captured_section,
    own_constants,
    split,
    writes,
)
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.observe import own_inputs
from anabranch.frontend.operators import has_random
from anabranch.frontend.python_state import Holder
from anabranch.frontend.state import tensors_of, unwrapped
from anabranch.ir.graph import State
from anabranch.ir.key import digest_source, digest_tensor
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.types import TensorType, type_of
from anabranch.options import Options
from anabranch.targets.places import model_place
from anabranch.trace import Trace


class _EagerSection(Holder):
    """What a section computes, operator by operator, for its plan to be compared with."""

    def __init__(
        self, step: CutStep, weights: Sequence[Tensor], places: Mapping[str, Tensor]
    ) -> None:
        self._step, self._weights = step, weights
        self._places = {path: places[path] for path in step.states.values()}

    @property
    def holds(self) -> tuple[Any, ...]:
        """Nothing that is called."""
        return ()

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Where its states lie."""
        return self._places

    def __call__(self, *values: Any) -> Any:
        step, places = self._step, self._places
        return stored(step, step.module.forward(*self._weights, *values, *places.values()), places)


class Sections:
    """`plans`: one for each section, and `entries` what they run; `held`: weights that eager steps
    read, by the model's names; `read_us`: what reading one number of the device takes."""

    def __init__(self, target: Target, options: Options, trace: Trace) -> None:
        self.target, self.options, self.trace = target, options, trace
        self.plans: list[Compiled] = []
        self.entries: list[Entry] = []
        self.held: dict[str, Tensor] = {}
        self.read_us: float | None = None
        self.read: set[str] = set()
        """Names of the weights that plans and eager steps have read."""
        self._numbers: dict[str, int] = {}
        """By identity of a step the number of its plan."""
        self._by_content: dict[tuple[str, TensorType], Tensor] = {}

    def owned(self) -> Shared:
        """The weights that plans and eager steps have, by their content."""
        return {**self._by_content, **shared_of([entry.plan for entry in self.entries])}

    def path(
        self,
        model: Any,
        was: Mapping[str, str],
        trace: CutTrace,
        stop: threading.Event | None,
        shared: Callable[[], Shared],
        earlier: Mapping[str, Tensor],
    ) -> CutPath:
        """The steps of a trace, compiled; what a plan cannot hold runs as eager does. `was`: what
        the model's modules were; `shared`: constants that plans may use; `earlier`: where states of
        the ways before lie, by what the model calls them."""
        refused: set[str] = set()
        state = dict(tensors_of(unwrapped(model))) if trace.weights or trace.states else {}
        lie = {path: earlier.get(path, state[path].detach()) for path in trace.states.values()}
        places = {path: place for path, place in lie.items() if self._may_lie(place)}
        while True:
            steps = split(trace, refused, places)
            if all(step.kind == "eager" for step in steps):
                raise _nothing_left(trace)
            unable = self._unable(steps, trace, places)
            if not unable:
                break
            refused |= unable
        # Tensors of our own: the model may write to them.
        own = own_inputs(trace.leaves, {})[0]
        tensors = [leaf.resolve_conj().resolve_neg() for leaf in own if isinstance(leaf, Tensor)]
        values: dict[str, Any] = dict(zip(trace.inputs, tensors, strict=True))
        values.update({name: state[trace.states[name]].detach().clone() for name in trace.states})
        states = {trace.states[name]: values[name] for name in trace.states}
        run_steps: list[RunStep] = []
        leaves = leaves_of(trace)
        rest = sum(step.kind == "section" for step in steps)
        for step, last in zip(steps, last_reads(steps, leaves), strict=True):
            inputs = [values[name] for name in step.reads]
            weights = {name: state[trace.weights[name]].detach() for name in step.weights}
            held = [states[path] for path in step.states.values()]
            results = _results(step, (*weights.values(), *inputs, *held))
            section: int | None = None
            beside: tuple[str, ...] = ()
            if step.kind == "section":
                section = self._numbers.get(identity(step))
                if section is None:
                    plan = self._plan(step, weights, rest, places)
                    captured = captured_section(step, weights, trace, model, places)
                    plan.add(inputs, captured=captured, stop=stop, shared=shared())
                    section = self._added(step, plan, was)
                rest -= 1
            else:
                beside = tuple(trace.weights[name] for name in step.weights)
                for name, value in weights.items():
                    self._hold(trace.weights[name], value, shared())
                own_constants(step.module)
            ready = self._ready(step, section, beside)
            values.update(zip(step.gives, stored(step, results, states), strict=True))
            run_steps.append(replace(ready, cost=self._timed(ready, inputs), last=last))
        self.share_arena()
        told = trace.inputs, trace.states, tuple(run_steps), leaves, trace.out_tree, trace.cuts
        draws = any(has_random(node) for node in trace.graph.nodes)
        writing = (i for i, step in enumerate(steps) if step.news or "copy_" in step.operators)
        numbers = trace.written_inputs, next(writing, -1)
        path = CutPath(*told, draws, *numbers)
        if self.options.verify:
            compare(trace, path, values, tensors, lambda: moved_runs(trace, steps, state))
        _put_back(trace, states, state, tensors)
        self.read.update(trace.weights[name] for step in steps for name in step.weights)
        for cut in trace.cuts:
            self.trace.add("applied", "cut", cut.node.name, f"{cut.origin}: {cut.why}")
        return path

    def _may_lie(self, place: Tensor) -> bool:
        """Whether plans can read and write a state there."""
        if self.target.spec.simulated:
            return False
        state = State("", 0, value=place)
        return model_place(state, type_of(place), self.target.device) is not None

    def _unable(
        self, steps: Sequence[CutStep], trace: CutTrace, places: Mapping[str, Tensor]
    ) -> set[str]:
        """Nodes of sections that no graph can hold: they run as eager does."""
        unable: set[str] = set()
        for step in steps:
            if step.kind != "section":
                continue
            try:
                captured_section(step, {}, trace, None, places)
            except CaptureError as refusal:
                self.trace.add("refused", "cut", step.nodes[0], f"{refusal.what}: {refusal.why}")
                unable.update(step.nodes)
        return unable

    def _plan(
        self,
        step: CutStep,
        weights: Mapping[str, Tensor],
        rest: int,
        places: Mapping[str, Tensor],
    ) -> Compiled:
        """What computes this step, not yet compiled. `rest`: plans that are to be made, this one
        among them, which share the budget; `places`: where states lie."""
        number = len(self.plans)
        budget, dump = self.options.budget, self.options.dump
        limit = self.options.memory_limit
        own = {
            "batch": "refuse",
            "budget": None if budget is None else budget / rest,
            "dump": None if dump is None else dump / f"plan{number + 1}",
            "memory_limit": None if limit is None else max(1, limit - self.memory().total),
        }

        eager = _EagerSection(step, tuple(weights.values()), places)
        return Compiled(eager, self.target, self.options.model_copy(update=own), self.trace)

    def _added(self, step: CutStep, plan: Compiled, was: Mapping[str, str]) -> int:
        """The number of the plan that was compiled for a step. What refitting compares with a model
        is the whole one."""
        number = len(self.plans)
        self.plans.append(plan)
        self._numbers[identity(step)] = number
        self.entries += [replace(entry, job=None, attributes=was) for entry in plan.entries]
        return number

    def share_arena(self) -> None:
        """All plans use the arena of the largest one."""
        if share_arena(self.entries, self.target):
            for plan, entry in zip(self.plans, self.entries, strict=True):
                plan.entries[-1] = replace(plan.entries[-1], run=entry.run)
                plan._answer_all()

    def copied(self, memo: dict[int, Any], places: Mapping[str, Tensor]) -> Sections:
        """Plans and weights of its own, which nothing can be added to. `places`: where its states
        lie, by what the model calls them."""
        sections = Sections(self.target, self.options, self.trace)
        sections.plans = [copy.deepcopy(plan, memo) for plan in self.plans]
        for plan in sections.plans:
            plan._move_states(places)
        sections.entries = [entry for plan in sections.plans for entry in plan.entries]
        sections.held = {path: value.clone() for path, value in self.held.items()}
        sections.read_us = self.read_us
        sections.share_arena()
        return sections

    def anew(self, path: CutPath) -> CutPath:
        """The path of a model that this is a copy of, with these plans and weights."""
        steps = tuple(
            replace(self._ready(old.step, old.section, old.held), cost=old.cost, last=old.last)
            for old in path.steps
        )
        return replace(path, steps=steps)

    def _ready(self, step: CutStep, section: int | None, held: tuple[str, ...]) -> RunStep:
        """The step with what runs it here."""
        key = identity(step)
        if section is not None:
            return RunStep(step, self._planned(section), section, held, key)
        weights, forward = [self.held[path] for path in held], step.module.forward

        def eager(values: Sequence[Any]) -> Sequence[Any]:
            results: Sequence[Any] = forward(*weights, *values)
            return results

        return RunStep(step, eager, None, held, key)

    def _planned(self, section: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """What a plan gives of the values that its section reads; two of them may be one tensor.
        A plan may be loaded anew, on the arena of another."""
        entries, relay = self.entries, relaid(self.entries[section])

        def call(values: Sequence[Any]) -> Sequence[Any]:
            entry = entries[section]
            assert entry.run is not None, "plans for a simulated target are not called"
            results: Sequence[Tensor] = entry.run(values, clone=True)
            if relay is not None:
                results = relay(values, results)
            assembled: Sequence[Any] = entry.assemble(values, results)
            return assembled

        return call

    def _hold(self, path: str, value: Tensor, shared: Shared) -> None:
        """Keep the weight in memory that a refit writes to: that of a plan, where one has it as it
        is."""
        if path not in self.held:
            key = digest_source(digest_tensor(value), path), type_of(value)
            existing = shared.get(key)
            self.held[path] = value.detach().clone() if existing is None else existing
            self._by_content[key] = self.held[path]

    def _timed(self, step: RunStep, inputs: Sequence[Any]) -> Cost | None:
        """What the step takes, its launches and what it waits for included; of a simulated target,
        and of one that writes states, what its plan is expected to take."""
        if self.target.spec.simulated:
            entry = None if step.section is None else self.plans[step.section].entries[-1]
            return None if entry is None or entry.compilation is None else entry.compilation.cost
        if step.section is not None and step.step.news:  # which would go on from call to call
            compilation = self.plans[step.section].entries[-1].compilation
            return None if compilation is None else compilation.cost
        if writes(step.step):
            return None
        with torch.no_grad():
            if self.read_us is None:
                number = torch.zeros((), device=self.target.device)
                self.read_us = self.target.time_call(number.item, TIME.schedule_s).us
            return self.target.time_call(lambda: step.call(inputs), TIME.schedule_s)

    def memory(self) -> MemoryUse:
        """Bytes that all plans hold on the device, and the weights that eager steps read; memory
        that several share counts once."""
        memory_use = memory_of(self.entries)
        constants = [
            constant.value for entry in self.entries for constant in entry.plan.tasks.constants
        ]
        plans = {value.untyped_storage().data_ptr() for value in constants if value is not None}
        held = [value.untyped_storage() for value in self.held.values()]
        own = {
            storage.data_ptr(): storage.nbytes()
            for storage in held
            if storage.data_ptr() not in plans
        }
        return replace(memory_use, weights=memory_use.weights + sum(own.values()))


def _put_back(
    trace: CutTrace,
    states: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    tensors: Sequence[Tensor],
) -> None:
    """Give the example's tensors, which plans keep to be timed on, the values that it had before
    the steps wrote to them: a counter may have gone past the end of its cache."""
    with torch.no_grad():
        for path, written in states.items():
            written.copy_(state[path])
        originals = [leaf for leaf in trace.leaves if isinstance(leaf, Tensor)]
        for place in trace.written_inputs:
            tensors[place].copy_(originals[place])


def _results(step: CutStep, values: Sequence[Any]) -> Sequence[Any]:
    """Those of a step for the example; CaptureError where an operator fails, though the model does
    not: it catches the error."""
    try:
        with torch.no_grad():
            results: Sequence[Any] = step.module.forward(*values)
    except OPERATOR_ERRORS as failed:
        if isinstance(failed, AnabranchError):
            raise
        first = (str(failed).strip().splitlines() or [""])[0]
        raise CaptureError(
            "an operator fails for this example, and the model goes on",
            f"{type(failed).__name__}: {first}; a trace has no values, and goes the way on which "
            "nothing fails",
            "ask by values before such an operator is called, not by try and except",
        ) from failed
    return results


def _nothing_left(trace: CutTrace) -> CaptureError:
    where = "; ".join(dict.fromkeys(cut.origin for cut in trace.cuts if cut.origin))
    return CaptureError(
        "nothing of the model is left to compile between the steps that ask for values",
        f"it asks at {where}, and what lies between are a few operators each"
        if where
        else "its sizes depend on values throughout",
        "run the model as it is, or compile a larger part of it",
    )
