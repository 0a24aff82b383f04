"""Captured graphs, kept between processes: a warm start need not export the model again.

A graph is stored under the model's fingerprint without the content of its weights, which are bound
anew to the model at hand, and with the list of operators that the model called. No fingerprint sees
all that a forward depends on: so the model is called once, and a graph is recalled only if it calls
the same operators on the same tensors. Its results are compared with the plan's later on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from anabranch.cache import Cache
from anabranch.errors import CaptureError, DataDependentError
from anabranch.frontend.capture_warnings import warn, warn_of_changes, warn_of_reads
from anabranch.frontend.captured import Captured
from anabranch.frontend.captured_store import CAPTURED, bound_to, store
from anabranch.frontend.checks import check_results
from anabranch.frontend.effects import check_assigned, check_values, check_writes, rebuilt
from anabranch.frontend.fingerprint import fingerprint
from anabranch.frontend.from_torch import apart, capture, check
from anabranch.frontend.held_checks import check_held, check_written
from anabranch.frontend.input_queries import (
    ATTRIBUTES,
    CLASS,
    IDENTITY,
    InputQuestions,
    Question,
    answered,
    has_containers,
)
from anabranch.frontend.layout_aliases import LAYOUTS
from anabranch.frontend.mode_queries import (
    DEFAULT_DEVICE,
    MAKES,
    OTHER_WAY,
    as_exported,
    check_seeds,
    of_export,
    relied_on,
    unsettled,
)
from anabranch.frontend.observe import InputForm, Notes, Observed, fails, observe
from anabranch.frontend.program import name_of
from anabranch.frontend.rebind import of_model
from anabranch.frontend.recorder import HELD_TENSOR
from anabranch.frontend.shared_weights import hides_shared
from anabranch.frontend.state import (
    check_states,
    check_tied,
    tensors_of,
    unkept,
    unwrapped,
    with_state,
)
from anabranch.frontend.surroundings import Surroundings, surroundings
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.input_guards import InputGuard
from anabranch.trace import Trace

MOST_HELD = 64 << 20
"""Bytes of a model's results."""


@dataclass(frozen=True, slots=True)
class Calling:
    """How the model is called to see what it computes: `under` the user's switches; `precise`: a
    context that rounds as little as it can; `fake`: on tensors without values. `anew`: what the
    cache has is not trusted, and replaced."""

    under: Surroundings
    precise: Callable[[], AbstractContextManager[None]] = nullcontext
    fake: bool = False
    anew: bool = False


def capture_model(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    cache: Cache | None,
    trace: Trace,
    calling: Calling | None = None,
    unknown: Callable[[], None] = lambda: None,
) -> tuple[Captured, Observed | None]:
    """From the cache where the model is known there and computes the same as then, else by export;
    before that, `unknown` is called. With a call of the model on these inputs, if there was one.
    The graph says what the model holds by name."""
    calling = calling or Calling(surroundings())
    name = None
    if isinstance(model, nn.Module) and cache is not None:
        name = fingerprint(model, args, kwargs)
        name = name and f"{name} {calling.under} {calling.fake}"
    if name is not None and cache is not None and not calling.anew:
        stored = CAPTURED.get(cache, CAPTURED.key(name))
        seen = _seen(calling, model, args, kwargs) if stored is not None else None
        bound = None
        if stored is not None and seen is not None and seen.digest == stored.calls:
            with uncollected():
                bound = bound_to(stored, name, cache, *of_model(model))
        if bound is not None:
            trace.recalled("capture", bound.graph.name)
            assert seen is not None
            other = unkept(bound.graph, unwrapped(model), seen.changed)
            warn_of_changes(trace, name_of(model), other)
            warn_of_reads(trace, name_of(model), seen.reads)
            bound = with_state(_with_answers(bound, args, kwargs, seen, calling.under), model)
            check_written(model, bound.graph)
            return bound, seen
        if stored is not None:
            why = "it computes something else than when it was captured, or that cannot be told"
            trace.add("refused", "capture", type(model).__name__, f"captured anew: {why}")
    unknown()
    check(model, args, kwargs)
    seen = watched_call(model, args, kwargs, trace, calling)
    try:
        changed = seen.changed if seen else None
        gradients = seen is not None and seen.takes_gradients
        captured = capture(model, args, kwargs, trace, calling.under, changed, gradients)
        if seen is not None:
            captured = _with_answers(captured, args, kwargs, seen, calling.under)
        if seen is not None and seen.written is not None:
            check_writes(captured, (args, kwargs), seen.written)
            if not calling.fake:
                check_values(captured, (args, kwargs), seen.written)
    except CaptureError as refused:
        by_values = isinstance(refused, DataDependentError)
        if seen is not None and not by_values:
            check_results(seen.results)
        if seen is not None and seen.replaced and not by_values:
            raise rebuilt(seen.replaced[0]) from refused
        if seen is not None and isinstance(model, nn.Module) and not by_values:
            check_tied(unwrapped(model), seen.changed, refused)
        raise
    if seen is not None:
        check_assigned(captured, seen.replaced)
    bound = with_state(captured, model)
    check_written(model, bound.graph)
    held = dict(tensors_of(unwrapped(model))) if name is not None else {}
    storable = seen is not None and seen.digest is not None and not hides_shared(bound.graph, held)
    if storable and name is not None and cache is not None and seen is not None and seen.digest:
        store(cache, name, captured, seen.digest)
    return bound, None if calling.fake else _held(seen)


def watched_call(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    trace: Trace,
    calling: Calling,
) -> Observed | None:
    """A call of the model, to see what it changes and reads besides its inputs; None where it fails
    for us. CaptureError where it fails for the user, too, or writes to what is no state."""
    seen = _seen(calling, model, args, kwargs, trace)
    warn_of_reads(trace, name_of(model), seen.reads if seen is not None else ())
    if seen is not None and HELD_TENSOR in seen.changed:
        raise CaptureError(
            "the model writes to a tensor that it holds, and that is none of its buffers",
            "tensors that a model holds become constants, so the change would be lost after the "
            "first call",
            "register it as a buffer (register_buffer), and write into that",
        )
    if seen is not None and isinstance(model, nn.Module):
        check_states(unwrapped(model), seen.changed)
        check_held(model, args, kwargs, seen.changed)
    return seen


def _with_answers(
    captured: Captured,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seen: Observed,
    under: Surroundings,
) -> Captured:
    """With what the model asked in the call that was seen, and heard."""
    signature, asked = captured.signature, tuple[InputGuard, ...]()
    if seen.questions:
        exported = apart((args, dict(kwargs)))
        asked = answered(captured.trees[0], (args, kwargs), exported, seen.questions)
    covered = {(guard.leaf, guard.what) for guard in asked}
    lie = [guard for guard in signature.asked if guard.what in LAYOUTS]
    asked += tuple(guard for guard in lie if (guard.leaf, guard.what) not in covered)
    ambient = relied_on(signature.ambient, seen.asks, under)
    signature = replace(signature, ambient=ambient, asked=asked)
    signature = replace(signature, distinct=seen.distinct, exact=seen.exact)
    if seen.takes_gradients and captured.detached is None:
        captured = replace(captured, detached=())
    return replace(captured, signature=signature)


def _held(seen: Observed | None) -> Observed | None:
    """The observation, if its results and what it left in inputs are small enough to be held until
    there is a plan."""
    held = (seen.results, dict(seen.written or {})) if seen is not None else ()
    leaves = pytree.tree_leaves(held)
    size = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
    return seen if size <= MOST_HELD else None


def _seen(
    calling: Calling,
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    trace: Trace | None = None,
) -> Observed | None:
    """A call of the model; None where it fails for us. CaptureError where it fails for the user,
    too, if a `trace` is there to tell of what was seen."""
    call = partial(
        observe,
        *(model, args, kwargs),
        under=calling.under,
        precise=calling.precise,
        fake=calling.fake,
    )
    try:
        seen = call(notes=Notes(watch=True))
    except torch.OutOfMemoryError:
        return None
    except Exception as failed:
        if calling.fake or trace is None:
            return None
        if isinstance(failed, CaptureError):
            raise
        try:
            seen = call(notes=Notes(operators=False))  # it may be the list that it does not bear
        except torch.OutOfMemoryError:
            return None
        except CaptureError:
            raise
        except Exception as error:
            raise fails(model, error, calling.under) from error
    check_seeds(seen.asks)
    if trace is not None and _made_by_default(seen, call, calling):
        seen = replace(seen, asks=(*seen.asks, DEFAULT_DEVICE))
    questions = of_export(seen.asks)
    if trace is not None and questions and _goes_another_way(seen, call, calling):
        warn(trace, name_of(model), f"forward asks {', '.join(questions)}, {OTHER_WAY}")
        seen = replace(seen, another_way=tuple(questions))
    reads = (*seen.reads, *unsettled(seen.asks))
    if seen.mentions:
        about_inputs, more = asked_of_inputs(seen, call)
        seen = replace(seen, questions=about_inputs, distinct=tells_apart(seen, call))
        reads = (*reads, *more)
    if has_containers(model, args, kwargs):
        seen = replace(seen, exact=tells_containers(seen, call))
    return replace(seen, reads=reads)


def _made_by_default(seen: Observed, call: Callable[..., Observed], calling: Calling) -> bool:
    """Whether tensors that the model makes lie on torch's default device. The model is called
    where there are no numbers, only if it makes any."""
    if not any(question.startswith(MAKES) for question in seen.asks):
        return False
    elsewhere = replace(calling.under, device=torch.device("meta"))
    return _unlike(seen, lambda: call(under=elsewhere))


def asked_of_inputs(
    seen: Observed, call: Callable[..., Observed]
) -> tuple[tuple[Question, ...], tuple[str, ...]]:
    """The questions that the model asks of its inputs and branches on, and the facts of tensors
    that it reads and no call can be checked against."""
    asking = InputQuestions()
    try:
        plain = call(notes=Notes(asking=asking))
    except Exception:  # it does not bear to be listened to, and torch.export listens as well
        return (), ()
    opposite = Notes(asking=InputQuestions(flipped=True))
    flipped = asking.told and _unlike(plain, lambda: call(notes=opposite))
    questions, reads = asking.kept(flipped)
    parameters = InputForm(parameters=True)
    if not seen.mentions.isdisjoint(CLASS) and _unlike(seen, lambda: call(form=parameters)):
        questions += asking.of_all("class")
    if not seen.mentions.isdisjoint(ATTRIBUTES):
        questions += asking.of_all("attributes")
    return questions, reads


def tells_containers(seen: Observed, call: Callable[..., Observed]) -> bool:
    """Whether the model looks at the form of containers, and goes another way for another."""
    return _unlike(seen, lambda: call(form=InputForm(containers=True)))


def tells_apart(seen: Observed, call: Callable[..., Observed]) -> bool:
    """Whether the model looks which of its inputs are one tensor, and goes another way then."""
    if seen.mentions.isdisjoint(IDENTITY):
        return False
    try:
        seen = call(form=InputForm(united="names"))
        return _unlike(seen, lambda: call(form=InputForm(united="tensors")))
    except Exception:
        return True


def _unlike(seen: Observed, other: Callable[[], Observed]) -> bool:
    """Whether another call of the model calls other operators, or that cannot be told. Results tell
    nothing: another limit, say, need not show in the sample's."""
    try:
        return seen.digest is None or other().digest != seen.digest
    except Exception:
        return True


def _goes_another_way(seen: Observed, call: Callable[..., Observed], calling: Calling) -> bool:
    """Whether the model calls other operators where it has the answers that torch.export gives."""

    @contextmanager
    def exported() -> Iterator[None]:
        with calling.precise(), as_exported(any("is_grad_enabled" in asked for asked in seen.asks)):
            yield

    return _unlike(seen, lambda: call(precise=exported))
