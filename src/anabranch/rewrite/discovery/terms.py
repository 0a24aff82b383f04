"""Small graphs, enumerated by size; those that give equal numbers are candidate equations.

    size 0    x, y, z
    size 1    x + y, relu(x), ...
    size 2    relu(x + y), relu(relu(x)) = relu(x)  !

A term is a pattern over the inputs of a setting; its size is how many different calls it has. Each
is run on draws of small integers, and of eighths, on which doubles are exact, and is known by what
comes out, its fingerprint. Larger terms are built from the first of each class only: what follows
by replacing equals inside is not enumerated.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from anabranch.ir import ops
from anabranch.ir.rule import Call, Operand, Wild, text_pattern
from anabranch.rewrite.discovery.settings import (
    NUMBERS,
    OPERATORS,
    PARTS,
    SIZES,
    WINDOWS,
    Operator,
    Setting,
)
from anabranch.rewrite.prove import draw
from anabranch.rewrite.rules.found import tensor

EquationSide = Call | Wild
"""Of an equation: a term."""

Tensors = tuple[torch.Tensor, ...]
"""A value on each of the draws."""


REMEMBERED = 5_000
"""Terms whose values are kept at once; others are made again."""


@dataclass(frozen=True, slots=True)
class Term:
    """A pattern, the different calls in it, and what it is on each of the draws."""

    pattern: Call | Wild
    calls: frozenset[Call]
    values: Tensors = field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its value on the first draw."""
        return tuple(self.values[0].shape)


@dataclass(slots=True)
class Enumeration:
    """How many terms were tried, and those found equal to one that came before."""

    enumerated: int = 0
    classes: int = 0
    equal: list[tuple[EquationSide, EquationSide]] = field(default_factory=list)


class TermEvaluator:
    """Runs patterns over the inputs of a setting on fixed draws."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.inputs: dict[str, Tensors] = {}
        dice = torch.Generator().manual_seed(seed)
        for name, shape in {**setting.inputs, **setting.spare}.items():
            type = tensor(shape, SIZES)
            self.inputs[name] = tuple(
                draw(type, dice, exact=True) + draw(type, dice, exact=True) / parts
                for parts in PARTS
            )
        self._tensors_of: dict[Call, Tensors | None] = {}

    def __call__(self, pattern: Call | Wild) -> Tensors | None:
        """The pattern's values; None if it cannot be run: its operands do not fit."""
        if isinstance(pattern, Wild):
            return self.inputs.get(pattern.name)
        if pattern not in self._tensors_of:
            if len(self._tensors_of) >= REMEMBERED:
                self._tensors_of.clear()
            self._tensors_of[pattern] = self._tried(pattern)
        return self._tensors_of[pattern]

    def _tried(self, pattern: Call) -> Tensors | None:
        try:
            return tuple(self._run(pattern, trial) for trial in range(len(NUMBERS)))
        except (RuntimeError, IndexError, TypeError):
            return None

    def _run(self, pattern: Call, trial: int) -> torch.Tensor:
        args = [self._arg(arg, trial) for arg in pattern.args]
        rest = WINDOWS.get(pattern.rest, ())
        result = ops.resolve(pattern.op)(*args, *rest)
        assert isinstance(result, torch.Tensor)
        return result

    def _arg(self, arg: Operand, trial: int) -> object:
        if isinstance(arg, Wild) and arg.name not in self.inputs:
            return NUMBERS[trial] if arg.name == "s" else SIZES[arg.name]
        if isinstance(arg, Call | Wild):
            values = self(arg)
            if values is None:
                raise TypeError(f"{text_pattern(arg)} has no value")
            return values[trial]
        return [self._arg(item, trial) for item in arg] if isinstance(arg, tuple) else arg


def enumerate_terms(setting: Setting, size: int, seed: int) -> Enumeration:
    """All terms of up to so many calls over one representative of each class of smaller ones."""
    run, enumeration = TermEvaluator(setting, seed), Enumeration()
    first: dict[bytes, EquationSide] = {}
    sizes: list[list[Term]] = [[]]
    for name in setting.inputs:
        values = run(Wild(name))
        assert values is not None
        term = Term(Wild(name), frozenset(), values)
        first[fingerprint(values)] = term.pattern
        sizes[0].append(term)
    for calls in range(1, size + 1):
        fresh: list[Term] = []
        for term in _terms(setting, sizes, calls, run):
            enumeration.enumerated += 1
            before = first.setdefault(fingerprint(term.values), term.pattern)
            if before is not term.pattern:
                enumeration.equal.append((term.pattern, before))
            elif calls < size:  # nothing is built of the largest
                fresh.append(term)
        sizes.append(fresh)
    enumeration.classes = len(first)
    return enumeration


def size(term: Operand) -> int:
    """How many different calls it has."""
    return len(calls(term))


def weight(term: Operand) -> int:
    """How many calls it has, each as often as it is written: of f(x, x) and f(x, y) the second is
    the more general, though it may be the larger graph."""
    if isinstance(term, Call):
        return 1 + sum(map(weight, term.args))
    return sum(map(weight, term)) if isinstance(term, tuple) else 0


def calls(term: Operand) -> set[Call]:
    """The different calls in the term, itself included."""
    if isinstance(term, Call):
        return {term}.union(*map(calls, term.args))
    return set[Call]().union(*map(calls, term)) if isinstance(term, tuple) else set()


def fingerprint(values: Tensors) -> bytes:
    """Names what comes out: shapes and numbers."""
    state = hashlib.blake2b(digest_size=16)
    for value in values:
        state.update(str(tuple(value.shape)).encode())
        # Adding zero makes one of the two zeros that doubles have.
        state.update((value + 0.0).contiguous().numpy().tobytes())
    return state.digest()


def _terms(
    setting: Setting, sizes: list[list[Term]], calls: int, run: TermEvaluator
) -> Iterator[Term]:
    """The terms of exactly so many calls that can be run and are not always zero, by operator."""
    for name in setting.operators:
        operator = OPERATORS[name]
        for operands in _operands(operator, sizes, calls - 1):
            pattern = operator.build(*(operand.pattern for operand in operands))
            below = frozenset[Call]().union(*(operand.calls for operand in operands))
            if pattern not in below:
                values = run(pattern)
                if values is not None and any(map(torch.any, values)):
                    yield Term(pattern, below | {pattern}, values)


def _operands(
    operator: Operator, sizes: list[list[Term]], calls: int
) -> Iterator[tuple[Term, ...]]:
    """Operands for which the operator is meant, and that have together so many different calls; a
    pair whose order does not matter is given once."""
    terms = [term for size in sizes[: calls + 1] for term in size]
    shapes = dict.fromkeys(term.shape for term in terms)

    @functools.cache
    def fitting(*first: tuple[int, ...]) -> list[Term]:
        """Those that may stand next behind operands of these shapes."""
        rest = [*itertools.product(shapes, repeat=operator.arity - len(first) - 1)]
        fit = {each for each in shapes if any(operator.meant(*first, each, *r) for r in rest)}
        return [term for term in terms if term.shape in fit]

    def extended(chosen: tuple[Term, ...], below: frozenset[Call]) -> Iterator[tuple[Term, ...]]:
        if len(chosen) == operator.arity:
            if len(below) == calls:
                yield chosen
            return
        for term in fitting(*(each.shape for each in chosen)):
            if len(union := below | term.calls) <= calls:
                yield from extended((*chosen, term), union)
            if operator.commutes and chosen and term is chosen[0]:
                return

    yield from extended((), frozenset())
