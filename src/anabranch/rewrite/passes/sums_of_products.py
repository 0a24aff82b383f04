"""Sums of products of matrices become one product, along a depth that is all of theirs.

    a1 @ b1 + a2 @ b2 + ... + a64 @ b64      ->      cat([a1, ..., a64], 1) @ cat([b1, ..., b64], 0)

A recurrent weight's gradient is such a sum, with a term for each step: a few rows, where the result
has millions of elements that each term writes, and each addition reads and writes again. Terms of a
half type that are widened before they are added are not rounded one by one any more: their product
is an `anabranch.wide_mm`. Factors that are transposed are joined as they were before that, so that
who makes them may write them where they are read. What stays as it is: terms that somebody else
reads, and sums of which joining the factors would move more than half of what adding up does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from anabranch.ir import custom_ops, ops
from anabranch.ir.axis_order import PERMUTE, TRANSPOSE, order_of
from anabranch.ir.graph import Graph, Node, Ref, producers, types, users
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder, join_origins
from anabranch.trace import Trace

ADD, CONVERT, CAT = "aten.add.Tensor", "aten._to_copy.default", "aten.cat.default"
RESHAPE, SLICE = "aten.reshape.default", "aten.slice.Tensor"
STACK = "aten.stack.default"
MM, LINEAR, T = "aten.mm.default", "aten.linear.default", "aten.t.default"
TRANSPOSES = frozenset({T, PERMUTE, TRANSPOSE})
HALF = (torch.float16, torch.bfloat16)
FEWEST = 4
"""Terms that are worth it: of two or three a search may tell."""


@dataclass(frozen=True, slots=True)
class _Factor:
    """A matrix, or one whose transpose it is."""

    name: str
    transposed: bool


@dataclass(frozen=True, slots=True)
class _Term:
    """A product in a sum, and whether it is widened there; `depth`: its columns on the left."""

    left: _Factor
    right: _Factor
    widened: bool
    depth: int
    node: Node


@dataclass(frozen=True, slots=True)
class _Sum:
    """The products that a node adds up, in the order in which they are joined, and the other values
    that it adds. `stack`: what stacks the factors of one side anyway."""

    terms: tuple[_Term, ...]
    rest: tuple[str, ...]
    stack: Node | None


def sums_of_products(graph: Graph, trace: Trace) -> Graph:
    """The graph with one product in the place of each such sum."""
    search = _Search(graph)
    sums = {node.name: total for node in graph.nodes if (total := search.sum_at(node))}
    if not sums:
        return graph
    writing = _Writing(Builder(graph), {total.stack for total in sums.values() if total.stack})
    for node in graph.nodes:
        if node.name in sums:
            writing.product(node, sums[node.name])
            trace.add("applied", "rewrite", node.name, f"{len(sums[node.name].terms)} products")
        elif node in writing.stacks:
            writing.builder.replace(node.name, writing.stacked(node))
        else:
            writing.builder.keep(node)
    return writing.builder.graph()


class _Writing:
    """The new graph on the way. `stacks`: those of the old one that are joined as factors are."""

    def __init__(self, builder: Builder, stacks: Collection[Node]) -> None:
        self.builder, self.stacks = builder, stacks
        self._stacked: dict[str, Ref] = {}

    def product(self, node: Node, total: _Sum) -> None:
        """The product of all terms, and what else is added to it, in place of the node."""
        terms, builder = total.terms, self.builder
        builder.release(node)
        origin = join_origins([terms[0].node, node])
        left = self._joined([term.left for term in terms], True, total.stack, origin)
        right = self._joined([term.right for term in terms], False, total.stack, origin)
        op = custom_ops.WIDE_MM if terms[0].widened else MM
        result = builder.call(op, left, right, name="" if total.rest else node.name, origin=origin)
        for number, other in enumerate(total.rest, 1):
            name = node.name if number == len(total.rest) else ""
            addend = Ref(builder.substitute(other))
            result = builder.call(ADD, result, addend, name=name, origin=node.origin)
        builder.replace(node.name, result)

    def stacked(self, stack: Node) -> Ref:
        """What the stack makes, its parts one after the other."""
        if stack.name not in self._stacked:
            builder = self.builder
            parts = [Ref(builder.substitute(name)) for name in stack.uses]
            whole = self._side_by_side(parts, 0, stack.origin)
            self._stacked[stack.name] = self._shaped(whole, stack.type.shape, stack.origin)
        return self._stacked[stack.name]

    def _side_by_side(self, parts: Sequence[Ref], axis: int, origin: str) -> Ref:
        """The matrices one after the other; what they are views of, where that has one more axis,
        of size one: who makes it may then write it where it belongs."""
        whole = [source for part in parts if (source := self._before(part))] if axis == 0 else []
        if len(whole) < len(parts):
            return self.builder.call(CAT, tuple(parts), axis, origin=origin)
        joined = self.builder.call(CAT, tuple(whole), 0, origin=origin)
        count, rows, columns = self.builder.facts.types[joined.name].shape
        return self._shaped(joined, (count * rows, columns), origin)

    def _before(self, part: Ref) -> Ref | None:
        facts = self.builder.facts
        node = facts.producers.get(part.name)
        if node is None or node.op != RESHAPE:
            return None
        same = facts.types[node.uses[0]].shape == (1, *node.type.shape)
        return Ref(node.uses[0]) if same else None

    def _shaped(self, value: Ref, shape: tuple[int, ...], origin: str) -> Ref:
        if self.builder.facts.types[value.name].shape == shape:
            return value
        return self.builder.call(RESHAPE, value, shape, origin=origin)

    def _joined(
        self, factors: Sequence[_Factor], left: bool, stack: Node | None, origin: str
    ) -> Ref:
        """The factors of one side beside each other along the depth."""
        builder, names = self.builder, [factor.name for factor in factors]
        transposed = factors[0].transposed
        axis = int(left != transposed)
        if stack is not None and axis == 0 and set(names) <= set(stack.uses):
            whole = self.stacked(stack)
            rows = stack.type.shape[0] * stack.type.shape[1]
            whole = self._shaped(whole, (rows, stack.type.shape[2]), origin)
            first = stack.uses.index(names[0]) * stack.type.shape[1]
            last = first + len(names) * stack.type.shape[1]
            if last - first < rows:
                whole = builder.call(SLICE, whole, 0, first, last, origin=origin)
        else:
            parts = [Ref(builder.substitute(name)) for name in names]
            whole = self._side_by_side(parts, axis, origin)
        return builder.call(T, whole, origin=origin) if transposed else whole


class _Search:
    """What is asked of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._types, self._makers, self._readers = types(graph), producers(graph), users(graph)
        self._position = {node.name: i for i, node in enumerate(graph.nodes)}
        self._returned = {ref.name for ref in graph.outputs}
        self._values = {c.name: c.value for c in graph.constants if c.value is not None}

    def sum_at(self, root: Node) -> _Sum | None:
        """The sum of products that the node ends; None where there is none, or it stays."""
        type = root.type
        if not self._adds(root, type) or self._added_on(root, type):
            return None
        terms, rest = list[_Term](), list[str]()
        for name in self._leaves(root, type):
            term = self._term(name, type)
            if term is None:
                rest.append(name)
            else:
                terms.append(term)
        if len(terms) >= FEWEST:
            terms = [
                term for term in terms if not (self._zero(term.left) or self._zero(term.right))
            ]
        alike = [term for term in terms if _kind(term) == _kind(terms[0])]
        if len(alike) < len(terms) or len(terms) < FEWEST:
            return None
        depth, (m, n) = sum(term.depth for term in terms), type.shape
        if 2 * (m + n) * depth > m * n * len(terms):
            return None
        return self._in_order_of_a_stack(root, terms, tuple(rest))

    def _zero(self, factor: _Factor) -> bool:
        """Whether it is a constant of zeros: its numbers are read, gigabytes of them in all."""
        value = self._values.get(factor.name)
        return value is not None and not value.count_nonzero()

    def _in_order_of_a_stack(self, root: Node, terms: list[_Term], rest: tuple[str, ...]) -> _Sum:
        """The sum with its terms as a value has them that stacks one side's factors."""
        for side in (_left, _right):
            names = [side(term).name for term in terms]
            if side(terms[0]).transposed != (side is _left) or len(set(names)) < len(names):
                continue
            for stack in self._readers.get(names[0], ()):
                if not self._stacks(stack, root) or not set(names) <= set(stack.uses):
                    continue
                order = sorted(range(len(terms)), key=lambda i: stack.uses.index(names[i]))
                first = stack.uses.index(names[order[0]])
                if [names[i] for i in order] == list(stack.uses[first : first + len(names)]):
                    return _Sum(tuple(terms[i] for i in order), rest, stack)
        return _Sum(tuple(terms), rest, None)

    def _stacks(self, node: Node, root: Node) -> bool:
        """Whether it stacks matrices, which are all there before the sum is."""
        if (
            node.op != STACK
            or len(node.type.shape) != 3
            or ops.arguments(node)["dim"] not in (0, -3)
        ):
            return False
        makers = [self._makers[name] for name in node.uses if name in self._makers]
        end = self._position[root.name]
        once = len(set(node.uses)) == len(node.uses) == len(makers)
        return once and all(self._position[maker.name] < end for maker in makers)

    def _adds(self, node: Node, type: TensorType) -> bool:
        """Whether it adds two matrices of this type, and no multiple of one."""
        if node.op != ADD or len(type.shape) != 2 or not type.dtype.is_floating_point:
            return False
        both = [arg for arg in node.args if isinstance(arg, Ref)]
        plain = len(both) == 2 and ops.arguments(node)["alpha"] == 1
        same = all(self._types[ref.name].dtype == type.dtype for ref in both)
        return plain and same and all(self._types[r.name].shape == type.shape for r in both)

    def _added_on(self, node: Node, type: TensorType) -> bool:
        """Whether the sum is only a part of a longer one."""
        readers = self._readers.get(node.name, [])
        alone = len(readers) == 1 and node.name not in self._returned
        return alone and self._adds(readers[0], type) and readers[0].uses.count(node.name) == 1

    def _leaves(self, root: Node, type: TensorType) -> list[str]:
        """What is added up, in the order in which it is."""
        leaves, stack = list[str](), [name for name in reversed(root.uses)]
        while stack:
            name = stack.pop()
            maker = self._makers.get(name)
            inner = maker is not None and self._adds(maker, type) and self._added_on(maker, type)
            if maker is not None and inner:
                stack += reversed(maker.uses)
            else:
                leaves.append(name)
        return leaves

    def _term(self, name: str, type: TensorType) -> _Term | None:
        node = self._alone(name)
        widened, turned = False, False
        while node is not None and node.op in (CONVERT, *TRANSPOSES):
            source = self._types[node.uses[0]]
            if node.op == CONVERT:
                if widened or source.dtype not in HALF or type.dtype != torch.float32:
                    return None
                widened = True
            elif self._turns(node):
                turned = not turned
            node = self._alone(node.uses[0])
        if node is None or node.op not in (MM, LINEAR):
            return None
        arguments = ops.arguments(node)
        if node.op == LINEAR and (arguments["bias"] is not None or len(node.type.shape) != 2):
            return None
        first, second = node.uses[:2]
        left, right = self._factor(first, False), self._factor(second, node.op == LINEAR)
        depth = self._types[first].shape[1]
        if turned:
            left, right = _turned(right), _turned(left)
        return _Term(left, right, widened, depth, node)

    def _alone(self, name: str) -> Node | None:
        """Who makes a value that is read once."""
        once = len(self._readers.get(name, ())) == 1 and name not in self._returned
        return self._makers.get(name) if once else None

    def _factor(self, name: str, transposed: bool) -> _Factor:
        """The factor before all transpositions."""
        node = self._makers.get(name)
        while node is not None and node.op in TRANSPOSES:
            name, transposed = node.uses[0], transposed != self._turns(node)
            node = self._makers.get(name)
        return _Factor(name, transposed)

    def _turns(self, node: Node) -> bool:
        """Whether the node exchanges the axes of its matrix."""
        return node.op == T or order_of(node) == (1, 0)


def _left(term: _Term) -> _Factor:
    return term.left


def _right(term: _Term) -> _Factor:
    return term.right


def _turned(factor: _Factor) -> _Factor:
    return _Factor(factor.name, not factor.transposed)


def _kind(term: _Term) -> tuple[bool, bool, bool, torch.dtype]:
    """The features that terms of one product have in common, beside the sizes of their result."""
    return term.left.transposed, term.right.transposed, term.widened, term.node.type.dtype
