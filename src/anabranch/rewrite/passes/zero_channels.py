"""Channels of zeros that nobody need cut away: who read the slice before them reads the whole.

    %c = convolution(%x, %w, %b)    80 channels, the last two of %w and %b are zeros
    %s = slice(%c, 1, 0, 78)
    %r = relu(%s)                              ->    %r = relu(%c)                  of 80 channels
    %y = convolution(%r, %v)        of 78            %y = convolution(%r, %v and zeros)

So pixels that were made wider (`rewrite.rules.channel_padding`) stay so up to the contraction that
sums over them, whose weight multiplies the zeros by zeros. Concatenations are of the whole parts,
with zeros behind each. The channels beyond must hold a number for that, and do: only where it is
known to come of zeros is a slice left out. A caller, or an operator that does more than compute,
may have written anything there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

from anabranch.ir import ops
from anabranch.ir.conditions import conditioned
from anabranch.ir.graph import Arg, Constant, Graph, Node, Ref, types
from anabranch.ir.rule import ValueFacts
from anabranch.rewrite.build import Builder
from anabranch.rewrite.passes.layout import STRIDED
from anabranch.rewrite.rules.channel_padding import vector
from anabranch.rewrite.rules.conv_windows import of_rest
from anabranch.trace import Trace

SLICE, PAD, CAT, CONVOLUTION, DIV = (
    *("aten.slice.Tensor", "aten.constant_pad_nd.default", "aten.cat.default"),
    *("aten.convolution.default", "aten.div.Tensor"),
)
ARITHMETIC = frozenset({"aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", DIV})
"""Of two numbers, one of which may be given: these make numbers of numbers if it is a usual one."""
POINTWISE = ARITHMETIC | frozenset(
    f"aten.{name}.default"
    for name in (
        *("relu", "sigmoid", "tanh", "gelu", "silu", "hardswish", "hardsigmoid", "hardtanh"),
        *("leaky_relu", "clamp", "neg", "abs", "elu", "mish", "maximum", "minimum"),
    )
)
IMAGES = frozenset(
    f"aten.{name}"
    for name in (
        *("max_pool2d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default"),
        *("upsample_nearest2d.vec", "upsample_nearest2d.default", "_upsample_nearest_exact2d.vec"),
        *("upsample_bilinear2d.vec", "upsample_bilinear2d.default"),
    )
)
"""Of each channel of an image by itself."""
LARGEST_NUMBER = 1000.0
"""The largest number that may be added to what comes of zeros, or be its factor; and one by the
least divisor: fp16 ends at 65,504, which must not be reached where nobody looks."""


def zeros(graph: Graph, trace: Trace) -> Graph:
    """The graph without such slices, where whoever reads them can read the whole."""
    if not any(map(_cut, graph.nodes)):
        return graph
    return _ChannelWalk(graph).without_slices()


def _cut(node: Node) -> int:
    """How many channels the slice leaves, if it leaves out the last few of them alone; else 0."""
    if node.op != SLICE or len(node.type.shape) < 3 or node.kwargs:
        return 0
    args = node.args[1:]
    axis, start, end, step = args + (0, 0, None, 1)[len(args) :]
    return _channels(node) if (axis, start or 0, step) == (1, 0, 1) and end else 0


def _channels(node: Node) -> int:
    return node.type.shape[1]


ReliedOn = tuple[Constant, str, tuple[int | float, ...]]
"""What is relied on of a constant, as `ir.conditions` has it."""

Spans = tuple[tuple[int, int], ...]
"""Where the channels of a value begin and end among those of the whole, in order."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a value is some channels of: so many, `ref` makes it in the new graph."""

    spans: Spans
    channels: int
    ref: Callable[[], Ref]

    @property
    def like(self) -> tuple[Spans, int]:
        return self.spans, self.channels


class _ChannelWalk:
    """One way along the graph. `whole`: of values of the source, what they are channels of."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = Builder(graph)
        self.whole: dict[str, _Whole] = {}
        self.placed = _placed(graph)
        self.constants = {constant.name: constant for constant in graph.constants}
        self.seen: list[ReliedOn] = []

    def without_slices(self) -> Graph:
        for node in self.graph.nodes:
            replacement = self._contraction(node) or self._each_channel(node)
            if replacement is not None:
                self.builder.replace(node.name, replacement)
                continue
            self.builder.keep(node)
            self._slice(node)
            self._concatenation(node)
        graph = self.builder.graph()
        return graph if graph is self.graph else conditioned(graph, self.seen)

    def _slice(self, node: Node) -> None:
        """Notes a slice that leaves out nothing but zeros."""
        if not (channels := _cut(node)):
            return
        source = self.builder.renamed(node).args[0]
        assert isinstance(source, Ref)
        type = self.builder.facts.types[source.name]
        few = 0 < type.shape[1] - channels < vector(type.dtype)  # more are left out for a reason
        seen = list[ReliedOn]()
        if few and _of_zeros(source.name, channels, self.builder.facts, self.constants, seen):
            self.seen += seen
            self.whole[node.name] = _Whole(((0, channels),), type.shape[1], lambda: source)

    def _concatenation(self, node: Node) -> None:
        """Notes a concatenation of parts of which some are noted; it is made once it is read."""
        if node.op != CAT or node.args[1:] != (1,) or node.kwargs or len(node.type.shape) < 3:
            return
        parts = [ref for ref in node.args[0] if isinstance(ref, Ref)]  # type: ignore[union-attr]
        images = all(len(self._shape(ref.name)) == len(node.type.shape) for ref in parts)
        if not images or not any(ref.name in self.whole for ref in parts):
            return
        wholes = [self.whole.get(ref.name) or self._all(ref) for ref in parts]
        starts = list(accumulate((whole.channels for whole in wholes), initial=0))
        spans = tuple(
            (start + low, start + high)
            for whole, start in zip(wholes, starts, strict=False)
            for low, high in whole.spans
        )

        @cache
        def concatenation() -> Ref:
            return self.builder.call(
                CAT, tuple(whole.ref() for whole in wholes), 1, origin=node.origin
            )

        self.whole[node.name] = _Whole(spans, starts[-1], concatenation)

    def _all(self, ref: Ref) -> _Whole:
        """The value itself, of which nothing was cut away."""
        channels = self._shape(ref.name)[1]
        return _Whole(((0, channels),), channels, lambda: Ref(self.builder.substitute(ref.name)))

    def _contraction(self, node: Node) -> Ref | None:
        """The convolution, reading the whole; None if it does not read some of its channels, or
        has groups of several of them."""
        x, w, *rest = node.args if node.op == CONVOLUTION else (None, None)
        if not isinstance(x, Ref) or not isinstance(w, Ref) or x.name not in self.whole:
            return None
        shape, whole = self._shape(w.name), self.whole[x.name]
        by = of_rest(tuple(rest[1:]), len(shape) - 2)
        if by.transposed or not all(map(self._constant, (w, rest[0]))):
            return None
        if by.groups == 1:
            return self._call(node, whole.ref(), self._spread(w, 1, whole), *rest)
        if not by.groups == _channels(node) == shape[0] == self._shape(x.name)[1]:
            return None
        if node.name in self.placed:
            return None
        ends = (self._spread(a, 0, whole) if isinstance(a, Ref) else a for a in (w, rest[0]))
        conv = self._call(node, whole.ref(), *ends, *rest[1:-1], whole.channels)
        return self._some(node, conv, whole)

    def _each_channel(self, node: Node) -> Ref | None:
        """The node, of all channels; None where one of its operands has no more of them, or what
        it makes of them may be no number."""
        if not _of_each_channel(node) or node.name in self.placed:
            return None
        reads = [arg for arg in node.args if isinstance(arg, Ref)]
        wholes = [self.whole[ref.name] for ref in reads if ref.name in self.whole]
        if len({each.like for each in wholes}) != 1:
            return None
        whole, rank = wholes[0], len(node.type.shape)
        if _channels(node) != sum(b - a for a, b in whole.spans):
            return None
        if not all(self._fits(ref, rank) for ref in reads):
            return None
        args = (self._operand(a, rank, whole) if isinstance(a, Ref) else a for a in node.args)
        return self._some(node, self._call(node, *args), whole)

    def _fits(self, ref: Ref, rank: int) -> bool:
        """Whether it can be read with more channels than it has, or has one for all, and holds
        nothing but numbers."""
        shape = self._shape(ref.name)
        if ref.name in self.whole:
            return len(shape) == rank
        if self._constant(ref):
            held = self.constants.get(ref.name)
            if held is None or held.value is None or not bool(held.value.isfinite().all()):
                return False
            self.seen.append((held, "finite", ()))
            return True
        return len(shape) < rank - 1 or shape[1 - rank] == 1

    def _operand(self, ref: Ref, rank: int, whole: _Whole) -> Ref:
        """The value read in its place by an operator that works on all channels."""
        if ref.name in self.whole:
            return self.whole[ref.name].ref()
        shape = self._shape(ref.name)
        if len(shape) < rank - 1 or shape[1 - rank] == 1:
            return Ref(self.builder.substitute(ref.name))
        return self._spread(ref, len(shape) - (rank - 1), whole)

    def _constant(self, arg: Arg) -> bool:
        return not isinstance(arg, Ref) or arg.name in self.builder.facts.constant

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.builder.facts.types[self.builder.substitute(name)].shape

    def _spread(self, value: Ref, axis: int, whole: _Whole) -> Ref:
        """A constant with its elements along the axis at the places of the channels, zeros at all
        others."""
        value = Ref(self.builder.substitute(value.name))
        after = (0, 0) * (len(self._shape(value.name)) - axis - 1)
        ends = [*(start for start, _ in whole.spans[1:]), whole.channels]
        places = list(accumulate((high - low for low, high in whole.spans), initial=0))
        pieces: list[Ref] = []
        for (_, high), end, (a, b) in zip(whole.spans, ends, pairwise(places), strict=True):
            piece = value
            if len(whole.spans) > 1:
                piece = self.builder.call(SLICE, value, axis, a, b)
            if end > high:
                piece = self.builder.call(PAD, piece, (*after, 0, end - high))
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else self.builder.call(CAT, tuple(pieces), axis)

    def _call(self, node: Node, *args: Arg) -> Ref:
        kwargs = dict(node.kwargs)
        return self.builder.call(node.op, *args, name="", origin=node.origin, **kwargs)

    def _some(self, node: Node, ref: Ref, whole: _Whole) -> Ref:
        """The channels that the node had, of what has more of them."""
        self.whole[node.name] = _Whole(whole.spans, whole.channels, lambda: ref)
        cuts = [
            self.builder.call(SLICE, ref, 1, low, high, origin=node.origin)
            for low, high in whole.spans
        ]
        if len(cuts) == 1:
            return cuts[0]
        return self.builder.call(CAT, tuple(cuts), 1, origin=node.origin)


def _of_each_channel(node: Node) -> bool:
    """Whether it computes each channel of an image, its second axis, by itself, and makes numbers
    of numbers."""
    args = (*node.args, *(value for _, value in node.kwargs))
    if node.op in POINTWISE:
        if any(isinstance(value, Ref) for _, value in node.kwargs):
            return False
        numbers = [abs(arg) for arg in args if isinstance(arg, int | float)]
        if node.op not in ARITHMETIC:
            return True
        if node.op == DIV:
            return not isinstance(node.args[1], Ref) and all(
                n >= 1 / LARGEST_NUMBER for n in numbers
            )
        return all(n <= LARGEST_NUMBER for n in numbers)
    if node.op == PAD:
        sides = node.args[1]
        return isinstance(sides, tuple) and len(sides) <= 2 * (len(node.type.shape) - 2)
    return node.op in IMAGES and len(node.type.shape) == 4 and not node.kwargs


def _placed(graph: Graph) -> set[str]:
    """The values of which somebody counts on where their elements lie: what is returned, what is
    read by its strides or by an operator that nobody knows, and what those are views of."""
    type_of = types(graph)
    placed = {ref.name for ref in graph.outputs}
    for node in reversed(graph.nodes):
        unknown = ops.kind_of(node) == "opaque" or node.op in STRIDED
        if unknown or (not placed.isdisjoint(node.results) and ops.is_view(node, type_of)):
            placed.update(node.uses)
    return placed


def _of_zeros(
    name: str,
    channels: int,
    facts: ValueFacts,
    constants: Mapping[str, Constant],
    seen: list[ReliedOn],
) -> bool:
    """Whether what stands behind so many channels of a value comes of nothing but zeros, and of
    operators that make numbers of them. What that relies on is added to `seen`."""
    done, todo = set[str](), [name]
    while todo:
        name = todo.pop()
        node = facts.producers.get(name)
        if name in done or (node is None and name in constants):
            continue
        done.add(name)
        if node is None:
            return False
        if node.op == CONVOLUTION:
            ends = [arg.name for arg in node.args[1:3] if isinstance(arg, Ref)]
            zeros = (_ends_in_zeros(end, channels, facts, constants, seen) for end in ends)
            if node.args[6] or not all(zeros):
                return False
        elif _of_each_channel(node):
            todo += node.uses
        else:
            return False
    return True


def _ends_in_zeros(
    name: str, rows: int, facts: ValueFacts, constants: Mapping[str, Constant], seen: list[ReliedOn]
) -> bool:
    """Whether a weight or a bias has so many rows at the most before nothing but zeros: by its
    numbers, or by how it is made."""
    node = facts.producers.get(name)
    if node is None:
        held = constants.get(name)
        if held is None or held.value is None or bool(held.value[rows:].any()):
            return False
        seen.append((held, "ends_in_zeros", (rows,)))
        return True
    inner: tuple[Arg, ...] = ()
    axis = node.args[1] if len(node.args) > 1 else 0
    if node.op == PAD:
        value, sides, *fill = node.args
        assert isinstance(value, Ref) and isinstance(sides, tuple)
        before, behind = sides[-2:] if len(sides) == 2 * len(node.type.shape) else (0, 0)
        if before != 0 or fill not in ([], [0]) or node.kwargs:
            return False
        if behind != 0 and facts.types[value.name].shape[0] <= rows:
            return True
        inner = (value,)
    elif node.op == SLICE and isinstance(axis, int) and axis > 0:
        inner = node.args[:1]
    elif node.op == CAT and isinstance(axis, int) and axis > 0:
        inner = node.args[0] if isinstance(node.args[0], tuple) else ()
    parts = [arg.name for arg in inner if isinstance(arg, Ref)]
    return bool(parts) and all(_ends_in_zeros(part, rows, facts, constants, seen) for part in parts)
