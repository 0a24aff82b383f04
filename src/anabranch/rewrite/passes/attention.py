"""Attention that is written out becomes the operator of that name, which is one launch.

    %s = bmm(%q, transpose(%k))                 heads are views of more dimensions, seen through
    %d = div(%s, 8.0)
    %m = add(%d, %mask)                 ->      %a = scaled_dot_product_attention(%q, %k, %v, %mask,
    %p = _softmax(%m, -1)                                                         scale=0.125)
    %a = bmm(%p, %v)

Nothing in between may be read by anybody else. Casts between floats on the way are left out: the
operator keeps its scores in single precision. Masks may be added, by `baddbmm` or each to the
scores in a shape of its own, as windows of windows have them; or one filled in where a constant
says so, with what lies below all scores. If a mask is known, it must leave something of each row:
of rows that are masked all over the two think otherwise. A mask that is given may be added all
the same: transformers get theirs so, and nobody reads the rows of a padding. How the operands come
to have heads is `rewrite/attention_heads`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from anabranch.ir import ops
from anabranch.ir.conditions import conditioned
from anabranch.ir.graph import Arg, Constant, Graph, Node, Ref, users
from anabranch.ir.ops import ATTENTION
from anabranch.ir.rule import ValueFacts
from anabranch.rewrite.attention_heads import (
    HeadLayout,
    HeadsOperand,
    Mask,
    Stack,
    heads_of,
    in_order,
    scaled,
    seen_as,
    way_of,
)
from anabranch.rewrite.build import Builder
from anabranch.rewrite.passes.fold_constants import evaluate, foldable
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace

BMM, BADDBMM, SOFTMAX = "aten.bmm.default", "aten.baddbmm.default", "aten._softmax.default"
HIDDEN_SCORE = -1e4
"""What hides a score that it stands for: transformers in half precision fill in no less, and no
scores of theirs lie near it."""
LARGEST_FACTOR = 128.0
"""A factor of a head that its queries take without growing out of half precision."""
MOST_HEAD_CHANNELS = 256
"""Numbers of a head: beyond, no fused kernel keeps them."""


class Apart(Exception):
    """Why products around a softmax stay apart, as a sentence."""


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """What is known of the source: values, who reads them, what is returned, constants, and the
    nodes that compute constants of these."""

    graph: Graph
    value_facts: ValueFacts
    readers: Mapping[str, list[Node]]
    returned: frozenset[str]
    contents: Mapping[str, Constant]
    able: Mapping[str, Node]
    seen: list[tuple[Constant, str, tuple[int | float, ...]]]
    """The facts that the attention that is looked at relies on, and those before it."""

    def constant(self, name: str) -> Constant | None:
        """A constant with its value, or what is computed from constants alone."""
        if name in self.contents or name not in self.value_facts.constant:
            return self.contents.get(name)
        if self.value_facts.producers[name].name not in self.able:
            return None
        held = {c.name: c.value for c in self.contents.values() if c.value is not None}
        return next(iter(evaluate(self.graph, self.able, {name}, held)), None)

    def content(self, name: str) -> torch.Tensor | None:
        """The values of a constant, None for what is none or has no values yet."""
        constant = self.constant(name)
        return None if constant is None else constant.value

    def rely(self, name: str, kind: str, *numbers: int | float) -> None:
        """Note what was seen in the value of a constant."""
        constant = self.constant(name)
        if constant is not None:
            self.seen.append((constant, kind, numbers))

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of the value."""
        return self.value_facts.types[name].shape

    def maker(self, name: str) -> Node | None:
        """The node that makes the value for one reader alone, if there is one."""
        readers = self.readers.get(name, [])
        alone = len(readers) == 1 and readers[0].uses.count(name) == 1
        return self.value_facts.producers.get(name) if alone and name not in self.returned else None


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores come of a product: by what all of it is multiplied, by what each head, what is
    added then, or what is filled in, and the shape that the softmax sees. What a head has is told
    with the scores' shape there."""

    product: Node
    scale: float
    factors: tuple[tuple[str, tuple[int, ...]], ...]
    masks: tuple[tuple[str, tuple[int, ...]], ...]
    fill: float | None
    shape: tuple[int, ...]


def attention(graph: Graph, trace: Trace) -> Graph:
    """The graph with attention as an operator."""
    contents = {c.name: c for c in graph.constants if c.value is not None}
    returned = frozenset(ref.name for ref in graph.outputs)
    if all(node.op != BMM for node in graph.nodes):
        return graph
    able = foldable(graph, {c.name: c.value for c in contents.values() if c.value is not None})
    facts = AttentionFacts(graph, ValueFacts.of(graph), users(graph), returned, contents, able, [])
    builder = Builder(graph)
    replacements: dict[str, Ref] = {}
    for node in graph.nodes:
        if node.op == BMM:
            replacements.update(_attention(builder, node, facts, trace))
        if node.name in replacements:
            builder.replace(node.name, replacements[node.name])
        else:
            builder.keep(node)
    after = builder.graph()
    return graph if after is graph else conditioned(after, facts.seen)


def _attention(builder: Builder, node: Node, facts: AttentionFacts, trace: Trace) -> dict[str, Ref]:
    """The nodes in place of the second product of an attention, and of the view of it that has the
    shape of heads; nothing if it is none."""
    softmax = _past_views(_name(node.args[0]), facts)
    if softmax is None or softmax.op != SOFTMAX:
        return {}
    mark = len(facts.seen)
    try:
        heads = _called(builder, node, _scores(softmax, node, facts), facts)
    except Apart as why:
        del facts.seen[mark:]
        refuse(trace, f"attention at %{node.name}", str(why))
        return {}
    type, view, last = builder.facts.types[heads.name], node, None
    while True:
        last = view if seen_as(type, view.type.shape) else last
        readers = facts.readers.get(view.name, [])
        if view.type.shape == type.shape or len(readers) != 1 or view.name in facts.returned:
            break
        if not in_order(readers[0], facts.value_facts):
            break
        (view,) = readers
    last = last or node
    if last.type.shape != type.shape:
        heads = builder.call("aten.reshape.default", heads, last.type.shape)
    return {last.name: heads}


def _scores(softmax: Node, after: Node, facts: AttentionFacts) -> Scores:
    """From the softmax back to the first product; `after`: the product behind it."""
    rank, shape = len(softmax.type.shape), softmax.type.shape
    dim = ops.arguments(softmax)["dim"]
    matrix = facts.shape(_name(after.args[0]))[-2:]
    if not isinstance(dim, int) or dim % rank != rank - 1 or shape[-2:] != matrix:
        raise Apart("its softmax runs along another axis")
    scale, fill = 1.0, None
    factors, masks = list[tuple[str, tuple[int, ...]]](), list[tuple[str, tuple[int, ...]]]()
    name = _name(softmax.args[0])
    while True:
        node = _past_views(name, facts)
        if node is None:
            raise Apart(f"%{name} is also needed elsewhere, or given")
        if node.op == BMM and node.type.shape[-2:] == matrix:
            return Scores(node, scale, tuple(factors), tuple(masks), fill, shape)
        if node.op == BADDBMM and node.type.shape[-2:] == matrix:
            if fill is not None or scale != 1.0 or factors:
                raise Apart(f"%{node.name} adds to a product what is done to it first")
            product, alpha, mask = _added(node, facts)
            return Scores(product, alpha, (), (*masks, (mask, node.type.shape)), None, shape)
        scaling = scaled(node)
        if scaling is not None:
            name, factor = scaling
            scale *= factor
            continue
        by = _by_head(node, facts)
        if by is not None:
            name, head_factor = by
            if node.type.shape[-2:] != matrix:
                raise Apart(f"%{head_factor} belongs to scores of another shape")
            factors.append((head_factor, node.type.shape))
            continue
        if fill is not None or scale != 1.0 or factors:
            raise Apart(f"%{node.name} stands between a product and what is done to it first")
        name, mask, fill = _masked(node, facts)
        if fill is not None and masks:
            raise Apart(f"%{node.name} hides what something is added to")
        masks.append((mask, node.type.shape))
        if node.type.shape[-2:] != matrix:
            raise Apart(f"%{mask} belongs to scores of another shape")


def _added(node: Node, facts: AttentionFacts) -> tuple[Node, float, str]:
    """The product of `baddbmm`, by what it is multiplied, and what is added to it."""
    arguments = ops.arguments(node)
    alpha, mask = arguments["alpha"], _name(arguments["self"])
    if arguments["beta"] != 1 or not isinstance(alpha, int | float):
        raise Apart(f"%{node.name} adds a multiple of %{mask}")
    _ask_for_rows(mask, node, facts)
    factors = arguments["batch1"], arguments["batch2"]
    return Node(node.name, BMM, factors, (), node.types, node.origin), float(alpha), mask


def _by_head(node: Node, facts: AttentionFacts) -> tuple[str, str] | None:
    """The scores that the node multiplies by a number of each head, and these numbers."""
    if node.op != "aten.mul.Tensor" or len(set(node.uses)) < 2:
        return None
    for scores, factor in (node.uses, node.uses[::-1]):
        content = facts.content(factor) if set(facts.shape(factor)[-2:]) <= {1} else None
        if content is not None and _leads_to_product(scores, facts):
            whole = facts.shape(scores) == node.type.shape and content.is_floating_point()
            if not whole or not bool((content.abs() <= LARGEST_FACTOR).all()):
                return None
            facts.rely(factor, "at_most", LARGEST_FACTOR)
            return scores, factor
    return None


def _masked(node: Node, facts: AttentionFacts) -> tuple[str, str, float | None]:
    """The scores that the node masks, the mask, and what is filled in where it says so."""
    arguments = ops.arguments(node)
    if node.op == "aten.add.Tensor" and arguments["alpha"] == 1 and len(node.uses) == 2:
        left, right = node.uses
        ours = [a for a in (left, right) if facts.shape(a) == node.type.shape and facts.maker(a)]
        scores = next((a for a in ours if _leads_to_product(a, facts)), "")
        if scores:
            mask = right if scores == left else left
            _ask_for_rows(mask, node, facts)
            return scores, mask, None
    if node.op == "aten.masked_fill.Scalar":
        value, mask = arguments["value"], _name(arguments["mask"])
        hidden = facts.content(mask)
        if not isinstance(value, int | float) or not value <= HIDDEN_SCORE:
            raise Apart(f"%{node.name} fills in {value}, and scores may lie below")
        if facts.shape(_name(node.args[0])) != node.type.shape:
            raise Apart(f"%{mask} repeats the scores")
        if hidden is None:
            raise Apart(f"%{mask} is not known, and may hide whole rows")
        if _whole_rows(hidden, node):
            raise Apart(f"%{mask} hides whole rows")
        facts.rely(mask, "hides_no_row", node.type.shape[-1])
        return _name(node.args[0]), mask, float(value)
    raise Apart(f"%{node.name} is {node.op}, which attention does not do to scores")


def _ask_for_rows(mask: str, scores: Node, facts: AttentionFacts) -> None:
    """Apart, if what is added is known to hide whole rows of the scores."""
    added = facts.content(mask)
    if added is not None and _whole_rows(added.isneginf(), scores):
        raise Apart(f"%{mask} hides whole rows")
    if added is not None:
        facts.rely(mask, "adds_to_each_row", scores.type.shape[-1])


def _whole_rows(hidden: torch.Tensor, scores: Node) -> bool:
    """Whether all of some row is hidden."""
    rows = hidden.expand(*hidden.shape[:-1], scores.type.shape[-1])
    return bool(rows.all(-1).any())


def _leads_to_product(name: str, facts: AttentionFacts) -> bool:
    """Whether the value is a product, or one that is multiplied by numbers and masked."""
    node = _past_views(name, facts)
    while node is not None and (scaling := scaled(node) or _by_head(node, facts)) is not None:
        node = _past_views(scaling[0], facts)
    if node is not None and node.op == "aten.add.Tensor":
        shape = node.type.shape
        return any(facts.shape(a) == shape and _leads_to_product(a, facts) for a in node.uses)
    return node is not None and node.op in (BMM, BADDBMM)


def _past_views(name: str, facts: AttentionFacts) -> Node | None:
    """The node that makes the value, through nodes that leave its elements in order, and casts
    between floats; None where others read something on the way."""
    node = facts.maker(name)
    while node is not None and (
        in_order(node, facts.value_facts) or node.op == "aten._to_copy.default"
    ):
        if not facts.value_facts.types[node.uses[0]].dtype.is_floating_point:
            return None
        node = facts.maker(node.uses[0])
    return node


def _called(builder: Builder, node: Node, scores: Scores, facts: AttentionFacts) -> Ref:
    """The operator in place of both products."""
    types = facts.value_facts.types
    query, transposed, value = (*map(_name, scores.product.args), _name(node.args[1]))
    if {types[query].dtype, types[value].dtype} != {node.type.dtype}:
        raise Apart("its factors are of several types")
    if max(types[query].shape[-1], types[value].shape[-1]) > MOST_HEAD_CHANNELS:
        raise Apart(f"its heads have more than {MOST_HEAD_CHANNELS} numbers")
    factors = query, transposed, value
    stacks = _stacks(query, scores, facts)
    more = *scores.factors, *scores.masks
    ways = (way_of(stack, factors, more, facts.value_facts) for stack in stacks)
    way = min(ways, key=lambda way: (way.repeated, way.kept))
    _ask(scores, way, types[query].dtype, facts)
    spread = [_spread(builder, name, seen) for (name, _), seen in zip(more, way.masks, strict=True)]
    refs = [_seen(builder, operand) for operand in way.operands]
    for factor in spread[: len(scores.factors)]:
        refs[0] = builder.call("aten.mul.Tensor", refs[0], factor, origin=node.origin)
    mask = _mask(builder, spread[len(scores.factors) :], scores.fill)
    scale = scores.scale * math.prod(operand.scale for operand in way.operands)
    return builder.call(
        ATTENTION, *refs, mask, 0.0, False, scale=scale, name="attention", origin=node.origin
    )


def _ask(scores: Scores, way: HeadLayout, dtype: torch.dtype, facts: AttentionFacts) -> None:
    """Apart, if masks or factors of heads are not what the operator takes."""
    for (name, _), seen in zip((*scores.factors, *scores.masks), way.masks, strict=True):
        if seen.repeated and name not in facts.value_facts.constant:
            raise Apart(f"%{name} belongs to scores of another shape")
    for name, _ in scores.factors + (scores.masks if scores.fill is None else ()):
        if (kind := facts.value_facts.types[name].dtype) != dtype:
            raise Apart(f"%{name} is of {kind}, what it is multiplied by or added to of {dtype}")
    contents = [(name, facts.content(name)) for name, _ in scores.masks]
    hiding = [name for name, mask in contents if mask is not None and bool(mask.isneginf().any())]
    if len(hiding) > 1:
        raise Apart("several masks hide scores, together perhaps whole rows")
    for name, mask in contents:
        if mask is not None and len(contents) > 1 and name not in hiding:
            facts.rely(name, "hides_nothing")


def _stacks(query: str, scores: Scores, facts: AttentionFacts) -> list[Stack]:
    """The batches and heads that there may be: those that the query had before all were one axis,
    and those that the axes of the scores are, cut in two."""
    stacks = heads_of(query, facts.value_facts)
    shapes = [shape[:-2] for shape in (*(shape for _, shape in scores.masks), scores.shape)]
    for lead in shapes:
        cuts = (lead[:at] for at in reversed(range(max(1, len(lead)))))
        stacks += [(math.prod(cut), math.prod(lead) // max(1, math.prod(cut))) for cut in cuts]
    return list(dict.fromkeys(stacks))


def _seen(builder: Builder, operand: HeadsOperand) -> Ref:
    """The operand in the shape of heads."""
    ref = Ref(builder.substitute(operand.name))
    if builder.facts.types[ref.name].shape != operand.shape:
        ref = builder.call("aten.reshape.default", ref, operand.shape)
    return builder.call("aten.transpose.int", ref, -2, -1) if operand.transposed else ref


def _spread(builder: Builder, name: str, seen: Mask) -> Ref:
    """A mask, or a factor, in the shape of heads."""
    mask = Ref(builder.substitute(name))
    type = builder.facts.types[mask.name]
    if seen.repeated:
        mask = builder.call("aten.expand.default", mask, seen.repeated)
    if seen.repeated or (1,) * (4 - len(type.shape)) + type.shape != seen.shape:
        return builder.call("aten.reshape.default", mask, seen.shape)
    if len(type.shape) < 2:
        return builder.call("aten.reshape.default", mask, (1, type.numel))
    return mask


def _mask(builder: Builder, masks: Sequence[Ref], fill: float | None) -> Arg:
    """What is added to the scores, or says which are kept."""
    if not masks:
        return None
    whole, *others = masks
    for mask in others:
        whole = builder.call("aten.add.Tensor", whole, mask)
    return whole if fill is None else builder.call("aten.logical_not.default", whole)


def _name(arg: Arg) -> str:
    assert isinstance(arg, Ref)
    return arg.name
