"""From equal terms to rules: names, survival on other shapes, the widest shapes, directions.

relu(cat([x, y], 1)) = cat([relu(x), relu(y)], 1)        x, y: "N C ..."
holds on other shapes                                    25 draws, whole numbers in fp64
holds for x: "N C ...", y: "N D ..." as well             so these are its shapes
may help in either direction                             two rules
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Operand, Wild, text_pattern, wildcards
from anabranch.rewrite.apply import apply, instantiate
from anabranch.rewrite.discovery.implied import directions
from anabranch.rewrite.discovery.terms import EquationSide, calls, size
from anabranch.rewrite.match import matches
from anabranch.rewrite.prove import different, unlike
from anabranch.rewrite.rules.found import MORE, Equation, Shape, Shapes, letters, rule
from anabranch.rewrite.rules.shapes_condition import fill

DRAWS = 25
"""Random shapes on which an equation has to hold before it is kept: as many as every rule is tested
on. Eight let maximum(maximum(x*x, y) * x, y) pass for maximum(x*x*x, y)."""

LARGE_CALLS = 4
"""Calls of a replacement that has to do without some operator of what it replaces."""

WILD, WILD_DRAWS = 1000, 3
"""How far seeds of numbers that are not finite are apart, and how many are tried on each draw."""

UNDRAWN = "cannot be drawn"
"""Begins to say why an equation does not hold on shapes that it cannot even be written for."""

FRESH = "DEFGLTUVXYZ"
"""Letters that no setting uses."""

DRAWN = "HWIJRQ"
"""Letters of images and kernels, which are drawn so that one has room in the other."""


def survives(equation: Equation, draws: int = DRAWS) -> Refused | None:
    """Why the equation does not hold; None if both sides give the same numbers on all draws, and
    the rule finds its own left side."""
    candidate = rule(equation)
    for seed in range(draws):
        try:
            graph = instantiate(candidate, seed)
        except (RuntimeError, IndexError, TypeError, KeyError) as failed:
            return Refused(f"{UNDRAWN}: {str(failed).splitlines()[0]}")
        roots = [ref.name for ref in graph.outputs]
        at_roots = [
            m for m in matches(graph, candidate) if [root.name for root in m.roots] == roots
        ]
        if not at_roots:
            return Refused("does not match its own instance")
        try:
            why = different(graph, apply(graph, candidate, at_roots[0]), seed)
        except (ValueError, RuntimeError) as failed:  # meta kernels do not ask for everything
            return Refused(str(failed) or type(failed).__name__)
        if why:
            return why
    return None


def special(equation: Equation) -> bool:
    """Whether the equation changes what NaN, an infinity or the sign of a zero gives."""
    candidate = rule(equation)
    for seed in range(DRAWS):
        graph = instantiate(candidate, seed)
        after = apply(graph, candidate, next(iter(matches(graph, candidate))))
        if any(unlike(graph, after, WILD * draw + seed) for draw in range(WILD_DRAWS)):
            return True
    return False


def renamed(
    first: EquationSide, second: EquationSide, shapes: Shapes
) -> tuple[EquationSide, EquationSide]:
    """With the inputs of one shape named in the order in which they appear."""
    table = ordered_names((first, second), shapes)
    left, right = fill(first, table), fill(second, table)
    assert isinstance(left, Call | Wild) and isinstance(right, Call | Wild)
    return left, right


def ordered_names(sides: Operand, shapes: Shapes) -> dict[str, Operand]:
    """For each input that appears the first free one of its shape."""
    free: dict[Shape, list[str]] = {}
    for name, shape in shapes.items():
        free.setdefault(shape, []).append(name)
    names = (name for name in dict.fromkeys(wildcards(sides)) if name in shapes)
    return {name: Wild(free[shapes[name]].pop(0)) for name in names}


def equations(left: EquationSide, right: EquationSide, shapes: Shapes) -> Iterator[Equation]:
    """The equation in every direction that can be applied."""
    used = set(wildcards(left)) | set(wildcards(right))
    needed = {name: shape for name, shape in shapes.items() if name in used}
    for find, put in directions(left, right, shapes):
        name = f"{short(find)} -> {short(put)}"
        yield Equation(name, text_pattern(find), text_pattern(put), needed)


def short(pattern: Operand) -> str:
    """As in the name of a rule: operators without namespace and overload."""
    text = re.sub(r"\baten\.(\w+)\.\w+\(", r"\1(", text_pattern(pattern))
    return text.replace(str(2**63 - 1), "end")


def widened(left: EquationSide, right: EquationSide, shapes: Shapes) -> Shapes:
    """The most general shapes of its inputs that the equation bears in every direction."""
    used = set(wildcards(left)) | set(wildcards(right))
    needed = {name: shape for name, shape in shapes.items() if name in used}
    return widest(lambda trial: list(equations(left, right, trial)), needed)


def widest(make: Callable[[Shapes], list[Equation]], shapes: Shapes) -> Shapes:
    """As many different letters as the equations bear that `make` gives for shapes: some of the
    places where a letter stands, one or several at once, get a letter of their own if they still
    hold, and so on."""
    letter, current = 0, dict(shapes)
    while letter < len(free := sorted(letters(current) - {MORE, *DRAWN})):
        fresh = next(each for each in FRESH if each not in letters(current))
        for places in _some_places(current, free[letter]):
            trial = {
                name: tuple(fresh if (name, i) in places else each for i, each in enumerate(shape))
                for name, shape in current.items()
            }
            candidates = make(trial)
            if candidates and not any(map(survives, candidates)):
                current = trial
                break
        else:
            letter += 1
    return current


def _some_places(shapes: Shapes, letter: str) -> Iterator[set[tuple[str, int]]]:
    """Where the letter stands, but for the first place: each alone, then two at once, and so on."""
    every = [
        (name, i)
        for name, shape in shapes.items()
        for i, each in enumerate(shape)
        if each == letter
    ]
    for count in range(1, len(every)):
        yield from map(set, itertools.combinations(every[1:], count))


def blows_up(find: Call, replace: EquationSide) -> bool:
    """Whether the replacement is the left side and more: it holds it as a part, or all its
    operators and two more, or all its operators and is large: of small laws that rearrange calls
    others are instances, of large ones there is no end."""
    if find in calls(replace):
        return True
    old, new = (Counter(call.op for call in calls(side)) for side in (find, replace))
    return old <= new and size(replace) >= min(size(find) + 2, LARGE_CALLS)


def named(entries: Iterable[Equation]) -> tuple[Equation, ...]:
    """Each with a name of its own: of several of one name, for shapes with different numbers of
    axes, the later ones say which."""
    table: dict[str, Equation] = {}
    for entry in entries:
        shapes = ", ".join(f"{key}[{' '.join(shape)}]" for key, shape in entry.shapes.items())
        name = entry.name if entry.name not in table else f"{entry.name} for {shapes}"
        table[name] = replace(entry, name=name)
    return tuple(table.values())
