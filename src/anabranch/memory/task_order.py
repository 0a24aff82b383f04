"""An order of tasks in which few bytes live at once: what frees bytes runs as soon as it can.

    forward a, b, c; backward: data gradients dc, db, weight gradients with their updates wc, wb

    by the last node    a b c dc db wc wb      c and dc live until all data gradients are there
    frugal              a b c dc wc db wb      they go with wc

A launch that ends the life of as many bytes as it makes, or makes next to none, runs at once; of
all others the first in their own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.ir.dag import bits, dag_of
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.memory.lifetime import Lifetime, lifetimes
from anabranch.memory.planner import pack

SMALL_RATIO = 1 / 64
"""Of the largest value: bytes that are not worth a launch's waiting for."""


def frugal(tasks: TaskGraph, spec: TargetSpec) -> TaskGraph:
    """The tasks in such an order, if the arena of the sequential plan is smaller by it; else the
    very same ones."""
    dag = dag_of(tasks)
    before = Schedule("sequential", sequential_launches(dag))
    order = _order(dag.preds, lifetimes(tasks, before))
    by_name = {task.name: task for task in tasks.tasks}
    ordered = replace(tasks, tasks=tuple(by_name[dag.names[i]] for i in order))
    after = Schedule("sequential", sequential_launches(dag_of(ordered)))
    arenas = (
        pack(graph, way, spec).arena_bytes for graph, way in ((ordered, after), (tasks, before))
    )
    smaller, larger = arenas
    return ordered if smaller < larger else tasks


def _order(preds: Sequence[int], values: Sequence[Lifetime]) -> list[int]:
    """Launches by number; `values`: whose touches are such numbers."""
    touched: list[list[int]] = [[] for _ in preds]
    left = [value.touches for value in values]
    written = [False] * len(values)
    for number, value in enumerate(values):
        for i in bits(value.touches):
            if i < len(preds):  # the end is one more
                touched[i].append(number)

    small = SMALL_RATIO * max((value.nbytes for value in values), default=0)

    def grows(i: int) -> bool:
        allocated = sum(values[v].nbytes for v in touched[i] if not written[v])
        ended = sum(values[v].nbytes for v in touched[i] if left[v] == 1 << i)
        return allocated - ended > small

    order, done, waiting = list[int](), 0, set(range(len(preds)))
    while waiting:
        ready = [i for i in sorted(waiting) if not preds[i] & ~done]
        chosen = min(ready, key=lambda i: (grows(i), i))
        order.append(chosen)
        waiting.remove(chosen)
        done |= 1 << chosen
        for v in touched[chosen]:
            written[v] = True
            left[v] &= ~(1 << chosen)
    return order
