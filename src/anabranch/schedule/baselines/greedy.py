"""Greedy: breadth-first stages of all that is ready. IOS's baseline (MLSys 2021, section 6.1).

Each ready node is a group of its own; as many as ten form a stage, the rest waits for the next;
a barrier follows each stage, as in IOS's code. It loses to sequential where the groups of a stage
are of unequal length (IOS's SqueezeNet). `baselines.wavefront` is the same idea without barriers.

         +--> b --> c
    a -->|            +--> e     stages {a} {b | d} {c} {e}: c must wait for all of d
         +--> d ------+
"""

from __future__ import annotations

from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.ios.stages import Stage, stage_schedule

MAX_GROUPS = 10  # as IOS's code has it: ten contexts


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Stages of at most `max_streams` groups of ready tasks, with a barrier after each; costs are
    not asked."""
    dag = dag_of(tasks)
    staged = stages(dag, min(MAX_GROUPS, limits.max_streams))
    return stage_schedule("greedy", dag, staged, barrier=True)


def stages(dag: Dag, max_groups: int = MAX_GROUPS) -> tuple[Stage, ...]:
    """Stages of ready nodes, first come first served."""
    missing = [preds.bit_count() for preds in dag.preds]
    ready = [v for v, count in enumerate(missing) if not count]
    staged: list[Stage] = []
    while ready:
        now, ready = ready[:max_groups], ready[max_groups:]
        staged.append(tuple((v,) for v in now))
        for v in now:
            for w in bits(dag.succs[v]):
                missing[w] -= 1
                if not missing[w]:
                    ready.append(w)
    return tuple(staged)
