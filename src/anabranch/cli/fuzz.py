"""anabranch fuzz --graphs N --seed S: does what random models compute survive compiling?

drawn    equal   unequal   failed   refused   seconds
  300      298         1        1         0      74.1

seed 17 is unequal under best: output 0 is off by 1.0e+00 where 1.0e-05 is allowed
  2 of 14 lines still fail: fuzz/17.py, fuzz/17.txt
  anabranch fuzz --graphs 1 --seed 17
compiled: 21 of 300 graphs were substituted, in 34 steps by 12 rules; 270 searches cut short

With --steps N nothing is compiled: N rules, drawn by the seed, are applied to each captured graph,
whatever they cost, and the last graph is compared with the first in fp64. No clock ends that.

rules alone: 2331 steps by 208 rules in 300 graphs

With --sizes an axis of the inputs varies, and calls of five sizes are compared, with the states
after each. Half of the models have a state, and a third ask for values, where they are cut.

With --training each model is made trainable, with a drawn loss and optimizer, and three steps that
`compile_step` compiled are compared with eager's, gradient by gradient.

Ends with 1 if anything was unequal or failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from anabranch.cli import flags, screen
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.errors import OptionError
from anabranch.fuzz import campaign
from anabranch.fuzz.trial import DRAWN, TrialSetting, check
from anabranch.models.load import DTYPES
from anabranch.targets import resolve
from anabranch.trace import Trace

COLUMNS = ("drawn", "equal", "unequal", "failed", "refused", "seconds")
SHOWN = 10
PRICES, SEARCHED = 300, 10.0
DEFAULTS = {
    **{"target": "cpu", "dtype": "fp32", "scheduler": DRAWN},
    **{"check": "1", "budget": "1.0", "search": "autograph", "steps": "0"},
}
"""Options that the line for one seed repeats, unless they are these."""


def run(
    graphs: Annotated[int, typer.Option(help="How many to draw.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="The first graph's; the next has the next.", min=0)] = 0,
    target: Annotated[
        str,
        typer.Option(
            help="cpu, cuda, auto, or sim:h200 (sim:FILE.json), whose plans are evaluated."
        ),
    ] = "cpu",
    dtype: flags.Dtype = None,
    scheduler: Annotated[
        str, typer.Option(help="best, the name of one, or drawn: by each seed another.")
    ] = DRAWN,
    search: Annotated[
        str,
        typer.Option(
            help="For an equal graph: autograph, autograph-paper, taso, taso-paper, none."
        ),
    ] = "autograph",
    steps: Annotated[
        int,
        typer.Option(
            help="Instead of compiling, apply so many rules, drawn by the seed, to each graph: in "
            "fp64 unless --dtype says otherwise, without search, schedule or budget.",
            min=0,
        ),
    ] = 0,
    sizes: Annotated[
        bool,
        typer.Option(
            "--sizes",
            help="An axis varies; five sizes of each graph are called. Half of the models have a "
            "state, and a third ask for values, where they are cut.",
        ),
    ] = False,
    training: Annotated[
        bool,
        typer.Option("--training", help="Three training steps of each graph are compared."),
    ] = False,
    budget: Annotated[
        float, typer.Option(help="Seconds that search and measurement may take for each graph.")
    ] = 1.0,
    verified: Annotated[
        int, typer.Option("--check", help="1 verifies after each pass, 2 evaluates.", min=0, max=2)
    ] = 1,
    shard: Annotated[
        str,
        typer.Option(help="I/N tries the I-th of every N seeds, for N runs."),
    ] = "1/1",
    log: Annotated[
        Path | None,
        typer.Option(help="Gets a line per graph; what stands there is not tried again."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where failures are written.", metavar="FOLDER")] = Path(
        "fuzz"
    ),
    json: flags.Json = None,
    workers: flags.WorkersOption = None,
) -> int:
    """Draw random models, compile each, and compare it with what it was."""
    flags.check_folders(log)
    if out.exists():
        flags.check_folder(out, f"cannot write failures to {out}")
    if training and (steps or sizes):
        raise OptionError(
            "--training beside --steps or --sizes",
            "each says of its own what is compared",
            "leave out one or the other",
        )
    if steps:
        compile_options = {"scheduler": scheduler, "search": search, "budget": str(budget)}
        setting = _of_steps(target, dtype, verified, steps, compile_options)
    else:
        setting = _setting(target, dtype, scheduler, search, budget, verified)
        setting = replace(setting, sizes=sizes, training=training)
    asked = flags.opened_workers(workers, target)
    with asked as pool, ProgressDisplay("drawing", "fuzz") as watch:
        tally = campaign.run(seed, graphs, setting, Trace(watch), out, _shard(shard), log, pool)
    _show(json, tally, setting)
    screen.write_json(json, campaign.record(tally, seed, setting))
    if tally.counts["unequal"] or tally.counts["failed"]:
        return 1
    if tally.interrupted is not None:
        raise KeyboardInterrupt
    return 0


def _shard(text: str) -> tuple[int, int]:
    """OptionError if it is not I/N."""
    which, _, count = text.partition("/")
    if which.isdecimal() and count.isdecimal() and 1 <= int(which) <= int(count):
        return int(which), int(count)
    raise OptionError(f"--shard {text}", "it is not I/N with I from 1 to N", "say 2/8, for example")


def _setting(
    target: str,
    dtype: str | None,
    scheduler: str,
    search: str,
    budget: float,
    verified: int,
) -> TrialSetting:
    """What was asked for, with OptionError for what means nothing."""
    options: dict[str, Any] = {"scheduler": scheduler, "check": verified, "budget": budget}
    options["cache_dir"] = None
    # A small graph is searched in a fraction of a second, and what is not equal is an error.
    options |= {"search": search, "search_prices": PRICES, "strict": True}
    options["search_seconds"] = SEARCHED
    kind = flags.check_dtype(dtype) or "fp32"
    if kind == "tf32":
        options["tf32"] = True
    setting = TrialSetting(target, DTYPES[kind], options)
    check(setting)
    resolve(target)
    return setting


def _of_steps(
    target: str, dtype: str | None, verified: int, steps: int, compile_options: Mapping[str, str]
) -> TrialSetting:
    """What was asked for, where nothing is compiled. OptionError if what is given to compile is
    not as it is by default."""
    other = [f"--{name}" for name, value in compile_options.items() if value != DEFAULTS[name]]
    if other:
        raise OptionError(
            f"{' and '.join(other)} beside --steps",
            "rules that are drawn need no search, no schedule and no budget: nothing is compiled",
            "leave out one or the other",
        )
    kind = flags.check_dtype(dtype)
    options = {"check": verified, "tf32": kind == "tf32"}
    setting = TrialSetting(target, DTYPES[kind] if kind else torch.float64, options, steps)
    check(setting)
    resolve(target)
    return setting


def _show(json: str | None, tally: campaign.CampaignTally, setting: TrialSetting) -> None:
    console = screen.console(json)
    counts = [str(tally.counts[name]) for name in COLUMNS[1:-1]]
    row = [str(sum(tally.counts.values())), *counts, f"{tally.seconds:.1f}"]
    console.print(screen.table(COLUMNS, [row]))
    again = _words(setting)
    for failure in tally.failures[:SHOWN]:
        scheduler = failure["options"].get("scheduler")
        under = f" under {scheduler}" if scheduler else ""
        said = failure["details"][0].strip().splitlines()
        line = said[-1] if failure["status"] == "failed" else said[0]
        console.print(f"seed {failure['seed']} is {failure['status']}{under}: {line}")
        if "shrunk" in failure:
            files = ", ".join(failure.get("files", ()))
            console.print(f"  {failure['shrunk steps']} of {failure['steps']} lines do so: {files}")
        elif "files" in failure:
            console.print(f"  before and after: {failure['files'][0]}")
        console.print(f"  anabranch fuzz --graphs 1 --seed {failure['seed']}{again}")
    if len(tally.failures) > SHOWN:
        console.print(f"and {len(tally.failures) - SHOWN} more")
    if tally.interrupted is not None:
        console.print(f"interrupted at seed {tally.interrupted}")
    console.print(_done(tally, setting))


def _done(tally: campaign.CampaignTally, setting: TrialSetting) -> str:
    """How far the rules were tried: not to be taken for how many graphs were equal."""
    told = campaign.record(tally, 0, setting)
    steps = f"{told['steps']} steps by {len(told['rules'])} rules"
    if setting.steps:
        return f"rules alone: {steps} in {told['graphs']} graphs"
    return (
        f"compiled: {told['substituted']} of {told['graphs']} graphs were substituted, in {steps}; "
        f"{told['cut short']} searches cut short"
    )


def _words(setting: TrialSetting) -> str:
    """The flags that a command line needs beside the seed to say this setting again."""
    dtype = "tf32" if setting.options.get("tf32") else _name(setting)
    said = {"target": setting.target, "dtype": dtype, "steps": str(setting.steps)}
    said |= {name: str(value) for name, value in setting.options.items() if name in DEFAULTS}
    asked = " --sizes" * setting.sizes + " --training" * setting.training
    return "".join(f" --{name} {v}" for name, v in said.items() if v != DEFAULTS.get(name)) + asked


def _name(setting: TrialSetting) -> str:
    names = (name for name, dtype in DTYPES.items() if dtype == setting.dtype)
    return next(names, DEFAULTS["dtype"])  # fp64, which need not be said
