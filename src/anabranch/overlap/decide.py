"""How a finished plan launches its kernels: a plan --> the same plan, some kernels overlapping.

    ResNet-50    none 222.0 us    all in mode a 204.7    each in its own 197.4

What was found is remembered, by everything the plan's time depends on.
"""

from __future__ import annotations

import json
from dataclasses import replace

from anabranch.cache import Cache
from anabranch.ir.key import tasks_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.schedule import text_schedule
from anabranch.kernels.triton.dependent import MODES
from anabranch.overlap.alike import generated, in_mode, in_modes, mode_of
from anabranch.overlap.each import Modes, own_modes
from anabranch.trace import Trace

SECONDS = 8.0
"""What looking for modes of their own takes where nobody asked for less: some 150 runs of a plan of
a hundred kernels."""
LEAST = 1.0
"""Fewer seconds show nothing; nothing is looked for in them."""
SCHEME = "each 1"


def overlapped(
    plan: Plan,
    target: Target,
    cache: Cache | None,
    trace: Trace,
    seconds: float | None = SECONDS,
) -> tuple[Plan, Cost | None]:
    """The plan with its generated kernels in the fastest modes that were found, and what it then
    takes, None where nothing was measured. `seconds`: how long to look for modes kernel by kernel,
    beside the fraction of one that comparing the same mode for all takes; None: not at all."""
    mode, cost = mode_of(plan, target, cache, trace)
    if cost is None:
        return plan, None
    found = None
    if seconds is not None:
        found = _each(plan, mode, target, cache, trace, seconds)
    if found is not None:
        modes, now = found
        return replace(plan, tasks=in_modes(plan.tasks, modes)), now
    return (replace(plan, tasks=in_mode(plan.tasks, mode)) if mode else plan), cost


def _each(
    plan: Plan, mode: str, target: Target, cache: Cache | None, trace: Trace, seconds: float
) -> tuple[Modes, Cost] | None:
    """Modes that are faster than the one for all; None if there are none, or was no time."""
    machine, schedule = target.spec.fingerprint, text_schedule(plan.schedule)
    key = f"{SCHEME} {mode}\n{machine}\n{tasks_text(plan.tasks)}\n{schedule}"
    kept = cache.get("plans", key) if cache is not None else None
    name, known = plan.tasks.name, _read(kept, plan)
    if known is not None:
        return known if known[0] else None
    if seconds < LEAST:
        return None
    found = own_modes(plan, mode, target, seconds)
    if found is None:
        why = f"no modes of their own are faster than {mode or 'none'} for all"
        trace.add("refused", "overlap", name, why)
    else:
        modes, now, was = found
        others = sum(
            m != mode and generated(t) for m, t in zip(modes, plan.tasks.tasks, strict=True)
        )
        why = f"{others} kernels launched otherwise: {now.us:.1f} us, {was.us:.1f} with all alike"
        trace.add("applied", "overlap", name, why, us=was.us - now.us)
    if cache is not None:
        modes, us, spread = (found[0], found[1].us, found[1].spread) if found else ((), 0.0, 0.0)
        cache.put("plans", key, json.dumps([modes, us, spread]))
    return found[:2] if found else None


def _read(kept: str | None, plan: Plan) -> tuple[Modes, Cost] | None:
    """What was found by an earlier process, no modes where nothing was; None for a text that says
    nothing of the kind."""
    try:
        modes, us, spread = json.loads(kept or "")
        fits = len(modes) in (0, len(plan.tasks.tasks)) and set(modes) <= {"", *MODES}
        return (tuple(modes), Cost(us, "measured", spread)) if fits else None
    except (ValueError, TypeError):
        return None
