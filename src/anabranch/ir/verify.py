"""Invariants of the nouns. A failure is a defect of this package and shows its neighbourhood.

VerifyError: graph tiny: %relu reads %add before it is defined
  3 | %mul: f32[2] = aten.mul.Tensor(%x, %x)
> 4 | %relu: f32[2] = aten.relu.default(%add)
    ^
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.errors import VerifyError
from anabranch.ir import ops
from anabranch.ir.dag import Dag, bits, readers_before_writers
from anabranch.ir.graph import Constant, Graph, Input, Node
from anabranch.ir.schedule import Schedule, happens_before, text_schedule
from anabranch.ir.state import elementwise, is_only_read, overwritten, written_parts
from anabranch.ir.task import TaskGraph, alias_roots, concat_dim, places, value_types
from anabranch.ir.text import text_node
from anabranch.ir.types import TensorType


def verify_graph(graph: Graph, infer: bool = False) -> None:
    """Names are unique, every read value is defined before, outputs exist, operators resolve.
    `infer` also recomputes every node's types on meta tensors (slow); those of results that nobody
    reads may differ, which of some operators depend on the device."""
    read = {name for node in graph.nodes for name in node.uses}
    read |= {ref.name for ref in graph.outputs}
    defined: dict[str, TensorType] = {}
    declarations: tuple[Input | Constant, ...] = (*graph.inputs, *graph.constants)
    for declared in declarations:
        if declared.name in defined:
            _fail(graph, None, f"%{declared.name} is declared twice")
        defined[declared.name] = declared.type
    for node in graph.nodes:
        for name in node.uses:
            if name not in defined:
                _fail(graph, node, f"%{node.name} reads %{name} before it is defined")
        for name, type in zip(node.results, node.types, strict=True):
            if name in defined:
                _fail(graph, node, f"%{name} is defined twice")
            defined[name] = type
        if infer and (inferred := _inferred(node, defined)) is not None:
            pairs = zip(node.results, node.types, inferred, strict=True)
            differ = {name for name, a, b in pairs if (a.shape, a.dtype) != (b.shape, b.dtype)}
            if differ & read or node.name in differ:
                said = ", ".join(type.text for type in inferred)
                _fail(graph, node, f"%{node.name} is declared otherwise than inferred: {said}")
    for ref in graph.outputs:
        if ref.name not in defined:
            _fail(graph, None, f"the output %{ref.name} is not defined")
    _verify_states(graph, defined)


def _inferred(node: Node, table: Mapping[str, TensorType]) -> tuple[TensorType, ...] | None:
    """None of an operator that torch runs, and of which it cannot say what it would give."""
    try:
        return ops.infer(node.op, node.args, node.kwargs, table)
    except NotImplementedError:
        return None


def _verify_states(graph: Graph, defined: Mapping[str, TensorType]) -> None:
    """Each state is an input, once, and its new value an output of its shape and dtype."""
    left = {value.name for value in graph.inputs}
    for state in graph.states:
        if state.name not in left:
            _fail(graph, None, f"the state %{state.name} is no input, or a state twice")
        left.remove(state.name)
        if not 0 <= state.output < len(graph.outputs):
            _fail(graph, None, f"the state %{state.name} has no output {state.output}")
        new = defined[graph.outputs[state.output].name]
        old = defined[state.name]
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            _fail(graph, None, f"the state %{state.name} is {old.text}, and becomes {new.text}")


def verify_tasks(tasks: TaskGraph) -> None:
    """Bodies are graphs, every value is written once and before it is read, aliases only rename,
    elided concats only hold parts, types inside a body agree with those outside."""
    types = value_types(tasks)
    written: set[str] = {value.name for value in tasks.inputs}
    written |= {constant.name for constant in tasks.constants}
    constants = set(written)
    aliases = {name: node for node in tasks.aliases for name in node.results}
    names = [task.name for task in tasks.tasks]
    _unless(len(names) == len(set(names)), tasks, "two tasks have one name")
    every = [value.name for value in tasks.inputs] + [c.name for c in tasks.constants]
    every += [name for task in tasks.tasks for name in dict.fromkeys(task.writes)]
    every += [name for node in (*tasks.elided_concats, *tasks.aliases) for name in node.results]
    _unless(len(every) == len(set(every)), tasks, "two values have one name")
    later = set(aliases)
    for node in tasks.aliases:
        _unless(not later.intersection(node.uses), tasks, f"alias %{node.name} is of a later one")
        later.difference_update(node.results)
        _unless(ops.is_view(node, types), tasks, f"alias %{node.name} does not only rename")
        inferred = ops.infer(node.op, node.args, node.kwargs, types)
        same = all(map(ops.same_layout, inferred, node.types))
        _unless(same, tasks, f"alias %{node.name} lies otherwise than what it renames")

    verify_elided_concats(tasks)
    elided = {node.name: node.uses for node in tasks.elided_concats}

    settled = set(written)

    def ready(name: str) -> bool:
        if name in settled:
            return True
        if name in elided:
            computed = all(map(ready, elided[name]))
        else:
            computed = name in written or (name in aliases and ready(aliases[name].uses[0]))
        if computed:
            settled.add(name)
        return computed

    for task in tasks.tasks:
        verify_graph(task.body)
        for value in task.body.inputs:
            _unless(ready(value.name), tasks, f"task {task.name} reads %{value.name} too early")
            _unless(
                types[value.name] == value.type,
                tasks,
                f"{task.name}: type of %{value.name} differs",
            )
        for constant in task.body.constants:
            _unless(constant.name in constants, tasks, f"no constant %{constant.name}")
        for name in task.writes:
            once = name not in written and name not in elided
            _unless(once, tasks, f"%{name} is written twice")
            written.add(name)
    for ref in tasks.outputs:
        _unless(ready(ref.name), tasks, f"the output %{ref.name} is not computed")
    verify_states(tasks)


def verify_states(tasks: TaskGraph) -> None:
    """States are the last inputs, and their new values lie where they lie; what is written in the
    memory of something else is of its type, is no part of an elided concat, and is computed by a
    task that reads this memory at the elements that it writes alone: one operator that says so, or
    such as look at one element."""
    names = [state.name for state in tasks.states]
    last = [value.name for value in tasks.inputs][len(tasks.inputs) - len(names) :]
    _unless(sorted(names) == sorted(last), tasks, "its states are not its last inputs")
    types, roots, place = value_types(tasks), alias_roots(tasks), places(tasks)
    for state in tasks.states:
        _unless(0 <= state.output < len(tasks.outputs), tasks, f"%{state.name} has no new value")
        new = tasks.outputs[state.output].name
        there = is_only_read(tasks, state) or place.get(new) == state.name
        _unless(there, tasks, f"%{new} does not lie in the place of the state %{state.name}")
    inputs = {value.name for value in tasks.inputs}
    _unless(inputs.issuperset(place.values()), tasks, "what is no input is written to")
    at = {task.name: i for i, task in enumerate(tasks.tasks)}
    for reader, writer in readers_before_writers(tasks):
        message = f"task {writer} writes over what {reader} reads, and is listed before it"
        _unless(at[reader] < at[writer], tasks, message)
    parts = {name for node in tasks.elided_concats for name in node.uses}
    for task in tasks.tasks:
        for new, old in task.overwrites.items():
            what = f"task {task.name} writes %{new} over %{old}"
            _unless(types[new] == types[old], tasks, f"{what}, which is of another type")
            _unless(new not in parts, tasks, f"{what}, and it is a part of an elided concat")
            home = place[new]
            others = [name for name in task.reads if name != old]
            apart = all(place.get(root, root) != home for root in (roots.get(n, n) for n in others))
            alone = len(task.body.nodes) == 1 and overwritten(task.body.nodes[0]) == old
            alone = alone or written_parts(task.body).get(new) == old
            alone = alone or elementwise(task.body, new, old)
            _unless(apart and alone, tasks, f"{what}, and reads other elements of it")


def verify_elided_concats(tasks: TaskGraph) -> None:
    """An elided concat is a concatenation, along a dimension it names, of results of tasks or
    elided concats before it: each is in one elided concat, once, and has its strides; their sizes
    add up. So parts never overlap."""
    types = value_types(tasks)
    produced = {name for task in tasks.tasks for name in task.writes}
    taken: set[str] = set()
    for node in tasks.elided_concats:
        plain = node.op == "aten.cat.default" and len(node.args) == 2 and not node.kwargs
        dim = node.args[1] if plain else None
        rank = len(node.type.shape)
        fits = isinstance(dim, int) and 0 <= dim < rank and len(node.types) == 1
        _unless(
            fits,
            tasks,
            f"elided concat %{node.name} is no concatenation along a dimension it names",
        )
        along = concat_dim(node)
        for name in node.uses:
            what = f"part %{name} of elided concat %{node.name}"
            _unless(
                name in produced,
                tasks,
                f"{what} is no task's result and no elided concat before it",
            )
            _unless(name not in taken, tasks, f"{what} is a part twice")
            taken.add(name)
            want = _part_type(node.type, along, types[name])
            _unless(types[name] == want, tasks, f"{what} is no {want.text}")
        total = sum(types[name].shape[along] for name in node.uses)
        _unless(
            total == node.type.shape[along], tasks, f"elided concat %{node.name} has another size"
        )
        produced.add(node.name)


def _part_type(whole: TensorType, dim: int, part: TensorType) -> TensorType:
    """The type of a slice of the whole along a dimension, as wide as the part is there."""
    size = part.shape[dim] if dim < len(part.shape) else 0
    shape = (*whole.shape[:dim], size, *whole.shape[dim + 1 :])
    return TensorType(shape, whole.dtype, whole.strides)


def verify_schedule(schedule: Schedule, dag: Dag) -> None:
    """Every task is launched once, waits name earlier launches, and every dependency is covered by
    stream order and waits."""
    launched = [launch.task for launch in schedule.launches]
    if sorted(launched) != sorted(dag.names):
        missing = sorted(set(dag.names) - set(launched))[:5]
        extra = sorted(set(launched) - set(dag.names))[:5]
        raise VerifyError(
            f"schedule {schedule.scheduler} does not launch every task once: "
            f"missing {missing}, unknown {extra}, {len(launched)} launches for {len(dag.names)}"
        )
    position = {name: i for i, name in enumerate(launched)}
    for i, launch in enumerate(schedule.launches):
        for name in launch.waits:
            if position[name] >= i:
                raise VerifyError(f"{launch.task} waits for {name}, which is launched later")
    before = happens_before(schedule)
    for v, preds in enumerate(dag.preds):
        for u in bits(preds):
            if not before[dag.names[v]] >> position[dag.names[u]] & 1:
                raise VerifyError(
                    f"schedule {schedule.scheduler} lets {dag.names[v]} run before its input "
                    f"{dag.names[u]}:\n{text_schedule(schedule)}"
                )


def _unless(condition: bool, tasks: TaskGraph, message: str) -> None:
    if not condition:
        raise VerifyError(f"tasks {tasks.name}: {message}")


def _fail(graph: Graph, bad: Node | None, message: str) -> None:
    lines = list(_neighbourhood(graph, bad)) if bad is not None else []
    raise VerifyError("\n".join([f"graph {graph.name}: {message}", *lines]))


def _neighbourhood(graph: Graph, bad: Node, around: int = 3) -> Iterable[str]:
    at = next(i for i, node in enumerate(graph.nodes) if node is bad)
    for i in range(max(0, at - around), min(len(graph.nodes), at + around + 1)):
        mark = ">" if i == at else " "
        yield f"  {mark} {i:>4} | {text_node(graph.nodes[i])}"
        if i == at:
            yield "           ^"
