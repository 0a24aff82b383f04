"""The op table: what rewriting, fusing and costing must know about the operators we know.

An operator that the table lacks is *opaque*: it still runs, as a library call, and its types still
come from meta tensors; it is only never rewritten, fused or counted as free.

>>> OPS["aten.relu"].kind
'pointwise'
>>> info("aten.relu.default").kind, info("mylib.secret.default").kind
('pointwise', 'opaque')
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.types import TensorType, meta, type_of

Kind = Literal["pointwise", "reduce", "contract", "move", "view", "factory", "opaque"]
"""pointwise: one element in, one out (broadcasting allowed) · reduce: folds a window or an axis ·
contract: multiply-accumulate over an axis · move: copies elements · view: renames them, no launch ·
factory: reads no tensor · opaque: unknown."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """kind, and arithmetic operations per call given (input types, output types, arguments)."""

    kind: Kind
    flops: Callable[[Node, Mapping[str, TensorType]], int] | None = None
    random: bool = False


def _conv_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    weight = types[_ref(node.args[1])]
    transposed = bool(node.args[6]) if node.op == "aten.convolution.default" else False
    if transposed:
        return 2 * types[_ref(node.args[0])].numel * math.prod(weight.shape[1:])
    return 2 * node.type.numel * math.prod(weight.shape[1:])


def _matmul_flops(a: int) -> Callable[[Node, Mapping[str, TensorType]], int]:
    def flops(node: Node, types: Mapping[str, TensorType]) -> int:
        return 2 * node.type.numel * types[_ref(node.args[a])].shape[-1]

    return flops


def _attention_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    query, key = types[_ref(node.args[0])], types[_ref(node.args[1])]
    return 4 * query.numel * key.shape[-2]


def _ref(arg: Arg) -> str:
    assert isinstance(arg, Ref)
    return arg.name


def _kind(kind: Kind, names: str) -> dict[str, OpInfo]:
    return {f"aten.{name}": OpInfo(kind) for name in names.split()}


OPS: dict[str, OpInfo] = {
    **_kind(
        "pointwise",
        "abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or ceil clamp clamp_max clamp_min "
        "cos div elu eq erf exp fill floor fmod ge gelu gt hardsigmoid hardswish hardtanh isnan "
        "le leaky_relu log log1p log2 logical_and logical_not logical_or lt masked_fill maximum "
        "minimum mish mul ne neg pow reciprocal relu relu6 remainder round rsqrt rsub sgn sigmoid "
        "sign silu sin softplus sqrt sub tan tanh threshold trunc where _to_copy",
    ),
    **_kind(
        "reduce",
        "_adaptive_avg_pool2d _log_softmax _softmax adaptive_avg_pool2d amax amin any argmax "
        "argmin avg_pool2d cumsum max max_pool2d_with_indices max_pool2d mean min "
        "native_group_norm native_layer_norm prod sum var var_mean norm linalg_vector_norm "
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training",
    ),
    **_kind(
        "move",
        "cat clone constant_pad_nd contiguous copy embedding flip gather index index_select "
        "pixel_shuffle reshape_copy roll scatter select_scatter slice_scatter stack repeat "
        "upsample_nearest2d",
    ),
    **_kind(
        "view",
        "alias as_strided chunk detach expand lift_fresh movedim narrow permute select slice split "
        "split_with_sizes squeeze t transpose unbind unfold unsqueeze view view_as_complex "
        "view_as_real diagonal",
    ),
    **_kind("factory", "arange empty eye full ones scalar_tensor zeros"),
    "aten.reshape": OpInfo("move"),
    "aten._unsafe_view": OpInfo("move"),
    "aten.convolution": OpInfo("contract", _conv_flops),
    "aten.cudnn_convolution": OpInfo("contract", _conv_flops),
    "aten.cudnn_convolution_relu": OpInfo("contract", _conv_flops),
    "aten.cudnn_convolution_add_relu": OpInfo("contract", _conv_flops),
    "aten.mm": OpInfo("contract", _matmul_flops(0)),
    "aten.bmm": OpInfo("contract", _matmul_flops(0)),
    "aten.addmm": OpInfo("contract", _matmul_flops(1)),
    "aten._addmm_activation": OpInfo("contract", _matmul_flops(1)),
    "aten.baddbmm": OpInfo("contract", _matmul_flops(1)),
    "aten.linear": OpInfo("contract", _matmul_flops(0)),
    "aten.matmul": OpInfo("contract", _matmul_flops(0)),
    "aten.scaled_dot_product_attention": OpInfo("contract", _attention_flops),
    **{
        f"aten._scaled_dot_product_{kind}_attention": OpInfo("contract", _attention_flops)
        for kind in ("flash", "efficient", "cudnn", "fused_attention_overrideable", "flash_for_cpu")
    },
    **{
        f"aten.{name}": OpInfo("factory", random=True)
        for name in ("rand", "randn", "randint", "randperm")
    },
    **{
        f"aten.{name}": OpInfo("opaque", random=True)
        for name in ("bernoulli", "native_dropout", "rand_like", "randn_like", "multinomial")
    },
}

OPAQUE = OpInfo("opaque")

VIEW_IF_POSSIBLE = frozenset({"aten.reshape.default", "aten._unsafe_view.default"})
"""Operators that rename elements where strides allow it, and copy them where not."""


def base_name(op: str) -> str:
    """ "aten.add.Tensor" -> "aten.add"."""
    return op.rpartition(".")[0]


def info(op: str) -> OpInfo:
    return OPS.get(base_name(op), OPAQUE)


@functools.cache
def resolve(op: str) -> torch._ops.OpOverload:
    """The operator overload of this name; KeyError if torch has none."""
    namespace, name, overload = op.split(".")
    try:
        found: torch._ops.OpOverload = getattr(
            getattr(getattr(torch.ops, namespace), name), overload
        )
    except AttributeError as missing:
        raise KeyError(f"torch has no operator {op}") from missing
    return found


@functools.cache
def takes_device(op: str) -> bool:
    """Whether the operator makes tensors and must be told where."""
    return any(argument.name == "device" for argument in resolve(op)._schema.arguments)


def map_refs(arg: Arg, get: Callable[[str], Any]) -> Any:
    """The argument as torch wants it: references replaced by what `get` gives, tuples as lists."""
    if isinstance(arg, Ref):
        return get(arg.name)
    if isinstance(arg, tuple):
        return [map_refs(item, get) for item in arg]
    return arg


def call(node: Node, get: Callable[[str], Any], device: torch.device | None) -> tuple[Any, ...]:
    """Run one node on what `get` gives for each value; its results as a tuple."""
    args = [map_refs(arg, get) for arg in node.args]
    kwargs = {key: map_refs(arg, get) for key, arg in node.kwargs}
    if device is not None and takes_device(node.op):
        kwargs["device"] = device
    result = resolve(node.op)(*args, **kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def infer(
    op: str,
    args: tuple[Arg, ...],
    kwargs: Iterable[tuple[str, Arg]],
    types: Mapping[str, TensorType],
) -> tuple[TensorType, ...]:
    """The types of a node's results, from meta tensors of the types of what it reads."""
    probe = Node("probe", op, args, tuple(kwargs), ())
    results = call(probe, lambda name: meta(types[name]), torch.device("meta"))
    return tuple(type_of(result) for result in results)


def make_node(
    name: str,
    op: str,
    args: tuple[Arg, ...],
    types: Mapping[str, TensorType],
    kwargs: tuple[tuple[str, Arg], ...] = (),
    origin: str = "",
) -> Node:
    """A node whose result types are inferred."""
    return Node(name, op, args, kwargs, infer(op, args, kwargs, types), origin)


def is_view(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether the node only renames elements: its results share the memory of its first input."""
    if info(node.op).kind == "view":
        return True
    if node.op in VIEW_IF_POSSIBLE:
        source = meta(types[_ref(node.args[0])])
        try:
            return type_of(source.view(node.type.shape)).strides == node.type.strides
        except RuntimeError:
            return False
    return False


def flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Arithmetic operations of one call; a multiply-add counts as two."""
    entry = info(node.op)
    if entry.flops is not None:
        return entry.flops(node, types)
    if entry.kind in ("pointwise", "reduce"):
        read = sum(types[name].numel for name in set(node.uses))
        return max(node.type.numel, read if entry.kind == "reduce" else 0)
    return 0


def traffic(node: Node, types: Mapping[str, TensorType]) -> int:
    """Bytes the node must at least move: each value it reads once, each result once."""
    read = (types[name] for name in dict.fromkeys(node.uses))
    moved = (*read, *node.types)
    return sum(type.numel * type.dtype.itemsize for type in moved)


def arguments(node: Node) -> dict[str, Arg]:
    """The node's arguments by the names of the operator's schema, defaults filled in."""
    schema = resolve(node.op)._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args, strict=False))
    given.update(node.kwargs)
    for argument in schema:
        if argument.name not in given and argument.has_default_value():
            default = argument.default_value
            given[argument.name] = tuple(default) if isinstance(default, list) else default
    return given
