"""Result types of common operators by rules of our own, in microseconds.

torch's meta kernels say the type of any operator (`ops.infer`), but the first that is called in a
process imports a good part of torch.compile, one to four seconds. A caller that only wants to know
whether a declared type is right asks here first, and torch where no rule answers:

    aten.relu(f16[2,3])                        f16[2,3]
    aten.add(f32[2,1], f32[3])                 f32[2,3]
    aten.convolution(f32[1,3,8,8], f32[4,3,3,3], .., padding=[1, 1], ..)     f32[1,4,8,8]
    aten.add(f32[2], i64[2])                   None: promotion is torch's business

Strides are not part of an answer. A rule answers only where operands are of one floating type, and
all arguments are such as torch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.types import TensorType

Args = dict[str, Arg]
Types = Mapping[str, TensorType]
Shape = tuple[int, ...]
ShapeRule = Callable[[Args, Types], Shape | None]


def known_type(node: Node, table: Types) -> TensorType | None:
    """The type of the node's result, row-major; None where no rule knows it, or the node's
    arguments are not such as the rule is for."""
    rule = RULES.get(ops.packet_name(node.op))
    if rule is None or len(node.types) != 1:
        return None
    try:
        args = ops.arguments(node)
        dtype = _dtype(node, args, table)
        shape = rule(args, table) if dtype is not None else None
    except (_UnsureError, KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None
    return TensorType(shape, dtype) if shape is not None and dtype is not None else None


class _UnsureError(Exception):
    """What a rule is not for."""


def _dtype(node: Node, args: Args, table: Types) -> torch.dtype | None:
    """The floating type of all operands, or bool for what compares them; None where they differ."""
    packet, kinds = ops.packet_name(node.op), {table[name].dtype for name in node.uses}
    if packet in CHOOSING:
        kinds.discard(torch.bool)
    if packet in LOOKUPS:
        kinds = {table[_name(args[LOOKUPS[packet]])].dtype}
    words = (arg for arg in args.values() if isinstance(arg, str | torch.dtype))
    if len(kinds) != 1 or not SPELLED.issuperset(words):
        return None
    (dtype,) = kinds
    if packet in COMPARING:
        return torch.bool
    return dtype if dtype.is_floating_point and dtype.itemsize > 1 else None


def _name(arg: Arg) -> str:
    if not isinstance(arg, Ref):
        raise _UnsureError
    return arg.name


def _of(arg: Arg, table: Types) -> Shape:
    return table[_name(arg)].shape


def _ints(arg: Arg, count: int = 0) -> tuple[int, ...]:
    """The numbers of an argument; with `count`, of a list of so many, or of one for all."""
    items = arg if isinstance(arg, tuple) else (arg,)
    numbers = tuple(item for item in items if type(item) is int)
    if count and not isinstance(arg, tuple):
        raise _UnsureError
    if len(numbers) != len(items) or (count and len(numbers) not in (1, count)):
        raise _UnsureError
    return numbers * count if count and len(numbers) == 1 else numbers


def _same(args: Args, table: Types) -> Shape:
    return _of(next(iter(args.values())), table)


def _broadcast(args: Args, table: Types) -> Shape:
    shapes = [table[arg.name].shape for arg in args.values() if isinstance(arg, Ref)]
    return _joint(*shapes)


def _chosen(args: Args, table: Types) -> Shape:
    choice = args["condition"] if "condition" in args else args["mask"]
    return _broadcast(args, table) if table[_name(choice)].dtype == torch.bool else _unsure()


def _joint(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    joint: list[int] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise _UnsureError
        joint += wide or {1}
    return tuple(joint)


def _convolution(args: Args, table: Types) -> Shape:
    x, weight = _of(args["input"], table), _of(args["weight"], table)
    rank = len(x) - 2
    if args.get("transposed", False) or rank < 1 or len(weight) != len(x):
        raise _UnsureError
    stride, padding, dilation = (
        _ints(args[key], rank) for key in ("stride", "padding", "dilation")
    )
    (groups,) = _ints(args["groups"])
    bias = args["bias"]
    fits = groups > 0 and x[1] == weight[1] * groups and weight[0] % groups == 0
    if not fits or (bias is not None and _of(bias, table) != weight[:1]):
        raise _UnsureError
    window = zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    return (x[0], weight[0], *(_steps(*axis, ceil=False) for axis in window))


def _steps(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """The places of a window along an axis."""
    free = size + 2 * pad - dilation * (kernel - 1) - 1
    if min(size, kernel, stride, dilation) < 1 or pad < 0 or free < 0:
        raise _UnsureError
    count = (free + (stride - 1 if ceil else 0)) // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pad else count


def _pool(args: Args, table: Types) -> Shape:
    x = _of(args["self"], table)
    if len(x) not in (3, 4):
        raise _UnsureError
    kernel = _ints(args["kernel_size"], 2)
    stride = _ints(args["stride"], 2) if args["stride"] else kernel
    padding = _ints(args["padding"], 2)
    dilation = _ints(args.get("dilation", (1,)), 2)
    if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        raise _UnsureError
    if args.get("divisor_override") is not None or 0 in x:
        raise _UnsureError
    window = zip(x[-2:], kernel, stride, padding, dilation, strict=True)
    ceil = args["ceil_mode"] is True
    return (*x[:-2], *(_steps(*axis, ceil=ceil) for axis in window))


def _adaptive(args: Args, table: Types) -> Shape:
    x, size = _of(args["self"], table), _ints(args["output_size"], 2)
    if len(x) not in (3, 4) or 0 in x or min(size) < 1:
        raise _UnsureError
    return (*x[:-2], *size)


def _linear(args: Args, table: Types) -> Shape:
    x, weight, bias = _of(args["input"], table), _of(args["weight"], table), args["bias"]
    if len(x) < 2 or len(weight) != 2 or x[-1] != weight[1]:
        raise _UnsureError
    if bias is not None and _of(bias, table) != weight[:1]:
        raise _UnsureError
    return (*x[:-1], weight[0])


def _product(left: Shape, right: Shape, rank: int) -> Shape:
    fits = len(left) == len(right) == rank and left[:-2] == right[:-2] and left[-1] == right[-2]
    if not fits:
        raise _UnsureError
    return (*left[:-1], right[-1])


def _mm(args: Args, table: Types) -> Shape:
    return _product(_of(args["self"], table), _of(args["mat2"], table), 2)


def _bmm(args: Args, table: Types) -> Shape:
    return _product(_of(args["self"], table), _of(args["mat2"], table), 3)


def _addmm(args: Args, table: Types) -> Shape:
    product = _product(_of(args["mat1"], table), _of(args["mat2"], table), 2)
    return product if _joint(_of(args["self"], table), product) == product else _unsure()


def _baddbmm(args: Args, table: Types) -> Shape:
    product = _product(_of(args["batch1"], table), _of(args["batch2"], table), 3)
    return product if _joint(_of(args["self"], table), product) == product else _unsure()


def _unsure() -> Shape:
    raise _UnsureError


def _reduced(args: Args, table: Types) -> Shape:
    shape, dims = _of(args["self"], table), args["dim"]
    axes = {_axis(dim, len(shape)) for dim in _ints(dims)}
    if not axes or 0 in shape or args.get("dtype") is not None:
        raise _UnsureError
    kept = args["keepdim"] is True
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if kept or i not in axes)


def _axis(dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise _UnsureError
    return dim % rank


def _cat(args: Args, table: Types) -> Shape:
    parts = args["tensors"]
    shapes = [_of(part, table) for part in parts] if isinstance(parts, tuple) else []
    axis = _axis(_ints(args["dim"])[0], len(shapes[0]))
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) != 1 or len({len(shape) for shape in shapes}) != 1:
        raise _UnsureError
    size = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], size, *shapes[0][axis + 1 :])


def _stack(args: Args, table: Types) -> Shape:
    parts = args["tensors"]
    shapes = {_of(part, table) for part in parts} if isinstance(parts, tuple) else set()
    (shape,) = shapes
    axis = _axis(_ints(args["dim"])[0], len(shape) + 1)
    return (*shape[:axis], len(parts) if isinstance(parts, tuple) else 0, *shape[axis:])


def _softmax(args: Args, table: Types) -> Shape:
    shape = _of(args["self"], table)
    _axis(_ints(args["dim"])[0], len(shape))
    return shape


def _layer_norm(args: Args, table: Types) -> Shape:
    shape, normalised = _of(args["input"], table), _ints(args["normalized_shape"])
    parts = [args[key] for key in ("weight", "bias") if args[key] is not None]
    fits = shape[len(shape) - len(normalised) :] == normalised and len(normalised) <= len(shape)
    if not fits or any(_of(part, table) != normalised for part in parts):
        raise _UnsureError
    return shape


def _attention(args: Args, table: Types) -> Shape:
    query, key, value = (_of(args[name], table) for name in ("query", "key", "value"))
    same = query[:-2] == key[:-2] == value[:-2] and len(query) == len(key) == len(value) == 4
    if not same or query[-1] != key[-1] or key[-2] != value[-2] or 0 in (*query, *key, *value):
        raise _UnsureError
    scores = (*query[:-2], query[-2], key[-2])
    mask = args["attn_mask"]
    if args.get("enable_gqa", False) or args["dropout_p"]:
        raise _UnsureError
    if mask is not None and _joint(_of(mask, table), scores) != scores:
        raise _UnsureError
    return (*query[:-1], value[-1])


def _embedding(args: Args, table: Types) -> Shape:
    weight, indices = _of(args["weight"], table), table[_name(args["indices"])]
    if len(weight) != 2 or indices.dtype not in (torch.int64, torch.int32):
        raise _UnsureError
    return (*indices.shape, weight[1])


def _rules(rule: ShapeRule, names: str) -> dict[str, ShapeRule]:
    return {f"aten.{name}": rule for name in names.split()}


RULES: dict[str, ShapeRule] = {
    **_rules(
        _same,
        "abs ceil celu clone cos elu erf erfc exp exp2 expm1 floor frac gelu hardsigmoid hardswish "
        "hardtanh leaky_relu log log10 log1p log2 mish neg reciprocal relu relu6 round rsqrt selu "
        "sgn sigmoid sign silu sin softplus sqrt square tan tanh trunc",
    ),
    **_rules(
        _broadcast,
        "add addcdiv addcmul div eq fmod ge gt hypot le lerp lt maximum minimum mul ne pow rsub "
        "sub",
    ),
    **_rules(_chosen, "masked_fill where"),
    **_rules(_convolution, "convolution conv1d conv2d conv3d"),
    **_rules(_pool, "avg_pool2d max_pool2d"),
    **_rules(_adaptive, "adaptive_avg_pool2d _adaptive_avg_pool2d"),
    **_rules(_reduced, "amax amin mean sum"),
    **_rules(_softmax, "log_softmax softmax"),
    "aten.linear": _linear,
    "aten.mm": _mm,
    "aten.bmm": _bmm,
    "aten.addmm": _addmm,
    "aten.baddbmm": _baddbmm,
    "aten.cat": _cat,
    "aten.stack": _stack,
    "aten.layer_norm": _layer_norm,
    "aten.scaled_dot_product_attention": _attention,
    "aten.embedding": _embedding,
}
"""By the operator's name without its overload; each is for what its function says."""
COMPARING = frozenset(f"aten.{name}" for name in ("eq", "ge", "gt", "le", "lt", "ne"))
CHOOSING = frozenset({"aten.where", "aten.masked_fill", "aten.scaled_dot_product_attention"})
"""Operators with operands of truth values that do not decide the type."""
SPELLED = frozenset({"none", "tanh", "floor", "trunc"})
"""Ways of computing that do not decide the type."""
LOOKUPS = {"aten.embedding": "weight"}
"""Operators whose type one operand decides."""
