"""Derivations written down: how constants are computed of those of a graph -> text -> their values.

    w_folded  <- mul(to(w), reshape(rsqrt(var + eps)))        step  to(%0: f16[64,3,3,3])    w
    b_folded  <- sub(beta, mul(mean, rsqrt(var + eps)))             add(%0: f32[64], 1e-3)   var
                                                                    ...

Calls that differ in what they read alone share one text: a network has four thousand steps of a few
hundred sorts. Values are those that the passes computed, by the very same operators; each is freed
behind its last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import BaseModel
from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.graph import Constant, Derivation, Node, Ref, rename
from anabranch.ir.key import digest_text
from anabranch.ir.recipe import bare
from anabranch.ir.text import parse_node, parse_type, text_node
from anabranch.ir.types import TensorType, laid_out


class Steps(BaseModel):
    """Values have numbers: those of `given` constants are -1, -2 and so on, results of steps count
    from 0. A step is the number of a sort, and of what it reads. A sort is a call of operands that
    are named by position, or a type, for what is laid out as it says. `made`: values by the names
    of constants."""

    given: list[str]
    sorts: list[str]
    steps: list[list[int]]
    made: dict[str, int]


def write(sources: Iterable[Constant], wanted: Iterable[Constant]) -> Steps:
    """How those that are wanted come of those that are given. ValueError where none says how."""
    try:
        return _Writing(sources).steps(wanted)
    except RecursionError:
        raise ValueError("a constant is computed in too many steps") from None


def read(steps: Steps, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The values of the constants that are made, of those that are given. What operators, parsers
    and look-ups raise for steps that are none."""
    calls = [_call(sort, device) for sort in sorts_of(steps)]
    values = {-1 - i: tensors[name] for i, name in enumerate(steps.given)}
    kept = set(steps.made.values())
    last = {number: i for i, (_, *reads) in enumerate(steps.steps) for number in reads}
    count = 0
    with torch.no_grad():
        for i, (number, *reads) in enumerate(steps.steps):
            for result in calls[number]([values[read] for read in reads]):
                if count in last or count in kept:
                    values[count] = result
                count += 1
            for read in reads:
                if last[read] == i and read not in kept:
                    values.pop(read, None)
    return {name: values[number] for name, number in steps.made.items()}


def told(
    steps: Steps, derived: Iterable[Constant], sources: Iterable[Constant]
) -> tuple[Constant, ...]:
    """The constants that are made, saying how they come of those that are given: as they did when
    the steps were written. Values stay as they are."""
    constants = {constant.name: constant for constant in sources}
    sorts = sorts_of(steps)
    values: dict[int, Constant | Derivation] = {}
    keys: dict[int, str] = {}
    for i, name in enumerate(steps.given):
        values[-1 - i] = bare(constants[name])
        keys[-1 - i] = f"{constants[name].digest} {constants[name].type.text}"
    count = 0
    for number, *reads in steps.steps:
        sort = sorts[number]
        key = digest_text(" ".join([steps.sorts[number], *(keys[read] for read in reads)]))
        results = _told(sort, [values[read] for read in reads], key)
        values.update(enumerate(results, count))
        keys.update((count + i, f"{key}.{i}") for i in range(len(results)))
        count += len(results)
    return tuple(_says(constant, values[steps.made[constant.name]]) for constant in derived)


def _told(
    sort: Node | TensorType, operands: Sequence[Constant | Derivation], key: str
) -> Sequence[Constant | Derivation]:
    """What a step makes, without values. A name that its key is in is nobody else's."""
    if not isinstance(sort, TensorType):
        reads = {str(i): operand for i, operand in enumerate(operands)}
        return [Derivation(sort, i, reads) for i in range(len(sort.results))]
    (of,) = operands
    if isinstance(of, Constant):
        of = of.derived or _same(of)
    return [Constant(f"laid_{key}", sort, key, derived=of)]


def _same(constant: Constant) -> Derivation:
    node = Node("same", "aten.alias.default", (Ref("0"),), (), (constant.type,))
    return Derivation(node, 0, {"0": constant})


def _says(constant: Constant, how: Constant | Derivation) -> Constant:
    if isinstance(how, Derivation):
        return replace(constant, derived=how)
    return replace(constant, derived=how.derived, source=how.source)


def sorts_of(steps: Steps) -> list[Node | TensorType]:
    """What calls and layouts the steps are of. ValueError where a text is none."""
    return [parse_node(text) if text.startswith("%") else parse_type(text) for text in steps.sorts]


def _call(
    sort: Node | TensorType, device: torch.device
) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """What runs a step of this sort on its operands."""
    if isinstance(sort, TensorType):
        return lambda operands: (laid_out(sort, operands[0]),)
    return ops.prepared(sort, device)


class _Writing:
    def __init__(self, sources: Iterable[Constant]) -> None:
        self._sources = {constant.name: constant for constant in sources}
        self._named = {(c.digest, c.type): c.name for c in self._sources.values()}
        self._read: dict[str, int] = {}
        self._texts: dict[Node, str] = {}
        self._sorts: dict[str, int] = {}
        self._steps: list[list[int]] = []
        self._constants: dict[Constant, int] = {}
        self._nodes: dict[int, int] = {}
        """By the identity of what a node reads, the number of its first result."""
        self._count = 0

    def steps(self, wanted: Iterable[Constant]) -> Steps:
        numbers = {constant.name: self._constant(constant) for constant in wanted}
        return Steps(
            given=list(self._read), sorts=list(self._sorts), steps=self._steps, made=numbers
        )

    def _constant(self, constant: Constant) -> int:
        if constant in self._constants:
            return self._constants[constant]
        if self._sources.get(constant.name) == constant:
            number = self._taken(constant.name)
        elif constant.derived is not None:
            number = self._step(constant.type.text, [self._result(constant.derived)], 1)
        elif (name := self._named.get((constant.digest, constant.type))) is not None:
            number = self._taken(name)  # under a name that it got where graphs were put together
        else:
            raise ValueError(f"nobody says how %{constant.name} was computed")
        self._constants[constant] = number
        return number

    def _taken(self, name: str) -> int:
        """The number of a constant that is given."""
        if name not in self._read:
            self._read[name] = -1 - len(self._read)
        return self._read[name]

    def _result(self, derived: Derivation) -> int:
        node, first = derived.node, self._nodes.get(id(derived.reads))
        if first is None:
            names = dict.fromkeys(node.uses)
            operands = [derived.reads[name] for name in names]
            reads = [
                self._constant(operand) if isinstance(operand, Constant) else self._result(operand)
                for operand in operands
            ]
            first = self._step(self._sort(node, names), reads, len(node.results))
            self._nodes[id(derived.reads)] = first
        return first + derived.index

    def _sort(self, node: Node, reads: Iterable[str]) -> str:
        """The node's text, with positions for the names of what it reads."""
        place = {name: str(i) for i, name in enumerate(reads)}
        args = tuple(rename(arg, place) for arg in node.args)
        kwargs = tuple((key, rename(arg, place)) for key, arg in node.kwargs)
        sort = Node("n", node.op, args, kwargs, node.types)
        if sort not in self._texts:
            self._texts[sort] = _text(sort)
        return self._texts[sort]

    def _step(self, sort: str, reads: list[int], results: int) -> int:
        number = self._sorts.setdefault(sort, len(self._sorts))
        self._steps.append([number, *reads])
        self._count += results
        return self._count - results


def _text(sort: Node) -> str:
    """ValueError if it is none that reads back."""
    text = text_node(sort)
    if parse_node(text) != sort:
        raise ValueError(f"a call of {sort.op} does not read back as it was")
    return text
