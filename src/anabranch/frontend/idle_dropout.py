"""Dropout that drops nothing gives back what it is given, as in eager.

    h = dropout(y, 0.5, training=False)       y itself
    h.add_(1)                                 so y is another, too

Torch's decomposition has a copy there, of which such a write changes nothing else. So these calls
are left out while a model is traced, or of a graph before it is decomposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
ARGUMENTS = ("input", "p", "training")
CALLS: dict[Any, dict[str, Any]] = {
    aten.dropout.default: {},
    aten.dropout_.default: {},
    torch.dropout: {},
    torch.dropout_: {},
    functional.dropout: {"p": 0.5, "training": True},
}
"""The ways to call it, with the defaults of each."""


class IdleDropout(TorchFunctionMode):
    """Within it such calls give what they are given, and no operator is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        source = _given(func, args, kwargs or {}) if func in CALLS else None
        return source if isinstance(source, Tensor) else func(*args, **(kwargs or {}))


def leave_out_idle_dropout(graph: fx.Graph) -> None:
    """Have the nodes of the graph read what such calls are given, in place."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in CALLS:
            source = _given(node.target, node.args, node.kwargs)
            if isinstance(source, fx.Node):
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def _given(call: Any, args: Any, kwargs: Any) -> Any:
    """What a call gives back; None if it drops something, or nobody knows."""
    told = {**CALLS[call], **kwargs, **dict(zip(ARGUMENTS, args, strict=False))}
    p, training = told.get("p"), told.get("training", told.get("train"))
    legal = isinstance(p, (int, float)) and 0 <= p <= 1
    return told.get("input") if legal and (p == 0 or training is False) else None
