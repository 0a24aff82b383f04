"""Kernels over workers: the verdicts of one sandbox, by its clock, whatever becomes of workers.

Each worker's clock goes at a rate of its own; kernels take what their variant says.
"""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kernels.triton.samples import SAMPLES
from tests.tuning.sandbox.forked import Forked
from tests.tuning.sandbox.test_client import DEEDS

from anabranch.cache import Cache
from anabranch.costs.measured import Measured
from anabranch.deadline import ENDLESS
from anabranch.ir.protocols import Cost, Executable
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import PdlMode, parse_variant
from anabranch.kernels.triton import codegen
from anabranch.memory import pack
from anabranch.targets.cpu.target import RUNNERS, CpuTarget
from anabranch.targets.loading import run_aten
from anabranch.trace import Trace
from anabranch.tuning.launch.pdl import USUAL, in_mode
from anabranch.tuning.sandbox import early_times, spread
from anabranch.tuning.sandbox import process as sandbox_process
from anabranch.tuning.sandbox.client import SandboxClient
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.sandbox.spread import SpreadTrials, _PartialAnswer, packed
from anabranch.tuning.verdict import Verdict
from anabranch.tuning.workers.identity import Identity, identity_of
from anabranch.tuning.workers.job import WorkerJob, WorkerPlace
from anabranch.tuning.workers.local import LocalCrew
from anabranch.tuning.workers.pool import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")
MINE = identity_of(CpuTarget().spec)
CLOCKS = (
    DEEDS
    + """
import multiprocessing, pathlib
from anabranch.ir.protocols import Cost

RATES = {"worker 0": 2.0, "worker 1": 3.0, "worker 2": 0.5}
PAUSE = 0.0
rate = RATES.get(multiprocessing.current_process().name, 1.0)
ran = []

def noted(task, values, workspace):
    variant = task.kernel.variant
    ran.append(variant)
    call = deed(task, values, workspace)
    time.sleep(PAUSE)
    if variant.startswith("kills"):
        mark = pathlib.Path(variant.partition(" ")[2])
        if rate != 1.0 and not mark.exists():
            mark.touch()
            os.kill(os.getppid(), 9)
            os._exit(1)
    return call

def timed(self, runs, seconds):
    words = ran[-1].split()
    us = float(words[1]) if words[0] == "takes" else 1.0
    return [Cost(us * rate, "measured", 0.1 * rate) for run in runs]

cpu.RUNNERS["deeds"] = noted
cpu.CpuTarget.time = timed
"""
)


BODY = """\
graph add {
  input %x: f32[WIDTH]
  %out: f32[WIDTH] = aten.relu.default(%x)
  return %out
}
"""


def task(variant: str, width: int) -> Task:
    body = parse_graph(BODY.replace("WIDTH", str(width)))
    return Task("add", body, Kernel("deeds", "add", body, variant, writes_out=True, source="text"))


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = {"PIPE": subprocess.PIPE, "DEVNULL": subprocess.DEVNULL}
    monkeypatch.setattr(sandbox_process, "subprocess", SimpleNamespace(Popen=Forked, **pipes))
    monkeypatch.setattr(spread, "SandboxProcess", partial(SandboxProcess, start=CLOCKS))
    monkeypatch.setattr(spread, "JOB_KERNELS", 4)
    monkeypatch.setattr(SpreadTrials, "least", 4)


def verdicts(
    tasks: list[Task], pool: WorkerPool | None, trace: Trace, cache: Cache | None = None
) -> dict[int, Verdict]:
    target = CpuTarget()
    others = None if pool is None else SpreadTrials(pool, False)
    with (
        SandboxProcess(target, cache, CLOCKS, others) as sandbox,
        SandboxClient(target, cache, trace, sandbox) as client,
    ):
        return client.verdicts(tasks)


def told(found: dict[int, Verdict]) -> dict[int, tuple[str, float | None, str]]:
    """Without numbers of refusals, which rest on what was drawn."""
    return {
        i: (
            v.reached,
            None if v.cost is None else round(v.cost.us, 6),
            str(v.refused).partition(" where")[0][:20],
        )
        for i, v in found.items()
    }


def forks(count: int, cache: Path | None = None) -> WorkerPool:
    return WorkerPool(LocalCrew("cpu", [""] * count, cache, method="fork"), MINE, cache)


def kernels(mark: Path) -> list[Task]:
    """Of three bodies; one dies wherever it runs, one takes a worker with it once."""
    takes = [task(f"takes {1 + n}", 100 + n % 3) for n in range(12)]
    return [*takes, task("dies", 101), task(f"kills {mark}", 102), task("errs", 100)]


def test_verdicts_are_those_of_one_sandbox_whatever_becomes_of_workers(tmp_path: Path) -> None:
    alone = told(verdicts(kernels(tmp_path / "none"), None, Trace(quiet=True)))
    assert [alone[n] for n in range(12)] == [("right", 1.0 + n, "None") for n in range(12)]
    assert alone[12][2] == "the process that ran" and alone[14][0] == "ran"
    for count in (1, 2, 8):
        mark, trace = tmp_path / f"mark {count}", Trace(quiet=True)
        with forks(count) as pool:
            together = told(verdicts(kernels(mark), pool, trace))
        assert together == alone
        if mark.exists():  # the caller's own sandbox did not come to it first
            died = [e.what for e in trace.events if e.kind == "warning" and " died of " in e.what]
            assert len(died) == 1


def test_candidates_of_one_body_are_one_workers() -> None:
    tasks = {f"{n:02}": task(f"takes {n}", 100 + n % 4) for n in range(16)}
    packs = packed(tasks, 2, 4)
    assert [sorted({int(key) % 4 for key in pack}) for pack in packs] == [[0, 1], [2], [3]]
    assert sorted(key for pack in packs for key in pack) == sorted(tasks)
    assert packed(dict(reversed(tasks.items())), 2, 4) == packs


def test_jobs_get_smaller_as_less_is_left() -> None:
    """Four tenths of what is left for two workers, never less than is worth a job."""
    tasks = {f"{n:03}": task(f"takes {n}", 100 + n) for n in range(64)}
    packs = packed(tasks, 2, 4)
    assert [len(pack) for pack in packs] == [26, 16, 9, 6, 4, 3]
    assert sorted(key for pack in packs for key in pack) == sorted(tasks)
    assert len(packed(tasks, 1, 4)[0]) == 52


def test_bodies_that_take_longest_to_compile_are_begun_first() -> None:
    """One kernel with large tiles is enough."""
    tasks = {f"{n}": task(f"takes {n}", 100 + n // 2) for n in range(8)}
    large = tasks["5"].kernel
    assert large is not None
    tasks["5"] = replace(tasks["5"], kernel=replace(large, source="tl.arange(0, 64)"))
    assert packed(tasks, 1, 4)[0][:2] == ["4", "5"]


def test_whole_bodies_are_told_before_a_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the references, by whose times the others are scaled."""
    monkeypatch.setattr(spread, "TOLD_KERNELS", 2)
    keys, told = [f"{n}" for n in range(8)], list[dict[int, Verdict]]()
    tasks = [*(task(f"takes {n}", 200 + n) for n in range(3)), *(task("a", 100) for _ in range(2))]
    tasks += [task("b", 101) for _ in range(3)]
    answer = _PartialAnswer(tasks, lambda part: told.append(dict(part)))
    answer.keys = keys
    for key in ("3", "5", "0", "1", "4", "2", "6", "7"):
        answer.hear(key, Verdict("right"))
    assert [sorted(part) for part in told] == [[0, 1, 2, 3, 4], [0, 1, 2, 5, 6, 7]]


def test_the_caller_works_in_steps_while_workers_are_at_work() -> None:
    """After the references, and no worker waits for the last of them."""
    tasks = [task(f"takes {1 + n}", 100 + n) for n in range(12)]
    target, trace, steps = CpuTarget(), Trace(quiet=True), list[int]()

    def endless() -> bool:
        steps.append(len(client._verdict_of))
        return True

    with (
        forks(2) as pool,
        SandboxProcess(target, None, CLOCKS, SpreadTrials(pool, False)) as sandbox,
        SandboxClient(target, None, trace, sandbox) as client,
    ):
        found = told(client.verdicts(tasks, endless))
    assert [cost for _, cost, _ in found.values()] == [1.0 + n for n in range(12)]
    assert steps[0] == spread.REFERENCES


def test_bodies_are_timed_precisely_while_others_are_still_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the times of one process; each body at once, when all of its kernels were tried."""
    monkeypatch.setattr(early_times, "TOGETHER", 4)
    tasks = [task(f"takes {1 + n}", 100 + n // 4) for n in range(32)]
    tasks += [replace(t, kernel=replace(t.kernel, source="")) for t in tasks[::4] if t.kernel]
    expected = list[str]()
    for first in range(1, 33, 4):  # the library's kernel, the two fastest, and who is near
        near = [n for n in range(first, first + 4) if n < first + 2 or n <= 1.3 * first]
        expected += [f"takes {n}" for n in (first, *near)]
    tried: list[tuple[int, list[str]]] = []
    heard: list[tuple[str, ...]] = []

    def timed(asked: Sequence[Task], costs: Sequence[Cost | None]) -> None:
        names = tuple(str(t.kernel.variant) for t in asked if t.kernel)
        assert costs[0] == Cost(float(names[0].split()[1]) + 0.5, "measured")
        heard.append(names)

    def costs(pool: WorkerPool | None) -> list[float | None]:
        def trial(asked: Sequence[Task]) -> list[Cost]:
            names = [str(t.kernel.variant) for t in asked if t.kernel]
            tried.append((len(client._verdict_of), names))
            return [Cost(float(name.split()[1]) + 0.5, "measured") for name in names]

        target, others = CpuTarget(), None if pool is None else SpreadTrials(pool, False)
        with (  # whose kernels take long enough that the caller has to wait for them
            SandboxProcess(target, None, CLOCKS + "PAUSE = 0.01", others) as sandbox,
            SandboxClient(target, None, Trace(quiet=True), sandbox) as client,
        ):
            return [
                None if cost is None else cost.us for cost in client.before(trial, timed)(tasks)
            ]

    def checked(answers: list[float | None]) -> list[float | None]:
        """And what was tried on the way, which is forgotten."""
        assert heard and all(len(names) == 5 for names in heard)  # whole bodies
        assert tried[0][0] < 32, "nothing was timed before the last kernel was tried"
        every = [name for _, names in tried for name in names]
        assert sorted(every) == sorted(expected)
        for _, names in tried:  # all finalists of a body, beside its library's kernel
            bodies = {(int(name.split()[1]) - 1) // 4 for name in names}
            assert all(names.count(f"takes {4 * body + 1}") == 2 for body in bodies)
        tried.clear()
        heard.clear()
        return answers

    alone = checked(costs(None))
    with forks(2) as pool:
        assert checked(costs(pool)) == alone


def test_what_is_left_at_the_end_is_timed_precisely_by_workers_by_our_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller times the references, and what a worker could not; a worker tells no time that
    another would have to rescale."""
    here = multiprocessing.current_process().name
    rates = {here: 1.0, "worker 0": 2.0, "worker 1": 3.0}
    timed_here = list[str]()

    def time(self: CpuTarget, runs: Sequence[Executable], seconds: float) -> list[Cost]:
        names = [str(run.plan.tasks.tasks[0].kernel.variant) for run in runs]  # type: ignore[union-attr]
        where = multiprocessing.current_process().name
        if where == here:
            timed_here.extend(names)
        if where == "worker 0" and any(name.startswith("takes 9") for name in names):
            raise RuntimeError("no such luck")
        return [Cost((float(n.split()[1]) + 0.5) * rates[where], "measured", 0.1) for n in names]

    monkeypatch.setattr(CpuTarget, "time", time)
    monkeypatch.setitem(RUNNERS, "deeds", run_aten)
    monkeypatch.setattr(SpreadTrials, "least_timed", 4)
    monkeypatch.setattr(spread, "JOB_FINALISTS", 4)
    monkeypatch.setattr(early_times.EarlyTimes, "_ready", lambda self: [])
    tasks = [task(f"takes {1 + n}", 100 + n // 4) for n in range(32)]

    def costs(pool: WorkerPool | None) -> list[float]:
        target, others = CpuTarget(), None if pool is None else SpreadTrials(pool, False)
        clock = Measured(target, partial(pack, spec=target.spec))
        with (
            SandboxProcess(target, None, CLOCKS, others) as sandbox,
            SandboxClient(target, None, Trace(quiet=True), sandbox) as client,
        ):
            found = client.before(clock.trial, None, clock)(tasks)
        return [round(cost.us, 6) for cost in found if cost is not None]

    alone = costs(None)
    finalists = len(timed_here)
    assert len(alone) == 32 and finalists > 16 and alone[:2] == [1.5, 2.5]
    timed_here.clear()
    with forks(2) as pool:
        assert costs(pool) == alone
    assert timed_here and len(timed_here) < finalists / 2
    timed_here.clear()
    with forks(1) as pool:  # one that cannot time some of them
        assert costs(pool) == alone
    assert {name for name in timed_here if name.startswith("takes 9")}
    timed_here.clear()
    monkeypatch.setattr(SpreadTrials, "compiled", lambda self, trace, until: False)
    with forks(2) as pool:  # which still compile for later
        assert costs(pool) == alone
    assert len(timed_here) == finalists


def test_winners_are_compiled_in_all_modes_of_launch_the_usual_one_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By all workers, each kernel once; what workers write for a mode is what the caller runs."""
    monkeypatch.setattr(SpreadTrials, "least", 1)
    prepared, compiled = list[WorkerJob](), list[Kernel]()
    pool: Any = SimpleNamespace(size=2, prepare=prepared.extend)
    sample, text = SAMPLES["pointwise"]
    body, variant = parse_graph(text), parse_variant(sample)
    source = codegen.program(body, variant).text
    kernels = [Kernel("triton", name, body, variant, source=source) for name in "abc"]
    tasks = [Task("sum", body, kernel) for kernel in kernels]
    others = SpreadTrials(pool, False)
    others.compile(tasks, list(PdlMode))
    others.compile(tasks[:1], list(PdlMode))
    assert [job.args[2] for job in prepared[:2]] == [(USUAL,)] * 2
    kept = {"sandbox": (CpuTarget(), None)}
    monkeypatch.setattr(spread, "compile_ahead", lambda some, _: compiled.extend(some))
    for job in prepared:
        place = WorkerPlace("", "cpu", "", None, ENDLESS, Trace(quiet=True), dict(kept))
        job.call(place, *job.args)
    wanted = [t.kernel for mode in PdlMode for t in in_mode(whole(tasks), mode).tasks if t.kernel]
    assert len(compiled) == len(wanted) == 3 * len(PdlMode)
    assert {(k.name, k.variant, k.source) for k in compiled} == {
        (k.name, k.variant, k.source) for k in wanted
    }


def whole(tasks: Sequence[Task]) -> TaskGraph:
    return TaskGraph("all", (), (), tuple(tasks), (), ())


def test_the_caller_keeps_verdicts_by_its_own_clock(tmp_path: Path) -> None:
    """And not those that a worker has found by its own."""
    tasks = [task(f"takes {1 + n}", 100) for n in range(8)]
    with Cache.open(tmp_path) as cache, forks(2, tmp_path) as pool:
        first = told(verdicts(tasks, pool, Trace(quiet=True), cache))
        known = told(verdicts(tasks, None, Trace(quiet=True), cache))
    assert first == known
    assert [cost for _, cost, _ in known.values()] == [1.0 + n for n in range(8)]


def test_without_workers_that_fit_all_are_tried_here() -> None:
    other = Identity((("torch", "1.0"),), "another")
    trace, crew = Trace(quiet=True), LocalCrew("cpu", [""], claims={0: other}, method="fork")
    tasks = [task(f"takes {1 + n}", 100) for n in range(8)]
    with WorkerPool(crew, MINE) as pool:
        found = told(verdicts(tasks, pool, trace))
    assert [cost for _, cost, _ in found.values()] == [1.0 + n for n in range(8)]
    (warned,) = [e for e in trace.events if "all kernels are tried here" in e.what]
    assert "torch 1.0" in warned.why
