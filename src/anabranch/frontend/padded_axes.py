"""Where operators put the rows of a padded axis: an operand's axis -> the result's, or that the
operator works along it.

A *padded axis* has the size N of a bucket where a call has n < N rows: the first n are the call's,
what lies behind them is *padding*. A rule here says, of one axis of one operand, which axis of the
first result has its rows; None if the operator works along it (sums, sorts, attends), which
`padded_sums` may find harmless; `MixedRowsError` if nobody knows.

    linear(x[N,k], w)         0        softmax(x[N,n], dim=0)     None
    permute(x[N,c,t], 1 2 0)  2        sum(x[b,N,c], dim=1)       None
    select(x[b,N,c], 1, 0)    None     vander(x[N])               MixedRowsError
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.axis_order import axis_order
from anabranch.ir.graph import Arg, Ref
from anabranch.ir.ops import OPS

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """Axis `axis` of a value, whose indices are `[outer, size, inner]`: the middle one counts rows.

    `fill`: the number that all padding along it has where other axes have none, None if nobody
    knows. `counts`: the value is the row's number plus this, None if it is not. `alike`: all rows
    are the same, so they are in any order. `copied`: padding is copies of the last row."""

    axis: int
    outer: int = 1
    inner: int = 1
    fill: Number | None = None
    counts: int | None = None
    alike: bool = False
    copied: bool = False


class MixedRowsError(Exception):
    """Padding reaches what a call returns, or nobody knows that it does not."""


@dataclass(frozen=True, slots=True)
class PaddedCall:
    """One call of an operator: its arguments by name, the padded axes of its operands by the value,
    all shapes, and the shape of the first result. `row_numbers`: values that are numbers of rows of
    the call itself."""

    arguments: Mapping[str, Arg]
    axes: Mapping[str, tuple[PaddedAxis, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    result: tuple[int, ...]
    row_numbers: Collection[str] = ()

    def refs(self, name: str) -> list[str]:
        """The values of an argument that is a tensor, or several."""
        value = self.arguments.get(name)
        many = value if isinstance(value, tuple) else (value,)
        return [arg.name for arg in many if isinstance(arg, Ref)]

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of an operand; () for a number and for one that is not given."""
        values = self.refs(name)
        return self.shapes[values[0]] if values else ()

    def at(self, name: str, axis: int) -> PaddedAxis | None:
        """The padded axis of an operand at this place; None if it has none there."""
        padded = (rows for value in self.refs(name) for rows in self.axes.get(value, ()))
        return next((rows for rows in padded if rows.axis == axis), None)


AxisRule = Callable[[PaddedCall, str, str, int], int | None]
"""An argument of a call, the value in it, and an axis of that value."""


def dims_of(call: PaddedCall, ndim: int, name: str = "dim") -> list[int]:
    """The axes that an argument names, counted from the front; all for None."""
    dims = call.arguments.get(name)
    if dims is None or dims == ():
        return list(range(ndim))
    many = dims if isinstance(dims, tuple) else (dims,)
    return [int(dim) % max(ndim, 1) for dim in many]  # type: ignore[arg-type]


def _only(name: str, *names: str) -> None:
    if name not in names:
        raise MixedRowsError(f"its {name} depends on the padded axis")


def pointwise(call: PaddedCall, name: str, value: str, axis: int) -> int:
    """Operands are aligned at their last axes."""
    return axis + len(call.result) - len(call.shapes[value])


def along(first: str = "self", dim: str = "dim") -> AxisRule:
    """Reduces, scans or reorders axes that an argument names."""

    def rule(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
        if call.refs("other"):  # max(a, b)
            return pointwise(call, name, value, axis)
        _only(name, first)
        ndim = len(call.shapes[value])
        dims = dims_of(call, ndim, dim)
        if axis in dims:
            return None
        return axis - sum(reduced < axis for reduced in dims) if len(call.result) < ndim else axis

    return rule


def same_axis(*names: str) -> AxisRule:
    """As `along`, of operands that all have the axis (gather, scatter)."""

    def rule(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
        _only(name, *names)
        if any(call.refs(other) and call.at(other, axis) is None for other in names):
            raise MixedRowsError("its operands are padded on different axes")
        return None if axis in dims_of(call, len(call.shapes[value])) else axis

    return rule


def gathered(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Along its axis that of the index, which picks of what has no rows there, or rows of the call;
    all others are in both operands."""
    _only(name, "self", "index")
    own, index = call.at("self", axis), call.at("index", axis)
    if axis in dims_of(call, len(call.shapes[value])):
        picks_own = _picks_own(call, call.refs("index")[0], own)
        if name == "self" and picks_own:
            return None
        if own is not None and not picks_own:
            raise MixedRowsError("it picks rows of the padded axis")
        return axis
    if own is None or index is None:
        raise MixedRowsError("its operands are padded on different axes")
    return axis


def leading(trailing: int, *names: str) -> AxisRule:
    """Works on the last axes, and treats all before them alike (poolings, triangles)."""

    def rule(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
        _only(name, *names)
        return None if axis >= len(call.shapes[value]) - trailing else axis

    return rule


def first_axis(*names: str, spare: int = 0) -> AxisRule:
    """Images or sequences `[N, ...]`: N may be padded, and then is in all operands. `spare`: axes
    that there are at least."""

    def rule(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
        _only(name, *names)
        together = all(call.at(other, 0) for other in names if call.refs(other))
        if axis or not together or len(call.shapes[value]) < spare:
            raise MixedRowsError("it works along the padded axis, which is not the first one")
        return 0

    return rule


def convolution(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Axis 0 of the image, and those along which its window is a single pixel; along any other it
    sums."""
    _only(name, "input")
    ndim, window = len(call.shapes[value]), call.shape("weight")
    place = axis - (ndim - (len(window) - 2))
    if place >= 0 and window[2 + place] == 1 and steps_of(call, place) == (1, 0, False):
        return axis
    return 0 if axis == 0 and ndim == len(window) else None


def steps_of(call: PaddedCall, place: int) -> tuple[Arg, Arg, Arg]:
    """Of a convolution along one axis of its window the stride and the padding, and whether it is
    transposed."""

    def at(name: str) -> Arg:
        value = call.arguments.get(name)
        return value[place if len(value) > 1 else 0] if isinstance(value, tuple) else value

    return at("stride"), at("padding"), call.arguments.get("transposed", False)


def batch_norm(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Any axis but that of the channels; in training, statistics are of all rows."""
    _only(name, "input")
    if call.arguments.get("training") or axis == 1:
        raise MixedRowsError("it takes the mean of the padded axis")
    return axis


def normalized(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """The axes before those of the norm."""
    _only(name, "input")
    count = len(call.arguments["normalized_shape"])  # type: ignore[arg-type]
    return None if axis >= len(call.shapes[value]) - count else axis


def padding(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """All axes that it adds nothing to."""
    _only(name, "self", "input")
    ndim = len(call.shapes[value])
    pads = call.arguments.get("pad", call.arguments.get("padding", ()))
    amounts = pads if isinstance(pads, tuple) else (pads,)
    place = 2 * (ndim - 1 - axis)
    return None if any(amounts[place : place + 2]) else axis


def contraction(result: str, **operands: str) -> AxisRule:
    """Operands and result by letters, as einsum has them; "." before them: any number more."""

    def rule(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
        _only(name, *operands)
        letters, named = operands[name].lstrip("."), result.lstrip(".")
        place = axis - (len(call.shapes[value]) - len(letters))
        if place < 0:  # one of those before the letters, counted from them
            return len(call.result) - len(named) + place
        letter = letters[place]
        if letter not in named:
            return None
        return len(call.result) - len(named) + named.index(letter)

    return rule


def attention(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Axes before the sequences, and the queries' sequence; it sums over that of keys."""
    if call.arguments.get("dropout_p"):
        raise MixedRowsError("it draws random numbers")
    _only(name, "query", "key", "value", "attn_mask")
    ndim = len(call.result)
    axis += ndim - len(call.shapes[value])
    if axis < ndim - 2 or (axis == ndim - 2 and name in ("query", "attn_mask")):
        return axis
    if axis == ndim - 2 or (axis == ndim - 1 and name == "attn_mask"):
        return None
    if name == "value":
        return axis
    raise MixedRowsError("it sums over the padded axis")


def recurrent(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """The batch of the sequence and of the states; along the sequence it walks."""
    _only(name, "input", "hx")
    if call.arguments["train"] and call.arguments["dropout"]:
        raise MixedRowsError("it draws random numbers")
    batch = 0 if call.arguments["batch_first"] else 1
    if name == "hx" and axis == 1:
        return batch
    if name == "hx" or len(call.shapes[value]) != 3 or axis == 2:
        raise MixedRowsError("the padded axis is not one of its sequences")
    return axis if axis == batch else None


def embedding(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """The axes of the indices."""
    _only(name, "indices")
    return axis


def _picks_own(call: PaddedCall, index: str, rows: PaddedAxis | None) -> bool:
    """Whether an index has numbers of rows of the call, and counts nothing else along the axis."""
    plain = rows is not None and (rows.outer, rows.inner) == (1, 1)
    return plain and index in call.row_numbers


def index_select(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """The axis of selection has the index's rows."""
    (dim,) = dims_of(call, len(call.shape("self")))
    _only(name, "self", "index")
    if name == "index":
        return dim
    if axis == dim and _picks_own(call, call.refs("index")[0], call.at("self", axis)):
        return None
    if axis == dim:
        raise MixedRowsError("it picks rows of the padded axis")
    return axis


def index(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """`x[..., i, j, ...]`: the axes of the indices, and of what they leave; where they pick rows of
    a padded axis, one must count them, or have numbers of the call's own."""
    indices = call.arguments["indices"]
    assert isinstance(indices, tuple)
    places = [place for place, arg in enumerate(indices) if isinstance(arg, Ref)]
    if not places or places != list(range(places[0], places[-1] + 1)):
        raise MixedRowsError("its indices are not beside each other")
    names = [arg.name for arg in indices if isinstance(arg, Ref)]
    width = max(len(call.shapes[operand]) for operand in names)
    if name == "indices":
        return places[0] + axis + width - len(call.shapes[value])
    _only(name, "self")
    if axis in places:
        counting = names[axis - places[0]]
        own = call.at("self", axis)
        if _picks_own(call, counting, own):
            return None
        for rows in call.axes.get(counting, ()):
            plain = own is not None and (own.outer, own.inner) == (rows.outer, rows.inner) == (1, 1)
            if rows.counts == 0 and plain:
                return places[0] + rows.axis + width - len(call.shapes[counting])
        raise MixedRowsError("it picks rows of the padded axis")
    return axis if axis < places[0] else axis - len(places) + width


def written(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Writing to places of what has no rows there: numbers and places have them."""
    if name == "self":
        raise MixedRowsError("it writes to what is padded itself")
    ndim = len(call.result)
    if "source" in call.arguments:
        if axis != (0 if name == "index" else dims_of(call, ndim)[0]):
            raise MixedRowsError("it writes rows on another axis than that of the places")
        return None
    _only(name, "indices", "values")
    if call.arguments.get("accumulate"):
        raise MixedRowsError("it adds what padding has, too")
    indices = call.arguments["indices"]
    assert isinstance(indices, tuple)
    places = [place for place, arg in enumerate(indices) if isinstance(arg, Ref)]
    if places != list(range(places[0], places[-1] + 1)):
        raise MixedRowsError("its indices are not beside each other")
    names = [arg.name for arg in indices if isinstance(arg, Ref)]
    if any(rows.axis != len(call.shapes[n]) - 1 for n in names for rows in call.axes.get(n, ())):
        raise MixedRowsError("its places have rows on several axes")
    width = max(len(call.shapes[operand]) for operand in names)
    whole = ndim - len(places) + width
    last = places[0] + width - 1
    if name == "values" and axis + whole - len(call.shapes[value]) != last:
        raise MixedRowsError("it writes rows on another axis than that of the places")
    return None


def picks(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """`select`: one index of an axis, which is gone then."""
    _only(name, "self")
    (dim,) = dims_of(call, len(call.shapes[value]))
    return None if axis == dim else axis - (dim < axis)


def slices(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Axes that it leaves whole."""
    _only(name, "self")
    (dim,) = dims_of(call, len(call.shapes[value]))
    return None if axis == dim and call.result != call.shapes[value] else axis


def joined(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """The axes behind `cat` and `stack`, unless they join more than nothing along it."""
    stacked = len(call.result) > len(call.shapes[value])
    (dim,) = dims_of(call, len(call.result))
    others = (call.shapes[other] for other in call.refs(name) if other != value)
    if not stacked and dim == axis and all(0 in shape for shape in others):
        return axis
    return None if not stacked and dim == axis else axis + (stacked and dim <= axis)


def unsqueezed(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """One further on where an axis is put before it."""
    (dim,) = dims_of(call, len(call.result))
    return axis + (dim <= axis)


def permuted(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Where a permutation, a transposition or `t` puts it."""
    return axis_order(call.arguments, len(call.result)).index(axis)


def repeated(call: PaddedCall, name: str, value: str, axis: int) -> int | None:
    """Behind `repeat`, which may not repeat the axis itself."""
    axis = pointwise(call, name, value, axis)
    repeats = call.arguments["repeats"]
    assert isinstance(repeats, tuple)
    if repeats[axis] != 1:
        raise MixedRowsError("it repeats the padded axis")
    return axis


def regrouped(
    rows: PaddedAxis, shape: tuple[int, ...], axis: int, result: tuple[int, ...]
) -> PaddedAxis | None:
    """Where a view has these rows, if it is on this axis: as many numbers lie before and in them as
    did. None if it is on another one."""
    before = math.prod(shape[: rows.axis]) * rows.outer
    inside = math.prod(shape[rows.axis + 1 :]) * rows.inner
    outer, rest = divmod(before, math.prod(result[:axis]))
    inner, other = divmod(inside, math.prod(result[axis + 1 :]))
    return (
        None
        if rest or other or not outer * inner
        else replace(rows, axis=axis, outer=outer, inner=inner)
    )


def _named(rule: AxisRule, names: str) -> dict[str, AxisRule]:
    return {f"aten.{name}": rule for name in names.split()}


VIEWS: Sequence[str] = tuple(
    f"aten.{name}" for name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten")
)
POINTWISE: Mapping[str, AxisRule] = {
    **{
        name: pointwise
        for name, info in OPS.items()
        if info.kind == "pointwise" and name != "aten.dropout"
    },
    **_named(
        pointwise,
        "acos acosh alias asin asinh atan atan2 atanh clone conj_physical contiguous copy copysign "
        "cosh deg2rad detach digamma erfinv fmax fmin isfinite isneginf isposinf lgamma lift_fresh "
        "lift_fresh_copy rad2deg sinc sinh special_erfcx to",
    ),
}
RULES: Mapping[str, AxisRule] = {
    **POINTWISE,
    **_named(
        along(),
        "all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod "
        "cumsum glu kthvalue linalg_vector_norm log_softmax _log_softmax logcumsumexp logsumexp "
        "max mean median min mode nansum norm prod softmax _softmax sort std std_mean sum topk "
        "unbind var var_mean split split_with_sizes split_with_sizes_copy split_copy chunk "
        "squeeze _safe_softmax",
    ),
    **_named(along(dim="dims"), "flip roll"),
    **_named(along(dim="dimension"), "unfold"),
    **_named(same_axis("self", "index", "src"), "scatter scatter_add scatter_reduce"),
    **_named(gathered, "gather"),
    **_named(leading(1, "self"), "avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d"),
    **_named(
        leading(2, "self", "input"),
        "avg_pool2d max_pool2d max_pool2d_with_indices adaptive_avg_pool2d _adaptive_avg_pool2d "
        "adaptive_max_pool2d pixel_shuffle pixel_unshuffle tril triu upsample_nearest2d "
        "_upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
        "im2col col2im",
    ),
    **_named(
        leading(3, "self", "input"),
        "avg_pool3d max_pool3d max_pool3d_with_indices adaptive_avg_pool3d adaptive_max_pool3d "
        "upsample_nearest3d upsample_trilinear3d",
    ),
    **_named(leading(1, "self", "input"), "upsample_nearest1d upsample_linear1d"),
    **_named(padding, "constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d"),
    **_named(padding, "replication_pad2d reflection_pad3d replication_pad3d"),
    **_named(convolution, "convolution cudnn_convolution conv1d conv2d conv3d conv_transpose2d"),
    **_named(batch_norm, "_native_batch_norm_legit_no_training batch_norm native_batch_norm"),
    **_named(normalized, "layer_norm native_layer_norm rms_norm"),
    **_named(first_axis("input", spare=2), "group_norm native_group_norm instance_norm"),
    **_named(first_axis("input", "grid"), "grid_sampler grid_sampler_2d grid_sampler_3d"),
    **_named(first_axis("theta"), "affine_grid_generator"),
    **_named(contraction("mn", self="mk", mat2="kn"), "mm"),
    **_named(contraction("bmn", self="bmk", mat2="bkn"), "bmm"),
    **_named(contraction("m", self="mk", vec="k"), "mv"),
    **_named(contraction(".mn", self=".mk", other=".kn"), "matmul"),
    **_named(contraction(".n", input=".k", weight="nk", bias="n"), "linear"),
    **_named(contraction("mn", self="mn", mat1="mk", mat2="kn"), "addmm _addmm_activation"),
    **_named(contraction("bmn", self="bmn", batch1="bmk", batch2="bkn"), "baddbmm"),
    **_named(attention, "scaled_dot_product_attention"),
    **_named(recurrent, "lstm gru rnn_tanh rnn_relu"),
    **_named(embedding, "embedding"),
    **_named(index_select, "index_select"),
    **_named(index, "index"),
    **_named(written, "index_copy index_put"),
    **_named(picks, "select select_copy"),
    **_named(slices, "slice slice_copy narrow"),
    **_named(joined, "cat stack"),
    **_named(unsqueezed, "unsqueeze"),
    **_named(permuted, "permute transpose t swapaxes"),
    **_named(pointwise, "expand"),
    **_named(repeated, "repeat"),
}
"""By operator, views aside. What is not here is not known to keep rows apart."""

WRITING: Sequence[str] = ("aten.index_copy", "aten.index_put")
"""Operators that write to places which are told: of padding again to that of the last row."""
SIZED: Sequence[str] = tuple(
    f"aten.{name}"
    for name in (
        *("view", "reshape", "_unsafe_view", "unflatten", "expand", "repeat", "slice"),
        *("native_group_norm", "affine_grid_generator"),
    )
)
"""Operators whose numbers may be sizes: they may differ where the size of the axis does."""
MADE: Mapping[str, str] = {
    **dict.fromkeys(("aten.full", "aten.zeros", "aten.ones", "aten.expand"), "size"),
    **{"aten.repeat": "repeats", "aten.arange": "end", "aten.slice": "end"},
}
"""Operators that make rows out of none, all alike, each its own number, or the first of a table,
and the one argument that says how many."""
CARRIED: Sequence[str] = tuple(
    f"aten.{name}"
    for name in (
        *("unsqueeze", "view", "reshape", "expand", "permute", "transpose", "clone", "alias"),
        *("slice", "detach", "contiguous", "_unsafe_view", "flatten", "unflatten", "t"),
        *("select", "lift_fresh_copy", "squeeze", "repeat"),
    )
)
"""What leaves the numbers as they are."""
