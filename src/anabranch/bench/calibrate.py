"""Observations -> a record of how well the model of simultaneous kernels predicts, and its numbers.

Every network is predicted by a calibration that was fitted without it, and without its kin and the
small graphs of their tasks: families of networks are dealt to groups, as a rule one to each, and
each group is held out in turn. The calibration that is handed out is fitted to all.

Schedules that are captured as one graph are one measurement, and tell how well one repeats itself:
no order is asked of schedules that differ by less (`costs.repeats`). Networks of many short kernels
repeat themselves worse than those of few long ones, so each is judged by its own repeats where
there are enough of them.

    network                schedules   median error   Kendall tau
    zoo:googlenet fp16 b1         15           4.1%          0.91
"""

from __future__ import annotations

import multiprocessing
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from anabranch.bench.provenance import provenance, versions
from anabranch.costs.fit import Case, FitQuality, case_of, fit, floored, judge
from anabranch.costs.observed import Observations, ObservedGraph
from anabranch.costs.repeats import Repeatability, repeatability
from anabranch.errors import OptionError
from anabranch.ir.calibration import Calibration
from anabranch.ir.target import TargetSpec
from anabranch.trace import Trace

GROUPS = 12
OWN_FREEDOM_LEAST = 10
"""Degrees of freedom from which a network's own repeatability counts, and not that of all: it is
then within 44% of the true one in 95 of 100 cases."""
START = Calibration(
    start_us=2.0,
    end_us=0.5,
    split_us=5.0,
    root_us=1.5,
    fork_us=0.4,
    launch_us=0.5,
    lane_us=1.0,
    short_us=1.6,
    release_us=0.1,
    dispatch_us=0.1,
    sharing=0.2,
    arithmetic=0.6,
    cold=2.0,
    hidden_us=1.0,
)
"""Where the search begins: a step of a chain in a CUDA graph takes about 1 us on an H200, a branch
0.3 to 0.6; the rest are middling guesses."""


def calibrate(
    observations: Observations,
    origin: str,
    trace: Trace | None = None,
    groups: int = GROUPS,
    workers: int = 1,
) -> dict[str, Any]:
    """The record, ready for JSON. `origin` names the observations; `workers`: processes that fit.
    OptionError if they hold fewer than two families of networks: nothing could be held out."""
    trace = trace or Trace()
    families = sorted({family(g.name) for g in observations.graphs if g.kind == "network"})
    if len(families) < 2:
        raise OptionError(
            f"nothing can be held out of {len(families)} families of networks",
            "a model is judged by networks that it was not fitted to",
            "record schedules of more networks",
        )
    cases, repeats = _cases(observations)
    parts = [families[i::groups] for i in range(min(groups, len(families)))]
    kept = [[case for kin, _, case in cases if kin not in part] for part in (*parts, ())]
    *folds, final = _fits(kept, observations.spec, trace, workers)
    rows: list[dict[str, Any]] = []
    for part, fitted in zip(parts, folds, strict=True):
        unseen = [entry for entry in cases if entry[0] in part]
        rows += _rows(unseen, observations.spec, fitted)
    origin_text = f"fitted to {origin}, {provenance()['date'][:10]}"
    return {
        "version": 1,
        "provenance": {**provenance(), "versions": versions(), "observations": origin},
        "device": observations.spec.name,
        "repeatability": asdict(repeats),
        "held_out": summary(rows),
        "networks": rows,
        "folds": [
            {"held_out": part, "calibration": asdict(fitted)}
            for part, fitted in zip(parts, folds, strict=True)
        ],
        "calibration": asdict(replace(final, origin=origin_text)),
        "fitted": summary(_rows(cases, observations.spec, final)),
    }


def _cases(
    observations: Observations,
) -> tuple[list[tuple[str, ObservedGraph, Case]], Repeatability]:
    """Each graph's family, itself and its case; how well measurements of networks repeat."""
    cases = [case_of(graph, observations) for graph in observations.graphs]
    whole = [case for case in cases if case.kind == "network"]
    overall = repeatability(times for case in whole for times in case.repeats)
    return [
        (family(graph.of or graph.name), graph, floored(case, _own(case, overall)))
        for graph, case in zip(observations.graphs, cases, strict=True)
    ], overall


def _own(case: Case, overall: Repeatability) -> Repeatability:
    """How well measurements of this graph repeat; that of all, `overall`, where it has too few."""
    own = repeatability(case.repeats)
    return own if case.kind == "network" and own.freedom >= OWN_FREEDOM_LEAST else overall


def _fits(
    kept: Sequence[list[Case]], spec: TargetSpec, trace: Trace, workers: int
) -> list[Calibration]:
    """One fit to each list of cases, in several processes if there may be several."""
    fit_cases = partial(fit, spec=spec, start=START)
    calibrations: list[Calibration] = []
    with ExitStack() as stack:
        run: Callable[..., Iterable[Calibration]] = map
        if workers > 1:
            pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
            run = stack.enter_context(pool).map
        for done, fitted in enumerate(run(fit_cases, kept)):
            calibrations.append(fitted)
            trace.progress("calibrate", done + 1, len(kept), "fitted")
    return calibrations


def family(name: str) -> str:
    """What networks that are alike share: zoo:nasnet_mobile and zoo:nasnet_large are nasnet.

    >>> family("zoo:squeezenet_bypass"), family("zoo:resnet50"), family("zoo:randwire/tiny")
    ('squeezenet', 'resnet', 'randwire')
    """
    return re.split(r"[_/\d]", name.rpartition(":")[2])[0]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all networks: the median of their median errors, and of their taus, and the worst."""
    errors = [row["median_error"] for row in rows]
    taus = [row["tau"] for row in rows if row["tau"] is not None]
    return {
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "median_tau": statistics.median(taus) if taus else None,
        "worst_tau": min(taus) if taus else None,
    }


def _rows(
    cases: Sequence[tuple[str, Any, Case]], spec: TargetSpec, calibration: Calibration
) -> list[dict[str, Any]]:
    return [
        _row(case, judge(case, spec, calibration), graph)
        for _, graph, case in cases
        if graph.kind == "network"
    ]


def _row(case: Case, verdict: FitQuality, graph: ObservedGraph) -> dict[str, Any]:
    return {
        "network": case.name,
        "dtype": graph.dtype,
        "batch": graph.batch,
        "kernels": graph.kernels,
        "median_error": round(verdict.error, 4),
        "tau": None if verdict.tau is None else round(verdict.tau, 4),
        "repeatability": asdict(repeatability(case.repeats)),
        "schedules": _schedules(case, verdict),
    }


def _schedules(case: Case, verdict: FitQuality) -> list[dict[str, Any]]:
    """One entry a captured graph; its several times where there are several."""
    entries: list[dict[str, Any]] = []
    columns = (case.schedules, case.us, case.spreads, verdict.predicted, case.repeats)
    for names, us, spread, predicted, times in zip(*columns, strict=True):
        entry = {"schedule": " = ".join(dict.fromkeys(names)), "us": us, "spread": round(spread, 3)}
        entry["predicted"] = round(predicted, 2)
        if len(times) > 1:
            entry["repeats"] = list(times)
        entries.append(entry)
    return entries
