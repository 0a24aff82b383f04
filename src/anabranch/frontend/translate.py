"""FX nodes -> Graph nodes, one for one, shared by every front end.

What goes away: tuples (results get names of their own), devices, checks of what is known, and
operators that return what they were given. What the model checks of values becomes an output
(`value_checks`).

    convolution = aten.convolution.default(x, p_w, ...)        %convolution = aten.convolution...
    split = aten.split.Tensor(convolution, 4, 1)               %split, %split.1 = aten.split...
    getitem_1 = split[1]                                 ->
    clone = aten.clone.default(getitem_1)
    relu = aten.relu.default(clone)                            %relu = aten.relu...(%split.1)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from anabranch.errors import CaptureError, DataDependentError
from anabranch.frontend import strided
from anabranch.frontend.default_dtype import declared, undeclared
from anabranch.frontend.operators import (
    ATTENTION,
    COPIES,
    DROPPED,
    FILLS,
    LIKE,
    VIEWS,
    has_random,
)
from anabranch.frontend.source import origin
from anabranch.frontend.value_checks import CHECKS, CheckedValues, called, is_ordered
from anabranch.ir import custom_ops, ops
from anabranch.ir.graph import Arg, Constant, Graph, Input, Node, Ref, State
from anabranch.ir.key import digest_source, digest_tensor
from anabranch.ir.ops import packet_name
from anabranch.ir.plan import Leaf, ValueCheck
from anabranch.ir.rounding import loses
from anabranch.ir.types import DTYPE_NAMES, TensorType

NOT_STORED = frozenset({"device", "pin_memory", "non_blocking"})
"""Arguments about where and how to put a result; a graph runs where it is put."""

NOT_HELD = DROPPED | CHECKS
"""Operators without a result, which a graph does not hold."""
QUANTISING = frozenset(
    f"aten.{name}"
    for name in (
        *("quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel"),
        *("_empty_affine_quantized", "_empty_per_channel_affine_quantized"),
    )
)
"""Operators whose results torch tells of as of plain numbers where there are no values."""
_FULL = "aten.full.default"
_TO = "aten._to_copy.default"
RESHAPES = {"aten.view.default": "aten.reshape.default"}
LAID_ANEW = "aten.to.dtype_layout"
OF_TENSORS = {
    "Scalar": "Tensor",
    "Tensor_Scalar": "Tensor_Tensor",
    "Tensor": "Tensor",
}
"""By the overload of an operator that takes a number, the one that takes a tensor there."""
CUT = "leave out fullgraph=True, sizes and dynamic_shapes: anabranch.compile cuts the model there"
"""What else can be done where values decide."""
HEADS = -3
"""The axis of heads in what attention reads."""


class Translation:
    """A graph under construction: bind placeholders, `add` each node in order, then `finish`.
    `by_default`: whether a tensor of it has torch's default dtype because that is the default."""

    def __init__(self, names: set[str], device: torch.device | None = None) -> None:
        self._device = device
        self.types: dict[str, TensorType] = {}
        self.mutations: list[tuple[str, Ref]] = []
        self.after: dict[str, Ref] = {}
        """By the name of each state its value after a call."""
        self._draws = set[str]()
        self._states: list[tuple[Input, str, torch.Tensor]] = []
        self.sources: list[tuple[str, str]] = []
        self.offsets: dict[str, int] = {}
        """Inputs of which the model counts from the start of their memory, and where each began."""
        self.counted = dict[str, str]()
        """Other values of which it does so, and the lines where."""
        self._values: dict[fx.Node, Arg] = {}
        self._inputs: list[Input] = []
        self._constants: list[Constant] = []
        self._nodes: list[Node] = []
        self._taken = names
        self._held: dict[tuple[object, ...], str] = {}
        self._borrowed: set[str] = set()
        self._handed: set[str] = set()
        """Values that are returned or written to an input: a copy of one is another tensor."""
        self._checked = CheckedValues(self._values, self._step)
        self._default = torch.get_default_dtype()
        self.by_default = False

    def bind_input(self, node: fx.Node, example: torch.Tensor) -> Ref:
        """The placeholder is a tensor that the caller gives."""
        declared = Input(node.name, tensor_type(example, f"the input {node.name}"))
        self._inputs.append(declared)
        return self._declare(node, declared.name, declared.type)

    def bind_constant(self, node: fx.Node, tensor: torch.Tensor, path: str, source: bool) -> Ref:
        """The FX node stands for this tensor, which the model holds under `path`. Two names of the
        same memory, seen in the same way, are one constant."""
        value = plain_value(tensor, self._device)
        type = tensor_type(value, path)
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), type)
        if key in self._held:
            self._values[node] = ref = Ref(self._held[key])
            return ref
        name = self._unique(path)
        self._held[key] = name
        digest = digest_tensor(value)
        if source:
            self.sources.append((name, path))
            digest = digest_source(digest, path)
        elif type.dtype == self._default:  # made by the code, which may not have said of what dtype
            self.by_default = True
        held = (path,) if source else ()
        self._constants.append(Constant(name, type, digest, value, source=held))
        return self._declare(node, name, type)

    def bind_state(self, node: fx.Node, tensor: torch.Tensor, path: str) -> Ref:
        """The FX node stands for this tensor, which the model holds under `path`, and writes to.
        Two names of the same memory, seen in the same way, are one state."""
        type = tensor_type(tensor, path)
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), type)
        if key in self._held:
            self._values[node] = ref = Ref(self._held[key])
            return ref
        name = self._held[key] = self._unique(path)
        self._states.append((Input(name, type), path, tensor))
        return self._declare(node, name, type)

    def bind_literal(self, node: fx.Node, value: int | float | bool | str | None) -> None:
        """Let the placeholder stand for a number, a text or None."""
        self._values[node] = value

    def value(self, node: fx.Node) -> Arg:
        """What the FX node became; KeyError if it was not added yet."""
        return self._values[node]

    def add(self, node: fx.Node, returned: bool = False) -> None:
        """One call. `returned`: the caller gets it, so it must not turn out to be the caller's own
        tensor, or another result, where the model made a copy."""
        self._add(node, returned)
        value = self._values.get(node)
        if returned and isinstance(value, Ref):
            self._handed.add(value.name)

    def _add(self, node: fx.Node, returned: bool) -> None:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node) and isinstance(index, int)
            results = self._values[source]
            assert isinstance(results, tuple)
            self._values[node] = results[index]
            return
        if (check := called(node)) is not None:
            self._checked.add(node, *check)
        if is_ordered(node) and packet_name(str(node.args[1])) in NOT_HELD:
            self._values[node] = (None, None)  # the token of the next one, and no result
            return
        if _is_only_checked(node):
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise _unsupported(node)
        name = str(target)
        if packet_name(name) in NOT_HELD:
            return
        if name == "aten.copy_.default" and self._mutates_input(node):
            return
        if target._schema.is_mutable:
            raise mutable(node, name)
        if packet_name(name) in QUANTISING:
            raise CaptureError(
                f"{name} makes a quantised tensor",
                "only dense, strided tensors of numbers can be compiled",
                "round by torch.fake_quantize_per_tensor_affine, or keep int8 numbers and their "
                "scales in tensors",
                origin(node),
            )
        if name in strided.STRIDED:
            self._add_strided(node, name, returned)
            return
        self._add_call(node, VIEWS.get(name, name), returned)

    def finish(self, name: str, returned: list[Ref]) -> Graph:
        """The graph of what was added. Its outputs are the values returned, those that inputs and
        states are overwritten with, those that are checked, and random numbers that nobody reads,
        which others come after, once each; states are its last inputs."""
        written = [*(ref for _, ref in self.mutations), *self.after.values()]
        checked = [check.ref for check in self.checks if check.ref is not None]
        outputs = list(dict.fromkeys([*returned, *written, *checked]))
        outputs += self._unread_draws(outputs)
        return Graph(
            re.sub(r"\W|^(?=\d)", "_", name),
            (*self._inputs, *(declared for declared, _, _ in self._states)),
            tuple(self._constants),
            tuple(self._nodes),
            tuple(outputs),
            states=tuple(
                State(value.name, outputs.index(self.after[value.name]), (path,), tensor.detach())
                for value, path, tensor in self._states
            ),
        )

    def _unread_draws(self, outputs: Sequence[Ref]) -> list[Ref]:
        """Random numbers that none of the outputs is made of."""
        live, unread = {ref.name for ref in outputs}, list[Ref]()
        for node in reversed(self._nodes) if self._draws else ():
            if live.isdisjoint(node.results):
                if node.name not in self._draws:
                    continue
                unread.append(Ref(node.results[0]))
            live.update(node.uses)
        return unread[::-1]

    @property
    def checks(self) -> tuple[ValueCheck, ...]:
        """What a call checks of values, as the model does."""
        return tuple(self._checked.checks)

    def becomes(self, state: fx.Node, value: Ref) -> None:
        """The state that the FX node stands for has this value after a call."""
        held = self._values[state]
        assert isinstance(held, Ref)
        self.after[held.name] = value

    def placed(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The leaves of a call, with where a tensor must begin in its memory."""
        return tuple(
            leaf if leaf.ref is None else replace(leaf, offset=self.offsets.get(leaf.ref.name))
            for leaf in leaves
        )

    def _add_call(self, node: fx.Node, op: str, returned: bool) -> None:
        op, operands = self._of_complex(node, op)
        args = tuple(self._arg(arg, node) for arg in operands)
        kwargs = tuple(
            (key, self._arg(arg, node))
            for key, arg in node.kwargs.items()
            if key not in NOT_STORED and not (key == "layout" and arg in (None, torch.strided))
        )
        fake = node.meta.get("val")
        if op == custom_ops.TO_CONTIGUOUS:
            op, kwargs = LAID_ANEW, (("memory_format", torch.contiguous_format),)
        if op in ATTENTION and (plain := _plain_attention(node, op, args, kwargs, self.types)):
            op, args, kwargs = plain
            fake = fake[0] if fake is not None else None
        types = self._result_types(node, op, args, kwargs, fake)
        if op == "aten.empty_like.default":  # where not contiguous it stays an operator
            op = "aten.zeros_like.default"
        if op in FILLS and types[0].contiguous and not self._lies_as(op, args):
            number = args[-1] if FILLS[op] is None else FILLS[op]
            op, args, kwargs = _FULL, (types[0].shape, number), (("dtype", types[0].dtype),)
        if undeclared(self._default, args, kwargs, types, self.types):
            self.by_default = True
            args, kwargs = declared(self._default, op, args, kwargs, partial(self._real, node))
        source = args[0] if args else None
        if isinstance(source, Ref) and types == (self.types[source.name],):
            copy = packet_name(op) in COPIES and not self._lays(op, source, kwargs)
            if copy and not (returned and source.name in self._borrowed | self._handed):
                self._values[node] = source
                return
            if ops.info(op).kind == "view":
                self._values[node] = (source,) if _returns_tuple(node) else source
                return
        rounds = loses(op, args, types[0], self.types)
        added = Node(node.name, op, args, kwargs, types, origin(node), rounds)
        self._nodes.append(added)
        self.types.update(zip(added.results, types, strict=True))
        if (
            isinstance(source, Ref)
            and source.name in self._borrowed
            and ops.is_view(added, self.types)
        ):
            self._borrowed.update(added.results)
        if has_random(node):
            self._draws.add(added.name)
        names = tuple(Ref(result) for result in added.results)
        self._values[node] = names if _returns_tuple(node) else names[0]

    def _lies_as(self, op: str, args: tuple[Arg, ...]) -> bool:
        """Whether a constant lies as a tensor does, which may lie otherwise in a call."""
        return op in LIKE and isinstance(args[0], Ref) and _wide(self.types[args[0].name])

    def _lays(self, op: str, source: Ref, kwargs: Any) -> bool:
        """Whether a copy lies otherwise than what it copies where inputs do: in a layout that is
        named, or of an input that leaves gaps in a call, or repeats its elements."""
        if not _wide(self.types[source.name]):
            return False
        format = dict(kwargs).get("memory_format", torch.preserve_format)
        of_input = op == "aten.clone.default" and source.name in self._borrowed
        return of_input or format is not torch.preserve_format

    def _add_strided(self, node: fx.Node, op: str, returned: bool) -> None:
        """as_strided, its copy or its scatter, as views of the value that holds what it reads."""
        if op == strided.SCATTER:
            self._values[node] = self._scattered(node)
            return
        seen = strided.seen(node)
        source, window = self._values[seen.node], seen.window
        assert isinstance(source, Ref)
        self._count_from(seen.root, node)
        steps = strided.views(window)
        if steps is not None and self.types[source.name].strides != window.type.strides:
            # It was made of others by a step here, and lies otherwise than the program says.
            steps = [(RESHAPES.get(step, step), args) for step, args in steps]
        if steps is None:
            places = self._literal(node, strided.numbers(window))
            row = self._row(node, source)
            source = self._step(node, "aten.index_select.default", row, 0, places)
            steps = [("aten.view.default", (window.shape,))]
        for step, args in steps:
            source = self._step(node, step, source, *args)
        if returned and op != "aten.as_strided.default" and source.name in self._borrowed:
            source = self._step(node, "aten.clone.default", source)
        self._values[node] = source

    def _count_from(self, root: fx.Node, node: fx.Node) -> None:
        """Elements were counted in this value's memory: an input must lie there as the example
        did, and so must those on which it depends how another value lies."""
        value = self._values[root]
        if not isinstance(value, Ref):
            return
        if any(each.name == value.name for each in self._inputs):
            self.offsets[value.name] = strided.begins(root)
        else:
            self.counted.setdefault(value.name, origin(node))

    def _scattered(self, node: fx.Node) -> Ref:
        """What as_strided_scatter gives: the operand with other elements where its window lies."""
        base, new = (self._values[arg] for arg in node.args[:2] if isinstance(arg, fx.Node))
        assert isinstance(base, Ref) and isinstance(new, Ref)
        places = self._literal(node, strided.written(node))
        self._count_from(strided.root(node), node)
        row = self._step(node, "aten.reshape.default", new, self.types[places.name].shape)
        whole = self._row(node, base)
        flat = self._step(node, "aten.scatter.src", whole, 0, places, row)
        return self._step(node, "aten.view.default", flat, self.types[base.name].shape)

    def _row(self, node: fx.Node, source: Ref) -> Ref:
        """The value as one row, in the order of its shape."""
        row = (self.types[source.name].numel,)
        return self._step(node, "aten.reshape.default", source, row)

    def _step(self, node: fx.Node, op: str, source: Ref, *rest: Arg, **named: Arg) -> Ref:
        """One more node on the way to what an FX node computes."""
        args, kwargs = (source, *rest), tuple(named.items())
        name, line = self._unique(node.name), origin(node)
        added = ops.make_node(name, op, args, self.types, kwargs, line)
        self._nodes.append(added)
        self.types[added.name] = added.type
        if source.name in self._borrowed and ops.is_view(added, self.types):
            self._borrowed.add(added.name)
        return Ref(added.name)

    def _literal(self, node: fx.Node, places: torch.Tensor | None) -> Ref:
        """Numbers of elements, which capturing computed, as a constant."""
        assert places is not None
        value = places.flatten().to(self._device or node.meta["val"].device)
        constant = Constant(
            self._unique("places"), tensor_type(value, ""), digest_tensor(value), value
        )
        self._constants.append(constant)
        self.types[constant.name] = constant.type
        return Ref(constant.name)

    def _of_complex(self, node: fx.Node, op: str) -> tuple[str, tuple[Any, ...]]:
        """The operator and its arguments, with complex numbers among them as constants of the
        result's dtype, which an operator of two tensors reads: x * 1j gives no other."""
        fake = node.meta.get("val")
        if not any(isinstance(arg, complex) for arg in node.args):
            return op, node.args
        packet, _, overload = op.rpartition(".")
        other = f"{packet}.{OF_TENSORS.get(overload, overload)}"
        told = ops.resolve(other)._schema.arguments if other != op or overload == "Tensor" else []
        if not isinstance(fake, torch.Tensor) or not fake.is_complex() or len(told) < 2:
            return op, node.args
        device = self._device or fake.device

        def held(arg: Any, type: str) -> Any:
            if not isinstance(arg, complex) or type != "Tensor":
                return arg
            value = torch.tensor(arg, dtype=fake.dtype, device=device)
            name, kind = self._unique("scalar"), tensor_type(value, "a complex number")
            self._constants.append(Constant(name, kind, digest_tensor(value), value))
            self.types[name] = kind
            return Ref(name)

        types = [str(argument.type) for argument in told]
        return other, tuple(held(arg, types[i]) for i, arg in enumerate(node.args))

    def _real(self, node: fx.Node, source: Ref) -> Ref:
        """The operand in torch's default dtype."""
        was = self.types[source.name]
        real_type = TensorType(was.shape, self._default, was.strides)
        name, kwargs = self._unique(f"{source.name}_real"), (("dtype", self._default),)
        self._nodes.append(Node(name, _TO, (source,), kwargs, (real_type,), origin(node)))
        self.types[name] = real_type
        return Ref(name)

    def _result_types(
        self,
        node: fx.Node,
        op: str,
        args: tuple[Arg, ...],
        kwargs: tuple[tuple[str, Arg], ...],
        fake: Any,
    ) -> tuple[TensorType, ...]:
        if fake is None and "val" not in node.meta:
            return ops.infer(op, args, kwargs, self.types)
        results = fake if isinstance(fake, (tuple, list)) else (fake,)
        types = [tensor_type(result, f"a result of {op}", origin(node)) for result in results]
        if packet_name(op) in ops.RECURRENT:
            return ops.last_states(op, args, types, self.types)
        return tuple(types)

    def _arg(self, arg: Any, node: fx.Node) -> Arg:
        if isinstance(arg, fx.Node):
            return self._values[arg]
        if isinstance(arg, Ref):
            return arg
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(item, node) for item in arg)
        if arg is None or isinstance(
            arg, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)
        ):
            return arg
        if isinstance(arg, complex):
            raise CaptureError(
                f"{node.target} is called with the complex number {arg!r}",
                "a graph keeps complex numbers in tensors, and this operator takes a number there",
                f"multiply or add a tensor: torch.tensor({arg!r})",
                origin(node),
            )
        number = isinstance(arg, torch.SymInt | torch.SymFloat | torch.SymBool)
        refusal = DataDependentError if number else CaptureError
        raise refusal(
            f"{node.target} is called with {arg!r}, a {type(arg).__name__}",
            "a graph stores numbers, strings, dtypes and tensors as arguments, no other objects",
            "compute this part outside the model, or behind a custom operator that takes tensors",
            origin(node),
        )

    def _mutates_input(self, node: fx.Node) -> bool:
        """`copy_` into a placeholder, as AOTAutograd writes the mutation of an input."""
        target, new = node.args[0], node.args[1]
        if not (isinstance(target, fx.Node) and isinstance(new, fx.Node)):
            return False
        written, value = self._values[target], self._values[new]
        if not isinstance(written, Ref) or not isinstance(value, Ref):
            return False
        if all(declared.name != written.name for declared in self._inputs):
            return False
        self.mutations.append((written.name, value))
        self._values[node] = value
        return True

    def _declare(self, node: fx.Node, name: str, type: TensorType) -> Ref:
        self.types[name] = type
        self._borrowed.add(name)
        self._values[node] = ref = Ref(name)
        return ref

    def _unique(self, path: str) -> str:
        stem = name = re.sub(r"\W", "_", path)
        count = 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


def _wide(type: TensorType) -> bool:
    """Whether it has two axes that may lie in either order."""
    return sum(size > 1 for size in type.shape) > 1


def plain_value(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """A tensor as a constant holds it: without gradient or lazy conjugation, and a scalar that the
    model left on the CPU on the device of all others."""
    value = tensor.detach().resolve_conj().resolve_neg()
    return value.to(device) if device is not None and value.ndim == 0 else value


def tensor_type(value: Any, what: str, source: str = "") -> TensorType:
    """The type of a (fake) tensor; CaptureError for what a TensorType cannot say."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise DataDependentError(
                f"{what} is a number of Python's that depends on the values of a tensor",
                "nodes of a graph compute tensors only",
                f"compute with the tensor itself, without .item(), or {CUT}",
                source,
            )
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise CaptureError(
            f"{what} is {kind}, not a tensor",
            "nodes of a graph compute tensors only",
            "compute this part outside the model, or behind a custom operator that returns tensors",
            source,
        )
    if value.layout != torch.strided or value.is_quantized:
        raise CaptureError(
            f"{what} is a {'quantised' if value.is_quantized else str(value.layout)} tensor",
            "only dense, strided tensors can be compiled",
            "convert it first (to_dense(), dequantize()), or leave this part out",
            source,
        )
    if value.dtype not in DTYPE_NAMES:
        raise CaptureError(
            f"{what} has the dtype {value.dtype}",
            f"the dtypes that can be compiled are {', '.join(map(str, DTYPE_NAMES))}",
            "convert it with .to(dtype), or leave this part out",
            source,
        )
    if not all(type(size) is int for size in (*value.shape, *value.stride())):
        raise DataDependentError(
            f"the shape of {what} is not known: {tuple(value.shape)}",
            "it depends on the values of a tensor, or was exported with a dynamic dimension; one "
            "graph serves one shape",
            "give the result a fixed size (masks instead of nonzero() or boolean indexing), or "
            f"{CUT}",
            source,
        )
    return TensorType(tuple(value.shape), value.dtype, tuple(value.stride()))


def _plain_attention(
    node: fx.Node,
    op: str,
    args: tuple[Arg, ...],
    kwargs: tuple[tuple[str, Arg], ...],
    types: Mapping[str, TensorType],
) -> tuple[str, tuple[Arg, ...], tuple[tuple[str, Arg], ...]] | None:
    """aten.scaled_dot_product_attention, if only the first result is read and nothing is random.
    Queries with more heads than the keys have share these, which it must be told."""
    arguments = ops.arguments(Node(node.name, op, args, kwargs, ()))
    mask, dropout, causal = (arguments.get(key) if key else None for key in ATTENTION[op])
    if dropout != 0.0 or any(
        user.target is not operator.getitem or user.args[1] != 0 for user in node.users
    ):
        return None
    query, key, value, scale = (arguments.get(name) for name in ("query", "key", "value", "scale"))
    assert isinstance(query, Ref) and isinstance(key, Ref)
    shared = types[query.name].shape[HEADS] != types[key.name].shape[HEADS]
    return (
        "aten.scaled_dot_product_attention.default",
        (query, key, value, mask, 0.0, bool(causal)),
        (
            *((("scale", scale),) if scale is not None else ()),
            *((("enable_gqa", True),) if shared else ()),
        ),
    )


def _is_only_checked(node: fx.Node) -> bool:
    """Whether it is a number that nothing but checks ask for: `lengths.max().item() <= 32`."""
    if not isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    return all(packet_name(str(u.target)) in NOT_HELD or _is_only_checked(u) for u in node.users)


def _returns_tuple(node: fx.Node) -> bool:
    assert isinstance(node.target, torch._ops.OpOverload)
    returns = node.target._schema.returns
    return len(returns) != 1 or isinstance(returns[0].type, torch.ListType)


def _unsupported(node: fx.Node) -> CaptureError:
    name = getattr(node.target, "__name__", str(node.target))
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        if "auto_functionalized" in name:
            called = node.args[0] if node.args else "a custom operator"
            return mutable(node, str(called))
        return CaptureError(
            f"the model uses {name}, which runs a part of it under a condition or in a loop",
            "a graph is a straight line of operators, the same for every call",
            "unroll it, use torch.where, or compile the parts it chooses from separately",
            origin(node),
        )
    return DataDependentError(
        f"the model computes {name} on sizes or Python values that are not known in advance",
        "a dimension is dynamic or depends on the values of a tensor; one graph serves one shape",
        f"export without dynamic_shapes, and compile once per shape; or {CUT}",
        origin(node),
    )


def mutable(node: fx.Node, name: str) -> CaptureError:
    """The refusal of an operator that writes and has no functional form."""
    return CaptureError(
        f"{name} writes into a tensor that it is given",
        "a graph is functional, and this operator has no functional form: it writes to a list, or "
        "to what may be None, or returns something else than new tensors",
        "let it write to plain tensors, or return new ones (register it with mutates_args=())",
        origin(node),
    )
