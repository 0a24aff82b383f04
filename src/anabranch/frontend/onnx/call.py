"""What an operator is told beside its inputs: the node's attributes, types and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from anabranch.errors import OnnxError
from anabranch.frontend.onnx.element_types import dtype_of
from anabranch.frontend.onnx.graph import OnnxGraph, OnnxNode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """One call of an operator. `floats`: what 32-bit floats are; `run`: runs a graph within the
    node, on values for its inputs."""

    node: OnnxNode
    floats: torch.dtype
    device: torch.device
    run: Callable[[OnnxGraph, Sequence[Any]], list[Any]]

    def get(self, name: str, default: T) -> T:
        """An attribute, of the type that its default has."""
        value = self.node.attributes.get(name)
        if value is None:
            return default
        return self._typed(name, value, type(default))

    def maybe(self, name: str, kind: type[T]) -> T | None:
        """An attribute of this type, None where it is not given."""
        value = self.node.attributes.get(name)
        return None if value is None else self._typed(name, value, kind)

    def need(self, name: str, kind: type[T]) -> T:
        """An attribute that a node must have."""
        value = self.maybe(name, kind)
        if value is None:
            raise OnnxError(
                f"{self.node.full_name} {self.node.name} lacks its attribute {name}",
                "there is no default for it",
                "export the model again",
            )
        return value

    def dtype(self, name: str, default: torch.dtype | None = None) -> torch.dtype:
        """The dtype that an attribute names by its code."""
        code = self.need(name, int) if default is None else self.get(name, 0)
        return dtype_of(code, self.floats) if code or default is None else default

    def refused(self, why: str) -> OnnxError:
        """An error that says why this call is not supported."""
        return OnnxError(
            f"{self.node.full_name} {self.node.name} is not supported as it is used".replace(
                "  ", " "
            ),
            why,
            "change the model there, or run that part with another program",
        )

    def _typed(self, name: str, value: Any, kind: type[T]) -> T:
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise OnnxError(
                f"the attribute {name} of {self.node.full_name} {self.node.name} is wrong",
                f"it is a {type(value).__name__}, and a {kind.__name__} is needed",
                "export the model again",
            )
        return value
