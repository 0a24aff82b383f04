"""Captured graphs, kept between processes: a warm start need not export the model again.

A graph is stored under the model's fingerprint without the content of its weights, which are bound
anew to the model at hand. Whoever recalls a graph still compares its results with the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import safetensors.torch
import torch
from pydantic import BaseModel, ValidationError
from torch import nn

from anabranch.cache import Cache
from anabranch.errors import CaptureError, InputError
from anabranch.frontend.captured import Captured
from anabranch.frontend.fingerprint import fingerprint
from anabranch.frontend.from_torch import capture
from anabranch.frontend.rebind import rebind
from anabranch.frontend.state import with_state
from anabranch.frontend.surroundings import Surroundings, surroundings
from anabranch.ir.ambient import Ambient
from anabranch.ir.graph import Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.trees import read_tree
from anabranch.ir.uncollected import uncollected
from anabranch.trace import Trace


class _Leaf(BaseModel):
    ref: str | None
    literal: bool | int | float | str | None = None
    offset: int | None = None


class _Stored(BaseModel):
    graph: str
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
    under: Surroundings | None = None,
    unknown: Callable[[], None] = lambda: None,
) -> Captured:
    """From the cache where the model is known there, else by export; before that, `unknown` is
    called. It says what the model holds by name."""
    return with_state(
        _captured(model, args, kwargs, cache, trace, under or surroundings(), unknown), model
    )


def _captured(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    cache: Cache | None,
    trace: Trace,
    under: Surroundings,
    unknown: Callable[[], None],
) -> Captured:
    name = None
    if isinstance(model, nn.Module) and cache is not None:
        name = fingerprint(model, args, kwargs)
        name = name and f"{name} {under}"
    if name is None or cache is None:
        unknown()
        return capture(model, args, kwargs, trace, under)
    with uncollected():
        found = recall(cache, name, model)
    if found is not None:
        trace.add("applied", "capture", found.graph.name, "recalled from the cache")
        return found
    unknown()
    captured = capture(model, args, kwargs, trace, under)
    remember(cache, name, captured)
    return captured


def remember(cache: Cache, fingerprint: str, captured: Captured) -> None:
    """Store a captured graph; one whose call structure has no text form is not stored."""
    signature = captured.signature
    if not signature.input_tree or not signature.output_tree:
        return
    stored = _Stored(
        graph=text_graph(captured.graph),
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
        c.name: c.value.detach().cpu().contiguous()
        for c in captured.graph.constants
        if c.name not in held and c.value is not None
    }
    cache.put_blob("graphs", _contents_key(fingerprint), safetensors.torch.save(contents))
    cache.put("graphs", fingerprint, stored.model_dump_json())


def recall(cache: Cache, fingerprint: str, model: nn.Module) -> Captured | None:
    """The graph stored for this fingerprint, with the model's weights; None where there is none,
    or where it does not fit the model."""
    text = cache.get("graphs", fingerprint)
    blob = cache.get_blob("graphs", _contents_key(fingerprint))
    if text is None or blob is None:
        return None
    try:
        stored = _Stored.model_validate_json(text)
        graph = parse_graph(stored.graph)
        contents = _on_device(safetensors.torch.load(blob), model)
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


def _contents_key(fingerprint: str) -> str:
    return f"{fingerprint}\ncontents"


def _on_device(contents: Mapping[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return {name: tensor.to(device) for name, tensor in contents.items()}


def _pack(leaf: Leaf) -> _Leaf:
    ref = leaf.ref.name if leaf.ref else None
    return _Leaf(ref=ref, literal=leaf.literal, offset=leaf.offset)


def _unpack(leaf: _Leaf) -> Leaf:
    literal: Any = leaf.literal
    return Leaf(Ref(leaf.ref) if leaf.ref is not None else None, literal, leaf.offset)
