"""What is read of a file: nodes in order, by the names of their values.

    OnnxNode("Gemm", "", ("x", "w", "b"), ("y",), {"transB": 1}, 13, "fc")

Values are names, as in the file, and a name means the same in a graph and in those within it.
Weights, and tensors of nodes called Constant, are apart: `constants` of the outermost graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input: its name, the code of its element type (0 if it is no tensor), and its sizes: a
    number, the name of a symbol, or None where nothing is said; None for an unknown rank."""

    name: str
    element_type: int
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator: an input "" is left out, an output "" is not wanted. `version`: of the set of
    operators that it is meant in. `unused`: values that nobody reads after it."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int
    name: str = ""
    unused: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The operator with its domain, where that is not ONNX's own."""
        return f"{self.domain}.{self.op}" if self.domain else self.op


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph, or the body of a node such as If. `constants`: names of weights that it has."""

    name: str
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    constants: tuple[str, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxGraph:
        return self


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """The outermost graph, and its weights by name. `scalars`: tensors that are numbers to the
    graph and no weights."""

    graph: OnnxGraph
    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Tensor] = field(default_factory=dict)


def bodies(node: OnnxNode) -> Iterator[OnnxGraph]:
    """The graphs within a node."""
    for value in node.attributes.values():
        if isinstance(value, OnnxGraph):
            yield value


def all_nodes(graph: OnnxGraph) -> Iterator[OnnxNode]:
    """Every node of the graph, and of those within its nodes."""
    for node in graph.nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def counted(graph: OnnxGraph) -> Counter[str]:
    """How often each operator occurs, by its full name."""
    return Counter(node.full_name for node in all_nodes(graph))
