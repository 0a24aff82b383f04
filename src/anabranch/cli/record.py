"""anabranch record: what this GPU takes for the kernels of the zoo -> the profile of sim:NAME; with
--schedules what it takes for kernels that share it -> observations, to fit a model to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from anabranch.bench import record as recording
from anabranch.bench.observe import observe
from anabranch.cli import flags, screen
from anabranch.cli.compile import check_folders
from anabranch.cli.watch import Watch
from anabranch.costs.observed import load_observations, save_observations
from anabranch.costs.recorded import Profile, load_profile, save_profile
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
    schedules: Annotated[
        bool, typer.Option("--schedules", help="Time schedules, and tasks beside each other.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="For the schedules of one model, about.", min=0.1)
    ] = 60.0,
    json: flags.Json = None,
) -> None:
    """Measure the kernels of MODELS on this GPU, and write them to a profile."""
    check_folders(output)
    dtypes = flags.dtypes(dtype)
    batches = flags.numbers(batch, int, "--batch")
    if schedules:
        _schedules(models, dtypes, batches, seconds, target, output, json)
        return
    before = load_profile(output) if output.exists() else None
    save = _saver(output)
    with Watch("recording", "record") as watch:
        profile = recording.record(
            models or recording.networks(),
            dtypes,
            batches,
            Trace(watch),
            before,
            target,
            save=save,
        )
    known = (len(before.tasks), len(before.kernels)) if before else (0, 0)
    screen.console(json).print(
        f"{output}: {profile.spec.name}, {len(profile.tasks)} timings "
        f"({len(profile.tasks) - known[0]} new), {len(profile.kernels)} kernels "
        f"({len(profile.kernels) - known[1]} new)"
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


def _schedules(
    models: list[str] | None,
    dtypes: Sequence[str],
    batches: Sequence[int],
    seconds: float,
    target: str,
    output: Path,
    json: str | None,
) -> None:
    before = load_observations(output) if output.exists() else None
    with Watch("recording", "record") as watch:
        found = observe(
            models or recording.networks(),
            dtypes,
            batches,
            seconds,
            Trace(watch),
            before,
            target,
            save=lambda found: save_observations(found, output),
        )
    runs = sum(len(graph.runs) for graph in found.graphs)
    screen.console(json).print(
        f"{output}: {found.spec.name}, {len(found.tasks)} tasks, "
        f"{len(found.graphs)} graphs, {runs} schedules"
    )
    screen.write_json(
        json,
        {
            "observations": str(output),
            "device": found.spec.name,
            "tasks": len(found.tasks),
            "graphs": len(found.graphs),
            "schedules": runs,
            "sessions": [session.model_dump() for session in found.sessions],
        },
    )


def _saver(path: Path) -> recording.Save:
    """Every save replaces the file as a whole."""

    def save(profile: Profile) -> None:
        draft = path.with_name(f".{path.name}.draft")
        save_profile(profile, draft)
        draft.replace(path)

    return save
