"""Decisions of the selector, kept between processes: what was tried for a structure, what won.

    structure, machine, costs, providers --> cache --> aten.aten 9.4 us, triton.rows 3.1 us: chosen

The key says everything that a decision depends on, down to the files that write kernels, so that
a stale one is never found. A hit makes the chosen kernel alone: the others are sketches, known by
name and cost, whose text nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.cache import Cache, Table
from anabranch.ir.codec import UNTOLD, nouns
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Provider
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.tuning.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that was tried for a structure, and how far it came. `sketch`: the kernel is
    recalled, and known by its name alone: `whole` makes it."""

    kernel: Kernel
    verdict: Verdict
    sketch: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The candidates tried for a structure, and for each the position of its provider."""

    tried: tuple[Candidate, ...]
    makers: tuple[int, ...]

    @property
    def winner(self) -> int:
        """The position of the chosen candidate; StopIteration if none was chosen."""
        return next(i for i, candidate in enumerate(self.tried) if candidate.verdict.chosen)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Memory:
    """Where decisions are kept, None for nowhere. `costs`: names what told the costs; `settled`:
    whether all that failed would fail again, asked when all was tried."""

    cache: Cache | None = None
    costs: str = ""
    settled: Callable[[], bool] = _always


NOWHERE = Memory()


DECISIONS: Table[Decision] = Table("kernels", "selection 5", nouns(Decision))
"""Of sketches."""


def kept_decisions(
    structures: Mapping[str, Graph],
    spec: TargetSpec,
    providers: Sequence[Provider],
    memory: Memory,
) -> dict[str, Decision]:
    """The decisions that are known, by structure; `structures`: a body of each."""
    title = _title(spec, providers, memory)
    keys = {structure: DECISIONS.key(*title, structure) for structure in structures}
    makers = dict(enumerate(provider.name for provider in providers))
    return {
        structure: Decision(sketches(decision.tried, structures[structure]), decision.makers)
        for structure, decision in DECISIONS.get_many(memory.cache, keys).items()
        if sum(candidate.verdict.chosen for candidate in decision.tried) == 1
        and [makers.get(i) for i in decision.makers]
        == [candidate.kernel.provider for candidate in decision.tried]
    }


def store(
    decisions: Mapping[str, Decision],
    spec: TargetSpec,
    providers: Sequence[Provider],
    memory: Memory,
) -> None:
    """Keep what will be decided so again: on a machine that measures, what is measured."""
    if memory.cache is None or not memory.settled():
        return
    title = _title(spec, providers, memory)
    items = {
        DECISIONS.key(*title, structure): Decision(sketches(decision.tried), decision.makers)
        for structure, decision in decisions.items()
        if spec.simulated or _measured(decision)
    }
    DECISIONS.put_many(memory.cache, items)


def sketches(tried: Iterable[Candidate], body: Graph = UNTOLD) -> tuple[Candidate, ...]:
    """The candidates, known by name and cost, as kernels of this body."""
    return tuple(
        Candidate(
            Kernel(k.provider, k.name, body, k.variant, k.writes_out),
            candidate.verdict,
            sketch=True,
        )
        for candidate in tried
        for k in (candidate.kernel,)
    )


def whole(
    task: Task, candidate: Candidate, spec: TargetSpec, providers: Iterable[Provider]
) -> Kernel:
    """The candidate's kernel with its body and text. ValueError where nobody makes it any more."""
    kernel = candidate.kernel
    if not candidate.sketch:
        return kernel
    for provider in providers:
        if provider.name == kernel.provider:
            try:
                return provider.kernel(task, spec, kernel.name, kernel.variant)
            except ValueError:
                continue
    raise ValueError(f"no provider makes {kernel.provider}.{kernel.name} {kernel.variant}")


def _title(spec: TargetSpec, providers: Sequence[Provider], memory: Memory) -> list[str]:
    versions = (f"{provider.name} {provider.version}" for provider in providers)
    return [spec.fingerprint, memory.costs, *versions]


def _measured(decision: Decision) -> bool:
    cost = decision.tried[decision.winner].verdict.cost
    return cost is not None and cost.source == "measured"
