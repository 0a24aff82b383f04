"""Which states of a model that is cut a section may write where they lie.

    %k_1 = index_put(%k, [%at], %x)         a section
    copy_(%k, %k_1)                         at the end of the way: the section can do that, if

    all who read what %k was                run before that section, or are in it
    nothing behind it                       is checked, or may fail: a call that is found to go
                                            another way has written nothing

Sections behind it that read the new value find it in the state's place; whoever else reads it gets
a copy. So may a step that runs as eager does, as its last work, where it writes a part of the state
at a place that a number tells, and only sections read the new value:

    %k_1 = slice_scatter(%k, %y, 0, %n, %m)  ->   copy_(slice(%k, 0, %n, %m), %y)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from anabranch.frontend.cut_checks import ITEM
from anabranch.frontend.value_checks import CHECKS
from anabranch.ir import ops
from anabranch.ir.ops import packet_name

aten = torch.ops.aten
Run = tuple[str, list[fx.Node]]
"""Whether the nodes are a section or run as eager does, and the nodes."""
PARTS: dict[str, Any] = {
    "aten.slice_scatter.default": aten.slice.Tensor,
    "aten.select_scatter.default": aten.select.int,
}
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@dataclass(frozen=True, slots=True)
class StateStore:
    """A step writes a state where it lies. `copy`: the node that it does the work of; `shown`:
    whether all who read the new value in other steps find it in the state's place; `part`: what
    gives the part of the state that is written, where the step runs as eager does."""

    state: fx.Node
    new: fx.Node
    copy: fx.Node
    shown: bool
    part: Any = None


def stores(graph: fx.Graph, states: Mapping[fx.Node, str], runs: Sequence[Run]) -> list[StateStore]:
    """Those of these states, by placeholder, that sections may write."""
    home = {node: number for number, (_, nodes) in enumerate(runs) for node in nodes}
    return [store for state in states for store in _store(graph, state, runs, home)]


def _store(
    graph: fx.Graph, state: fx.Node, runs: Sequence[Run], home: Mapping[fx.Node, int]
) -> Iterator[StateStore]:
    copies = [u for u in state.users if u.target is aten.copy_.default and u.args[0] is state]
    new = copies[0].args[1] if len(copies) == 1 and not copies[0].users else None
    if not isinstance(new, fx.Node) or new not in home:
        return
    number = home[new]
    was, now = state.meta["val"], new.meta["val"]
    part = None if runs[number][0] == "section" else _part(state, new)
    if (was.shape, was.dtype) != (now.shape, now.dtype):
        return
    if not _nothing_refuses(runs, number) or _read_after(graph, state, copies[0], number, runs):
        return
    if part is None and runs[number][0] == "eager":
        return
    others = [
        user
        for user in new.users
        if user is not copies[0] and (part is not None or home.get(user, number + 1) != number)
    ]
    shown = was.stride() == now.stride() and all(
        user in home and runs[home[user]][0] == "section" for user in others
    )
    if shown or part is None:
        yield StateStore(state, new, copies[0], shown, part)


def _part(state: fx.Node, new: fx.Node) -> Any:
    """The operator that gives the part of the state that a new value differs in, of what is written
    there; None where it does not differ so."""
    if str(new.target) not in PARTS or new.args[0] is not state or new.kwargs:
        return None
    source = new.args[1]
    fresh = isinstance(source, fx.Node) and source.op == "call_function" and not _is_view(source)
    return PARTS[str(new.target)] if fresh else None


def _nothing_refuses(runs: Sequence[Run], number: int) -> bool:
    """Whether a call that has come to this section goes this way to its end."""
    here = runs[number][1] if runs[number][0] == "section" else []  # which writes at its end
    behind = [(kind, node) for kind, nodes in runs[number + 1 :] for node in nodes]
    return (
        not any(packet_name(str(node.target)) in CHECKS for node in here)
        and all(kind == "section" or _goes_on(node) for kind, node in behind)
        and not any(_may_fail(node) for _, node in behind)
    )


def _may_fail(node: fx.Node) -> bool:
    """Whether it raises for some values of its operands: places that are told by tensors, say."""
    name = str(node.target)
    if not isinstance(node.target, torch._ops.OpOverload) or node.target is aten.copy_.default:
        return False
    if packet_name(name) in CHECKS:
        return True
    if ops.info(name).kind in ("pointwise", "view"):
        return False
    read = (operand.meta.get("val") for operand in node.all_input_nodes)
    return any(isinstance(x, torch.Tensor) and x.dtype in INTEGERS for x in read)


def _goes_on(node: fx.Node) -> bool:
    """Whether it checks nothing, and has operands of which it is known that it takes them: tensors
    of known sizes, and numbers of any value where it is arithmetic of real numbers."""
    if "check" in node.meta or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target is ITEM or node.target is aten.copy_.default:
        return True
    result = node.meta.get("val")
    operands = [operand.meta.get("val") for operand in node.all_input_nodes]
    tensors = [value for value in (result, *operands) if isinstance(value, torch.Tensor)]
    static = all(type(size) is int for value in tensors for size in value.shape)
    if not static or not isinstance(result, torch.Tensor):
        return False
    arithmetic = ops.info(str(node.target)).kind == "pointwise" and result.is_floating_point()
    return arithmetic or len(tensors) == 1 + len(operands)


def _read_after(
    graph: fx.Graph, state: fx.Node, copy: fx.Node, number: int, runs: Sequence[Run]
) -> bool:
    """Whether somebody reads what the state was, or a view of that, once this section runs. What a
    section gives is no view."""
    home = {node: place for place, (_, nodes) in enumerate(runs) for node in nodes}
    aliases = {state}
    for node in graph.nodes:
        bases = aliases.intersection(node.all_input_nodes)
        if node is copy or not bases:
            continue
        place = home.get(node, len(runs))
        views = any(base is not state and home[base] < number for base in bases)
        if place > number or (place == number and views and runs[number][0] == "section"):
            return True
        if _is_view(node) and runs[place][0] == "eager":
            aliases.add(node)
    return False


def _is_view(node: fx.Node) -> bool:
    """Whether it may give other views of what it reads."""
    if node.target is operator.getitem or not isinstance(node.target, torch._ops.OpOverload):
        return True
    arguments = node.target._schema.arguments
    return str(node.target) == "aten._unsafe_view.default" or any(
        argument.alias_info is not None for argument in arguments
    )
