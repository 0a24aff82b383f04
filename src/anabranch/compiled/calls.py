"""Compiled: call it, ask it why, save it, and add plans for other inputs.

fast = anabranch.compile(model, (x,))
y = fast(x)
fast.add((x32,))                  # one more input signature, one more plan
fast.explain(); fast.report("report.html"); fast.save("model.anabranch")
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.artifact import file as artifact_file
from anabranch.cache import Cache
from anabranch.cache.whole_file import path_of
from anabranch.compiled import (
    arguments,
    asked_sizes,
    gradients,
    pickling,
    refit,
    saved_sizes,
    states,
)
from anabranch.compiled.answer import answering
from anabranch.compiled.binding import bind, refusal
from anabranch.compiled.bucket_jobs import SizeToCompile, compile_sizes
from anabranch.compiled.entry import Entry, job_of
from anabranch.compiled.history import Text, check_saved, history, no_model
from anabranch.compiled.kept_weights import nbytes, on_device, on_host
from anabranch.compiled.memory import MemoryUse
from anabranch.compiled.plans import Plans, check_parts
from anabranch.compiled.request import PlanRequest, request
from anabranch.compiled.retarget import loaded, loaded_entry
from anabranch.compiled.sharing import at_places, waiting, widest, with_states
from anabranch.compiled.sources import sources
from anabranch.compiled.states import StateMemory
from anabranch.compiled.transforms import check_plain, transforming
from anabranch.compiled.unseen_model import ModelThen
from anabranch.compiled.unseen_sizes import (
    Buckets,
    answer_between,
    answer_padded,
    grouped,
    known_form,
    lookups,
)
from anabranch.compiled.weights import (
    Stamps,
    check_alike,
    check_unseen,
    expected,
    other_weights,
    stamps_of,
    weights_of,
)
from anabranch.compiler.buckets import read_sizes
from anabranch.compiler.pipeline import compile_model
from anabranch.compiler.stages import fell_back
from anabranch.deadline import Deadline
from anabranch.errors import InputError, ModelFailsError, OptionError
from anabranch.frontend import global_hooks
from anabranch.frontend.attributes import KEY, attributes
from anabranch.frontend.checks import check_call
from anabranch.frontend.held_arguments import held_of, own_tensors
from anabranch.frontend.surroundings import neutral
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable, Target
from anabranch.kernels.triton import program_cache
from anabranch.options import Options, renamed
from anabranch.report import headline, kernel, page, text
from anabranch.report.graph_diff import rounds_told
from anabranch.report.lines import WIDTH
from anabranch.report.summary import facts_of
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.among_sizes import among_sizes
from anabranch.tuning.job import Job
from anabranch.tuning.workers.pool import WorkerPool


def restored(
    kind: str,
    content: bytes,
    options: Mapping[str, Any],
    beside: Mapping[str, Tensor] | None = None,
) -> Compiled:
    """What `pickling.stored` made bytes of. `beside`: weights that its plans lack."""
    compiled = Compiled(None, resolve(kind, False), Options.read(renamed(options)), None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans"
        path.write_bytes(content)
        compiled.adopt_all(artifact_file.load_all(path, compiled.target.spec), "a pickled plan")
    compiled._beside.update(beside or {})
    return compiled


class Compiled(Plans):
    """A compiled model: one plan per input signature. Calls may come from several threads.

    A call is bound as the model's own are. One whose shapes or values were not compiled is refused
    with the list of those that were; where sizes vary it is padded to the next larger one, if that
    is proved harmless; nothing is ever compiled during a call. It is an nn.Module in eval mode:
    `compiled.module` has the table of what that means for weights, devices, hooks and copies.
    """

    def __init__(
        self,
        model: Callable[..., Any] | None,
        target: Target,
        options: Options,
        trace: Trace | None,
    ) -> None:
        super().__init__(model, target, options, trace)
        self._buckets: list[Buckets] = []
        self._lookups = []
        self._stamps: Stamps = {}
        """The model's tensors, as they were when it was first compiled."""
        self._is_session = False
        self._then: ModelThen | None = None
        """The model, as it was when it was first compiled, or has last answered a call itself."""
        self.states = StateMemory()
        self._beside: dict[str, Tensor] = {}
        """Weights that plans have only what was computed of, and no model has; others with the same
        plans have this very table."""
        self._sessions: list[weakref.ref[Compiled]] = [weakref.ref(self)]  # with the same weights

    def __repr__(self) -> str:
        """One line: model, target, time and size of the newest plan."""
        if not self.entries:
            return f"{type(self).__name__}(nothing compiled yet)"
        plans = f", {len(self.entries)} plans" if len(self.entries) > 1 else ""
        entry = self.entries[-1]
        return f"{type(self).__name__}({headline.one_line(self.known, entry.plan)}{plans})"

    def _stored(self) -> Any:
        now = self.states.places
        kept = pickling.stored(self.entries, self.options, self.facts_of, now)
        return restored, (*kept, self._lacking())

    def _lacking(self) -> dict[str, Tensor]:
        """Copies of the weights that are known, and that plans have only what was computed of."""
        try:
            weights = self._weights()
        except OptionError:  # whoever asks the copy for them is told so
            return {}
        held = self._held_by_name()
        return on_host({name: value for name, value in weights.items() if name not in held})

    def _keep(self, weights: Mapping[str, Tensor]) -> None:
        """Keep those of the given weights that neither plans nor the model have."""
        try:
            have = self._weights()
        except OptionError:
            have = self._held_by_name()
        lost = [name for name in self._expected() if name not in have and name in weights]
        self._beside.update(on_host({name: weights[name] for name in lost}))

    def memory(self) -> MemoryUse:
        """Bytes that all plans hold on the device, by kind; memory that two share counts once. On a
        CPU weights that are kept beside plans are among them."""
        return self._with_kept(super().memory())

    def _with_kept(self, held: MemoryUse) -> MemoryUse:
        here = self.target.device.type == "cpu" and not self.target.spec.simulated
        return replace(held, weights=held.weights + (nbytes(self._beside) if here else 0))

    def add_sizes(
        self,
        args: Sequence[Any] | Tensor = (),
        kwargs: Mapping[str, Any] | None = None,
        dynamic_shapes: Any = None,
        sizes: Any = None,
        stop: threading.Event | None = None,
        workers: WorkerPool | None = None,
    ) -> Compiled:
        """Compile for calls whose sizes vary, as `anabranch.compile` does with the same arguments:
        for several sizes, largest first, which share weights and one arena. `workers`: processes
        that compile several at a time, as the option of that name opens them.

        Returns:
            This object, with a plan for each size.

        Raises:
            OptionError: As `add`; or the dimensions or sizes mean nothing here.
        """
        if self.model is None:
            raise no_model()
        check_call(self.model, args, kwargs)
        check_parts(self.model)
        plan_request = request(args, kwargs, stop=stop)
        with self._capturing(), neutral(), Cache.open(self.options.cache_dir) as cache:
            job = self._job(plan_request, cache)
            calls, chosen = asked_sizes.chosen(job, dynamic_shapes, sizes)
            asked_sizes.check_limit(job, calls, chosen)
            among = among_sizes(chosen)
            # What is decided by its neighbours is compiled after them.
            chosen = sorted(chosen, key=lambda at: not among[at].own)
            resized = [
                calls.resized(plan_request.args, dict(plan_request.kwargs), at) for at in chosen
            ]
            if workers is not None and len(chosen) > 1:
                until = Deadline(stop=plan_request.stop)
                listed = [
                    SizeToCompile(at, among[at], *call, calls.markings)
                    for at, call in zip(chosen, resized, strict=True)
                ]
                parts = (workers, self.model, listed, self.options, plan_request.around)
                compile_sizes(*parts, self.trace, until)
            for number, (at, (positional, named)) in enumerate(zip(chosen, resized, strict=True)):
                try:
                    self._add(
                        replace(
                            plan_request,
                            args=positional,
                            kwargs=named,
                            sized=calls,
                            at=at,
                            resized=(plan_request.args, plan_request.kwargs),
                            among=among[at],
                        )
                    )
                except OptionError as refused:
                    if not number or "memory_limit" not in refused.what:
                        raise
                    told = ", ".join(map(str, at))
                    self.trace.add("warning", "load", told, f"{refused.what}: {refused.why}")
                except ModelFailsError as refused:  # its other numbers do not fit this size, say
                    if not number:
                        raise
                    told = f"size {', '.join(map(str, at))} is left out: {refused.what}"
                    self.trace.add("warning", "capture", "sizes", f"{told}: {refused.why}")
        return self

    def warm(self, sizes: Sequence[Any]) -> Compiled:
        """Compile for more sizes of the dimensions that vary, or for the inputs of more calls: what
        `anabranch.warm` does to a compiled model."""
        asked_sizes.check_listed(sizes)
        for size in sizes:
            at = size if isinstance(size, tuple) else (size,)
            buckets = self._buckets[0] if self._buckets else None
            if any(type(n) is not int for n in at):
                args, kwargs = ((), size) if isinstance(size, dict) else (size, None)
                self.add(args, kwargs)
            elif buckets is None or buckets.entries[0].job is None:
                raise OptionError(
                    f"{size} is a size of nothing",
                    "the model was compiled without dynamic_shapes, or loaded from a file",
                    "give the inputs of a call, or compile it with dynamic_shapes",
                )
            elif at not in buckets.sizes():
                job, dimensions = buckets.entries[0].job, buckets.sized.shapes.dimensions
                read_sizes([at], dimensions)
                args, kwargs = buckets.sized.resized(job.args, dict(job.kwargs), at)
                with self._capturing():
                    example = job.args, job.kwargs
                    self._add(request(args, kwargs, sized=buckets.sized, at=at, resized=example))
        return self

    def _add(self, asked: PlanRequest) -> None:
        """`add`, of inputs that have been looked at."""
        if self.fitted is not None and (name := self._changed()):
            raise other_weights(name)
        with neutral(), Cache.open(self.options.cache_dir) as cache:
            job = self._job(asked, cache)
            was = attributes(self.model)
            calls, at = asked.sized, asked.at
            if self.options.batch == "pad" and calls is None:
                calls, at = asked_sizes.batched(
                    job, known_form(self._buckets, job.args, job.kwargs)
                )
            if calls is not None:
                job = replace(job, markings=calls.markings)
            compilation = compile_model(job)
        if self.fitted is None:
            check_alike(self.entries, compilation)
        self._then = self._then or ModelThen.of(self.model)
        if not self.entries and isinstance(self.model, torch.nn.Module):
            self._stamps = stamps_of(own_tensors(self.model))
        kept, moment = job, datetime.now(UTC)
        if asked.resized is not None:
            kept = replace(job, args=asked.resized[0], kwargs=asked.resized[1])

        @functools.cache
        def find_facts(eager: bool = True) -> dict[str, Any]:
            return facts_of(job_of(kept, calls, at), compilation, moment, eager)

        self._take(
            Entry(
                compilation.plan,
                compilation.run,
                find_facts,
                compilation.captured.trees,
                compilation,
                arguments.model_signature(self.model),
                self._device(compilation.run),
                gradients.trained(self.model, compilation.captured),
                calls,
                at,
                was,
                kept,
                held_of(self.model),
            )
        )
        self._share_arena()
        if self.options.dump is not None:
            self.report(self.options.dump / "report.html")

    def adopt_all(self, plans: Sequence[tuple[Plan, Mapping[str, Any]]], source: str) -> Compiled:
        """Take plans made elsewhere, with their facts; say so where they were tuned for another
        machine. A weight that is one tensor in several of them is one on the device, too."""
        for plan, facts in plans:
            self._adopt(plan, facts, source)
        self._hook_names = global_hooks.read_names(plans[0][1].get(global_hooks.KEY))
        self._hooks_within = global_hooks.recognised(self._hook_names)
        self._share_arena()
        return self

    def _adopt(self, plan: Plan, facts: Mapping[str, Any], source: str) -> None:
        beside, held = widest(self.entries), self.states.places
        with Cache.open(self.options.cache_dir) as cache:
            plan, run = loaded(
                plan,
                self.target,
                cache,
                self.trace,
                source,
                self.owned(),
                beside,
                held,
                self.options,
            )
        if run is not None:
            fell_back(run, self.options, self.trace)
        self._take(loaded_entry(plan, run, facts, self._device(run), self.trace, source))

    def _take(self, entry: Entry) -> None:
        """One more plan, from now on."""
        self.states.learn(entry)
        self.entries.append(entry)
        self._answers.append((entry.read, answering(entry, self.options)))
        self._look_up()

    def _answer_all(self) -> None:
        self._answers[:] = [(entry.read, answering(entry, self.options)) for entry in self.entries]
        self._look_up()

    def _look_up(self) -> None:
        """From now on in the answers that there are."""
        self._buckets[:] = grouped(self.entries, self._answers)
        self._lookups[:] = lookups(self._buckets, self.entries, self._answers)

    def _forget(self) -> None:
        """Answer no call until all answers are made anew."""
        self._lookups.clear()
        self._answers.clear()

    def _job(self, asked: PlanRequest, cache: Cache | None) -> Job:
        limit, held = self.options.memory_limit, self.memory()
        return Job(
            self.model,
            asked.args,
            asked.kwargs,
            self.target,
            self.options,
            cache,
            self.trace,
            asked.captured,
            Deadline(stop=asked.stop),
            shared=asked.shared if asked.shared is not None else self.owned(),
            beside=widest(self.entries),
            places=self.states.places,
            room=None if limit is None else limit - (held.total - held.states),
            surroundings=asked.around,
            workers=asked.workers,
            among=asked.among,
        )

    def _device(self, run: Executable | None) -> torch.device | None:
        return None if run is None else self.target.device

    def facts_of(self, entry: Entry, eager: bool = False) -> dict[str, Any]:
        """What is known of one plan, as it is saved: the names of the model's arguments, too."""
        sizes = saved_sizes.written(entry.sized, entry.at)
        facts = {arguments.KEY: arguments.written(entry.call), saved_sizes.KEY: sizes}
        facts[global_hooks.KEY] = list(self._hook_names)
        return {**entry.find_facts(eager), **facts, KEY: dict(entry.attributes)}

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the newest plan, ready for JSON: the table of facts has the keys with
        their units. The first look times the model as it was, for comparison."""
        return self.entries[-1].find_facts()

    @property
    def known(self) -> dict[str, Any]:
        """The facts, but for what the model takes as it was: nothing is timed for them."""
        return self.entries[-1].find_facts(eager=False)

    def explain(self, task: str | None = None, whole: bool = False, width: int = WIDTH) -> Text:
        """The newest plan as text: what was rewritten, fused and chosen, what was refused and why.

        Args:
            task: Say instead all of this one task: body, kernel, source, candidates, why they lost.
            whole: With all steps of the search, and all nodes before and after.
            width: Characters of a line.

        Raises:
            OptionError: No task has this name (the message has those near it), or the plan was
                loaded from a file and has no history.
        """
        if task is not None:
            return Text(kernel.kernel_text(self.about(task)))
        told = text.explain(whole, width, **self._history())
        held = self.memory()
        lines = [f"  {name}: {use}" for name, use in held.buckets.items()]
        varying = [f"  {line}" for group in self._buckets for line in group.sized.told()]
        lines = ["", "Sizes:", *varying, *lines] if lines else lines
        return Text("\n".join([told.rstrip(), *lines, "", f"Held on the device: {held}"]))

    def search_rounds(self) -> list[dict[str, Any]]:
        """For each round of the search its time before and after, in microseconds, its steps, and
        the graph's nodes as rows of [before, after], ready for JSON; None where there is no such
        node. Empty without a search that found something."""
        compilation = self.entries[-1].compilation
        told = (
            rounds_told(compilation.path)
            if compilation is not None and compilation.path is not None
            else []
        )
        return [{**timing, **rows} for timing, rows in zip(self.facts["search"], told, strict=True)]

    def about(self, task: str) -> dict[str, Any]:
        """What `explain(task)` says, ready for JSON. A loaded plan has no candidates any more, and
        its `candidates` are None. OptionError for a name that no task has, with those near it."""
        entry = self.entries[-1]
        compilation = entry.compilation
        candidates = compilation.compiled.selection.candidates if compilation is not None else None
        return kernel.kernel_facts(entry.plan, task, candidates, self.trace.events)

    def report(self, path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> None:
        """Write one self-contained HTML page about the newest plan.

        Args:
            path: Where to write it.
            more: Facts that only the caller has, which come before those of the plan: the
                `command`, or `baselines` in ms, by name.

        Raises:
            WriteError: The file cannot be written.
            OptionError: The plan was loaded from a file and has no history.
        """
        history = self._history()
        page.write(path_of(path), **{**history, "facts": {**history["facts"], **(more or {})}})

    def session(self) -> Compiled:
        """The same plans and weights with states of their own, which begin as they were when the
        model was first compiled: another user's cache, say.

        Sessions do not see each other's states, and their calls do not wait for each other. New
        weights (`refit`, `load_state_dict`) are those of all sessions. On a GPU each has an arena
        and a captured graph of its own. A plan that is added to one is not added to the others.

        Raises:
            TargetError: The target is simulated, and nothing runs there.
        """
        own = with_states(self.entries, self.target, self.states.first)
        compiled = Compiled(self.model, self.target, self.options, self.trace)
        compiled._refitted, compiled._sessions = self._refitted, self._sessions
        compiled._hooks_within, compiled._hook_names = self._hooks_within, self._hook_names
        compiled._beside, compiled._stamps = self._beside, self._stamps
        compiled._is_session = True
        for entry in own:
            compiled._take(entry)
        self._sessions.append(weakref.ref(compiled))
        return compiled

    def reset_state(self) -> Compiled:
        """Give all states the values that they had when the model was first compiled, or those of
        the file that it was loaded from; this object."""
        states.write(self.entries, self.states, self.states.first)
        return self

    def _move_states(self, places: Mapping[str, Tensor]) -> None:
        """Have the states of all plans lie there, by what the model calls them, while no call
        runs."""
        if not self.states.places:
            return
        self.entries[:] = at_places(self.entries, self.target, places)
        self.states.places.update({path: places[path] for path in self.states.places})
        self._answer_all()

    def save(self, path: str | os.PathLike[str], state: bool = True) -> None:
        """Write all plans with their weights, once, to one file, which `load` reads anywhere. What
        was written of its kernels is kept: here, even the first `load` need not write it anew.

        Args:
            path: Where to write it.
            state: With the states as they are now; else as `reset_state` makes them.

        Raises:
            WriteError: The file cannot be written.
            OptionError: A class among the arguments or results has no name in torch's pytree.
        """
        for entry in self.entries:
            check_saved(entry)
        newest = self.entries[-1]
        held = self.states.places if state else self.states.first
        plans = [
            (states.with_values(e.plan, held), self.facts_of(e, eager=e is newest))
            for e in self.entries
        ]
        artifact_file.save_all(plans, path)
        compiled = [entry for entry in self.entries if entry.compilation is not None]
        kernels = [task.kernel for e in compiled for task in e.plan.tasks.tasks if task.kernel]
        if compiled:  # what was loaded was kept then
            with Cache.open(self.options.cache_dir) as cache:
                program_cache.keep(cache, program_cache.recall(cache, kernels))

    def _history(self) -> dict[str, Any]:
        told = history(self.entries[-1], self.facts, self.target, self.trace)
        if self._is_session:  # the trace is that of all, and says where those of the first one lie
            own = Trace(quiet=True)
            for path, place in self.states.places.items():
                where = f"{place.nbytes:,} B in memory of the session"
                own.add("chosen", "load", f"state {path}", where)
            told["events"] = [*told["events"], *own.events]
        return told

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that is no entry's at first sight: of another form, to be padded, or refused with
        what differs."""
        if len(self._answers) < len(self.entries):
            raise refit.half_way()
        if held := held_of(self.model):
            args, kwargs = held.marked(args, kwargs)
        if transforming():
            check_plain(pytree.tree_leaves((args, kwargs)))
        done, outcome = answer_padded(self._buckets, args, kwargs)
        if done:
            return outcome
        for entry, (_, answer) in zip(self.entries, self._answers, strict=True):
            with suppress(InputError):
                bound_call = bind(entry, args, kwargs)
                if not bound_call.differences:
                    return answer(bound_call.tensors)
        eager = self._unseen if self.options.unseen == "eager" and self.model is not None else None
        if not self._states_are_the_models():
            eager = None  # it would read and write states of its own
        done, outcome = answer_between(self._buckets, args, kwargs, eager)
        if done:
            return outcome
        more = "Add yours with .add(...)" if self.model is not None else "Compile the model for it"
        raise refusal(self.entries, args, kwargs, more, outcome)

    def _states_are_the_models(self) -> bool:
        """Whether each state lies in the model's own tensor, so that the model may take a call."""
        states = self.states.present()
        if not states:  # looking for all tensors of a model takes longer than a call
            return True
        held = dict[str, Tensor]()
        if isinstance(self.model, torch.nn.Module):
            held = dict(self.model.named_buffers(remove_duplicate=False))
            held.update(self.model.named_parameters(remove_duplicate=False))
        return all(
            name in held and held[name].data_ptr() == at.data_ptr() for name, at in states.items()
        )

    def _unseen(self, *args: Any, **kwargs: Any) -> Any:
        """What the model itself returns."""
        assert self.model is not None, "what was loaded has none to run"
        stamps = self._stamps if self.fitted is None else self.fitted
        states = self.states.present()
        check_unseen(self.model, {n: stamp for n, stamp in stamps.items() if n not in states})
        return self._run_model(*args, **kwargs)

    def _run_model(self, *args: Any, **kwargs: Any) -> Any:
        """What the model itself returns. InputError where it is another one than was compiled."""
        assert self.model is not None, "what was loaded has none to run"
        if held := held_of(self.model):
            args, kwargs = held.restored(args, kwargs)
        if self._then is not None:
            self._then = self._then.check(self.model, args, kwargs)
        return self.model(*args, **kwargs)

    def _held_by_name(self) -> dict[str, Tensor]:
        """The weights that lie in memory of plans, and states."""
        weights, _ = sources(self.entries[-1].plan) if self.entries else ({}, ())
        return {**weights, **self.states.present()}

    def _weights(self) -> dict[str, Tensor]:
        beside = {**on_device(self._beside, self.target.device), **self.states.present()}
        weights = weights_of(self.model, self.entries, self.fitted, beside, self._stamps)
        return self.states.over(weights, expected(self.entries))

    def _expected(self) -> dict[str, Tensor]:
        return expected(self.entries) or self._weights()

    def _changed(self) -> str:
        """A weight of the model that is not what plans were refitted with; "" if there is none."""
        if self.fitted is None or not isinstance(self.model, torch.nn.Module):
            return ""
        recipe = self.entries[-1].plan.recipe
        assert recipe is not None, "what has none cannot be refitted"
        now = stamps_of(refit.tensors_by_name(self.model, recipe))
        return next((n for n, stamp in self.fitted.items() if now.get(n, stamp) != stamp), "")

    def refit(self, weights: Any, check: bool = False) -> Compiled:
        """Compute with other weights from now on, in the plans' own memory, without compiling or
        capturing again. All plans take them, or none does. States stay as they are: only
        `load_state_dict` gives them values of a state dict.

        Args:
            weights: A model, a compiled model, or a state dict, with the names, shapes and ties of
                the model that was compiled.
            check: Compare each plan with its graph once, as when it was compiled, and with the
                model if one is given, which may go another way by now. This takes a copy of the
                weights, to go back to, and one layer's in a higher precision.

        Raises:
            WeightsError: They do not fit, or lack what a rewrite relied on.
            NumericsError: From the check. The old weights are in place then, as they are after a
                WeightsError.
        """
        if isinstance(weights, Compiled):
            weights = weights._weights()
        sessions = [session for reference in self._sessions if (session := reference()) is not None]
        others = [entry for other in sessions if other is not self for entry in other.entries]
        with waiting(others):
            refit.refit(self.entries, self.target, weights, check, self._forget)
        self._beside.clear()
        recipe = self.entries[-1].plan.recipe
        assert recipe is not None, "what has none cannot be refitted"
        tensors, paths = refit.tensors_by_name(weights, recipe), self.states.paths()
        self.fitted = stamps_of({n: tensor for n, tensor in tensors.items() if n not in paths})
        if not self._answers:  # an earlier refit was cut off half way
            self._answer_all()
        return self

    def _refit(self, state: dict[str, Tensor]) -> None:
        """`state`: weights by name. Of those that are missing, what the plan has stays: where that
        was only computed of them, they are its model's as long as it has the same."""
        weights = {
            **on_device(self._beside, self.target.device),
            **sources(self.entries[-1].plan)[0],
        }
        if self._expected().keys() - state.keys():
            with suppress(OptionError):
                weights = self._weights()
        paths = self.states.paths()
        self.refit({**weights, **state})
        self._keep({**weights, **state})
        held = {paths[name]: value for name, value in state.items() if name in paths}
        states.write(self.entries, self.states, held)
