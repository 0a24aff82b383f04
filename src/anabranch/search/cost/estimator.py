"""Appraising: what a graph, or a part of one, would take, without writing a kernel for it.

    graph -> cut into the tasks that it would fuse into -> each task's time
          -> alpha * longest path, with its forks and changes of lane, + sum   (AutoGraph, 3.3)

A task of a graph that was tried takes what was found for it there. All others are estimated, times
what the estimates of the known tasks most like it are off by (`Scale`): so a merged convolution is
compared with the two it replaces in numbers of one scale, and a convolution that loses its relu
does not get faster for no longer being known.

Published searches have their operators timed instead (`Measure`): each new one once, of the graph
that is priced all together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median

from anabranch.costs.alpha_cost import WITHOUT_OVERLAP_COST, mixed_price
from anabranch.costs.work import Work, work
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph
from anabranch.ir.ops import CONVOLUTIONS, channels_last
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task
from anabranch.search.cost.incremental import IncrementalPrice, Terms, carried
from anabranch.search.cost.parallel_forecast import outlook
from anabranch.search.cost.task_cuts import MainOperator, TaskCutter, TaskPiece

Taken = Sequence[tuple[Task, Cost]]
"""Tasks with what each takes alone."""
Measure = Callable[[Sequence[TaskPiece]], Mapping[str, float]]
"""Times pieces: their microseconds by their text, of those that run and that there is time for."""


class Appraiser:
    """The price of graphs. `taken`: tasks, and what each takes; `alpha`: what the
    longest path weighs; `machine`: what it costs to run side by side, nothing in the paper;
    `measure`: times what nobody has run, where it would inherit the time of what differs little."""

    def __init__(
        self,
        taken: Taken,
        cuts: TaskCutter,
        alpha: float,
        machine: Calibration = WITHOUT_OVERLAP_COST,
        measure: Measure | None = None,
    ) -> None:
        self._cuts, self._alpha, self._machine = cuts, alpha, machine
        self._measure, self._measured = measure, dict[str, float | None]()
        pieces = [(cuts.piece(task), cost.us) for task, cost in taken]
        self._tasks = {p.text: task for (p, _), (task, _) in zip(pieces, taken, strict=True)}
        self._works: dict[str, Work] = {}
        self._times = Times(pieces)
        self._scale = Scale(pieces)
        self._us: dict[int, tuple[TaskPiece, float]] = {}
        self._arranged = cuts.spec.kind == "cuda" and any(
            channels_last(task.body.inputs[0].type)
            for task, _ in taken
            if task.body.inputs and any(node.op in CONVOLUTIONS for node in task.body.nodes)
        )

    def __call__(self, graph: Graph) -> Price:
        """The sum of its tasks and alpha times the longest path, with copies between layouts."""
        cut = self._cuts.of(graph, self._arranged)
        self._time((*cut.pieces, *cut.leaving))
        copies = sum(map(self.us, cut.leaving))
        times = [self.us(piece) for piece in cut.pieces]
        return mixed_price(times, cut.preds, self._alpha, self._machine, copies)

    def carried(self, before: IncrementalPrice | None, whole: Graph) -> IncrementalPrice:
        """The price of a beginning of a network that goes on from another one."""
        return carried(
            before, whole, Terms(self._cuts, self.us, self._alpha, self._machine, self._arranged)
        )

    def outlook(self, graph: Graph) -> Cost:
        """What it would take with its tasks side by side."""
        cut = self._cuts.of(graph, self._arranged)
        works = list(map(self._work, cut.pieces))
        copies = sum(map(self.us, cut.leaving))
        us = outlook(cut, list(map(self.us, cut.pieces)), works, self._cuts.spec)
        return Cost(copies + us, "estimated")

    def fresh(self, graph: Graph) -> frozenset[str]:
        """The tasks of it that nobody has run, by their text."""
        pieces = self._cuts.of(graph, self._arranged).pieces
        return frozenset(p.text for p in pieces if not p.free and self._times.of(p) is None)

    def _work(self, piece: TaskPiece) -> Work:
        """What it asks of the machine: the kernel it is known with, or about."""
        if piece.text not in self._works:
            task = self._tasks.get(piece.text) or piece.task
            self._works[piece.text] = work(task, self._cuts.spec)
        return self._works[piece.text]

    def us(self, piece: TaskPiece) -> float:
        """Microseconds that it takes alone."""
        entry = self._us.get(id(piece))
        if entry is None:
            us = self._measured_us(piece)
            if us is None:
                us = 0.0 if piece.free else piece.rough_us * self._scale.of(piece)
            entry = self._us[id(piece)] = piece, us
        return entry[1]

    def _measured_us(self, piece: TaskPiece) -> float | None:
        """What it takes as far as it has run."""
        self._time((piece,))
        us = self._times.exactly(piece)
        us = self._measured.get(piece.text) if us is None else us
        return self._times.of(piece) if us is None else us

    def _time(self, pieces: Sequence[TaskPiece]) -> None:
        """Has those timed that nobody has run, each once."""
        if self._measure is not None:
            measured = self._measured
            new = {p.text: p for p in pieces if not p.free and p.text not in measured}
            new = {text: p for text, p in new.items() if self._times.exactly(p) is None}
            if new:
                times = self._measure(list(new.values()))
                measured.update({text: times.get(text) for text in new})


class Times:
    """What pieces are known to take: of the same structure, else of one that differs only in how
    its values lie in memory, as when a part is written into its place in a whole."""

    def __init__(self, taken: Sequence[tuple[TaskPiece, float]]) -> None:
        self._exact = {piece.text: us for piece, us in taken}
        self._loose: dict[str, float] = {}
        for piece, us in taken:
            self._loose[piece.anywhere] = max(us, self._loose.get(piece.anywhere, 0.0))

    def exactly(self, piece: TaskPiece) -> float | None:
        """Microseconds that the piece takes, None if no task of its structure has run."""
        return self._exact.get(piece.text)

    def of(self, piece: TaskPiece) -> float | None:
        """The same, or what one like it takes; None if no task like it has run."""
        exact = self.exactly(piece)
        return self._loose.get(piece.anywhere) if exact is None else exact


class Scale:
    """The error of estimates, as the known tasks say that are like a task in most.

    Alike are, in this order: those of the same main node, whatever is fused to it and whatever a
    product is called; those of its operator whose main operands, or only the first of them, have
    the same types; those of its operator, if there are a few; of its kind; all. Of the same main
    node the most counts: in another wrapping it shall not look faster than it is known to be. Of
    others, the median.
    """

    FEW = 3

    def __init__(self, taken: Sequence[tuple[TaskPiece, float]]) -> None:
        ratios_of: dict[Hashable, list[float]] = {}
        for piece, us in taken:
            if piece.rough_us:
                for likeness in piece.likenesses:
                    ratios_of.setdefault(likeness, []).append(us / piece.rough_us)
        self._ratio = {
            likeness: max(ratios) if isinstance(likeness, MainOperator) else median(ratios)
            for likeness, ratios in ratios_of.items()
            if not isinstance(likeness, str) or len(ratios) >= self.FEW
        }

    def of(self, piece: TaskPiece) -> float:
        """What to multiply the piece's estimate by; 1.0 where no known task is like it."""
        return next((self._ratio[x] for x in piece.likenesses if x in self._ratio), 1.0)
