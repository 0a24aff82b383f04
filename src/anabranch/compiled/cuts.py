"""A model that is cut where it asks for values: plans, and steps between them that run as eager.

    fast = anabranch.compile(detector, (image,))     boxes[scores > 0.5] has no size beforehand
    fast.sections                                    the plans, each a Compiled of its own
    fast.add((other,))                               one more way through the model

A way is what one example showed: which branch Python took, how often a loop ran. Nothing is
compiled in a call: one that goes a way that no example went runs the model itself, or is refused,
as `Options.unseen` says. The plans share weights, and own them: eager steps read them there, too.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anabranch.artifact.owned_constants import Shared
from anabranch.compiled import cut_states, refit, states
from anabranch.compiled.calls import Compiled
from anabranch.compiled.cut_form import CallForm, form_of
from anabranch.compiled.cut_path import (
    CutPath,
    StepFailed,
    path_facts,
    run,
    same,
)
from anabranch.compiled.cut_plans import Sections
from anabranch.compiled.gradients import (
    any_requires_grad,
    frozen_of,
    roots_of,
    sealed_results,
    warn_of_inputs,
)
from anabranch.compiled.history import Text
from anabranch.compiled.kept_weights import on_device
from anabranch.compiled.memory import MemoryUse
from anabranch.compiled.request import PlanRequest
from anabranch.compiled.sources import sources
from anabranch.compiled.transforms import check_plain, transforming
from anabranch.compiled.unseen_model import ModelThen
from anabranch.compiled.weights import Stamps, expected, other_weights, stamps_of
from anabranch.errors import (
    CaptureError,
    InputError,
    OptionError,
    TargetError,
    WeightsError,
)
from anabranch.frontend.attributes import attributes
from anabranch.frontend.call_readers import Reader
from anabranch.frontend.cut_checks import PathCheck, Unseen
from anabranch.frontend.cut_guards import guards_of
from anabranch.frontend.cut_trace import CutTrace, trace_cuts
from anabranch.frontend.from_torch import check
from anabranch.frontend.held_arguments import held_of, own_tensors
from anabranch.frontend.held_checks import check_not_read
from anabranch.frontend.memory import StateSpans, check_apart, check_writable
from anabranch.frontend.observe import Observed, generators_kept
from anabranch.frontend.program import name_of
from anabranch.frontend.state import unwrapped
from anabranch.frontend.structure import MARK
from anabranch.frontend.surroundings import neutral
from anabranch.ir.trees import with_shapes
from anabranch.report.cuts import cuts_text
from anabranch.report.lines import WIDTH
from anabranch.targets.forks import FORKS

PLANS = "look at the plans one by one: fast.sections[0]"
UNSEEN = (
    "{name}: a call went another way than all examples, and ran as eager does: {check} ({origin}) "
    "did not hold; add(...) compiles for such inputs, unseen='refuse' makes it an error"
)


class CutModel(Compiled):
    """A compiled model with cuts. It is a `Compiled` in all that is asked of one; `sections` are
    its plans. Calls that several plans with steps between them cannot answer say so."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lookups = self._answers  # of forms: plans have no sizes that calls are looked up by
        self._sections = Sections(self.target, self.options, self.trace)
        self.entries = self._sections.entries
        self.unseen_calls = 0
        self._forms: list[CallForm] = []
        self._model_is: dict[str, str] = {}
        self._roots: tuple[Tensor, ...] = ()
        """What leads to the weights that the model would find gradients of."""
        self._frozen: tuple[Tensor, ...] = ()
        self._warned = False
        self._lock, self._forks = threading.RLock(), FORKS.count

    def _add(self, asked: PlanRequest) -> None:
        if self._forms and (name := self._other_weight()):
            raise other_weights(name)
        device = check(self.model, asked.args, asked.kwargs)
        assert self.model is not None, "`add` refuses a model that was copied"
        try:
            seen = cut_states.seen_call(self.model, asked, self.trace)
            written = self.states.places.keys()
            trace = trace_cuts(self.model, asked.args, asked.kwargs, asked.around, written)
        finally:  # what these calls wrote to has its values again
            self._stamp()
        check_not_read(self.model, trace.weights_read)
        cut_states.check_not_read(self.states, trace, self._sections.read)
        cut_states.warn_of_lost(seen, self.model, trace, self.trace)
        if not self._forms:
            self._model_is, self._then = attributes(self.model), ModelThen.of(self.model)
            self._roots, self._frozen = roots_of(self.model), frozen_of(self.model)
        with neutral(), generators_kept(self.target.device):  # its steps are run to be compared
            try:
                path = self._sections.path(
                    self.model,
                    self._model_is,
                    trace,
                    asked.stop,
                    self.owned,
                    self.states.places,
                )
            except Unseen as unseen:
                raise _asks_otherwise(unseen.check) from unseen
            finally:  # plans were compared, in the places of states, which have their values again
                self._stamp()
            cut_states.learn(self.states, self.model, trace)
            form = self._form(trace, asked, device, seen)
        if not any(same(existing, path) for existing in form.paths):
            form.paths.append(path)

    def add_sizes(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises OptionError: which sizes may be padded is proved of one plan."""
        raise OptionError(
            "sizes that vary were asked for of a model that is cut",
            "what may be padded is proved of one plan, and eager steps are no part of it",
            "call add(...) with an example of each size",
        )

    @property
    def sections(self) -> list[Compiled]:
        """The plans, each a compiled model of its own."""
        return self._sections.plans

    def owned(self) -> Shared:
        """The weights that plans and eager steps have, by their content, as long as they have
        it."""
        return {} if self.fitted is not None else self._sections.owned()

    def memory(self) -> MemoryUse:
        """Bytes that all plans hold on the device, and the weights that eager steps read; memory
        that several share counts once."""
        written = sum(place.nbytes for place in self.states.places.values())
        held = self._sections.memory()
        return self._with_kept(replace(held, states=written))  # in which those of plans lie

    def _answer_all(self) -> None:
        self._answers[:] = [
            (self._read(f), functools.partial(self._answer, f)) for f in self._forms
        ]

    def _form(
        self, trace: CutTrace, asked: PlanRequest, device: torch.device, seen: Observed | None
    ) -> CallForm:
        """That of the example's call; a new one where there is none."""
        here = None if self.target.spec.simulated else self.target.device
        assert self.model is not None, "`add` refuses a model that was copied"
        guards = guards_of(self.model, trace, seen, asked.args, asked.kwargs, asked.around)
        form = form_of(self.model, trace, asked.around, device, here, guards, seen)
        for place, existing in enumerate(self._forms):
            if (both := existing.united(form, here)) is not None:
                self._forms[place] = both
                if len(self._answers) > place:
                    self._answers[place] = self._read(both), functools.partial(self._answer, both)
                return both
        self._forms.append(form)
        self._answers.append((self._read(form), functools.partial(self._answer, form)))
        return form

    def _read(self, form: CallForm) -> Reader:
        held = held_of(self.model)
        return form.read if held is None else held.reader(form.read)

    def _answer(self, form: CallForm, tensors: Sequence[Tensor]) -> Any:
        if self.target.spec.simulated:
            raise _simulated(self.target.spec.name)
        if len(self._answers) < len(self._forms):
            raise refit.half_way()
        if transforming():
            check_plain(tensors)
        unseen: Unseen | None = None
        failure: StepFailed | None = None
        for fitting, bound in self._fitting(form, tensors):
            may_write = functools.partial(self._check_memory, fitting, bound)
            try:
                with self._alone():
                    path, results = run(fitting.paths, bound, self.states.places, may_write)
                break
            except Unseen as another:
                unseen = unseen or another
            except StepFailed as failed:
                failure = failure or failed
        else:
            if failure is not None:
                return self._caught(form, tensors, failure.error)
            assert unseen is not None, "a call has a form"
            return self._another_way(form, tensors, unseen.check)
        if torch.is_grad_enabled():
            results = self._sealed(tensors, results)
        held = held_of(self.model)
        if held is None:
            return pytree.tree_unflatten(results, with_shapes(path.out_tree))
        results = list(map(held.unmarked, results))
        return held.taken(pytree.tree_unflatten(results, with_shapes(path.out_tree)))

    def _fitting(
        self, form: CallForm, tensors: Sequence[Tensor]
    ) -> Iterator[tuple[CallForm, Sequence[Tensor]]]:
        """The forms that a call has, this one first: examples may lie otherwise in memory, say, and
        go other ways."""
        yield form, tensors
        for other in self._forms:
            if other is form:
                continue
            args, kwargs = form.rebuilt(tensors)
            try:
                bound = other.bound(args, kwargs)
            except InputError:
                continue
            yield other, bound

    def _check_memory(self, form: CallForm, tensors: Sequence[Tensor], path: CutPath) -> None:
        """InputError where what the path is about to write to is memory of other inputs, too."""
        names = [value.name for value in form.inputs]
        check_apart(tensors, names, path.written)
        check_writable(tensors, names, path.written)
        written = {name: self.states.places[name] for name in path.states.values()}
        StateSpans(written).check(tensors, names)

    def _alone(self) -> threading.RLock:
        """What is held while plans run or are written to; in a forked process who held it stayed
        with the parent."""
        if self._forks != FORKS.count:
            self._forks, self._lock = FORKS.count, threading.RLock()
        return self._lock

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
                "load the weights that you want into the model, and call refit(model)",
            )
        if name := cut_states.elsewhere(self.states, self.model):
            raise InputError(
                "this call goes a way that no example went, and the model has another tensor as "
                f"its state {name}",
                "such a call runs the model itself, which would not see what calls have written",
                "give such inputs to add(...)",
            )
        if self.unseen_calls == 1:
            told = {"name": name_of(self.model), "check": check.text, "origin": check.origin}
            warnings.warn(UNSEEN.format(**told), stacklevel=4)
        return self._called_model(form, tensors)

    def _caught(self, form: CallForm, tensors: Sequence[Tensor], error: Exception) -> Any:
        """A call for which an operator fails: what the model makes of it, where it can be asked."""
        refused = self.model is None or self.options.unseen == "refuse" or self._other_weight()
        if refused or cut_states.elsewhere(self.states, self.model):
            raise error
        try:
            results = self._called_model(form, tensors)
        except Exception as own:
            raise (error if type(own) is type(error) else own) from None
        self.unseen_calls += 1
        return results

    def _called_model(self, form: CallForm, tensors: Sequence[Tensor]) -> Any:
        """What the model itself gives, and plans with the weights that it leaves."""
        args, kwargs = form.rebuilt(tensors)
        try:
            return cut_states.apart(self.states, self._run_model(*args, **kwargs))
        finally:
            if self._other_weight():  # this way writes to what plans have as a constant
                self.refit(self.model)

    def _sealed(self, tensors: Sequence[Tensor], results: Sequence[Any]) -> list[Any]:
        if not self._warned and any(tensor.requires_grad for tensor in tensors):
            self._warned = True
            warn_of_inputs()
        if self._frozen and any_requires_grad(*self._frozen):  # they did not until now
            self._roots, self._frozen = roots_of(self.model), frozen_of(self.model)
        return sealed_results(tensors, results, self._roots)

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call of another form than at first sight, or one that was not compiled."""
        if len(self._answers) < len(self._forms):
            raise refit.half_way()
        if held := held_of(self.model):
            args, kwargs = held.marked(args, kwargs)
            held.check_same(args, kwargs)
        refused: InputError | None = None
        for form in self._forms:
            try:
                tensors = form.bound(args, kwargs)
            except InputError as unlike:
                refused = refused or unlike
                continue
            return self._answer(form, tensors)
        assert refused is not None, "a compiled model has a form"
        raise refused

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
            "states": list(self.states.places),
            "read_us": self._sections.read_us,
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
            if any(planned.name == task for planned in section.entries[-1].plan.tasks.tasks):
                return section
        return self.sections[0]

    def search_rounds(self) -> list[dict[str, Any]]:
        """As `Compiled.search_rounds`, of all plans in turn."""
        return [facts for section in self.sections for facts in section.search_rounds()]

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
        goes a way that no example went is refused. OptionError where the model holds an argument:
        calls pass that object, whose tensors the copy would not have."""
        if held := held_of(self.model):
            name = next(iter(held.objects)).removeprefix(MARK)
            raise OptionError(
                f"a copy was asked of a model that is cut and holds the argument {name}",
                "calls pass that very object, and its tensors are those of one compiled model",
                f"compile a copy of the model with a {name} of its own",
            )
        cut_model = CutModel(None, self.target, self.options, self.trace)
        memo[id(self)] = cut_model
        with self._alone():
            cut_model.states = cut_states.anew(self.states)
        cut_model._sections = self._sections.copied(memo, cut_model.states.places)
        cut_model.entries, cut_model._roots = cut_model._sections.entries, self._roots
        cut_model._beside.update(self._lacking())
        for form in self._forms:
            cut_model._forms.append(
                replace(form, paths=list(map(cut_model._sections.anew, form.paths)))
            )
        cut_model._answer_all()
        return cut_model

    def refit(self, weights: Any, check: bool = False) -> CutModel:
        """As `Compiled.refit`, of all plans and of the weights that eager steps read."""
        if isinstance(weights, Compiled):
            weights = weights.state_dict()
        recipe = self.entries[-1].plan.recipe
        assert recipe is not None, "what was captured has one"
        tensors = refit.tensors_by_name(weights, recipe)
        missing = [path for path in self._sections.held if path not in tensors]
        if missing:
            raise WeightsError(
                "these weights do not fit the compiled model",
                f"missing: {', '.join(missing[:3])}",
                "give weights of the model that was compiled",
            )
        with self._alone():
            refit.refit(self.entries, self.target, weights, check, self._answers.clear)
            with torch.no_grad():
                for path, value in self._sections.held.items():
                    value.copy_(tensors[path])
            self._beside.clear()
            paths = self.states.paths()
            self.fitted = stamps_of({n: x for n, x in tensors.items() if n not in paths})
            if not self._answers:  # an earlier refit was cut off half way
                self._answer_all()
        return self

    def _refit(self, state: dict[str, Tensor]) -> None:
        weights = self._known_by_name()
        if self._expected().keys() - state.keys() and not self._other_weight():
            weights = self._model_state()
        self.refit({**weights, **state})
        self._keep({**weights, **state})
        paths = self.states.paths()
        self._write({paths[name]: value for name, value in state.items() if name in paths})

    def reset_state(self) -> CutModel:
        """As `Compiled.reset_state`."""
        self._write(self.states.first)
        if held := held_of(self.model):
            held.reset_numbers()
        return self

    def _write(self, values: Mapping[str, Tensor]) -> None:
        """Give states these values, by path, while no call runs."""
        with self._alone():
            states.write(self.entries, self.states, values)

    def _weights(self) -> dict[str, Tensor]:
        changed, wanted = self._other_weight(), expected(self.entries)
        if self.model is not None and not changed:
            return self.states.over(self._model_state(), wanted)
        weights = self.states.over(self._known_by_name(), wanted)
        lost = [name for name in wanted if name not in weights]
        if lost:
            raise OptionError(
                "the weights of this compiled model are not known by name",
                f"of {lost[0]} it has only what was computed of it, and the model has others",
                "give it them with load_state_dict, which keeps them, or load them into the model, "
                "too, and call refit(model)",
            )
        return {name: weights[name] for name in wanted}

    def _held_by_name(self) -> dict[str, Tensor]:
        """The weights that lie in memory of plans and eager steps, and states."""
        weights: dict[str, Tensor] = {}
        for entry in self.entries:
            weights.update(sources(entry.plan)[0])
        return {**weights, **self._sections.held, **self.states.present()}

    def _known_by_name(self) -> dict[str, Tensor]:
        """These, and those that are kept because plans lack them."""
        return {**on_device(self._beside, self.target.device), **self._held_by_name()}

    def _model_state(self) -> dict[str, Tensor]:
        if not isinstance(self.model, nn.Module):
            return {}
        state = unwrapped(self.model).state_dict()
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def _model_stamps(self) -> Stamps:
        if not isinstance(self.model, nn.Module):
            return {}
        return stamps_of(own_tensors(self.model))

    def _stamp(self) -> None:
        """Take what the model has now for what plans have."""
        now = self._model_stamps()
        if self.fitted is None:
            self._stamps = now
        else:
            self.fitted = {name: now.get(name, stamp) for name, stamp in self.fitted.items()}

    def _other_weight(self) -> str:
        """A weight of the model that is not what plans have; "" if there is none."""
        stamps = self._stamps if self.fitted is None else self.fitted
        now, written = self._model_stamps(), self.states.paths()
        other = (n for n, stamp in stamps.items() if now.get(n, stamp) != stamp)
        return next((name for name in other if name not in written), "")


def _asks_otherwise(check: PathCheck) -> CaptureError:
    return CaptureError(
        "the model asks for other values when it is traced than when it is called",
        f"{check.text} does not hold for the example that it was traced with",
        "compile the parts before and after, as torch.compile(model, backend='anabranch') does",
        check.origin,
    )


def _simulated(name: str) -> TargetError:
    return TargetError(
        f"plans for a simulated {name} cannot run",
        "there is no such device here",
        "compile for target='cpu', or on the GPU itself",
    )
