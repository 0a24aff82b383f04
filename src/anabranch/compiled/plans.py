"""Plans that are one model to whoever calls them: a call finds the plan that answers it.

call  --read-->  tensors  --answer-->  what the model returns
--none reads it-->  explained: bound, padded, or refused with what differs
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.modules import module as hooks

from anabranch.artifact.owned_constants import Shared, shared_of
from anabranch.compiled.answer import CallAnswer
from anabranch.compiled.entry import Entry
from anabranch.compiled.history import no_model
from anabranch.compiled.memory import MemoryUse, memory_of
from anabranch.compiled.module import Fixed, not_recorded, probe
from anabranch.compiled.request import PlanRequest, request
from anabranch.compiled.sharing import share_arena
from anabranch.compiled.traced_calls import leaf_call, tracer_of
from anabranch.compiled.weights import Stamps
from anabranch.errors import InputError, OptionError
from anabranch.frontend.capture_lock import capture_lock
from anabranch.frontend.captured import Captured
from anabranch.frontend.checks import check_call
from anabranch.frontend.global_hooks import as_before, left_out, registered
from anabranch.frontend.held_arguments import held_of
from anabranch.frontend.surroundings import leave_alone
from anabranch.ir.protocols import Executable, Target
from anabranch.options import Options
from anabranch.trace import Trace
from anabranch.tuning.workers.pool import WorkerPool

_tracing = torch._C._get_tracing_state
_proxied = torch._C._get_dispatch_mode
_all_pre_hooks = hooks._global_forward_pre_hooks
_all_hooks = hooks._global_forward_hooks
_all_backward_pre_hooks = hooks._global_backward_pre_hooks
_all_backward_hooks = hooks._global_backward_hooks
PROXY = torch._C._TorchDispatchModeKey.PROXY
"""The mode under which make_fx records operators."""


class Plans(Fixed):
    """Plans with weights and an arena in common, called as the model that they were made of."""

    def __init__(
        self,
        model: Callable[..., Any] | None,
        target: Target,
        options: Options,
        trace: Trace | None,
    ) -> None:
        super().__init__()
        self.__dict__["model"] = model  # a part of this module it is not: it would be trained
        self.target, self.options = target, options
        self.trace = trace or Trace(level=options.debug)
        self.entries: list[Entry] = []
        self._answers: list[CallAnswer] = []
        self._lookups = self._answers
        """Where a call is looked up, one after the other: in the answers, or in fewer."""
        self._hooks_within = registered() if model is not None else dict[int, str]()
        self._hook_names = tuple(self._hooks_within.values())
        self._refitted: list[Stamps] = []  # a list, which copies with the same plans have, too

    def _add(self, asked: PlanRequest) -> None:
        """`add`, of inputs that have been looked at."""
        raise NotImplementedError

    def _answer_all(self) -> None:
        """Make all answers anew, after plans were loaded anew."""
        raise NotImplementedError

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call that no answer reads, or InputError with what differs."""
        raise NotImplementedError

    @property
    def fitted(self) -> Stamps | None:
        """The tensors that plans were refitted with, None while constants are as compiled."""
        return self._refitted[0] if self._refitted else None

    @fitted.setter
    def fitted(self, stamps: Stamps) -> None:
        self._refitted[:] = [stamps]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs.

        Results are the caller's own tensors, or the plan's buffers with `outputs="view"`. Calls
        from several threads wait for each other; on a GPU a call is queued on the current stream.

        Raises:
            InputError: Inputs of this structure, shape, dtype or value were not compiled; the
                message lists those that were.
        """
        if (
            self._forward_pre_hooks
            or self._forward_hooks
            or _all_pre_hooks
            or _all_hooks
            or _all_backward_pre_hooks
            or _all_backward_hooks
            or _tracing()
            or _proxied(PROXY)
        ):
            return self._watched(args, kwargs)
        for read, answer in self._lookups:
            tensors = read(args, kwargs)
            if tensors is not None:
                return answer(tensors)
        if (tracer := tracer_of(args, kwargs)) is not None:
            return leaf_call(self, tracer, args, kwargs)
        return self._explained(args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, without hooks."""
        if isinstance(args, Proxy):  # torch.fx traces this function itself
            return leaf_call(self, tracer_of(args, kwargs), args, kwargs)
        for read, answer in self._lookups:
            tensors = read(args, kwargs)
            if tensors is not None:
                return answer(tensors)
        if (tracer := tracer_of(args, kwargs)) is not None:
            return leaf_call(self, tracer, args, kwargs)
        return self._explained(args, kwargs)

    def called_within(self, *args: Any) -> Any:
        """A call as a part of a training step, or of a graph of torch.compile, in which it is no
        module of the user's that global hooks would see."""
        if _tracing() or _proxied(PROXY):
            return self._watched(args, {})
        return self.forward(*args)

    def add(
        self,
        args: Sequence[Any] | Tensor = (),
        kwargs: Mapping[str, Any] | None = None,
        captured: Captured | None = None,
        stop: threading.Event | None = None,
        shared: Shared | None = None,
        workers: WorkerPool | None = None,
    ) -> Self:
        """Compile for one more signature of example inputs.

        Args:
            args: Example inputs, as in `compile`.
            kwargs: Example inputs that are passed by name.
            captured: The graph of such a call, where a front end has it already.
            stop: As in `compile`.
            shared: Constants in memory of others that are refitted with this one.
            workers: Processes that help to try kernels, as the option of that name opens them.

        Returns:
            This object, with one more plan. Plans share equal weights.

        Raises:
            OptionError: The plan was loaded from a file, which holds no model.
        """
        if self.model is None:
            raise no_model()
        check_call(self.model, args, kwargs)
        check_parts(self.model)
        # A graph that torch.compile hands over is not captured, and its lock is held by then.
        with self._capturing() if captured is None else nullcontext():
            if held := held_of(self.model):
                positional = (args,) if isinstance(args, Tensor) else tuple(args)
                args, kwargs = held.marked(positional, kwargs or {})
            self._add(request(args, kwargs, captured, stop, shared, workers=workers))
        return self

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        """A plan is captured within it: alone, and with the global hooks of the first one."""
        with capture_lock(), as_before(self._hooks_within):
            yield

    def owned(self) -> Shared:
        """The constants of all plans by their content, as long as they have it."""
        return {} if self.fitted is not None else shared_of([entry.plan for entry in self.entries])

    def memory(self) -> MemoryUse:
        """Bytes that all plans hold on the device, by kind; memory that two share counts once."""
        return memory_of(self.entries)

    def executable(self) -> Executable | None:
        """The newest plan as loaded, to replay and time; None on a simulated target."""
        return self.entries[-1].run

    def _share_arena(self) -> None:
        """All plans use the arena of the largest one."""
        if share_arena(self.entries, self.target):
            self._answer_all()

    def _watched(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call with hooks, or one that is to be recorded."""
        if _tracing():
            raise not_recorded()
        if _proxied(PROXY):
            raise InputError(
                "a compiled model was called while a graph is recorded (make_fx)",
                "its kernels are launched past everything that is recorded: the graph would have "
                "this call's result as a constant",
                "record the original model, which is at .model",
            )
        if not (_all_pre_hooks or _all_hooks):
            return super().__call__(*args, **kwargs)
        with left_out(self._hooks_within, self):
            return super().__call__(*args, **kwargs)

    def _kinds(self) -> list[Tensor]:
        tasks = self.entries[-1].plan.tasks
        held = [constant.type.dtype for constant in tasks.constants]
        kinds = held or [value.type.dtype for value in tasks.inputs]
        return [probe(dtype, self.target.device) for dtype in dict.fromkeys(kinds)]


def check_parts(model: Any) -> None:
    """OptionError for a model that is compiled already, or has a part that is."""
    parts = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    for path, part in parts:
        if isinstance(part, Plans):
            raise OptionError(
                f"the part {path} of the model is compiled" if path else "the model is compiled",
                "it is a plan, and has no operators any more from which another could be made",
                f"compile the original, which is at .{path + '.' if path else ''}model, or "
                "compile the other parts apart from it",
            )


leave_alone(Plans.__call__, Plans.forward)
