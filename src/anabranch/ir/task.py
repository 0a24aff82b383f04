"""Task: nodes that run as one launch. TaskGraph: a whole network of them. Kernel: a way to run one.

A task's body is itself a small Graph whose inputs, constants and outputs carry the names that the
values have outside, so a body can be read, evaluated and timed alone:

    task conv1 {
      graph conv1 {
        input %x: f16[1,3,224,224]
        const %w: f16[64,3,7,7] = 3f..
        %conv: f16[1,64,112,112] = aten.convolution.default(%x, %w, None, [2, 2], ...)
        %relu: f16[1,64,112,112] = aten.relu.default(%conv)
        return %relu
      }
      kernel cudnn.convolution_relu
    }

Views cost nothing and belong to no task: a TaskGraph keeps them as *aliases*, nodes whose results
share the memory of what they rename. Concatenations whose parts are written where they belong cost
nothing either: they are *elided concats*, nodes whose result is memory of which each operand is a
slice.

    task a { ... %a: f16[1,64,54,54]{373248,1,6912,128} ... }     writes channels 0 to 63
    task b { ... %b: f16[1,64,54,54]{373248,1,6912,128} ... }     writes channels 64 to 127
    elided_concat %cat: f16[1,128,54,54]{373248,1,6912,128} = aten.cat.default([%a, %b], 1)

A task whose body has a state writes that result in the memory of what it was before, which is the
place of a state of the network: nobody reads the old value afterwards (`ir.dag` has the edges).

    task step { graph step { input %at: i64[1] ... state %k: f32[1,2,8,4] -> %k_1 ... } }

A part may be an elided concat itself, one listed before: where each layer of a DenseNet reads what
all those before it have written, what one reads is a part of what the next one reads. Its memory is
that of the outermost.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, State
from anabranch.ir.types import TensorType
from anabranch.ir.variant import Variant, parse_variant

GENERATED = "triton"
"""The provider of generated kernels."""
PLAIN_VARIANT = "plain"
"""The variant of a library's kernel that writes nowhere but in memory of its own."""
IN_PLACE = "in_place"
"""The variant of a library's kernel that writes over what it reads, and no more than it must."""
IN_ORDER, IN_PLACE_IN_ORDER = "in_order", "in_place_in_order"
"""The variants of library's kernels that run under `ir.deterministic_switch`: equal bits in each
run."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a launch takes of the GPU: CTAs (grid size), threads and bytes of shared memory a CTA,
    registers a thread. The largest of its kernels where a task launches several. `estimated`: no
    compiler and no GPU told of it; CTAs and threads follow from the tile, the rest is a guess."""

    ctas: int
    threads: int
    registers: int
    shared: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run a task.

    `provider` names the table entry that made it and the runner that a target has for it. `body`
    is the graph that is really run, equal in value to the task's; `source` is generated text.
    `writes_out`: it writes into the memory it is given; otherwise it allocates its results.
    `workspace`: bytes it must be given to run; `temporary`: bytes it allocates by itself while it
    runs. `launches`: GPU kernels in it. `variant`: which of a provider's several, "" if there is
    one: the `Variant` of a generated kernel, or the name of a library's engine.
    """

    provider: str
    name: str
    body: Graph
    variant: Variant | str = ""
    writes_out: bool = False
    workspace: int = 0
    temporary: int = 0
    launches: int = 1
    resources: Resources | None = None
    source: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Task:
    """Nodes that run as one launch, and the kernel chosen for them, None before selection."""

    name: str
    body: Graph
    kernel: Kernel | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Values it reads from outside, constants not included."""
        return tuple(value.name for value in self.body.inputs)

    @property
    def writes(self) -> tuple[str, ...]:
        """Values it hands to the outside."""
        return tuple(ref.name for ref in self.body.outputs)

    @property
    def overwrites(self) -> dict[str, str]:
        """Of values that it writes in the memory of what it reads: what that was before."""
        outputs = self.body.outputs
        return {outputs[state.output].name: state.name for state in self.body.states}

    @property
    def origin(self) -> str:
        """The user's source line of the first node that has one, "" if none has."""
        return next((node.origin for node in self.body.nodes if node.origin), "")


def read_variant(provider: str, text: str) -> Variant | str:
    """The variant of a kernel of this provider, of its text. One of a plan that another version
    wrote may be none here: it stays a text, which is refused when its program is asked for."""
    try:
        return parse_variant(text) if provider == GENERATED else text
    except ValueError:
        return text


def runs_body(task: Task) -> bool:
    """Whether its kernel is the library's, operator by operator: what eager runs."""
    kernel = task.kernel
    return kernel is not None and kernel.provider == "aten" and kernel.body == task.body


def writes_over(kernel: Kernel) -> bool:
    """Whether it is a library's kernel that writes over what it reads."""
    return kernel.provider == "aten" and kernel.variant in (IN_PLACE, IN_PLACE_IN_ORDER)


class TaskGraphMemo:
    """`dag`: what `ir.dag.dag_of` answered, which is kept with the tasks: schedulers, forecasts and
    memory ask for the same one."""

    __slots__ = ("dag",)

    dag: Any


@dataclass(frozen=True, slots=True)
class TaskGraph(TaskGraphMemo):
    """Tasks in an order in which they can run, the aliases between them, what is returned, and the
    elided concats: each is `aten.cat.default` of results of tasks or of elided concats before it,
    which have its strides, and its dimension. `states`: which inputs are states, and which outputs
    their values after a call; they are the last inputs."""

    name: str
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    tasks: tuple[Task, ...]
    aliases: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    elided_concats: tuple[Node, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def call_inputs(self) -> tuple[Input, ...]:
        """The inputs that a call brings: those that are no states."""
        held = {state.name for state in self.states}
        return tuple(value for value in self.inputs if value.name not in held)

    @property
    def joins(self) -> tuple[Node, ...]:
        """The former name of `elided_concats`, for tools written before."""
        return self.elided_concats


@dataclass(frozen=True, slots=True)
class Slice:
    """Where a part of an elided concat lies: in the outermost elided concat's result `whole`, from
    element `offset` on."""

    whole: str
    offset: int


def value_types(tasks: TaskGraph) -> dict[str, TensorType]:
    """The type of every value that crosses a task's border, aliases included."""
    table = {value.name: value.type for value in tasks.inputs}
    table.update((constant.name, constant.type) for constant in tasks.constants)
    for task in tasks.tasks:
        inner = {
            result: type
            for node in task.body.nodes
            for result, type in zip(node.results, node.types, strict=True)
        }
        table.update((name, inner[name]) for name in task.writes)
    for node in (*tasks.elided_concats, *tasks.aliases):
        table.update(zip(node.results, node.types, strict=True))
    return table


def alias_roots(tasks: TaskGraph) -> dict[str, str]:
    """For each alias, the input, constant or task result whose memory it shares."""
    bases: dict[str, str] = {}
    for node in tasks.aliases:
        source = node.uses[0]
        for result in node.results:
            bases[result] = bases.get(source, source)
    return bases


def slices(tasks: TaskGraph) -> dict[str, Slice]:
    """For each part of an elided concat, where it lies."""
    sizes = value_types(tasks) if tasks.elided_concats else {}
    table: dict[str, Slice] = {}
    for node in reversed(tasks.elided_concats):
        dim, lies = concat_dim(node), table.get(node.name, Slice(node.name, 0))
        start = lies.offset
        for name in node.uses:
            table[name] = Slice(lies.whole, start)
            start += sizes[name].shape[dim] * node.type.strides[dim]
    return table


def concat_dim(node: Node) -> int:
    """The dimension that the parts of an elided concat follow each other along."""
    dim = node.args[1]
    assert isinstance(dim, int), "an elided concat names its dimension"
    return dim


def wholes(tasks: TaskGraph) -> dict[str, str]:
    """For each part of an elided concat, the outermost elided concat that it lies in."""
    table: dict[str, str] = {}
    for node in reversed(tasks.elided_concats):
        table |= dict.fromkeys(node.uses, table.get(node.name, node.name))
    return table


def leaves(tasks: TaskGraph) -> dict[str, tuple[str, ...]]:
    """For each elided concat, the results of tasks that it is made of, in order."""
    table: dict[str, tuple[str, ...]] = {}
    for node in tasks.elided_concats:
        parts = (table.get(name, (name,)) for name in node.uses)
        table[node.name] = tuple(itertools.chain.from_iterable(parts))
    return table


def places(tasks: TaskGraph) -> dict[str, str]:
    """For each value that a task writes in the memory of what was there before, the input whose
    memory that is."""
    table: dict[str, str] = {}
    for task in tasks.tasks:
        for after, before in task.overwrites.items():
            table[after] = table.get(before, before)
    return table


def owners(tasks: TaskGraph) -> dict[str, str]:
    """For each value without memory of its own, the value whose memory it shares: the root of an
    alias, the outermost whole of a part, the input that a state's new values lie in."""
    held = wholes(tasks) | places(tasks)
    roots = {alias: held.get(root, root) for alias, root in alias_roots(tasks).items()}
    return held | roots


def task_producers(tasks: TaskGraph) -> dict[str, tuple[str, ...]]:
    """The tasks that compute each value, seen through aliases and elided concats; inputs and
    constants have none, what is no elided concat has one."""
    table: dict[str, tuple[str, ...]] = {}
    table |= {name: (task.name,) for task in tasks.tasks for name in task.writes}
    for node in tasks.elided_concats:
        makers = (table[part] for part in node.uses)
        table[node.name] = tuple(dict.fromkeys(name for names in makers for name in names))
    for alias, base in alias_roots(tasks).items():
        if base in table:
            table[alias] = table[base]
    return table


def extract(tasks: TaskGraph, names: Collection[str]) -> TaskGraph:
    """The named tasks as a graph of their own, to be run or timed alone.

    What they read from outside becomes inputs; what they write and somebody else reads, or nobody
    reads inside, becomes outputs. An elided concat stays one if all its parts are written inside;
    else they are values of their own, and the whole is an input if it is read.
    """
    inside = tuple(task for task in tasks.tasks if task.name in names)
    results = {name for task in inside for name in task.writes}
    leaves_of = leaves(tasks)
    elided = tuple(
        node for node in tasks.elided_concats if results.issuperset(leaves_of[node.name])
    )
    parts = {part for node in elided for part in node.uses}
    memory = [name for task in inside for name in task.writes if name not in parts]
    memory += [node.name for node in elided if node.name not in parts]
    written = results.union(node.name for node in elided)
    bases, types = alias_roots(tasks), value_types(tasks)
    constant = {c.name: c for c in tasks.constants}
    read = dict.fromkeys(name for task in inside for name in task.reads)
    aliases = _aliases_read(tasks, {name for name in read if bases.get(name) in written})
    inner = written | {name for node in aliases for name in node.results}
    outer = [name for name in read if name not in inner and name not in constant]
    kept = {bases.get(name, name) for name in read}
    outside = _read_outside(tasks, names)
    used = {c.name for task in inside for c in task.body.constants} | {*read}
    return TaskGraph(
        f"{tasks.name}.part",
        tuple(Input(name, types[name]) for name in outer),
        tuple(c for c in tasks.constants if c.name in used),
        inside,
        aliases,
        tuple(Ref(name) for name in memory if name in outside or name not in kept),
        elided,
    )


def _aliases_read(tasks: TaskGraph, wanted: set[str]) -> tuple[Node, ...]:
    """The aliases that make the wanted names, and those that these need."""
    bases = alias_roots(tasks)
    aliases: list[Node] = []
    for node in reversed(tasks.aliases):
        if wanted.intersection(node.results):
            aliases.insert(0, node)
            wanted.update(name for name in node.uses if name in bases)
    return tuple(aliases)


def _read_outside(tasks: TaskGraph, names: Collection[str]) -> set[str]:
    """The values that tasks of other names read, or that are returned. A reader of a part wants the
    whole to stay, and a reader of the whole all parts."""
    bases = alias_roots(tasks)
    others = (task for task in tasks.tasks if task.name not in names)
    read = {bases.get(name, name) for task in others for name in task.reads}
    read |= {bases.get(ref.name, ref.name) for ref in tasks.outputs}
    for node in (*tasks.elided_concats, *reversed(tasks.elided_concats)):
        if read.intersection((node.name, *node.uses)):
            read.update((node.name, *node.uses))
    return read
