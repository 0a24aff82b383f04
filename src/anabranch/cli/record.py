"""anabranch record: what this GPU takes for the kernels of the zoo -> the profile of sim:NAME."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anabranch.bench import record as recording
from anabranch.cli import flags, screen
from anabranch.cli.compile import check_folders
from anabranch.cli.watch import Watch
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
    json: flags.Json = None,
) -> None:
    """Measure the kernels of MODELS on this GPU, and write them to a profile."""
    check_folders(output)
    dtypes = flags.dtypes(dtype)
    batches = flags.numbers(batch, int, "--batch")
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


def _saver(path: Path) -> recording.Save:
    """Every save replaces the file as a whole."""

    def save(profile: Profile) -> None:
        draft = path.with_name(f".{path.name}.draft")
        save_profile(profile, draft)
        draft.replace(path)

    return save
