"""New values of derived constants: the weights that they are computed of -> their memory.

    step  to(%w1)  to(%w2)  to(%w3)                    level 1: one call for all of a kind
    step  add(%var1, 1e-3)  add(%var2, 1e-3) ...                (torch._foreach_add)
    step  rsqrt ...                                    level 2
    step  mul(w1, s1)  mul(w2, s2) ...                 level 3
          copied into the plan's memory                at last

A network folds hundreds of layers in a dozen steps each, and a step by itself takes the host longer
than its arithmetic takes the device. So steps that do not wait for each other are done together,
where they are of one kind. Constants are computed in parts of `PART` bytes, the largest part
first: what lies between takes little memory, and where that is too much, nothing is done yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from anabranch.ir import derive, ops
from anabranch.ir.graph import Arg, Constant, Node, Ref, refs
from anabranch.ir.types import TensorType, laid_out

PART = 64 << 20
"""Bytes of constants that are computed together."""

RefitStep = tuple[Node | TensorType, tuple[int, ...], tuple[int, ...]]
"""A step: what it does, the numbers of what it reads and of what it makes."""

Many = Callable[[list[list[Tensor]], tuple[Arg, ...]], Sequence[Tensor]]
"""Calls of one operator on as many operands as there are, the other arguments the same for all."""


def _binary(function: Callable[..., Any]) -> Many:
    def many(operands: list[list[Tensor]], others: tuple[Arg, ...]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = function(*operands, *others)
        return results

    return many


TOGETHER: dict[str, Many] = {
    "aten.mul.Tensor": _binary(torch._foreach_mul),
    "aten.add.Tensor": _binary(torch._foreach_add),
    "aten.sub.Tensor": _binary(torch._foreach_sub),
    "aten.neg.default": _binary(torch._foreach_neg),
    "aten.rsqrt.default": _binary(torch._foreach_rsqrt),
}
"""Operators that torch runs on many tensors in one call, with the same numbers."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls of one kind that wait for none of each other. `reads`: by operand, the number of the
    value in each call; `makes`: the number of each call's result."""

    many: Many
    others: tuple[Arg, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[int, ...]

    def run(self, values: dict[int, Tensor], _: torch.device) -> None:
        """Compute all calls at once; their results go into `values`."""
        operands = [[values[number] for number in numbers] for numbers in self.reads]
        values.update(zip(self.makes, self.many(operands, self.others), strict=True))


@dataclass(frozen=True, slots=True)
class Single:
    """One call, by itself. `direct`: the operator and its arguments, where each operand is an
    argument, at these places: looking for them anew takes longer than a small call."""

    node: Node
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    direct: tuple[Callable[..., Any], tuple[Any, ...], tuple[tuple[int, int], ...]] | None

    def run(self, values: dict[int, Tensor], device: torch.device) -> None:
        """Compute the call; its results go into `values`."""
        if self.direct is None:
            results = ops.call(self.node, lambda name: values[self.reads[int(name)]], device)
            values.update(zip(self.makes, results, strict=True))
            return
        call, args, places = self.direct
        inputs = list(args)
        for place, number in places:
            inputs[place] = values[number]
        result = call(*inputs)  # of `unbind` along an axis of one a list of one
        values[self.makes[0]] = result[0] if isinstance(result, (list, tuple)) else result


def _single(node: Node, reads: tuple[int, ...], makes: tuple[int, ...]) -> Single:
    nested = any(isinstance(arg, tuple) and any(refs(arg)) for arg in node.args)
    if node.kwargs or nested or len(makes) != 1 or ops.takes_device(node.op):
        return Single(node, reads, makes, None)
    places = [(i, reads[int(a.name)]) for i, a in enumerate(node.args) if isinstance(a, Ref)]
    args = tuple(ops.map_refs(arg, lambda _: None) for arg in node.args)
    name = "aten.reshape.default" if node.op == "aten.view.default" else node.op
    return Single(node, reads, makes, (ops.resolve(name), args, tuple(places)))


@dataclass(frozen=True, slots=True)
class Laid:
    """A value as its readers were told that it lies."""

    type: TensorType
    read: int
    makes: int

    def run(self, values: dict[int, Tensor], _: torch.device) -> None:
        """Put the value into `values` with the strides that its readers were told."""
        values[self.makes] = laid_out(self.type, values[self.read])


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """The values read of those given, the calls in order, the values that nobody reads behind each,
    and the constants that are made."""

    reads: tuple[tuple[str, int], ...]
    calls: tuple[tuple[Batch | Single | Laid, tuple[int, ...]], ...]
    makes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RefitProgram:
    """How derived constants are computed of given ones."""

    parts: tuple[ProgramPart, ...]

    @property
    def sources(self) -> frozenset[str]:
        """The names of what it reads."""
        return frozenset(name for part in self.parts for name, _ in part.reads)

    def values(
        self, sources: Mapping[str, Tensor], device: torch.device
    ) -> Iterator[dict[str, Tensor]]:
        """The constants, some at a time, each part's while the next is not yet computed."""
        for part in self.parts:
            with torch.no_grad():  # around no yield: whoever asks for the next would inherit it
                values = {number: sources[name] for name, number in part.reads}
                for call, dead in part.calls:
                    call.run(values, device)
                    for number in dead:
                        values.pop(number, None)
            yield {name: values[number] for name, number in part.makes}


def program(wanted: Sequence[Constant], sources: Iterable[Constant]) -> RefitProgram:
    """The program that computes these. ValueError where one does not say how it comes of those that
    are given."""
    steps = derive.write(sources, wanted)
    sizes = {constant.name: constant.type.nbytes for constant in wanted}
    return of_steps(steps, sizes)


def of_steps(steps: derive.Steps, sizes: Mapping[str, int]) -> RefitProgram:
    """The program of what is written down; `sizes`: bytes of each constant that is made."""
    sorts = derive.sorts_of(steps)
    table: list[RefitStep] = []
    maker: dict[int, int] = {}
    numbers = count()
    for i, (number, *reads) in enumerate(steps.steps):
        sort = sorts[number]
        results = 1 if isinstance(sort, TensorType) else len(sort.results)
        makes = tuple(next(numbers) for _ in range(results))
        maker.update(dict.fromkeys(makes, i))
        table.append((sort, tuple(reads), makes))
    names = list(steps.given)
    parts = [
        _part(table, maker, names, {name: steps.made[name] for name in portion})
        for portion in _portions(steps.made, sizes)
    ]
    parts.sort(key=lambda part: -sum(sizes[name] for name, _ in part.makes))
    return RefitProgram(tuple(parts))


def _part(
    table: Sequence[RefitStep],
    maker: Mapping[int, int],
    names: Sequence[str],
    number_of: Mapping[str, int],
) -> ProgramPart:
    calls = tuple(_calls(table, maker, list(number_of.values())))
    read = {number for call, _ in calls for number in _reads(call)} | {*number_of.values()}
    inputs = tuple((name, -1 - i) for i, name in enumerate(names) if -1 - i in read)
    return ProgramPart(inputs, calls, tuple(number_of.items()))


def _portions(names: Iterable[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The constants in portions of about `PART` bytes."""
    portion: list[str] = []
    held = 0
    for name in names:
        if portion and held + sizes[name] > PART:
            yield portion
            portion, held = [], 0
        portion.append(name)
        held += sizes[name]
    if portion:
        yield portion


def _calls(
    table: Sequence[RefitStep],
    maker: Mapping[int, int],
    wanted: Sequence[int],
) -> Iterator[tuple[Batch | Single | Laid, tuple[int, ...]]]:
    """The calls that the wanted values take, level by level, and the values that nobody reads any
    more behind each."""
    needed, todo = set[int](), [maker[number] for number in wanted if number in maker]
    while todo:
        step = todo.pop()
        if step not in needed:
            needed.add(step)
            todo += [maker[read] for read in table[step][1] if read in maker]
    level: dict[int, int] = {}
    groups: dict[tuple[int, object], list[int]] = {}
    for step in sorted(needed):
        sort, reads, _ = table[step]
        level[step] = 1 + max((level[maker[read]] for read in reads if read in maker), default=0)
        kind = _kind(sort)
        groups.setdefault((level[step], step if kind is None else kind), []).append(step)
    calls = [call for key in sorted(groups, key=_by_level) for call in _grouped(table, groups[key])]
    last: dict[int, int] = {}
    for i, call in enumerate(calls):
        last.update(dict.fromkeys(_reads(call), i))
    kept = {*wanted}
    for i, call in enumerate(calls):
        dead = (n for n in dict.fromkeys(_reads(call)) if last[n] == i and n not in kept)
        yield call, tuple(dead)


def _by_level(key: tuple[int, object]) -> int:
    return key[0]


def _reads(call: Batch | Single | Laid) -> tuple[int, ...]:
    match call:
        case Batch():
            return tuple(number for numbers in call.reads for number in numbers)
        case Single():
            return call.reads
        case Laid():
            return (call.read,)


def _kind(sort: Node | TensorType) -> object | None:
    """What calls have in common that can be done together; None for a call by itself."""
    if isinstance(sort, TensorType) or sort.op not in TOGETHER or sort.kwargs:
        return None
    refs = [arg for arg in sort.args if isinstance(arg, Ref)]
    others = sort.args[len(refs) :]
    first = sort.args[: len(refs)] == tuple(refs) and len(sort.results) == 1
    plain = all(isinstance(arg, int | float) for arg in others)
    if not first or not plain or len(refs) + len(others) != OPERANDS[sort.op]:
        return None
    return sort.op, len(refs), sort.exact, others, sort.type.dtype


OPERANDS = {
    **{"aten.mul.Tensor": 2, "aten.add.Tensor": 2, "aten.sub.Tensor": 2},
    **{"aten.neg.default": 1, "aten.rsqrt.default": 1},
}
"""How many operands and numbers a call has that others may join: no factor of the second one."""


def _grouped(
    table: Sequence[RefitStep],
    steps: Sequence[int],
) -> Iterator[Batch | Single | Laid]:
    """Calls of one kind as one, where there are several."""
    sort, reads, makes = table[steps[0]]
    if isinstance(sort, TensorType):
        yield Laid(sort, reads[0], makes[0])
    elif len(steps) == 1:
        yield _single(sort, reads, makes)
    else:
        operands = [_operands(table[step]) for step in steps]
        others = tuple(arg for arg in sort.args if not isinstance(arg, Ref))
        outs = tuple(table[step][2][0] for step in steps)
        yield Batch(TOGETHER[sort.op], others, tuple(zip(*operands, strict=True)), outs)


def _operands(step: RefitStep) -> tuple[int, ...]:
    """The numbers of what the call reads, one for each operand: one may be read twice."""
    sort, reads, _ = step
    assert isinstance(sort, Node)
    return tuple(reads[int(arg.name)] for arg in sort.args if isinstance(arg, Ref))
