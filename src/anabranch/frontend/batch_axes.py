"""Where operators keep the rows of a batch: the batch axes of operands -> the result's, or why not.

A value is *batched* if one of its axes is the batch, or begins with it (`[batch * heads, ...]`),
and each row of it depends on the same row of the model's inputs alone. Each function here says on
which axis the first result has the rows then; `MixedBatchError` if rows meet, or may meet.

    linear(x[B,k], w)        0        softmax(x[B,n], dim=0)      MixedBatchError
    permute(x[B,c,t], 0 2 1) 0        x[B,n] - mean(x, dim=0)     MixedBatchError
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anabranch.ir.graph import Arg, Ref
from anabranch.ir.ops import OPS


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """The batch is in axis `axis`, whose indices are `[outer, batch, inner]`. `kind`: "counted" if
    the value is the number of the row, "alike" if all indices of the axis are alike."""

    axis: int
    outer: int = 1
    inner: int = 1
    kind: Literal["", "counted", "alike"] = ""


class MixedBatchError(Exception):
    """Rows meet in an operator, or nobody knows that they do not."""


@dataclass(frozen=True, slots=True)
class BatchedCall:
    """One call: its arguments by name, where its operands have their rows, and all shapes."""

    arguments: Mapping[str, Arg]
    rows: Mapping[str, BatchAxis]
    shapes: Mapping[str, tuple[int, ...]]
    result: tuple[int, ...]

    def of(self, name: str) -> BatchAxis | None:
        """Where an operand has its rows; None for one that has none, or is no tensor."""
        value = self.arguments.get(name)
        return self.rows.get(value.name) if isinstance(value, Ref) else None

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of an operand; () for a number and for an operand that is not given."""
        value = self.arguments[name]
        return self.shapes[value.name] if isinstance(value, Ref) else ()

    def refs(self, name: str) -> list[str]:
        """The values of an argument that is a tensor, or several."""
        value = self.arguments.get(name)
        many = value if isinstance(value, tuple) else (value,)
        return [one.name for one in many if isinstance(one, Ref)]

    def only(self, *names: str) -> None:
        """MixedBatchError if another operand is batched than these."""
        for name in self.arguments:
            if name not in names and any(value in self.rows for value in self.refs(name)):
                raise MixedBatchError(f"its {name} depends on the batch")


Rule = Callable[[BatchedCall], int]


def _dims(call: BatchedCall, ndim: int, name: str = "dim") -> list[int]:
    """The axes that an argument names, counted from the front; all for None."""
    given = call.arguments.get(name)
    if given is None or given == ():
        return list(range(ndim))
    many = given if isinstance(given, tuple) else (given,)
    return [int(one) % max(ndim, 1) for one in many]  # type: ignore[arg-type]


def pointwise(call: BatchedCall) -> int:
    """Operands aligned at their last axes."""
    axes = {
        call.rows[value].axis + len(call.result) - len(call.shapes[value])
        for name in call.arguments
        for value in call.refs(name)
        if value in call.rows
    }
    return _one(axes)


def _one(axes: set[int]) -> int:
    if len(axes) != 1:
        raise MixedBatchError("its operands have the batch on different axes")
    return axes.pop()


def along(first: str = "self", dim: str = "dim") -> Rule:
    """Reduces, scans or reorders axes that an argument names: not the batch."""

    def rule(call: BatchedCall) -> int:
        if call.refs("other"):  # max(a, b)
            return pointwise(call)
        axis, ndim = _own(call, first), len(call.shape(first))
        dims = _dims(call, ndim, dim)
        if axis in dims:
            raise MixedBatchError("it works along the batch")
        gone = sum(one < axis for one in dims)
        return axis - gone if len(call.result) < ndim else axis

    return rule


def _own(call: BatchedCall, first: str) -> int:
    """The batch axis of the only batched operand."""
    call.only(first)
    rows = call.of(first)
    if rows is None:
        raise MixedBatchError("another operand than the first depends on the batch")
    return rows.axis


def same_axis(*names: str) -> Rule:
    """As `along`, of operands that must all have the batch on one axis (gather, scatter)."""

    def rule(call: BatchedCall) -> int:
        call.only(*names)
        held = [value for name in names for value in call.refs(name)]
        axes = {call.rows[value].axis if value in call.rows else -1 for value in held}
        axis = _one(axes)
        if axis in _dims(call, len(call.shape(names[0]))):
            raise MixedBatchError("it works along the batch")
        return axis

    return rule


def leading(trailing: int, *names: str) -> Rule:
    """Works on the last axes, and treats all before them alike (poolings, triangles)."""

    def rule(call: BatchedCall) -> int:
        first = next(name for name in names if name in call.arguments)
        axis = _own(call, first)
        if axis >= len(call.shape(first)) - trailing:
            raise MixedBatchError("it works along the batch")
        return axis

    return rule


def first_axis(first: str, *others: str, spare: int = 0) -> Rule:
    """Images or sequences `[N, ...]`: N must be the batch, of other operands too. `spare`: axes
    that there are at least."""

    def rule(call: BatchedCall) -> int:
        call.only(first, *others)
        for name in (first, *others):
            rows = call.of(name)
            if (rows is None and call.refs(name)) or (rows is not None and rows.axis != 0):
                raise MixedBatchError("the batch is not the first axis of its operands")
        if len(call.shape(first)) < spare:
            raise MixedBatchError("its operand has no axis for the batch")
        return 0

    return rule


def convolution(call: BatchedCall) -> int:
    """Axis 0, if the image has its batch there; MixedBatchError otherwise."""
    axis = _own(call, "input")
    if axis != 0 or len(call.shape("input")) != len(call.shape("weight")):
        raise MixedBatchError("the batch is not the first axis of its image")
    return 0


def batch_norm(call: BatchedCall) -> int:
    """The input's batch axis; MixedBatchError in training, where statistics are of the batch."""
    axis = _own(call, "input")
    if call.arguments.get("training") or axis == 1:
        raise MixedBatchError("it takes the mean of the batch")
    return axis


def normalized(call: BatchedCall) -> int:
    """The input's batch axis; MixedBatchError if it is among the axes of the norm."""
    axis = _own(call, "input")
    count = len(call.arguments["normalized_shape"])  # type: ignore[arg-type]
    if axis >= len(call.shape("input")) - count:
        raise MixedBatchError("it takes the mean of the batch")
    return axis


def padding(call: BatchedCall) -> int:
    """The input's batch axis; MixedBatchError if the padding adds rows to it."""
    axis, ndim = _own(call, "self"), len(call.shape("self"))
    given = call.arguments.get("pad", call.arguments.get("padding", ()))
    amounts = given if isinstance(given, tuple) else (given,)
    if axis >= ndim - len(amounts) // 2:
        place = 2 * (ndim - 1 - axis)
        if any(amounts[place : place + 2]):
            raise MixedBatchError("it pads the batch")
    return axis


def contraction(result: str, **operands: str) -> Rule:
    """Operands and result by letters, as einsum has them; "." before them: any number more."""

    def rule(call: BatchedCall) -> int:
        call.only(*operands)
        letters = set()
        for name, axes in operands.items():
            rows = call.of(name)
            if rows is not None:
                letters.add(_letter(axes, rows.axis, len(call.shape(name))))
        if len(letters) != 1:
            raise MixedBatchError("its operands have the batch on different axes")
        (letter,) = letters
        named = result.lstrip(".")
        if letter.isdigit():  # one of those before the letters, counted from them
            return len(call.result) - len(named) - 1 - int(letter)
        if letter not in named:
            raise MixedBatchError("it sums over the batch")
        return len(call.result) - len(named) + named.index(letter)

    return rule


def _letter(axes: str, axis: int, ndim: int) -> str:
    named = axes.lstrip(".")
    place = axis - (ndim - len(named))
    if place < 0:
        return str(-1 - place)
    return named[place]


def attention(call: BatchedCall) -> int:
    """The batch axis of queries, keys and values; MixedBatchError where they differ, a mask has it
    elsewhere, or dropout draws numbers."""
    if call.arguments.get("dropout_p"):
        raise MixedBatchError("it draws random numbers")
    call.only("query", "key", "value", "attn_mask")
    ndim = len(call.result)
    axes = {rows.axis if (rows := call.of(name)) else -1 for name in ("query", "key", "value")}
    mask = call.of("attn_mask")
    if mask is not None:
        axes.add(mask.axis + ndim - len(call.shape("attn_mask")))
    axis = _one(axes)
    if not 0 <= axis < ndim - 2:
        raise MixedBatchError("the batch is one of its sequences")
    return axis


def recurrent(call: BatchedCall) -> int:
    """The batch axis of the sequence, by `batch_first`; MixedBatchError if the rows are not
    there."""
    batch = 0 if call.arguments["batch_first"] else 1
    call.only("input", "hx")
    if call.arguments["train"] and call.arguments["dropout"]:
        raise MixedBatchError("it draws random numbers")
    rows = call.of("input")
    if rows is None or rows.axis != batch or len(call.shape("input")) != 3:
        raise MixedBatchError("the batch is not the axis of its sequences")
    for value in call.refs("hx"):
        if value not in call.rows or call.rows[value].axis != 1:
            raise MixedBatchError("the batch is not the axis of its states")
    return batch


def embedding(call: BatchedCall) -> int:
    """The batch axis of the indices; MixedBatchError if the table is batched."""
    call.only("indices")
    rows = call.of("indices")
    assert rows is not None
    return rows.axis


def index_select(call: BatchedCall) -> int:
    """The batch axis of what is selected from, or the axis of selection if only the index is
    batched."""
    (dim,) = _dims(call, len(call.shape("self")))
    rows = call.of("self")
    if rows is None:
        return dim
    if rows.axis == dim or call.of("index") is not None:
        raise MixedBatchError("it picks rows of the batch")
    return rows.axis


def index(call: BatchedCall) -> int:
    """`x[..., i, j, ...]`: of a table, with indices of each row; of each row, with indices that are
    the same for all; or `x[rows, i]`, where the first index counts the rows."""
    given = call.arguments["indices"]
    assert isinstance(given, tuple)
    places = [place for place, one in enumerate(given) if isinstance(one, Ref)]
    if not places or places != list(range(places[0], places[-1] + 1)):
        raise MixedBatchError("its indices are not beside each other")
    names = [one.name for one in given if isinstance(one, Ref)]
    width = max(len(call.shapes[name]) for name in names)
    axes = {
        call.rows[name].axis + width - len(call.shapes[name]) for name in names if name in call.rows
    }
    rows = call.of("self")
    if rows is None:
        return places[0] + _one(axes)
    if rows.axis in places:
        counting = call.rows.get(names[rows.axis - places[0]])
        plain = (rows.outer, rows.inner) == (1, 1)
        if counting is None or counting.kind != "counted" or not plain:
            raise MixedBatchError("it picks rows of the batch")
        return places[0] + _one(axes)
    if axes:
        raise MixedBatchError("each row of the batch would read all others")
    return rows.axis if rows.axis < places[0] else rows.axis - len(places) + width


def picks(call: BatchedCall) -> int:
    """`select`: one index of an axis, which is gone then."""
    axis, (dim,) = _own(call, "self"), _dims(call, len(call.shape("self")))
    if axis == dim:
        raise MixedBatchError("it picks a row of the batch")
    return axis - (dim < axis)


def slices(call: BatchedCall) -> int:
    """The input's batch axis; MixedBatchError if the slice leaves out rows."""
    axis, (dim,) = _own(call, "self"), _dims(call, len(call.shape("self")))
    if axis == dim and call.result != call.shape("self"):
        raise MixedBatchError("it picks rows of the batch")
    return axis


def joined(call: BatchedCall) -> int:
    """The batch axis behind `cat` and `stack`; MixedBatchError if they join along the batch."""
    values = call.refs("tensors")
    axis = _one({call.rows[value].axis if value in call.rows else -1 for value in values})
    stacked = len(call.result) > len(call.shapes[values[0]])
    (dim,) = _dims(call, len(call.result))
    if not stacked and dim == axis:
        raise MixedBatchError("it joins along the batch")
    return axis + (stacked and dim <= axis)


def unsqueezed(call: BatchedCall) -> int:
    """The batch axis, one further on where an axis is put before it."""
    axis, (dim,) = _own(call, "self"), _dims(call, len(call.result))
    return axis + (dim <= axis)


def permuted(call: BatchedCall) -> int:
    """Where the permutation puts the batch axis."""
    axis = _own(call, "self")
    return _dims(call, len(call.result), "dims").index(axis)


def swapped(call: BatchedCall) -> int:
    """The batch axis behind `transpose` and `t`."""
    axis, ndim = _own(call, "self"), len(call.result)
    one, other = 0, ndim - 1  # of `t`
    if "dim0" in call.arguments:
        one, other = (_dims(call, ndim, name)[0] for name in ("dim0", "dim1"))
    return {one: other, other: one}.get(axis, axis)


def reshaped(call: BatchedCall) -> int:
    """Nothing is moved: `regrouped` says where rows are."""
    return _own(call, "self")


def regrouped(
    rows: BatchAxis, shape: tuple[int, ...], axis: int, result: tuple[int, ...]
) -> BatchAxis:
    """Where a view has its rows, on this axis: as many numbers lie before and in them as did."""
    before = math.prod(shape[: rows.axis]) * rows.outer
    inside = math.prod(shape[rows.axis + 1 :]) * rows.inner
    outer, one = divmod(before, math.prod(result[:axis]))
    inner, other = divmod(inside, math.prod(result[axis + 1 :]))
    if one or other:
        raise MixedBatchError("it takes rows of the batch apart")
    return BatchAxis(axis, outer, inner, rows.kind)


def expanded(call: BatchedCall) -> int:
    """The batch axis counted from the left of the longer shape."""
    return _own(call, "self") + len(call.result) - len(call.shape("self"))


def repeated(call: BatchedCall) -> int:
    """The batch axis behind `repeat`; MixedBatchError if the batch itself is repeated."""
    axis = expanded(call)
    repeats = call.arguments["repeats"]
    assert isinstance(repeats, tuple)
    if repeats[axis] != 1:
        raise MixedBatchError("it repeats the batch")
    return axis


def _named(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names.split()}


VIEWS: Sequence[str] = tuple(
    f"aten.{name}" for name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten")
)
RULES: dict[str, Rule] = {
    **{
        name: pointwise
        for name, known in OPS.items()
        if known.kind == "pointwise" and not known.random
    },
    **_named(
        pointwise,
        "acos acosh alias asin asinh atan atan2 atanh clone conj_physical contiguous copy copysign "
        "cosh deg2rad detach digamma erfinv fmax fmin isfinite isneginf isposinf lgamma lift_fresh "
        "lift_fresh_copy rad2deg sinc sinh special_erfcx to",
    ),
    **_named(
        along(),
        "all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod "
        "cumsum glu kthvalue linalg_vector_norm log_softmax _log_softmax logcumsumexp logsumexp "
        "max mean median min mode nansum norm prod softmax _softmax sort std std_mean sum topk "
        "unbind var var_mean split split_with_sizes split_with_sizes_copy split_copy chunk "
        "squeeze",
    ),
    **_named(along(dim="dims"), "flip roll"),
    **_named(along(dim="dimension"), "unfold"),
    **_named(same_axis("self", "index", "src"), "scatter scatter_add scatter_reduce"),
    **_named(same_axis("self", "index"), "gather"),
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
    **_named(picks, "select select_copy"),
    **_named(slices, "slice slice_copy narrow"),
    **_named(joined, "cat stack"),
    **_named(unsqueezed, "unsqueeze"),
    **_named(permuted, "permute"),
    **_named(swapped, "transpose t swapaxes"),
    **dict.fromkeys(VIEWS, reshaped),
    **_named(expanded, "expand"),
    **_named(repeated, "repeat"),
}
"""By operator. What is not here is not known to keep rows apart."""

SIZED: Sequence[str] = tuple(
    f"aten.{name}"
    for name in (
        *("view", "reshape", "_unsafe_view", "unflatten", "expand", "repeat", "slice"),
        *("native_group_norm", "affine_grid_generator"),
    )
)
"""Operators whose numbers may be sizes: they may differ where the batch does."""
MADE: Mapping[str, str] = {
    **dict.fromkeys(("aten.full", "aten.zeros", "aten.ones", "aten.expand"), "size"),
    **{"aten.repeat": "repeats", "aten.arange": "end"},
}
"""What makes rows out of none, all alike or each its own number, and which of its arguments alone
says how many."""
CARRIED: Sequence[str] = (
    *("aten.unsqueeze", "aten.view", "aten.reshape", "aten.expand", "aten.permute"),
    *("aten.transpose", "aten._to_copy", "aten.clone", "aten.slice", "aten.alias"),
)
"""What leaves the numbers as they are."""
