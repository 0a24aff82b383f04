"""A composite operator -> the calls that it consists of, by running torch's own code for it once.

    matmul(x, w)   ->   view = view(x, [18, 4]);  mm = mm(view, w);  _unsafe_view(mm, [3, 6, 5])

That code runs on tensors without numbers, and each operator which it calls is written down: what a
trace of the whole program writes down there, without tracing all the rest. Only composites of
`TAKEN_APART` are run, each of which a test compares with a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.frontend.operators import NOT_DECOMPOSED

TAKEN_APART = frozenset(
    f"aten.{name}"
    for name in (
        *("matmul.default", "einsum.default", "outer.default", "tensordot.default"),
        *("reshape.default", "flatten.using_ints", "unflatten.int", "contiguous.default"),
        *("mT.default", "numpy_T.default", "movedim.int", "movedim.intlist", "swapaxes.default"),
        *("view_as.default", "expand_as.default", "narrow.default", "tile.default"),
        *("concat.default", "hstack.default", "repeat_interleave.self_int"),
        *("to.dtype", "to.device", "to.dtype_layout", "type_as.default"),
        *("softmax.int", "log_softmax.int", "selu.default"),
        *("where.ScalarOther", "where.ScalarSelf", "where.Scalar"),
        *("clip.default", "multiply.Tensor", "divide.Tensor", "true_divide.Tensor"),
        *("var.dim", "var_mean.dim", "std.dim"),
        *("conv1d.default", "conv2d.default", "conv3d.default"),
        *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"),
        *("conv1d.padding", "conv2d.padding", "conv3d.padding"),
        *("pad.default", "grid_sampler.default", "embedding_bag.padding_idx"),
        "linalg_norm.default",
    )
)
"""Composites whose code calls nothing that stays whole, draws nothing and reads no numbers."""

ASK_GRADIENTS = frozenset(("aten.matmul.default", "aten.embedding_bag.padding_idx"))
"""Composites that consist of other calls where an operand has a gradient."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier call gives, by the number of the call."""

    call: int


@dataclass(frozen=True, slots=True)
class Part:
    """A call: the operator, its arguments (nodes of the program, and `Earlier`), and what it gives,
    without numbers."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    value: Any


@dataclass(frozen=True, slots=True)
class Parts:
    """The calls that stand for a node of the program, and which value is the node's."""

    calls: tuple[Part, ...]
    result: Earlier | fx.Node


def parts(node: fx.Node, differentiable: Collection[fx.Node]) -> Parts | None:
    """The calls that the composite of this node consists of. None if it is not in `TAKEN_APART`, or
    where that is not certain. `differentiable`: the nodes that may have a gradient."""
    if str(node.target) not in TAKEN_APART:
        return None
    call_parts = _run(node, ())
    unclear = [operand for operand in node.all_input_nodes if operand in differentiable]
    if call_parts is None or not unclear or str(node.target) not in ASK_GRADIENTS:
        return call_parts
    other = _run(node, unclear)
    return call_parts if other is not None and _spelling(call_parts) == _spelling(other) else None


def _spelling(parts: Parts) -> tuple[Any, ...]:
    return parts.result, [(call.target, call.args, call.kwargs) for call in parts.calls]


def _run(node: fx.Node, with_gradient: Collection[fx.Node]) -> Parts | None:
    fake_of: dict[fx.Node, FakeTensor] = {}
    for operand in node.all_input_nodes:
        value = operand.meta.get("val")
        if not isinstance(value, FakeTensor) or not _fixed(value):
            return None
        required = operand in with_gradient or (operand.op == "placeholder" and value.requires_grad)
        fake_of[operand] = value.detach().requires_grad_(required)  # type: ignore[assignment]
    if not fake_of:
        return None
    calls = _Calls(fake_of)
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), fake_of.__getitem__)
    mode = next(iter(fake_of.values())).fake_mode
    try:
        with mode, calls:
            output = calls.run(node.target, args, kwargs)
    except (_UncertainError, RuntimeError, TypeError, NotImplementedError):
        return None
    result = calls.named(output)
    if result is None or not _alike(output, node.meta.get("val")):
        return None
    return Parts(tuple(calls.parts), result)


class _UncertainError(Exception):
    """The code of a composite does what is not certain to be the same in a trace."""


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the operators that are called while it is active."""

    def __init__(self, fake_of: Mapping[fx.Node, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: list[Part] = []
        self._names: dict[int, fx.Node | Earlier] = {id(v): node for node, v in fake_of.items()}
        self._held: list[Any] = list(fake_of.values())  # an id is that of one value while it lives

    def run(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the composite gives, by its own code."""
        output = target.decompose(*args, **kwargs)
        if output is NotImplemented:
            raise _UncertainError
        return output

    def named(self, output: Any) -> fx.Node | Earlier | None:
        """Which value this is; None if it is no single one. Several are those of one call."""
        if isinstance(output, Tensor):
            return self._names.get(id(output))
        last = self.parts[-1].value if self.parts else None
        if not isinstance(output, tuple) or not isinstance(last, tuple) or len(output) != len(last):
            return None
        same = all(tensor is other for tensor, other in zip(output, last, strict=True))
        return Earlier(len(self.parts) - 1) if same else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks where a tensor is
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            if func._schema.name.partition("::")[2] in NOT_DECOMPOSED:
                raise _UncertainError
            with self:
                return self.run(func, args, kwargs)
        if func.namespace != "aten" or func._schema.is_mutable:
            raise _UncertainError
        output = func(*args, **kwargs)
        if not all(
            isinstance(leaf, FakeTensor) and _fixed(leaf) for leaf in pytree.tree_leaves(output)
        ):
            raise _UncertainError
        written: Any = map_aggregate((args, kwargs), self._written)
        self._held.append(output)
        if isinstance(output, Tensor):
            if id(output) in self._names:  # given back as it was
                raise _UncertainError
            self._names[id(output)] = Earlier(len(self.parts))
        self.parts.append(Part(func, _stripped(func, written[0]), written[1], output))
        return output

    def _written(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._names:  # a constant, or one of several results
            raise _UncertainError
        return self._names[id(value)]


def _stripped(target: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without the last arguments where they are what they are by default, as a trace has them."""
    declared = target._schema.arguments
    while args and declared[len(args) - 1].has_default_value():
        default = declared[len(args) - 1].default_value
        if type(default) is not type(args[-1]) or default != args[-1]:
            break
        args = args[:-1]
    return args


def _fixed(value: Tensor) -> bool:
    return all(type(size) is int for size in (*value.shape, *value.stride()))


def _alike(now: Any, was: Any) -> bool:
    """Whether two values without numbers have the same types."""
    ours, theirs = pytree.tree_leaves(now), pytree.tree_leaves(was)
    return len(ours) == len(theirs) and all(map(_same_type, ours, theirs))


def _same_type(value: Any, other: Any) -> bool:
    if not isinstance(value, Tensor) or not isinstance(other, Tensor):
        return False
    ours, theirs = ((v.dtype, v.shape, v.stride(), v.device) for v in (value, other))
    return bool(ours == theirs)
