"""Pricing: what a search asks of whoever prices graphs, and how often it has asked.

price(graph)              whole graphs, and parts of one
price.carried(b, longer)  a longer beginning of a network, from what is known of a shorter one
"""

from __future__ import annotations

from typing import Any, Protocol

from anabranch.ir.graph import Graph
from anabranch.ir.price import Price


class PrefixPrice(Protocol):
    """What is known of a beginning of a network: its price, and what it takes to go on from it."""

    @property
    def price(self) -> Price:
        """Of the beginning."""


class Pricer(Protocol):
    """Prices graphs, all with one alpha."""

    def __call__(self, graph: Graph) -> Price:
        """Of a graph, or a part of one."""

    def carried(self, before: Any, whole: Graph) -> PrefixPrice:
        """Of a beginning of a network. `before`: what this said of a shorter one, None for nothing;
        `whole`: its nodes and constants begin with those of that one; dead ones may be among
        them."""


class Counted:
    """A pricer that counts how often it is asked."""

    def __init__(self, price: Pricer) -> None:
        self._price, self.asked = price, 0

    def __call__(self, graph: Graph) -> Price:
        """The graph's price, counted."""
        self.asked += 1
        return self._price(graph)

    def carried(self, before: Any, whole: Graph) -> PrefixPrice:
        """The longer beginning's, counted as one."""
        self.asked += 1
        return self._price.carried(before, whole)
