"""Generated kernels run for the first time in a process that may die of it.

A store to a wrong address ends a CUDA context: every later call of the process fails. So before a
generated kernel is measured beside the others, it is tried in a process with a target of its own
(`sandbox.worker`):

    tasks, as JSON --> | as each is compiled: load, run, compare, time | --> which, verdict

Compiling goes on meanwhile, on other cores; so the rough time that is taken there costs nothing,
and says who is worth a precise one (`tuning.halving`). That is taken here, once all candidates of a
body were tried, while those of others still are (`early_times`). A process that dies or answers no
more costs the kernel it was at, if it has run no other; else the next process begins with that one.
What is remembered in the cache is not run again.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from torch import Tensor

from anabranch.cache import Cache, Table
from anabranch.deadline import ENDLESS, TIME, Deadline
from anabranch.errors import WorkerError
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.refused import Refused
from anabranch.ir.samples import delicate
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import text_kernel
from anabranch.targets.cuda.compile_pool import Process
from anabranch.targets.sampled import values_of
from anabranch.trace import Trace
from anabranch.tuning.halving import TrialTimer
from anabranch.tuning.sandbox.body_order import by_body
from anabranch.tuning.sandbox.early_times import BodyTimed, EarlyTimes
from anabranch.tuning.sandbox.process import OtherSandboxes, SandboxProcess, SharedClock
from anabranch.tuning.sandbox.worker import BATCHES, TOLD, SandboxBatch, written
from anabranch.tuning.verdict import Verdict

VERDICTS: Table[Verdict] = Table("kernels", "sandbox 8", TOLD)
Step = Callable[[], bool]
UNASKED = Verdict("right")
"""Of a library's kernel, which is not tried."""
NO_TIME = Refused("no time was left to try it")


class SandboxClient:
    """Puts itself before a trial: what fails there is not tried here. `sandbox`: the process, if
    others use it too; without it there is one of its own, which ends with the block. What was not
    tried when `until` is over is refused, this time. `values`: what tasks read on the example, by
    their text, where somebody else knows it. `heard`: hears of each verdict, by the task's key, as
    it comes."""

    def __init__(
        self,
        target: Target,
        cache: Cache | None,
        trace: Trace,
        sandbox: SandboxProcess | None = None,
        until: Deadline = ENDLESS,
        values: Mapping[str, list[Tensor] | None] | None = None,
        heard: Callable[[str, Verdict], object] | None = None,
    ) -> None:
        self._target, self._cache, self._trace = target, cache, trace
        self._own, self._until, self._contents = sandbox is None, until, values
        self._sandbox = sandbox or SandboxProcess(target, cache)
        self._verdict_of: dict[str, Verdict] = {}
        self._told_of = heard
        self.settled = True
        """False where kernels were refused for no fault of theirs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._sandbox.end()

    def start(self) -> None:
        """Start the process ahead: it takes seconds, in which kernels may be written."""
        if not self._until.over():
            self._sandbox.start()

    def before(
        self,
        trial: TrialTimer,
        timed: BodyTimed | None = None,
        clock: SharedClock | None = None,
    ) -> TrialTimer:
        """The trial, with None for generated kernels that failed in the sandbox, and in earnest
        for those of the others that may be the fastest of their task. `timed`: as `EarlyTimes`;
        `clock`: what the trial reads, where others may time too."""

        def last(tasks: Sequence[Task]) -> Sequence[Cost | None]:
            if clock is not None:
                self._time_elsewhere(tasks, clock)
            return trial(tasks)

        def both(tasks: Sequence[Task]) -> Sequence[Cost | None]:
            keys = {i: self.key(task) for i, task in enumerate(tasks) if _generated(task)}

            def verdict_of(i: int) -> Verdict | None:
                return self._verdict_of.get(keys[i]) if i in keys else UNASKED

            early = EarlyTimes(tasks, trial, self._target, verdict_of, self._trace, timed, last)
            with self._trace.stage("tuning.sandbox"):
                self.verdicts(tasks, early.step)
            return early.rest()

        return both

    def key(self, task: Task) -> str:
        """Names the verdict on a task with its kernel."""
        return VERDICTS.key(self._target.spec.fingerprint, task_text(task))

    def right(self, task: Task) -> bool:
        """Whether the task's kernel ran in the sandbox, and was right there."""
        verdict = self._verdict_of.get(self.key(task))
        return verdict is not None and verdict.reached == "right" and verdict.refused is None

    def refusals(self, tasks: Sequence[Task]) -> dict[int, Refused]:
        """Why tasks must not be run in this process, by their position."""
        verdicts = self.verdicts(tasks)
        return {i: verdict.refused for i, verdict in verdicts.items() if verdict.refused}

    def verdicts(
        self,
        tasks: Sequence[Task],
        step: Step = lambda: False,
    ) -> dict[int, Verdict]:
        """On the generated kernels among these, by position; on a simulated target on none. `step`
        is done while the process or others are at work, if there is work for them: a short piece of
        what can be done with the verdicts that have come, and whether there is another."""
        if self._target.spec.simulated:
            return {}
        keys = {i: self.key(task) for i, task in enumerate(tasks) if _generated(task)}
        self._verdict_of |= VERDICTS.get_many(self._cache, {key: key for key in keys.values()})
        left = {key: tasks[i] for i, key in keys.items() if key not in self._verdict_of}
        try:
            self._run(left, step)
        except BaseException:
            self._sandbox.end()  # or the next who asks would read answers about these
            raise
        verdicts = {i: self._verdict_of[key] for i, key in keys.items()}
        for i, verdict in verdicts.items():
            kernel = tasks[i].kernel
            if verdict.refused and kernel is not None:
                what = f"{tasks[i].name} by {text_kernel(kernel)}"
                self._trace.add("refused", "tuning", what, str(verdict.refused))
        return verdicts

    def _run(self, left: dict[str, Task], step: Step) -> None:
        """Learn of all tasks, of many of them by others, where there are some."""
        others = self._idle_others()
        if others is not None and len(left) >= others.least:
            self._run_elsewhere(others, left, step)
        self._run_here(left, step)

    def _idle_others(self) -> OtherSandboxes | None:
        """Others that can begin now, while there is time. Who compiles for later would keep these
        waiting, and waits for who takes what it has."""
        others = self._sandbox.others
        if others is None or self._until.over():
            return None
        return others if others.compiled(self._trace, Deadline.after(0.0)) else None

    def _run_elsewhere(self, others: OtherSandboxes, left: dict[str, Task], step: Step) -> None:
        """Learn what others say; what they do not say stays in `left`. The references are tried
        here while others are at work, and before anything else is done meanwhile."""
        references = {key: left.pop(key) for key in others.references(left)}
        tasks = {**references, **left}
        values = dict(zip(tasks, self._values(list(tasks.values())), strict=True))
        total = len(left)

        def mine() -> dict[str, Cost]:
            unknown = {key: task for key, task in references.items() if key not in self._verdict_of}
            self._run_here(unknown)
            costs = {key: self._verdict_of[key].cost for key in references}
            return {key: cost for key, cost in costs.items() if cost is not None}

        def next_step() -> bool:
            if any(key not in self._verdict_of for key in references):
                mine()
                return True
            return not self._until.over() and step()

        def learn(verdicts: Mapping[str, Verdict]) -> None:
            # Others a worker has told of that died.
            fresh = {key: verdict for key, verdict in verdicts.items() if left.pop(key, None)}
            self._verdict_of |= fresh
            VERDICTS.put_many(self._cache, fresh)
            self._trace.progress("tuning", total - len(left), total, "kernels tried")

        asked = dict(left), references, mine, values, self._trace, self._until
        try:
            others.verdicts(*asked, next_step, learn)
            self._start_compilers()
        except WorkerError as failed:
            self._sandbox.others = None
            what = f"{failed.what}: all kernels are tried here"
            self._trace.add("warning", "tuning", what, failed.why)
        mine()

    def _time_elsewhere(self, tasks: Sequence[Task], clock: SharedClock) -> None:
        """Have `clock` know most of these, by others, if there are some; not of tasks that may not
        read drawn numbers: others have no values of the example."""
        others = None if self._target.spec.simulated else self._idle_others()
        if others is None:
            return
        asked = [t for t in clock.unknown(tasks) if not delicate([t.body], t.reads)]
        try:
            others.times(asked, clock, self._trace, self._until)
        except WorkerError as failed:
            self._sandbox.others = None
            self._trace.add("warning", "tuning", f"{failed.what}: all is timed here", failed.why)

    def _start_compilers(self) -> None:
        """Those of the own sandbox: there were few as long as others needed all cores, and smaller
        batches come."""
        if self._sandbox.process is not None:
            with suppress(BrokenPipeError):
                _ask(self._sandbox.process, [], run=False)

    def _run_here(self, left: dict[str, Task], step: Step = lambda: False) -> None:
        """Learn of all tasks, of one body after another, those first that take longest to compile.
        One is blamed if a process that was started for it, and has run nothing else, says
        nothing."""
        total = len(left)
        left = {key: left[key] for keys in by_body(left) for key in keys}
        while left and not self._until.over():
            fresh, count, at = self._sandbox.process is None, len(left), ""
            for key, verdict in self._answers(left, step):
                at = key if verdict is None else ""
                if verdict is not None:
                    del left[key]
                    self._learn(key, verdict)
                    self._trace.progress("tuning", total - len(left), total, "kernels tried")
            if self._until.over():
                break  # whatever it is at now is not to blame
            if fresh and len(left) == count:
                died = self._sandbox.died()
                if not at:
                    self._not_started(left, died)
                    left.clear()
                else:
                    why = Refused(f"the process that ran it first {died}")
                    self._learn(at, Verdict("tried", refused=why))
                    del left[at]
            elif at:
                left = {at: left.pop(at), **left}
            if left:
                self._sandbox.end()  # it has died, or is about to
        if left:
            self._sandbox.end()
            self._leave_out(left, NO_TIME)

    def _not_started(self, left: Iterable[str], died: str) -> None:
        why = Refused(f"no process could be started to run kernels in: {died}")
        self._trace.add("warning", "tuning", "generated kernels", str(why))
        self._leave_out(left, why)

    def _leave_out(self, left: Iterable[str], why: Refused) -> None:
        """It is not the kernels' fault: the verdict is not kept."""
        self.settled = False
        self._verdict_of |= dict.fromkeys(left, Verdict("tried", refused=why))

    def _learn(self, key: str, verdict: Verdict) -> None:
        self._verdict_of[key] = verdict
        VERDICTS.put(self._cache, key, verdict)
        if self._told_of is not None:
            self._told_of(key, verdict)

    def _answers(
        self, tasks: Mapping[str, Task], step: Step
    ) -> Iterator[tuple[str, Verdict | None]]:
        """For each task, about in their order, its key with None when it is begun, and with its
        verdict; fewer if the process dies."""
        process, keys = self._sandbox.running(), list(tasks)
        try:
            values = self._values(list(tasks.values()))
            _ask(process, list(tasks.values()), run=True, values=values)
        except BrokenPipeError:
            return
        for _ in keys:
            while not (_speaks(process) or self._until.over()) and step():
                pass
            if self._until.over():
                return
            begun = _heard(process, TIME.sandbox_silence_s)
            if not begun:
                return
            key = keys[json.loads(begun)]
            yield key, None
            line = _heard(process, TIME.kernel_run_limit_s)
            if not line:
                return
            yield key, TOLD.read(line, None)

    def _values(self, tasks: Sequence[Task]) -> list[list[Tensor] | None]:
        """The values that tasks read on the example whose operators may not read drawn numbers."""
        if self._contents is not None:
            return [self._contents.get(task_text(task)) for task in tasks]
        return [
            values_of(self._target, task) if delicate([task.body], task.reads) else None
            for task in tasks
        ]


def compile_ahead(kernels: Sequence[Kernel], sandbox: SandboxProcess) -> None:
    """Have generated kernels compiled into the cache, by compilers that are at hand there: others
    would have to be started. Not while kernels are tried. A kernel that was not compiled, whatever
    the reason, is not in the cache, and will be compiled by who needs it."""
    process = sandbox.process
    tasks = [Task(kernel.name, kernel.body, kernel) for kernel in kernels if kernel.source]
    if process is None or not tasks:
        return
    try:
        _ask(process, tasks, run=False)
        answered = all(_heard(process, TIME.sandbox_silence_s) for _ in tasks)
    except BrokenPipeError:
        answered = False
    if not answered:
        sandbox.end()


def _ask(
    process: Process,
    tasks: Sequence[Task],
    run: bool,
    values: Sequence[list[Tensor] | None] = (),
) -> None:
    """BrokenPipeError if it does not read on: what is asked may be more than a pipe holds."""
    assert process.stdin is not None
    told = (written(task, tensors) for task, tensors in itertools.zip_longest(tasks, values))
    asked = BATCHES.write(SandboxBatch(tuple(told), run), None)
    with _alive_for(process, TIME.sandbox_silence_s):
        process.stdin.write(asked + b"\n")
        process.stdin.flush()


def _speaks(process: Process) -> bool:
    """Whether a word of it has come."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        return bool(process.stdout.peek(1))  # type: ignore[attr-defined]
    finally:
        os.set_blocking(process.stdout.fileno(), True)


def _heard(process: Process, seconds: float) -> bytes:
    """The next line of a process; empty if it died, or said nothing in time and was killed."""
    assert process.stdout is not None
    with _alive_for(process, seconds):
        return process.stdout.readline()


@contextmanager
def _alive_for(process: Process, seconds: float) -> Iterator[None]:
    """Kill the process unless the block ends before."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    with suppress(RuntimeError):  # no thread for it: there is no limit
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _generated(task: Task) -> bool:
    return task.kernel is not None and bool(task.kernel.source)
