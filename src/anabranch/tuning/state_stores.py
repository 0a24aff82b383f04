"""States written by the kernels that compute them, in place of a copy behind: TaskGraph -> same.

    m_1 = add(mul(m, 0.9), g)        one launch, a generated kernel        {mul, add} over %m
    m_2 = copy(m, m_1)          ->   another, which brings m_1 to its      no copy, no memory
                                     place                                 for m_1

A task that ends in the new value of a state may write it over the old one if its kernel reads of
the old one the very element that it writes, before (`kernels.triton.in_place`), and computes each
element once (`ir.state.elementwise`). All other readers of the old value then run before it, as
they ran before the copy; where one of them needs what the task computes, the copy stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from anabranch.ir.dag import in_launch_order, waiting
from anabranch.ir.graph import Graph, Ref, State
from anabranch.ir.plan import Signature
from anabranch.ir.state import STORE, elementwise
from anabranch.ir.task import GENERATED, Task, TaskGraph, alias_roots, wholes
from anabranch.kernels.triton.in_place import why_kernel_not_in_place
from anabranch.trace import Trace


def stored_in_place(tasks: TaskGraph, signature: Signature, trace: Trace) -> TaskGraph:
    """The tasks without the copies that the kernels before them can do without; the very same where
    there are none."""
    found = _copies(tasks, signature)
    if not found:
        return tasks
    made, total = _without(tasks, found), len(found)
    while found and (knot := waiting(made)):
        makers = {name: copy for name, copy in found.items() if copy.maker in knot}
        found = {name: copy for name, copy in found.items() if name not in makers}
        made = _without(tasks, found)
    if not found:
        return tasks
    what = f"{len(found)} of {total} states"
    trace.add("applied", "tuning", what, "written by the kernels that compute them")
    return in_launch_order(made)


class _Copy:
    """A copy of a value to the place of a state: the task, the state, the value and its maker."""

    __slots__ = ("maker", "state", "task", "value")

    def __init__(self, task: str, state: str, value: str, maker: str) -> None:
        self.task, self.state, self.value, self.maker = task, state, value, maker


def _copies(tasks: TaskGraph, signature: Signature) -> dict[str, _Copy]:
    """By its task's name each copy that may go, as far as its own task and the one before say."""
    makers = {name: task for task in tasks.tasks for name in task.writes}
    roots, parts = alias_roots(tasks), wholes(tasks)
    states = {state.name: tasks.outputs[state.output].name for state in tasks.states}
    read = Counter(name for task in tasks.tasks for name in task.reads)
    read.update(name for node in (*tasks.aliases, *tasks.elided_concats) for name in node.uses)
    read.update(ref.name for _, ref in signature.mutations)
    read.update(leaf.ref.name for leaf in signature.outputs if leaf.ref is not None)
    found: dict[str, _Copy] = {}
    placed = set[str]()
    for task in tasks.tasks:
        if len(task.body.nodes) != 1 or task.body.nodes[0].op != STORE:
            continue
        ((new, old),) = task.overwrites.items() or ((None, None),)
        if new is None or old is None or states.get(old) != new or read[new]:
            continue
        value = task.body.nodes[0].uses[-1]
        maker = makers.get(value)
        if maker is None or value in placed or value in roots or value in parts:
            continue
        if not maker.overwrites and _may(maker, value, old):
            placed.add(value)
            found[task.name] = _Copy(task.name, old, value, maker.name)
    return found


def _may(task: Task, new: str, old: str) -> bool:
    kernel = task.kernel
    if kernel is None or kernel.provider != GENERATED or kernel.body != task.body:
        return False
    return elementwise(task.body, new, old) and why_kernel_not_in_place(kernel, new, old) is None


def _without(tasks: TaskGraph, copies: Mapping[str, _Copy]) -> TaskGraph:
    """The tasks without these copies: the values before them lie in the places of the states."""
    over: dict[str, list[_Copy]] = {}
    for copy in copies.values():
        over.setdefault(copy.maker, []).append(copy)
    kept = tuple(
        _over(task, over[task.name]) if task.name in over else task
        for task in tasks.tasks
        if task.name not in copies
    )
    renamed = {copy.state: copy.value for copy in copies.values()}
    outputs = list(tasks.outputs)
    for state in tasks.states:
        if state.name in renamed:
            outputs[state.output] = Ref(renamed[state.name])
    return replace(tasks, tasks=kept, outputs=tuple(outputs))


def _over(task: Task, copies: list[_Copy]) -> Task:
    """The task with the states that it writes over; of its kernel the text stays as it is."""
    outputs = [ref.name for ref in task.body.outputs]
    states = tuple(State(copy.state, outputs.index(copy.value)) for copy in copies)

    def placed(body: Graph) -> Graph:
        return replace(body, states=states)

    assert task.kernel is not None
    kernel = replace(task.kernel, body=placed(task.kernel.body))
    return replace(task, body=placed(task.body), kernel=kernel)
