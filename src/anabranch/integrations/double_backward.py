"""Gradients of gradients, which a forward and a backward pass of torch.compile do not give.

    y = fast(x)                                      AOTAutograd's node: forward's gradient
    g, = torch.autograd.grad(y, x, create_graph=True)   another node: the gradient of that, refused
    g.sum().backward()                               CaptureError, before torch's own

torch says it in the second node alone; a hook in front of that says it in our words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch.errors import CaptureError

COMPILED = "CompiledFunction"
"""How AOTAutograd's nodes begin: of a forward pass, and of a backward pass that was recorded."""


def twice_refused(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose results raise CaptureError where a gradient of theirs is
    differentiated again."""

    def call(*inputs: Any) -> Any:
        results = compiled(*inputs)
        for node in _nodes(results):
            node.register_hook(_watch)
        return results

    return call


def _nodes(results: Any) -> set[Any]:
    """The nodes of AOTAutograd that the results come from, of views as well."""
    several = results if isinstance(results, (tuple, list)) else (results,)
    makers = [result.grad_fn for result in several if isinstance(result, Tensor)]
    before = [node for maker in makers if maker is not None for node, _ in maker.next_functions]
    nodes = {node for node in (*makers, *before) if node is not None}
    return {node for node in nodes if node.name().startswith(COMPILED)}


def _watch(gradients: Sequence[Tensor | None], _: Sequence[Tensor | None]) -> None:
    """After a backward pass: have what would differentiate its gradients refuse that."""
    if torch.is_grad_enabled():  # as with create_graph=True
        for node in _nodes(gradients):
            node.register_prehook(_refuse)


def _refuse(_: Any) -> None:
    raise CaptureError(
        "a gradient of a compiled model is differentiated again",
        "torch.compile makes a forward and a backward pass, and no backward pass of the latter",
        "take the first gradient in what is compiled (torch.func.grad), or in the loss_fn of "
        "anabranch.compile_step (torch.autograd.grad with create_graph=True); or call the model "
        "uncompiled there",
    )
