"""Equality saturation: what known equations make of terms, all of it at once (egg, POPL 2021).

    terms    relu(relu(x)) + y           known    relu(relu(x)) = relu(x)
    nodes    a: x   b: relu(a)   c: relu(b)   d: y   e: c + d
    step     c and b are equal, so e is b + d too: relu(x) + y

A node is an operator over classes of equal nodes; a class that becomes equal to another is one with
it, and so is whatever reads either (congruence). An equation is matched against classes: it needs
no node spelled as it is, if one of the class is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.ir.refused import Refused
from anabranch.ir.rule import COMMUTATIVE, Call, Operand, Wild
from anabranch.rewrite.discovery.settings import SIZES
from anabranch.rewrite.discovery.terms import EquationSide, TermEvaluator, fingerprint, size
from anabranch.rewrite.rules.found import MORE, Shapes, letters
from anabranch.rewrite.rules.size_letters import unify

Child = int | tuple[int, ...]
"""A class by its number, or several in brackets."""
Bound = Mapping[str, Child]


@dataclass(frozen=True, slots=True)
class Directed:
    """find -> replace, for tensors of these shapes."""

    find: Call
    replace: EquationSide
    shapes: Shapes


class ENode(NamedTuple):
    """An operator over classes; of a wildcard or a number, the operand itself and no operator."""

    op: str
    children: tuple[Child, ...] = ()
    rest: str = ""
    leaf: Operand = None


@dataclass(slots=True)
class Class:
    """A small term of it, the shape and the numbers of a tensor, and its nodes by operator."""

    term: Operand
    shape: tuple[int, ...] | None
    numbers: bytes
    nodes: dict[str, list[ENode]]


class EGraph:
    """Classes of equal terms, none of more than so many calls, and not more nodes than so many."""

    def __init__(self, run: TermEvaluator, calls: int, nodes: int) -> None:
        self._run, self._calls, self._most = run, calls, nodes
        self._parents: list[int] = []
        self._classes: dict[int, Class] = {}
        self._numbers: dict[ENode, int] = {}
        self._done: set[tuple[object, ...]] = set()

    def add(self, term: Operand) -> int:
        """Put the term in; the number of its class."""
        number = self._put(term, {})
        assert isinstance(number, int)
        return number

    def find(self, number: int) -> int:
        """The class that this one has become."""
        while self._parents[number] != number:
            number = self._parents[number]
        return number

    def step(self, rules: Mapping[str, list[Directed]]) -> bool:
        """Applies each rule wherever it matches; whether anything became of it."""
        before = len(self._parents), len(self._classes)
        matches = [
            (number, rule, bound)
            for number, each in self._classes.items()
            for op, nodes in each.nodes.items()
            for rule in rules.get(op, ())
            for node in nodes
            for bound in self._node(rule.find, node, {}, rule.shapes)
        ]
        for number, rule, bound in matches:
            key = (id(rule), *bound.items())
            if key in self._done:
                continue
            self._done.add(key)
            put = self._replacement(rule, bound)
            if put is not None:
                self._merge(number, put)
        self._rebuild()
        return before != (len(self._parents), len(self._classes))

    def _replacement(self, directed: Directed, bound: Bound) -> int | None:
        """The class of what is put, if the operands have shapes for which the equation holds."""
        shapes = {}
        for name in directed.shapes:
            if isinstance(number := bound.get(name), int):
                shape = self._classes[self.find(number)].shape
                assert shape is not None
                shapes[name] = shape
        told = unify(directed.shapes, shapes)
        if isinstance(told, Refused):
            return None
        bindings = dict(bound)
        for letter in sorted(letters(directed.shapes) & {*told} - {MORE}):
            if letter not in bound:
                bindings[letter] = self.add(_lettered(told[letter], self._run))
            elif self._size(bound[letter]) != told[letter]:
                return None
        put = self._put(directed.replace, bindings)
        return put if isinstance(put, int) else None

    def _size(self, child: Child) -> object:
        term = self._classes[self.find(child)].term if isinstance(child, int) else None
        return SIZES.get(term.name) if isinstance(term, Wild) else term

    def _put(self, pattern: Operand, bound: Bound) -> Child | None:
        """Its class, with these wildcards as those classes; None if there is no room."""
        if isinstance(pattern, Wild) and pattern.name in bound:
            return bound[pattern.name]
        if not isinstance(pattern, Call | tuple):
            return self._class_of(ENode("", leaf=pattern), pattern)
        operands = pattern if isinstance(pattern, tuple) else pattern.args
        whole = tuple(c for c in (self._put(each, bound) for each in operands) if c is not None)
        if len(whole) < len(operands):
            return None
        if isinstance(pattern, tuple):
            assert all(isinstance(child, int) for child in whole)
            return tuple(child for child in whole if isinstance(child, int))
        term = Call(pattern.op, tuple(map(self._term, whole)), pattern.rest)
        return self._class_of(self._canonical(ENode(pattern.op, whole, pattern.rest)), term)

    def _term(self, child: Child) -> Operand:
        if isinstance(child, tuple):
            return tuple(map(self._term, child))
        return self._classes[self.find(child)].term

    def _class_of(self, node: ENode, term: Operand) -> int | None:
        """The node's class, a new one if nobody has it."""
        if node in self._numbers:
            return self.find(self._numbers[node])
        large = len(self._numbers) >= self._most or size(term) > self._calls
        if large and isinstance(term, Call):
            return None
        shape, numbers = None, b""
        if isinstance(term, Call) or (isinstance(term, Wild) and term.name in self._run.inputs):
            values = self._run(term)
            if values is None:
                return None
            shape, numbers = tuple(values[0].shape), fingerprint(values)
        number = len(self._parents)
        self._parents.append(number)
        self._numbers[node] = number
        self._classes[number] = Class(term, shape, numbers, {node.op: [node]})
        return number

    def _canonical(self, node: ENode) -> ENode:
        """Over classes as they are now, in order where order does not matter."""
        children = [
            tuple(map(self.find, child)) if isinstance(child, tuple) else self.find(child)
            for child in node.children
        ]
        if node.op in COMMUTATIVE:
            children.sort(key=lambda child: child if isinstance(child, int) else -1)
        return ENode(node.op, tuple(children), node.rest, node.leaf)

    def _merge(self, left: int, right: int) -> None:
        """Makes two classes one, if they have the same numbers: an equation is not believed."""
        low, high = sorted(map(self.find, (left, right)))
        if low != high and self._classes[low].numbers == self._classes[high].numbers:
            self._unite(low, high)

    def _unite(self, low: int, high: int) -> None:
        """The smaller of their terms stands for both."""
        self._parents[high] = low
        terms = (self._classes[number].term for number in (low, high))
        self._classes[low].term = min(terms, key=size)

    def _rebuild(self) -> None:
        """What reads classes that became one becomes one, and so on."""
        changed = True
        while changed:
            changed, old, self._numbers = False, self._numbers, {}
            for node, number in old.items():
                number, now = self.find(number), self._canonical(node)
                other = self.find(self._numbers.setdefault(now, number))
                if other != number:
                    self._unite(*sorted((other, number)))
                    changed = True
        for number in [*self._classes]:
            self._classes[number].nodes.clear()
            if self._parents[number] != number:
                del self._classes[number]
        for node, number in self._numbers.items():
            self._classes[self.find(number)].nodes.setdefault(node.op, []).append(node)

    def _node(self, find: Call, node: ENode, bound: Bound, shapes: Shapes) -> Iterator[Bound]:
        """The bindings of the wildcards where a node of the operator is such a call."""
        if node.rest == find.rest:
            yield from self._all(find.args, node.children, bound, shapes)
            if node.op in COMMUTATIVE and node.children[0] != node.children[1]:
                yield from self._all(find.args, node.children[::-1], bound, shapes)

    def _all(
        self,
        patterns: tuple[Operand, ...],
        children: tuple[Child, ...],
        bound: Bound,
        shapes: Shapes,
    ) -> Iterator[Bound]:
        if len(patterns) != len(children):
            return
        if not patterns:
            yield bound
            return
        for more in self._child(patterns[0], children[0], bound, shapes):
            yield from self._all(patterns[1:], children[1:], more, shapes)

    def _child(
        self, pattern: Operand, child: Child, bound: Bound, shapes: Shapes
    ) -> Iterator[Bound]:
        """A tensor stands for tensors only, a number for numbers."""
        if isinstance(pattern, tuple):
            if isinstance(child, tuple):
                yield from self._all(pattern, child, bound, shapes)
        elif isinstance(child, tuple):
            return
        elif isinstance(pattern, Wild):
            tensor = self._classes[child].shape is not None
            if tensor == (pattern.name in shapes) and bound.get(pattern.name, child) == child:
                yield {**bound, pattern.name: child}
        elif isinstance(pattern, Call):
            for node in self._classes[child].nodes.get(pattern.op, ()):
                yield from self._node(pattern, node, bound, shapes)
        elif self._classes[child].term == pattern:
            yield bound


def _lettered(size: object, run: TermEvaluator) -> Operand:
    """The setting's letter for a size; the size itself if it has none."""
    for letter in sorted(letters(run.setting.inputs) - {MORE}):
        if SIZES[letter] == size:
            return Wild(letter)
    assert isinstance(size, int | tuple)
    return size
