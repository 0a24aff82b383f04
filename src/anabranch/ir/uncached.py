"""Weights and states that no cache holds any more when a call reads them."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Uncached:
    """All weights of a network, and values of the types of these states: a call reads more than a
    cache holds before it comes back to them. What reads them is timed so.

    >>> import torch
    >>> Uncached((TensorType((8, 1024), torch.float16),)).text
    'states f16[8,1024]'
    """

    states: tuple[TensorType, ...] = ()

    @property
    def text(self) -> str:
        """As keys of decisions have it."""
        return " ".join(["states", *(state.text for state in self.states)]) if self.states else ""
