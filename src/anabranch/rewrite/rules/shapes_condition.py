"""Whether a match has the shapes that a rule says: the text of `rules.shapes` as a condition.

    x: ... N K; w: ... K M const        x is f32[2,5,7], w f32[2,7,3]: ... is 2, N 5, K 7, M 3
                                        w is f32[2,6,3]: refused, K is 7 elsewhere

A letter is one size wherever it stands, and a name of several axes (`...`, `A..`, `room`) the same
sizes. Where two such names stand in one shape, an axis says where the first one ends: `axis: K of
x`. What is calculated (`K+P`) is compared once its letters are known. Ranges of letters are what is
drawn, and no condition; of a window it is one where all draws have it: no transposition, one group
where `G` is not said and several where no range of `G` has one, `padding=(0,)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from anabranch.ir.graph import Arg, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Wild, said_by
from anabranch.ir.text import text_arg
from anabranch.rewrite.rules.conv_windows import Sizes
from anabranch.rewrite.rules.pattern_parts import computed
from anabranch.rewrite.rules.size_letters import (
    BoundSizes,
    Tokens,
    axes_of,
    is_several,
    unify_later,
    unify_shape,
)

ANY = ("any", "broadcast")
"""Kinds of tensors whose shape is no condition."""
GROUPS = "G"
"""The groups of a window."""
ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "aten.add.Tensor": lambda a, b: a + b,
    "aten.sub.Tensor": lambda a, b: a - b,
    "aten.mul.Tensor": lambda a, b: a * b,
    "aten.div.Tensor": lambda a, b: a // b,
}


ADD = "aten.add.Tensor"
OF_NONE = {"aten.mul.Tensor": 2, "aten.div.Tensor": 2, "aten.mv.default": 2}
OF_NONE |= {"aten.reshape.default": 1, "aten.slice.Tensor": 1}
"""How many operands these operators of a bias have: what they make of none is none."""


@dataclass(frozen=True, slots=True)
class TensorCondition:
    """The condition on one wildcard that stands for a tensor, or for `many`. `kind`: the last word
    of its text."""

    name: str
    tokens: Tokens
    kind: str
    many: bool


@dataclass(frozen=True, slots=True)
class AxisCondition:
    """A wildcard that stands for the axis where a letter stands in a shape, that of the wildcard
    `of` if one has that name."""

    name: str
    letter: str
    tokens: Tokens
    of: str

    @property
    def place(self) -> int:
        """Which of the tokens it is."""
        return _letters(self.tokens).index(self.letter)

    def splits(self, wanted: TensorCondition) -> bool:
        """Whether it says where names of several axes end in this shape, for both have the same."""
        pairs = zip(self.tokens, wanted.tokens, strict=False)
        same = all(a == b for a, b in pairs if is_several(a) or is_several(b))
        return self.of == wanted.name or (same and len(self.tokens) == len(wanted.tokens))


@dataclass(frozen=True, slots=True)
class WindowCondition:
    """What all windows have that may stand for a wildcard. `groups`: 0 for one group, 1 for
    any number of them, 2 for several."""

    name: str
    groups: int
    stride: int | None
    padding: int | None
    dilation: int | None


@dataclass(frozen=True, slots=True)
class ShapesCondition:
    """The condition of a rule's shapes. `numbers`: wildcards that stand for one each, and `absent`
    for None; `letters`: sizes that its pattern binds itself, as the end of a slice."""

    tensors: tuple[TensorCondition, ...]
    axes: tuple[AxisCondition, ...]
    windows: tuple[WindowCondition, ...]
    numbers: tuple[str, ...]
    absent: tuple[str, ...]
    letters: tuple[str, ...] = ()

    @property
    def optional(self) -> frozenset[str]:
        """The wildcards that may stand for None."""
        tensors = (tensor.name for tensor in self.tensors if tensor.kind.endswith("?"))
        return frozenset((*tensors, *self.absent))

    @property
    def text(self) -> str:
        """What is said of tensors and of axes."""
        said = [
            f"{tensor.name}: {' '.join((*tensor.tokens, tensor.kind)).strip()}"
            for tensor in self.tensors
        ]
        said += [f"{a.name}: {a.letter} of {a.of or ' '.join(a.tokens)}" for a in self.axes]
        return "; ".join(said)

    def __call__(self, match: Match) -> Refused | None:
        """Why the match has other shapes than these; None if it has them."""
        sizes = self.sizes(match)
        return sizes if isinstance(sizes, Refused) else None

    def sizes(self, match: Match) -> BoundSizes | Refused:
        """The sizes that the letters stand for in the match, or why it does not fit."""
        for name in self.numbers:
            arg = match.bound[name]
            if not isinstance(arg, int | float) or isinstance(arg, bool):
                return Refused(f"{name} is {text_arg(arg)} and no number")
        for name in self.absent:
            if match.bound[name] is not None:
                return Refused(f"{name} is {text_arg(match.bound[name])} and not left out")
        bound: BoundSizes = {}
        for window in self.windows:
            args = match.bound[window.name]
            if not isinstance(args, tuple):
                return Refused(f"{window.name} is no window")
            if why := _walks_otherwise(window, args):
                return why
            if window.groups and isinstance(args[5], int):
                bound.setdefault(GROUPS, args[5])
        later: list[tuple[str, Tokens, Sizes]] = []
        dtypes: dict[torch.dtype, str] = {}
        for wanted in self.tensors:
            shapes = _shapes(match, wanted, dtypes)
            if isinstance(shapes, Refused):
                return shapes
            if not shapes or wanted.kind in ANY:
                continue
            axis = next((axis for axis in self.axes if axis.splits(wanted)), None)
            place, at = (None, None) if axis is None else (axis.place, match.bound[axis.name])
            name, tokens = wanted.name, wanted.tokens
            if wanted.many and bound.setdefault("count", len(shapes)) != len(shapes):
                return Refused(f"{name} are {len(shapes)}, and others {bound['count']}")
            for i, shape in enumerate(shapes):
                own = _own(tokens, i) if wanted.many else tokens
                if why := unify_shape(name, own, shape, bound, later, place, at):
                    return why
            if wanted.many:
                _gather(wanted, len(shapes), bound)
        if len(dtypes) > 1:
            return Refused(f"{', '.join(dtypes.values())} are of several dtypes")
        if any(not dtype.is_floating_point for dtype in dtypes):
            return Refused(f"{', '.join(dtypes.values())} is of whole numbers")
        return (
            _other_axes(self.axes, match, bound)
            or unify_later(later, bound)
            or _other_axes(self.axes, match, bound)
            or _other_sizes(self.letters, match, bound)
            or bound
        )


@dataclass(frozen=True, slots=True)
class AnyCondition:
    """That one of several holds; the refusal is that of the last."""

    conditions: tuple[ShapesCondition | AnyCondition, ...]

    @property
    def optional(self) -> frozenset[str]:
        """The wildcards that may stand for None."""
        return frozenset(name for condition in self.conditions for name in condition.optional)

    @property
    def text(self) -> str:
        """What each of them says."""
        return " | ".join(map(said_by, self.conditions))

    def __call__(self, match: Match) -> Refused | None:
        """Why none of them holds; None if one does."""
        sizes = self.sizes(match)
        return sizes if isinstance(sizes, Refused) else None

    def sizes(self, match: Match) -> BoundSizes | Refused:
        """What the letters stand for by the first that holds."""
        bound: BoundSizes | Refused = {}
        for condition in self.conditions:
            if not isinstance(bound := condition.sizes(match), Refused):
                break
        return bound


def fill(pattern: Operand, values: Mapping[str, Operand]) -> Operand:
    """The pattern with these wildcards replaced, `*taps` by several sizes. Arithmetic of sizes is
    done. Where a value is None, what is added to it stands alone, and what else is made of it is
    None."""
    if isinstance(pattern, Wild):
        return values.get(pattern.name, pattern)
    if isinstance(pattern, tuple):
        return tuple(filled for item in pattern for filled in _items(item, values))
    if not isinstance(pattern, Call):
        return pattern
    args = tuple(fill(arg, values) for arg in pattern.args)
    if pattern.op in ARITHMETIC and all(isinstance(arg, int) for arg in args):
        left, right = (arg for arg in args if isinstance(arg, int))
        return ARITHMETIC[pattern.op](left, right)
    if pattern.op == ADD and None in args:
        return next((arg for arg in args if arg is not None), None)
    if None in args[: OF_NONE.get(pattern.op, 0)]:
        return None
    return Call(pattern.op, args, pattern.rest)


def _items(item: Operand, values: Mapping[str, Operand]) -> tuple[Operand, ...]:
    """The item filled, or all sizes that it stands for."""
    if isinstance(item, Wild) and item.name.startswith("*"):
        several = values[item.name[1:]]
        return several if isinstance(several, tuple) else (several,)
    return (fill(item, values),)


def _shapes(
    match: Match, wanted: TensorCondition, dtypes: dict[torch.dtype, str]
) -> list[Sizes] | Refused:
    """The shapes of what the wildcard stands for, none where it may be None; constants where they
    must be. Adds their dtypes, but for indices."""
    arg = match.bound[wanted.name]
    if arg is None and wanted.kind.endswith("?"):
        return []
    if isinstance(arg, tuple) != wanted.many:
        return Refused(f"{wanted.name} is {text_arg(arg)} and no tensor")
    shapes: list[Sizes] = []
    for item in arg if isinstance(arg, tuple) else (arg,):
        if not isinstance(item, Ref):
            return Refused(f"{wanted.name} is {text_arg(item)} and no tensor")
        if wanted.kind.startswith("const") and (why := computed(match, item)):
            return why
        type = match.value_facts.types[item.name]
        shapes.append(type.shape)
        if wanted.kind not in ("int64", "int32"):
            dtypes.setdefault(type.dtype, wanted.name)
    return shapes


def _own(tokens: Tokens, part: int) -> Tokens:
    """With the letters of one of several tensors."""
    return tuple(f"{token.strip('[]')}No{part}" if token[0] == "[" else token for token in tokens)


def _gather(wanted: TensorCondition, count: int, bound: BoundSizes) -> None:
    """The own sizes of several tensors, as one tuple each."""
    for token in wanted.tokens:
        if token[0] == "[":
            sizes = [bound.get(f"{token.strip('[]')}No{i}") for i in range(count)]
            bound[token] = tuple(size for size in sizes if isinstance(size, int))


def _other_axes(axes: Sequence[AxisCondition], match: Match, bound: BoundSizes) -> Refused | None:
    """Which of these stands for another axis than that of its letter."""
    for axis in axes:
        arg = match.bound[axis.name]
        lengths = [axes_of(t, bound) if is_several(t) else 1 for t in axis.tokens]
        resolved = [length for length in lengths if length is not None]
        if not isinstance(arg, int):
            return Refused(f"{axis.name} is {text_arg(arg)} and no axis")
        if len(resolved) < len(lengths):
            continue
        place = sum(resolved[: axis.place])
        if arg % max(1, sum(resolved)) != place:
            return Refused(f"{axis.name} is {arg}, another axis than that of {axis.letter}")
    return None


def _other_sizes(names: Sequence[str], match: Match, bound: BoundSizes) -> Refused | None:
    """Which of the sizes that the pattern says is another than the tensors have."""
    for name in names:
        if match.bound[name] != bound.get(name):
            return Refused(f"{name} is {text_arg(match.bound[name])}, and not {bound.get(name)}")
    return None


def _walks_otherwise(window: WindowCondition, args: tuple[Arg, ...]) -> Refused | None:
    """Why these arguments of a convolution are no such window."""
    if args[3] is not False:
        return Refused("it is transposed")
    if window.groups > 1 and args[5] == 1:
        return Refused("it has one group")
    if not window.groups and args[5] != 1:
        return Refused(f"it has {args[5]} groups, and a group does not read all channels")
    wanted = {"stride": window.stride, "padding": window.padding, "dilation": window.dilation}
    for (what, expected), arg in zip(wanted.items(), args, strict=False):
        sizes = arg if isinstance(arg, tuple) else (arg,)
        if expected is not None and any(size != expected for size in sizes):
            return Refused(f"its {what} is {text_arg(arg)}, and not {expected}")
    return None


def _letters(tokens: Collection[str]) -> list[str]:
    """Without what marks a part of several, or which of them it is."""
    return [token.strip("[]").partition("No")[0] for token in tokens]
