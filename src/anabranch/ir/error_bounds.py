"""Error bounds (slack): how far each element of a result may be off by rounding alone.

    sum(x, 0)         eps * (|x[0]| + |x[1]| + ...)        the rounding of the sum of absolute terms
    exp(sum(x, 0))    what exp makes of that, and its own rounding
    floor(x / y)      nothing, where x and y are exact: every IEEE division gives the same
    floor(sum(x))     1 where the sum is so near a whole number that rounding may cross it

A graph is evaluated once more, and beside each value goes by how much it may be off, to first
order: moves move it, sums add it up, pointwise operators are asked what they give for more and for
less. Of other operators a few random changes of what they read tell, the largest along each row.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anabranch.ir import custom_ops, ops
from anabranch.ir.eval import run_node
from anabranch.ir.graph import Graph, Node, types
from anabranch.ir.rounding import EXACT_JUMPS
from anabranch.ir.state import PARTS
from anabranch.ir.types import TensorType

SAFETY = 4.0
"""An error may be so many times what is reckoned with here."""
FINE = 1e-6
"""Of an eps below it sums are bounded by their absolute terms; above, where that would allow
everything, by how far sums of terms of random signs walk."""
WALK = 4.0
ROUGH = 4.0
TF32_EPS = 2.0**-10

STEPS = EXACT_JUMPS | frozenset(
    f"aten.{name}"
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "isin", "signbit"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or"),
        *("bitwise_xor", "bitwise_not", "isnan", "isinf", "isfinite", "copysign", "any", "all"),
    )
)
"""Operators whose results are steps: what is nearly equal makes others."""
SAME = frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "mul", "div", "sqrt", "neg", "abs", "relu", "maximum", "minimum", "rsub"),
        *("clamp", "clamp_min", "clamp_max", "where", "masked_fill", "_to_copy", "amax", "amin"),
        *("argmax", "argmin", "max_pool1d", "max_pool2d", "max_pool3d", "hardtanh", "reciprocal"),
    )
)
"""Operators with one right result for what they read, to the bit, in single precision and above."""
LINEAR = {ops.packet_name(custom_ops.WIDE_MM)} | frozenset(
    f"aten.{name}"
    for name in (
        *("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose3d"),
        *("conv_transpose2d", "mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "sum", "mean"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool3d"),
        *("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "cumsum", "col2im", "mv", "dot"),
        *("upsample_bilinear2d", "upsample_linear1d", "upsample_trilinear3d"),
    )
)
"""Operators that add up products of what they read, with weights that are not negative."""
UNEVEN = frozenset({"aten.grid_sampler_2d", "aten.upsample_bicubic2d", "aten.scatter"})
"""Operators that the table calls moves, and that reckon."""
CANCELS = frozenset(
    f"aten.{name}"
    for name in ("gelu", "mish", "selu", "elu", "celu", "softplus", "log_sigmoid", "erfc", "logit")
)
"""Functions on whose way terms as large as the operand cancel."""
ORDERED = frozenset(
    f"aten.{name}"
    for name in (
        *("amax", "amin", "max", "min", "max_pool1d", "max_pool2d", "max_pool3d"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "cummax"),
    )
)
"""Operators that give more for more."""

Errors = dict[str, Tensor]
"""By how much values may be off, those that may."""


@dataclass(slots=True)
class _State:
    """What is known so far: values in high precision, errors, and what is the same everywhere."""

    device: torch.device
    precision: torch.dtype
    tf32: bool
    own: Mapping[str, TensorType]
    values: dict[str, Tensor] = field(default_factory=dict)
    errors: Errors = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def run(self, node: Node, changed: Mapping[str, Tensor] | None = None) -> tuple[Tensor, ...]:
        values = ChainMap(dict(changed), self.values) if changed else self.values
        return run_node(node, values, self.device, self.precision, self.own)

    def eps(self, name: str, contracts: bool = False) -> float:
        dtype = self.own[name].dtype
        if not dtype.is_floating_point:
            return 0.0
        if contracts and self.tf32 and dtype == torch.float32:
            return TF32_EPS
        return float(torch.finfo(dtype).eps)


def slack(
    graph: Graph,
    inputs: Sequence[Tensor],
    device: torch.device,
    precision: torch.dtype,
    tf32: bool = False,
) -> tuple[Tensor | None, ...]:
    """For each output by how much its elements may be off. Of booleans and integers it is positive
    where they may differ, None if they may nowhere."""
    state = _State(device, precision, tf32, types(graph))
    held = [
        (value.name, input_tensor) for value, input_tensor in zip(graph.inputs, inputs, strict=True)
    ]
    held += [(c.name, c.value) for c in graph.constants if c.value is not None]
    for name, tensor in held:
        tensor = tensor.to(device)
        state.values[name] = tensor.to(precision) if tensor.is_floating_point() else tensor
        state.exact.add(name)
    for node in graph.nodes:
        results = state.run(node)
        errors = _errors(node, results, state)
        if _is_exact(node, state):
            state.exact.update(node.results)
        state.values.update(zip(node.results, results, strict=True))
        for name, error in zip(node.results, errors, strict=True):
            if error is not None:
                state.errors[name] = error.nan_to_num(0.0, math.inf)
    return tuple(_scaled(ref.name, state) for ref in graph.outputs)


def _scaled(name: str, state: _State) -> Tensor | None:
    error, type = state.errors.get(name), state.own[name]
    if not type.dtype.is_floating_point:
        return error
    info = torch.finfo(type.dtype)
    least = 2 * info.smallest_normal * info.eps  # two of its denormals
    if error is None:
        return torch.full_like(state.values[name], least)
    # What is summed and flushed on the way is single precision's.
    return SAFETY * error + max(least, torch.finfo(torch.float32).smallest_normal)


def _is_exact(node: Node, state: _State) -> bool:
    """Whether every way to compute the results gives the same bits."""
    name = ops.packet_name(node.op)
    if not state.exact.issuperset(node.uses) or "alpha" in dict(node.kwargs):
        return False
    moves = _moves(node)
    listed = name in SAME or name in STEPS or moves
    wide = all(not type.dtype.is_floating_point or type.dtype.itemsize >= 4 for type in node.types)
    return listed and (wide or moves)


def _errors(node: Node, results: Sequence[Tensor], state: _State) -> Sequence[Tensor | None]:
    name, kind = ops.packet_name(node.op), ops.kind_of(node)
    nothing: list[Tensor | None] = [None] * len(results)
    if not all(isinstance(result, Tensor) for result in results):
        return nothing
    whole = [type for type in node.types if not type.dtype.is_floating_point]
    if name in STEPS or (name == "aten._to_copy" and whole) or (name == "aten.div" and node.kwargs):
        off = any(used in state.errors for used in node.uses)
        return _asked(node, results, state, own=False) if off else nothing
    if _moves(node) and name not in LINEAR:
        return _moved(node, results, state)
    if name in LINEAR and len(results) == 1 and not _negative(node):
        return [_summed(node, results[0], state)]
    if name in ORDERED:
        return _asked(node, results, state, own=False)
    if kind == "pointwise" and not whole:
        return _asked(node, results, state, own=True)
    return [_roughly(node, i, result, state) for i, result in enumerate(results)]


def _moves(node: Node) -> bool:
    """Whether each element of the results is one of what the node reads, or a number."""
    name = ops.packet_name(node.op)
    if name in PARTS:
        return not ops.arguments(node).get("accumulate", False)
    return ops.kind_of(node) in ("view", "move", "factory") and name not in UNEVEN


def _negative(node: Node) -> bool:
    """Whether a factor is, which absolute values would take for positive."""
    return any(isinstance(arg, (int, float)) and arg < 0 for _, arg in node.kwargs)


def _floats(node: Node, state: _State) -> list[str]:
    return [name for name in dict.fromkeys(node.uses) if state.values[name].is_floating_point()]


def _moved(node: Node, results: Sequence[Tensor], state: _State) -> list[Tensor | None]:
    """Where a move puts the errors of what it reads."""
    if not any(name in state.errors for name in node.uses):
        return [None] * len(results)
    dtype = state.precision
    changed = {
        name: state.errors[name].to(dtype)
        if name in state.errors
        else torch.zeros_like(state.values[name], dtype=dtype)
        for name in dict.fromkeys(node.uses)
        if name in state.errors or state.values[name].is_floating_point()
    }
    moved = state.run(node, changed)
    return [torch.where(error.isfinite(), error, 0).abs().to(dtype) for error in moved]


def _summed(node: Node, result: Tensor, state: _State) -> Tensor:
    """Of sums of products: what errors add up to, and the rounding of the sum."""
    name = node.results[0]
    contracts = ops.contracts(node)
    eps = state.eps(name, contracts)
    floats = _floats(node, state)
    sizes = {operand: state.values[operand].abs() for operand in floats}
    (terms,) = state.run(node, sizes)
    read = sum(state.values[operand].numel() for operand in floats)
    count = ops.flops(node, state.own) / 2 if contracts else read
    long = 1 + math.sqrt(max(1.0, count / max(1, result.numel()))) / 8
    if eps < FINE:
        error = eps * long * terms
    else:
        (squares,) = state.run(node, {operand: size * size for operand, size in sizes.items()})
        error = eps * (result.abs() + WALK * squares.abs().sqrt())
        error += torch.finfo(torch.float32).eps * long * terms
    if any(operand in state.errors for operand in floats):
        off = {operand: size + state.errors.get(operand, 0.0) for operand, size in sizes.items()}
        (more,) = state.run(node, off)
        error = error + (more - terms).abs()
    return error


def _asked(node: Node, results: Sequence[Tensor], state: _State, own: bool) -> list[Tensor | None]:
    """The error of each result, found by running the operator on more and on less of each value
    that it reads. `own`: it rounds as well, and where it does more than one step, what it makes on
    the way may be off by a unit in the last place of its operands."""
    errors: list[Tensor | None] = [None] * len(results)
    eps = max(state.eps(result) for result in node.results)
    inner = own and (ops.packet_name(node.op) not in SAME or bool(node.kwargs))
    for name in dict.fromkeys(node.uses):
        value, error = state.values[name], state.errors.get(name)
        if inner and value.is_floating_point() and eps:
            error = (0.0 if error is None else error) + eps * value.abs()
        if error is None:
            continue
        for changed in _changed(value, SAFETY * error):
            for i, (was, now) in enumerate(
                zip(results, state.run(node, {name: changed}), strict=True)
            ):
                apart = _apart(was, now, state.precision) / SAFETY
                before = errors[i]
                errors[i] = apart if before is None else torch.maximum(before, apart)
    if own:
        for i, result in enumerate(results):
            before = errors[i]
            rounding = eps * torch.where(result.isfinite(), result, 0).abs().to(state.precision)
            if ops.packet_name(node.op) in CANCELS:
                sizes = (state.values[name].abs() for name in _floats(node, state))
                rounding = eps * (rounding / eps + sum(sizes)) if eps else rounding
            errors[i] = rounding if before is None else before + rounding
    return errors


def _changed(value: Tensor, error: Tensor) -> list[Tensor]:
    if value.dtype == torch.bool:
        return [value ^ (error > 0)]
    if not value.is_floating_point():
        step = error.ceil().to(value.dtype)
        return [value + step, value - step]
    return [value + error, value - error]


def _apart(was: Tensor, now: Tensor, precision: torch.dtype) -> Tensor:
    """How far results are apart; where one is not finite, and the other not the same, anything
    may be."""
    if not was.is_floating_point():
        return (
            (was != now).to(precision)
            * SAFETY
            * (1 if was.dtype == torch.bool else (was - now).abs().to(precision).clamp(min=1))
        )
    same = (was == now) | (was.isnan() & now.isnan())
    return torch.where(same, 0.0, (was - now).abs()).nan_to_num(math.inf, math.inf)


def _roughly(node: Node, at: int, result: Tensor, state: _State) -> Tensor | None:
    """Of an operator of which nothing is known: what random changes of all it reads make of it,
    the largest along each row."""
    eps = state.eps(node.results[at], ops.contracts(node))
    if not result.is_floating_point() or not eps:
        return None
    dice = torch.Generator(state.device).manual_seed(0)
    worst = torch.zeros_like(result)
    for _ in range(2):
        changed = {}
        for name in _floats(node, state):
            value = state.values[name]
            sign = torch.rand(value.shape, generator=dice, device=value.device) < 0.5
            error = state.errors.get(name, 0.0) + eps * value.abs()
            changed[name] = torch.where(sign, value + error, value - error)
        now = state.run(node, changed)[at] if changed else result
        worst = torch.maximum(worst, _apart(result, now, state.precision))
    read = max((state.values[name].numel() for name in node.uses), default=1)
    long = 1 + math.sqrt(max(1.0, read / max(1, result.numel()))) / 8
    size = torch.where(result.isfinite(), result, 0).abs()
    if result.dim():
        worst, size = (
            tensor.amax(-1, keepdim=True).expand_as(result) if tensor.numel() else tensor
            for tensor in (worst, size)
        )
    return ROUGH * worst + eps * long * size
