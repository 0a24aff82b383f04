"""Graphs with concatenations, and their task graphs in which all that may be are elided."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import strategies as st

from anabranch.fusion import partition
from anabranch.fusion.concat_elision import fitting, with_elided
from anabranch.ir.graph import Arg, Graph, Input, Node, Ref
from anabranch.ir.ops import channels_last_strides, make_node
from anabranch.ir.task import TaskGraph
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.library import PROVIDERS
from anabranch.targets.cpu.target import CpuTarget
from anabranch.trace import Trace
from anabranch.tuning.concat_trials import writing

CPU = CpuTarget()


def with_kernels(tasks: TaskGraph) -> TaskGraph:
    """ATen's kernels, and for slices those that run and copy."""
    again = writing(tasks.tasks, tasks, {}, PROVIDERS)
    return replace(
        tasks,
        tasks=tuple(
            replace(task, kernel=next(k for p in again for k in p.kernels(task, CPU.spec)))
            for task in tasks.tasks
        ),
    )


def forced(graph: Graph) -> TaskGraph:
    """The graph with all elided concats that fit, and kernels."""
    tasks = partition(graph, Trace(), CPU.spec)
    tasks = with_elided(tasks, fitting(tasks, Trace()))
    verify_tasks(tasks)
    return with_kernels(tasks)


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Random graphs of pointwise operators, poolings, softmaxes and concatenations."""
    last = draw(st.booleans())
    side, batch = draw(st.integers(1, 4)), draw(st.integers(1, 2))

    def typed(channels: int) -> TensorType:
        shape = (batch, channels, side, side)
        return TensorType(shape, torch.float32, channels_last_strides(shape) if last else ())

    inputs = (Input("x", typed(4)), Input("y", typed(8)))
    table = {value.name: value.type for value in inputs}
    nodes: list[Node] = []
    taken: set[str] = set()
    cats: dict[str, list[str]] = {}
    for i in range(draw(st.integers(3, 14))):
        names = st.sampled_from(sorted(table))
        kind = draw(
            st.sampled_from(
                ("relu", "tanh", "avg_pool2d", "add", "cat", "cat", "slice", "_softmax")
            )
        )
        x = draw(names)
        free = [node.name for node in nodes if node.name not in taken and "cat" not in node.op]
        few = (
            st.lists(st.sampled_from(free), min_size=min(2, len(free)), max_size=4, unique=True)
            if free
            else None
        )
        any_of = st.lists(names, min_size=1, max_size=3)
        parts = draw(few if few is not None and draw(st.integers(0, 4)) else any_of)
        if kind == "cat" and cats and draw(st.booleans()):
            within = draw(st.sampled_from(sorted(cats)))  # one that lies within this one
            more = [name for name in parts if name not in (within, *cats[within])]
            run = [within] if draw(st.booleans()) else cats[within]
            parts = [*run, *more] if draw(st.integers(0, 3)) else [*more, *run]
        if sum(table[name].shape[1] for name in parts) > 64:
            kind = kind.replace("cat", "relu")
        if kind == "cat":
            taken.update(parts)
            cats[f"n{i}"] = parts
        same = [name for name in sorted(table) if table[name] == table[x]]
        args: dict[str, tuple[Arg, ...]] = {
            "cat": (tuple(map(Ref, parts)), 1),
            "avg_pool2d": (Ref(x), (3, 3), (1, 1), (1, 1)),
            "_softmax": (Ref(x), 1, False),
            "slice": (Ref(x), 1, 4 * draw(st.integers(0, table[x].shape[1] // 4 - 1))),
            "add": (Ref(x), Ref(draw(st.sampled_from(same)))),
        }
        overload = "Tensor" if kind in ("add", "slice") else "default"
        node = make_node(f"n{i}", f"aten.{kind}.{overload}", args.get(kind, (Ref(x),)), table)
        table[node.name] = node.type
        nodes.append(node)
    returned = draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=2))
    outputs = dict.fromkeys([*sorted(returned), nodes[-1].name])
    return Graph("random", inputs, (), tuple(nodes), tuple(map(Ref, outputs)))
