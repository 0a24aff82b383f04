"""A model that is cut where it asks for values: plans, and steps between them that run as eager.

    fast = anabranch.compile(detector, (image,))     boxes[scores > 0.5] has no size beforehand
    fast.sections                                    the plans, each a Compiled of its own
    fast.add((other,))                               one more way through the model

A way is what one example showed: which branch Python took, how often a loop ran. Nothing is
compiled in a call: one that goes a way that no example went runs the model itself, or is refused,
as `Options.unseen` says. The plans share weights, and own them: eager steps read them there, too.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anabranch.artifact.owned import Shared
from anabranch.compiled import refit
from anabranch.compiled.calls import Compiled, Text
from anabranch.compiled.cut_form import CallForm, form_of
from anabranch.compiled.cut_path import (
    CutPath,
    RunStep,
    compare,
    identity,
    last_reads,
    leaves_of,
    path_facts,
    run,
    same,
)
from anabranch.compiled.gradients import sealer, warn_of_inputs
from anabranch.compiled.memory import MemoryUse
from anabranch.compiled.sized import SizedCalls
from anabranch.compiled.sources import sources
from anabranch.compiled.weights import Stamps, other_weights, stamps_of
from anabranch.deadline import TIME
from anabranch.errors import (
    CaptureError,
    InputError,
    OptionError,
    TargetError,
    WeightsError,
)
from anabranch.frontend.attributes import attributes
from anabranch.frontend.captured import Captured
from anabranch.frontend.cut_checks import PathCheck, Unseen
from anabranch.frontend.cut_sections import (
    CutStep,
    captured_section,
    own_constants,
    split,
    writes,
)
from anabranch.frontend.cut_trace import CutTrace, trace_cuts
from anabranch.frontend.from_torch import check
from anabranch.frontend.observe import own_inputs
from anabranch.frontend.program import name_of
from anabranch.frontend.state import tensors_of, unwrapped
from anabranch.frontend.surroundings import Surroundings, neutral, surroundings
from anabranch.ir.graph import Constant
from anabranch.ir.key import digest_source, digest_tensor
from anabranch.ir.protocols import Cost
from anabranch.ir.types import TensorType, type_of
from anabranch.report.cuts import cuts_text
from anabranch.report.lines import WIDTH

PLANS = "look at the plans one by one: fast.sections[0]"
UNSEEN = (
    "{name}: a call went another way than all examples, and ran as eager does: {check} ({origin}) "
    "did not hold; add(...) compiles for such inputs, unseen='refuse' makes it an error"
)


class CutModel(Compiled):
    """A compiled model with cuts. It is a `Compiled` in all that is asked of one; `sections` are
    its plans. What cannot be done with several plans and the steps between them says so."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sections: list[Compiled] = []
        self.unseen_calls = 0
        self._forms: list[CallForm] = []
        self._known: dict[str, int] = {}
        """By identity of a step the section that computes it."""
        self._held: dict[str, Tensor] = {}
        """Weights that eager steps read, by the model's names."""
        self._by_content: dict[tuple[str, TensorType], Tensor] = {}
        self._model_is: dict[str, str] = {}
        self._trained = False
        """Whether the model would find gradients of its weights."""
        self._stamps: Stamps = {}
        self._warned = False
        self._lock, self._process = threading.RLock(), os.getpid()
        self._read_us: float | None = None

    def _add(
        self,
        args: Sequence[Any] | Tensor,
        kwargs: Mapping[str, Any],
        captured: Captured | None,
        stop: threading.Event | None,
        shared: Shared | None,
        calls: SizedCalls | None = None,
        at: tuple[int, ...] = (),
        around: Surroundings | None = None,
    ) -> None:
        if self._forms and (name := self._other_weight()):
            raise other_weights(name)
        found = around or surroundings()
        given = (args,) if isinstance(args, Tensor) else tuple(args)
        device = check(self.model, given, kwargs)
        assert self.model is not None, "`add` refuses a model that was copied"
        trace = trace_cuts(self.model, given, kwargs, found)
        if not self._forms:
            self._model_is, self._stamps = attributes(self.model), self._model_stamps()
            self._trained = any(one.requires_grad for one in _parameters(self.model))
        with neutral():
            path = self._path(trace, stop)
            form = self._form(trace, found, device)
        if not any(same(known, path) for known in form.paths):
            form.paths.append(path)

    def add_sizes(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises OptionError: which sizes may be padded is proved of one plan."""
        raise OptionError(
            "sizes that vary were asked for of a model that is cut",
            "what may be padded is proved of one plan, and eager steps are no part of it",
            "call add(...) with an example of each size",
        )

    def _path(self, trace: CutTrace, stop: threading.Event | None) -> CutPath:
        """The steps of a trace, compiled; what a plan cannot hold runs as eager does."""
        refused: set[str] = set()
        while True:
            steps = split(trace, refused)
            if all(step.kind == "eager" for step in steps):
                raise _nothing_left(trace)
            unable = self._unable(steps, trace)
            if not unable:
                break
            refused |= unable
        # Tensors of our own: the model may write to them.
        tensors = [leaf for leaf in own_inputs(trace.leaves, {})[0] if isinstance(leaf, Tensor)]
        values: dict[str, Any] = dict(zip(trace.inputs, tensors, strict=True))
        state = dict(tensors_of(unwrapped(self.model))) if trace.weights else {}
        made: list[RunStep] = []
        leaves = leaves_of(trace)
        rest = sum(step.kind == "section" for step in steps)
        for step, last in zip(steps, last_reads(steps, leaves), strict=True):
            inputs = [values[name] for name in step.reads]
            weights = {name: state[trace.weights[name]].detach() for name in step.weights}
            section: int | None = None
            held: tuple[str, ...] = ()
            if step.kind == "section":
                section = self._section(step, inputs, weights, trace, rest, stop)
                rest -= 1
            else:
                held = tuple(trace.weights[name] for name in step.weights)
                for name, value in weights.items():
                    self._hold(trace.weights[name], value)
                own_constants(step.module)
            ready = self._ready(step, section, held)
            with torch.no_grad():
                results = step.module.forward(*weights.values(), *inputs)
            values.update(zip(step.gives, results, strict=True))
            made.append(replace(ready, cost=self._timed(ready, inputs), last=last))
        self._share_arena()
        path = CutPath(trace.inputs, tuple(made), leaves, trace.out_tree, trace.cuts)
        if self.options.verify:
            compare(trace, path.results(values))
        for cut in trace.cuts:
            self.trace.add("applied", "cut", cut.node.name, f"{cut.origin}: {cut.why}")
        return path

    def _unable(self, steps: Sequence[CutStep], trace: CutTrace) -> set[str]:
        """Nodes of sections that no graph can hold: they run as eager does."""
        unable: set[str] = set()
        for step in steps:
            if step.kind != "section":
                continue
            try:
                captured_section(step, {}, trace, None)
            except CaptureError as refusal:
                self.trace.add("refused", "cut", step.nodes[0], f"{refusal.what}: {refusal.why}")
                unable.update(step.nodes)
        return unable

    def _section(
        self,
        step: CutStep,
        inputs: Sequence[Tensor],
        weights: Mapping[str, Tensor],
        trace: CutTrace,
        rest: int,
        stop: threading.Event | None,
    ) -> int:
        """The number of the plan of this step, which is made if there is none. `rest`: plans that
        are to be made, this one among them."""
        known = identity(step)
        if known in self._known:
            return self._known[known]
        number = len(self.sections)
        budget, dump = self.options.budget, self.options.dump
        limit = self.options.memory_limit
        own = {
            "batch": "refuse",
            "budget": None if budget is None else budget / rest,
            "dump": None if dump is None else dump / f"plan{number + 1}",
            "memory_limit": None if limit is None else max(1, limit - self.memory().total),
        }

        def eager(*values: Any) -> Any:
            return step.module.forward(*weights.values(), *values)

        options = self.options.model_copy(update=own)
        section = Compiled(eager, self.target, options, self.trace)
        captured = captured_section(step, weights, trace, self.model)
        section.add(inputs, captured=captured, stop=stop, shared=self.owned())
        self.sections.append(section)
        self._known[known] = number
        # What refitting compares with a model is the whole one.
        was = self._model_is
        self.entries += [replace(one, job=None, attributes=was) for one in section.entries]
        return number

    def _ready(self, step: CutStep, section: int | None, held: tuple[str, ...]) -> RunStep:
        """The step with what runs it here."""
        known = identity(step)
        if section is not None:
            return RunStep(step, self._planned(section), section, held, known)
        weights, forward = [self._held[path] for path in held], step.module.forward

        def eager(values: Sequence[Any]) -> Sequence[Any]:
            given: Sequence[Any] = forward(*weights, *values)
            return given

        return RunStep(step, eager, None, held, known)

    def _planned(self, section: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """What a plan gives of the values that its section reads; two of them may be one tensor.
        A plan may be loaded anew, on the arena of another."""
        entries = self.entries

        def call(values: Sequence[Any]) -> Sequence[Any]:
            entry = entries[section]
            assert entry.run is not None, "plans for a simulated target are not called"
            given: Sequence[Any] = entry.assemble(values, entry.run(values, clone=True))
            return given

        return call

    def _answer_all(self) -> None:
        """After plans were loaded anew: sections have the same ones."""
        for section, entry in zip(self.sections, self.entries, strict=True):
            section.entries[-1] = replace(section.entries[-1], run=entry.run)
            section._answer_all()
        self._answers[:] = [(f.read, functools.partial(self._answer, f)) for f in self._forms]

    def _hold(self, path: str, value: Tensor) -> None:
        """Keep the weight in memory that a refit writes to: that of a plan, where one has it as it
        is."""
        if path not in self._held:
            key = digest_source(digest_tensor(value), path), type_of(value)
            known = super().owned().get(key)
            self._held[path] = value.detach().clone() if known is None else known
            self._by_content[key] = self._held[path]

    def owned(self) -> Shared:
        """The weights that plans and eager steps have, by their content, as long as they have
        it."""
        held = {} if self.fitted is not None else self._by_content
        return {**held, **super().owned()}

    def _timed(self, step: RunStep, inputs: Sequence[Any]) -> Cost | None:
        """What the step takes, its launches and what it waits for included; of a simulated target
        what its plan is expected to take."""
        if self.target.spec.simulated:
            made = None if step.section is None else self.sections[step.section].entries[-1]
            return None if made is None or made.compilation is None else made.compilation.cost
        if writes(step.step):
            return None
        with torch.no_grad():
            if self._read_us is None:
                number = torch.zeros((), device=self.target.device)
                self._read_us = self.target.time_call(number.item, TIME.schedule_s).us
            return self.target.time_call(lambda: step.call(inputs), TIME.schedule_s)

    def _form(self, trace: CutTrace, found: Surroundings, device: torch.device) -> CallForm:
        """That of the example's call; a new one where there is none."""
        here = None if self.target.spec.simulated else self.target.device
        form = form_of(trace, found, device, here)
        for known in self._forms:
            if known.alike(form):
                return known
        self._forms.append(form)
        self._answers.append((form.read, functools.partial(self._answer, form)))
        return form

    def _answer(self, form: CallForm, tensors: Sequence[Tensor]) -> Any:
        if self.target.spec.simulated:
            raise _simulated(self.target.spec.name)
        if len(self._answers) < len(self._forms):
            raise refit.half_way()
        if self._process != os.getpid():  # who held it stayed with the parent
            self._process, self._lock = os.getpid(), threading.RLock()
        try:
            with self._lock:
                path, results = run(form.paths, tensors)
        except Unseen as unseen:
            return self._another_way(form, tensors, unseen.check)
        if torch.is_grad_enabled():
            results = self._sealed(tensors, results)
        return pytree.tree_unflatten(results, path.out_tree)

    def _another_way(self, form: CallForm, tensors: Sequence[Tensor], check: PathCheck) -> Any:
        """A call that goes a way that no example went."""
        self.unseen_calls += 1
        if self.model is None or self.options.unseen == "refuse":
            raise InputError(
                "this call goes another way through the model than all examples did",
                f"{check.text} does not hold ({check.origin}); nothing is compiled in a call",
                "give such inputs to add(...)"
                + ("; unseen='eager' runs the model itself" if self.model is not None else ""),
            )
        if name := self._other_weight():
            raise WeightsError(
                "this call goes a way that no example went, and the model has other weights: "
                + name,
                "such a call runs the model itself, whose weights were changed since",
                "call refit(model) first",
            )
        if self.unseen_calls == 1:
            told = {"name": name_of(self.model), "check": check.text, "origin": check.origin}
            warnings.warn(UNSEEN.format(**told), stacklevel=4)
        args, kwargs = form.rebuilt(tensors)
        return self.model(*args, **kwargs)

    def _sealed(self, tensors: Sequence[Tensor], results: Sequence[Any]) -> list[Any]:
        """Results that the model would have gradients of refuse to give them."""
        asked = any(tensor.requires_grad for tensor in tensors)
        if asked and not self._warned:
            self._warned = True
            warn_of_inputs()
        if not asked and not self._trained:
            return list(results)
        places = [
            place
            for place, result in enumerate(results)
            if isinstance(result, Tensor)
            and (result.is_floating_point() or result.is_complex())
            and not any(result is tensor for tensor in tensors)
        ]
        seal = sealer(range(len(places)), len(places)) if places else list
        sealed, found = seal([results[place] for place in places]), list(results)
        for place, result in zip(places, sealed, strict=True):
            found[place] = result
        return found

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call of another form than at first sight, or one that was not compiled."""
        if len(self._answers) < len(self._forms):
            raise refit.half_way()
        refused: InputError | None = None
        for form in self._forms:
            try:
                tensors = form.bound(self.model, args, kwargs)
            except InputError as unlike:
                refused = refused or unlike
                continue
            return self._answer(form, tensors)
        assert refused is not None, "a compiled model has a form"
        raise refused

    def memory(self) -> MemoryUse:
        """Bytes that all plans hold on the device, and the weights that eager steps read; memory
        that several share counts once."""
        found = super().memory()
        plans = [constant.value for constant in self._constants() if constant.value is not None]
        ours = {value.untyped_storage().data_ptr() for value in plans}
        own = [value.untyped_storage() for value in self._held.values()]
        places = {one.data_ptr(): one.nbytes() for one in own if one.data_ptr() not in ours}
        more = sum(places.values())
        return replace(found, weights=found.weights + more)

    def _constants(self) -> list[Constant]:
        return [c for entry in self.entries for c in entry.plan.tasks.constants]

    @property
    def facts(self) -> dict[str, Any]:
        """Steps, cuts and what they take, ready for JSON; `sections` has the facts of each plan."""
        return {**self.known, "sections": [section.facts for section in self.sections]}

    @property
    def known(self) -> dict[str, Any]:
        """The facts, but for those that are timed when they are asked for."""
        return {
            "model": name_of(self.model),
            "device": self.target.spec.name,
            "forms": [
                {
                    "inputs": [f"{value.name}: {value.type.text}" for value in form.inputs],
                    "paths": [path_facts(path) for path in form.paths],
                }
                for form in self._forms
            ],
            "plans": len(self.sections),
            "read_us": self._read_us,
            "unseen": self.options.unseen or "eager",
            "unseen_calls": self.unseen_calls,
        }

    def __repr__(self) -> str:
        """One line: the model, and what it is cut into."""
        if not self._forms:
            return f"{type(self).__name__}(nothing compiled yet)"
        paths = sum(len(form.paths) for form in self._forms)
        cuts = len(self._forms[-1].paths[-1].cuts)
        return (
            f"{type(self).__name__}({name_of(self.model)} on {self.target.spec.name}: "
            f"{len(self.sections)} plans, {cuts} cuts, {paths} paths)"
        )

    def explain(self, task: str | None = None, whole: bool = False, width: int = WIDTH) -> Text:
        """Where the model is cut and why, what each step takes, and then of each plan what
        `Compiled.explain` says."""
        if task is not None:
            return Text(self._with_task(task).explain(task, whole, width))
        told = [cuts_text(self.known)]
        for number, section in enumerate(self.sections, 1):
            told.append(f"Plan {number}\n\n{section.explain(None, whole, width)}")
        return Text("\n\n".join([*told, f"Held on the device: {self.memory()}"]))

    def about(self, task: str) -> dict[str, Any]:
        """As `Compiled.about`, of the first plan that has such a task."""
        return self._with_task(task).about(task)

    def _with_task(self, task: str) -> Compiled:
        for section in self.sections:
            if any(one.name == task for one in section.entries[-1].plan.tasks.tasks):
                return section
        return self.sections[0]

    def searched(self) -> list[dict[str, Any]]:
        """As `Compiled.searched`, of all plans in turn."""
        return [one for section in self.sections for one in section.searched()]

    def report(self, path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> None:
        """Raises OptionError: a page is about one plan."""
        raise OptionError(
            "a report was asked for of a model that is cut", "a page is about one plan", PLANS
        )

    def session(self) -> NoReturn:
        """Raises OptionError: the steps between plans read and write the model's own buffers."""
        raise OptionError(
            "a session was asked of a model that is cut",
            "between its plans steps run as eager does, on the model's own buffers",
            "compile a copy of the model for each session",
        )

    def save(self, path: str | os.PathLike[str], state: bool = True) -> NoReturn:
        """Raises OptionError: the steps between plans are no part of a saved plan."""
        raise OptionError(
            "a model that is cut cannot be saved as one plan",
            "between its plans steps run as eager does, and a saved plan holds no such code",
            "save the plans (fast.sections[0].save(path)), or compile where it runs: the cache "
            "keeps what was decided",
        )

    def _stored(self) -> Any:
        raise OptionError(
            "a model that is cut cannot be pickled",
            "between its plans steps run as eager does, and a saved plan holds no such code",
            "pickle the model it was compiled from, and compile that where it runs",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CutModel:
        """A copy with plans and weights of its own; it runs without the model, so that a call that
        goes a way that no example went is refused."""
        made = CutModel(None, self.target, self.options, self.trace)
        memo[id(self)] = made
        made.sections = [copy.deepcopy(section, memo) for section in self.sections]
        made.entries = [entry for section in made.sections for entry in section.entries]
        made._held = {path: value.clone() for path, value in self._held.items()}
        made._known, made._read_us = dict(self._known), self._read_us
        made._trained = self._trained
        for form in self._forms:
            mine = replace(form, paths=[])
            for path in form.paths:
                steps = [made._ready(one.step, one.section, one.held) for one in path.steps]
                pairs = zip(steps, path.steps, strict=True)
                known = tuple(replace(new, cost=old.cost, last=old.last) for new, old in pairs)
                mine.paths.append(replace(path, steps=known))
            made._forms.append(mine)
            made._answers.append((mine.read, functools.partial(made._answer, mine)))
        made._share_arena()
        return made

    def refit(self, weights: Any, check: bool = False) -> CutModel:
        """As `Compiled.refit`, of all plans and of the weights that eager steps read."""
        if isinstance(weights, Compiled):
            weights = weights.state_dict()
        recipe = self.entries[-1].plan.recipe
        assert recipe is not None, "what was captured has one"
        given = refit.tensors_by_name(weights, recipe)
        missing = [path for path in self._held if path not in given]
        if missing:
            raise WeightsError(
                "these weights do not fit the compiled model",
                f"missing: {', '.join(missing[:3])}",
                "give weights of the model that was compiled",
            )
        with self._lock:
            refit.refit(self.entries, self.target, weights, check, self._answers.clear)
            with torch.no_grad():
                for path, value in self._held.items():
                    value.copy_(given[path])
            self.fitted = stamps_of(given)
            if not self._answers:  # an earlier refit was cut off half way
                self._answer_all()
        return self

    def _refit(self, state: dict[str, Tensor]) -> None:
        known = self._held_by_name()
        if self._expected().keys() - state.keys() and not self._other_weight():
            known = self._model_state()
        self.refit({**known, **state})

    def _weights(self) -> dict[str, Tensor]:
        changed = self._other_weight()
        if self.model is not None and not changed:
            return self._model_state()
        known, wanted = self._held_by_name(), self._expected()
        lost = [name for name in wanted if name not in known]
        if lost:
            raise OptionError(
                "the weights of this compiled model are not known by name",
                f"of {lost[0]} it has only what was computed of it, and the model has others",
                "keep the state dict that it was given, or load that into the model, too, and call "
                "refit(model)",
            )
        return {name: known[name] for name in wanted}

    def _held_by_name(self) -> dict[str, Tensor]:
        """The weights that lie in memory of plans and eager steps."""
        found: dict[str, Tensor] = {}
        for entry in self.entries:
            found.update(sources(entry.plan)[0])
        return {**found, **self._held}

    def _model_state(self) -> dict[str, Tensor]:
        if not isinstance(self.model, nn.Module):
            return {}
        state = unwrapped(self.model).state_dict()
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def _model_stamps(self) -> Stamps:
        if not isinstance(self.model, nn.Module):
            return {}
        return stamps_of(dict(tensors_of(unwrapped(self.model))))

    def _other_weight(self) -> str:
        """A weight of the model that is not what plans have; "" if there is none."""
        known = self._stamps if self.fitted is None else self.fitted
        now = self._model_stamps()
        return next((name for name, stamp in known.items() if now.get(name, stamp) != stamp), "")


def _parameters(model: Any) -> list[nn.Parameter]:
    return list(model.parameters()) if isinstance(model, nn.Module) else []


def _nothing_left(trace: CutTrace) -> CaptureError:
    where = "; ".join(dict.fromkeys(cut.origin for cut in trace.cuts if cut.origin))
    return CaptureError(
        "nothing of the model is left to compile between the steps that ask for values",
        f"it asks at {where}, and what lies between are a few operators each"
        if where
        else "its sizes depend on values throughout",
        "run the model as it is, or compile a larger part of it",
    )


def _simulated(name: str) -> TargetError:
    return TargetError(
        f"plans for a simulated {name} cannot run",
        "there is no such device here",
        "compile for target='cpu', or on the GPU itself",
    )
