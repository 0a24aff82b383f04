"""Trying recomputation: a selection -> one in which cheap work is computed again, with kernels for
it."""

from __future__ import annotations

from dataclasses import replace

from anabranch.errors import TargetError
from anabranch.fusion.recompute import computed_again
from anabranch.trace import Trace
from anabranch.tuning.select import Selection, SelectionConfig, select


def with_again(selection: Selection, config: SelectionConfig, trace: Trace) -> Selection:
    """The selection with what several compute again wherever they can, with kernels for that; the
    very same one if nowhere."""
    whole = computed_again(selection.tasks, config.spec, trace)
    if whole is selection.tasks:
        return selection
    changed = replace(whole, tasks=tuple(task for task in whole.tasks if task.kernel is None))
    try:
        selected = select(changed, config, trace)
    except TargetError as failed:
        trace.add("refused", "fusion", whole.name, str(failed).partition("\n")[0])
        return selection
    chosen = {task.name: task for task in selected.tasks.tasks}
    tasks = replace(whole, tasks=tuple(chosen.get(task.name, task) for task in whole.tasks))
    return Selection(tasks, {**selection.candidates, **selected.candidates}, selected.settled)
