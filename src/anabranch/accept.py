"""Acceptance: no kernel is chosen that does not compute what its task's body does.

It is compared with the body on random inputs, drawn anew each time (`ir.inputs`), in a fresh arena
that reads as NaN, with fences around all that it may write. An error is judged by the dtype and by
the error of the plain graph in that dtype (`ir.numbers`). Whole plans are compared in `compare`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir import numbers, ops
from anabranch.ir.dag import dag_of
from anabranch.ir.inputs import lookups_fit, random_inputs
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Target
from anabranch.ir.reference import eager_and_reference
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Task, TaskGraph
from anabranch.pack import pack
from anabranch.pack.fence import fence

WRONG = "error"
"""How a verdict on numbers begins."""


def checker(target: Target, cache: Cache | None) -> Callable[[Task], str]:
    """Compares a task's kernel with its body on random inputs; "" or what differs. What passed once
    on this machine is not run again: the whole plan always is."""
    spec = target.spec

    def check(task: Task) -> str:
        if spec.simulated:
            return ""
        key = f"check 2\n{spec.fingerprint}\n{task_text(task)}"
        if cache is not None and cache.get("kernels", key) == "passed":
            return ""
        verdict = ""
        for _ in range(numbers.DRAWS):
            verdict = _kernel_differs(task, target)
            if not verdict.startswith(WRONG):
                break
        if cache is not None and not verdict:
            cache.put("kernels", key, "passed")
        return verdict

    return check


def _kernel_differs(task: Task, target: Target) -> str:
    body = task.body
    alone = TaskGraph(task.name, body.inputs, body.constants, (task,), (), body.outputs)
    plan = fence(pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), target.spec))
    seed = secrets.randbits(31)
    inputs = random_inputs(body, seed, target.device)
    if not lookups_fit(body, inputs):
        return ""  # on a GPU an index outside of its table ends the process
    try:
        own, reference = eager_and_reference(body, inputs, target)
    except (RuntimeError, IndexError, ValueError):
        return ""  # operators that refuse random content are judged in the whole plan alone
    try:
        run = target.load(plan)
        outs = run(inputs)
    except (TargetError, RuntimeError) as failed:
        return f"failed: {str(failed).partition(chr(10))[0]}"
    random = any(ops.info(node.op).random for node in body.nodes)  # anew each time
    for error, allowed in numbers.compare(outs, own, reference, target.spec.tf32):
        if not random and not error <= allowed:
            return f"{WRONG} {error:.2e} where {allowed:.2e} is allowed, of inputs of seed {seed}"
    return run.strays()
