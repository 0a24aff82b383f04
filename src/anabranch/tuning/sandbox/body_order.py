"""In which order kernels are tried: of one body after another, so that each is soon done with.

    tasks by key  a1 b1 a2 c1  ->  [[b1], [a1, a2], [c1]]      b takes longest to compile

Bodies whose kernels take longest to compile come first, so that none of them is waited for at the
end.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.ir.key import structure_text
from anabranch.ir.task import Task
from anabranch.targets.cuda.cubin import text_weight


def by_body(tasks: Mapping[str, Task]) -> list[list[str]]:
    """The keys of each body, in their order."""
    bodies: dict[str, list[str]] = {}
    for key in tasks:
        bodies.setdefault(structure_text(tasks[key].body), []).append(key)
    weight = {key: compile_weight(task) for key, task in tasks.items()}
    return sorted(
        bodies.values(), key=lambda keys: (-max(map(weight.__getitem__, keys)), -len(keys))
    )


def compile_weight(task: Task) -> float:
    """How long its kernel takes to compile, beside others; 0 where nothing is compiled."""
    return 0.0 if task.kernel is None else text_weight(task.kernel.source)
