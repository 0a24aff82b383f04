"""Kernels that fail where it does no harm: the process they run in first is not this one."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from tests.kernels.triton.samples import SAMPLES
from tests.tuning.sandbox.forked import Forked

from anabranch.cache import Cache
from anabranch.deadline import ENDLESS, TIME, Deadline
from anabranch.errors import TargetError
from anabranch.ir import codec
from anabranch.ir.graph import Graph, Node
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.refused import Refused
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph, parse_node
from anabranch.ir.variant import parse_variant
from anabranch.kernels.triton import Program, codegen
from anabranch.targets.cpu.target import CpuTarget
from anabranch.targets.cuda.compile_pool import Process
from anabranch.trace import Event as TraceEvent
from anabranch.trace import Trace
from anabranch.tuning.halving import FINALISTS
from anabranch.tuning.sandbox import client as sandbox_client
from anabranch.tuning.sandbox import process as sandbox_process
from anabranch.tuning.sandbox import worker as sandbox_worker
from anabranch.tuning.sandbox.client import NO_TIME, SandboxClient, compile_ahead
from anabranch.tuning.sandbox.process import START, SandboxProcess, _widen
from anabranch.tuning.sandbox.worker import BATCHES, SandboxBatch
from anabranch.tuning.verdict import Verdict

pytestmark = pytest.mark.xdist_group("sandbox process")  # most share one

BODY = """\
graph add {
  input %x: f32[100]
  const %w: f32[100] = 00
  %out: f32[100] = aten.add.Tensor(%x, %w)
  return %out
}
"""
# What the other process runs: a provider whose kernels do what their variant says.
DEEDS = (
    START
    + """
import os, time
from anabranch.targets.cpu import target as cpu
from anabranch.targets.loading import run_aten

def deed(task, values, workspace):
    right, variant = run_aten(task, values, workspace), task.kernel.variant
    def call():
        right()
        if variant == "dies":
            os.kill(os.getpid(), 11)
        if variant == "hangs":
            time.sleep(60)
        if variant == "raises":
            raise RuntimeError("no such luck")
        if variant == "strays":
            out = values["out"]
            out.as_strided((1,), (1,), out.storage_offset() + 100).zero_()
        if variant == "errs":
            values["out"][99] += 1
    return call

cpu.RUNNERS["deeds"] = deed
"""
)


def task(variant: str, source: str = "text") -> Task:
    body = parse_graph(BODY)
    kernel = Kernel("deeds", "add", body, variant, writes_out=True, source=source)
    return Task("add", body, kernel)


@pytest.fixture
def trace() -> Trace:
    return Trace()


@contextmanager
def sandboxing(
    trace: Trace,
    start: str = DEEDS,
    cache: Cache | None = None,
    target: Target | None = None,
    until: Deadline = ENDLESS,
) -> Iterator[SandboxClient]:
    """With a process that begins with `start`."""
    target = target or CpuTarget()
    with (
        SandboxProcess(target, cache, start) as sandbox,
        SandboxClient(target, cache, trace, sandbox, until) as made,
    ):
        yield made


@pytest.fixture(scope="module", autouse=True)
def _processes_are_forked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        pipes = {"PIPE": subprocess.PIPE, "DEVNULL": subprocess.DEVNULL}
        patch.setattr(sandbox_process, "subprocess", SimpleNamespace(Popen=Forked, **pipes))
        yield


@pytest.fixture(scope="module")
def process(_processes_are_forked: None) -> Iterator[SandboxProcess]:
    """One for all tests that only have kernels run in it."""
    with SandboxProcess(CpuTarget(), None, DEEDS) as started:
        yield started


@pytest.fixture
def sandboxed(trace: Trace, process: SandboxProcess) -> Iterator[SandboxClient]:
    with SandboxClient(process._target, None, trace, process) as made:
        yield made


def test_the_library_is_prepared_once_while_kernels_are_tried(
    trace: Trace, process: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After they were sent, whatever becomes of the process, and not where all is known."""
    monkeypatch.setattr(sandbox_client, "_speaks", lambda process: False)  # it takes its time
    target, prepared = CpuTarget(), list[list[str]]()

    def prepare(kernels: Sequence[Kernel], *_: object) -> None:
        prepared.append([kernel.name for kernel in kernels])

    target.prepare = prepare  # type: ignore[method-assign, assignment]
    ours = [task("fine"), task("dies")]
    body = ours[0].body
    library = replace(ours[0], kernel=Kernel("aten", "add", body, writes_out=True))
    with SandboxClient(target, None, trace, process) as sandboxed:
        trial = sandboxed.before(lambda tasks: [Cost(1.0, "measured")] * len(tasks))
        for _ in range(2):
            costs = trial([ours[0], library, ours[1]])
            assert costs[0] and costs[1] and costs[2] is None
            assert prepared == [["add"]]


def test_each_failure_costs_one_kernel(sandboxed: SandboxClient, trace: Trace) -> None:
    variants = ("fine", "dies", "also fine", "raises", "strays", "still fine", "errs")
    bad = sandboxed.refusals([task(variant) for variant in variants])
    wrong = bad.pop(6)
    assert re.fullmatch(r"error.* where \S+ is allowed, .*of numbers of seed \d+", str(wrong))
    assert {i: str(why) for i, why in bad.items()} == {
        1: "the process that ran it first died with exit status -11",
        3: "RuntimeError: no such luck",
        4: "4 bytes are written outside all places, 1 B beside %out",
    }
    bad[6] = wrong
    assert [event.why for event in trace.events if event.kind == "refused"] == list(
        map(str, bad.values())
    )


def test_the_next_process_begins_where_one_died(
    sandboxed: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died of what another kernel did before: blamed is what dies alone."""
    asked: list[list[str]] = []
    ask = sandboxed._answers

    def noted(
        tasks: Mapping[str, Task], step: Callable[[], bool]
    ) -> Iterator[tuple[str, Verdict | None]]:
        asked.append([str(task.kernel.variant) for task in tasks.values() if task.kernel])
        return ask(tasks, step)

    monkeypatch.setattr(sandboxed, "_answers", noted)
    bad = sandboxed.refusals([task(variant) for variant in ("a", "b", "dies", "c")])
    assert list(bad) == [2]
    assert asked == [["a", "b", "dies", "c"], ["dies", "c"], ["c"]]


def test_what_was_written_here_is_not_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, text = SAMPLES["pointwise"]
    body, variant = parse_graph(text), parse_variant(sample)
    kernel = Kernel("triton", "k", body, variant, True, source=codegen.program(body, variant).text)
    learned: dict[tuple[Graph, str], Program] = {}
    monkeypatch.setattr(codegen, "LEARNED", learned)
    assert told_and_read(Task("sum", body, kernel)) == Task("sum", body, kernel)
    assert list(learned.values()) == [codegen.unnamed(body, variant)]


def test_what_answers_no_more_is_given_up(
    sandboxed: SandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_client, "TIME", replace(TIME, kernel_run_limit_s=2.0))
    bad = sandboxed.refusals([task("hangs"), task("fine")])
    assert bad == {0: Refused("the process that ran it first died with exit status -9")}


STUCK = f"{START}\nimport time; time.sleep(600)"
"""It lives, and neither reads nor answers."""
MUCH = 400
"""Kernels of which a pipe does not hold the request."""


@pytest.mark.parametrize("count", [1, MUCH])
def test_what_never_answers_is_given_up(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Before the first kernel there is none to blame: all are left out, this time."""
    monkeypatch.setattr(sandbox_client, "TIME", replace(TIME, sandbox_silence_s=1.0))
    with sandboxing(trace, STUCK) as sandboxed:
        bad = sandboxed.refusals([task(f"fine {i}") for i in range(count)])
        assert len(bad) == count and all(
            "no process could be started" in str(w) for w in bad.values()
        )
        (process,) = _held(sandboxed._sandbox)
        assert process.poll() is not None and not sandboxed.settled


@pytest.mark.parametrize("count", [1, MUCH])
def test_what_never_compiles_is_given_up(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(sandbox_client, "TIME", replace(TIME, sandbox_silence_s=1.0))
    kernels = [one.kernel for one in (task(f"{i}") for i in range(count)) if one.kernel]
    with SandboxProcess(CpuTarget(), None, STUCK) as sandbox:
        sandbox.start()
        compile_ahead(kernels, sandbox)
        assert not _held(sandbox)


SLOWLY = """
def ready(self, kernels, cache=None, in_turn=False):
    for i in range(len(kernels)):
        time.sleep(0.6)
        yield [i]

cpu.CpuTarget.ready = ready
"""


def test_what_answers_again_and_again_is_not_stuck(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than any of them may. In a new interpreter, as users have it."""
    monkeypatch.setattr(sandbox_process, "subprocess", subprocess)
    tasks = [task(f"fine {i}") for i in range(5)]
    with SandboxProcess(CpuTarget(), None, DEEDS + SLOWLY) as sandbox:
        with SandboxClient(sandbox._target, None, trace, sandbox) as sandboxed:
            assert sandboxed.refusals(tasks[:1]) == {}  # it has started
        monkeypatch.setattr(sandbox_client, "TIME", replace(TIME, sandbox_silence_s=2.0))
        compile_ahead([one.kernel for one in tasks if one.kernel], sandbox)
        (process,) = _held(sandbox)
        assert process.poll() is None


def test_only_what_passed_is_tried(sandboxed: SandboxClient) -> None:
    tried: list[str] = []

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        tried.extend(str(t.kernel.variant) for t in tasks if t.kernel)
        return [Cost(float(len(tried)), "measured") for _ in tasks]

    costs = sandboxed.before(trial)([task("fine"), task("raises"), task("dies", source="")])
    assert tried == ["fine", "dies"]  # what has no source is a library's, and not tried
    assert [cost is None for cost in costs] == [False, True, False]


def test_what_no_time_is_left_for_is_left_out_this_time(trace: Trace, tmp_path: Path) -> None:
    """Somebody wants an end once the first has been tried: the others wait for another day."""
    stop = Event()

    def heard(event: TraceEvent) -> None:
        if event.kind == "progress":
            stop.set()

    tasks, until = [task("fine"), task("also fine"), task("dies")], Deadline(stop=stop)
    with Cache.open(tmp_path) as cache:
        with sandboxing(Trace(heard), cache=cache, until=until) as first:
            assert first.refusals(tasks) == {1: NO_TIME, 2: NO_TIME} and not first.settled
            assert first._sandbox.process is None
        with sandboxing(trace, cache=cache, until=until) as over:
            over.start()
            assert over.refusals(tasks) == {1: NO_TIME, 2: NO_TIME}
            assert over._sandbox.process is None
        with sandboxing(trace, cache=cache) as another_day:
            assert list(another_day.refusals(tasks)) == [2] and another_day.settled


def test_one_process_serves_many_tuners(trace: Trace) -> None:
    """It may be started ahead, outlives a client that does not own it, and a kernel that kills it
    costs the others nothing."""
    target = CpuTarget()
    with SandboxProcess(target, None, DEEDS) as sandbox:
        with SandboxClient(target, None, trace, sandbox) as one:
            one.start()
            first = sandbox.process
            assert first is not None
            assert one.refusals([task("fine")]) == {}
        assert sandbox.process is first and first.poll() is None
        with SandboxClient(target, None, trace, sandbox) as other:
            assert list(other.refusals([task("a"), task("dies"), task("b")])) == [1]
        second = sandbox.process
        assert second is not None and second is not first and second.poll() is None
    assert first.poll() is not None and second.poll() is not None
    assert sandbox.process is None


def test_answers_that_nobody_heard_are_not_those_of_the_next(
    trace: Trace, process: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is interrupted while kernels are tried leaves no verdicts behind for other kernels."""
    monkeypatch.setattr(sandbox_client, "_speaks", lambda process: False)  # it takes its time

    def interrupted() -> bool:
        raise TargetError("no engine", "none was built", "ask for another")

    target = CpuTarget()
    with SandboxClient(target, None, trace, process) as one, pytest.raises(TargetError):
        one.verdicts([task("fine")], interrupted)
    with SandboxClient(target, None, trace, process) as other:
        assert list(other.refusals([task("raises")])) == [0]


def test_answers_to_a_thousand_kernels_wait_for_a_reader() -> None:
    """Engines are built for half a minute before anybody reads them."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        pytest.skip("pipes of this system have one size")
    told, answers = b"x" * 200 + b"\n", 1000
    script = f"import sys\nfor _ in range({answers}): sys.stdout.write('x' * 200 + '\\n')"
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        _widen(process)
        assert process.wait(20) == 0  # it ends, though nobody has read
        assert process.stdout is not None and process.stdout.read() == told * answers


def test_who_waits_in_another_thread_is_interrupted() -> None:
    with SandboxProcess(CpuTarget(), None, f"{START}\nimport time; time.sleep(60)") as sandbox:
        sandbox.start()
        waiting = Thread(target=compile_ahead, args=([task("a").kernel], sandbox), daemon=True)
        waiting.start()
        sandbox.interrupt()
        waiting.join(10)
        assert not waiting.is_alive() and not _held(sandbox)


def test_kernels_are_compiled_where_compilers_are(trace: Trace) -> None:
    """And not run, dangerous as they may be; the process goes on. One that has died is no loss."""
    kernels = [one.kernel for one in map(task, ("dies", "hangs", "fine")) if one.kernel]
    target = CpuTarget()
    with SandboxProcess(target, None, DEEDS) as sandbox:
        compile_ahead(kernels, sandbox)
        assert not _held(sandbox)  # nobody starts one for this
        sandbox.start()
        compile_ahead(kernels, sandbox)
        (process,) = _held(sandbox)
        assert process.poll() is None
        with SandboxClient(target, None, trace, sandbox) as sandboxed:
            assert sandboxed.refusals([task("fine")]) == {}
        assert _held(sandbox) == [process]
        process.kill()
        compile_ahead(kernels, sandbox)
        assert not _held(sandbox)


def _held(sandbox: SandboxProcess) -> list[Process]:
    return [sandbox.process] if sandbox.process is not None else []


def test_bodies_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all kernels of a task the body is the same; what was read is equal to what was written."""
    read: list[str] = []

    def noted(text: str) -> Node:
        read.append(text)
        return parse_node(text)

    monkeypatch.setattr(codec, "parse_node", noted)
    codec._parsed_node.cache_clear()
    tasks = [task(f"v{i}") for i in range(5)]
    assert list(map(told_and_read, tasks)) == tasks
    assert len(read) == 1


def told_and_read(task: Task) -> Task:
    """The task as the process has it."""
    asked = BATCHES.write(SandboxBatch((sandbox_worker.written(task),), True), None)
    assert b"\n" not in asked
    (told,) = BATCHES.read(asked, None).tasks
    return sandbox_worker.read(told)


def test_what_dies_before_it_is_asked_is_started_again(trace: Trace) -> None:
    with sandboxing(trace, "raise SystemExit(1)") as never:
        never.start()
        assert never._sandbox.process is not None
        never._sandbox.process.wait()
        (why,) = never.refusals([task("fine")]).values()
        assert "no process could be started" in str(why) and not never.settled


def test_nothing_runs_twice(trace: Trace, tmp_path: Path) -> None:
    tasks = [task("fine"), task("raises")]
    with Cache.open(tmp_path) as cache, sandboxing(trace, DEEDS, cache) as first:
        found = first.refusals(tasks)
    assert list(found) == [1]
    never = "raise SystemExit(1)"
    with Cache.open(tmp_path) as cache, sandboxing(trace, never, cache) as again:
        assert again.refusals(tasks) == found
        assert again._sandbox.process is None
        (why,) = again.refusals([task("new")]).values()
        assert "no process could be started" in str(why) and "exit status 1" in str(why)
    with Cache.open(tmp_path) as cache, sandboxing(trace, DEEDS, cache) as third:
        assert third.refusals([task("new")]) == {}


def test_what_passed_has_a_rough_time(sandboxed: SandboxClient, tmp_path: Path) -> None:
    found = sandboxed.verdicts([task("fine"), task("raises"), task("a library's", source="")])
    assert sorted(found) == [0, 1]
    assert found[0].reached == "right" and found[0].refused is None
    assert found[0].cost is not None and 0 < found[0].cost.us < 1e5
    assert found[1].reached == "tried" and found[1].refused and found[1].cost is None


def test_only_what_may_win_is_timed_in_earnest(sandboxed: SandboxClient) -> None:
    tried: list[int] = []

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        tried.append(len(tasks))
        return [Cost(1e6, "measured") for _ in tasks]

    names = [*(f"fine {i}" for i in range(FINALISTS + 2)), "raises"]
    costs = sandboxed.before(trial)([task(name) for name in names])
    (few,) = tried
    assert 2 <= few <= FINALISTS
    assert [cost is None for cost in costs] == [False] * (FINALISTS + 2) + [True]
    assert all(cost.us == 1e6 for cost in costs if cost is not None)  # none beats a finalist
