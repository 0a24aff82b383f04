"""One system, built for one cell of the matrix: ours as users get it or with options, or a rival.

    BenchmarkCase: a model with its inputs, and eager's outputs for them
      -> System: what to call, what it took to build, how far its outputs are from eager's

Failures and timeouts are told, not raised: the others are timed all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anabranch.bench.deadline import Expired, within
from anabranch.bench.machine import Machine, TimedCall
from anabranch.bench.result_rows import CALL, BenchmarkMatrix, named
from anabranch.bench.rival_process import APART, CellPlace, RivalProcess
from anabranch.bench.rivals import RIVALS
from anabranch.bench.sandbox import NATIVE, try_in_sandbox
from anabranch.costs.stopwatch import lacks_graph
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable
from anabranch.ir.tolerances import relative_error
from anabranch.memory import pack
from anabranch.models.load import batch_of, load_model
from anabranch.options import Options
from anabranch.trace import Event, Trace
from anabranch.tuning.build import largest_arena

KEPT_FACTS = (
    "forecast",
    "scheduler",
    "schedules",
    "streams",
    "event_waits",
    "kernels",
    "tasks",
    "modes",
    "carveout",
    "stages_s",
    "peak_bytes_sequential",
    "max_relative_error",
    "search",
)

NO_GRAPH = "launched one by one for want of a graph, which says nothing beside graphs"
"""Why a plan has no time."""

Compile = Callable[..., Any]
"""`api.compile`, or a stand-in for it."""


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One model with one dtype and batch, loaded, and eager's outputs for its inputs."""

    name: str
    dtype: str
    batch: int
    model: nn.Module
    args: tuple[Any, ...]
    reference: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class System:
    """Something that was built: `call` to time, None if it failed and `failure` says why, or if
    there is only a `plan`, of what cannot run here. `replayed`: `call` replays a graph. `same`: of
    which other system it is the very plan, and not timed again: two captures of one plan differ by
    more than some systems do. `bounds`: of which published system it is the plan with waits that
    bound its memory; it gets no row of its own."""

    name: str
    call: TimedCall | None
    compile_s: float | None = None
    peak_bytes: int | None = None
    difference: float | None = None
    note: str = ""
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    replayed: bool = True
    same: str = ""
    bounds: str = ""


def load_cell(name: str, dtype: str, batch: int, here: Machine, trust: bool) -> BenchmarkCase:
    """The model where it will run, and what eager makes of its inputs."""
    model, args = load_model(name, batch, dtype, here.device, trust=trust)
    batch = batch_of(name, args, batch) or batch
    reference = () if here.simulated else outputs(model(*args))
    return BenchmarkCase(name, dtype, batch, model, args, reference)


def build_ours(
    cell: BenchmarkCase,
    here: Machine,
    options: dict[str, Any],
    asked: dict[str, str],
    compile: Compile,
    trace: Trace,
) -> Iterator[System]:
    """Our replay and, for the plan that users get, our call; for one without a bound on memory the
    same with it. `asked`: options by which the row is named; empty for what users get."""
    name = named(asked)
    start, told = time.perf_counter(), len(trace.events)
    try:
        whole = {"fullgraph": True, **options, **asked}
        compiled = compile(cell.model, cell.args, trace=trace, **whole)
        seconds = time.perf_counter() - start
        executable = compiled.executable()
        difference = None
        if executable is not None:
            difference = _difference(compiled(*cell.args), cell.reference)
        here.synchronize()
    except Exception as failed:
        trace.add("warning", "bench", f"{cell.name} {name}", reason(failed))
        yield System(name, None, failure=reason(failed))
        return
    events, all_facts = trace.events[told:], compiled.known
    facts = {key: all_facts[key] for key in KEPT_FACTS if key in all_facts}
    facts["substitutions"] = list(_substitutions(events, "applied", "chosen"))
    facts["substitutions_refused"] = list(_substitutions(events, "refused"))
    peak, chosen = all_facts.get("peak_bytes"), str(facts.get("scheduler", ""))
    took = _ordering(events, chosen)
    facts |= {} if took is None else {"order_s": took}
    wanted = asked.get("scheduler", chosen)
    fell = [f"fallback: {e.why}" for e in events if e.kind == "fallback"]
    note = "; ".join([chosen if chosen == wanted else f"{chosen} was faster", *fell])
    plan = compiled.entries[-1].plan
    replay = None if executable is None else executable.replay
    ours = System(name, replay, seconds, peak, difference, note, facts=facts, plan=plan)
    launched = executable is not None and lacks_graph(executable)
    yield without_graph(ours, executable) if launched else ours
    if executable is not None and not asked:
        yield System(CALL, lambda: compiled(*cell.args), seconds, peak, difference, note)
    try:
        bounded = bounded_plan(compiled)
        if bounded is not None and not launched:
            yield _bounding(name, compiled, bounded)
    except Exception as failed:
        trace.add("warning", "bench", f"{cell.name} {name} with bounded memory", reason(failed))


def without_graph(system: System, run: Executable) -> System:
    """The system, without a time: its plan has no graph to be replayed."""
    return replace(system, call=None, plan=None, failure=f"{NO_GRAPH}: {run.failure}")


def _ordering(events: Sequence[Event], scheduler: str) -> float | None:
    """The seconds that this scheduler took for the plan, None where that was recalled."""
    asked = [e for e in events if (e.kind, e.where, e.what) == ("time", "schedule", scheduler)]
    return float(dict(asked[-1].data)["seconds"]) if asked else None


def bounded_plan(compiled: Any) -> Plan | None:
    """The plan of a system without a bound on memory, with the waits that ours would get; None
    where it has them."""
    entry = compiled.entries[-1]
    if compiled.options.arena_ratio is not None or entry.compilation is None:
        return None
    usual = Options.model_fields["arena_ratio"].default
    most = largest_arena(entry.compilation.compiled.sequential.arena_bytes, usual)
    plan: Plan = entry.plan
    return pack(plan.tasks, plan.schedule, plan.spec, plan.signature, limit_bytes=most)


def _bounding(name: str, compiled: Any, plan: Plan) -> System:
    """The plan, loaded into the memory of the one as published where that runs: each of both is
    replayed by itself."""
    run: Executable | None = compiled.executable()
    loaded = None if run is None else compiled.target.load(plan, beside=run, states=run.states)
    return System(
        f"{name} bounded",
        None if loaded is None or lacks_graph(loaded) else loaded.replay,
        peak_bytes=plan.peak_bytes if loaded is None else loaded.peak_bytes(),
        facts={"event_waits": plan.schedule.waits},
        plan=plan,
        bounds=name,
    )


def told_apart(system: System, others: Sequence[System]) -> System:
    """The system, as the first of the others with its plan where there is one."""
    if system.plan is None:
        return system
    rows = [other for other in others if not other.bounds]
    first = next((other for other in rows if other.plan == system.plan), None)
    if first is None:
        return system
    note = "; ".join(filter(None, [system.note, f"the plan of {first.name}"]))
    return replace(system, same=first.name, note=note)


def _substitutions(events: Sequence[Event], *kinds: str) -> Iterator[str]:
    """The measured times of substitutions, in their parts or in the whole."""
    for event in events:
        told = event.kind in kinds and "us" in dict(event.data)
        if told and event.where in ("search", "search.parts"):
            yield f"{event.what}: {event.why}"


def build_rival(name: str, cell: BenchmarkCase, here: Machine, matrix: BenchmarkMatrix) -> System:
    """The rival built for this model. Where it may take the process with it, another process tries
    it first."""
    timeout = matrix.rival_timeout
    place = CellPlace(cell.name, cell.dtype, cell.batch, here.target, matrix.trust)
    if name in APART:
        return _apart(name, place, cell, timeout)
    native = name in NATIVE and here.target == "cuda"
    if native and timeout is not None and (failure := try_in_sandbox(name, place, timeout)):
        return System(name, None, failure=failure)
    start = time.perf_counter()
    try:
        with within(timeout):
            ready = RIVALS[name](cell.model, cell.args, here)
            here.synchronize()
            seconds = time.perf_counter() - start
            peak = ready.peak_bytes if ready.peak_bytes is not None else here.peak_of(ready.call)
            difference = _difference(ready.call(), cell.reference)
    except Expired:
        return System(name, None, failure=f"not done in {timeout:g} s")
    except Exception as failed:
        return System(name, None, failure=reason(failed))
    return System(name, ready.call, seconds, peak, difference, ready.note, replayed=ready.replayed)


def _apart(name: str, place: CellPlace, cell: BenchmarkCase, timeout: float | None) -> System:
    """The rival, built in a process of its own."""
    try:
        rival = RivalProcess(name, place, timeout)
        difference = _difference(rival(), cell.reference)
    except TimeoutError:
        return System(name, None, failure=f"not done in {timeout:g} s")
    except Exception as failed:
        return System(name, None, failure=reason(failed))
    return System(
        name, rival, rival.seconds, rival.peak_bytes, difference, rival.note, replayed=False
    )


def difference_now(system: System, cell: BenchmarkCase) -> float | None:
    """The difference once more, after all others have run: nobody may have written to its memory.
    Our replay returns nothing; `anabranch-call` stands for it."""
    if system.call is None or system.difference is None:
        return system.difference
    try:
        returned = system.call()
        now = 0.0 if returned is None else _difference(returned, cell.reference)
    except Exception:
        now = float("inf")
    return max(system.difference, now)


def outputs(returned: Any) -> tuple[Tensor, ...]:
    """Copies of all tensors that a call returned, in order."""
    return tuple(leaf.clone() for leaf in tree_leaves(returned) if isinstance(leaf, Tensor))


def _difference(returned: Any, reference: Sequence[Tensor]) -> float:
    """The largest relative error; infinite if there are more or fewer outputs."""
    outputs = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
    if len(outputs) != len(reference):
        return float("inf")
    pairs = zip(outputs, reference, strict=True)
    return max((relative_error(out, own) for out, own in pairs), default=0.0)


def reason(failed: Exception) -> str:
    """The first line of what an exception says, with its type."""
    text = str(failed).strip()
    return f"{type(failed).__name__}: {text.partition(chr(10))[0]}" if text else repr(failed)
