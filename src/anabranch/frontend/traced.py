"""A model that takes gradients in forward -> a module of the operators that it then calls.

    forces   x.requires_grad_(); return torch.autograd.grad(energy(x).sum(), x)[0]
    scores   return torch.func.grad(log_density)(x)

torch.export follows a model above autograd, where a gradient is a tensor from nowhere. Here the
model is traced below it, with autograd at work, on tensors without values: what autograd computes
is operators like all others. The module has the model's own parameters, buffers and parts, by their
own names, and is then exported in the model's place.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from anabranch.frontend.backward import prepared, training_decompositions
from anabranch.frontend.state import in_their_places, tensors_of

NEEDS_GRADIENTS = re.compile(
    r"does not require grad and does not have a grad_fn|Trying to use forward AD with"
)
"""What autograd says of gradients, and of gradients of such, under torch.no_grad()."""
PAST_EXPORT = re.compile(
    NEEDS_GRADIENTS.pattern
    + r"|fake tensor in the exported program constant's list|Cannot access data pointer"
    r"|view functorch tensor|appears to not have been used in the graph"
)
"""What torch.export says of a model that takes gradients in forward."""
FUNCTORCH = re.compile(r"torch\._functorch\.(apis|eager_transforms|vmap)$")
"""Where torch.func is."""


def takes_gradients(error: BaseException) -> bool:
    """Whether torch.export may have failed because the model takes gradients in forward."""
    rooms = {f.f_globals.get("__name__", "") for f, _ in traceback.walk_tb(error.__traceback__)}
    return bool(PAST_EXPORT.search(str(error))) or any(map(FUNCTORCH.match, rooms))


class OtherMemoryError(Exception):
    """A weight or an input was given other memory (`weight.data = ...`): no operator shows it."""


class Traced(nn.Module):
    """The model of which `graph` has the operators: of its tensors, in order of `names`, and those
    of a call. `returned`: the leaves of what it returns, and their structure; `detached`: which of
    the tensors among them have no history, though weights are read for them."""

    _graph: fx.GraphModule
    _names: tuple[str, ...]
    _returned: tuple[Sequence[Any], pytree.TreeSpec]
    detached: tuple[int, ...]

    def __init__(
        self,
        model: nn.Module,
        graph: fx.GraphModule,
        names: Sequence[str],
        returned: tuple[Sequence[Any], pytree.TreeSpec],
        detached: Sequence[int],
    ) -> None:
        super().__init__()
        for held in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[held] = model.__dict__[held]
        self.training = model.training
        self.__dict__["_graph"], self.__dict__["_names"] = graph, tuple(names)
        self.__dict__["_returned"], self.__dict__["detached"] = returned, tuple(detached)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns."""
        held = dict(tensors_of(self))
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        results = iter(self._graph(*(held[name] for name in self._names), *tensors))
        leaves, tree = self._returned
        whole = [next(results) if leaf is TENSOR else leaf for leaf in leaves]
        return pytree.tree_unflatten(whole, tree)


TENSOR = object()
"""In the place of a tensor among what a model returned."""


def traced(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced | None:
    """The module that torch.export can follow; None where a tensor comes from past autograd, too.
    Raises whatever the model, or torch, raises."""
    held = dict(tensors_of(model))
    places_of = in_their_places(model)
    names = {id(tensor): name for name, tensor in reversed(held.items())}
    first = [name for name, tensor in held.items() if names[id(tensor)] == name]
    place = {name: number for number, name in enumerate(first)}
    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    returned: list[Any] = []

    def call(*tensors: Tensor) -> list[Tensor]:
        mine = {name: tensors[place[names[id(tensor)]]] for name, tensor in places_of.items()}
        whole = list(leaves)
        for number, value in zip(places, tensors[len(first) :], strict=True):
            whole[number] = value
        own = pytree.tree_unflatten(whole, tree)
        memory = [value.untyped_storage()._cdata for value in tensors]
        with _reparametrize_module(model, mine), torch.enable_grad():
            results, form = pytree.tree_flatten(model(*own[0], **own[1]))
        if memory != [value.untyped_storage()._cdata for value in tensors]:
            raise OtherMemoryError
        outputs = [result for result in results if isinstance(result, Tensor)]
        told = [TENSOR if isinstance(result, Tensor) else result for result in results]
        alone = [place for place, output in enumerate(outputs) if not output.requires_grad]
        returned[:] = [told, form, alone]
        return [output.detach() for output in outputs]

    with enable_python_dispatcher(), fx_traceback.preserve_node_meta():
        flat = [held[name] for name in first] + [leaves[number] for number in places]
        graph: fx.GraphModule = make_fx(
            call,
            tracing_mode="fake",
            decomposition_table=training_decompositions(),
            _allow_non_fake_inputs=True,
        )(*flat)
    graph = prepared(graph)
    constants = (getattr(graph, str(n.target)) for n in graph.graph.nodes if n.op == "get_attr")
    if any(isinstance(value, FakeTensor) for value in constants):
        return None
    return Traced(model, graph, first, (returned[0], returned[1]), returned[2])
