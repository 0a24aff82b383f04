"""Direct: a program of torch.export that one spelling for each operator brings to functional ATen.

    conv2d(x, w, b, 2, 1)              ->   convolution(x, w, b, [2, 2], [1, 1], [1, 1], False, ..)
    batch_norm(x, .., False, ..)       ->   _native_batch_norm_legit_no_training(x, ..)
    flatten(x, 1)                      ->   view(x, [..])

is what `run_decompositions` makes of such programs, name for name; but it traces the model once
more for that, and prepares some six hundred operators first: two thirds of what capturing an image
network takes. A program with anything else in it, or with operators that write, is left to it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch.export import ExportedProgram

from anabranch.frontend.operators import WHOLE, decompositions

aten = torch.ops.aten
Spelled = tuple[Any, tuple[Any, ...]]
"""An operator and its arguments."""


def direct(program: ExportedProgram) -> fx.Graph | None:
    """The graph of the program in functional ATen; None if it has to be traced for that."""
    spelled: dict[fx.Node, Spelled] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            found = _spelling(node)
            if found is None:
                return None
            spelled[node] = found
    return _written(program.graph, spelled)


def _spelling(node: fx.Node) -> Spelled | None:
    """What the node calls, in functional ATen; None if nobody has said."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    if target._schema.is_mutable or not target._schema.returns:
        return None
    spell = SPELLINGS.get(str(target))
    if spell is not None:
        return None if node.kwargs else spell(node)
    whole = target._schema.name.partition("::")[2] in WHOLE
    composite = target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    taken_apart = target in decompositions() or (composite and not whole)
    return None if taken_apart else (target, node.args)


def _written(graph: fx.Graph, spelled: dict[fx.Node, Spelled]) -> fx.Graph:
    """As a trace would write it: calls are named and numbered by their operators."""
    written = fx.Graph()
    put: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node not in spelled:
            put[node] = written.node_copy(node, put.__getitem__)
            if node.op == "placeholder":
                put[node].name = node.name  # it may be called as a built-in function is
            continue
        target, args = spelled[node]
        kwargs = node.kwargs if target is node.target else {}
        new = written.create_node(
            "call_function",
            target,
            fx.map_arg(args, put.__getitem__),
            fx.map_arg(kwargs, put.__getitem__),
            name=target.overloadpacket.__name__,
        )
        new.meta = dict(node.meta)
        if target is NORM and node.target is not NORM:  # one of three results
            new.meta["val"] = _value(target, args)
            first = written.call_function(operator.getitem, (new, 0))
            first.meta = dict(node.meta)
            new = first
        put[node] = new
    written.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return written


def _value(target: Any, args: tuple[Any, ...]) -> Any:
    """What the call gives, without numbers."""
    given = fx.map_arg(args, lambda node: node.meta["val"])
    mode = given[0].fake_mode
    with mode:
        return target(*given)


def _convolution(spatial: int) -> Callable[[fx.Node], Spelled | None]:
    def spell(node: fx.Node) -> Spelled | None:
        x, w, *rest = list[Any](node.args)
        if len(_shape(x)) != spatial + 2:
            return None
        ones, zeros = [1] * spatial, [0] * spatial
        defaults: list[Any] = [None, ones, zeros, ones, 1]
        bias, stride, padding, dilation, groups = [*rest, *defaults[len(rest) :]]
        sides = stride, padding, dilation
        return aten.convolution.default, (x, w, bias, *sides, False, zeros, groups)

    return spell


def _batch_norm(node: fx.Node) -> Spelled | None:
    x, weight, bias, mean, variance, training, momentum, eps, _ = node.args
    if training or mean is None or variance is None:
        return None
    return NORM, (x, weight, bias, mean, variance, momentum, eps)


def _view(node: fx.Node) -> Spelled | None:
    x, made = node.args[0], node.meta["val"]
    assert isinstance(x, fx.Node)
    if not x.meta["val"].is_contiguous() or len(_shape(x)) == len(made.shape):
        return None
    return aten.view.default, (x, list(made.shape))


def _reshape(node: fx.Node) -> Spelled | None:
    x, shape = node.args
    assert isinstance(x, fx.Node)
    return (aten.view.default, (x, shape)) if x.meta["val"].is_contiguous() else None


def _pad(node: fx.Node) -> Spelled | None:
    defaults: list[Any] = [None, None, "constant", None]
    x, sides, mode, value = [*list[Any](node.args), *defaults[len(node.args) :]]
    if mode != "constant":
        return None
    return aten.constant_pad_nd.default, (x, sides, 0.0 if value is None else value)


def _chunk(node: fx.Node) -> Spelled | None:
    x, count, dim = (*node.args, 0)[:3]
    assert isinstance(count, int) and isinstance(dim, int)
    size = math.ceil(_shape(x)[dim] / count)
    return (aten.split.Tensor, (x, size, dim) if dim else (x, size)) if size else None


def _square(node: fx.Node) -> Spelled | None:
    return aten.pow.Tensor_Scalar, (node.args[0], 2)


def _softmax(node: fx.Node) -> Spelled | None:
    x, dim, dtype = (*node.args, None)[:3]
    return (aten._softmax.default, (x, dim, False)) if dtype is None else None


def _relu6(node: fx.Node) -> Spelled | None:
    return aten.hardtanh.default, (node.args[0], 0, 6)


def _dropout(node: fx.Node) -> Spelled | None:
    x, _, training = node.args
    return None if training else (aten.clone.default, (x,))


def _shape(value: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = value.meta["val"].shape
    return shape


NORM = aten._native_batch_norm_legit_no_training.default
SPELLINGS: dict[str, Callable[[fx.Node], Spelled | None]] = {
    "aten.conv1d.default": _convolution(1),
    "aten.conv2d.default": _convolution(2),
    "aten.conv3d.default": _convolution(3),
    "aten.batch_norm.default": _batch_norm,
    "aten.flatten.using_ints": _view,
    "aten.unflatten.int": _view,
    "aten.reshape.default": _reshape,
    "aten.pad.default": _pad,
    "aten.chunk.default": _chunk,
    "aten.square.default": _square,
    "aten.softmax.int": _softmax,
    "aten.relu6.default": _relu6,
    "aten.dropout.default": _dropout,
}
"""By composite operator, what it is where that is one other call; None where it is not."""
