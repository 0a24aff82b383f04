"""Operators whose kernels trust their arguments: what torch's meta kernels do not check, and the
kernels take for granted.

    aten._native_batch_norm_legit_no_training(%x: [2,16,8,8], %weight: [3], ..)   reads past %weight
    aten.upsample_nearest2d.vec(%x, None, [1e-300, 1.0])                          reads before %x
    aten._fft_r2c(%x: [0,8], [0], 0, True)                                        ends the process

Each rule says what a call that torch's own front ends would make fulfils.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, Ref, refs
from anabranch.ir.refused import Refused
from anabranch.ir.state import MASKS, broadcast
from anabranch.ir.types import TensorType

Args = Mapping[str, Arg]
Types = Mapping[str, TensorType]
SCALE_TOLERANCE = 1e-6
"""Of a scale, relative: sizes are rounded down from it."""


def why_not(node: Node, table: Types) -> Refused | None:
    """Why the call is not one that its kernel can be trusted with, as a sentence; None if it is."""
    args = ops.arguments(node)
    if "reduction" in args and args["reduction"] not in REDUCTIONS:
        return Refused(f"there is no reduction {args['reduction']}")
    rule = RULES.get(ops.packet_name(node.op))
    fits = rule is None or rule(node, args, table)
    return Refused.unless(fits, "its operands do not fit together")


REDUCTIONS = (0, 1, 2)
AVERAGED = (
    *("self", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    "divisor_override",
)
"""The arguments of an average of windows, in order."""


def _shape(arg: Arg, table: Types) -> tuple[int, ...]:
    return table[arg.name].shape if isinstance(arg, Ref) else ()


def _numbers(arg: Arg) -> tuple[int, ...]:
    items = arg if isinstance(arg, tuple) else (arg,)
    return tuple(item for item in items if isinstance(item, int))


def _batch_norm(node: Node, args: Args, table: Types) -> bool:
    """One number of everything for each channel."""
    shape = _shape(args["input"], table)
    each = (arg for arg in args.values() if isinstance(arg, Ref) and arg != args["input"])
    return len(shape) > 1 and all(_shape(arg, table) == shape[1:2] for arg in each)


def _group_norm(node: Node, args: Args, table: Types) -> bool:
    shape = _shape(args["input"], table)
    n, c, inner, groups = (_numbers(args[key])[0] for key in ("N", "C", "HxW", "group"))
    each = (args["weight"], args["bias"])
    fits = shape[:2] == (n, c) and inner == math.prod(shape[2:]) and groups > 0 and c % groups == 0
    return fits and all(arg is None or _shape(arg, table) == (c,) for arg in each)


def _weight_norm(node: Node, args: Args, table: Types) -> bool:
    """One length for each slice along the first or the last dimension."""
    shape, (dim,) = _shape(args["v"], table), _numbers(args["dim"])
    if not shape or dim not in (0, len(shape) - 1):
        return False
    return _shape(args["g"], table) == tuple(n if i == dim else 1 for i, n in enumerate(shape))


def _noise(node: Node, args: Args, table: Types) -> bool:
    return _shape(args["self"], table) == _shape(args["noise"], table)


def _fft(node: Node, args: Args, table: Types) -> bool:
    """Different dimensions, of something; as many numbers as are asked for."""
    shape, dims = _shape(args["self"], table), _numbers(args["dim"])
    legal = dims and all(-len(shape) <= dim < len(shape) for dim in dims)
    if not legal or len({dim % len(shape) for dim in dims}) < len(dims) or 0 in shape:
        return False
    if "last_dim_size" not in args:
        return True
    (size,) = _numbers(args["last_dim_size"])
    return size > 0 and size // 2 + 1 == shape[dims[-1]]


def _upsampled(node: Node, args: Args, table: Types) -> bool:
    """Scales that lead from no place of the result to one beyond the operand."""
    shape, result_shape = _shape(next(iter(args.values())), table)[2:], node.type.shape[2:]
    told = args.get("scale_factors")
    scales = (
        told
        if isinstance(told, tuple)
        else tuple(args[key] for key in args if key.startswith("scales"))
    )
    if (
        0 in (*shape, *result_shape)
        or len(result_shape) != len(shape)
        or len(scales) not in (0, len(shape))
    ):
        return False
    return all(map(_leads, scales, shape, result_shape))


def _leads(scale: Arg, size: int, wide: int) -> bool:
    """Whether a scale, where there is one, makes so many places of so many."""
    if scale is None:
        return True
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        return False
    exact = size * scale * (1 + SCALE_TOLERANCE)
    return scale > 0 and wide <= exact < wide + 1


def _sampled(node: Node, args: Args, table: Types) -> bool:
    modes = (args["interpolation_mode"], args["padding_mode"])
    return all(mode in (0, 1, 2) for mode in modes)


def _averaged(node: Node, args: Args, table: Types) -> bool:
    """A gradient of the shape that the averages of such windows have."""
    gradient = args["grad_output"]
    if not isinstance(gradient, Ref):
        return False
    read = tuple(args[name] for name in AVERAGED)
    inferred = _inferred("aten.avg_pool2d.default", read, table)
    if inferred is None:
        return False
    declared = table[gradient.name]
    return (inferred.shape, inferred.dtype) == (declared.shape, declared.dtype)


def _slice_written(node: Node, args: Args, table: Types) -> bool:
    """As many elements as the slice or the row has that they are written over."""
    row = "index" in args
    names = ("self", "dim", "index") if row else ("self", "dim", "start", "end", "step")
    op = "aten.select.int" if row else "aten.slice.Tensor"
    inferred = _inferred(op, tuple(args[name] for name in names), table)
    return inferred is not None and inferred.shape == _shape(args["src"], table)


def _rows_written(node: Node, args: Args, table: Types) -> bool:
    """Rows of the dtype of what they are written to, at places that are whole numbers."""
    source, index = args["source"], args["index"]
    if not (isinstance(source, Ref) and isinstance(index, Ref)):
        return False
    same = table[source.name].dtype == node.type.dtype
    return same and table[index.name].dtype == torch.int64


def _places_written(node: Node, args: Args, table: Types) -> bool:
    """Values that broadcast to what is at the places. Of truth values only a call tells how many
    there are: no kernel of ours takes them, and torch's counts them."""
    values, indices = args["values"], args["indices"]
    if not (isinstance(values, Ref) and isinstance(indices, tuple)):
        return False
    if table[values.name].dtype != node.type.dtype:
        return False
    if any(table[ref.name].dtype in MASKS for ref in refs(indices)):
        return True
    inferred = _inferred("aten.index.Tensor", (args["self"], indices), table)
    if inferred is None:
        return False
    try:
        return broadcast([inferred.shape, _shape(values, table)]) == inferred.shape
    except RuntimeError:
        return False


def _inferred(op: str, args: tuple[Arg, ...], table: Types) -> TensorType | None:
    """The type of the call's result; None where there is no such call."""
    try:
        (inferred,) = ops.infer(op, args, (), table)
    except Exception:  # meta kernels raise whatever they like
        return None
    return inferred


def _unpacked(node: Node, args: Args, table: Types) -> bool:
    """Sequences of one length: those of several are described by a tensor of numbers."""
    return node.op.endswith(".input")


def _rules(rule: Callable[[Node, Args, Types], bool], names: str) -> dict[str, Callable[..., bool]]:
    return {f"aten.{name}": rule for name in names.split()}


RULES: dict[str, Callable[[Node, Args, Types], bool]] = {
    **_rules(
        _batch_norm,
        "batch_norm instance_norm native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training",
    ),
    **_rules(_group_norm, "native_group_norm"),
    **_rules(_weight_norm, "_weight_norm_interface"),
    **_rules(_noise, "rrelu_with_noise_functional"),
    **_rules(_fft, "_fft_c2c _fft_c2r _fft_r2c"),
    **_rules(
        _upsampled,
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
        "upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bicubic2d_aa "
        "_upsample_bilinear2d_aa",
    ),
    **_rules(_sampled, "grid_sampler_2d grid_sampler_3d"),
    **_rules(_averaged, "avg_pool2d_backward"),
    **_rules(_slice_written, "slice_scatter select_scatter"),
    **_rules(_rows_written, "index_copy"),
    **_rules(_places_written, "index_put _unsafe_index_put"),
    **_rules(_unpacked, "lstm gru rnn_tanh rnn_relu"),
}
