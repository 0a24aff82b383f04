"""Decisions of the selector, kept between processes: what was tried for a structure, what won.

    structure, machine, costs, providers --> cache --> aten.aten 9.4 us, triton.rows 3.1 us: chosen

The key says everything that a decision depends on, down to the files that write kernels, so that
a stale one is never found. A hit makes the chosen kernel alone: the others are sketches, known by
name and cost, whose text nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost, Provider
from anabranch.ir.schedule import Source
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task

SCHEME = "selection 3"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that was tried for a structure, its cost (None: it cannot run), and whether it
    was chosen; `refused` says why not, if not for its time. `sketch`: the kernel is recalled, and
    known by its name alone: `whole` makes it."""

    kernel: Kernel
    cost: Cost | None
    chosen: bool = False
    refused: str = ""
    sketch: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What was tried for a structure, and for each candidate the position of its provider."""

    tried: tuple[Candidate, ...]
    makers: tuple[int, ...]

    @property
    def winner(self) -> int:
        """The position of the chosen candidate; StopIteration if none was chosen."""
        return next(i for i, candidate in enumerate(self.tried) if candidate.chosen)


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


class _Tried(BaseModel):
    maker: int
    name: str
    variant: str
    writes_out: bool
    us: float | None
    source: Source | None
    spread: float
    refused: str
    chosen: bool


class _Stored(BaseModel):
    tried: list[_Tried]


def recall(
    structures: Mapping[str, Graph],
    spec: TargetSpec,
    providers: Sequence[Provider],
    memory: Memory,
) -> dict[str, Decision]:
    """The decisions that are known, by structure; `structures`: a body of each."""
    if memory.cache is None or not structures:
        return {}
    title = _title(spec, providers, memory)
    found = memory.cache.get_many("kernels", [title + structure for structure in structures])
    decisions = {
        structure: _read(found[title + structure], body, providers)
        for structure, body in structures.items()
        if title + structure in found
    }
    return {key: decision for key, decision in decisions.items() if decision is not None}


def remember(
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
        title + structure: _text(decision)
        for structure, decision in decisions.items()
        if spec.simulated or _measured(decision)
    }
    memory.cache.put_many("kernels", items)


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


def _title(spec: TargetSpec, providers: Sequence[Provider], memory: Memory) -> str:
    made = [f"{provider.name} {provider.version}" for provider in providers]
    return "\n".join([SCHEME, spec.fingerprint, memory.costs, *made, ""])


def _measured(decision: Decision) -> bool:
    cost = decision.tried[decision.winner].cost
    return cost is not None and cost.source == "measured"


def _text(decision: Decision) -> str:
    tried = [
        _Tried(
            maker=maker,
            name=candidate.kernel.name,
            variant=candidate.kernel.variant,
            writes_out=candidate.kernel.writes_out,
            us=candidate.cost.us if candidate.cost else None,
            source=candidate.cost.source if candidate.cost else None,
            spread=candidate.cost.spread if candidate.cost else 0.0,
            refused=candidate.refused,
            chosen=candidate.chosen,
        )
        for candidate, maker in zip(decision.tried, decision.makers, strict=True)
    ]
    return _Stored(tried=tried).model_dump_json()


def _read(text: str, body: Graph, providers: Sequence[Provider]) -> Decision | None:
    """The decision of this text, None if it is not one that we can follow."""
    try:
        tried = _Stored.model_validate_json(text).tried
    except ValidationError:
        return None
    makers = tuple(one.maker for one in tried)
    if sum(one.chosen for one in tried) != 1 or not set(makers) <= set(range(len(providers))):
        return None
    return Decision(tuple(_candidate(one, body, providers) for one in tried), makers)


def _candidate(one: _Tried, body: Graph, providers: Sequence[Provider]) -> Candidate:
    kernel = Kernel(providers[one.maker].name, one.name, body, one.variant, one.writes_out)
    known = one.us is not None and one.source is not None
    cost = Cost(one.us, one.source, one.spread) if known else None  # type: ignore[arg-type]
    return Candidate(kernel, cost, one.chosen, one.refused, sketch=True)
