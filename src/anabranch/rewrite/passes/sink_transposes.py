"""Permutations sink below what is computed element by element, so that this follows a product.

    %y = linear(%x, %w)              [n, h, w, c]        %y = linear(%x, %w)
    %t = permute(%y, [0, 3, 1, 2])   [n, c, h, w]   ->   %m = mul(%y, permuted %s)
    %m = mul(%t, %s)                                     %a = add(%m, permuted %r)
    %a = add(%m, %r)                                     %t = permute(%a, [0, 3, 1, 2])

Other operands are permuted the other way, which is a view. Only where the product, and what is made
of it, is read by nobody else, where no other product is read that this could follow as it is, and
where the result lies in memory as it did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anabranch.ir import ops
from anabranch.ir.axis_order import PERMUTE, TRANSPOSE, order_of
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, users
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace

RESHAPE = "aten.reshape.default"


def sink(graph: Graph, trace: Trace) -> Graph:
    """The graph with permutations of products behind the pointwise nodes that read them."""
    producer_of, readers = producers(graph), users(graph)
    returned = {ref.name for ref in graph.outputs}
    single = {name for name, nodes in readers.items() if len(nodes) == 1} - returned
    builder = Builder(graph)
    for node in graph.nodes:
        permutation = None
        if ops.kind_of(node) == "pointwise" and not ops.draws(node):
            own = [
                producer_of[name] for name in node.uses if name in producer_of and name in single
            ]
            if not any(ops.contracts(maker) for maker in own):
                permutation = next(
                    (maker for maker in own if _of_product(maker, producer_of, single)), None
                )
        sides = _sides(builder, node, permutation) if permutation is not None else None
        if permutation is None or sides is None:
            builder.keep(node)
        else:
            builder.replace(node.name, _below(builder, node, permutation, sides))
    return builder.graph()


PermutedArg = tuple[Arg, tuple[int, ...] | None]
"""An argument, and the axes by which it is permuted back, None if it stays."""


def _of_product(
    permutation: Node, producer_of: Mapping[str, Node], single: Collection[str]
) -> bool:
    """Whether the node permutes what a contraction has made, or what is computed of that by then,
    and nobody else reads any of it."""
    source = producer_of.get(permutation.uses[0]) if order_of(permutation) is not None else None
    while source is not None and source.name in single:
        if ops.kind_of(source) != "pointwise":
            return ops.contracts(source)
        shape = source.type.shape
        before = [
            producer_of[n]
            for n in source.uses
            if n in producer_of and producer_of[n].type.shape == shape
        ]
        computed = [maker for maker in before if ops.kind_of(maker) in ("pointwise", "contract")]
        source = next(iter(computed), None)
    return False


def _sides(builder: Builder, node: Node, permutation: Node) -> list[PermutedArg] | None:
    """What the node would read if it came first; None if its result would lie otherwise."""
    dims, table = _order(permutation), dict(builder.facts.types)
    back = tuple(dims.index(d) for d in range(len(dims)))
    renamed = builder.renamed(node)
    listed = [
        arg for arg in (*renamed.args, *dict(renamed.kwargs).values()) if isinstance(arg, tuple)
    ]
    named = any(isinstance(arg, Ref) for arg in dict(renamed.kwargs).values())
    if node.type.shape != permutation.type.shape or len(node.types) > 1 or listed or named:
        return None
    sides: list[PermutedArg] = []
    args: list[Arg] = []
    for i, arg in enumerate(renamed.args):
        if node.args[i] == Ref(permutation.name):
            arg = builder.renamed(permutation).args[0]
            sides.append((arg, None))
        elif isinstance(arg, Ref) and table[arg.name].numel != 1:
            type, name = table[arg.name], f"{i}"
            full = (1,) * (len(dims) - len(type.shape)) + type.shape
            table[name] = ops.infer(RESHAPE, (arg, full), (), table)[0]
            table[name] = ops.infer(PERMUTE, (Ref(name), back), (), table)[0]
            sides.append((arg, back))
            arg = Ref(name)
        else:
            if isinstance(arg, Ref) and len(table[arg.name].shape) > len(dims):
                return None
            sides.append((arg, None))
        args.append(arg)
    table["product"] = ops.infer(node.op, tuple(args), renamed.kwargs, table)[0]
    (type,) = ops.infer(PERMUTE, (Ref("product"), dims), (), table)
    return sides if ops.same_layout(type, node.type) else None


def _below(builder: Builder, node: Node, permutation: Node, sides: Sequence[PermutedArg]) -> Ref:
    """What the node computes of what was permuted before it, permuted."""
    args: list[Arg] = []
    for arg, back in sides:
        if isinstance(arg, Ref) and back is not None:
            shape = builder.facts.types[arg.name].shape
            full = (1,) * (len(back) - len(shape)) + shape
            if full != shape:
                arg = builder.call(RESHAPE, arg, full, origin=node.origin)
            arg = _permuted(builder, arg, permutation, back, node.origin)
        args.append(arg)
    more = dict(builder.renamed(node).kwargs)
    result = builder.call(node.op, *args, name="", origin=node.origin, **more)
    return _permuted(builder, result, permutation, _order(permutation), permutation.origin)


def _permuted(
    builder: Builder, value: Ref, permutation: Node, dims: tuple[int, ...], origin: str
) -> Ref:
    """The value permuted, as the node says it: two axes that change places go back so, too."""
    if permutation.op == TRANSPOSE:
        return builder.call(TRANSPOSE, value, *permutation.args[1:], origin=origin)
    return builder.call(PERMUTE, value, dims, origin=origin)


def _order(permutation: Node) -> tuple[int, ...]:
    order = order_of(permutation)
    assert order is not None, "a permutation"
    return order
