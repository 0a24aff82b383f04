"""Generated kernels run for the first time in a process that may die of it.

A store to a wrong address ends a CUDA context: every later call of the process fails. So before a
generated kernel is measured beside the others, it runs once, between fences, in a process with a
target of its own:

    tasks, as JSON --> | as each is compiled: load, run, look at the fences | --> at which, why

Compiling goes on meanwhile, on other cores. A process that dies or answers no more costs the kernel
it was at, if it has run no other; else the next process begins with that one. What is remembered
in the cache is not run again.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch

from anabranch.cache import Cache
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.step import random_tensor
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph, text_graph, text_kernel
from anabranch.kernels.triton.program import facts_of, program_of
from anabranch.kernels.triton.write import learn, unnamed
from anabranch.pack import pack
from anabranch.pack.fence import fence
from anabranch.targets.cpu.target import CpuTarget
from anabranch.targets.cuda.target import CudaTarget
from anabranch.trace import Trace

Trial = Callable[[Sequence[Task]], Sequence[Cost | None]]
SCHEME = "rehearsal 1"
GENERATES = "triton"
"""The provider whose kernels are written by `kernels.triton.write`."""
LIMIT = 60.0
"""Seconds that one kernel may take: building it is not among them."""
START = "import sys, json; sys.path[:] = json.loads(sys.argv[1])"
SERVE = "from anabranch.rehearse import main; main(*sys.argv[2:])"


def rehearse(task: Task, target: Target) -> str:
    """Run a task alone between fences, on random data; why it must not be used, or ""."""
    body = task.body
    constants = tuple(_filled(constant, i, target) for i, constant in enumerate(body.constants))
    alone = TaskGraph(task.name, body.inputs, constants, (task,), (), body.outputs)
    plan = pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), target.spec)
    run = target.load(fence(plan), repeat=0)
    inputs = [random_tensor(value.type, i, target.device) for i, value in enumerate(body.inputs)]
    for out in run(inputs):
        out.cpu()  # whatever went wrong on the device is heard here
    return run.strays()


class Rehearsal:
    """Puts itself before a trial: what fails there is not tried here. The process is started when
    it is first needed, or before, and ends with the block."""

    def __init__(
        self, target: Target, cache: Cache | None, trace: Trace, start: str = START
    ) -> None:
        self._target, self._cache, self._trace, self._start = target, cache, trace, start
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[str, str] = {}
        self.settled = True
        """False where kernels were refused for no fault of theirs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self) -> None:
        """Start the process ahead: it takes seconds, in which kernels may be written."""
        if not self._target.spec.simulated:
            self._running()

    def before(self, trial: Trial) -> Trial:
        """The trial, with None for generated kernels that failed their rehearsal."""

        def both(tasks: Sequence[Task]) -> Sequence[Cost | None]:
            bad = self.refusals(tasks)
            costs = iter(trial([task for i, task in enumerate(tasks) if i not in bad]))
            return [None if i in bad else next(costs) for i in range(len(tasks))]

        return both

    def refusals(self, tasks: Sequence[Task]) -> dict[int, str]:
        """Why tasks must not be run in this process, by their position."""
        if self._target.spec.simulated:
            return {}
        keys = {i: self._key(task) for i, task in enumerate(tasks) if _generated(task)}
        if self._cache is not None:
            self._known |= self._cache.get_many("kernels", keys.values())
        left = {key: tasks[i] for i, key in keys.items() if key not in self._known}
        self._run(left)
        bad = {i: self._known[key] for i, key in keys.items() if self._known[key]}
        for i, why in bad.items():
            kernel = tasks[i].kernel
            assert kernel is not None
            self._trace.add("refused", "kernels", f"{tasks[i].name} by {text_kernel(kernel)}", why)
        return bad

    def _run(self, left: dict[str, Task]) -> None:
        """Learn of all tasks. One is blamed if a process that was started for it, and has run
        nothing else, says nothing."""
        total = len(left)
        while left:
            fresh, count, at = self._process is None, len(left), ""
            for key, why in self._answers(left):
                at = key if why is None else ""
                if why is not None:
                    del left[key]
                    self._learn(key, why)
                    self._trace.progress("kernels", total - len(left), total, "kernels rehearsed")
            if fresh and len(left) == count:
                died = self._died()
                if not at:
                    self._not_started(left, died)
                    left.clear()
                else:
                    self._learn(at, f"the process that ran it first {died}")
                    del left[at]
            elif at:
                left = {at: left.pop(at), **left}
            if left:
                self._end()  # it has died, or is about to

    def _not_started(self, left: Iterable[str], died: str) -> None:
        why = f"no process could be started to run kernels in: {died}"
        self._trace.add("warning", "kernels", "generated kernels", why)
        self.settled = False
        self._known |= dict.fromkeys(left, why)  # not the kernels' fault: not kept

    def _learn(self, key: str, why: str) -> None:
        self._known[key] = why
        if self._cache is not None:
            self._cache.put("kernels", key, why)

    def _answers(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, str | None]]:
        """For each task, in the order in which they are compiled, its key with None when it is
        begun, and with the answer; fewer if the process dies."""
        process, keys = self._running(), list(tasks)
        assert process.stdin is not None and process.stdout is not None
        try:
            wanted = [_write(task) for task in tasks.values()]
            process.stdin.write(json.dumps(wanted).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return
        for _ in keys:
            begun = process.stdout.readline()
            if not begun:
                return
            key = keys[json.loads(begun)]
            yield key, None
            timer = threading.Timer(LIMIT, process.kill)
            timer.start()
            line = process.stdout.readline()
            timer.cancel()
            if not line:
                return
            yield key, json.loads(line)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        path = self._cache.stats().path if self._cache is not None else None
        spec = self._target.spec
        command = [sys.executable, "-P", "-c", f"{self._start}\n{SERVE}", json.dumps(sys.path)]
        command += [str(self._target.device), str(int(spec.tf32)), str(path.parent) if path else ""]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us; it ends when its input does
        )
        return self._process

    def _died(self) -> str:
        assert self._process is not None
        self._process.kill()
        return f"died with exit status {self._process.wait()}"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what it did not read
                        pipe.close()
            self._process = None

    def _key(self, task: Task) -> str:
        return f"{SCHEME}\n{self._target.spec.fingerprint}\n{task_text(task)}"


def main(device: str, tf32: str, folder: str) -> None:
    """The other side: lists of tasks in, and for each, as it is compiled, its position and, when
    it has run, why it must not be used."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not be heard as answers
    where = torch.device(device)
    target = CpuTarget() if where.type == "cpu" else CudaTarget(where, tf32 == "1")
    with Cache.open(Path(folder) if folder else None) as cache:
        for line in sys.stdin.buffer:
            tasks = [_read(item) for item in json.loads(line)]
            kernels = [task.kernel for task in tasks if task.kernel]
            for number in itertools.chain.from_iterable(target.ready(kernels, cache)):
                _say(answers, number)
                try:
                    why = rehearse(tasks[number], target)
                except Exception as failed:
                    why = f"{type(failed).__name__}: {' '.join(str(failed).split())[:400]}"
                _say(answers, why)
                if why and not _alive(where):
                    return


def _alive(device: torch.device) -> bool:
    """Whether the device still answers: after a fault it never does in this process."""
    try:
        return torch.ones(1, device=device).add(1).item() == 2
    except RuntimeError:
        return False


def _say(answers: BinaryIO, what: str | int) -> None:
    answers.write(json.dumps(what).encode() + b"\n")
    answers.flush()


def _generated(task: Task) -> bool:
    return task.kernel is not None and bool(task.kernel.source)


def _write(task: Task) -> dict[str, Any]:
    """`program`: what was written for a generated kernel, which its reader need not write again."""
    kernel = task.kernel
    assert kernel is not None
    known = kernel.provider == GENERATES
    return {
        "task": task.name,
        "body": text_graph(task.body, origins=False),
        "kernel": [kernel.provider, kernel.name, kernel.variant, kernel.source],
        "kernel_body": text_graph(kernel.body, origins=False),
        "writes_out": kernel.writes_out,
        "workspace": kernel.workspace,
        "program": facts_of(unnamed(kernel.body, kernel.variant)) if known else None,
    }


def _read(item: dict[str, Any]) -> Task:
    provider, name, variant, source = item["kernel"]
    body, kernel_body = (parse_graph(item[text]) for text in ("body", "kernel_body"))
    if item["program"] is not None:
        learn(kernel_body, variant, program_of(item["program"]))
    kernel = Kernel(
        provider,
        name,
        kernel_body,
        variant,
        item["writes_out"],
        item["workspace"],
        source=source,
    )
    return Task(item["task"], body, kernel)


def _filled(constant: Constant, seed: int, target: Target) -> Constant:
    return replace(constant, value=random_tensor(constant.type, 100 + seed, target.device))
