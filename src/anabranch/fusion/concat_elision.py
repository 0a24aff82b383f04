"""Joins: concatenations that cost nothing, because their parts are written where they belong.

    a = relu(conv(x))  1.9 us            a writes channels 0..63 of cat    2.0 us
    b = relu(conv(y))  2.1 us     ->     b writes channels 64..127         2.1 us
    cat = cat([a, b])  1.8 us            cat = elided [a, b]

A result that is a slice has the strides of the whole: its task's body says them, so another kernel
may be the best for it, and another for those who read the slice alone. An operand that no task
writes, but that is cut out of something else or comes from outside, is copied to its place by a
task of its own, which waits for nothing but that. An elided concat may lie within another one, as a
run of its parts:

    cat_2 = cat([a, b])        cat_2 = elided [a, b]
    cat_3 = cat([a, b, c])     cat_3 = elided [cat_2, c]

An elided concat is worth it if all of them together take less than they did with the concatenation.
`fitting` says what may be joined, `with_elided` makes the task graph, `worth` decides, each set of
elided concats that share tasks or memory by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.fusion.merge_cuts import ESTIMATED
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, types, users
from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task, TaskGraph, alias_roots, value_types
from anabranch.ir.types import BLOCK, TensorType
from anabranch.trace import Trace

CAT, CLONE = "aten.cat.default", "aten.clone.default"
AS_STRIDED = "aten.as_strided.default"


def fitting(tasks: TaskGraph, trace: Trace) -> tuple[str, ...]:
    """The names of tasks that are concatenations and nothing else, and may be elided concats. What
    may not is an event. A value is a slice of one whole: of several that want it, the first, unless
    that lies within the others."""
    nest, names, around = _Nest.of(tasks), list[str](), _Surroundings.of(tasks)
    for task in tasks.tasks:
        if [node.op for node in task.body.nodes] != [CAT]:
            continue
        why = _why_not(task, around, nest)
        if why:
            trace.add("refused", "fusion", task.name, why.sentence)
        else:
            nest.add(task.body.nodes[0])
            names.append(task.name)
    return tuple(names)


def with_elided(tasks: TaskGraph, names: Collection[str]) -> TaskGraph:
    """The graph with these concatenations as elided concats. Tasks that write or read a part have
    it with the strides of the whole, and no kernel any more; nor have those that copy parts. One
    that is within another is among them if that is."""
    elided: list[Node] = []
    listed: list[Task] = []
    nest, taken = _Nest.of(tasks), set(value_types(tasks))
    for task in tasks.tasks:
        if task.name in names:
            (node,) = task.body.nodes
            parts = nest.add(node)
            copies = _copies(task, parts, nest.written, taken)
            copied = {copy.reads[0]: copy.name for copy in copies}
            taken.update(copied.values())
            args = tuple(Ref(copied.get(name, name)) for name in parts), _dim(node)
            elided.append(replace(node, args=args, kwargs=()))
            listed += copies
        else:
            listed.append(task)
    strides: dict[str, tuple[int, ...]] = {}
    for node in reversed(elided):
        strides |= dict.fromkeys(node.uses, strides.get(node.name, node.type.strides))
    elided = [_with_strides(node, strides) for node in elided]
    aliases, strides = _renamed(tasks.aliases, value_types(tasks), strides)
    changed = tuple(_restrided(task, strides) for task in listed)
    return replace(
        tasks, tasks=changed, aliases=aliases, elided_concats=(*tasks.elided_concats, *elided)
    )


@dataclass(frozen=True, slots=True)
class _Nest:
    """Joins so far, by name: along which dimension, of which values of the graph, and for each
    value and elided concat the outermost that holds it. `written`: what tasks write; the rest is
    copied, and may lie in several."""

    written: Collection[str]
    dims: dict[str, int] = field(default_factory=dict)
    leaves: dict[str, tuple[str, ...]] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(tasks: TaskGraph) -> _Nest:
        apart = [task for task in tasks.tasks if not task.overwrites]
        return _Nest({name for task in apart for name in task.writes})

    def add(self, node: Node) -> tuple[str, ...]:
        """The parts of one more elided concat: what it concatenates, with elided concats for runs
        of what lies in these."""
        parts = self.parts(node)
        assert not isinstance(parts, Refused), parts
        self.dims[node.name], self.leaves[node.name] = _dim(node), self._flat(node.uses)
        for part in parts:
            if part in self.written or part not in self.home:
                inside = (name for name, whole in self.home.items() if whole == part)
                within = (part, *self.leaves.get(part, ()), *inside)
                self.home.update(dict.fromkeys(within, node.name))
        return parts

    def parts(self, node: Node) -> tuple[str, ...] | Refused:
        """The parts it would have, or why it cannot lie beside those so far."""
        names, parts = self._flat(node.uses), list[str]()
        while names:
            whole, run = self._whole(names, _dim(node))
            if not run:
                return Refused(f"%{names[0]} may be a part of {whole}")
            if whole in parts:
                return Refused(f"%{whole} is in it twice")
            parts.append(whole)
            names = names[len(run) :]
        return tuple(parts)

    def _whole(self, names: tuple[str, ...], dim: int) -> tuple[str, tuple[str, ...]]:
        """The outermost elided concat that the names begin with, and what it is made of; the first
        of them if none holds it; if another one does, that one and nothing."""
        homes = [self.home.get(names[0], names[0])]
        if names[0] not in self.written:
            homes = [*dict.fromkeys(self.home.values()), names[0]]
        for whole in homes:
            run = self.leaves.get(whole, (whole,))
            if names[: len(run)] == run and self.dims.get(whole, dim) == dim:
                return whole, run
        return homes[0], ()

    def _flat(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(leaf for name in names for leaf in self.leaves.get(name, (name,)))


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What is asked of a task graph for each of its concatenations. `writers`: the task of each
    value; `constants`, `returned`: names; `aliases`: of each value whose memory they share, in
    order; `table`: types; `reads`: for each value the nodes in bodies that read it."""

    writers: Mapping[str, Task]
    constants: Collection[str]
    returned: Collection[str]
    aliases: Mapping[str, Sequence[Node]]
    table: Mapping[str, TensorType]
    reads: Mapping[str, Sequence[Node]]

    @staticmethod
    def of(tasks: TaskGraph) -> _Surroundings:
        roots = alias_roots(tasks)
        aliases: dict[str, list[Node]] = {}
        for node in tasks.aliases:
            aliases.setdefault(roots[node.results[0]], []).append(node)
        reads: dict[str, list[Node]] = {}
        for task in tasks.tasks:
            for name, nodes in users(task.body).items():
                reads.setdefault(name, []).extend(nodes)
        return _Surroundings(
            {name: task for task in tasks.tasks for name in task.writes},
            {constant.name for constant in tasks.constants},
            {roots.get(ref.name, ref.name) for ref in tasks.outputs},
            aliases,
            value_types(tasks),
            reads,
        )


def touching(before: TaskGraph, after: TaskGraph) -> tuple[Task, ...]:
    """The tasks of `after` whose kernels are to be chosen: they write or read what has been joined
    since, or an alias of it. Their bodies may be what they were: rows below each other keep their
    strides."""
    parts = {
        name
        for node in after.elided_concats
        if node not in before.elided_concats
        for name in node.uses
    }
    roots = alias_roots(after)
    return tuple(task for task in after.tasks if not parts.isdisjoint(_touched(task, roots)))


def _touched(task: Task, roots: Mapping[str, str]) -> set[str]:
    """What the task reads or writes, and not by an alias."""
    return {roots.get(name, name) for name in (*task.reads, *task.writes)}


def worth(
    plain: TaskGraph,
    whole: TaskGraph,
    cost: Callable[[Task], Cost],
    trace: Trace,
    hopeful: bool = False,
) -> tuple[str, ...]:
    """The elided concats of `whole` that are faster than the concatenations of `plain`; both have
    kernels. An elided concat that was only estimated does not replace what was measured. `hopeful`:
    the two will be compared as wholes, with parts that run side by side: so estimates will do, and
    the parts may lose together what each of their readers no longer waits for."""
    was = {task.name: task for task in plain.tasks}
    changed = {task.name: task for task in touching(plain, whole)}
    kept: list[str] = []
    for elided, names in _sharing(whole, changed):
        before = [cost(was[name]) for name in (*names, *elided) if name in was]
        after = [cost(changed[name]) for name in names]
        us, guess = _sums(before, after)
        if hopeful:
            us, guess = (us[0] + sum(cost(was[name]).us for name in elided), us[1]), False
        said = f"{us[1]:.2f} us with {len(names)} tasks writing or reading slices"
        if us[1] < us[0] and not guess:
            why = f"{said}, {us[0]:.2f} with the concatenation"
            trace.add("applied", "fusion", ", ".join(elided), why, us=us[0] - us[1])
            kept += elided
        else:
            why = f"{said} >= {us[0]:.2f} with the concatenation"
            told = {"us": us[1], "apart_us": us[0]} if guess else {}
            why = f"{ESTIMATED}, the concatenation is known" if guess else why
            trace.add("refused", "fusion", ", ".join(elided), why, **told)
    return tuple(kept)


def _why_not(task: Task, around: _Surroundings, nest: _Nest) -> Refused | None:
    """Why the concatenation cannot be an elided concat."""
    (node,) = task.body.nodes
    table = types(task.body)
    if not node.type.numel:
        return Refused(f"%{node.name} is empty")
    writers = around.writers
    if writers.keys().isdisjoint(node.uses):
        return Refused("no task writes any of its parts")
    for name, start in zip(node.uses, _starts(node, table), strict=True):
        if name in around.constants:
            return Refused(f"%{name} is a constant")
        if table[name].dtype != node.type.dtype or len(table[name].shape) != len(node.type.shape):
            return Refused(f"%{name} is {table[name].text}, the result {node.type.text}")
        if start * node.type.dtype.itemsize % BLOCK:
            return Refused(f"%{name} would start at no multiple of {BLOCK} bytes")
        if name in writers and name not in nest.leaves and writers[name].body.nodes[-1].op == CAT:
            return Refused(f"%{name} is a concatenation itself")
    parts = nest.parts(node)
    if isinstance(parts, Refused):
        return parts
    # What is no task's is copied. What lies in an elided concat within this one has been asked
    # before, but for its aliases: the strides that it then had may have been its own.
    inner = (name for name, whole in nest.home.items() if whole in parts and name in writers)
    reasons = (_why_fixed(name, node, around) for name in parts if name in writers)
    within = (_why_strided(name, node, around) for name in inner)
    return next(filter(None, (*reasons, *within)), None)


def _why_fixed(name: str, whole: Node, around: _Surroundings) -> Refused | None:
    """Why the value cannot have the strides of the whole."""
    why = _why_strided(name, whole, around)
    if why:
        return why
    if name in around.returned:
        return Refused(f"%{name} is returned")
    view = next((n for n in around.reads.get(name, ()) if ops.kind_of(n) == "view"), None)
    return (
        Refused(f"%{view.name} needs %{name} in strides of its own") if view is not None else None
    )


def _why_strided(name: str, whole: Node, around: _Surroundings) -> Refused | None:
    """Why its aliases cannot have the strides of the whole."""
    if name in around.aliases:
        try:
            _renamed(around.aliases[name], around.table, {name: whole.type.strides})
        except (RuntimeError, ValueError):
            return Refused(f"%{name} has an alias that needs it in strides of its own")
    return None


def _starts(node: Node, table: Mapping[str, TensorType]) -> Iterator[int]:
    """The element that each part begins at."""
    dim, start = _dim(node), 0
    for name in node.uses:
        yield start * node.type.strides[dim]
        shape = table[name].shape
        start += shape[dim] if dim < len(shape) else 0


def _dim(node: Node) -> int:
    dim = ops.arguments(node).get("dim", 0)
    assert isinstance(dim, int), "a concatenation along no number"
    return dim % max(1, len(node.type.shape))


def _copies(
    task: Task, parts: Sequence[str], written: Collection[str], taken: Collection[str]
) -> list[Task]:
    """Tasks that copy the parts that no task has made, under names that are not taken yet."""
    (node,) = task.body.nodes
    names, copies = set(taken), list[Task]()
    for value in task.body.inputs:
        if value.name in parts and value.name not in written:
            name = f"{task.name}_{value.name.replace('.', '_')}"
            while name in names:
                name += "_"
            copy = Node(name, CLONE, (Ref(value.name),), (), (value.type,), node.origin)
            body = Graph(name, (value,), (), (copy,), (Ref(name),))
            copies.append(Task(name, body))
            names.add(name)
    return copies


def _renamed(
    before: Sequence[Node],
    table_before: Mapping[str, TensorType],
    strides: Mapping[str, tuple[int, ...]],
) -> tuple[tuple[Node, ...], dict[str, tuple[int, ...]]]:
    """The aliases where these values have these strides, and the strides with those of aliases
    that come to have others. ValueError, or RuntimeError, if one would be no alias any more."""
    table, all_strides = dict(table_before), dict(strides)
    table |= {
        n: replace(table_before[n], strides=steps)
        for n, steps in strides.items()
        if n in table_before
    }
    aliases: list[Node] = []
    for node in before:
        if all_strides.keys().isdisjoint(node.uses):
            aliases.append(node)
            continue
        if node.op == AS_STRIDED:
            raise ValueError(f"%{node.name} says by itself where its elements lie")
        kinds = ops.infer(node.op, node.args, node.kwargs, table)
        node = replace(node, types=kinds)
        if not ops.is_view(node, table):
            raise ValueError(f"%{node.name} would be a copy")
        aliases.append(node)
        for name, type in zip(node.results, kinds, strict=True):
            table[name], all_strides[name] = type, type.strides
    return tuple(aliases), all_strides


def _restrided(task: Task, strides: Mapping[str, tuple[int, ...]]) -> Task:
    """The task with other strides of what it reads and writes; itself if it does neither."""
    body = task.body
    if not strides.keys() & {*task.reads, *task.writes}:
        return task
    inputs = (
        replace(v, type=replace(v.type, strides=strides.get(v.name, v.type.strides)))
        for v in body.inputs
    )
    nodes = tuple(_with_strides(node, strides) for node in body.nodes)
    return Task(task.name, replace(body, inputs=tuple(inputs), nodes=nodes))


def _with_strides(node: Node, strides: Mapping[str, tuple[int, ...]]) -> Node:
    """The node with these strides of its results."""
    kinds = zip(node.results, node.types, strict=True)
    return replace(
        node,
        types=tuple(replace(kind, strides=strides.get(n, kind.strides)) for n, kind in kinds),
    )


def _sharing(whole: TaskGraph, changed: Mapping[str, Task]) -> list[tuple[list[str], list[str]]]:
    """Joins in sets, and the changed tasks that touch each set: no task touches two sets, and a
    elided concat is in the set of the one it lies in."""
    sets: list[tuple[list[str], list[str]]] = []
    roots = alias_roots(whole)
    touched = {name: _touched(task, roots) for name, task in changed.items()}
    for node in whole.elided_concats:
        names = [name for name, values in touched.items() if values.intersection(node.uses)]
        mine: tuple[list[str], list[str]] = ([node.name], names)
        for other in list(sets):
            if not {*other[0], *other[1]}.isdisjoint((*node.uses, *names)):
                sets.remove(other)
                mine = ([*other[0], *mine[0]], list(dict.fromkeys((*other[1], *mine[1]))))
        sets.append(mine)
    return sets


def _sums(before: Sequence[Cost], after: Sequence[Cost]) -> tuple[tuple[float, float], bool]:
    """Both sums, and whether the second is only a guess where the first is known."""
    measured = any(cost.source != "estimated" for cost in before)
    guess = measured and any(cost.source == "estimated" for cost in after)
    return (sum(cost.us for cost in before), sum(cost.us for cost in after)), guess
