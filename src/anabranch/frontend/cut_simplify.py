"""A trace with less to do: nothing is computed or asked twice, nothing that nobody reads.

x.new_zeros(6, 8)                  full([6, 8], 0)     reads nothing, and need not wait for x
index(e, [m]), index(e, [m])       index(e, [m])       the host waits once

What the model holds and returns, or views of it, is returned as a copy: a caller may write to that.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from anabranch.frontend.cut_answers import TORCH_NAMESPACES
from anabranch.frontend.operators import FILLS, LIKE
from anabranch.frontend.value_checks import CHECKS
from anabranch.ir.ops import packet_name

aten = torch.ops.aten


def simplify(graph: fx.Graph) -> None:
    """In place."""
    _fill(graph)
    _merge(graph)
    graph.eliminate_dead_code(
        lambda node: node.op in ("placeholder", "output") or has_effects(node)
    )


def copy_results(graph: fx.Graph, weights: Collection[str], states: Collection[str] = ()) -> None:
    """Return copies of weights and constants, of views of these, and of what is computed of nothing
    else: no step between the call's values has those to give. And copies of states and views of
    these. In place."""
    held: set[fx.Node] = set()
    kept: set[fx.Node] = set()
    for node in graph.nodes:
        if node.name in states or (_is_view(node) and node.args[0] in kept):
            kept.add(node)
        elif node.op == "get_attr" or node.name in weights:
            held.add(node)
        elif node.op == "call_function" and not has_effects(node):
            base = node.args[0] if _is_view(node) else None
            if base in held or held.issuperset(node.all_input_nodes):
                held.add(node)
    output = graph.output_node()
    for node in [node for node in output.all_input_nodes if node in held | kept]:
        with graph.inserting_before(output):
            copy = graph.call_function(aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        output.replace_input_with(node, copy)


def _is_view(node: fx.Node) -> bool:
    """Whether it gives other views of its first argument, or one of several of these."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    first = node.target._schema.arguments[:1]
    return any(base.alias_info is not None and not base.alias_info.is_write for base in first)


def _fill(graph: fx.Graph) -> None:
    """Write what is filled with one number as what reads no tensor: it need not wait for one."""
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.target is aten.empty_like.default:  # its numbers are the same in every run
            node.target = aten.zeros_like.default
        if str(node.target) not in FILLS or not isinstance(value, Tensor):
            continue
        wide = sum(type(size) is not int or size != 1 for size in value.shape) > 1
        if str(node.target) in LIKE and wide:
            continue  # it lies as its operand does
        number = FILLS[str(node.target)]
        number = node.args[-1] if number is None else number
        shape: Any = list(value.shape)
        if str(node.target).startswith("aten.new_"):
            shape = node.args[1]
        elif not all(type(size) is int for size in shape) or not value.is_contiguous():
            continue
        with graph.inserting_before(node):
            like: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
            full = graph.call_function(aten.full.default, (shape, number), like)
        full.meta = dict(node.meta)
        node.replace_all_uses_with(full)
        graph.erase_node(node)


def _merge(graph: fx.Graph) -> None:
    """Compute and ask once what is computed or asked several times. Two that are returned, or of
    which views are, stay two tensors."""
    seen: dict[Any, fx.Node] = {}
    handed = set[fx.Node]()
    returned = set[fx.Node]()
    for node in graph.output_node().all_input_nodes:
        while node not in returned:
            returned.add(node)
            node = node.args[0] if _is_view(node) and isinstance(node.args[0], fx.Node) else node
    for node in list(graph.nodes):
        if node.op != "call_function" or has_effects(node):
            continue
        first = seen.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        twice = node in returned and first in handed
        handed.update([first] if node in returned else ())
        if first is not node and not twice:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(arg: Any) -> Any:
    if isinstance(arg, fx.Node):
        return "node", arg
    if isinstance(arg, list | tuple):
        return tuple(map(_key, arg))
    if isinstance(arg, Mapping):
        return tuple((name, _key(value)) for name, value in sorted(arg.items()))
    return type(arg), repr(arg)


def has_effects(node: fx.Node) -> bool:
    """Whether it does more than to give something, or gives something else each time."""
    if "check" in node.meta:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return True
    if packet_name(str(node.target)) in CHECKS:
        return True
    return node.target.namespace not in TORCH_NAMESPACES
