"""Captured: what every front end returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch.utils._pytree import TreeSpec

from anabranch.ir.graph import Graph
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.recipe import ModelTensor


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, how calls of it look, and where its constants come from.

    `sources` pairs a constant's name with the qualified name of the parameter, buffer or attribute
    that holds it; a constant without one (a tensor that the code makes) is content which a cache
    must store. `state`: all that the model holds by name. `trees` are the live structures of (args,
    kwargs) and of the result: a structure that cannot be written as text (a class that
    pytree knows by no name) has "" in the signature, and works in this process only. `detached`:
    of a model that takes gradients in forward, the places of results of which autograd has no
    history, though the graph computes them of weights.
    """

    graph: Graph
    signature: Signature
    sources: tuple[tuple[str, str], ...]
    trees: tuple[TreeSpec, TreeSpec] = field(compare=False, repr=False)
    state: tuple[ModelTensor, ...] = field(default=(), compare=False, repr=False)
    detached: tuple[int, ...] | None = None

    @property
    def takes_gradients(self) -> bool:
        """Whether the model is to be called in grad mode."""
        return self.detached is not None


def renamed(captured: Captured, graph: Graph) -> Signature:
    """The signature with results named as the rewritten graph names them; what the model returns
    of its inputs stays the input."""
    pairs = zip(captured.graph.outputs, graph.outputs, strict=True)
    names = {old.name: new for old, new in pairs}
    for value in captured.graph.call_inputs:
        names.pop(value.name, None)
    was = captured.signature
    mutations = tuple((name, names.get(ref.name, ref)) for name, ref in was.mutations)
    values: dict[str, list[str]] = {}
    for (_, new), (_, old) in zip(mutations, was.mutations, strict=True):
        values.setdefault(new.name, []).append(old.name)

    def named(leaf: Leaf) -> Leaf:
        """Two values of the model stay two tensors where a rewrite found them equal."""
        if leaf.ref is None:
            return leaf
        new, old = names.get(leaf.ref.name, leaf.ref), leaf.ref.name
        aliases = values.setdefault(new.name, [])
        if old not in aliases:
            aliases.append(old)
        return Leaf(new, number=aliases.index(old))

    checks = tuple(
        check if check.ref is None else replace(check, ref=names.get(check.ref.name, check.ref))
        for check in was.checks
    )
    outputs = tuple(map(named, was.outputs))
    return replace(was, outputs=outputs, mutations=mutations, checks=checks)
