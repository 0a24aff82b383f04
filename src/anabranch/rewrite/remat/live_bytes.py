"""How many bytes live at once when a graph runs in its own order, and when some of its values are
computed again.

    y = relu(x)            y = relu(x)
    z = ... y ...          z = ... y ...         y dies here
    ...           <- peak  ...
    g = ... y ...          y_again = relu(x)     shortly before its first reader behind the peak
                           g = ... y_again ...

Nodes are numbers here, for many choices are compared. Values computed again may read other values
that are, which are then computed before them, each once. Views are renamed again where what they
show is. Inputs, constants and what is written in the place of a state have memory of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.graph import Graph, types
from anabranch.ir.rule import computable
from anabranch.ir.state import overwriting

Run = tuple[int, bool]
"""A node by number, and whether it runs again."""


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """A graph by numbers. `reads`: by node the nodes that it reads; `roots`: whose memory its
    results are, itself but for views, -1 where that is no node's; `nbytes`: what its own memory
    takes; `returned`: nodes whose memory lives to the end; `repeatable`: those that may run
    again."""

    reads: tuple[tuple[int, ...], ...]
    roots: tuple[int, ...]
    nbytes: tuple[int, ...]
    returned: frozenset[int]
    repeatable: frozenset[int]

    @staticmethod
    def of(graph: Graph) -> LiveBytes:
        """Of a graph whose states are in their places."""
        table, written = types(graph), overwriting(graph)
        number = {name: i for i, node in enumerate(graph.nodes) for name in node.results}
        lost = _overwritten_early(graph, written)
        reads, roots, nbytes, repeatable = [], list[int](), list[int](), set[int]()
        for i, node in enumerate(graph.nodes):
            reads.append(tuple(dict.fromkeys(number[name] for name in node.uses if name in number)))
            view = ops.is_view(node, table)
            base = number.get(node.uses[0], -1) if view and node.uses else -1
            roots.append((roots[base] if base >= 0 else -1) if view else i)
            own = not view and node.name not in written
            nbytes.append(sum(type.nbytes for type in node.types) if own else 0)
            if view and not lost.isdisjoint(node.uses):
                lost.update(node.results)
            if own and computable(node) and lost.isdisjoint(node.uses):
                repeatable.add(i)
        outputs = frozenset(roots[number[ref.name]] for ref in graph.outputs if ref.name in number)
        by_node = tuple(reads), tuple(roots), tuple(nbytes)
        return LiveBytes(*by_node, outputs, frozenset(repeatable))

    def readers(self) -> list[list[int]]:
        """By node who reads its memory, through views or not."""
        readers: list[list[int]] = [[] for _ in self.reads]
        for i, read in enumerate(self.reads):
            for root in {self.roots[j] for j in read} - {-1, self.roots[i]}:
                readers[root].append(i)
        return readers

    def order(self, again: Collection[int], border: int) -> list[Run]:
        """All that runs, where these nodes run again for whoever reads them behind the node of this
        number."""
        renewed = self.renewed(again, border)
        runs, done = list[Run](), set[int]()

        def before(i: int) -> None:
            stack = [(j, False) for j in reversed(self.reads[i]) if j <= border and renewed[j]]
            while stack:
                j, ready = stack.pop()
                if j in done:
                    continue
                if ready:
                    done.add(j)
                    runs.append((j, True))
                    continue
                stack.append((j, True))
                stack += [(k, False) for k in reversed(self.reads[j]) if renewed[k]]

        for i in range(len(self.reads)):
            if i > border:
                before(i)
            runs.append((i, False))
        return runs

    def renewed(self, again: Collection[int], border: int) -> list[bool]:
        """By node up to the border whether its results behind it are others: it runs again, or is a
        view of what does."""
        renewed = list[bool]()
        for i, read in enumerate(self.reads[: border + 1]):
            view = self.roots[i] != i
            renewed.append(i in again or (view and any(renewed[j] for j in read)))
        return renewed

    def peak(self, runs: Sequence[Run], renewed: Sequence[bool], border: int) -> tuple[int, int]:
        """The most bytes that live at once, and the position in `runs` where they do."""
        last: dict[Run, int] = {}
        for at, (i, copy) in enumerate(runs):
            late = copy or i > border
            for j in self.reads[i]:
                root = self.roots[j]
                if root >= 0:
                    other = late and j <= border and renewed[j] and renewed[root]
                    last[root, other] = at
            if self.roots[i] == i:
                last.setdefault((i, copy), at)
        dying: list[int] = [0] * (len(runs) + 1)
        for (root, copy), at in last.items():
            end = len(runs) if root in self.returned and not copy else at
            dying[end] += self.nbytes[root]
        live = most = where = 0
        for at, (i, _) in enumerate(runs):
            live += self.nbytes[i] if self.roots[i] == i else 0
            if live > most:
                most, where = live, at
            live -= dying[at]
        return most, where


def _overwritten_early(graph: Graph, written: Mapping[str, str]) -> set[str]:
    """Values that are written over before the end, where all that is left brings new values to
    their places: who reads them may not run later."""
    end = len(graph.nodes)
    while end and graph.nodes[end - 1].name in written:
        end -= 1
    return {written[node.name] for node in graph.nodes[:end] if node.name in written}
