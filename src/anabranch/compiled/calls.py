"""Compiled: call it, ask it why, save it, and add plans for other inputs.

fast = anabranch.compile(model, (x,))
y = fast(x)
fast.add((x32,))                  # one more input signature, one more plan
fast.explain(); fast.report("report.html"); fast.save("model.anabranch")
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from anabranch.cache import Cache
from anabranch.compiled.eager import beside_eager
from anabranch.compiled.entry import Entry, flatten, shapes
from anabranch.compiled.padding import padded
from anabranch.compiler import compile_model, fell_back
from anabranch.deadline import Deadline
from anabranch.errors import InputError, OptionError, TargetError
from anabranch.facts import facts_of
from anabranch.frontend.captured import Captured
from anabranch.frontend.checks import check_call
from anabranch.frontend.structure import REGISTER, read_tree
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable, Target
from anabranch.kernels.triton import memo
from anabranch.line import Job
from anabranch.options import Options
from anabranch.pack import artifact
from anabranch.pack.owned import owned, shared_of
from anabranch.report import kernel, page, text
from anabranch.report.lines import WIDTH
from anabranch.report.sides import rounds_told
from anabranch.trace import Trace


class Text(str):
    """A text that a prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Compiled:
    """A compiled model: one plan per input signature. Calls may come from several threads.

    A call whose shapes were not compiled is refused with the list of those that were, or padded to
    the next larger batch, as `Options.batch` says; nothing is ever compiled during a call.
    """

    def __init__(
        self,
        model: Callable[..., Any] | None,
        target: Target,
        options: Options,
        trace: Trace | None,
    ) -> None:
        self.model, self.target, self.options = model, target, options
        self.trace = trace or Trace(level=options.debug)
        self.entries: list[Entry] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs."""
        for entry in self.entries:
            tensors = entry.read(args, kwargs)
            if tensors is not None:
                return entry.assemble(tensors, self._outputs(entry, tensors))
        return self._explained(args, kwargs)

    def add(
        self,
        args: Sequence[Any] | Tensor = (),
        kwargs: Mapping[str, Any] | None = None,
        captured: Captured | None = None,
        stop: threading.Event | None = None,
    ) -> Compiled:
        """Compile for one more signature of example inputs; `captured` is the graph of such a
        call, where a front end has it already; `stop` as in `compile`."""
        if self.model is None:
            raise OptionError(
                "a loaded plan cannot be compiled for other inputs",
                "the file holds kernels and weights, not the model",
                "compile the model again with anabranch.compile",
            )
        check_call(self.model, args, kwargs)
        with Cache.open(self.options.cache_dir) as cache:
            job = Job(
                self.model,
                (args,) if isinstance(args, Tensor) else tuple(args),
                kwargs or {},
                self.target,
                self.options,
                cache,
                self.trace,
                captured,
                Deadline(stop=stop),
                shared=shared_of([entry.plan for entry in self.entries]),
            )
            compilation = beside_eager(job, compile_model(job))
        self.entries.append(
            Entry(
                compilation.plan,
                compilation.run,
                functools.cache(functools.partial(facts_of, job, compilation)),
                compilation.captured.trees,
                compilation,
            )
        )
        if self.options.dump is not None:
            self.report(self.options.dump / "report.html")
        return self

    def adopt(self, plan: Plan, facts: Mapping[str, Any], source: str) -> None:
        """Take a plan made elsewhere; say so where it was tuned for another machine."""
        signature = plan.signature
        assert signature is not None, "saved plans have signatures"
        if plan.spec.fingerprint != self.target.spec.fingerprint:
            why = f"tuned on {plan.spec.name} {dict(plan.spec.versions)}"
            self.trace.add("warning", "load", source, f"{why}; compile again to tune for this one")
        run = None
        if not self.target.spec.simulated:
            plan = owned(plan, (), self.target.device, {})
            kernels = [task.kernel for task in plan.tasks.tasks if task.kernel]
            with Cache.open(self.options.cache_dir) as cache:
                missing = memo.recall(cache, kernels)
                self.target.prepare(kernels, cache, self.trace)
                run = self.target.load(plan)
                memo.keep(cache, missing)
            fell_back(run, self.options, self.trace)
        trees = (read_tree(signature.input_tree), read_tree(signature.output_tree))
        self.entries.append(Entry(plan, run, lambda eager=True: dict(facts), trees))

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the newest plan, ready for JSON. The first look times the model as it
        was, for comparison."""
        return self.entries[-1].find_facts()

    @property
    def known(self) -> dict[str, Any]:
        """The facts, but for what the model takes as it was: nothing is timed for them."""
        return self.entries[-1].find_facts(eager=False)

    def executable(self) -> Executable | None:
        """The newest plan as loaded, to replay and time; None on a simulated target."""
        return self.entries[-1].run

    def explain(self, task: str | None = None, whole: bool = False, width: int = WIDTH) -> Text:
        """What was rewritten, fused and chosen, and what was refused and why; if `whole`, with all
        steps of the search and all nodes before and after, in `width` characters. Or all of one
        `task` of the newest plan, by its name: body, kernel, source, candidates, why they lost."""
        if task is not None:
            return Text(kernel.kernel_text(self.about(task)))
        return Text(text.explain(whole, width, **self._pieces()))

    def searched(self) -> list[dict[str, Any]]:
        """Of each round of the search what it took before and after, in microseconds, its steps,
        and the graph's nodes as rows of [before, after], ready for JSON; None where there is no
        such node. Empty without a search that found something."""
        made = self.entries[-1].compilation
        told = rounds_told(made.path) if made is not None and made.path is not None else []
        return [{**known, **one} for known, one in zip(self.facts["search"], told, strict=True)]

    def about(self, task: str) -> dict[str, Any]:
        """What `explain(task)` says, ready for JSON. A loaded plan has no candidates any more, and
        its `candidates` are None. OptionError for a name that no task has, with those near it."""
        entry = self.entries[-1]
        made = entry.compilation
        candidates = made.found.selection.candidates if made is not None else None
        return kernel.kernel_facts(entry.plan, task, candidates, self.trace.events)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML page."""
        page.write(Path(path), **self._pieces())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the newest plan with its weights to one file, which `load` reads anywhere. What
        was written of its kernels is kept: here, even the first `load` need not write it anew."""
        entry = self.entries[-1]
        signature = entry.plan.signature
        if signature is None or not (signature.input_tree and signature.output_tree):
            inputs = signature is None or not signature.input_tree
            raise OptionError(
                "this plan cannot be saved",
                f"a class in the model's {'inputs' if inputs else 'results'} has no name in "
                "torch's pytree that another process would know",
                REGISTER,
            )
        artifact.save(entry.plan, path, self.facts)
        if entry.compilation is not None:  # what was loaded was kept then
            kernels = [task.kernel for task in entry.plan.tasks.tasks if task.kernel]
            with Cache.open(self.options.cache_dir) as cache:
                memo.keep(cache, memo.recall(cache, kernels))

    def _pieces(self) -> dict[str, Any]:
        entry = self.entries[-1]
        made = entry.compilation
        if made is None:
            raise OptionError(
                "a loaded plan has no history to explain",
                "the file holds the plan and its facts, not the search that led to it",
                "look at `.facts`, or compile the model again",
            )
        timelines = [("predicted", made.found.timeline)]
        measured = self.target.timeline(made.run) if made.run is not None else None
        if measured is not None:
            timelines.append(("measured", measured))
        return {
            "name": self.facts["model"],
            "captured": made.captured.graph,
            "rewritten": made.found.graph,
            "searched": made.path,
            "plan": entry.plan,
            "candidates": made.found.selection.candidates,
            "schedules": made.found.schedules,
            "timelines": timelines,
            "events": self.trace.events,
            "facts": self.facts,
        }

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that is no entry's at first sight: of a structure that is read more slowly, to be
        padded, or refused with what differs."""
        refusal: InputError | None = None
        for entry in self.entries:
            try:
                tensors = flatten(entry, args, kwargs)
            except InputError as differs:
                refusal = refusal or differs
            else:
                return entry.assemble(tensors, self._outputs(entry, tensors))
        assert refusal is not None
        if self.options.batch == "pad":
            return padded(self.entries, self._outputs, args, kwargs)
        known = "; ".join(shapes(entry) for entry in self.entries)
        raise InputError(refusal.what, refusal.why, f"compiled: {known}. Add yours with .add(...)")

    def _outputs(self, entry: Entry, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if entry.run is None:
            raise TargetError(
                f"a plan for a simulated {entry.plan.spec.name} cannot run",
                "there is no such device here",
                "compile for target='cpu', or on the GPU itself",
            )
        return entry.run(tensors, clone=self.options.outputs == "clone")
