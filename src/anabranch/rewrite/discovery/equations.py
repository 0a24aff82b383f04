"""From equal terms to rules: names, survival on other shapes, the widest shapes, directions.

relu(cat([x, y], 1)) = cat([relu(x), relu(y)], 1)        x, y: "N C ..."
holds on other shapes                                    25 draws, whole numbers in fp64
holds for x: "N C ...", y: "N D ..." as well             so these are its shapes
may help in either direction                             two rules
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Ref, producers
from anabranch.ir.rule import COMMUTATIVE, Call, Operand, Rule, Wild, text_pattern, wildcards
from anabranch.ir.text import text_arg
from anabranch.rewrite.apply import apply, instantiate
from anabranch.rewrite.discovery.implied import Side, calls, directions, size
from anabranch.rewrite.match import matches
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules.found import MORE, Equation, Shapes, fill, letters, rule

DRAWS = 8
"""Random shapes on which an equation has to hold before it is kept."""

FRESH = "DEFGIJLTUVXYZ"
"""Letters that no setting uses."""


def survives(equation: Equation, draws: int = DRAWS) -> str:
    """Why the equation does not hold; "" if both sides give the same numbers on all draws, and the
    rule finds its own left side."""
    made = rule(equation)
    for seed in range(draws):
        try:
            graph = instantiate(made, seed)
        except (RuntimeError, IndexError, TypeError, KeyError) as failed:
            return f"cannot be drawn: {str(failed).splitlines()[0]}"
        roots = [ref.name for ref in graph.outputs]
        found = [m for m in matches(graph, made) if [root.name for root in m.roots] == roots]
        if not found:
            return "does not match its own instance"
        try:
            why = different(graph, apply(graph, made, found[0]), seed)
        except ValueError as refused:
            return str(refused)
        if why:
            return why
    return ""


def renamed(one: Side, two: Side, shapes: Shapes) -> tuple[Side, Side]:
    """With the inputs of one shape named in the order in which they appear."""
    free: dict[tuple[str, ...], list[str]] = {}
    for name, shape in shapes.items():
        free.setdefault(shape, []).append(name)
    table: dict[str, Operand] = {}
    for name in dict.fromkeys((*wildcards(one), *wildcards(two))):
        if name in shapes:
            table[name] = Wild(free[shapes[name]].pop(0))
    left, right = fill(one, table), fill(two, table)
    assert isinstance(left, Call | Wild) and isinstance(right, Call | Wild)
    return left, right


def equations(one: Side, two: Side, shapes: Shapes) -> Iterator[Equation]:
    """The equation in every direction that can be applied."""
    used = set(wildcards(one)) | set(wildcards(two))
    needed = {name: shape for name, shape in shapes.items() if name in used}
    for find, replace in directions(one, two, shapes):
        name = f"{short(find)} -> {short(replace)}"
        yield Equation(name, text_pattern(find), text_pattern(replace), needed)


def short(pattern: Operand) -> str:
    """As in the name of a rule: operators without namespace and overload."""
    text = re.sub(r"\baten\.(\w+)\.\w+\(", r"\1(", text_pattern(pattern))
    return text.replace(str(2**63 - 1), "end")


def widened(one: Side, two: Side, shapes: Shapes) -> Shapes:
    """The shapes with as many different letters as the equation bears: each place of a letter in
    each tensor, in turn, gets a letter of its own if the equation still holds."""
    fixed = set(wildcards(one)) | set(wildcards(two)) | set("HWRQ")
    current = {name: shape for name, shape in shapes.items() if name in fixed}
    for name in list(current)[::-1]:
        for place, letter in enumerate(current[name]):
            if letter == MORE or letter in fixed or _count(current, letter) < 2:
                continue
            fresh = next(each for each in FRESH if each not in letters(current))
            shape = current[name]
            trial = {**current, name: (*shape[:place], fresh, *shape[place + 1 :])}
            made = list(equations(one, two, trial))
            if made and not any(survives(each) for each in made):
                current = trial
    return current


def _count(shapes: Shapes, letter: str) -> int:
    return sum(shape.count(letter) for shape in shapes.values())


def blows_up(find: Call, replace: Side) -> bool:
    """Whether the replacement is the left side and more: it holds it as a part, or all its
    operators and at least two more."""
    if find in calls(replace):
        return True
    old, new = (Counter(call.op for call in calls(side)) for side in (find, replace))
    return old <= new and size(replace) >= size(find) + 2


def written_as(equation: Equation, rules: Iterable[Rule]) -> str:
    """The rule of a table that replaces an instance of the equation by the same graph; "" if none
    does."""
    made = rule(equation)
    graph = instantiate(made, 0)
    wanted = _replaced(graph, made)
    for other in rules:
        if len(other.roots) == 1 and wanted & _replaced(graph, other):
            return other.name
    return ""


def _replaced(graph: Graph, made: Rule) -> set[str]:
    """What the rule makes of the graph's result, spelled out."""
    found = set()
    for match in matches(graph, made):
        if match.root.name == graph.outputs[0].name:
            try:
                found.add(_spelled(apply(graph, made, match)))
            except ValueError:  # it has a condition that only building shows
                continue
    return found


def _spelled(graph: Graph) -> str:
    """The result as one expression, operands in order where order does not matter."""
    made = producers(graph)

    def text(arg: object) -> str:
        if isinstance(arg, tuple):
            return f"[{', '.join(map(text, arg))}]"
        if not isinstance(arg, Ref) or arg.name not in made:
            return text_arg(arg)  # type: ignore[arg-type]
        node = made[arg.name]
        args = [text(value) for value in ops.arguments(node).values()]
        if node.op in COMMUTATIVE:
            args[:2] = sorted(args[:2])
        return f"{node.op}({', '.join(args)})"

    return text(graph.outputs[0])


def named(entries: Iterable[Equation]) -> Mapping[str, Equation]:
    """By their names; of two of one name the first."""
    table: dict[str, Equation] = {}
    for entry in entries:
        table.setdefault(entry.name, entry)
    return table
