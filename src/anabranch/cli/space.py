"""anabranch space MODEL | --dag FILE: how many schedules there are to choose from.

The columns are those of Table 1 of IOS (MLSys 2021). Counts, for a MODEL, each block that can be
scheduled apart and has more than one of IOS's operators (`schedule.ios.operators`), or of our
tasks; a dag from a file is one block, as it stands:

    operators  width  bound  states  transitions  schedules
            6      3    216      12           51        131

`--exact` (`exact.py`) compares schedulers with the optimum of each block instead.
`--solve` also runs IOS's dynamic programme on each block with estimated times, and says how long
that takes: unpruned it looks at every transition, with pruning at those that a bound leaves over
(`schedule.ios.best_first`), as the column looked_at says. Where an exact count is too much, IOS's
own pruning is counted, and the screen says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.bench.machine import machine
from anabranch.bench.provenance import provenance, versions
from anabranch.cache import Cache
from anabranch.cli import exact, flags, screen
from anabranch.cli.dag_file import read_dag
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import Roofline
from anabranch.deadline import Deadline
from anabranch.errors import OptionError
from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Limits
from anabranch.ir.task import Task
from anabranch.models.load import load_model
from anabranch.options import Options
from anabranch.schedule.blocks import blocks
from anabranch.schedule.ios.best_first import solve_bounded
from anabranch.schedule.ios.dynamic_programme import OutOfTime, Solution, solve
from anabranch.schedule.ios.lower_bound import Loads, stage_bound
from anabranch.schedule.ios.operators import operators
from anabranch.schedule.ios.schedule_space import space
from anabranch.schedule.ios.scheduler import TRANSITIONS
from anabranch.schedule.ios.solve_block import GROUP_SIZE, GROUPS, Subproblem, solve_block
from anabranch.schedule.ios.stage_cost import stage_estimate
from anabranch.schedule.task_weights import share
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

COLUMNS = ("operators", "width", "bound", "states", "transitions", "schedules")
SOLVED = ("looked_at", "stages", "us", "seconds")
UNITS = ("ios", "tasks")
UNKNOWN_US, UNKNOWN_SHARE = 1.0, 0.125
"""What --solve takes a node of a dag file to be."""

Row = dict[str, int | float | None]


@dataclass(frozen=True, slots=True)
class SpaceBlock:
    """The nodes that are counted, and for --solve each node's microseconds and share of the
    machine."""

    dag: Dag
    us: tuple[float, ...]
    shares: tuple[float, ...]


def run(
    model: Annotated[str | None, typer.Argument(help="A model, as for compile.")] = None,
    dag: Annotated[
        Path | None, typer.Option(help='{"nodes": n, "edges": [[u, v], ...]}', metavar="FILE")
    ] = None,
    units: Annotated[
        str, typer.Option("--operators", help="ios: as IOS's paper counts; tasks: our launches.")
    ] = "ios",
    max_group_size: Annotated[
        int | None, typer.Option(help="Count groups of at most r operators.")
    ] = None,
    max_groups: Annotated[
        int | None, typer.Option(help="Count stages of at most s groups.")
    ] = None,
    solved: Annotated[
        bool, typer.Option("--solve", help="Also find the best stages, by estimated times.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option(help="Seconds that --solve may take, of all blocks together.")
    ] = None,
    batch: flags.BatchOption = None,
    target: Annotated[
        str, typer.Option(help="Whose tasks: sim:h200, sim:FILE.json, cuda, cpu or auto.")
    ] = "sim:h200",
    dtype: flags.Dtype = None,
    optimal: Annotated[
        bool, typer.Option("--exact", help="Schedulers against the proven optimum of each block.")
    ] = False,
    schedulers: Annotated[
        str, typer.Option(help="With --exact: all, or some.")
    ] = "sequential,nimble,opara,ios,critical,local",
    json: flags.Json = None,
    trust: flags.Trust = False,
) -> None:
    """Count the schedules of each block of MODEL, or of a dag."""
    flags.check_dtype(dtype)
    if optimal:
        exact.run(model, batch, dtype, target, trust, schedulers, json)
        return
    _check(model, dag, units, {"--max-group-size": max_group_size, "--max-groups": max_groups})
    _check_budget(budget, solved)
    spec = resolve(target).spec
    if dag is not None:
        whole = read_dag(dag)
        n = len(whole.names)
        space_blocks = [SpaceBlock(whole, (UNKNOWN_US,) * n, (UNKNOWN_SHARE,) * n)]
    else:
        assert model is not None
        space_blocks = _blocks(model, units, batch, target, trust)
    row_of: dict[tuple[object, ...], Row] = {}
    rows: list[Row] = []
    until = Deadline.after(budget)
    with ProgressDisplay("counting", "space") as watch:
        trace = Trace(watch)
        for done, block in enumerate(space_blocks):
            trace.progress("space", done, len(space_blocks))
            key = (block.dag.preds, block.us, block.shares)  # networks repeat their blocks
            if key not in row_of:
                row_of[key] = _count(block, max_group_size, max_groups)
                if solved:
                    limits = Limits(
                        max_group_size=max_group_size,
                        max_groups=max_groups,
                        deadline=until,
                        spec=spec,
                    )
                    row_of[key] |= _solve(block, row_of[key], limits)
            rows.append(row_of[key])
    _show(json, rows, COLUMNS + SOLVED if solved else COLUMNS)
    content: dict[str, Any] = {"blocks": rows}
    if solved:
        content |= {"seconds": sum(float(row["seconds"] or 0) for row in row_of.values())}
        content |= {"different": len(row_of), "estimates": spec.name, **provenance()}
        content |= {"versions": versions(), "machine": machine("cpu").survey()}
        done = sum(row["us"] is not None for row in row_of.values())
        said = f"{done} of {len(row_of)} different blocks solved in {content['seconds']:.2f} s"
        screen.console(json).print(f"{said} on one core")
    screen.write_json(json, content)


def _check(
    model: str | None, dag: Path | None, units: str, limits: Mapping[str, int | None]
) -> None:
    if (model is None) == (dag is None):
        raise OptionError(
            "space needs either MODEL or --dag FILE",
            "both were given" if model else "neither was given",
            "for example anabranch space zoo:inception_v3",
        )
    if units not in UNITS:
        raise OptionError(
            f"--operators cannot be {units!r}",
            "blocks are counted in IOS's operators or in tasks",
            f"choose one of: {', '.join(UNITS)}",
        )
    for flag, value in limits.items():
        if value is not None and value < 1:
            raise OptionError(
                f"{flag} cannot be {value}",
                "a stage has at least one group, and a group one operator",
                f"give 1 or more; IOS prunes with r {GROUP_SIZE}, s {GROUPS}",
            )


def _check_budget(budget: float | None, solved: bool) -> None:
    if budget is not None and not (solved and budget > 0):
        raise OptionError(
            f"--budget {budget:g} limits nothing here" if not solved else f"--budget is {budget:g}",
            "it is what --solve may take, in seconds, and those are more than 0",
            "give --solve --budget 60, or neither",
        )


def _blocks(
    model: str, units: str, batch: int | None, target: str, trust: bool
) -> list[SpaceBlock]:
    """The blocks of more than one node, in order, as the scheduler ios cuts them."""
    opened = resolve(target)
    device = "cpu" if opened.device.type == "meta" else opened.device
    loaded, args = load_model(model, batch, None, device, trust=trust)
    options = Options.read()
    tasks: Sequence[Task]
    with ProgressDisplay(model) as watch, Cache.open(options.cache_dir) as cache:
        job = Job(loaded, args, {}, opened, options, cache, Trace(watch))
        if units == "ios":
            ios_operators = operators(compile_model(job, stop_after="capture").graph)
            tasks, whole = ios_operators.tasks, ios_operators.dag
        else:
            fused = compile_model(job, stop_after="fusion")
            tasks, whole = fused.tasks, dag_of(fused)
    costs = Roofline(opened.spec)
    us = [costs.task(task).us for task in tasks]
    shares = [share(task, opened.spec) for task in tasks]
    return [
        SpaceBlock(
            whole.restrict(mask),
            tuple(us[v] for v in bits(mask)),
            tuple(shares[v] for v in bits(mask)),
        )
        for mask in blocks(whole, compound=units == "ios")
        if mask.bit_count() > 1
    ]


def _count(block: SpaceBlock, r: int | None, s: int | None) -> Row:
    """The block's row. Pruned as IOS prunes where nobody asked for pruning and the exact count is
    too much; the row then has the limits too."""
    block_space, limits = space(block.dag, r, s), {}
    if block_space.transitions is None:
        said = f"a block of {block_space.nodes} operators, width {block_space.width}, bound"
        said += f" {_number(block_space.bound)}, is too large to count"
        if r is s is None:
            limits = {"max_group_size": GROUP_SIZE, "max_groups": GROUPS}
            block_space = space(block.dag, GROUP_SIZE, GROUPS)
            pruned = f"with groups of at most {GROUP_SIZE}, {GROUPS} a stage"
            counted = block_space.transitions is not None
            said += f" exactly: counted {pruned}" if counted else f", also {pruned}"
        screen.notices().print(said)
    counts = (block_space.states, block_space.transitions, block_space.schedules)
    values = (block_space.nodes, block_space.width, block_space.bound, *counts)
    return {**dict(zip(COLUMNS, values, strict=True)), **limits}


def _solve(block: SpaceBlock, row: Row, limits: Limits) -> Row:
    """The programme's answer under the row's pruning, or what the scheduler ios does where there is
    too much to count. Unpruned it looks at all transitions, as the paper's does; pruned, also by a
    bound. No answer where the deadline passes before."""
    start = time.perf_counter()
    told: tuple[int | float | None, ...] = (None, None, None)
    try:
        solution = _solution(block, row, limits)
        told = solution.transitions, len(solution.stages), solution.us
    except OutOfTime:
        pass
    seconds = time.perf_counter() - start
    return dict(zip(SOLVED, (*told, seconds), strict=True))


def _solution(block: SpaceBlock, row: Row, limits: Limits) -> Solution:
    r, s, until = limits.max_group_size, limits.max_groups, limits.deadline
    if "max_groups" in row:
        r, s = GROUP_SIZE, GROUPS
    loads = block.us, block.shares, limits.spec.fork_us
    cost = stage_estimate(*loads)
    if row["transitions"] is None:
        limits = replace(limits, max_group_size=r, max_groups=s)
        subproblem = Subproblem(block.dag, cost, loads=Loads.of(*loads))
        solution = solve_block(subproblem, limits, TRANSITIONS)
        for event in limits.trace.events:
            if event.kind == "fallback":
                screen.notices().print(f"{event.what}: {event.why}")
        return solution
    if r is s is None:
        return solve(block.dag, cost, until=until)
    bound = stage_bound(block.dag, Loads.of(*loads), r)
    return solve_bounded(block.dag, cost, bound, r, s, until=until)


def _show(json: str | None, rows: list[Row], columns: tuple[str, ...]) -> None:
    cells = [[_cell(column, row[column]) for column in columns] for row in rows]
    numbered = [[str(i), *row] for i, row in enumerate(cells)]
    screen.console(json).print(screen.table(("block", *columns), numbered))


def _cell(column: str, value: int | float | None) -> str:
    """A number that is missing was too much to count, or not solved within the budget."""
    if value is None:
        return "out of time" if column in SOLVED else "too many"
    return _number(value)


def _number(value: int | float) -> str:
    """Whole up to 24 digits, which is all of Table 1."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if value < 10**24 else f"{Decimal(value):.2e}"
