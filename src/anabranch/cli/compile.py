"""anabranch compile MODEL: a plan, what it takes, and where it was written.

On a machine without a GPU `--target auto` plans for the recorded H200. Such a plan cannot run here,
so the model is then compiled for the CPU as well, run, and compared with eager: its numbers are
shown apart, for they say that the result is right and nothing about the GPU's speed.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anabranch import api
from anabranch.bench.rival_timing import check_rivals, time_rivals
from anabranch.bench.rivals import RIVALS
from anabranch.cli import flags, screen
from anabranch.cli.chosen_target import place, planned_elsewhere
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.cli.stopping import stoppable
from anabranch.compiled.calls import Compiled
from anabranch.errors import NumericsError
from anabranch.ir.text import text_kernel
from anabranch.ir.tolerances import relative_error
from anabranch.models.load import batch_of, load_model
from anabranch.models.onnx_file import is_onnx_name
from anabranch.options import Options
from anabranch.report import units
from anabranch.report.forecast import interval_text
from anabranch.report.headline import CUT_SHORT
from anabranch.trace import Trace
from anabranch.tuning.verify.plan import EAGER_TOLERANCE

TOP = 8


def run(
    model: flags.Model,
    batch: flags.BatchOption = None,
    dtype: flags.Dtype = None,
    target: flags.TargetOption = "auto",
    system: flags.SystemOption = "anabranch",
    scheduler: flags.SchedulerOption = None,
    search: flags.SearchOption = None,
    effort: flags.EffortOption = None,
    budget: flags.BudgetOption = None,
    max_group_size: Annotated[
        int | None, typer.Option(help="IOS: most operators of a group.", min=1)
    ] = None,
    max_groups: Annotated[
        int | None, typer.Option(help="IOS: most groups of a stage.", min=1)
    ] = None,
    settings: flags.OptionFields = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Save the plan here.", metavar="FILE")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report here.", metavar="FILE.html")
    ] = None,
    rivals: Annotated[
        str | None,
        typer.Option(
            help=f"Time these beside it, for the result and the report: {', '.join(RIVALS)}.",
            show_default="none",
        ),
    ] = None,
    json: flags.Json = None,
    seed: flags.Seed = 0,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Compile MODEL, and show what the result takes."""
    flags.check_dtype(dtype)
    flags.check_folders(output, report)
    options = flags.compile_options(
        settings,
        system=system,
        scheduler=scheduler,
        search=search,
        effort=effort,
        budget=budget,
        seed=seed,
        max_group_size=max_group_size,
        max_groups=max_groups,
        tf32=dtype == "tf32",
        workers=workers,
    )
    compared = flags.words(rivals, RIVALS, "--rivals")
    check_rivals(compared, place(target)[0])
    check = planned_elsewhere(target)
    compiled, args, stop = compiled_for(target, model, batch, dtype, seed, trust, options)
    if output is not None:
        compiled.save(output)
    more: dict[str, Any] = {"command": shlex.join(["anabranch", *sys.argv[1:]])}
    if compared:
        timed = time_rivals(
            compiled, model, dtype or "fp32", (compiled.model, args), compared, trust
        )
        more |= {**timed, "baselines": compiled.facts["baselines"] | timed["baselines"]}
    if report is not None:
        compiled.report(report, more)
    held = batch_of(model, args, batch)
    facts = {"name": model, "batch": held, **compiled.facts, **more, "top_kernels": top(compiled)}
    facts |= {"saved": str(output) if output else None, "report": str(report) if report else None}
    show(screen.console(json), facts)
    if check:
        facts["cpu_check"] = _on_cpu(model, batch, dtype, seed, trust, options, stop)
        _show_check(screen.console(json), facts["cpu_check"])
    screen.write_json(json, facts)
    if check and not facts["cpu_check"]["agrees"]:
        raise _disagreement(facts["cpu_check"])


def compiled_for(
    target: str,
    model: str,
    batch: int | None,
    dtype: str | None,
    seed: int,
    trust: bool,
    options: dict[str, Any],
) -> tuple[Compiled, tuple[Any, ...], Event]:
    """The model compiled with what the flags say, in sight of whoever waits; its inputs; and what
    is set if somebody asked for an end."""
    chosen, device = place(target)
    loaded, args = load_model(model, batch, dtype, device, seed, trust)
    level = Options.read(options).debug
    options = {"fullgraph": True, **options}  # what is shown is about one plan
    with stoppable() as stop, ProgressDisplay(model, level=level) as watch:
        trace = Trace(watch)
        compiled = api.compile(loaded, args, target=chosen, trace=trace, stop=stop, **options)
    return compiled, args, stop


def top(compiled: Any) -> list[dict[str, Any]]:
    """The slowest tasks, each alone on the device; equal ones once, with how many there are."""
    compilation = compiled.entries[-1].compilation
    rows: dict[str, dict[str, Any]] = {}
    for task in compilation.plan.tasks.tasks:
        tried = compilation.compiled.selection.candidates.get(task.name, ())
        won = next((c for c in tried if c.verdict.chosen), None)
        if won is None or (cost := won.verdict.cost) is None:
            continue
        ops = ", ".join(node.op.split(".")[1] for node in task.body.nodes)
        sizes = " ".join(node.type.text for node in task.body.nodes[-1:])
        kernel = text_kernel(won.kernel)
        row = rows.setdefault(
            f"{kernel} {ops} {sizes} {cost.us}",
            {
                "task": task.name,
                "kernel": kernel,
                "ops": ops,
                "result": sizes,
                "us": cost.us,
                "source": cost.source,
                "count": 0,
            },
        )
        row["count"] += 1
    ordered = sorted(rows.values(), key=lambda row: -float(row["us"]) * int(row["count"]))
    return ordered[:TOP]


def show(console: Console, facts: dict[str, Any]) -> None:
    """One line of result, the schedules that were compared, the kernels that take the time."""
    console.print(_headline(facts))
    rows = [
        (
            ("* " if row["name"] == facts["scheduler"] else "  ") + row["name"],
            screen.milliseconds(row["latency_ms"]),
            row["source"],
            str(row["streams"]),
            str(row["waits"]),
        )
        for row in facts["schedules"]
    ]
    console.print(screen.table(("<schedule", "ms", "<source", "streams", "waits"), rows))
    tops = [
        (
            row["task"] + (f" x{row['count']}" if row["count"] > 1 else ""),
            units.significant(row["us"]),
            row["kernel"],
            _short(row["ops"], 48),
            row["result"],
        )
        for row in facts["top_kernels"]
    ]
    if tops:
        console.print(screen.table(("<slowest tasks", "us", "<kernel", "<ops", "<result"), tops))
    for key in ("saved", "report"):
        if facts.get(key):
            console.print(f"{key}: {facts[key]}")


def _headline(facts: dict[str, Any]) -> str:
    source = facts["latency_source"]
    between = interval_text(facts)
    own = f"{source}{between and f' ({between} in eight of ten)'}"
    parts = [f"{screen.milliseconds(facts['latency_ms'])} ms {own}"]
    for name, ms in facts["baselines"].items():
        gain = f", {units.ratio(ms / facts['latency_ms'])}" if facts["latency_ms"] else ""
        parts.append(f"{name} {screen.milliseconds(ms)} ms{gain}")
    parts += [f"{name} not measured: {why}" for name, why in facts.get("not_measured", {}).items()]
    parts.append(
        f"{units.count(facts['kernels'], 'kernel')} on {units.count(facts['streams'], 'stream')}"
    )
    parts.append(f"peak {units.size(facts['peak_bytes'])}")
    cut = CUT_SHORT.get(facts["cut_short"], "")
    parts.append(f"compiled in {facts['search_s']:.1f} s" + (f", {cut}" if cut else ""))
    where = f"simulated {facts['device']}" if _simulated(facts) else facts["device"]
    return f"{facts['name']} {facts['dtype']} on {where}: " + "; ".join(parts)


def _simulated(facts: dict[str, Any]) -> bool:
    return str(facts.get("target", "")).startswith("sim")


def _on_cpu(
    model: str,
    batch: int | None,
    dtype: str | None,
    seed: int,
    trust: bool,
    options: dict[str, Any],
    stop: Event,
) -> dict[str, Any]:
    """Facts of the model compiled for the CPU, run and compared with eager; in fp32, since a CPU
    emulates half precision, a hundred times slower."""
    own = None if model.endswith(".pt2") or is_onnx_name(model) else "fp32"
    loaded, args = load_model(model, batch, own, "cpu", seed, trust)
    options = {"fullgraph": True, **options}
    options.pop("tf32", None)
    with stoppable(stop), ProgressDisplay(f"{model} on the CPU") as watch:
        trace = Trace(watch)
        compiled = api.compile(loaded, args, target="cpu", trace=trace, stop=stop, **options)
    with torch.no_grad():
        eager = [leaf for leaf in tree_leaves(loaded(*args)) if isinstance(leaf, Tensor)]
    outs = [leaf for leaf in tree_leaves(compiled(*args)) if isinstance(leaf, Tensor)]
    pairs = zip(outs, eager, strict=True)
    errors = [(relative_error(out, own), EAGER_TOLERANCE.get(out.dtype, 0.0)) for out, own in pairs]
    return {
        **compiled.facts,
        "error_to_eager": [error for error, _ in errors],
        "allowed_error_to_eager": [allowed for _, allowed in errors],
        "agrees": all(error <= allowed for error, allowed in errors),
    }


def _show_check(console: Console, facts: dict[str, Any]) -> None:
    error = max(facts["error_to_eager"], default=0.0)
    verdict = "agrees with" if facts["agrees"] else "DIFFERS FROM"
    console.print(
        "There is no GPU here: the times above come from a recorded profile and from estimates.\n"
        f"Run here on the CPU in {facts['dtype']}, the optimised model {verdict} eager "
        f"(relative error {error:.1e}); measured {screen.milliseconds(facts['latency_ms'])} ms, "
        f"eager {screen.milliseconds(facts['baselines'].get('eager'))} ms, on {facts['device']}."
    )


def _disagreement(facts: dict[str, Any]) -> NumericsError:
    return NumericsError(
        "the optimised model differs from eager on the CPU",
        f"relative errors {facts['error_to_eager']} where {facts['allowed_error_to_eager']} "
        "are allowed",
        "set ANABRANCH_CHECK=2 to find the pass that did it, and report the model",
    )


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
