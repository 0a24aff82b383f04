"""The report as plain text, at most 100 columns wide and about as many lines: Parts -> str.

net on NVIDIA H200, f16, batch 1
  1.84 ms measured over whole runs, schedule ios: 2.31x eager (4.25 ms), 1.22x sequential (2.24 ms)
  specialised: kernels, schedule and memory were chosen for batch 1 on NVIDIA H200; ...
...
Chosen: the 20 slowest of 94 tasks, 71% of 2.24 ms each run alone (measured); --task NAME tells more
  task            us   part  kernel           runner-up                 stream  origin
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Unpack

from anabranch.artifact.owned_constants import owned_bytes
from anabranch.ir.determinism import unordered
from anabranch.ir.ops import packet_name
from anabranch.ir.task import places
from anabranch.ir.text import text_kernel
from anabranch.ir.tiles import HORIZONTAL
from anabranch.ir.variant import WHOLE_PERCENT
from anabranch.report import history
from anabranch.report.deferred_decisions import deferred_decisions
from anabranch.report.flow import busy, critical_chain, flow
from anabranch.report.headline import Headline, headline
from anabranch.report.history import EventGroup
from anabranch.report.kernel import NAMED
from anabranch.report.lines import WIDTH, columns, cut, printable, wrapped
from anabranch.report.occupancy import fullest, occupancy
from anabranch.report.part_timings import tried_in_parts
from anabranch.report.parts import ReportParts
from anabranch.report.search_summary import searched_lines
from anabranch.report.task_rows import TaskRow, rows
from anabranch.report.units import count, duration, ratio, significant, size
from anabranch.rewrite.rules.special import PASSES
from anabranch.trace import Event

SLOWEST = 20
GROUPS = 12
"""Lines given to each list that could be long; what is left out is counted."""
DEFERRED_LINES = 4
GUESS, GUESSED = "estimated", "~"
ON_CPU = (
    "the CPU target is for checking, not for speed: a plan calls each operator from Python, and "
    "the eager model may be faster"
)


def explain(whole: bool = False, width: int = WIDTH, **parts: Unpack[ReportParts]) -> str:
    """The text of what was rewritten, fused, chosen and refused, with reasons and numbers. `whole`:
    of the search every step, and every node before and after; these two columns are `width`
    wide."""
    task_rows, head = rows(parts), headline(parts)
    sections = (
        _result(parts["name"], head),
        _concerns(parts),
        _rewritten(parts),
        _special(parts),
        searched_lines(parts["searched"], None if whole else GROUPS, width),
        tried_in_parts(parts["events"], GROUPS),
        _fused(parts, task_rows),
        deferred_decisions(parts["events"], parts["plan"].spec, DEFERRED_LINES),
        _chosen(task_rows),
        _any_order(task_rows, parts["plan"].spec.kind),
        _recomputed(parts["events"], task_rows),
        _schedules(parts),
        _launch_modes(parts),
        _timelines(parts, task_rows),
        _refused(parts),
        _memory(parts, head),
        _states(parts),
        _numbers(parts, head),
    )
    lines = "\n\n".join("\n".join(section) for section in sections if section).splitlines()
    return "\n".join(cut(line.rstrip(), max(width, WIDTH)) for line in lines) + "\n"


def _result(name: str, head: Headline) -> list[str]:
    lines = [printable(f"{name} on {', '.join((head.machine, *head.setting))}")]
    if head.us is not None:
        than = [
            f"{ratio(b.speedup)} as fast as {b.name} ({duration(b.us)})"
            for b in head.baselines
            if b.speedup
        ]
        runs = "measured over whole runs" if head.source == "measured" else head.source
        result = f"{duration(head.us)} {runs}, schedule {head.scheduler}"
        lines += wrapped(result + (f": {', '.join(than)}" if than else ""))
    lines += wrapped(head.forecast) if head.forecast else []
    if head.as_captured:
        lines += wrapped("this is the eager model, operator by operator: nothing tried was faster")
    if head.on_cpu:
        lines += wrapped(ON_CPU)
    counts = f"{count(head.tasks, 'task')} ({count(head.launches, 'kernel')}) on "
    lines.append(
        f"  {counts}{count(head.streams, 'stream')} with {count(head.waits, 'event wait')}"
    )
    batch = f"batch {head.batch}" if head.batch is not None else "these inputs"
    specialised = (
        f"specialised: kernels, schedule and memory were chosen for {batch} on {head.machine}"
    )
    return [*lines, *wrapped(f"{specialised}; compile chooses anew for another batch or device")]


def _concerns(parts: ReportParts) -> list[str]:
    groups = history.concerns(parts["events"])
    if not groups:
        return []
    lines = [f"Fallbacks and warnings: {sum(len(group.events) for group in groups)}"]
    for group in groups[:GROUPS]:
        event = group.events[0]
        said = f"{event.what}: {event.why}" if event.why else event.what
        lines += wrapped(f"{group.kind} in {group.where}: {said}{_more(group)}")
    return [*lines, *_left_out(groups[GROUPS:])]


def _rewritten(parts: ReportParts) -> list[str]:
    changes = [
        c for c in history.changes(history.last_attempt(parts["events"])) if c.where == "rewrite"
    ]
    before, after = len(parts["captured"].nodes), len(parts["rewritten"].nodes)
    lines = [f"Rewritten: {before:,} -> {count(after, 'node')}"]
    named = [(c.what, f"{c.times}x", c.said, f"{c.ms:.1f} ms" if c.ms else "") for c in changes]
    return lines + columns(named, "<><", (40, 6, 34))


def _special(parts: ReportParts) -> list[str]:
    """Which rules and passes that were used change what is not finite, or the sign of a zero."""
    rounds = parts["facts"].get("search", ())
    steps = [step for done in rounds for step in done.get("steps", ()) if step.get("special")]
    changes = history.changes(history.last_attempt(parts["events"]))
    passes = [c.what for c in changes if c.where == "rewrite" and c.what in PASSES]
    named = dict.fromkeys([*passes, *(printable(step["rule"]) for step in steps)])
    if not named:
        return []
    head = "Other results of NaN, infinities or signs of zero; exact=True leaves these out:"
    return [*wrapped(head, ""), *(line for name in named for line in wrapped(name))]


def _fused(parts: ReportParts, task_rows: Sequence[TaskRow]) -> list[str]:
    nodes, tasks = len(parts["rewritten"].nodes), parts["plan"].tasks
    views, elided = len(tasks.aliases), len(tasks.elided_concats)
    fused = Counter(row.ops for row in task_rows if len(row.task.body.nodes) > 1)
    named = [count(views, "view")] * bool(views) + [count(elided, "concatenation")] * bool(elided)
    free = f"; {' and '.join(named)} cost nothing" if named else ""
    lines = [f"Fused: {count(nodes, 'node')} -> {count(len(task_rows), 'task')}{free}"]
    shared = sum(
        row.task.kernel is not None and row.task.kernel.name == HORIZONTAL for row in task_rows
    )
    for event in parts["events"]:
        if shared and (event.kind, event.where) == ("applied", "horizontal_fusion"):
            lines += wrapped(f"{count(shared, 'launch')} of independent tasks: {event.why}")
    most = fused.most_common(GROUPS)
    lines += columns([(f"{n}x", ops) for ops, n in most], ">", (6,))
    rest = sum(fused.values()) - sum(n for _, n in most)
    lines += [f"  and {rest} in {len(fused) - len(most)} other ways"] if rest else []
    return lines


def _chosen(task_rows: Sequence[TaskRow]) -> list[str]:
    timed = sorted(
        (row for row in task_rows if row.us is not None), key=lambda row: -(row.us or 0.0)
    )
    if not timed:
        return []
    whole, shown = sum(row.us or 0.0 for row in timed), timed[:SLOWEST]
    part = 100 * sum(row.us or 0.0 for row in shown) / (whole or 1.0)
    which = f"the {SLOWEST} slowest of {len(task_rows):,} tasks, {part:.0f}% of"
    title = which if len(task_rows) > SLOWEST else f"{count(len(task_rows), 'task')},"
    sources = {row.source for row in timed}
    mixed = GUESS in sources and len(sources) > 1
    table = [("task", "us", "kernel", "runner-up", "stream", "origin")]
    for row in shown:
        us, second = row.us or 0.0, row.runner_up
        cost = second and second.verdict.cost
        other = f"{text_kernel(second.kernel)} {_over(cost.us, us)}" if second and cost else "none"
        stream, mark = str(row.launch.stream), GUESSED if mixed and row.source == GUESS else ""
        table.append((row.task.name, mark + significant(us), row.kernel, other, stream, row.place))
    took = f"{duration(whole)} each run alone ({_sources(task_rows)})"
    title = f"Chosen: {title} {took}; --task NAME tells more"
    if mixed:
        title += f"; {GUESSED}: {GUESS}"
    return [*wrapped(title, ""), *columns(table, "<><<>", (NAMED, 7, 19, 24, 6))]


def _any_order(task_rows: Sequence[TaskRow], kind: str) -> list[str]:
    """Which library kernels may give other bits in another run."""
    named = [(row.task.name, why) for row in task_rows if (why := unordered(row.task, kind))]
    if not named:
        return []
    head = f"Other bits in another run: {count(len(named), 'task')}; deterministic=True takes none"
    lines = [line for name, why in named[:GROUPS] for line in wrapped(f"{name}: {why}")]
    rest = [f"  and {len(named) - GROUPS} more"] if len(named) > GROUPS else []
    return [*wrapped(head, ""), *lines, *rest]


def _recomputed(events: Sequence[Event], task_rows: Sequence[TaskRow]) -> list[str]:
    """Which values are computed again for want of memory, and what that takes."""
    applied = [
        e for e in history.last_attempt(events) if (e.kind, e.where) == ("applied", "recompute")
    ]
    if not applied:
        return []
    data = dict(applied[-1].data)
    taken = sum(row.us or 0.0 for row in task_rows if row.place == "recompute")
    head = f"Recomputed: {count(int(data['values']), 'value')}, {duration(taken)} in tasks of "
    head += f"their own; at most {size(int(data['nbytes']))} live at once, "
    head += f"{size(int(data['before']))} if all were kept (counted before fusing)"
    return [*wrapped(head, ""), *wrapped(str(data["names"]))]


def _schedules(parts: ReportParts) -> list[str]:
    if not parts["schedules"]:
        return []
    chosen = parts["plan"].schedule.scheduler
    fastest = min(cost.us for _, cost in parts["schedules"]) or 1.0
    table = [("", "schedule", "latency", "over best", "streams", "waits", "source")]
    for schedule, cost in parts["schedules"]:
        mark = "*" if schedule.scheduler == chosen else ""
        streams, waits = str(schedule.streams), str(schedule.waits)
        over = _over(cost.us, fastest) if cost.us > fastest else "best"
        latency = duration(cost.us)
        table.append((mark, schedule.scheduler, latency, over, streams, waits, cost.source))
    return ["Schedules (* chosen)", *columns(table, "<<>>>>", (1, 24, 10, 10, 8, 7))]


def _launch_modes(parts: ReportParts) -> list[str]:
    """Which kernels start before those they follow have ended, their L1 carve-out, and what these
    are worth."""
    modes, carveout = parts["facts"].get("modes") or {}, parts["facts"].get("carveout")
    early = {mode: number for mode, number in modes.items() if mode != "none"}
    lines: list[str] = []
    if early:
        by_mode = ", ".join(f"{mode} {number}" for mode, number in sorted(early.items()))
        some = f"{sum(early.values())} of {count(sum(modes.values()), 'generated kernel')}"
        lines += [f"PDL: {some} may start before the one before has ended, by mode: {by_mode}"]
    if modes and carveout != WHOLE_PERCENT:
        lines += [f"Carve-out: kernels ask for {carveout}% of L1 as shared memory"]
    for event in parts["events"] if lines else ():
        if event.where in ("pdl", "l1_carveout") and event.kind in ("chosen", "applied"):
            lines += wrapped(event.why)
    return lines


def _timelines(parts: ReportParts, task_rows: Sequence[TaskRow]) -> list[str]:
    if not parts["timelines"]:
        return []
    streams = flow(parts["plan"])
    position = {launch.task: i for i, launch in enumerate(parts["plan"].schedule.launches)}
    lines, some_recorded = ["Timeline"], any(row.source == "recorded" for row in task_rows)
    for name, timeline in parts["timelines"]:
        chain = set(critical_chain(timeline, streams, position))
        spans = [span for span in timeline.spans if position.get(span.task) in chain]
        running = sum(span.end - span.start for span in spans)
        used = ", ".join(f"{100 * part:.0f}%" for part in busy(timeline).values())
        chained = f"{count(len(spans), 'task')} that run {duration(running)}"
        took = f"{duration(timeline.latency)}, {_meaning(name, timeline.source, some_recorded)}"
        lines += wrapped(f"{name}: {took}; its critical chain is {chained}; streams busy {used}")
    return lines


def _meaning(name: str, source: str, recorded: bool) -> str:
    """What the times of a timeline are of. `recorded`: the time of some task is."""
    if name == "measured":
        return "one run, watched task by task"
    both = "recorded and " if recorded and source == GUESS else ""
    return f"forecast from {both}{source} times of tasks"


def _refused(parts: ReportParts) -> list[str]:
    groups = history.grouped(parts["events"], "refused")
    if not groups:
        return []
    lines = [f"Refused, and why: {sum(len(group.events) for group in groups):,}"]
    for group in groups[:GROUPS]:
        event = group.events[0]
        said = f"{event.why or 'refused'} ({event.what}{_more(group)})"
        first, *rest = textwrap.wrap(printable(said), WIDTH - 29, break_long_words=True)[:2] or [""]
        lines.append(f"  {cut(group.where, 17):<17} {len(group.events):>5}x  {first}")
        lines += [f"{'':<28}{line}" for line in rest]
    return [*lines, *_left_out(groups[GROUPS:])]


def _memory(parts: ReportParts, head: Headline) -> list[str]:
    plan, held = parts["plan"], occupancy(parts["plan"])
    at, most = fullest(held, len(plan.schedule.launches))
    total = sum(item.nbytes for item in held)
    lines = [f"Memory: {size(head.peak)} for intermediate values"]
    if head.peak_sequential:
        lines[0] += (
            f", {ratio(head.peak / head.peak_sequential)} of the sequential plan's "
            f"{size(head.peak_sequential)}"
        )
    pool = f" and {size(plan.pool_bytes)} in the graph's own pool" if plan.pool_bytes else ""
    where = f"arena of {size(plan.arena_bytes)}{pool}, for {size(total)} of values and workspaces"
    if held:
        task = plan.schedule.launches[at].task
        where += f"; fullest at launch {at} ({task}) with {size(most)}"
    if own := owned_bytes(plan):
        where += f"; {size(own)} of weights, a copy beside the model's own"
    return [*lines, *wrapped(where)]


def _states(parts: ReportParts) -> list[str]:
    """What calls read and write: whose memory it is, and who writes how much of it."""
    tasks = parts["plan"].tasks
    if not tasks.states:
        return []
    types = {value.name: value.type for value in tasks.inputs}
    where = {event.what: event.why for event in parts["events"] if event.where == "load"}
    home = places(tasks)
    lines = [f"States: {len(tasks.states)}, read and written by each call"]
    for state in tasks.states:
        writers = [
            (task, node)
            for task in tasks.tasks
            for node in task.body.nodes
            if any(home.get(name) == state.name for name in node.results if name in task.overwrites)
        ]
        by = ", ".join(f"{task.name} ({packet_name(node.op)})" for task, node in writers)
        nowhere = f"{size(types[state.name].nbytes)}, in no memory until it is loaded on a device"
        said = where.get(f"state {state.path}", nowhere)
        lines += wrapped(f"{state.path}: {types[state.name].text}, {said}; written by {by}")
    return lines


def _numbers(parts: ReportParts, head: Headline) -> list[str]:
    lines = []
    if head.errors:
        error, allowed = max(head.errors, key=lambda pair: pair[0])
        limit = f", {significant(allowed, 2)} allowed" if allowed is not None else ""
        outputs = count(len(head.errors), "output")
        lines.append(f"  largest relative error {significant(error, 2)} of {outputs}{limit}")
    spent = history.stages(parts["events"])
    if head.search is not None or spent:
        total = head.search if head.search is not None else sum(seconds for _, seconds in spent)
        each = ", ".join(f"{stage} {duration(1e6 * seconds)}" for stage, seconds in spent)
        said = f"compiled in {duration(1e6 * total)}"
        said += f", {head.cut_short}" if head.cut_short else ""
        lines += wrapped(said + (f": {each}" if each else ""))
    return ["Numbers", *lines] if lines else []


def _sources(task_rows: Sequence[TaskRow]) -> str:
    counted = Counter(row.source for row in task_rows if row.source)
    if len(counted) <= 1:
        return next(iter(counted), "unknown")
    return ", ".join(f"{n} {source}" for source, n in counted.most_common())


def _over(us: float, best: float) -> str:
    return f"{100 * (us / best - 1):+.0f}%" if best else ""


def _more(group: EventGroup) -> str:
    others = len(group.events) - 1
    return f", and {others:,} alike" if others else ""


def _left_out(groups: Sequence[EventGroup]) -> list[str]:
    events = sum(len(group.events) for group in groups)
    return [f"  and {events:,} more for {count(len(groups), 'other reason')}"] if groups else []
