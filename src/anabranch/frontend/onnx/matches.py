"""Who makes and who reads the values of a graph: what looks for patterns asks it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.check_graph import read_by
from anabranch.frontend.onnx.graph import OnnxNode
from anabranch.frontend.onnx.host_operators import HOST_OPERATORS

OWN_DOMAIN = "anabranch"
"""Of operators that no file has: what is found spelled out."""
ROUNDED = {torch.float16: 1e-3, torch.bfloat16: 4e-3}
"""How far constants of these types may be from a number that was rounded to them; others 1e-6."""


class Matches:
    """Who makes and who reads the values of a graph, and which are constants."""

    def __init__(
        self, nodes: Sequence[OnnxNode], outputs: Sequence[str], constants: Mapping[str, Tensor]
    ) -> None:
        self._makers = {name: node for node in nodes for name in node.outputs if name}
        self._reads = Counter(name for node in nodes for name in read_by(node))
        self._reads.update(outputs)
        self._constants = constants

    def of(self, name: str, *ops: str) -> OnnxNode | None:
        """The node of one of these operators that makes a value."""
        node = self._makers.get(name)
        return node if node is not None and not node.domain and node.op in ops else None

    def only(self, name: str, *ops: str) -> OnnxNode | None:
        """The same, if nobody else reads the value."""
        return self.of(name, *ops) if self._reads[name] == 1 else None

    def number(self, name: str) -> float | None:
        """A constant of one number, which adds no axes to what it is combined with."""
        tensor = self._constants.get(name)
        if tensor is None or tensor.numel() != 1 or tensor.dim() > 1:
            return None
        return float(tensor)

    def near(self, name: str, number: float) -> bool:
        """Whether a constant is this number, as far as its type tells them apart."""
        own = self.number(name)
        if own is None:
            return False
        rounded = ROUNDED.get(self._constants[name].dtype, 1e-6)
        return math.isclose(own, number, rel_tol=rounded)

    def all_are(self, name: str, number: float) -> bool:
        """Whether all numbers of a constant are exactly this one."""
        tensor = self._constants.get(name)
        return tensor is not None and bool((tensor == number).all())

    def is_number(self, name: str, depth: int = 16) -> bool:
        """Whether a value is a number that Python knows: a constant, or made of shapes alone."""
        if self._constants.get(name) is not None:
            return self.number(name) is not None
        node = self._makers.get(name)
        if node is None or node.domain or depth == 0:
            return False
        if node.op in ("Shape", "Size"):
            return True
        return node.op in HOST_OPERATORS and all(
            operand in self._constants or self.is_number(operand, depth - 1)
            for operand in node.inputs
            if operand
        )

    def rank(self, name: str) -> int | None:
        """How many axes a constant has."""
        tensor = self._constants.get(name)
        return None if tensor is None else tensor.dim()

    def size(self, name: str, axis: int) -> int:
        """The size of a constant's axis."""
        return int(self._constants[name].shape[axis])

    def numbers(self, name: str) -> list[Any] | None:
        """The numbers of a small constant."""
        tensor = self._constants.get(name)
        return None if tensor is None or tensor.numel() > 16 else tensor.reshape(-1).tolist()

    def factors(self, name: str) -> Iterator[str]:
        """What is multiplied to make a value, as far as nobody else reads the products."""
        node = self.only(name, "Mul")
        if node is None:
            yield name
            return
        for operand in node.inputs:
            yield from self.factors(operand)

    def apart(self, node: OnnxNode) -> tuple[str, str] | None:
        """A sum or product of a value and a number: the names of both."""
        a, b = node.inputs
        for value, other in ((a, b), (b, a)):
            if self.number(other) is not None:
                return value, other
        return None
