"""Attention that is written out becomes the operator of that name, which is one launch.

    %s = bmm(%q, transpose(%k))                 heads are views of more dimensions, seen through
    %d = div(%s, 8.0)
    %m = add(%d, %mask)                 ->      %a = scaled_dot_product_attention(%q, %k, %v, %mask,
    %p = _softmax(%m, -1)                                                         scale=0.125)
    %a = bmm(%p, %v)

Nothing in between may be read by anybody else. A mask may be added; or filled in where a constant
says so, with what lies below all scores. If it is known, it must leave something of each row: of
rows that are masked all over the two think otherwise. A mask that is given may be added all the
same: transformers get theirs so, and nobody reads the rows of a padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, users
from anabranch.ir.ops import ATTENTION
from anabranch.ir.rule import Known
from anabranch.rewrite.build import Builder
from anabranch.rewrite.passes.fold_constants import evaluate, foldable
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace

BMM, SOFTMAX = "aten.bmm.default", "aten._softmax.default"
IN_ORDER = frozenset(
    f"aten.{name}" for name in ("reshape.default", "clone.default", "unsqueeze.default")
) | {"aten.squeeze.dim", "aten.squeeze.default", "aten.squeeze.dims"}
HIDDEN = -1e4
"""What hides a score that it stands for: transformers in half precision fill in no less, and no
scores of theirs lie near it."""
WIDEST = 256
"""Numbers of a head: beyond, no fused kernel keeps them."""


class Apart(Exception):
    """Why products around a softmax stay apart, as a sentence."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the source: values, who reads them, what is returned, and constants."""

    graph: Graph
    known: Known
    readers: Mapping[str, list[Node]]
    returned: frozenset[str]
    contents: Mapping[str, torch.Tensor]

    def content(self, name: str) -> torch.Tensor | None:
        """Of a constant, or of what is computed from constants alone."""
        if name in self.contents or name not in self.known.constant:
            return self.contents.get(name)
        able = foldable(self.graph, self.contents)
        maker = self.known.producers[name].name
        made = evaluate(self.graph, able, {name}, self.contents) if maker in able else ()
        return next((one.value for one in made), None)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.known.types[name].shape

    def maker(self, name: str) -> Node | None:
        """The node that makes the value for one reader alone, if there is one."""
        readers = self.readers.get(name, [])
        alone = len(readers) == 1 and readers[0].uses.count(name) == 1
        return self.known.producers.get(name) if alone and name not in self.returned else None


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores come of a product: by what it is multiplied, what is added then (or filled in),
    and the shape in which that is done."""

    product: Node
    scale: float
    mask: str
    fill: float | None
    shape: tuple[int, ...]


def attention(graph: Graph, trace: Trace) -> Graph:
    """The graph with attention as an operator."""
    contents = {c.name: c.value for c in graph.constants if c.value is not None}
    returned = frozenset(ref.name for ref in graph.outputs)
    facts = Facts(graph, Known.of(graph), users(graph), returned, contents)
    builder = Builder(graph)
    made: dict[str, Ref] = {}
    for node in graph.nodes:
        if node.op == BMM:
            made.update(_attention(builder, node, facts, trace))
        if node.name in made:
            builder.replace(node.name, made[node.name])
        else:
            builder.keep(node)
    return builder.graph()


def _attention(builder: Builder, node: Node, facts: Facts, trace: Trace) -> dict[str, Ref]:
    """What comes in place of the second product of an attention, and of the view of it that has
    the shape of heads; nothing if it is none."""
    softmax = _past_views(_name(node.args[0]), facts)
    if softmax is None or softmax.op != SOFTMAX:
        return {}
    try:
        heads = _called(builder, node, _scores(softmax, node, facts), facts)
    except Apart as why:
        refuse(trace, f"attention at %{node.name}", str(why))
        return {}
    shape, view = builder.known.types[heads.name].shape, node
    while view.type.shape != shape:
        readers = facts.readers.get(view.name, [])
        if len(readers) != 1 or view.name in facts.returned or not _in_order(readers[0], facts):
            return {node.name: builder.call("aten.reshape.default", heads, node.type.shape)}
        (view,) = readers
    return {view.name: heads}


def _scores(softmax: Node, after: Node, facts: Facts) -> Scores:
    """From the softmax back to the first product; `after`: the product behind it."""
    rank, shape = len(softmax.type.shape), softmax.type.shape
    dim = ops.arguments(softmax)["dim"]
    matrix = facts.shape(_name(after.args[0]))[-2:]
    if not isinstance(dim, int) or dim % rank != rank - 1 or shape[-2:] != matrix:
        raise Apart("its softmax runs along another axis")
    scale, mask, fill = 1.0, "", None
    name = _name(softmax.args[0])
    while True:
        node = _past_views(name, facts)
        if node is None:
            raise Apart(f"%{name} is also needed elsewhere, or given")
        if node.op == BMM and node.type.shape[-2:] == matrix:
            return Scores(node, scale, mask, fill, shape)
        found = _scaled(node)
        if found is not None:
            name, factor = found
            scale *= factor
            continue
        if mask or scale != 1.0:
            raise Apart(f"%{node.name} stands between a product and what is done to it first")
        name, mask, fill = _masked(node, facts)
        shape = node.type.shape
        if shape[-2:] != matrix:
            raise Apart(f"%{mask} belongs to scores of another shape")


def _scaled(node: Node) -> tuple[str, float] | None:
    """What the node multiplies by a number, and that number."""
    if node.op not in ("aten.mul.Tensor", "aten.div.Tensor") or isinstance(node.args[1], Ref):
        return None
    by = node.args[1]
    if not isinstance(by, int | float) or isinstance(by, bool) or by <= 0:
        return None
    return _name(node.args[0]), float(by) if node.op == "aten.mul.Tensor" else 1.0 / by


def _masked(node: Node, facts: Facts) -> tuple[str, str, float | None]:
    """The scores that the node masks, the mask, and what is filled in where it says so."""
    given = ops.arguments(node)
    if node.op == "aten.add.Tensor" and given["alpha"] == 1 and len(node.uses) == 2:
        left, right = node.uses
        ours = [a for a in (left, right) if facts.shape(a) == node.type.shape and facts.maker(a)]
        scores = next((a for a in ours if _leads_to_product(a, facts)), "")
        if scores:
            mask = right if scores == left else left
            added = facts.content(mask)
            if added is not None and _whole_rows(added.isneginf(), node):
                raise Apart(f"%{mask} hides whole rows")
            return scores, mask, None
    if node.op == "aten.masked_fill.Scalar":
        value, mask = given["value"], _name(given["mask"])
        hidden = facts.content(mask)
        if not isinstance(value, int | float) or value > HIDDEN:
            raise Apart(f"%{node.name} fills in {value}, and scores may lie below")
        if hidden is None:
            raise Apart(f"%{mask} is not known, and may hide whole rows")
        if _whole_rows(hidden, node):
            raise Apart(f"%{mask} hides whole rows")
        return _name(node.args[0]), mask, float(value)
    raise Apart(f"%{node.name} is {node.op}, which attention does not do to scores")


def _whole_rows(hidden: torch.Tensor, scores: Node) -> bool:
    """Whether all of some row is hidden."""
    rows = hidden.expand(*hidden.shape[:-1], scores.type.shape[-1])
    return bool(rows.all(-1).any())


def _leads_to_product(name: str, facts: Facts) -> bool:
    """Whether the value is a product, or one that is multiplied by numbers."""
    node = _past_views(name, facts)
    while node is not None and (found := _scaled(node)) is not None:
        node = _past_views(found[0], facts)
    return node is not None and node.op == BMM


def _past_views(name: str, facts: Facts) -> Node | None:
    """What makes the value, through what leaves its elements in order, and casts between floats;
    None where others read something on the way."""
    node = facts.maker(name)
    while node is not None and (_in_order(node, facts) or node.op == "aten._to_copy.default"):
        if not facts.known.types[node.uses[0]].dtype.is_floating_point:
            return None
        node = facts.maker(node.uses[0])
    return node


def _in_order(node: Node, facts: Facts) -> bool:
    """Whether the elements come out in the order of the operand's shape, whatever their memory."""
    found = _order(node, facts)
    return node.op in IN_ORDER or (found is not None and found == sorted(found))


def _order(node: Node, facts: Facts) -> list[int] | None:
    """In which order the axes of more than one element come out, of a node that turns axes."""
    given = ops.arguments(node)
    if node.op == "aten.transpose.int":
        rank = len(node.type.shape)
        order, dims = list(range(rank)), (given["dim0"], given["dim1"])
        a, b = (d % rank for d in dims if isinstance(d, int))
        order[a], order[b] = b, a
    elif node.op == "aten.permute.default" and isinstance(given["dims"], tuple):
        order = [d % len(node.type.shape) for d in given["dims"] if isinstance(d, int)]
    else:
        return None
    shape = facts.shape(node.uses[0])
    return [d for d in order if shape[d] > 1]


def _called(builder: Builder, node: Node, scores: Scores, facts: Facts) -> Ref:
    """The operator in place of both products."""
    types, scale = facts.known.types, scores.scale
    query, turned, value = (*map(_name, scores.product.args), _name(node.args[1]))
    if {types[query].dtype, types[value].dtype} != {node.type.dtype}:
        raise Apart("its factors are of several types")
    if max(types[query].shape[-1], types[value].shape[-1]) > WIDEST:
        raise Apart(f"its heads have more than {WIDEST} numbers")
    operands = [_heads(query, facts), _key(turned, facts), _heads(value, facts)]
    maker = facts.maker(operands[0])
    if maker is not None and (found := _scaled(maker)) is not None:
        operands[0], scale = found[0], scale * found[1]
    if len({facts.shape(name)[:-2] for name in operands if name}) > 1 or not operands[1]:
        operands, scale = [query, "", value], scores.scale  # heads are grouped in several ways
    shape = (*facts.shape(operands[0])[:-1], types[turned].shape[-1])
    if scores.mask and scores.shape != shape:
        raise Apart(f"%{scores.mask} belongs to scores of another shape")
    mask = _mask(builder, scores, types[query].dtype)
    refs = [Ref(builder.substitute(name or turned)) for name in operands]
    if not operands[1]:
        refs[1] = builder.call("aten.transpose.int", refs[1], -2, -1, origin=node.origin)
    if len(shape) == 3:  # the kernels of libraries want heads
        refs = [builder.call("aten.unsqueeze.default", ref, 0) for ref in refs]
    return builder.call(
        ATTENTION, *refs, mask, 0.0, False, scale=scale, name="attention", origin=node.origin
    )


def _heads(name: str, facts: Facts) -> str:
    """The stack of matrices before its leading axes were grouped into one, which may have cost a
    copy: the first of all views of it that has at most four axes and the same matrices."""
    matrix, best = facts.shape(name)[-2:], name
    node = facts.known.producers.get(name)
    while node is not None and _in_order(node, facts):
        name = node.uses[0]
        shape = facts.shape(name)
        best = name if shape[-2:] == matrix and 3 <= len(shape) <= 4 else best
        node = facts.known.producers.get(name)
    return best


def _key(name: str, facts: Facts) -> str:
    """The stack of matrices of which the named one is turned; "" if nobody turned it."""
    e, s = facts.shape(name)[-2:]
    node = facts.known.producers.get(name)
    while node is not None and _in_order(node, facts):
        node = facts.known.producers.get(node.uses[0])
    order = _order(node, facts) if node is not None else None
    if node is None or order is None or order[:-2] + order[:-3:-1] != sorted(order):
        return ""
    name = node.uses[0]
    shape = tuple(n for n in facts.shape(name) if n > 1)
    if shape[-2:] != (s, e):
        return ""
    found = _heads(name, facts)
    while (node := facts.known.producers.get(found)) and facts.shape(found)[-2:] != (s, e):
        if not _in_order(node, facts):
            return ""
        found = _heads(node.uses[0], facts)
    return found if facts.shape(found)[-2:] == (s, e) and len(facts.shape(found)) <= 4 else ""


def _mask(builder: Builder, scores: Scores, dtype: torch.dtype) -> Arg:
    """What is added to the scores."""
    if not scores.mask:
        return None
    mask = Ref(builder.substitute(scores.mask))
    type = builder.known.types[mask.name]
    if scores.fill is None and type.dtype != dtype:
        raise Apart(f"%{mask.name} is of {type.dtype}, what it is added to of {dtype}")
    if len(type.shape) < 2:
        mask = builder.call("aten.reshape.default", mask, (1, type.numel))
    return mask if scores.fill is None else builder.call("aten.logical_not.default", mask)


def _name(arg: Arg) -> str:
    assert isinstance(arg, Ref)
    return arg.name
