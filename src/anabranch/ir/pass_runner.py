"""Around every pass: the clock, the check, the dump and the count. Passes themselves stay bare.

`CHECK=1` verifies each result; `CHECK=2` also evaluates it against the graph before and names the
first pass that changed the answer; `FUEL=n` stops after n changes, for bisecting a wrong one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from anabranch.errors import VerifyError
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.rule import ValueFacts
from anabranch.ir.text import text_graph
from anabranch.ir.tolerances import FLOOR, relative_error
from anabranch.ir.verify import verify_graph
from anabranch.trace import Trace

Pass = Callable[[Graph], Graph]


@dataclass(slots=True)
class Stepper:
    """Runs passes for one compilation. `check` 0 to 2, `fuel` the number of changes still allowed
    (None: any), `dump` a folder for the text after each pass that changed something."""

    trace: Trace
    check: int = 0
    fuel: int | None = None
    dump: Path | None = None
    steps: int = field(default=0, init=False)

    def run(self, graph: Graph, passes: Mapping[str, Pass]) -> Graph:
        """Each pass once, in order."""
        for name, apply in passes.items():
            graph = self.step(graph, name, apply)
        return graph

    def step(self, graph: Graph, name: str, apply: Pass, tolerance: float = 0.0) -> Graph:
        """The pass, once. `tolerance`: by how much it may change results on purpose."""
        if self.fuel == 0:
            self.trace.add("refused", "rewrite", name, "out of fuel")
            return graph
        start = time.perf_counter()
        after = apply(graph)
        if after is graph:
            return graph
        # What a pass relied on, those rely on too that come after it.
        relied = tuple(dict.fromkeys((*graph.conditions, *after.conditions)))
        if relied != after.conditions:
            after = replace(after, conditions=relied)
        if self.fuel is not None:
            self.fuel -= 1
        self.steps += 1
        ms = round(1e3 * (time.perf_counter() - start), 2)
        change = f"{len(graph.nodes)} -> {len(after.nodes)} nodes"
        self.trace.add("applied", "rewrite", name, change, ms=ms)
        self._check(name, graph, after, tolerance)
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            path = self.dump / f"01_{self.steps:02}_{name}.txt"
            path.write_text(text_graph(after))
        return after

    def _check(self, name: str, before: Graph, after: Graph, tolerance: float) -> None:
        if self.check >= 1:
            try:
                verify_graph(after, infer=self.check >= 2)
            except VerifyError as broken:
                raise VerifyError(f"after pass {name}: {broken}") from None
        if self.check >= 2:
            inputs = random_inputs(before, 0)
            expected = eval_graph(before, inputs, precision=torch.float64)
            for i, (want, got) in enumerate(
                zip(expected, eval_graph(after, inputs, precision=torch.float64), strict=True)
            ):
                error, allowed = relative_error(got, want), max(tolerance, rounding(before))
                if error > allowed:
                    raise VerifyError(
                        f"pass {name} changed output {i}: relative error {error:.3g}, "
                        f"of which rounding of constants explains {allowed:.3g}"
                    )


def rounding(graph: Graph) -> float:
    """The error that folding constants in their own dtypes may leave in a result evaluated in
    fp64."""
    facts = ValueFacts.of(graph)
    held = (*(facts.types[name] for name in facts.constant), *(v.type for v in graph.inputs))
    return 4 * max((FLOOR.get(type.dtype, 0.0) for type in held), default=1e-12)
