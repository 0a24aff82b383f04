"""The inputs of all steps of a recurrent layer are multiplied a few steps at a time.

    h1..h64 --cat--> linear --slices--> steps of the next layer      waits for h64

    h1..h8  --cat--> linear --slices--> steps 1..8 of the next layer, beside h9..h16
    h9..h16 --cat--> linear --slices--> ...                          one piece behind

The next layer reads one step after the other, and so does the backward pass of the layer before,
which begins with the last step: with one product for all steps layers run one after another, with
pieces side by side (a wavefront; Appleyard and others, 2016, arXiv 1604.01946). It pays where both
sides are chains: each step needs the one before it. All else that reads the product, or the steps,
reads them whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, producers, types, users
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace

CAT, STACK = "aten.cat.default", "aten.stack.default"
CONVERT, RESHAPE = "aten._to_copy.default", "aten.reshape.default"
SLICE, SELECT, UNBIND = "aten.slice.Tensor", "aten.select.int", "aten.unbind.int"
PRODUCTS = frozenset({"aten.linear.default", "aten.mm.default"})
FEWEST_STEPS = 16
PIECES = 8
"""Of a sequence: layers then wait for each other an eighth as long."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A product of all steps. `steps`: what is joined, the first step first; `way`: nodes from
    there to what the steps of the other side are slices of, the product among them; `backwards`:
    whether the last step comes first."""

    joins: Node
    steps: tuple[str, ...]
    way: tuple[Node, ...]


def sequence_pieces(graph: Graph, trace: Trace) -> Graph:
    """The graph with such products in pieces; the same one where there are none."""
    search = _Search(graph)
    sequences = [sequence for node in graph.nodes if (sequence := search.sequence(node))]
    if not sequences:
        return graph
    builder = Builder(graph)
    begins = {sequence.joins.name: sequence for sequence in sequences}
    goes_on = {node.name: sequence for sequence in sequences for node in sequence.way}
    pieces: dict[str, _Pieces] = {}
    for node in graph.nodes:
        source = node.uses[0] if node.uses else ""
        if node.name in begins:
            pieces[node.name] = _Pieces.begun(builder, begins[node.name])
        elif node.name in goes_on:
            pieces[node.name] = pieces[source].through(builder, node)
            if node is goes_on[node.name].way[-1]:
                trace.add("applied", "rewrite", node.name, f"{PIECES} pieces of a sequence")
        elif source in pieces and _one_by_one(node) and pieces[source].by_steps:
            pieces[source].read(builder, node)
        else:
            builder.keep(node)
    return builder.graph()


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A value of all steps in pieces. `sizes`: how many steps each has. `by_steps`: its first axis
    counts steps, and not their rows."""

    values: tuple[Ref, ...]
    sizes: tuple[int, ...]
    by_steps: bool

    @staticmethod
    def begun(builder: Builder, sequence: _Sequence) -> _Pieces:
        """The steps of the sequence, joined by pieces, and whole for all others; a cast of all is
        one of each step."""
        count, node = len(sequence.steps), sequence.joins
        each = -(-count // PIECES)
        values, sizes = list[Ref](), list[int]()
        for first in range(0, count, each):
            steps = sequence.steps[first : first + each]
            parts = tuple(Ref(builder.substitute(name)) for name in steps)
            values.append(builder.call(CAT, parts, 0, origin=node.origin))
            sizes.append(len(steps))
        pieces = _Pieces(tuple(values), tuple(sizes), True)
        whole = pieces.whole(builder, node)
        if node.op == STACK:
            whole = builder.call(RESHAPE, whole, node.type.shape, origin=node.origin)
            shapes = [(size, *node.type.shape[1:]) for size in sizes]
            split = zip(values, shapes, strict=True)
            shaped = (builder.call(RESHAPE, v, shape, origin=node.origin) for v, shape in split)
            pieces = _Pieces(tuple(shaped), pieces.sizes, True)
        builder.replace(node.name, whole)
        return pieces

    def whole(self, builder: Builder, node: Node) -> Ref:
        """All pieces one after the other."""
        return builder.call(CAT, self.values, 0, origin=node.origin)

    def through(self, builder: Builder, node: Node) -> _Pieces:
        """What the node makes of each piece."""
        if node.op == RESHAPE:
            count, shape = sum(self.sizes), node.type.shape
            values = tuple(
                builder.call(RESHAPE, value, (shape[0] // count * size, *shape[1:]))
                for value, size in zip(self.values, self.sizes, strict=True)
            )
            builder.keep(node)
            return _Pieces(values, self.sizes, shape[0] == count)
        renamed = builder.renamed(node)
        pieces = _Pieces(
            tuple(self._of(builder, node, renamed, value) for value in self.values),
            self.sizes,
            self.by_steps,
        )
        builder.replace(node.name, pieces.whole(builder, node))
        return pieces

    def _of(self, builder: Builder, node: Node, renamed: Node, value: Ref) -> Ref:
        """The node of one piece; a cast of steps that are joined joins casts of steps, which may be
        there anyway."""
        joined = builder.nodes.get(value.name)
        if node.op == CONVERT and joined is not None and joined.op == CAT:
            parts = tuple(_same(builder, renamed, Ref(name)) for name in joined.uses)
            return builder.call(CAT, parts, 0, origin=node.origin)
        return _same(builder, renamed, value)

    def read(self, builder: Builder, node: Node) -> None:
        """A reader of one step, or of each of them, reads it from its piece."""
        places = [(value, i) for v, value in enumerate(self.values) for i in range(self.sizes[v])]
        if node.op == UNBIND:
            for result, (piece, place) in zip(node.results, places, strict=True):
                step = builder.call(SELECT, piece, 0, place, origin=node.origin)
                builder.replace(result, step)
            return
        piece, place = places[_step(node)]
        builder.release(node)
        args = (piece, 0, place) if node.op == SELECT else (piece, 0, place, place + 1)
        builder.replace(node.name, builder.instead(node, node.op, *args))


def _same(builder: Builder, node: Node, first: Ref) -> Ref:
    """The node with another first operand; a cast that the model asked for stays one."""
    kwargs = dict(node.kwargs)
    result = builder.call(node.op, first, *node.args[1:], name="", origin=node.origin, **kwargs)
    if node.strict:
        builder.add(replace(builder.nodes[result.name], strict=True))
    return result


def _step(node: Node) -> int:
    """The place that a slice or selection begins with."""
    start = ops.arguments(node)["index" if node.op == SELECT else "start"]
    return start if isinstance(start, int) else 0


def _one_by_one(node: Node) -> bool:
    """Whether it reads single steps along the first axis."""
    if node.op not in (SLICE, SELECT, UNBIND) or ops.arguments(node)["dim"] != 0:
        return False
    return node.op == UNBIND or (_step(node) >= 0 and (node.op == SELECT or _is_one(node)))


def _is_one(node: Node) -> bool:
    return node.type.shape[0] == 1


class _Search:
    """What is asked of one graph: `ancestors` are masks of positions of nodes."""

    def __init__(self, graph: Graph) -> None:
        self._types, self._makers, self._readers = types(graph), producers(graph), users(graph)
        self._position = {name: i for i, n in enumerate(graph.nodes) for name in n.results}
        self._graph = graph
        self._masks: list[int] = []

    def sequence(self, node: Node) -> _Sequence | None:
        """The sequence whose steps the node joins, if a product of all of them is read by steps."""
        if node.op not in (CAT, STACK) or ops.arguments(node)["dim"] != 0:
            return None
        steps = node.uses
        whole = node.type.shape[0] == len(steps) and len(node.type.shape) == 3
        if len(steps) < FEWEST_STEPS or len({*steps}) < len(steps) or not whole:
            return None
        way = self._way(node)
        if way is None or any(name not in self._makers for name in steps):
            return None
        order = self._order([self._makers[name] for name in steps])
        readers = self._steps_of(way[-1], len(steps))
        if order is None or readers is None or self._order(readers) != order:
            return None
        return _Sequence(node, steps, way)

    def _way(self, joins: Node) -> tuple[Node, ...] | None:
        """From what joins the steps over casts, reshapes and a product to what is read by steps."""
        count, way, node = len(joins.uses), list[Node](), joins
        while True:
            if any(n.op in PRODUCTS for n in way) and self._steps_of(node, count) is not None:
                return tuple(way)
            following = [
                n for n in self._readers.get(node.name, ()) if self._goes_on(n, node, count)
            ]
            product = [n for n in following if n.op in PRODUCTS]
            others = [n for n in following if n.op not in PRODUCTS]
            if any(n.op in PRODUCTS for n in way):
                product = []
            following = product or others
            if len(following) != 1:
                return None
            node = following[0]
            way.append(node)

    def _goes_on(self, node: Node, before: Node, count: int) -> bool:
        """Whether each step of the result is computed of that step alone."""
        if not node.uses or node.uses[0] != before.name or node.uses.count(before.name) > 1:
            return False
        if node.op == RESHAPE:
            rows, result_rows = self._types[before.name].shape[0], node.type.shape[0]
            whole = self._types[before.name]
            return rows % count == 0 and result_rows % count == 0 and whole.contiguous
        return node.op == CONVERT or node.op in PRODUCTS

    def _steps_of(self, node: Node, count: int) -> list[Node] | None:
        """Who reads the single steps, the first step first; None unless each is read."""
        if node.type.shape[:1] != (count,):
            return None
        node_of: dict[int, Node] = {}
        for reader in self._readers.get(node.name, ()):
            if not _one_by_one(reader):
                continue
            for i, name in enumerate(reader.results):
                after = self._computes(name)
                if after:
                    step = i if reader.op == UNBIND else _step(reader)
                    node_of[step] = min(after, key=lambda n: self._position[n.name])
        return [node_of[i] for i in range(count)] if len(node_of) == count else None

    def _computes(self, name: str) -> list[Node]:
        """Who computes something of the value, or of views of it."""
        nodes, stack = list[Node](), [name]
        while stack:
            for node in self._readers.get(stack.pop(), ()):
                if ops.is_view(node, self._types):
                    stack += node.results
                else:
                    nodes.append(node)
        return nodes

    def _order(self, nodes: Sequence[Node]) -> int | None:
        """1 where each of them needs what the one before is made of, -1 where the one behind."""
        masks = self._ancestors()
        at = [self._position[node.name] for node in nodes]
        sources = [sum(1 << i for i in self._sources(node)) for node in nodes]
        pairs = range(len(nodes) - 1)
        if all(masks[at[i + 1]] & sources[i] for i in pairs):
            return 1
        return -1 if all(masks[at[i]] & sources[i + 1] for i in pairs) else None

    def _sources(self, node: Node) -> set[int]:
        """Positions of the nodes that compute what this one moves; of the node itself, if it
        computes."""
        positions, stack = set[int](), [node]
        while stack:
            current = stack.pop()
            moves = current.op in (CAT, STACK, CONVERT, RESHAPE) or ops.is_view(
                current, self._types
            )
            before = [self._makers[name] for name in current.uses if name in self._makers]
            if moves and before:
                stack += before
            else:
                positions.add(self._position[current.name])
        return positions

    def _ancestors(self) -> list[int]:
        if not self._masks:
            for node in self._graph.nodes:
                mask = 0
                for name in node.uses:
                    if name in self._position:
                        at = self._position[name]
                        mask |= self._masks[at] | 1 << at
                self._masks.append(mask)
        return self._masks
