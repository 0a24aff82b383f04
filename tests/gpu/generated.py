"""Plans of generated kernels, whether they are the fastest or not."""

from __future__ import annotations

from dataclasses import replace

import anabranch
from anabranch.fusion import partition
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Executable
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Task
from anabranch.kernels.library import AtenProvider
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory import pack
from anabranch.trace import Trace


def generated(fast: anabranch.Compiled) -> Executable:
    """What was compiled, fused as far as it may be and with generated kernels wherever there are
    any, faster or not."""
    made, target = fast.entries[0].compilation, fast.target
    assert made is not None
    tasks = partition(made.compiled.graph, Trace(), target.spec)
    ours, library = TritonProvider(), AtenProvider()

    def chosen(task: Task) -> Task:
        found = list(ours.kernels(task, target.spec)) or list(library.kernels(task, target.spec))
        return replace(task, kernel=found[0])

    tasks = replace(tasks, tasks=tuple(map(chosen, tasks.tasks)))
    assert any(task.kernel and task.kernel.provider == "triton" for task in tasks.tasks)
    row = Schedule("row", sequential_launches(dag_of(tasks)))
    return target.load(pack(tasks, row, target.spec, fast.entries[0].plan.signature))
