"""Writes of composites to tensors that they make -> values, in the trace of a model that is cut.

    %new_empty = new_empty(..)                    %new_empty = new_empty(..)
    %slice_1 = slice(%new_empty, 2, 1, 5)         %slice_1 = slice(%new_empty, 2, 1, 5)
    copy_(%slice_1, %x)                     ->    %copy = copy(%slice_1, %x)
    return %new_empty                             %all = slice_scatter(%new_empty, %copy, 2, 1, 5)
                                                  return %all

Torch's functionalisation stands above the code of composites such as circular padding, and does not
see what that code writes to. The model's own writes are values by then. Copies into placeholders
stay: they leave new values in the model's states.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from anabranch.errors import CaptureError
from anabranch.frontend.source import origin

aten = torch.ops.aten
HELD = ("placeholder", "get_attr")
"""Nodes of tensors that were there before the call."""
Scatter = Callable[..., tuple[Any, tuple[Any, ...]]]
"""Of a value, a new value of a view, the shape of the first one and the further arguments of the
view: the operator, and its arguments, that gives the value with the view's elements replaced."""


def write_values(graph: fx.Graph) -> None:
    """In place. CaptureError for a write that nobody has said as a value."""
    if any(_is_write(node) or _written_beside(node) for node in graph.nodes):
        _Values(graph).run()
        graph.lint()


class _Values:
    """`parents`: of views and of what in-place operators return, the node of the same memory, with
    the operator (None where it is the same). `now`: by the node that made the memory its value."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.parents: dict[fx.Node, tuple[fx.Node, fx.Node | None]] = {}
        self.now: dict[fx.Node, fx.Node] = {}

    def run(self) -> None:
        gone: list[fx.Node] = []
        for node in list(self.graph.nodes):
            if _is_write(node) and torch.Tag.inplace_view in node.target.tags:
                node.target = _functional(node)  # readers after that read what it returns
            with self.graph.inserting_before(node):
                if _is_write(node):
                    target = node.args[0]
                    if not isinstance(target, fx.Node):
                        raise _refused(node)
                    if self._root(target).op in HELD:
                        self._read(node, 1)
                        continue
                    self._put(target, self._written(node, target))
                    self.parents[node] = target, None
                    gone.append(node)
                    continue
                if any(self._root(each).op not in HELD for each in _written_beside(node)):
                    raise _refused(node)
                self._read(node, 0)
                if _is_view(node):
                    base = node.args[0]
                    assert isinstance(base, fx.Node)
                    self.parents[node] = base, node
        for node in reversed(gone):
            self.graph.erase_node(node)

    def _root(self, node: fx.Node) -> fx.Node:
        while node in self.parents:
            node = self.parents[node][0]
        return node

    def _read(self, node: fx.Node, first: int) -> None:
        """Have it read values as they are by now, from its argument of this number on. A view stays
        one of what it was taken of, and is taken anew by who reads it."""
        if _is_view(node):
            base: Any = node.args[0]
            while base in self.parents and self.parents[base][1] is None:
                base = self.parents[base][0]
            node.args = (base, *node.args[1:])
            first = 1 if self._root(base) in self.now else first
        rest = fx.map_arg(node.args[first:], self._current)
        node.args = (*node.args[:first], *rest)
        node.kwargs = fx.map_arg(node.kwargs, self._current)

    def _current(self, node: fx.Node) -> fx.Node:
        root = self._root(node)
        if root not in self.now:
            return node
        if node is root:
            return self.now[root]
        parent, view = self.parents[node]
        whole = self._current(parent)
        return whole if view is None else self._call(view, view.target, (whole, *view.args[1:]))

    def _written(self, node: fx.Node, target: fx.Node) -> fx.Node:
        """The value that the in-place operator leaves in its first argument."""
        op = _functional(node)
        args = (self._current(target), *fx.map_arg(node.args[1:], self._current))
        value = self._call(node, op, args, fx.map_arg(dict(node.kwargs), self._current))
        was, now = target.meta["val"], value.meta["val"]
        if now.dtype != was.dtype:
            value = self._call(node, aten._to_copy.default, (value,), {"dtype": was.dtype})
        if tuple(now.shape) != tuple(was.shape):
            raise _refused(node)
        return value

    def _put(self, node: fx.Node, value: fx.Node) -> None:
        if node not in self.parents:
            self.now[node] = value
            return
        parent, view = self.parents[node]
        if view is not None:
            scatter = SCATTERS.get(str(view.target))
            if scatter is None or view.kwargs:
                raise _refused(view)
            shape = list(parent.meta["val"].shape)
            op, args = scatter(self._current(parent), value, shape, *view.args[1:])
            value = self._call(view, op, args)
        self._put(parent, value)

    def _call(
        self, like: fx.Node, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> fx.Node:
        """A call in the place of another node, with what it gives, without numbers."""
        node = self.graph.call_function(op, args, kwargs or {})
        fakes = fx.map_arg((args, kwargs or {}), lambda each: each.meta["val"])
        node.meta = {**like.meta, "val": op(*fakes[0], **fakes[1])}
        return node


def _functional(node: fx.Node) -> Any:
    """The operator that gives what the node's writes."""
    assert isinstance(node.target, torch._ops.OpOverload)
    name = node.target._schema.name.removeprefix("aten::").removesuffix("_")
    overload = OVERLOADS.get(name, node.target._overloadname)
    op = getattr(getattr(aten, name, None), overload, None)
    if op is None or op._schema.is_mutable:
        raise _refused(node)
    return op


def _is_write(node: fx.Node) -> bool:
    """Whether it is an operator that writes to its first argument and returns that."""
    schema = getattr(node.target, "_schema", None)
    if (
        schema is None
        or not schema.is_mutable
        or not isinstance(node.target, torch._ops.OpOverload)
    ):
        return False
    first = schema.arguments[0].alias_info
    return node.target.namespace == "aten" and first is not None and first.is_write


def _written_beside(node: fx.Node) -> list[fx.Node]:
    """What an operator of ATen writes to that is not its first argument: `out=`."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return []
    written = [
        node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        for i, argument in enumerate(target._schema.arguments)
        if i and argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [each for each in written if isinstance(each, fx.Node)]


def _is_view(node: fx.Node) -> bool:
    """Whether it gives views of its first argument, or one of several of these."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if (
        schema is None
        or schema.is_mutable
        or not node.args
        or not isinstance(node.args[0], fx.Node)
    ):
        return False
    alias = schema.arguments[0].alias_info if schema.arguments else None
    return alias is not None or str(node.target) == "aten._unsafe_view.default"


def _refused(node: fx.Node) -> CaptureError:
    return CaptureError(
        f"the model is cut, and calls an operator that writes by {node.target}",
        "what that leaves in memory is not known as a value",
        "compile the part of the model that does without it",
        origin(node),
    )


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda axis: order[axis] % len(order))


OVERLOADS = {"transpose": "int"}
"""The name of the functional overload, where it is another one."""
SCATTERS: dict[str, Scatter] = {
    "aten.slice.Tensor": lambda x, y, shape, *rest: (aten.slice_scatter.default, (x, y, *rest)),
    "aten.select.int": lambda x, y, shape, *rest: (aten.select_scatter.default, (x, y, *rest)),
    "aten.diagonal.default": lambda x, y, shape, *r: (aten.diagonal_scatter.default, (x, y, *r)),
    "aten.unsqueeze.default": lambda x, y, shape, axis: (aten.squeeze.dim, (y, axis)),
    "aten.squeeze.dim": lambda x, y, shape, axis: (aten.reshape.default, (y, shape)),
    "aten.transpose.int": lambda x, y, shape, *axes: (aten.transpose.int, (y, *axes)),
    "aten.t.default": lambda x, y, shape: (aten.t.default, (y,)),
    "aten.permute.default": lambda x, y, shape, order: (
        aten.permute.default,
        (y, _inverse(order)),
    ),
    "aten.view.default": lambda x, y, shape, size: (aten.reshape.default, (y, shape)),
    "aten.alias.default": lambda x, y, shape: (aten.alias.default, (y,)),
    "aten.detach.default": lambda x, y, shape: (aten.alias.default, (y,)),
}
"""By view."""
