"""The process in which generated kernels run first, as whoever sends it there sees it.

    start --> (imports, CUDA, compilers: seconds) --> running, asked by one client after another
              dies of a kernel --> the next who asks gets a new one

It takes seconds to start, in which a model may be captured and kernels may be written; so it is
started ahead where kernels will surely be tried, and serves all stages of a compilation.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, Self

from torch import Tensor

from anabranch.cache import Cache
from anabranch.deadline import TIME, Deadline
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.task import Task
from anabranch.ir.uncached import Uncached
from anabranch.ir.variant import PdlMode
from anabranch.targets.cuda.compile_pool import Process, end
from anabranch.trace import Trace
from anabranch.tuning.verdict import Verdict

START = "import sys, json; sys.path[:] = json.loads(sys.argv[1])"
SERVE = """
from anabranch.ir.gc_pause import importing
with importing():
    from anabranch.tuning.sandbox.worker import main
main(*sys.argv[2:])
"""

PIPE_BYTES = 1 << 20
"""Of answers that wait for a reader, as many as Linux lets any user have."""


class SharedClock(Protocol):
    """The precise times of a process, which others add to."""

    @property
    def cold(self) -> Uncached | None:
        """As `Costs` has it."""

    def trial(self, tasks: Sequence[Task]) -> Sequence[Cost | None]:
        """As `Costs` has it."""

    def unknown(self, tasks: Sequence[Task]) -> list[Task]:
        """Those that nobody has measured."""

    def learn(self, told: Sequence[tuple[Task, Cost]]) -> None:
        """What others have measured, in the microseconds of this process."""


class OtherSandboxes(Protocol):
    """Who tries kernels instead of this process's own sandbox, from `least` kernels on; of those it
    tries `tried_here`. And who times precisely what is left then, from `least_timed` on."""

    least: int
    least_timed: int
    tried_here: int

    def start(self) -> None:
        """Start them ahead."""

    def compile(self, tasks: Sequence[Task], modes: Sequence[PdlMode]) -> None:
        """Begin to compile the kernels of these tasks in these modes of launch, for later."""

    def compiled(self, trace: Trace, until: Deadline) -> bool:
        """Wait for that, until then at most; whether it is over. It is in the cache then."""

    def references(self, left: Mapping[str, Task]) -> list[str]:
        """The keys of those that the caller's own sandbox tries as well, to compare clocks."""

    def verdicts(
        self,
        left: Mapping[str, Task],
        references: Mapping[str, Task],
        mine: Callable[[], Mapping[str, Cost]],
        values: Mapping[str, Sequence[Tensor] | None],
        trace: Trace,
        until: Deadline,
        step: Callable[[], bool],
        learn: Callable[[Mapping[str, Verdict]], object],
    ) -> None:
        """Have `learn` hear of those that were tried, body by body as answers come, in the
        microseconds of `mine`, which is what the references take here. `values`: what a task reads
        on the example, where that is known; `step`: as `WorkerPool.outcomes` has it."""

    def times(
        self, asked: Sequence[Task], clock: SharedClock, trace: Trace, until: Deadline
    ) -> None:
        """Have `clock` learn the times of these tasks, those of one body side by side on one GPU.
        What is not told is for the caller to measure."""


class SandboxProcess:
    """At most one process at a time; it ends with the block. On a simulated target there is none.
    `start`: what it runs first; `others`: who helps."""

    def __init__(
        self,
        target: Target,
        cache: Cache | None,
        start: str = START,
        others: OtherSandboxes | None = None,
    ) -> None:
        self._target, self._cache, self._start, self.others = target, cache, start, others
        self.process: Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start the process ahead."""
        if not self._target.spec.simulated:
            self.running()
            if self.others is not None:
                self.others.start()

    def running(self) -> Process:
        """The process, started if need be."""
        if self.process is None:
            path = self._cache.stats().path if self._cache is not None else None
            spec = self._target.spec
            command = [sys.executable, "-P", "-c", f"{self._start}\n{SERVE}", json.dumps(sys.path)]
            command += [str(self._target.device), str(int(spec.tf32))]
            command += [str(path.parent) if path else "", str(self._patience())]
            command += [] if self.others is None else [str(self.others.tried_here)]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; it ends when its input does
            )
            _widen(self.process)
        return self.process

    def _patience(self) -> float:
        """Seconds that it waits for whoever writes to the cache: this process waits for longer,
        and once is enough."""
        return (
            min(TIME.sandbox_cache_wait_s, self._cache.patience) if self._cache is not None else 0.0
        )

    def died(self) -> str:
        """How a process that says nothing more has ended."""
        assert self.process is not None
        self.process.kill()
        return f"died with exit status {self.process.wait()}"

    def interrupt(self) -> None:
        """A thread that waits for an answer hears that there will be none."""
        process = self.process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """End the process, if there is one; the next use starts another."""
        if self.process is not None:
            end([self.process])
            self.process = None


def _widen(process: Process) -> None:
    """Room in the pipe for the answers to a thousand kernels: nobody reads them while a library's
    engines are built, and the process would wait until somebody does."""
    assert process.stdout is not None
    with suppress(ImportError, AttributeError, OSError):  # where a system has no such pipes
        import fcntl

        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
