"""The loss and the gradients of small networks as graphs, traced as a training step is: once with
autograd running, then as functional ATen by the table of `frontend.backward`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from anabranch.frontend.backward import prepared, training_decompositions
from anabranch.frontend.draws import Draws
from anabranch.frontend.translate import Translation
from anabranch.ir.graph import Graph, Ref

Loss = Callable[..., Tensor]


RANDOM = torch.tensor([3141592653589793, 0])
"""What a step that draws makes its numbers of: a seed, and the number of the call."""


def functional(
    step: Callable[..., Sequence[Tensor]], given: Sequence[Tensor]
) -> tuple[fx.GraphModule, list[Tensor]]:
    """The step of these tensors as functional ATen, and its inputs, of which the last is RANDOM."""

    def drawing(*tensors: Tensor) -> Sequence[Tensor]:
        with Draws(tensors[-1]):
            return step(*tensors[:-1])

    given = [*given, RANDOM]
    plain = prepared(make_fx(drawing, tracing_mode="fake")(*given))

    def again(*tensors: Tensor) -> Any:
        return fx.Interpreter(plain).run(*tensors)

    unmutated = functionalize(again, remove="mutations")
    made = make_fx(unmutated, tracing_mode="fake", decomposition_table=training_decompositions())(
        *given
    )
    made.graph.eliminate_dead_code()
    return made, given


def translated(made: fx.GraphModule) -> tuple[Graph, list[str]]:
    """The graph, and the names of what the module returns, of which several may be one value."""
    translation = Translation({node.name for node in made.graph.nodes})
    returned: list[str] = []
    for node in made.graph.nodes:
        if node.op == "placeholder":
            translation.bind_input(node, node.meta["val"])
        elif node.op == "get_attr":
            translation.bind_constant(node, getattr(made, str(node.target)), node.name, False)
        elif node.op == "call_function":
            translation.add(node)
        else:
            refs = [translation.value(value) for value in node.args[0]]
            returned = [ref.name for ref in refs if isinstance(ref, Ref)]
    return translation.finish("step", [Ref(name) for name in returned]), returned


def gradients(model: nn.Module, loss: Loss, batch: Sequence[Tensor]) -> list[Tensor]:
    """What eager says: the loss, the gradient of each parameter, and the buffers after the call."""
    value = loss(model, *batch)
    found = torch.autograd.grad(value, list(model.parameters()))
    return [value.detach(), *found, *model.buffers()]


def graph_of(
    model: nn.Module, loss: Loss, batch: Sequence[Tensor]
) -> tuple[Graph, list[str], list[Tensor]]:
    """The graph that computes `gradients`, the names of these, and its inputs."""
    state = [dict(model.named_parameters()), dict(model.named_buffers()), list(batch)]
    flat, tree = pytree.tree_flatten(state)
    given = [tensor.detach() for tensor in flat]

    def step(*tensors: Tensor) -> list[Tensor]:
        weights, buffers, inputs = pytree.tree_unflatten(list(tensors), tree)
        with torch.enable_grad():
            held = {name: w.detach().requires_grad_() for name, w in weights.items()}
            kept = {name: b.clone() for name, b in buffers.items()}
            called = _Called(model, {**held, **kept})
            value = loss(called, *inputs)
            found = torch.autograd.grad(value, list(held.values()))
        return [value.detach(), *found, *kept.values()]

    made, given = functional(step, given)
    return *translated(made), given


class _Called:
    """The model with other weights."""

    def __init__(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        self._model, self._state = model, state

    def __call__(self, *given: Tensor) -> Any:
        return functional_call(self._model, self._state, given)


def exact(model: nn.Module, loss: Loss, batch: Sequence[Tensor]) -> list[Tensor]:
    """`gradients` in fp64."""
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in batch]
    return gradients(deepcopy(model).double(), loss, wide)
