"""How captured graphs lie in the cache: without the weights that somebody holds by name.

    store      graph, call structure, digest of the operators that were called; what nobody holds
    bound_to   the same again, with the weights of the model that is there now

A digest of calls decides whether a stored graph is still what the model, or the step, computes
(`capture_cache`, `training_cache`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import safetensors.torch
import torch
from torch import Tensor

from anabranch.cache import Cache, Codec, Table
from anabranch.frontend.captured import Captured
from anabranch.frontend.rebind import rebound
from anabranch.ir.codec import nouns
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Signature
from anabranch.ir.trees import read_tree


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """A captured graph, and `calls`: the digest of the operators that the model called. `places`:
    by the name of each state where the model holds it."""

    graph: Graph
    calls: str
    sources: tuple[tuple[str, str], ...]
    signature: Signature
    places: dict[str, str] = field(default_factory=dict)
    detached: tuple[int, ...] | None = None


CAPTURED: Table[StoredCapture] = Table("graphs", "captured 8", nouns(StoredCapture))
CONTENTS: Table[dict[str, Tensor]] = Table(
    "graphs",
    "contents 5",
    Codec(
        lambda tensors, _: safetensors.torch.save(tensors),
        lambda data, _: safetensors.torch.load(data),
    ),
)
"""The constants of a captured graph that the model does not hold."""


def store(cache: Cache, name: str, captured: Captured, calls: str) -> None:
    """Keep a captured graph; one whose call structure has no text form is not kept."""
    signature = captured.signature
    if not signature.input_tree or not signature.output_tree:
        return
    held = {name for name, _ in captured.sources}
    contents = {
        c.name: _real(c.value.detach().cpu()).contiguous()
        for c in captured.graph.constants
        if c.name not in held and c.value is not None
    }
    CONTENTS.put(cache, CONTENTS.key(name), contents)
    graph = replace(captured.graph, conditions=())
    places = {state.name: state.path for state in graph.states}
    kept = StoredCapture(graph, calls, captured.sources, signature, places, captured.detached)
    CAPTURED.put(cache, CAPTURED.key(name), kept)


def bound_to(
    stored: StoredCapture,
    name: str,
    cache: Cache,
    find: Callable[[str], Tensor | None],
    device: torch.device | None,
) -> Captured | None:
    """The stored graph with the tensors that `find` gives by name, and the others on `device`; None
    where one is not there, or of another type."""

    def bind(kept: dict[str, Tensor]) -> Captured:
        for constant in stored.graph.constants:
            if constant.type.dtype.is_complex and constant.name in kept:
                kept[constant.name] = torch.view_as_complex(kept[constant.name])
        held = tuple(
            replace(state, source=(stored.places[state.name],)) for state in stored.graph.states
        )
        graph = replace(stored.graph, states=held)
        contents = {name: tensor.to(device or "cpu") for name, tensor in kept.items()}
        bound = rebound(graph, stored.sources, find, device, contents)
        signature = stored.signature
        trees = (read_tree(signature.input_tree), read_tree(signature.output_tree))
        return Captured(bound, signature, stored.sources, trees, detached=stored.detached)

    return CONTENTS.find(cache, CONTENTS.key(name), bind)


def _real(value: Tensor) -> Tensor:
    """Pairs of real numbers for complex ones, of which the file format knows no wide ones."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
