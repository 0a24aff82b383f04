"""Packed sequences: recurrent layers over rows of several lengths, in a graph of fixed sizes.

    packed = pack_padded_sequence(x, lengths)     the padded sequence itself, and its lengths
    packed, (h, c) = lstm(packed)                 walks all rows; h, c: of the last row of each
    y, lengths = pad_packed_sequence(packed)      y[t >= length] = padding_value

How many rows a packed sequence has depends on the lengths, and a graph has one size. A row of a
recurrent layer reads those before it alone, so what lies behind a sequence changes nothing of it;
for the other direction each sequence is turned round by its length. An LSTM tells its cell of the
last step alone: steps of padding keep it, by gates that padding opens and shuts:

    columns of padding      weights: forget +big, input -big     c = 1 * c + 0 * g

Sequences stay in the order in which they came: nobody sees another one. A model that does
more with a packed sequence than to work on its rows one by one is refused: DataDependentError. A
result that is as long as its longest sequence asks for a value, where the model is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode, resolve_name

from anabranch.errors import DataDependentError
from anabranch.frontend.source import running_at
from anabranch.ir import custom_ops

VF: Any = torch._VF
LAYERS: dict[Any, str] = {getattr(VF, n): n for n in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
PACK: Any = VF._pack_padded_sequence
PAD: Any = VF._pad_packed_sequence
ROW_BY_ROW = frozenset(
    (
        *(torch.nn.functional.linear, torch.nn.functional.layer_norm, torch.nn.functional.gelu),
        *(torch.nn.functional.relu, torch.nn.functional.silu, torch.nn.functional.elu),
        *(torch.nn.functional.leaky_relu, torch.relu, torch.tanh, torch.sigmoid),
        *(Tensor.relu, Tensor.tanh, Tensor.sigmoid, Tensor.float, Tensor.half, Tensor.bfloat16),
        *(Tensor.double, Tensor.clone, Tensor.contiguous, Tensor.detach),
    )
)
"""Functions that make of each row, in their first argument, a row of their result."""
LAST_AXIS = frozenset((torch.nn.functional.linear, torch.nn.functional.layer_norm))
"""Those that work along rows."""
WITH_NUMBERS = frozenset(
    (
        *(Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, torch.add, torch.sub, torch.mul),
        *(Tensor.__mul__, Tensor.__rmul__, Tensor.__add__, Tensor.__radd__, Tensor.__sub__),
        *(torch.div, Tensor.__truediv__),
    )
)
"""So with a number."""
KIND: Any = Tensor
ABOUT = frozenset(
    getter.__get__
    for getter in (KIND.dtype, KIND.device, KIND.is_cuda, KIND.requires_grad, KIND.ndim)
) | {Tensor.dim}
"""What all rows have in common."""
NOT_SORTED = "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True"
COLUMNS = 8
"""How many columns tell an LSTM of padding: as many as keep rows where wide loads find them."""
OPENED = 100.0
"""By how much more than all other terms of a gate together padding opens and shuts it."""


class _Opaque(Tensor):
    """What only this module knows how to compute with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _refused(func)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch annotates one that there is not
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise _refused(func)


class _Rows(_Opaque):
    """The rows of a packed sequence. `padded`: [time, batch, ...]; `lengths`: i64[batch]."""

    padded: Tensor
    lengths: Tensor


class _BatchSizes(_Opaque):
    """How many sequences each step has: of the first one, all."""

    batch: int


class _AsTheyCame(_Opaque):
    """The order of sequences, and its inverse: as many numbers as there are sequences."""


class _Longest(int):
    """How long the longest sequence is, which nobody knows: no longer than what it is compared
    with, for lengths are checked."""

    def __gt__(self, other: Any) -> bool:
        return False


def _refused(func: Any) -> DataDependentError:
    name = resolve_name(func) or getattr(func, "__name__", str(func))
    return DataDependentError(
        f"the model packs sequences of several lengths, and calls {name} of what it packed",
        "how many rows each step has depends on the lengths, and a graph has one shape",
        "give the recurrent layer the padded sequence, and mask or pick results by the lengths",
        running_at(),
    )


class PackedSequences(TorchFunctionMode):
    """Within it packed sequences are padded ones. `values`: tensors have values, as in a call whose
    answers are noted: sequences are packed as ever, and a value is asked for where a trace does."""

    def __init__(self, values: bool = False) -> None:
        super().__init__()
        self._values = values
        self._batches: dict[int, tuple[Tensor, int]] = {}
        """By identity the sizes of each step's batch, and that of the first."""
        self._unsorted: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._values:
            return self._with_values(func, args, kwargs)
        if func is torch.sort and _in_packing():
            self._unsorted = args[0].clone()
            return self._unsorted, _opaque(_AsTheyCame, self._unsorted)
        if func is torch.as_tensor and _in_packing() and _symbols(args[0]):  # torch reads them
            return torch.stack([torch.full((), size, dtype=torch.int64) for size in args[0]])
        if func is PACK:
            return self._packed(*args, **kwargs)
        if not any(isinstance(arg, _Opaque) for arg in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func in LAYERS and isinstance(args[0], _Rows) and isinstance(args[1], _BatchSizes):
            return _walked(LAYERS[func], *args, **kwargs)
        if func is PAD and isinstance(args[0], _Rows) and isinstance(args[1], _BatchSizes):
            return _padded(*args, **kwargs)
        if func in ABOUT:
            return _about(func, args[0])
        if any(isinstance(arg, _AsTheyCame) for arg in (*args, *kwargs.values())):
            return _in_order(func, args, kwargs)
        return _of_rows(func, args, kwargs)

    def _packed(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        x = x.transpose(0, 1) if batch_first else x
        in_order, lengths = lengths is not self._unsorted, lengths.to(x.device)
        if lengths.shape != x.shape[1:2]:
            raise RuntimeError(f"{x.shape[1]} sequences have lengths of {list(lengths.shape)}")
        _check((lengths > 0).all(), "Length of all samples has to be greater than 0")
        if in_order and lengths.shape[0] > 1:
            _check((lengths[:-1] >= lengths[1:]).all(), NOT_SORTED)
        whole = _last(_own(x, lengths), lengths)  # where an index outside raises an error
        _check(whole.all(), "a sequence has fewer rows than its length says")
        rows = _opaque(_Rows, x.flatten(0, 1), padded=x, lengths=lengths)
        return rows, _opaque(_BatchSizes, lengths, "cpu", batch=x.shape[1])

    def _with_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is PACK:
            rows, sizes = func(*args, **kwargs)
            self._batches[id(sizes)] = sizes, args[0].shape[0 if args[2] else 1]
            return rows, sizes
        batch = self._batches.get(id(args[0])) if args else None
        if batch is not None and batch[0] is args[0]:
            if func is Tensor.__getitem__ and args[1] == 0:
                return batch[1]
            if func is Tensor.size and args[1:] == (0,):
                return _Longest(func(*args))
        if func is PAD and isinstance(args[-1], _Longest):
            torch.tensor(int(args[-1])).item()
            return func(*args[:-1], int(args[-1]))
        return func(*args, **kwargs)


def _check(truth: Tensor, text: str) -> None:
    custom_ops.OPS.check(truth, text)


def _symbols(lengths: Any) -> bool:
    return any(isinstance(length, torch.SymInt) for length in lengths)


def _in_packing() -> bool:
    """Whether it is `pack_padded_sequence` that calls a function now."""
    frame = sys._getframe(2)
    for _ in range(16):
        if frame.f_code is rnn.pack_padded_sequence.__code__:
            return True
        if frame.f_code.co_name != "__torch_function__" or frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _opaque(kind: Any, like: Tensor, device: Any = None, **held: Any) -> Any:
    """A tensor of this kind. `held`: its attributes."""
    opaque = Tensor._make_wrapper_subclass(
        kind, like.shape, dtype=like.dtype, device=device or like.device
    )
    for name, value in held.items():
        setattr(opaque, name, value)
    return opaque


def _about(func: Any, opaque: Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        return func(opaque)


def _in_order(func: Any, args: Any, kwargs: Any) -> Any:
    """What moves sequences to places at which they are already."""
    if func is Tensor.numel:
        return _about(func, args[0])
    if func in (Tensor.to, Tensor.cpu, Tensor.cuda, torch.empty_like):
        return args[0]
    if func is Tensor.scatter_ and isinstance(args[0], _AsTheyCame) and args[2] is args[0]:
        return args[0]
    picked = {Tensor.index_select: 2, torch.index_select: 2, Tensor.__getitem__: 1}.get(func)
    if picked is not None and isinstance(args[picked], _AsTheyCame) and not kwargs:
        return args[0].clone()
    raise _refused(func)


def _of_rows(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function makes of rows one by one, or tells of all of them."""
    first = args[0] if args else None
    if isinstance(first, _BatchSizes):
        if func is Tensor.__getitem__ and args[1] == 0:
            return first.batch
        if func is Tensor.size and args[1:] == (0,):
            return _Longest()
        raise _refused(func)
    if not isinstance(first, _Rows):
        raise _refused(func)
    if func is Tensor.size and args[1:] in ((-1,), (1,)) and first.padded.dim() == 3:
        return first.padded.shape[-1]
    rest = (*args[1:], *kwargs.values())
    plain = not any(isinstance(arg, _Opaque) for arg in rest)
    numbers = all(isinstance(arg, int | float) for arg in rest)
    wide = func not in LAST_AXIS or first.padded.dim() == 3
    if plain and wide and (func in ROW_BY_ROW or (func in WITH_NUMBERS and numbers)):
        return _like(first, func(first.padded, *args[1:], **kwargs))
    if func is torch.nn.functional.dropout and not _trains(*args[1:], **kwargs):
        return first
    if func is torch.nn.functional.embedding and plain:
        return _like(first, func(first.padded, *args[1:], **kwargs))
    raise _refused(func)


def _trains(p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return training and p > 0


def _like(rows: _Rows, padded: Tensor) -> _Rows:
    flat = padded.flatten(0, 1)
    return _opaque(_Rows, flat, padded=padded, lengths=rows.lengths)  # type: ignore[no-any-return]


def _own(x: Tensor, lengths: Tensor) -> Tensor:
    """bool[time, batch]: which rows are of a sequence."""
    return torch.arange(x.shape[0], device=x.device)[:, None] < lengths


def _last(x: Tensor, lengths: Tensor) -> Tensor:
    """Of x[time, batch, ...] the last row of each sequence."""
    return x[lengths - 1, torch.arange(x.shape[1], device=x.device)]


def _turned(x: Tensor, lengths: Tensor) -> Tensor:
    """x[time, batch, features] with the rows of each sequence from the last one to the first."""
    steps = torch.arange(x.shape[0], device=x.device)[:, None]
    places = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return x.gather(0, places[:, :, None].expand(x.shape))


def _padded(
    rows: _Rows, sizes: _BatchSizes, batch_first: bool, value: float, total: int
) -> tuple[Tensor, Tensor]:
    """The rows in their places, and elsewhere the value."""
    x, lengths = rows.padded, rows.lengths
    own = _own(x, lengths).view(*x.shape[:2], *[1] * (x.dim() - 2))
    x = torch.where(own, x, torch.full((), value, dtype=x.dtype, device=x.device))
    if isinstance(total, _Longest):
        longest: Any = lengths.max().item()
        x = torch.cat([x, x[:1]]).narrow(0, 0, longest)  # all of it would be a case of its own
    elif total == x.shape[0]:
        pass
    elif type(total) is int and type(x.shape[0]) is int and total < x.shape[0]:
        _check((lengths <= total).all(), f"total_length={total} is less than the longest sequence")
        x = x[:total]
    else:
        more = x.new_full((total - x.shape[0], *x.shape[1:]), value)
        x = torch.cat([x, more])
    return x.transpose(0, 1) if batch_first else x, lengths.clone()


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction of one layer. `params`: as torch has them."""

    kind: str
    params: Sequence[Tensor]
    biases: bool

    @property
    def plain(self) -> tuple[Any, ...]:
        """What torch's layers take beside it: one layer in one direction, batch behind time."""
        return self.biases, 1, 0.0, False, False, False


def _walked(
    kind: str,
    rows: _Rows,
    sizes: _BatchSizes,
    first: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Any, ...]:
    """The rows that the layers make, and their states behind the last one of each sequence."""
    if train and dropout:
        raise _refused(torch.dropout)
    ways = 2 if bidirectional else 1
    each = len(params) // (layers * ways)
    lengths, x = rows.lengths, rows.padded
    x = torch.where(_own(x, lengths)[..., None], x, torch.zeros_like(x))
    firsts = first if kind == "lstm" else (first,)
    lasts: list[list[Tensor]] = []
    for layer in range(layers):
        sides = []
        for way in range(ways):
            number = layer * ways + way
            of = _Direction(kind, params[number * each : (number + 1) * each], has_biases)
            begin = [state[number : number + 1] for state in firsts]
            y, *ends = _one_way(of, _turned(x, lengths) if way else x, begin, lengths)
            sides.append(_turned(y, lengths) if way else y)
            lasts.append(ends)
        x = torch.cat(sides, 2) if ways == 2 else sides[0]
    return _like(rows, x), *(torch.stack(states) for states in zip(*lasts, strict=True))


def _one_way(
    of: _Direction, x: Tensor, first: Sequence[Tensor], lengths: Tensor
) -> tuple[Tensor, ...]:
    """The rows that one layer makes, and its states behind each sequence."""
    layer = getattr(VF, of.kind)
    if of.kind != "lstm":
        y = layer(x, first[0], of.params, *of.plain)[0]
        return y, _last(y, lengths)
    kept = _Direction("lstm", _kept(of), of.biases)
    padding = ~_own(x, lengths)[..., None].expand(-1, -1, COLUMNS)
    y, _, cell = layer(torch.cat([x, padding.to(x.dtype)], 2), first, kept.params, *kept.plain)
    return y, _last(y, lengths), cell[0]


def _kept(of: _Direction) -> list[Tensor]:
    """The weights of an LSTM whose input has columns more, of which the first says what is padding:
    the cell stays as it is there."""
    weight, hidden, *rest = of.params
    bound = hidden.abs().sum(1)
    if len(of.params) in (3, 5):  # what it gives is a product
        bound = bound * rest[-1].abs().sum(1).amax().clamp(min=1)
    for bias in rest[:2] if of.biases else ():
        bound = bound + bias.abs()
    much = bound.amax() + OPENED
    shuts, opens, none = -much, much, torch.zeros_like(much)
    gates = torch.stack([shuts, opens, none, none])  # input, forget, cell, output
    column = gates[:, None].expand(4, weight.shape[0] // 4).reshape(-1, 1)
    more = torch.cat([column, column.new_zeros(weight.shape[0], COLUMNS - 1)], 1)
    return [torch.cat([weight, more], 1), hidden, *rest]
