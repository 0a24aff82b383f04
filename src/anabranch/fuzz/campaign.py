"""Many seeds -> a record: how many were equal, and the first failures, each made small.

    run(0, 300, TrialSetting("cpu"), trace, Path("out"))

Every failure that is shrunk leaves two files: out/SEED.py, a script that runs alone, and
out/SEED.txt, the captured graph. Where rules were drawn it is the text alone, of the graphs before
and after the wrong step. An interruption ends the campaign, not the record.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.errors import AnabranchError
from anabranch.frontend.from_torch import capture
from anabranch.fuzz.draw import draw
from anabranch.fuzz.drawing import DrawnModel, built_model, model_text, script
from anabranch.fuzz.shrink import shrunk
from anabranch.fuzz.substitute import Substitution, rules_of
from anabranch.fuzz.trial import TrialOutcome, TrialSetting, attempt
from anabranch.ir.text import text_graph
from anabranch.trace import Trace
from anabranch.tuning.workers.job import JobRefusal, Undone, WorkerJob, WorkerPlace, value_of
from anabranch.tuning.workers.pool import WorkerPool

SHRUNK_FAILURES = 5
"""Failures that are shrunk and written; the others are counted and named."""
SAID = 50
"""A line for every so many drawings, where progress is lines."""


LOST = "AcceleratorError"
"""How torch calls what a process gets from a GPU for ever after a kernel that failed there."""
LOST_GPU = "its kernels ended the use of the GPU: the graphs after it need another process"


@dataclass(slots=True)
class CampaignTally:
    """What a campaign has found so far."""

    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)
    """Seconds and seed of what took longest to compile and run."""
    rules: Counter[str] = field(default_factory=Counter)
    """How often each rule led to a graph that was compared."""
    done: dict[int, tuple[Substitution, ...]] = field(default_factory=dict)
    """For each seed the substitutions, where there are any."""
    cut_short: int = 0
    """Searches that ended before their work was done."""
    interrupted: int | None = None
    """The seed that was being tried when somebody lost patience."""


def run(
    seed: int,
    graphs: int,
    setting: TrialSetting,
    trace: Trace,
    folder: Path | None,
    shard: tuple[int, int] = (1, 1),
    log: Path | None = None,
    workers: WorkerPool | None = None,
) -> CampaignTally:
    """Try the seeds from `seed` on. `folder`: where failures are written; None writes nothing.
    `shard`: (i, n) tries the i-th of every n seeds. `log`: gets a line for each graph when it is
    done; those that stand there are counted and not tried again. `workers`: who tries them; what
    they find is counted, made smaller and written here, in the order of the seeds."""
    tally, start = CampaignTally(), time.perf_counter()
    before = _logged(log, setting)
    wanted = range(seed + shard[0] - 1, seed + graphs, shard[1])
    left = [each for each in wanted if each not in before]
    outcomes = _outcomes(left, setting, trace, workers)
    for done, each in enumerate(wanted):
        said = f"seed {each}" if done % SAID == 0 else ""
        trace.progress("fuzz", done, len(wanted), said)
        if each in before:
            _count_again(before[each], tally)
            continue
        try:
            outcome = next(outcomes, None)
            if outcome is None:
                tally.interrupted = each
                break
            _count(outcome, setting, tally, folder, trace)
        except KeyboardInterrupt:
            tally.interrupted = each
            break
        if log is not None:
            _write_line(each, setting, tally, log)
        if workers is None and tally.failures and tally.failures[-1]["sort"].startswith(LOST):
            trace.add("warning", "fuzz", f"seed {each}", LOST_GPU)
            tally.interrupted = each
            break
    tally.seconds = time.perf_counter() - start
    return tally


def _outcomes(
    seeds: Sequence[int], setting: TrialSetting, trace: Trace, workers: WorkerPool | None
) -> Iterator[TrialOutcome]:
    """One for each seed, in this order; fewer where workers are interrupted. A drawing that two
    workers died of has failed."""
    if workers is None:
        yield from (attempt(draw(seed), setting) for seed in seeds)
        return
    jobs = [WorkerJob(str(seed), _attempt_there, (seed, setting), f"seed {seed}") for seed in seeds]
    outcome_of: dict[int, TrialOutcome] = {}
    waiting = iter(seeds)
    seed = next(waiting, None)
    for result in workers.outcomes(jobs, trace, first_interrupt_asks=True):
        if isinstance(result, JobRefusal):
            drawing, why = draw(int(result.key)), (str(result.refused),)
            outcome_of[int(result.key)] = TrialOutcome(drawing, "failed", "its process died", why)
        elif not isinstance(result, Undone):
            outcome_of[int(result.key)] = value_of(result)
        while seed is not None and seed in outcome_of:
            yield outcome_of.pop(seed)
            seed = next(waiting, None)


def _attempt_there(here: WorkerPlace, seed: int, setting: TrialSetting) -> TrialOutcome:
    """What a worker does. One whose GPU answers no more ends: the drawing is tried once more."""
    outcome = attempt(draw(seed), setting)
    if outcome.sort.startswith(LOST):
        here.trace.add("warning", "fuzz", f"seed {seed}", LOST_GPU)
        os._exit(1)
    return outcome


def _logged(log: Path | None, setting: TrialSetting) -> dict[int, dict[str, Any]]:
    """By seed, what a log says of this setting; a line that was cut off says nothing."""
    entries: dict[int, dict[str, Any]] = {}
    if log is None or not log.exists():
        return entries
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if told.get("setting") == _named(setting):
            entries[told["seed"]] = told
    return entries


def _named(setting: TrialSetting) -> str:
    return repr(
        (
            *(setting.target, str(setting.dtype), sorted(setting.options.items())),
            *(setting.steps, *(["sizes"] * setting.sizes), *(["training"] * setting.training)),
        )
    )


def _count_again(told: Mapping[str, Any], tally: CampaignTally) -> None:
    tally.counts[told["status"]] += 1
    tally.kinds.update(told["kinds"])
    tally.rules.update(told["rules"])
    if told["failure"] is not None:
        tally.failures.append(told["failure"])


def _write_line(seed: int, setting: TrialSetting, tally: CampaignTally, log: Path) -> None:
    failed = tally.failures[-1] if tally.failures and tally.failures[-1]["seed"] == seed else None
    line = {
        "seed": seed,
        "setting": _named(setting),
        "status": failed["status"] if failed else "equal",
        "kinds": sorted({step.kind for step in draw(seed).steps}),
        "rules": [str(rule) for rule in rules_of(tally.done.get(seed, ()))],
        "failure": failed,
    }
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def record(tally: CampaignTally, seed: int, setting: TrialSetting) -> dict[str, Any]:
    """The tally as it is written to a file."""
    return {
        "seed": seed,
        "target": setting.target,
        "dtype": str(setting.dtype),
        "options": dict(setting.options),
        "steps per graph": setting.steps,
        "graphs": sum(tally.counts.values()),
        "counts": dict(tally.counts),
        "kinds": dict(tally.kinds.most_common()),
        "substituted": sum(1 for done in tally.done.values() if rules_of(done)),
        "cut short": tally.cut_short,
        "steps": tally.rules.total(),
        "rules": dict(tally.rules.most_common()),
        "failures": tally.failures,
        "seconds": tally.seconds,
        "slowest": {"seconds": tally.slowest[0], "seed": tally.slowest[1]},
        "interrupted": tally.interrupted,
        "substitutions": {
            str(seed): [{"rule": each.rule, "nodes": list(each.nodes)} for each in done]
            for seed, done in tally.done.items()
        },
    }


def _count(
    outcome: TrialOutcome,
    setting: TrialSetting,
    tally: CampaignTally,
    folder: Path | None,
    trace: Trace,
) -> None:
    drawing = outcome.drawing
    seed = drawing.seed
    tally.counts[outcome.status] += 1
    tally.slowest = max(tally.slowest, (outcome.seconds, seed))
    tally.kinds.update({step.kind for step in drawing.steps})
    tally.rules.update(rules_of(outcome.done))
    tally.cut_short += outcome.cut_short
    if outcome.done:
        tally.done[seed] = outcome.done
    if outcome.status == "equal":
        return
    report: dict[str, Any] = {
        "seed": seed,
        "status": outcome.status,
        "sort": outcome.sort,
        "options": setting.told(seed),
        "details": list(outcome.details),
        "steps": len(drawing.steps),
    }
    tally.failures.append(report)
    if setting.training and outcome.status == "refused":  # many are, and say themselves why
        return
    if setting.steps:  # a smaller model would draw other rules
        if outcome.shown and folder is not None:
            report["files"] = [_write_text(outcome, folder)]
        return
    if sum("shrunk" in failure for failure in tally.failures) < SHRUNK_FAILURES:
        trace.progress("fuzz", 0, 1, f"seed {seed} is {outcome.status}: making it smaller")
        small = _small(outcome, setting)
        report |= {"shrunk": model_text(small), "shrunk steps": len(small.steps)}
        if folder is not None:
            report["files"] = _write(small, setting, folder)


def _small(outcome: TrialOutcome, setting: TrialSetting) -> DrawnModel:
    def fails(drawing: DrawnModel) -> bool:
        other = attempt(drawing, setting)
        return (other.status, other.sort) == (outcome.status, outcome.sort)

    return shrunk(outcome.drawing, fails)


def _write_text(outcome: TrialOutcome, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{outcome.drawing.seed}.txt"
    file.write_text(f"# {outcome.details[0]}\n\n{outcome.shown}")
    return str(file)


def _write(drawing: DrawnModel, setting: TrialSetting, folder: Path) -> list[str]:
    """The script, and the graph where the model can be captured."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{drawing.seed}.py"
    options: Mapping[str, Any] = setting.told(drawing.seed)
    file.write_text(script(drawing, setting.dtype, setting.target, options, setting.training))
    build, inputs = built_model(drawing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = capture(build().eval(), inputs(0)).graph
    except (AnabranchError, AssertionError):
        return [str(file)]
    file.with_suffix(".txt").write_text(text_graph(graph))
    return [str(file), str(file.with_suffix(".txt"))]
