"""The result in a few numbers: facts, and the plan where facts are silent -> Headline.

Facts come from this compilation, from an older version's file, or from a hand: a key that is absent
or is not what it should be leaves its number out and breaks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.ir.plan import Plan
from anabranch.report.forecast import forecast_text, interval_text
from anabranch.report.parts import ReportParts
from anabranch.report.units import count, number, significant

MOST_INPUTS = 4
"""Inputs that a line names."""
RIVALS = ("eager", "inductor")
"""Other ways to run the model of which it is said where nobody has timed them."""
MEASURED_BY = "anabranch compile --report FILE --rivals eager,inductor times them"
CUT_SHORT = {"budget": "cut short by the budget", "stop": "stopped before the search was done"}


@dataclass(frozen=True, slots=True)
class Baseline:
    """Another way to run the model, its microseconds, and how many times ours is faster: as ours is
    called, where both were timed so."""

    name: str
    us: float
    speedup: float | None


@dataclass(frozen=True, slots=True)
class Headline:
    """`us` is None where nobody knows the latency. `errors`: per output the relative error and,
    where known, the error allowed. `batch`: what all inputs have as their first size. `cut_short`:
    in words, "" where nothing was. `as_captured`: the plan is the eager model. `called`: of a call
    of the plan, the host included, timed beside calls of its rivals, None where it was not.
    `unmeasured`: rivals that nobody has timed, and why, "" where that is not known. `on_cpu`: the
    plan runs on a CPU. `forecast`: how far a forecast may be off and what it rests on, "" of what
    was measured."""

    machine: str
    setting: tuple[str, ...]
    batch: int | None
    us: float | None
    spread: float
    source: str
    scheduler: str
    baselines: tuple[Baseline, ...]
    streams: int
    waits: int
    tasks: int
    launches: int
    peak: int
    peak_sequential: int | None
    search: float | None
    cut_short: str
    errors: tuple[tuple[float, float | None], ...]
    as_captured: bool = False
    called: float | None = None
    unmeasured: tuple[tuple[str, str], ...] = ()
    on_cpu: bool = False
    forecast: str = ""


def headline(parts: ReportParts) -> Headline:
    """Latency, rivals and setting in a few lines; what the facts do not tell comes from the
    plan."""
    facts, plan = parts["facts"], parts["plan"]
    us, source = _latency(parts)
    spec = plan.spec
    machine = str(facts.get("device") or spec.name)
    if spec.simulated and "simulated" not in machine:
        machine += ", simulated"
    dtype, batch = facts.get("dtype"), facts.get("batch")
    setting = [str(dtype)] if dtype else []
    setting += [f"batch {batch}"] if batch is not None else [v.type.text for v in _inputs(parts)]
    kernels = [task.kernel for task in plan.tasks.tasks if task.kernel is not None]
    return Headline(
        machine,
        tuple(setting),
        _batch(parts),
        us,
        1e3 * (number(facts.get("latency_spread_ms")) or 0.0),
        source,
        str(facts.get("scheduler") or plan.schedule.scheduler),
        _baselines(facts, us),
        _whole(facts, "streams", plan.schedule.streams),
        _whole(facts, "event_waits", plan.schedule.waits),
        len(plan.tasks.tasks),
        _whole(facts, "kernels", sum(kernel.launches for kernel in kernels)),
        _whole(facts, "peak_bytes", plan.peak_bytes),
        _whole(facts, "peak_bytes_sequential", -1) if "peak_bytes_sequential" in facts else None,
        number(facts.get("search_s")),
        CUT_SHORT.get(str(facts.get("cut_short")), ""),
        _errors(facts.get("max_relative_error"), facts.get("allowed_relative_error")),
        facts.get("as_captured") is True,
        _called(facts),
        _unmeasured(parts),
        spec.kind == "cpu",
        forecast_text(facts),
    )


def one_line(facts: Mapping[str, Any], plan: Plan) -> str:
    """Model, machine, inputs, time and sizes of a plan in one line, for a prompt."""
    machine = plan.spec.kind if not plan.spec.simulated else f"simulated {plan.spec.name}"
    inputs = ", ".join(
        f"{value.name}={value.type.text}" for value in plan.tasks.call_inputs[:MOST_INPUTS]
    )
    inputs += ", ..." if len(plan.tasks.call_inputs) > MOST_INPUTS else ""
    ms = number(facts.get("latency_ms"))
    between = interval_text(facts)
    source = f"{facts.get('latency_source', '')}{between and f' ({between})'}"
    took = f"{significant(ms)} ms {source}, " if ms is not None else ""
    launches = sum(task.kernel.launches for task in plan.tasks.tasks if task.kernel)
    streams = f" on {plan.schedule.streams} streams" if plan.schedule.streams > 1 else ""
    weights = sum(constant.type.nbytes for constant in plan.tasks.constants)
    return (
        f"{plan.tasks.name} on {machine}, ({inputs}): {took}{count(launches, 'kernel')}{streams}, "
        f"weights {weights:,} B, intermediate values {plan.peak_bytes:,} B"
    )


def _latency(parts: ReportParts) -> tuple[float | None, str]:
    """From the facts, else measured, else of the schedule that the plan has, else predicted."""
    facts, scheduler = parts["facts"], parts["plan"].schedule.scheduler
    ms = number(facts.get("latency_ms"))
    if ms is not None:
        return 1e3 * ms, str(facts.get("latency_source") or "")
    latencies = [
        (t.latency, str(t.source)) for _, t in parts["timelines"] if t.source == "measured"
    ]
    latencies += [(c.us, str(c.source)) for s, c in parts["schedules"] if s.scheduler == scheduler]
    latencies += [(t.latency, str(t.source)) for _, t in parts["timelines"]]
    return latencies[0] if latencies else (None, "")


def _inputs(parts: ReportParts) -> Sequence[Any]:
    """The inputs, if they are few enough to be named in a line."""
    inputs = parts["plan"].tasks.call_inputs
    return inputs if len(inputs) <= 3 else ()


def _batch(parts: ReportParts) -> int | None:
    """As the facts say, else the first size of all inputs, those of no size left out."""
    batch = number(parts["facts"].get("batch"))
    firsts = {v.type.shape[0] for v in parts["plan"].tasks.call_inputs if v.type.shape}
    return int(batch) if batch is not None else firsts.pop() if len(firsts) == 1 else None


def _baselines(facts: Mapping[str, Any], us: float | None) -> tuple[Baseline, ...]:
    times, beside = facts.get("baselines"), _listed(facts.get("called_beside"))
    if not isinstance(times, Mapping):
        return ()
    baselines = []
    for name, ms in ((str(name), number(ms)) for name, ms in times.items()):
        ours = _called(facts) if name in beside else us
        if ms is not None:
            baselines.append(Baseline(name, 1e3 * ms, 1e3 * ms / ours if ours else None))
    return tuple(baselines)


def _called(facts: Mapping[str, Any]) -> float | None:
    ms = number(facts.get("called_ms"))
    return None if ms is None else 1e3 * ms


def _unmeasured(parts: ReportParts) -> tuple[tuple[str, str], ...]:
    facts, told = parts["facts"], parts["facts"].get("not_measured")
    measured = {other.name for other in _baselines(facts, None)}
    said = {str(name): str(why) for name, why in told.items()} if isinstance(told, Mapping) else {}
    simulated = parts["plan"].spec.simulated
    other = "nothing runs on a simulated GPU" if simulated else MEASURED_BY
    missing = dict.fromkeys((*RIVALS, *said))
    return tuple((name, said.get(name, other)) for name in missing if name not in measured)


def _whole(facts: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = number(facts.get(key))
    return otherwise if value is None else int(value)


def _errors(errors: Any, allowed: Any) -> tuple[tuple[float, float | None], ...]:
    values = [number(error) for error in _listed(errors)]
    limits = [number(limit) for limit in _listed(allowed)]
    limits += [None] * (len(values) - len(limits))
    pairs = zip(values, limits, strict=False)
    return tuple((error, limit) for error, limit in pairs if error is not None)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]
