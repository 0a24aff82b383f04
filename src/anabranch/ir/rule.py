"""Rule: one graph for another. A value: its equation, what to find, what to put, and when.

Patterns are written with ordinary operators. A wildcard stands for any argument, a tensor or an
attribute; one that appears twice must be the same both times. A call names an ATen overload; of
the arguments it leaves out, each must have its default, or be captured together under `rest`.

>>> x, s = wild("x s")
>>> twice = Rule("x*s + x*s -> (x*s) * 2", find=x * s + x * s, replace=(x * s) * 2)
>>> print(text_rule(twice))
rule x*s + x*s -> (x*s) * 2
  find    aten.add.Tensor(aten.mul.Tensor(x, s), aten.mul.Tensor(x, s))
  replace aten.mul.Tensor(aten.mul.Tensor(x, s), 2)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from anabranch.errors import VerifyError
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref
from anabranch.ir.key import digest_text
from anabranch.ir.refused import Refused
from anabranch.ir.text import text_arg
from anabranch.ir.types import TensorType


class Pattern:
    """Something that matches an argument; arithmetic on patterns gives patterns."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Call:
        return Call("aten.add.Tensor", (self, other))

    def __sub__(self, other: Operand) -> Call:
        return Call("aten.sub.Tensor", (self, other))

    def __mul__(self, other: Operand) -> Call:
        return Call("aten.mul.Tensor", (self, other))

    def __truediv__(self, other: Operand) -> Call:
        return Call("aten.div.Tensor", (self, other))

    def __matmul__(self, other: Operand) -> Call:
        return Call("aten.matmul.default", (self, other))

    def __neg__(self) -> Call:
        return Call("aten.neg.default", (self,))


@dataclass(frozen=True, slots=True)
class Wild(Pattern):
    """Any argument: a value, a number, a tuple, None."""

    name: str


@dataclass(frozen=True, slots=True)
class Call(Pattern):
    """A call of this operator on these arguments. `rest`: the name under which the arguments
    that the pattern leaves out are captured (and, in a replacement, put back); without it they
    must have their defaults."""

    op: str
    args: tuple[Operand, ...]
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Result(Pattern):
    """One of several results of a call, by its place. Of replacements only: what is found is a
    call's first."""

    call: Call
    at: int


@dataclass(frozen=True, slots=True)
class Each(Pattern):
    """In a tuple, as many items as there are, at least one, each of which is such a call; its
    wildcards and rests stand for a tuple of what they are in each, and occur nowhere else. Of what
    is found only, once in a tuple.

    >>> w, i, axis = wild("w i axis")
    >>> looked_up = Each(Call("aten.embedding.default", (w, i)))
    >>> text_pattern(Call("aten.stack.default", ((looked_up,), axis)))
    'aten.stack.default([*aten.embedding.default(w, i)], axis)'
    """

    call: Call


Operand = (
    Pattern
    | Ref
    | int
    | float
    | bool
    | str
    | None
    | torch.dtype
    | torch.memory_format
    | torch.layout
    | tuple["Operand", ...]
)
"""What a pattern may be called with: as `Arg`, or patterns in it. References stand in replacements
only, where a wildcard is bound to several values, such as all parts of a concatenation."""

COMMUTATIVE = frozenset({"aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default"})
"""Operators whose first two arguments may be swapped where all others have their defaults."""


@dataclass(slots=True)
class ValueFacts:
    """What is known of each value by its name: its type, the node that makes it, and whether it
    depends on constants alone. Grows as nodes are added."""

    types: dict[str, TensorType]
    producers: dict[str, Node]
    constant: set[str]

    @staticmethod
    def declared(graph: Graph) -> ValueFacts:
        """Of the inputs and constants only."""
        types = {value.name: value.type for value in graph.inputs}
        types.update((constant.name, constant.type) for constant in graph.constants)
        return ValueFacts(types, {}, {constant.name for constant in graph.constants})

    @staticmethod
    def of(graph: Graph) -> ValueFacts:
        """What is known of all values of the graph."""
        facts = ValueFacts.declared(graph)
        for node in graph.nodes:
            facts.add(node)
        return facts

    def add(self, node: Node) -> None:
        """Take in a node whose operands are known already."""
        self.types.update(zip(node.results, node.types, strict=True))
        self.producers.update(dict.fromkeys(node.results, node))
        if self.constant.issuperset(node.uses) and computable(node):
            self.constant.update(node.results)


ANYTHING = ("empty", "from_file")
"""In the names of operators whose results hold anything at all."""


def computable(node: Node) -> bool:
    """Whether the same arguments always give the same results: neither random nor unknown. What
    ATen's schema says tells of operators that the table lacks; nothing tells of those of others."""
    kind, name = ops.kind_of(node), ops.packet_name(node.op)
    if ops.draws(node) or any(part in name for part in ANYTHING):
        return False
    return kind != "opaque" or (name.startswith("aten.") and ops.is_pure(node.op))


@dataclass(frozen=True, slots=True)
class Binding:
    """What a wildcard stands for in a match. `type` only for a value; `constant`: it does not
    depend on the inputs."""

    arg: Arg
    type: TensorType | None = None
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the value; AssertionError for what is no tensor."""
        assert self.type is not None, f"{self.arg} is not a tensor"
        return self.type.shape


@dataclass(frozen=True, slots=True)
class Match:
    """Where a rule applies: the matched nodes, the roots first, and what each wildcard stands for.
    `match.s` is the Binding of wildcard s. `width`: how many of the nodes are roots."""

    nodes: tuple[Node, ...]
    bound: Mapping[str, Arg]
    value_facts: ValueFacts
    width: int = 1

    @property
    def root(self) -> Node:
        """The first of the nodes that are replaced."""
        return self.nodes[0]

    @property
    def roots(self) -> tuple[Node, ...]:
        """The nodes whose values are replaced, as many as the rule finds calls."""
        return self.nodes[: self.width]

    def __getattr__(self, name: str) -> Binding:
        if name not in self.bound:
            raise AttributeError(f"the pattern has no wildcard {name}")
        arg = self.bound[name]
        if isinstance(arg, Ref):
            return Binding(
                arg, self.value_facts.types[arg.name], arg.name in self.value_facts.constant
            )
        return Binding(arg)


Patterns = Pattern | tuple[Pattern, ...]
"""What comes in place of the roots, one for each."""


When = Callable[[Match], Refused | None]
"""Whether a rule applies at a match."""
Draw = Callable[[random.Random], Mapping[str, object]]
"""Random arguments for the left side of a rule."""

GlobalScope = Literal["", "first", "last"]


@dataclass(frozen=True, slots=True)
class Rule:
    """`name`: its equation. `find`: one call, or several that are replaced together, such as two
    convolutions of one input. `replace`: as many patterns over the wildcards of `find`, or a
    function of the match that gives them; of a root with several results it may give one for each.
    `when`: None where it applies, or why it does not. `draw`: random arguments for
    the wildcards and rests of `find`, tensors as their types, constants as a `Constant` of the
    wildcard's name, several values as a tuple of types, what is to be made of other arguments as
    patterns over their names, under which the rule must apply (by default each wildcard is a tensor
    of one shape), for its test. `scope`: where what it gains lies outside of what it replaces, or
    that may be more than a part of a search holds, it is tried in a whole network, at all places of
    a kind at once, too: "first", before parts are searched, or "last", after them, where it makes
    parts of what is a node. `also`: further nodes that are replaced where it
    applies, by as many patterns more, such as the last state of a loop whose steps are the root;
    they may lie above it, and no pattern reads them. `special`: it changes what NaN, an infinity or
    the sign of a zero gives, as the test of all rules finds by trying; no opinion.
    """

    name: str
    find: Call | tuple[Call, ...]
    replace: Patterns | Callable[[Match], Patterns]
    when: When | None = None
    draw: Draw | None = None
    scope: GlobalScope = ""
    also: Callable[[Match], tuple[Node, ...]] | None = None
    special: bool = False

    @property
    def roots(self) -> tuple[Call, ...]:
        """The calls that are replaced together, one for most rules."""
        return self.find if isinstance(self.find, tuple) else (self.find,)


def wild(names: str) -> list[Wild]:
    """Wildcards of these names, as in `x, w = wild("x w")`."""
    return [Wild(name) for name in names.split()]


def wildcards(pattern: Operand) -> Iterator[str]:
    """The names that a match of the pattern binds, rests included, in order, with repeats."""
    if isinstance(pattern, Wild):
        yield pattern.name
    elif isinstance(pattern, Call):
        yield from wildcards(pattern.args)
        if pattern.rest:
            yield pattern.rest
    elif isinstance(pattern, Result | Each):
        yield from wildcards(pattern.call)
    elif isinstance(pattern, tuple):
        for item in pattern:
            yield from wildcards(item)


def verify_rule(rule: Rule) -> None:
    """Its operators exist, its replacement uses only what was found, its name is an equation."""
    if "->" not in rule.name:
        raise VerifyError(f"rule {rule.name!r}: its name is not an equation")
    bound = set(wildcards(rule.find))
    sides = [rule.find] if callable(rule.replace) else [rule.find, rule.replace]
    for call in (call for side in sides for call in _calls(side)):
        parameters = ops.parameters(call.op)
        if len(call.args) > len(parameters):
            raise VerifyError(f"rule {rule.name}: {call.op} takes only {len(parameters)} arguments")
        several = [a for a in call.args if isinstance(a, tuple) and sum(map(_is_each, a)) > 1]
        if several:
            raise VerifyError(f"rule {rule.name}: each of several, {text_pattern(several[0])}")
    if any(_eaches(side) for side in sides[1:]):
        raise VerifyError(f"rule {rule.name}: it puts each of something that is only found")
    for each in _eaches(rule.find):
        inside = list(wildcards(each))
        if twice := [name for name in inside if [*wildcards(rule.find)].count(name) > 1]:
            raise VerifyError(f"rule {rule.name}: {twice} are in and outside of each")
    if isinstance(rule.replace, tuple) and len(rule.replace) != len(rule.roots):
        counts = f"finds {len(rule.roots)} values and puts {len(rule.replace)}"
        raise VerifyError(f"rule {rule.name}: {counts}")
    if not callable(rule.replace) and (missing := set(wildcards(rule.replace)) - bound):
        raise VerifyError(f"rule {rule.name}: the pattern does not bind {sorted(missing)}")


def text_rule(rule: Rule) -> str:
    """The equation and both sides, a computed one by the name of its function."""
    put = said_by(rule.replace) if callable(rule.replace) else text_pattern(rule.replace)
    condition = [f"  when    {said_by(rule.when)}"] if rule.when else []
    lines = [f"rule {rule.name}", f"  find    {text_pattern(rule.find)}", f"  replace {put}"]
    return "\n".join([*lines, *condition])


def said_by(function: Callable[[Match], object]) -> str:
    """The `text` of a condition or a replacement, or its name."""
    return str(getattr(function, "text", "") or getattr(function, "__qualname__", "shapes"))


def rule_key(rule: Rule) -> str:
    """Digest of the rule's text: its equation, its patterns and the name of its condition."""
    return digest_text(text_rule(rule))


def text_pattern(pattern: Operand) -> str:
    """The pattern as text: wildcards by name, calls with their operator and arguments."""
    if isinstance(pattern, Wild):
        return pattern.name
    if isinstance(pattern, Call):
        rest = [f"*{pattern.rest}"] if pattern.rest else []
        return f"{pattern.op}({', '.join([*map(text_pattern, pattern.args), *rest])})"
    if isinstance(pattern, Result):
        return f"{text_pattern(pattern.call)}.{pattern.at}"
    if isinstance(pattern, Each):
        return f"*{text_pattern(pattern.call)}"
    if isinstance(pattern, tuple):
        return f"[{', '.join(map(text_pattern, pattern))}]"
    assert not isinstance(pattern, Pattern)
    return text_arg(pattern)


def _calls(pattern: Operand) -> Iterator[Call]:
    if isinstance(pattern, Call):
        yield pattern
        yield from (call for arg in pattern.args for call in _calls(arg))
    elif isinstance(pattern, Result | Each):
        yield from _calls(pattern.call)
    elif isinstance(pattern, tuple):
        yield from (call for item in pattern for call in _calls(item))


def _eaches(pattern: Operand) -> list[Each]:
    args = (arg for call in _calls(pattern) for arg in call.args if isinstance(arg, tuple))
    return [item for arg in args for item in arg if isinstance(item, Each)]


def _is_each(item: Operand) -> bool:
    return isinstance(item, Each)
