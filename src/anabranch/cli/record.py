"""anabranch record: what this GPU takes for the kernels of the zoo -> the profile of sim:NAME; with
--schedules what it takes for kernels that share it -> observations, to fit a model to; with
--resources what kernels take of it -> a profile to add to another one with --kernels-of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from anabranch.bench import calibrate as calibrating
from anabranch.bench import fit_kernels as fitting
from anabranch.bench import record as recording
from anabranch.bench.observe import observe
from anabranch.bench.provenance import recorded_provenance
from anabranch.bench.record_resources import (
    KernelFacts,
    asking,
    check_alike,
    compiled,
    profile_of,
    with_kernels,
)
from anabranch.bench.record_resources import resources as ask_resources
from anabranch.cli import flags, screen
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.costs.kernel_model import save_kernel_model
from anabranch.costs.observed import KernelSource, load_observations, merged, save_observations
from anabranch.costs.recorded import Profile, load_profile, save_profile
from anabranch.deadline import Deadline
from anabranch.errors import OptionError
from anabranch.options import SEARCHES
from anabranch.targets import resolve
from anabranch.trace import Trace


def run(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models; all of the zoo if none is named.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The profile; added to if it exists.")
    ] = Path("profile.json"),
    batch: Annotated[str, typer.Option(help="One or more: 1,16.")] = "1",
    dtype: Annotated[str, typer.Option(help="One or more: fp16,tf32.")] = "fp16",
    target: Annotated[str, typer.Option(help="cuda; cpu to try it out.")] = "cuda",
    search: Annotated[
        str, typer.Option(help="Of the graphs that these find, one or more: none,autograph.")
    ] = "none",
    borrow_from: Annotated[
        str | None,
        typer.Option(
            help="The name of this GPU: the profile may be of another one with the same "
            "multiprocessors, and gets what it does not know.",
            metavar="GPU",
            show_default="none",
        ),
    ] = None,
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Time schedules, and tasks beside each other.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(help="For the schedules of one model, or all resources, about.", min=0.1),
    ] = 60.0,
    kernels: Annotated[
        str, typer.Option(help="For the schedules: library, or all with generated ones.")
    ] = "library",
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            help="Fit the model of simultaneous kernels to these observations; -o gets "
            "its numbers, and its errors on networks held out. Once for each file.",
            metavar="FILE",
        ),
    ] = None,
    fit_kernels: Annotated[
        Path | None,
        typer.Option(
            help="Fit the model of single kernels to this profile's timings of MODELS; -o gets "
            "its numbers, --json its errors on networks held out.",
            metavar="PROFILE",
        ),
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option(
            help="Time nothing: ask what kernels of MODELS take that this simulated GPU chooses "
            "and knows no resources of; with --target cpu the compiler, of generated kernels.",
            metavar="sim:NAME",
        ),
    ] = None,
    kernels_of: Annotated[
        list[Path] | None,
        typer.Option(
            help="Run nothing: add what kernels take by this profile. Once for each file.",
            metavar="PROFILE",
        ),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Measure the kernels of MODELS on this GPU, and write them to a profile."""
    flags.check_folders(output)
    dtypes = flags.dtypes(dtype)
    searches = flags.words(search, SEARCHES, "--search")
    batches = flags.numbers(batch, int, "--batch")
    if calibrate:
        _calibrate(calibrate, output, json)
        return
    if fit_kernels:
        _fit_kernels(fit_kernels, models or (), batches, output, json)
        return
    if schedules:
        _schedules(models, dtypes, batches, seconds, target, kernels, output, json)
        return
    if kernels_of:
        _add_kernels(kernels_of, output, json)
        return
    if resources is not None:
        _resources(models, dtypes, batches, resources, seconds, target, output, json)
        return
    before = load_profile(output) if output.exists() else None
    save = partial(save_profile, path=output)
    with ProgressDisplay("recording", "record") as watch:
        profile = recording.record(
            models or recording.networks(),
            dtypes,
            batches,
            Trace(watch),
            before,
            target,
            save=save,
            searches=searches,
            borrow_from=borrow_from,
        )
    _tell(profile, before, output, json)


def _tell(profile: Profile, before: Profile | None, output: Path, json: str | None) -> None:
    old_counts = (len(before.tasks), len(before.kernels)) if before else (0, 0)
    screen.console(json).print(
        f"{output}: {profile.spec.name}, {len(profile.tasks)} timings "
        f"({len(profile.tasks) - old_counts[0]} new), {len(profile.kernels)} kernels "
        f"({len(profile.kernels) - old_counts[1]} new)"
    )
    screen.write_json(
        json,
        {
            "profile": str(output),
            "device": profile.spec.name,
            "tasks": len(profile.tasks),
            "kernels": len(profile.kernels),
            "provenance": profile.provenance.model_dump(),
        },
    )


def _add_kernels(files: Sequence[Path], output: Path, json: str | None) -> None:
    before = load_profile(output)
    profile = with_kernels(before, [load_profile(path) for path in files])
    save_profile(profile, output)
    _tell(profile, before, output, json)


def _resources(
    models: list[str] | None,
    dtypes: Sequence[str],
    batches: Sequence[int],
    planned_for: str,
    seconds: float,
    target: str,
    output: Path,
    json: str | None,
) -> None:
    """The file gets them as a profile without times; for `seconds` in all, about. For a CPU the
    compiler tells of generated kernels."""
    planned, here = profile_of(planned_for), resolve(target)
    if here.spec.kind != "cpu":
        check_alike(planned.spec, here.spec)
    before = load_profile(output) if output.exists() else Profile(spec=planned.spec)
    provenance = {"provenance": recorded_provenance()}

    def added(facts: KernelFacts) -> Profile:
        return before.model_copy(update={"kernels": {**before.kernels, **facts}, **provenance})

    with ProgressDisplay("recording", "record") as watch:
        trace = Trace(watch)
        facts = ask_resources(
            models or recording.networks(),
            dtypes,
            batches,
            planned_for,
            compiled(planned.spec, trace) if here.spec.kind == "cpu" else asking(here, trace),
            {**planned.kernels, **before.kernels},
            Deadline.after(seconds),
            trace,
            save=lambda facts: save_profile(added(facts), output),
        )
    save_profile(added(facts), output)
    _tell(added(facts), before, output, json)


def _fit_kernels(
    profile: Path, models: Sequence[str], batches: Sequence[int], output: Path, json: str | None
) -> None:
    with ProgressDisplay("fitting", "fit") as watch:
        model, record = fitting.fit_kernels(str(profile), models, Trace(watch), batches=batches)
    save_kernel_model(model, output)
    rows = record["networks"]
    off = sorted(row["median_error"] for row in rows)[len(rows) // 2]
    screen.console(json).print(
        f"{output}: {record['kernels']} kernels; held out, those of a network are "
        f"{off:.1%} off in the median"
    )
    screen.write_json(json, record)


def _schedules(
    models: list[str] | None,
    dtypes: Sequence[str],
    batches: Sequence[int],
    seconds: float,
    target: str,
    kernels: str,
    output: Path,
    json: str | None,
) -> None:
    chosen = _kernels(kernels)
    before = load_observations(output) if output.exists() else None
    with ProgressDisplay("recording", "record") as watch:
        observations = observe(
            models or recording.networks(),
            dtypes,
            batches,
            seconds,
            Trace(watch),
            before,
            target,
            chosen,
            save=lambda newest: save_observations(newest, output),
        )
    runs = sum(len(graph.runs) for graph in observations.graphs)
    screen.console(json).print(
        f"{output}: {observations.spec.name}, {len(observations.tasks)} tasks, "
        f"{len(observations.graphs)} graphs, {runs} schedules"
    )
    screen.write_json(
        json,
        {
            "observations": str(output),
            "device": observations.spec.name,
            "tasks": len(observations.tasks),
            "graphs": len(observations.graphs),
            "schedules": runs,
            "sessions": [session.model_dump() for session in observations.sessions],
        },
    )


def _kernels(name: str) -> KernelSource:
    choices: dict[str, KernelSource] = {"library": "library", "all": "all"}
    if name in choices:
        return choices[name]
    raise OptionError(f"--kernels cannot be {name!r}", "no such choice", "one of: library, all")


def _calibrate(data: Sequence[Path], output: Path, json: str | None) -> None:
    observations = merged([load_observations(path) for path in data])
    origin = ", ".join(path.name for path in data)
    with ProgressDisplay("calibrating", "record") as watch:
        record = calibrating.calibrate(
            observations, origin, Trace(watch), workers=os.cpu_count() or 1
        )
    output.write_text(dumps(record, indent=1) + "\n")
    console = screen.console(json)
    for row in record["networks"]:
        name = f"{row['network']} {row['dtype']} batch {row['batch']} {row['kernels']}"
        tau = "-" if row["tau"] is None else f"{row['tau']:.2f}"
        error = f"{row['median_error']:.1%}"
        console.print(f"{name:<40} {len(row['schedules']):>3} schedules {error:>7} tau {tau}")
    held = record["held_out"]
    tau = "-" if held["median_tau"] is None else f"{held['median_tau']:.2f}"
    console.print(
        f"held out: median error {held['median_error']:.1%}, median tau {tau} -> {output}"
    )
    screen.write_json(json, record)
