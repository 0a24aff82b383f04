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

import safetensors.torch
import torch
from pydantic import BaseModel, ValidationError
from torch import nn
from torch.utils import _pytree as pytree

from anabranch.cache import Cache
from anabranch.errors import CaptureError, InputError
from anabranch.frontend.asked import OTHER_WAY, as_exported, of_export, relied_on
from anabranch.frontend.captured import Captured
from anabranch.frontend.effects import check_values, check_writes, rebuilt
from anabranch.frontend.fingerprint import fingerprint
from anabranch.frontend.from_torch import capture, check
from anabranch.frontend.observe import Observed, fails, observe
from anabranch.frontend.program import name_of
from anabranch.frontend.rebind import rebind
from anabranch.frontend.recorder import HELD
from anabranch.frontend.state import with_state
from anabranch.frontend.surroundings import Surroundings, surroundings
from anabranch.frontend.untouched import warn, warn_of_changes
from anabranch.ir.ambient import Ambient
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.trees import read_tree
from anabranch.trace import RECALLED, Trace

SCHEME = "captured 4"
MOST_HELD = 64 << 20
"""Bytes of a model's results."""
NOT_READ = "what is compiled does not, and has what was read when it was captured"


class _Leaf(BaseModel):
    ref: str | None
    literal: bool | int | float | str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Calling:
    """How the model is called to see what it computes: `under` the user's switches; `precise`: a
    context that rounds as little as it can; `fake`: on tensors without values. `anew`: what the
    cache has is not trusted, and replaced."""

    under: Surroundings
    precise: Callable[[], AbstractContextManager[None]] = nullcontext
    fake: bool = False
    anew: bool = False


class _Stored(BaseModel):
    graph: str
    calls: str
    sources: list[tuple[str, str]]
    input_tree: str
    inputs: list[_Leaf]
    output_tree: str
    outputs: list[_Leaf]
    mutations: list[tuple[str, str]]
    ambient: Ambient


def capture_or_recall(
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
        name = name and f"{SCHEME} {name} {calling.under} {calling.fake}"
    if name is not None and cache is not None and not calling.anew:
        stored = _stored(cache, name)
        seen = _seen(calling, model, args, kwargs) if stored is not None else None
        found = None
        if stored is not None and seen is not None and seen.digest == stored.calls:
            with uncollected():
                found = recall(cache, name, model)
        if found is not None:
            trace.add("applied", "capture", found.graph.name, RECALLED)
            assert seen is not None
            warn_of_changes(trace, name_of(model), seen.changed)
            return with_state(found, model), seen
        if stored is not None:
            why = "it computes something else than when it was captured, or that cannot be told"
            trace.add("refused", "capture", type(model).__name__, f"captured anew: {why}")
    unknown()
    check(model, args, kwargs)
    seen = _seen(calling, model, args, kwargs, trace)
    if seen is not None and HELD in seen.changed:
        raise CaptureError(
            "the model writes to a tensor that it holds, and that is none of its buffers",
            "tensors that a model holds become constants, so the change would be lost after the "
            "first call",
            "take the state as an input and return its new value, or leave this part out",
        )
    try:
        changed = seen.changed if seen else None
        captured = capture(model, args, kwargs, trace, calling.under, changed)
        if seen is not None and seen.asks:
            signature = captured.signature
            ambient = relied_on(signature.ambient, seen.asks, calling.under)
            captured = replace(captured, signature=replace(signature, ambient=ambient))
        if seen is not None and seen.written is not None:
            check_writes(captured, (args, kwargs), seen.written)
            if not calling.fake:
                check_values(captured, (args, kwargs), seen.written)
    except CaptureError as refused:
        if seen is not None and seen.replaced:
            raise rebuilt(seen.replaced[0]) from refused
        raise
    if name is not None and cache is not None and seen is not None and seen.digest is not None:
        remember(cache, name, captured, seen.digest)
    return with_state(captured, model), None if calling.fake else _held(seen)


def _held(seen: Observed | None) -> Observed | None:
    """What was seen, if its results are few enough to be held until there is a plan."""
    leaves = pytree.tree_leaves(seen.results) if seen is not None else []
    held = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
    return seen if held <= MOST_HELD else None


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
        observe, model, args, kwargs, calling.under, precise=calling.precise, fake=calling.fake
    )
    try:
        seen = call(watch=trace is not None)
    except torch.OutOfMemoryError:
        return None
    except Exception:
        if calling.fake or trace is None:
            return None
        try:
            seen = call(record=False)  # it may be the list that it does not bear
        except torch.OutOfMemoryError:
            return None
        except Exception as error:
            raise fails(model, error, calling.under) from error
    questions = of_export(seen.asks)
    if trace is not None and questions and _goes_another_way(seen, call, calling):
        warn(trace, name_of(model), f"forward asks {', '.join(questions)}, {OTHER_WAY}")
    if trace is not None and seen.reads:
        warn(trace, name_of(model), f"forward reads {', '.join(seen.reads)}: {NOT_READ}")
    return seen


def _goes_another_way(seen: Observed, call: Callable[..., Observed], calling: Calling) -> bool:
    """Whether the model calls other operators where it has the answers that torch.export gives."""

    @contextmanager
    def exported() -> Iterator[None]:
        with calling.precise(), as_exported():
            yield

    try:
        return call(precise=exported).digest != seen.digest
    except Exception:
        return True


def remember(cache: Cache, fingerprint: str, captured: Captured, calls: str) -> None:
    """Store a captured graph, and the digest of the operators that the model calls; one whose call
    structure has no text form is not stored."""
    signature = captured.signature
    if not signature.input_tree or not signature.output_tree:
        return
    stored = _Stored(
        graph=text_graph(captured.graph),
        calls=calls,
        sources=list(captured.sources),
        input_tree=signature.input_tree,
        inputs=[_pack(leaf) for leaf in signature.inputs],
        output_tree=signature.output_tree,
        outputs=[_pack(leaf) for leaf in signature.outputs],
        mutations=[(name, ref.name) for name, ref in signature.mutations],
        ambient=signature.ambient,
    )
    held = {name for name, _ in captured.sources}
    contents = {
        c.name: _real(c.value.detach().cpu()).contiguous()
        for c in captured.graph.constants
        if c.name not in held and c.value is not None
    }
    cache.put_blob("graphs", _contents_key(fingerprint), safetensors.torch.save(contents))
    cache.put("graphs", fingerprint, stored.model_dump_json())


def recall(cache: Cache, fingerprint: str, model: nn.Module) -> Captured | None:
    """The graph stored for this fingerprint, with the model's weights; None where there is none,
    or where it does not fit the model."""
    stored = _stored(cache, fingerprint)
    blob = cache.get_blob("graphs", _contents_key(fingerprint))
    if stored is None or blob is None:
        return None
    try:
        graph = parse_graph(stored.graph)
        kept = safetensors.torch.load(blob)
        for constant in graph.constants:
            if constant.type.dtype.is_complex and constant.name in kept:
                kept[constant.name] = torch.view_as_complex(kept[constant.name])
        contents = _on_device(kept, model)
        bound = rebind(graph, tuple(stored.sources), model, contents)
        signature = Signature(
            stored.input_tree,
            tuple(_unpack(leaf) for leaf in stored.inputs),
            stored.output_tree,
            tuple(_unpack(leaf) for leaf in stored.outputs),
            tuple((name, Ref(value)) for name, value in stored.mutations),
            stored.ambient,
        )
        trees = (read_tree(signature.input_tree), read_tree(signature.output_tree))
    except (ValidationError, ValueError, KeyError, CaptureError, InputError):
        return None
    return Captured(bound, signature, tuple(stored.sources), trees)


def _stored(cache: Cache, fingerprint: str) -> _Stored | None:
    text = cache.get("graphs", fingerprint)
    try:
        return None if text is None else _Stored.model_validate_json(text)
    except ValidationError:
        return None


def _contents_key(fingerprint: str) -> str:
    return f"{fingerprint}\ncontents"


def _real(value: torch.Tensor) -> torch.Tensor:
    """Pairs of real numbers for complex ones, of which the file format knows no wide ones."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _on_device(contents: Mapping[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return {name: tensor.to(device) for name, tensor in contents.items()}


def _pack(leaf: Leaf) -> _Leaf:
    ref = leaf.ref.name if leaf.ref else None
    return _Leaf(ref=ref, literal=leaf.literal, offset=leaf.offset)


def _unpack(leaf: _Leaf) -> Leaf:
    literal: Any = leaf.literal
    return Leaf(Ref(leaf.ref) if leaf.ref is not None else None, literal, leaf.offset)
