"""Discovery: rules by enumeration, as TASO does (SOSP 2019, section 2): settings -> found.json.

    small graphs over symbolic inputs                        settings, terms
      -> those with equal numbers on random integers         terms
      -> not a renaming of another, nor implied by others    implied
      -> equal on random other shapes                        equations
      -> rules, each with its shapes, in each direction that might help

What is kept is data: `rules/found.json` says of each rule what it finds and puts, and how all of
them were found; the same command gives the same file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Rule, text_pattern, wildcards
from anabranch.rewrite.discovery.equations import (
    DRAWS,
    UNDRAWN,
    blows_up,
    equations,
    named,
    renamed,
    special,
    survives,
    widened,
)
from anabranch.rewrite.discovery.generalise import generalised
from anabranch.rewrite.discovery.implied import Theory, directions, implied, prune
from anabranch.rewrite.discovery.merged_calls import pairs
from anabranch.rewrite.discovery.settings import (
    NUMBERS,
    PARTS,
    SETTINGS,
    SIZES,
    Setting,
)
from anabranch.rewrite.discovery.terms import EquationSide, TermEvaluator, enumerate_terms, weight
from anabranch.rewrite.discovery.written import written_as
from anabranch.rewrite.rules.found import Equation, Shapes, letters

Hear = Callable[[str], None]
"""Hears what is going on, in a line."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many graphs were enumerated, the classes of equal ones, the candidates that are no
    renaming of others, those that others do not imply, those that hold on other shapes, and the
    rules kept of them."""

    enumerated: int = 0
    classes: int = 0
    candidates: int = 0
    new: int = 0
    survived: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Discovery:
    """The rules that were found, and how."""

    rules: tuple[Equation, ...]
    counts: dict[str, Counts]
    sizes: dict[str, int]
    seed: int
    refuted: tuple[str, ...] = ()
    """Equations that hold on the shapes of their setting and not on others; but for those that no
    other shapes have, as where what was pooled in steps is added to what was not."""


def discover(
    sizes: dict[str, int],
    seed: int = 0,
    tables: Sequence[Rule] = (),
    hear: Hear = lambda line: None,
) -> Discovery:
    """Rules over each of these settings, of graphs of up to so many operators. `tables`: rules that
    are written already; those found again are marked."""
    theory, rules, counts = Theory(), list[Equation](), dict[str, Counts]()
    refuted: list[str] = []
    for name, most in sizes.items():
        learned, counts[name], wrong = _within(SETTINGS[name], most, seed, theory, hear)
        rules += [each for each in learned if each not in rules]  # pairs are asked of each setting
        refuted += wrong
        hear(f"{name}: {counts[name]}")
    marked = [replace(each, written=written_as(each, tables)) for each in named(rules)]
    marked = [each if each.written else replace(each, special=special(each)) for each in marked]
    return Discovery(tuple(marked), counts, dict(sizes), seed, tuple(refuted))


def _within(
    setting: Setting, most: int, seed: int, theory: Theory, hear: Hear
) -> tuple[list[Equation], Counts, list[str]]:
    """The rules of one setting; the theory learns them."""
    enumeration, run = enumerate_terms(setting, most, seed), TermEvaluator(setting, seed)
    candidates = [
        pair
        for pair in _candidates(setting, enumeration.equal)
        if max(map(weight, pair)) <= most + 1
    ]
    hear(f"{enumeration.enumerated} graphs, {len(candidates)} candidate equations")
    refuted, new, survived = list[str](), 0, 0
    inputs = {**setting.inputs, **setting.spare}
    before = len(theory.equations)
    for pair in candidates:
        if implied(*pair, theory, run):
            continue
        general = renamed(*generalised(*pair, run), inputs)
        if general != pair and implied(*general, theory, run):
            continue
        new += 1
        proven = [each for each in (general, pair) if not refutation(*each, inputs)]
        if not proven:
            why = str(refutation(*pair, inputs))
            refuted += [why] if UNDRAWN not in why else []
            continue
        survived += 1
        shapes = widened(*proven[0], inputs)
        if _helpful(*proven[0], shapes):
            theory.add(*proven[0], shapes)
    prune(theory, before, run)
    kept = [rule for each in theory.equations[before:] for rule in _helpful(*each)]
    kept += pairs(setting, run)
    sizes = (enumeration.enumerated, enumeration.classes, len(candidates), new, survived, len(kept))
    return kept, Counts(*sizes), refuted


def refutation(left: EquationSide, right: EquationSide, shapes: Shapes) -> Refused | None:
    """Why the equation does not hold on other shapes, in some direction; None if it does."""
    reasons = ((each.name, survives(each)) for each in equations(left, right, shapes))
    return next((Refused(f"{name}: {why}") for name, why in reasons if why), None)


def _helpful(left: EquationSide, right: EquationSide, shapes: Shapes) -> list[Equation]:
    """The equation in each direction that is no mere blow-up."""
    ways = directions(left, right, shapes)
    finds = {text_pattern(find) for find, put in ways if not blows_up(find, put)}
    return [each for each in equations(left, right, shapes) if each.find in finds]


def _candidates(
    setting: Setting, equal: Iterable[tuple[EquationSide, EquationSide]]
) -> list[tuple[EquationSide, EquationSide]]:
    """The equations that can be applied, each up to renaming once: small ones first, of those of
    one size the most general first."""
    table: dict[tuple[int, int, str], tuple[EquationSide, EquationSide]] = {}
    for pair in equal:
        left, right = renamed(*pair, setting.inputs)
        if any(directions(left, right, setting.inputs)):
            text = f"{text_pattern(left)} = {text_pattern(right)}"
            inputs = len({*wildcards(left), *wildcards(right)})
            table.setdefault((weight(left) + weight(right), -inputs, text), (left, right))
    return [table[key] for key in sorted(table)]


def text_discovery(discovery: Discovery, command: str) -> str:
    """The file: how the rules were found, a setting a line, then a rule a line."""
    settings = (
        f"  {json.dumps(name)}: {json.dumps(_told(discovery, name))}" for name in discovery.sizes
    )
    refuted = (f"  {json.dumps(each)}" for each in discovery.refuted)
    rules = (f"  {json.dumps(each.entry)}" for each in discovery.rules)
    head = {
        "command": command,
        "torch": torch.__version__.partition("+")[0],
        "seed": discovery.seed,
        "draws": {"s": NUMBERS, "parts": PARTS, "survival": DRAWS},
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines += [f'"settings": {{\n{_lines(settings)}\n}}']
    lines += [
        f'"{key}": [\n{_lines(each)}\n]' for key, each in (("refuted", refuted), ("rules", rules))
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(items: Iterable[str]) -> str:
    return ",\n".join(items)


def _told(discovery: Discovery, name: str) -> dict[str, object]:
    """What was enumerated, and what came of it."""
    setting = SETTINGS[name]
    return {
        "operators": list(setting.operators),
        "inputs": {key: " ".join(shape) for key, shape in setting.inputs.items()},
        "sizes": {each: SIZES[each] for each in sorted(letters(setting.inputs))},
        "most": discovery.sizes[name],
        "counts": asdict(discovery.counts[name]),
    }
