"""States written by the kernels that compute them, in place of a copy behind: TaskGraph -> same.

    m_1 = add(mul(m, 0.9), g)        one launch, a generated kernel        {mul, add} over %m
    m_2 = copy(m, m_1)          ->   another, which brings m_1 to its      no copy, no memory
                                     place                                 for m_1

A task that ends in the new value of a state may write it over the old one if its kernel reads of
the old one the very element that it writes, before (`kernels.triton.in_place`), and looks at no
other (`ir.state.elementwise`). All other readers of the old value then run before it, as they ran
before the copy; where one of them needs what the task computes, the copy stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.dag import in_launch_order, waiting
from anabranch.ir.graph import Ref, State
from anabranch.ir.plan import Signature
from anabranch.ir.state import STORE, elementwise, in_input_order
from anabranch.ir.task import GENERATED, Task, TaskGraph, alias_roots, wholes
from anabranch.kernels.triton.in_place import why_not_in_place
from anabranch.trace import Trace


@dataclass(frozen=True, slots=True)
class _Copy:
    """A task that copies a value to the place of a state, and the task that computes the value."""

    task: str
    state: str
    value: str
    maker: str


def stored_in_place(tasks: TaskGraph, signature: Signature, trace: Trace) -> TaskGraph:
    """The tasks without the copies that the kernels before them can do without; the very same where
    there are none."""
    every = copies = _copies(tasks, signature)
    reduced = _without(tasks, copies)
    while copies and (knot := waiting(reduced)):
        left = [copy for copy in copies if copy.maker not in knot]
        copies = left if len(left) < len(copies) else []
        reduced = _without(tasks, copies)
    if not copies:
        return tasks
    what = f"{len(copies)} of {len(every)} states"
    trace.add("applied", "tuning", what, "written by the kernels that compute them")
    return in_launch_order(reduced)


def _copies(tasks: TaskGraph, signature: Signature) -> list[_Copy]:
    """The copies that may go, as far as their own tasks and those before them say."""
    makers = {name: task for task in tasks.tasks for name in task.writes}
    news = {state.name: tasks.outputs[state.output].name for state in tasks.states}
    roots = alias_roots(tasks)
    read, taken = _read(tasks, signature), {*roots, *wholes(tasks)}
    copies: list[_Copy] = []
    for task in tasks.tasks:
        if len(task.body.nodes) != 1 or task.body.nodes[0].op != STORE:
            continue
        value = task.body.nodes[0].uses[-1]
        maker = makers.get(value)
        for new, old in task.overwrites.items():
            whole = news.get(old) == new and new not in read and value not in taken
            if whole and maker is not None and _may(maker, value, old, roots.get):
                taken.add(value)
                copies.append(_Copy(task.name, old, value, maker.name))
    return copies


def _read(tasks: TaskGraph, signature: Signature) -> set[str]:
    """The values that tasks, aliases, elided concats and the caller read by name; what is a result
    for its state alone is not among them."""
    names = {name for task in tasks.tasks for name in task.reads}
    names |= {name for node in (*tasks.aliases, *tasks.elided_concats) for name in node.uses}
    return names | {ref.name for ref in signature.read}


def _may(task: Task, new: str, old: str, root: Callable[[str, str], str]) -> bool:
    """Whether its kernel may write `new` over `old`, which it reads under no other name."""
    kernel = task.kernel
    if kernel is None or kernel.provider != GENERATED or kernel.body != task.body:
        return False
    alone = all(root(name, name) != old for name in task.reads if name != old)
    fits = alone and not task.overwrites and elementwise(task.body, new, old)
    return fits and why_not_in_place(kernel, {new: old}) is None


def _without(tasks: TaskGraph, copies: Sequence[_Copy]) -> TaskGraph:
    """The tasks without these copies: the values before them lie in the places of the states."""
    gone, values = {copy.task for copy in copies}, {copy.state: copy.value for copy in copies}
    outputs = list(tasks.outputs)
    for state in tasks.states:
        if state.name in values:
            outputs[state.output] = Ref(values[state.name])
    kept = (
        _over(task, [copy for copy in copies if copy.maker == task.name])
        for task in tasks.tasks
        if task.name not in gone
    )
    return replace(tasks, tasks=tuple(kept), outputs=tuple(outputs))


def _over(task: Task, copies: Sequence[_Copy]) -> Task:
    """The task with the states that it writes over; of its kernel the text stays as it is."""
    if not copies or task.kernel is None:
        return task
    outputs = [ref.name for ref in task.body.outputs]
    states = [State(copy.state, outputs.index(copy.value)) for copy in copies]
    body = replace(task.body, states=in_input_order(states, task.body.inputs))
    return replace(task, body=body, kernel=replace(task.kernel, body=body))
