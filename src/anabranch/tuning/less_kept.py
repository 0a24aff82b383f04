"""Keeping less of a training step's forward pass where that costs next to nothing: tasks with
kernels -> the same, some of which run again for who reads their results late.

    linear -> gelu -> linear ... loss ... dy -> weight gradient        gelu's result is kept
                      linear ... loss ... dy -> gelu again -> weight gradient    linear's is anyway

A task may run again if it is cheap (no product, no operator that nobody knows, nothing drawn), and
what it reads is there anyway: weights, inputs, values that live as long. It waits for what its
first late reader waits for, or schedulers would run it at once and keep its result after all. Of
these the cheapest for their bytes run again, in one hundredth of the time that all tasks take, the
noise of a step's measurements. A forecast must not say that the step gets slower by more than half
a hundredth: where it does, tasks are taken kind by kind (equal layers have one), of which none may
make it slower by more than a thousandth: it would stand on the critical path. A limit that a user
sets is another matter: `rewrite.remat`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from anabranch.ir import ops
from anabranch.ir.dag import bits, waiting
from anabranch.ir.graph import Graph, Input, Node, Ref, rename
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Task, TaskGraph, alias_roots, value_types, wholes
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program
from anabranch.memory.lifetime import lifetimes
from anabranch.memory.planner import pack
from anabranch.rewrite.remat.remat import FORWARD_SUFFIX, RECOMPUTE_SUFFIX
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.schedule.sequential import in_a_row
from anabranch.trace import Trace
from anabranch.tuning.select import Selection

TIME_SHARE, FORECAST_RATIO, KINDS_RATIO = 0.01, 1.005, 1.001
LEAST_BYTES = 4 << 20
"""Less is not worth launches."""
MOST_KINDS = 8
"""That are tried one by one."""
AGAIN_SUFFIX = "_again"

TaskTime = Callable[[Task], float]


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A task that may run again before the task at a position, which reads `anchor` as well."""

    task: Task
    before: int
    anchor: str
    us: float
    nbytes: int


def selection_with_less_kept(
    selection: Selection, spec: TargetSpec, us: TaskTime, trace: Trace
) -> Selection:
    """The selection with such tasks, of which those that run again have the candidates of those
    that they repeat."""
    tasks, repeated = with_less_kept(selection.tasks, spec, us, trace)
    candidates = selection.candidates
    own = {name: candidates[task] for name, task in repeated.items() if task in candidates}
    return replace(selection, tasks=tasks, candidates={**candidates, **own})


def with_less_kept(
    tasks: TaskGraph, spec: TargetSpec, us: TaskTime, trace: Trace
) -> tuple[TaskGraph, Mapping[str, str]]:
    """The tasks with some that run again, and of each of these by name which one it repeats, if
    their arena is smaller by it; else the very same, and none. `us`: what a task takes alone."""
    if not any(_of_forward(task) for task in tasks.tasks):
        return tasks, {}
    budget_us = TIME_SHARE * sum(map(us, tasks.tasks))
    repeats = _repeats(tasks, us)
    chosen = _cheapest(repeats, budget_us)
    if not _worth_it(chosen):
        return tasks, {}
    before_us = outlook_of(tasks, us, spec)

    def fast(chosen: Sequence[_Repeat], ratio: float = KINDS_RATIO) -> bool:
        changed, copies = _with_copies(tasks, chosen)
        if waiting(changed):
            return False
        after_us = outlook_of(changed, lambda task: us(copies.get(task.name, task)), spec)
        return after_us <= ratio * before_us

    if not fast(chosen, FORECAST_RATIO):
        chosen = _kind_by_kind(repeats, budget_us, fast)
    if not _worth_it(chosen):
        return tasks, {}
    changed, copies = _with_copies(tasks, chosen)
    if not _smaller(tasks, changed, chosen, spec, trace):
        return tasks, {}
    return changed, {name: task.name for name, task in copies.items()}


def _worth_it(chosen: Sequence[_Repeat]) -> bool:
    return sum(repeat.nbytes for repeat in chosen) >= LEAST_BYTES


def _kind_by_kind(
    repeats: Sequence[_Repeat], budget_us: float, fast: Callable[[Sequence[_Repeat]], bool]
) -> list[_Repeat]:
    """Repeats of a few kinds, the cheapest for their bytes first, of those that together save
    enough: each kind that is still fast with those before, as far as the budget goes."""
    kinds: dict[tuple[float, int], list[_Repeat]] = {}
    for repeat in sorted(repeats, key=_rank):
        kinds.setdefault((repeat.us, repeat.nbytes), []).append(repeat)
    chosen = list[_Repeat]()
    for kind in [kind for kind in kinds.values() if _worth_it(kind)][:MOST_KINDS]:
        left_us = budget_us - sum(repeat.us for repeat in chosen)
        more = [*chosen, *_cheapest(kind, left_us)]
        if len(more) > len(chosen) and fast(more):
            chosen = more
    return chosen


def _smaller(
    tasks: TaskGraph, changed: TaskGraph, chosen: Sequence[_Repeat], spec: TargetSpec, trace: Trace
) -> bool:
    """Whether the arena is, by what launches are worth; told if it is."""
    arenas = [
        pack(graph, in_a_row(graph), spec, trace=Trace()).arena_bytes for graph in (tasks, changed)
    ]
    if arenas[0] - arenas[1] < LEAST_BYTES:
        return False
    what = f"{len(chosen)} tasks run again"
    why = f"{sum(repeat.us for repeat in chosen):.1f} us: arena {arenas[0]:,} -> {arenas[1]:,} B"
    names = ", ".join(repeat.task.name for repeat in chosen)
    trace.add("applied", "tuning", what, f"{why}: {names}")
    return True


def _of_forward(task: Task) -> bool:
    return any(node.origin.endswith(FORWARD_SUFFIX) for node in task.body.nodes)


def _repeats(tasks: TaskGraph, us: TaskTime) -> list[_Repeat]:
    """All tasks whose results live where most bytes do, and that may run again behind that; each
    reads nothing that another one of them makes."""
    span = _spans(tasks)
    peak = _peak(span, len(tasks.tasks))
    roots, types = alias_roots(tasks), value_types(tasks)
    readers = _readers(tasks, roots)
    writer_of = {name: i for i, task in enumerate(tasks.tasks) for name in task.writes}
    lost = {old: i for i, task in enumerate(tasks.tasks) for old in task.overwrites.values()}
    fixed = _fixed(tasks, roots)
    repeats, needed = list[_Repeat](), set[str]()
    for task in tasks.tasks[:peak]:
        if len(task.writes) != 1 or not fixed.isdisjoint(task.writes) or not _cheap(task):
            continue
        (value,) = task.writes
        late = [at for at in readers.get(value, ()) if at > peak]
        if not late or value in needed:
            continue
        read = {roots.get(name, name) for name in task.reads}
        there = all(
            span[name][1] >= late[0] if name in span else lost.get(name, late[0]) >= late[0]
            for name in read
        )
        waits = [
            (writer_of.get(roots.get(name, name), -1), name) for name in tasks.tasks[late[0]].reads
        ]
        at, anchor = max(waits)
        if there and at >= peak:
            needed |= read
            repeats.append(_Repeat(task, late[0], anchor, us(task), types[value].nbytes))
    return [repeat for repeat in repeats if needed.isdisjoint(repeat.task.writes)]


def _cheapest(repeats: Sequence[_Repeat], budget_us: float) -> list[_Repeat]:
    ranked = sorted(repeats, key=_rank)
    spent = accumulate(repeat.us for repeat in ranked)
    return [repeat for repeat, total in zip(ranked, spent, strict=True) if total <= budget_us]


def _rank(repeat: _Repeat) -> tuple[float, int]:
    return repeat.us / repeat.nbytes, repeat.before


def _spans(tasks: TaskGraph) -> dict[str, tuple[int, int, int]]:
    """By value of the arena the positions of the first task that touches it and of the last, the
    end being one more, and its bytes."""
    return {
        lifetime.value: (lifetime.writer, max(bits(lifetime.touches)), lifetime.nbytes)
        for lifetime in lifetimes(tasks, in_a_row(tasks))
    }


def _peak(span: Mapping[str, tuple[int, int, int]], count: int) -> int:
    """Where in the row most bytes live."""
    change = [0] * (count + 2)
    for first, last, nbytes in span.values():
        change[first] += nbytes
        change[last + 1] -= nbytes
    live = list(accumulate(change))
    return live.index(max(live))


def _readers(tasks: TaskGraph, roots: Mapping[str, str]) -> dict[str, list[int]]:
    """By value the positions of the tasks that read it, through aliases or not."""
    readers: dict[str, list[int]] = {}
    for i, task in enumerate(tasks.tasks):
        for root in dict.fromkeys(roots.get(name, name) for name in task.reads):
            readers.setdefault(root, []).append(i)
    return readers


def _fixed(tasks: TaskGraph, roots: Mapping[str, str]) -> set[str]:
    """Values that others than tasks read: the caller, elided concats."""
    names = {ref.name for ref in tasks.outputs} | set(wholes(tasks))
    names |= {name for node in tasks.elided_concats for name in node.uses}
    return names | {roots[name] for name in names if name in roots}


def _cheap(task: Task) -> bool:
    kernel = task.kernel
    if kernel is None or task.overwrites or not _of_forward(task):
        return False
    nodes = (*task.body.nodes, *kernel.body.nodes)
    return not any(ops.draws(node) or ops.kind_of(node) in ("contract", "opaque") for node in nodes)


def _with_copies(tasks: TaskGraph, chosen: Sequence[_Repeat]) -> tuple[TaskGraph, dict[str, Task]]:
    """The tasks with those that run again, and of each by its name the one that it repeats."""
    types, roots = value_types(tasks), alias_roots(tasks)
    taken = {*types, *(task.name for task in tasks.tasks)}
    taken.update(name for task in tasks.tasks for node in task.body.nodes for name in node.results)
    copies: dict[int, list[Task]] = {}
    origin: dict[str, Task] = {}
    border: dict[str, tuple[int, str]] = {}
    for repeat in chosen:
        (value,) = repeat.task.writes
        name = _free(repeat.task.name + AGAIN_SUFFIX, taken)
        copy = _repeated(repeat.task, name, Input(repeat.anchor, types[repeat.anchor]), taken)
        origin[name] = repeat.task
        copies.setdefault(repeat.before, []).append(copy)
        border[value] = repeat.before, copy.writes[0]
    aliases, other = list(tasks.aliases), dict[str, tuple[int, str]](border)
    for node in tasks.aliases:
        root = roots[node.results[0]]
        if root in border:
            names = {used: other[used][1] for used in node.uses if used in other}
            alias_copy = _node(node, _free(node.name + AGAIN_SUFFIX, taken), names)
            aliases.append(alias_copy)
            pairs = zip(node.results, alias_copy.results, strict=True)
            other.update((old, (border[root][0], new)) for old, new in pairs)
    row = list[Task]()
    for i, task in enumerate(tasks.tasks):
        row += copies.get(i, ())
        late = (name for name in task.reads if name in other and i >= other[name][0])
        names = {name: other[name][1] for name in late}
        row.append(_reading(task, names) if names else task)
    read = {name for task in row for name in task.reads}
    read |= {name for node in (*tasks.aliases, *tasks.elided_concats) for name in node.uses}
    return replace(tasks, tasks=tuple(row), aliases=_read_aliases(aliases, tasks, read)), origin


def _read_aliases(aliases: Sequence[Node], before: TaskGraph, read: set[str]) -> tuple[Node, ...]:
    """Those there were, and those that somebody reads of the new ones."""
    old = {node.name for node in before.aliases}
    kept = list[Node]()
    for node in reversed(aliases):
        if node.name in old or not read.isdisjoint(node.results):
            kept.append(node)
            read.update(node.uses)
    return tuple(reversed(kept))


def _repeated(task: Task, name: str, anchor: Input, taken: set[str]) -> Task:
    """The task under other names, which waits for the anchor as well."""
    kernel = task.kernel
    assert kernel is not None
    names: dict[str, str] = {}
    for node in (*task.body.nodes, *kernel.body.nodes):
        if node.name not in names:
            renamed = _node(node, _free(node.name + AGAIN_SUFFIX, taken), {})
            names.update(zip(node.results, renamed.results, strict=True))
    body = _renamed(task.body, names)
    if anchor not in body.inputs:
        body = replace(body, inputs=(*body.inputs, anchor))
    same = kernel.provider == "aten" and kernel.body == task.body
    own = body if same else _renamed(kernel.body, names)
    return Task(name, body, _running(kernel, own))


def _reading(task: Task, names: dict[str, str]) -> Task:
    """The task reading other values."""
    assert task.kernel is not None
    kernel = _running(task.kernel, _renamed(task.kernel.body, names))
    return replace(task, body=_renamed(task.body, names), kernel=kernel)


def _running(kernel: Kernel, body: Graph) -> Kernel:
    """The kernel of another body, which differs in names: a generated text tells them."""
    copy = replace(kernel, body=body)
    if kernel.provider == GENERATED and isinstance(kernel.variant, Variant):
        copy = replace(copy, source=program(body, kernel.variant).text)
    return copy


def _renamed(body: Graph, names: dict[str, str]) -> Graph:
    """The body with other names for some of its values."""
    return replace(
        body,
        inputs=tuple(replace(v, name=names.get(v.name, v.name)) for v in body.inputs),
        nodes=tuple(_node(node, names.get(node.name, node.name), names) for node in body.nodes),
        outputs=tuple(Ref(names.get(ref.name, ref.name)) for ref in body.outputs),
    )


def _node(node: Node, name: str, names: dict[str, str]) -> Node:
    """The node under a name, reading other values; a new one is said to run again."""
    args = tuple(rename(arg, names) for arg in node.args)
    kwargs = tuple((key, rename(arg, names)) for key, arg in node.kwargs)
    origin = node.origin
    if name != node.name and origin.endswith(FORWARD_SUFFIX):
        origin = origin.removesuffix(FORWARD_SUFFIX) + RECOMPUTE_SUFFIX
    return Node(name, node.op, args, kwargs, node.types, origin, node.strict)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
