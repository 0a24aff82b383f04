"""Captured training steps, kept between processes: a warm start need not record the step again.

    list       run the step on tensors without values: forward, backward and update, each operator
    compare    with the list of the step that was captured: operators, arguments, constants
    recall     the graph, with the tensors that model, loss and optimizer hold now

Autograd and the optimizer run as they do when a step is recorded, below them the list is made. So
it has all that the graph is made of, the backward pass and the update as well as the forward pass:
another loss, another hyperparameter or a frozen parameter is another list. Names and types of what
is held, and which tensors are one memory or always equal, are no operators: they are a part of the
name that a graph is stored under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from anabranch.cache import Cache
from anabranch.frontend.capture_warnings import warn_of_changes, warn_of_reads
from anabranch.frontend.captured import Captured
from anabranch.frontend.captured_store import CAPTURED, StoredCapture, bound_to, store
from anabranch.frontend.draws import Draws, without_fused_dropout
from anabranch.frontend.fingerprint import file_digest, fingerprint
from anabranch.frontend.observe import unchanged
from anabranch.frontend.python_state import LOST
from anabranch.frontend.recorder import CallRecorder
from anabranch.frontend.shared_weights import hides_shared
from anabranch.frontend.state import named
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.frontend.training import EagerStep, Held, Training, roles
from anabranch.frontend.training_capture import capture_training
from anabranch.frontend.training_run import (
    SeenStep,
    StepCall,
    call_of,
    eager_step,
    recurrences_by_steps,
    run_on,
)
from anabranch.ir.key import digest_text
from anabranch.ir.recipe import ModelTensor
from anabranch.kernels import sources
from anabranch.trace import Trace

ROOMS = ("frontend", "ir")
"""Of us who decides what a step is captured as."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step to be captured: what it holds, an example batch, the user's switches, and whether
    it ends with an update."""

    training: Training
    held: Held
    batch: tuple[Any, ...]
    under: Surroundings
    ends: bool = True


@dataclass(frozen=True, slots=True)
class ListedStep:
    """The operators that the step calls, as a digest; what was seen meanwhile, and what it changed
    in Python."""

    digest: str
    seen: SeenStep
    changed: tuple[str, ...]


def capture_step(
    asked: StepRequest, cache: Cache | None, trace: Trace
) -> tuple[Captured, EagerStep]:
    """As `capture_training`, from the cache where the step is known there and calls the same
    operators as then. The graph says by what names its tensors are held. Raises CaptureError."""
    name = _name(asked) if cache is not None else None
    listing, stored = None, None
    if name is not None and cache is not None:
        stored = CAPTURED.get(cache, CAPTURED.key(name))
        listing = listed(asked)
        if stored is not None and listing is not None and listing.digest == stored.calls:
            recalled = _recalled(asked, stored, name, cache)
            if recalled is not None:
                return _recalled_step(asked, recalled, listing, trace)
    kind = type(asked.training.model).__name__
    if stored is not None:
        why = "the step calls other operators than when it was captured, or that cannot be told"
        trace.add("refused", "capture", kind, f"captured anew: {why}")
    training, held = asked.training, asked.held
    captured, eager = capture_training(training, held, asked.batch, asked.under, trace, asked.ends)
    whole = _named(captured, held)
    hidden = hides_shared(whole.graph, dict(zip(held.names, held.tensors, strict=True)))
    if cache is not None and name is not None and listing is not None and not hidden:
        store(cache, name, captured, listing.digest)
    return whole, eager


def _recalled(
    asked: StepRequest, stored: StoredCapture, name: str, cache: Cache
) -> Captured | None:
    """The stored graph with what the step holds now."""
    held = dict(zip(asked.held.names, asked.held.tensors, strict=True))
    captured = bound_to(stored, name, cache, held.get, asked.training.random.device)
    return None if captured is None else _named(captured, asked.held)


def _recalled_step(
    asked: StepRequest, captured: Captured, listed: ListedStep, trace: Trace
) -> tuple[Captured, EagerStep]:
    """A recalled graph, and the step that it is compared with."""
    model = type(asked.training.model).__name__
    trace.recalled("capture", captured.graph.name)
    warn_of_changes(trace, model, listed.changed)
    warn_of_reads(trace, model, listed.seen.reads)
    return captured, eager_step(asked.training, asked.under, asked.ends, listed.seen)


def _named(captured: Captured, held: Held) -> Captured:
    """The graph with the names of all that is held."""
    tensors = dict(zip(held.names, held.tensors, strict=True))
    state = (ModelTensor(n, tuple(x.shape), x.dtype, True) for n, x in tensors.items())
    return named(captured, tensors, tuple(state))


def _name(asked: StepRequest) -> str | None:
    """What a captured step is stored under; None for a model that cannot be named. Two steps of one
    name have graphs that say the same, if they call the same operators."""
    training = asked.training
    model, loss = fingerprint(training.model, asked.batch), _loss(training.loss_fn)
    if model is None or loss is None:
        return None
    kind = type(training.optimizer)
    says = (
        *(f"a step {sources.digest(*ROOMS)}", model, loss),
        f"{kind.__module__}.{kind.__qualname__}",
        f"{asked.under} {asked.ends} {training.random.device}",
        f"{training.clip_norm} {training.accumulate} {training.scale() is not None}",
        f"varying {training.varying}",
        *_held(training, asked.held),
    )
    return digest_text("\n".join(says))


def _loss(loss_fn: Callable[..., Any]) -> str | None:
    """The name of a loss, and the file that it is written in, whose lines a graph tells of. What
    it computes is seen in the list of operators."""
    if isinstance(loss_fn, nn.Module):
        return fingerprint(loss_fn, ())
    code = getattr(loss_fn, "__code__", None)
    if code is None:
        return f"a {type(loss_fn).__module__}.{type(loss_fn).__qualname__}"
    file = Path(code.co_filename)
    written = file_digest(file) if file.is_file() else ""
    return f"{code.co_qualname} line {code.co_firstlineno} {written}"


def _held(training: Training, held: Held) -> Iterator[str]:
    """What a graph says of the tensors that are held: which of them are one, in memory or by what
    the optimizer does, which are trained, and which the update writes."""
    views, memories = dict[Any, int](), dict[int, int]()
    for number, (name, tensor) in enumerate(zip(held.names, held.tensors, strict=True)):
        strided = tensor.layout is torch.strided
        lies = (tuple(tensor.stride()), tensor.storage_offset()) if strided else tensor.layout
        memory = tensor.untyped_storage()._cdata if strided else id(tensor)
        kind = f"{tensor.dtype}{tuple(tensor.shape)}{lies} {tensor.device}"
        view = views.setdefault((memory, kind), number)
        identity = f"{view} in {memories.setdefault(memory, number)}"
        yield f"{name} {kind} {type(tensor).__name__} {tensor.requires_grad} {identity}"
    roles_now = roles(training, lambda tensor: tensor)
    updated = [held.place[id(t)] for mine in roles_now.updated for t in mine]
    yield f"trained {[held.place[id(p)] for p in training.trained()]}"
    yield f"updated {updated} alike {held.alike}"


class _ListedDraws(Draws):  # type: ignore[no-untyped-call]
    """Writes in the list where a phase of the step begins."""

    def __init__(self, random: Tensor, recorder: CallRecorder) -> None:
        super().__init__(random)
        self._recorder = recorder

    def enters(self, phase: str) -> None:
        super().enters(phase)
        self._recorder.mark(phase)


def listed(asked: StepRequest) -> ListedStep | None:
    """The operators that the step calls on tensors without values; None where it fails, or the list
    does not tell all."""
    step = EagerStep(asked.training, asked.under)
    try:
        with unchanged(step) as state, recurrences_by_steps():
            digest, seen = without_fused_dropout(lambda: _list_once(asked))
            changed = (*state.changes(), *(f"{file}{LOST}" for file in seen.files))
    except Exception:  # capturing runs it again, and says what is wrong
        return None
    return None if digest is None else ListedStep(digest, seen, changed)


def _list_once(asked: StepRequest) -> tuple[str | None, SeenStep]:
    """The digest of all that the step calls on tensors without values, and what was seen."""
    training, held = asked.training, asked.held
    call: StepCall = call_of(training, asked.batch)
    # As torch makes it to record: a learning rate that is read as a number has a symbol.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    fakes: Sequence[Tensor] = [mode.from_tensor(tensor) for tensor in call.flat(held)]
    recorder = CallRecorder({}, fakes, fake=True)
    with own_kernels(), enable_python_dispatcher(), mode, recorder:
        seen = run_on(
            *(training, held, call, fakes, asked.under, asked.ends),
            lambda random: _ListedDraws(random, recorder),
        )
        return recorder.digest(seen.returned), seen
