"""A forward or a backward pass of torch.compile, as a plan.

    forward     reads parameters and buffers where they lie, and returns the results and what the
                backward pass reads
    backward    reads that and the gradients of the results, and returns those of the parameters

Parameters are states that these plans only read, in the user's own tensors: an optimizer's step is
seen by the next call. What a pass returns of its inputs, it returns as it is.

AOTAutograd copies what becomes of an input that is written to (running statistics) after the
forward pass. Where torch.utils.checkpoint runs that again, it leaves as soon as what the backward
pass reads is there, and the copies would be left out: there the pass copies by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch.compiled.calls import Compiled
from anabranch.errors import CaptureError, InputError
from anabranch.frontend.from_fx import capture_fx
from anabranch.frontend.surroundings import defaults
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.integrations.views import Passed, ResultViews
from anabranch.options import Options
from anabranch.targets import resolve

hooks_of_saved_tensors = torch._C._autograd._top_saved_tensors_default_hooks
"""Those that torch.utils.checkpoint, among others, sets around a forward pass; None without any."""
Boxed = Callable[[list[Any]], Sequence[Any]]
GRADIENTS = "a call needs gradients, and the model was warmed"
WARMED = "anabranch.warm is about calls without gradients, and nothing is compiled after it"
WITHOUT = (
    "call the model under torch.no_grad() or torch.inference_mode(), or torch.compiler.reset() "
    "before it is trained"
)


def kind_of(value: Any) -> Any:
    """What a plan depends on of an input: its type, or the number that it is. 0.0 is not -0.0, and
    NaN is NaN."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return repr(value) if type(value) is float else value


def check_numbers(arguments: Sequence[Any]) -> None:
    """CaptureError for a number that is none: the sizes that rows of a nested tensor have."""
    if any(isinstance(value, torch.SymInt) for value in arguments):
        raise CaptureError(
            "an input of the graph is a nested tensor",
            "its rows have sizes of their own, and a graph has one shape",
            "give a padded tensor and the lengths, or leave this part out with "
            "torch.compiler.disable",
        )


class TrainingPass:
    """Plans for one pass, made when inputs are real; one for each form of these."""

    _boxed_call = True

    def __init__(
        self,
        graph: fx.GraphModule,
        fixed: Collection[int],
        options: Options,
        written: Sequence[int] = (),
        views: ResultViews | None = None,
        closed: bool = False,
    ) -> None:
        """`fixed`: positions of parameters and buffers; `written`: of the inputs that the first
        results are to be copied into; `views`: results to be made anew; `closed`: the model was
        warmed, and nothing is compiled any more."""
        self.closed = closed
        self.passed, self.options, self.written = Passed.of(graph), options, tuple(written)
        self.views = views
        self.fixed = sorted(fixed)
        self.plans: dict[tuple[Any, ...], Compiled] = {}
        self.lies: list[int] = []
        """Where the parameters and buffers were that plans read."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """The results of the pass; the list of inputs is empty afterwards."""
        arguments = list(inputs)
        inputs.clear()
        lies = [arguments[i].data_ptr() for i in self.fixed]
        if lies != self.lies:
            self.plans.clear()
            self.lies = lies
        fixed = {*self.fixed}
        free = [value for i, value in enumerate(arguments) if i not in fixed]
        key = tuple(map(kind_of, free))
        if self.closed:
            computed = self._uncompiled(arguments)
        else:
            if key not in self.plans:
                self.plans[key] = self._compile(arguments, free)
            computed = self.plans[key].called_within(*free)
        results = self.passed.whole(arguments, computed)
        if self.views is not None and self.views.views:
            results = self.views.restored(results, arguments)
        if self.written and hooks_of_saved_tensors(True) is not None:
            with torch.no_grad():
                for place, value in zip(self.written, results, strict=False):
                    arguments[place].copy_(value)
        return results

    def _uncompiled(self, arguments: list[Any]) -> Sequence[Any]:
        if self.options.unseen == "refuse":
            raise InputError(GRADIENTS, WARMED, WITHOUT)
        warnings.warn(f"{GRADIENTS}: it runs uncompiled ({WARMED}); {WITHOUT}", stacklevel=3)
        results: Sequence[Any] = self.passed.graph(*arguments)
        return results

    def boxed(self) -> Boxed:
        """The same as a function, of which torch sees that it takes a list that it may empty, also
        where it wraps it."""

        def call(inputs: list[Any]) -> Sequence[Any]:
            return self(inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _compile(self, arguments: list[Any], free: list[Any]) -> Compiled:
        graph = self.passed.graph
        if any(not isinstance(value, Tensor) for value in arguments):
            check_numbers(arguments)
            with own_kernels():
                graph = make_fx(graph, tracing_mode="fake")(*arguments)
        fixed = {*self.fixed}
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        places = {names[i]: arguments[i].detach() for i in fixed}
        captured, under = capture_fx(graph, arguments, places=places), defaults()

        def eager(*values: Any) -> Any:
            rest = iter(values)
            whole = [v if i in fixed else next(rest) for i, v in enumerate(arguments)]
            with torch.no_grad(), under.restored():
                return graph(*whole)

        cuda = any(isinstance(value, Tensor) and value.is_cuda for value in arguments)
        target = resolve("cuda" if cuda else "cpu", self.options.tf32)
        return Compiled(eager, target, self.options, None).add(free, captured=captured)
