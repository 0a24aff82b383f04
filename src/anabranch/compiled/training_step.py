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

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anabranch.artifact import file as artifact_file
from anabranch.cache import Cache
from anabranch.compiled.bound_tensors import BoundTensors
from anabranch.compiled.bound_values import BoundValues
from anabranch.compiled.calls import Compiled
from anabranch.compiled.history import Text, check_saved
from anabranch.compiled.memory import MemoryUse
from anabranch.compiled.saved_step import (
    KEY,
    SavedStep,
    alike_in,
    check_class,
    check_loss,
    check_settings,
    class_of,
    read_back,
    settings_of,
    state_places,
    varying_in,
    with_shared,
    without_values,
    write_read_only,
    written,
)
from anabranch.compiled.scaling import check_scaling
from anabranch.compiled.states import with_values
from anabranch.compiled.training_forms import check_sums, held_apart
from anabranch.errors import AnabranchError, InputError, OptionError, WeightsError
from anabranch.frontend.capture_lock import capture_lock
from anabranch.frontend.optimizer import forget_idle, initialise
from anabranch.frontend.surroundings import neutral, surroundings
from anabranch.frontend.training import Held, Training, held_by, with_places
from anabranch.frontend.training_cache import StepRequest, capture_step
from anabranch.frontend.training_checks import check_training, parts_of
from anabranch.frontend.training_questions import with_questions
from anabranch.frontend.training_run import check_runs
from anabranch.ir.ambient import autocast_now, name_of
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable, Target
from anabranch.options import Options
from anabranch.report.lines import WIDTH
from anabranch.report.task_rows import task_rows
from anabranch.trace import Trace

_deterministic = torch.are_deterministic_algorithms_enabled
PHASES = ("forward", "recompute", "backward", "update")
"""What capturing, and computing again, write as the place of a task."""

AS_IT_WAS = (
    ": a plan computes with numbers of Python as they were; give one that changes as a tensor, in "
    "the batch or as a buffer of the model, or compile the step again"
)


class TrainingStep:
    """One step of a training loop, compiled: forward, backward and update as one plan, for each
    form of batches. A batch of another form is refused; `add` compiles for it."""

    def __init__(
        self, training: Training, target: Target, options: Options, trace: Trace | None
    ) -> None:
        self.training, self.target, self.options = training, target, options
        self.trace = trace or Trace(level=options.debug)
        self._surroundings = surroundings()
        self._kinds = (False, True) if training.accumulate > 1 else (True,)
        """Whether a call of each of the plans ends with an update."""
        self._plans: list[Compiled] = []
        self._calls = 0
        self._rates: list[Tensor] = []
        self._read: list[float | Tensor] = []
        self._rates_are_copies = False
        """Whether a rate is a tensor that plans have a copy of, of another dtype or device: what is
        written to it in place nobody says."""
        self._held: Held | None = None
        self._fixed, self._written = set[str](), set[str]()
        """Names of what plans have copies of, and of what they write to."""
        self._forms: list[frozenset[str]] = []
        """What plans of each form of batches write to, where forms differ in that."""
        self._added: frozenset[str] | None = None
        """What calls add gradients to that end with no update."""
        self._bound: BoundTensors | None = None
        self._values = BoundValues.of(training.model, training.loss_fn)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy would write to tensors that no optimizer has."""
        raise OptionError(
            "a training step cannot be copied or pickled",
            "it writes to the tensors of the model and the optimizer that it was compiled for",
            "write it to a file with save(path), and have load_step(path, model, optimizer) read "
            "that for a copy of both; or compile a step for the copy",
        )

    def add(
        self, batch: Sequence[Any] | Tensor, stop: threading.Event | None = None
    ) -> TrainingStep:
        """Compile for one more form of batches.

        Args:
            batch: An example batch: what `loss_fn` is called with after the model.
            stop: As in `compile`.

        Returns:
            This object, with one more plan.

        Raises:
            CaptureError: The step could not be turned into a graph.
        """
        inputs = parts_of(batch)
        check_training(self.training, inputs)
        if self._bound is not None:
            self._bound.follow()
            if self._bound.refitted():  # the new plan has what was written, and the others have not
                self._refit()
        with capture_lock(), neutral():
            begun = initialise(self.training.optimizer)
            held = held_apart(held_by(self.training), self._forms)
            self._take_rates()
            under = replace(self._surroundings, deterministic=_deterministic())
            asked = [StepRequest(self.training, held, inputs, under, ends) for ends in self._kinds]
            with uncollected(), Cache.open(self.options.cache_dir) as cache:
                captured = [capture_step(request, cache, self.trace) for request in asked]
        written = {state.path for graph, _ in captured for state in graph.graph.states}
        forget_idle(self.training.optimizer, begun, held.ids(written))
        forms = [*self._forms, frozenset(written)]
        if self.training.accumulate > 1:
            adds = {state.path for state in captured[0][0].graph.states}
            self._added = check_sums(self._added, frozenset(adds), self.training.accumulate)
        if self._plans and held_apart(held, forms).alike != held.alike:
            return self._compiled_apart(forms, inputs, stop)
        self._plans = self._plans or [
            Compiled(eager, self.target, self.options, self.trace) for _, eager in captured
        ]
        simulated = self.target.spec.simulated
        for compiled, request, (graph, eager) in zip(self._plans, asked, captured, strict=True):
            compiled.options = self._options_beside(compiled)
            args, failed = (*inputs, self._rates), None
            with capture_lock():
                graph = with_questions(graph, eager, request, self._rates, self.trace, simulated)
            try:
                compiled.add(args, captured=graph, stop=stop)
            except (AnabranchError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                failed = error
            if failed is not None:
                check_runs(eager, args, under)
                raise failed
        self._fixed |= {path for graph, _ in captured for _, path in graph.sources}
        self._written |= written
        self._forms = list(dict.fromkeys(forms))
        bound = BoundTensors.of(self.training, held, self._fixed, self._written)
        self._held, self._bound = held, bound
        return self

    def _compiled_apart(
        self, forms: list[frozenset[str]], inputs: tuple[Any, ...], stop: threading.Event | None
    ) -> TrainingStep:
        """Compile all forms anew, with a count of steps of its own for what one of them updates
        and another one does not."""
        again = TrainingStep(self.training, self.target, self.options, self.trace)
        again._surroundings, again._forms = self._surroundings, forms
        jobs = (entry.job for entry in self._plans[-1].entries)
        for batch in (*(job.args[:-1] for job in jobs if job is not None), inputs):
            again.add(batch, stop)
        again._calls, again._values = self._calls, self._values
        self.__dict__.update(again.__dict__)
        return self

    def _options_beside(self, compiled: Compiled) -> Options:
        """Those of one of the plans, which has the memory that the others leave."""
        limit, others = self.options.memory_limit, 0
        for plan in self._plans:
            held = plan.memory()
            others += held.total - held.states if plan is not compiled else 0
        left = None if limit is None else max(1, limit - others)
        return self.options.model_copy(update={"memory_limit": left})

    def __call__(self, *batch: Any) -> Any:
        """One step.

        Returns:
            What `loss_fn` returns for this batch, without gradients. The model, its statistics and
            the optimizer are one step further.

        Raises:
            InputError: A batch of this form was not compiled, a hyperparameter other than the
                learning rate was changed since, a gradient waits that no zero_grad cleared, or
                autocast is on here and was not when the step was compiled.
            WeightsError: A tensor of the model or optimizer has been exchanged for another one.
        """
        assert self._bound is not None and self._held is not None
        self._bound.follow()
        self._bound.check_gradients()
        self._check_autocast()
        for changed in self._values.changed():
            self.trace.warn("frontend", type(self.training.model).__name__, changed + AS_IT_WAS)
        if self._bound.refitted():
            self._refit()
        if self._rates_are_copies or self.training.rates() != self._read:
            self._take_rates()
        ends = (self._calls + 1) % self.training.accumulate == 0
        with torch.no_grad():  # the batch may require gradients, and results have none
            returned = self._plans[-1 if ends else 0].called_within(*batch, self._rates)
        self._calls += 1
        if ends:
            self.training.optimizer._opt_called = True  # type: ignore[attr-defined]
        self._bound.stepped()
        return returned

    def _check_autocast(self) -> None:
        """InputError under an autocast that the step was not compiled under, and so does not
        follow."""
        kind = self.training.random.device.type
        now, compiled_under = autocast_now(kind), dict(self._surroundings.autocast).get(kind)
        if now and (compiled_under is None or name_of(compiled_under) != now):
            was = f"in {name_of(compiled_under)}" if compiled_under else "without it"
            raise InputError(
                f"the step is called under torch.autocast({kind!r}, torch.{now})",
                f"it was compiled {was}, and computes as it did then",
                "have loss_fn enter autocast, or compile the step under it",
            )

    def save(self, path: str | os.PathLike[str], state: bool = True) -> None:
        """Write all plans to one file, which `anabranch.load_step` reads anywhere.

        Args:
            path: Where to write it.
            state: With parameters, moments, statistics, frozen weights, the place in the random
                numbers and gradients that are not applied yet, as they are now: a checkpoint, but
                for schedules. Else plans alone, which go on from what model and optimizer have.

        Raises:
            WriteError: The file cannot be written.
            OptionError: A class in a batch or in the results has no name in torch's pytree.
        """
        assert self._bound is not None and self._held is not None
        self._bound.follow()
        if self._bound.refitted():
            self._refit()
        names, places = (
            self._held.names,
            dict(zip(self._held.names, self._held.tensors, strict=True)),
        )
        alike = tuple(tuple(names[i] for i in group) for group in self._held.alike)
        settings = settings_of(self._bound.settings)
        plans = []
        for ends, compiled in zip(self._kinds, self._plans, strict=True):
            said = SavedStep(
                ends,
                self.training.accumulate,
                bool(self.training.gradients),
                self._calls if state else 0,
                alike,
                settings,
                class_of(self.training.optimizer),
                tuple((name, float(value)) for name, value in self._bound.scaling.items()),
            )
            for entry in compiled.entries:
                check_saved(entry)
                plan = with_values(entry.plan, places) if state else without_values(entry.plan)
                plans.append((plan, {**compiled.facts_of(entry), KEY: written(said)}))
        shared = with_shared([plan for plan, _ in plans])
        facts = (plan_facts for _, plan_facts in plans)
        artifact_file.save_all(list(zip(shared, facts, strict=True)), path)

    @staticmethod
    def loaded(
        path: str | os.PathLike[str],
        plans: Sequence[tuple[Plan, Mapping[str, Any]]],
        training: Training,
        target: Target,
        options: Options,
    ) -> TrainingStep:
        """What `anabranch.load_step` returns, of the plans of a file. `training`: the model, the
        optimizer and the scaler that it is for."""
        saved = [read_back(path, facts) for _, facts in plans]
        first = saved[-1]
        check_class(first, training.optimizer)
        begun = initialise(training.optimizer)
        varying = varying_in(first, training.optimizer.param_groups)
        training = replace(training, accumulate=first.accumulate, varying=varying)
        training = with_places(training, first.keep_grad)
        step = TrainingStep(training, target, options, None)
        held = alike_in(first, held_by(training))
        step._take_rates()
        step._plans = [Compiled(None, target, options, None) for _ in step._kinds]
        read = [plan.recipe for plan, _ in plans if plan.recipe is not None]
        written_to = {state.path for plan, _ in plans for state in plan.tasks.states}
        fixed = {name for recipe in read for constant in recipe.sources for name in constant.source}
        check_loss(fixed | written_to, held)
        places: dict[str, Tensor] = {}
        for ends, compiled in zip(step._kinds, step._plans, strict=True):
            mine = [pair for pair, said in zip(plans, saved, strict=True) if said.ends == ends]
            for plan, _ in mine:
                compiled.states.places.update(state_places(plan, held, target.device))
            places.update(compiled.states.places)
            compiled.adopt_all(mine, str(path))
        forget_idle(training.optimizer, begun, held.ids(written_to))
        step._fixed, step._written = fixed, written_to
        step._held, step._bound = held, BoundTensors.of(training, held, fixed, written_to)
        check_settings(first, settings_of(step._bound.settings))
        if first.scaling:
            check_scaling(dict(first.scaling), step._bound.scaling)
        states = [state for plan, _ in plans for state in plan.tasks.states]
        with torch.no_grad():
            for state in states:
                if state.value is not None and not target.spec.simulated:
                    places[state.path].copy_(state.value)
            if any(state.value is not None for state in states) and not target.spec.simulated:
                write_read_only([e.plan for c in step._plans for e in c.entries], held)
        step._bound.check_counts()
        step._calls = first.calls
        step._refit()
        return step

    def _refit(self) -> None:
        """Have plans read what model and optimizer have of what the step only reads."""
        assert self._held is not None
        weights = dict(zip(self._held.names, self._held.tensors, strict=True))
        for compiled in self._plans:
            compiled.refit(weights)

    def _take_rates(self) -> None:
        self._read = self.training.rates()
        self._rates = self.training.rate_tensors(self._read)
        pairs = zip(self._read, self._rates, strict=True)
        self._rates_are_copies = any(
            isinstance(read, Tensor) and read is not rate for read, rate in pairs
        )

    def state_dict(self) -> dict[str, Any]:
        """The values that a checkpoint needs beside those of model, optimizer and scaler, to be
        resumed bit for bit: where the random numbers are, and gradients that are not applied
        yet."""
        training = self.training
        sums = [training.sums[id(p)].clone() for p in training.trained() if training.sums]
        return {"random": training.random.clone(), "calls": self._calls, "sums": sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. WeightsError where it is of another step."""
        training = self.training
        places = [training.sums[id(p)] for p in training.trained() if training.sums]
        if not isinstance(state, Mapping) or not {"random", "calls", "sums"} <= state.keys():
            raise WeightsError(
                "this is no state of a training step",
                "it holds the place in the random numbers, the count of calls, and gradients that "
                "are not applied yet",
                "give what TrainingStep.state_dict() returned; model and optimizer load their own",
            )
        if [s.shape for s in state["sums"]] != [p.shape for p in places]:
            raise WeightsError(
                "the state is that of another step",
                "its sums of gradients have other shapes, or another number",
                "make the step with the same accumulate, of the same model",
            )
        with torch.no_grad():
            training.random.copy_(state["random"])
            for place, value in zip(places, state["sums"], strict=True):
                place.copy_(value)
        self._calls = state["calls"]

    @property
    def facts(self) -> dict[str, Any]:
        """As `Compiled.facts`, of the newest plan."""
        return self._plans[-1].facts

    def explain(self, task: str | None = None, whole: bool = False, width: int = WIDTH) -> Text:
        """As `Compiled.explain`, of the newest plan: each task says which phase of the step it is
        of, `forward`, `backward` or `update`."""
        return self._plans[-1].explain(task, whole, width)

    def report(self, path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> None:
        """As `Compiled.report`, of the newest plan."""
        self._plans[-1].report(path, more)

    def memory(self) -> MemoryUse:
        """As `Compiled.memory`, of the plans that end with an update."""
        return self._plans[-1].memory()

    @property
    def known(self) -> dict[str, Any]:
        """As `Compiled.known`, of the newest plan."""
        return self._plans[-1].known

    @property
    def plan(self) -> Plan:
        """The newest plan, which ends with an update."""
        return self._plans[-1].entries[-1].plan

    def executable(self) -> Executable | None:
        """As `Compiled.executable`, of the newest plan: each replay is a step on the last batch."""
        return self._plans[-1].executable()

    def phases(self) -> dict[str, float]:
        """Microseconds of the tasks of each phase (`forward`, `recompute`, `backward`, `update`;
        `other`: no phase is known, as of copies to states) one after the other, each alone, as it
        was measured or estimated."""
        entry = self._plans[-1].entries[-1]
        if entry.compilation is None:
            raise OptionError(
                "the step was loaded from a file",
                "what its tasks took when it was compiled is not in it",
                "ask the step before it is saved",
            )
        compiled_graph = entry.compilation.compiled
        taken: dict[str, float] = {}
        for row in task_rows(
            entry.plan, compiled_graph.selection.candidates, [("", compiled_graph.timeline)]
        ):
            place = row.place if row.place in PHASES else "other"
            taken[place] = taken.get(place, 0.0) + (row.us or 0.0)
        return {phase: taken[phase] for phase in (*PHASES, "other") if phase in taken}
