"""Reads and takes away how a generated kernel is launched."""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program


def letter_of(kernel: Kernel) -> str:
    """The letter of its mode of dependent launch, "" for none."""
    assert isinstance(kernel.variant, Variant), kernel
    return kernel.variant.pdl or ""


def without_modes(tasks: TaskGraph) -> TaskGraph:
    """The tasks with generated kernels that start when the ones before have ended."""
    return replace(tasks, tasks=tuple(map(_without_mode, tasks.tasks)))


def _without_mode(task: Task) -> Task:
    kernel = task.kernel
    if kernel is None or not isinstance(kernel.variant, Variant) or kernel.variant.pdl is None:
        return task
    variant = replace(kernel.variant, pdl=None)
    text = program(kernel.body, variant).text
    return replace(task, kernel=replace(kernel, variant=variant, source=text))
