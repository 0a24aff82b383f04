"""anabranch explain FILE|MODEL: why the plan is what it is.

A MODEL is compiled and tells its history: what was rewritten, fused and chosen, what was refused,
and why; of the search each round with its steps, and the graph before and after side by side: all
of both with --all. A FILE, as `compile -o` writes it, holds the plan without the history: it shows
machine, numbers, schedule and kernels, on any machine, and runs nothing. With --task NAME both show
one task alone: its body, the lines of the model it comes from, its kernel with its source, and of a
MODEL all kernels that were tried for it, with times and limits, and why each of the others lost.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.artifact import file as artifact_file
from anabranch.cli import flags, screen
from anabranch.cli.compile import compiled_for
from anabranch.errors import OptionError
from anabranch.ir.plan import Plan, text_plan
from anabranch.ir.schedule import text_schedule
from anabranch.ir.text import text_kernel
from anabranch.models.load import FORMS
from anabranch.models.onnx_file import is_onnx_name
from anabranch.report.forecast import forecast_text
from anabranch.report.kernel import kernel_facts, kernel_text
from anabranch.report.lines import wrapped


def run(
    model: Annotated[
        str,
        typer.Argument(
            help=f"A plan that `compile -o` saved, or {FORMS}.",
            show_default=False,
            metavar="FILE|MODEL",
        ),
    ],
    batch: flags.BatchOption = None,
    dtype: flags.Dtype = None,
    target: flags.TargetOption = "auto",
    system: flags.SystemOption = "anabranch",
    scheduler: flags.SchedulerOption = None,
    search: flags.SearchOption = None,
    effort: flags.EffortOption = None,
    budget: flags.BudgetOption = None,
    settings: flags.OptionFields = None,
    task: Annotated[
        str | None,
        typer.Option(help="One task, as the list of kernels names it: all that is known of it."),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Every step of the search, and all nodes before and after it."),
    ] = False,
    operators: Annotated[
        list[str] | None,
        typer.Option(
            "--operator", help="An operator of a library that a saved plan may call: ns::name."
        ),
    ] = None,
    json: flags.Json = None,
    seed: flags.Seed = 0,
    trust: flags.Trust = False,
) -> None:
    """Say what was rewritten, fused and chosen, what was refused, and why."""
    flags.check_dtype(dtype)
    console = screen.console(json)
    if Path(model).is_file() and not (model.endswith(".pt2") or is_onnx_name(model)):
        plan, facts = artifact_file.load(model, operators=operators or ())
        if task is not None:
            _show_task(model, kernel_facts(plan, task, None), json)
            return
        text = "\n".join(_saved(plan, facts))
        console.print(text)
        screen.write_json(json, {"name": model, "facts": facts, "events": [], "text": text})
        return
    if model.endswith(".anabranch"):
        raise OptionError(f"there is no file {model}", "a saved plan is a file", "check the path")
    options = flags.compile_options(
        settings,
        system=system,
        scheduler=scheduler,
        search=search,
        effort=effort,
        budget=budget,
        seed=seed,
        tf32=dtype == "tf32",
    )
    compiled, _, _ = compiled_for(target, model, batch, dtype, seed, trust, options)
    if task is not None:
        _show_task(model, compiled.about(task), json)
        return
    text = str(compiled.explain(whole=whole, width=screen.text_width(console)))
    console.print(text)
    events = [{**asdict(event), "data": dict(event.data)} for event in compiled.trace.events]
    screen.write_json(
        json,
        {
            "name": model,
            "facts": compiled.facts,
            "searched": compiled.search_rounds(),
            "events": events,
            "text": text,
        },
    )


def _show_task(model: str, facts: dict[str, Any], json: str | None) -> None:
    text = kernel_text(facts)
    screen.console(json).print(text)
    screen.write_json(json, {"name": model, "task": facts, "text": text})


def _saved(plan: Plan, facts: dict[str, Any]) -> list[str]:
    spec, versions = plan.spec, ", ".join(f"{name} {v}" for name, v in plan.spec.versions)
    simulated = " (simulated)" if spec.simulated else ""
    lines = [f"{plan.tasks.name}: a plan for {spec.name}{simulated}, made with {versions}"]
    taken = facts.get("latency_ms")
    if isinstance(taken, int | float):  # the file is anybody's
        ms = screen.milliseconds(float(taken))
        lines.append(f"{ms} ms {facts.get('latency_source', '')} when it was made")
    lines += wrapped(forecast_text(facts), "") if forecast_text(facts) else []
    slots = [line for line in text_plan(plan).splitlines() if not line.endswith(" constant")]
    lines += ["", *slots, "", text_schedule(plan.schedule).strip(), "", "kernels"]
    for task in plan.tasks.tasks:
        kernel = text_kernel(task.kernel) if task.kernel else "none"
        origin = f"   {task.origin}" if task.origin else ""
        lines.append(f"  {task.name:<28} {kernel}{origin}")
    return lines
