"""Direct: a program of torch.export that one spelling for each operator brings to functional ATen.

    conv2d(x, w, b, 2, 1)              ->   convolution(x, w, b, [2, 2], [1, 1], [1, 1], False, ..)
    batch_norm(x, .., False, ..)       ->   _native_batch_norm_legit_no_training(x, ..)
    flatten(x, 1)                      ->   view(x, [..])
    relu_(x)                           ->   relu(x), which is read for x from there on
    matmul(x, w)                       ->   view(x, [..]), mm(.., w), _unsafe_view(.., [..])

is what `run_decompositions` makes of such programs, name for name; but it traces the model once
more for that, which takes twice as long as exporting it. Composites without a spelling are taken
apart one by one (composites.py). A program with anything else in it is left to the trace, and so is
one that writes to what others may see: an input, a weight, or what somebody has
taken a view of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import map_aggregate

from anabranch.frontend.composites import Earlier, Parts, parts
from anabranch.frontend.fast_attention import FAST_ATTENTION
from anabranch.frontend.operators import NORM_OF_BATCH, NOT_DECOMPOSED, WRITING_NORM, has_random

aten = torch.ops.aten
Spelled = tuple[Any, tuple[Any, ...]]
"""An operator and its arguments."""


def direct(program: ExportedProgram) -> fx.Graph | None:
    """The graph of the program in functional ATen; None if it has to be traced for that."""
    if _reordered(program):
        return None
    spelled: dict[fx.Node, Spelled | Parts] = {}
    owners: dict[fx.Node, fx.Node] = {}
    differentiable = _differentiable(program.graph)
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            functional = _functional(node.target)
            spelling: Spelled | Parts | None
            spelling = _spelling(node, node.target if functional is None else functional)
            if spelling is None:
                spelling = parts(node, differentiable)
            if spelling is None:
                return None
            if functional is not None:
                assert isinstance(spelling, tuple)
                owner = _written_to(node, spelling, owners)
                if owner is None:
                    return None
                owners[node] = owner
            spelled[node] = spelling
    return _written(program.graph, spelled, owners)


def _reordered(program: ExportedProgram) -> bool:
    """Whether a trace would have what the program holds in another order. It goes through modules,
    each with its constants behind its buffers; the program has all constants behind all buffers."""
    placeholders = (node for node in program.graph.nodes if node.op == "placeholder")
    specs = program.graph_signature.input_specs
    held = [spec for spec, node in zip(specs, placeholders, strict=True) if node.users]
    constants = [str(spec.target) for spec in held if spec.kind is InputKind.CONSTANT_TENSOR]
    buffers = [str(spec.target) for spec in held if spec.kind is InputKind.BUFFER]
    inside = [name for name in (*constants, *buffers) if "." in name]
    return bool(constants and inside) and len(constants) + len(buffers) > 1


def _differentiable(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that may have a gradient: of what is computed from a weight it is not known."""
    differentiable = set[fx.Node]()
    weights = set[fx.Node]()
    for node in graph.nodes:
        if node.op == "placeholder" and getattr(node.meta.get("val"), "requires_grad", False):
            weights.add(node)
        elif node.target is aten.detach.default:
            continue
        elif any(
            operand in differentiable or operand in weights for operand in node.all_input_nodes
        ):
            differentiable.add(node)
    return differentiable


def _spelling(node: fx.Node, target: Any) -> Spelled | None:
    """What the node calls, were it this operator, in functional ATen; None if nobody has said."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    if target is CHECK:
        return target, node.args
    if target is DETACHED:
        (source,) = node.args
        lifted = isinstance(source, fx.Node) and source.target is LIFTED
        return (SAME, node.args) if lifted and not node.kwargs else None
    if target._schema.is_mutable or not target._schema.returns:
        return None
    spell = SPELLINGS.get(str(target))
    if spell is not None:
        return None if node.kwargs else spell(node)
    return None if taken_apart(target) else (target, node.args)


def taken_apart(target: Any) -> bool:
    """Whether a trace would: what is in `decompositions` is, which takes a tenth of a second to be
    made, and is not asked for."""
    own = target in (NORM_OF_BATCH, WRITING_NORM) or target in FAST_ATTENTION
    return own or (_composite(target) and not _whole(target))


def _composite(target: Any) -> bool:
    return bool(target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))


def _whole(target: Any) -> bool:
    return target._schema.name.partition("::")[2] in NOT_DECOMPOSED


def _functional(target: Any) -> Any:
    """The pointwise operator that gives what this one writes to its first argument; None if it is
    no such."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name, schema = target._schema.name.partition("::")[2], target._schema
    written = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    if written != [0] or len(schema.returns) != 1 or not name.endswith("_"):
        return None
    op = getattr(getattr(aten, name.removesuffix("_"), None), target._overloadname, None)
    if op is None or _parameters(op) != _parameters(target):  # pow_.Scalar is no pow.Scalar
        return None
    return op if op in UNTAGGED or torch.Tag.pointwise in getattr(op, "tags", ()) else None


def _parameters(target: Any) -> list[tuple[str, bool]]:
    return [(str(a.type), a.kwarg_only) for a in target._schema.arguments]


def _written_to(
    node: fx.Node, spelling: Spelled, owners: Mapping[fx.Node, fx.Node]
) -> fx.Node | None:
    """Who has made what the node writes to; None where somebody else may see that: where it came
    in, is a view, or is read as one; or where what `spelling` writes lies otherwise, or has
    another dtype. `owners`: of what was written over before."""
    if not node.args:  # it is named
        return None
    first = node.args[0]
    assert isinstance(first, fx.Node)
    owner = owners.get(first, first)
    if spelling[0] is SAME:
        return owner
    names = [owner]
    for alias in names:  # all that give back what they are given, of which some come later
        names += (u for u in alias.users if u.args[:1] == (alias,) and _functional(u.target))
    readers = (user for alias in names for user in alias.users)
    others = (user for user in readers if _functional(user.target) is None)
    if not all(map(_fresh, (owner, *others))):
        return None
    was = first.meta["val"]
    try:
        now = _value(*spelling, node.kwargs)
    except (RuntimeError, TypeError):
        return None
    alike = (was.dtype, was.shape, was.stride()) == (now.dtype, now.shape, now.stride())
    return owner if alike else None


def _fresh(node: fx.Node) -> bool:
    """Whether what the node gives lies in memory of its own."""
    target = node.target
    if node.op == "output":
        return True
    if not isinstance(target, torch._ops.OpOverload) or len(target._schema.returns) != 1:
        return False
    if target._schema.returns[0].alias_info or target._schema.name.partition("::")[2] in SILENT:
        return False
    return str(target) in FRESH or _whole(target) or not _composite(target)


def _written(
    graph: fx.Graph, spelled: Mapping[fx.Node, Spelled | Parts], owners: Mapping[fx.Node, fx.Node]
) -> fx.Graph:
    """As a trace would write it: calls are named and numbered by their operators."""
    written = fx.Graph()
    put: dict[fx.Node, fx.Node] = {}

    def read(node: fx.Node) -> fx.Node:
        return put[owners.get(node, node)]

    for node in graph.nodes:
        if node not in spelled:
            put[node] = written.node_copy(node, read)
            if node.op == "placeholder":
                put[node].name = node.name  # it may be called as a built-in function is
            continue
        spelling = spelled[node]
        if isinstance(spelling, Parts):
            put[node] = _put(written, node, spelling, read)
            continue
        target, args = spelling
        if target is SAME:
            if node not in owners:
                put[node] = read(node.args[0])
            continue
        kwargs = node.kwargs if target is node.target or node in owners else {}
        new = written.create_node(
            "call_function",
            target,
            fx.map_arg(args, read),
            fx.map_arg(kwargs, read),
            name=target.overloadpacket.__name__,
        )
        new.meta = dict(node.meta)
        if target is NORM and node.target is not NORM:  # one of three results
            new.meta["val"] = _value(target, args, {})
            first = written.call_function(operator.getitem, (new, 0))
            first.meta = dict(node.meta)
            new = first
        put[owners.get(node, node)] = new
    ends = ("placeholder", "output")
    written.eliminate_dead_code(lambda n: n.op in ends or n.target is CHECK or has_random(n))
    return written


def _put(
    written: fx.Graph, node: fx.Node, parts: Parts, read: Callable[[fx.Node], fx.Node]
) -> fx.Node:
    """The calls that stand for the node; returns the one whose result it is."""
    nodes: list[fx.Node] = []

    def operand(value: Any) -> Any:
        if isinstance(value, Earlier):
            return nodes[value.call]
        return read(value) if isinstance(value, fx.Node) else value

    for call in parts.calls:
        args: Any = map_aggregate(call.args, operand)
        kwargs: Any = map_aggregate(dict(call.kwargs), operand)
        name = call.target.overloadpacket.__name__
        new = written.create_node("call_function", call.target, args, kwargs, name=name)
        new.meta = {**node.meta, "val": call.value}
        nodes.append(new)
    last: fx.Node = operand(parts.result)
    return last


def _value(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the call gives, without numbers."""
    fakes = fx.map_arg(args, lambda node: node.meta["val"])
    named = fx.map_arg(dict(kwargs), lambda node: node.meta["val"])
    mode = fakes[0].fake_mode
    with mode:
        return target(*fakes, **named)


def _convolution(spatial: int) -> Callable[[fx.Node], Spelled | None]:
    def spell(node: fx.Node) -> Spelled | None:
        x, w, *rest = list[Any](node.args)
        if len(_shape(x)) != spatial + 2 or node.meta["val"].is_complex():
            return None  # unbatched, or three convolutions of real and imaginary parts
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
    x, output = node.args[0], node.meta["val"]
    assert isinstance(x, fx.Node)
    if not x.meta["val"].is_contiguous() or len(_shape(x)) == len(output.shape):
        return None
    return aten.view.default, (x, list(output.shape))


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


def _clone(node: fx.Node) -> Spelled | None:
    return aten.clone.default, node.args


def _shape(value: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = value.meta["val"].shape
    return shape


NORM = aten._native_batch_norm_legit_no_training.default
SAME = "what it is given"
CHECK = aten._assert_tensor_metadata.default
LIFTED, DETACHED = aten.lift_fresh_copy.default, aten.detach_.default
"""How a tensor that the code makes of numbers comes in."""
UNTAGGED = (aten.hardswish.default,)
"""Pointwise, though ATen does not say so."""
SILENT = frozenset(
    ("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "lift", "dequantize", "set")
)
"""Operators that give views, or what they are given, though their schema does not say so."""
FRESH = frozenset(
    f"aten.{name}"
    for name in (
        *("conv1d.default", "conv2d.default", "conv3d.default", "batch_norm.default"),
        *("square.default", "softmax.int", "relu6.default"),
    )
)
"""Composites that never give back what they are given."""
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
    "aten.lift_fresh_copy.default": _clone,
}
"""By composite operator, what it is where that is one other call; None where it is not."""
