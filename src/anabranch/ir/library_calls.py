"""Which kernels call cuBLAS, which keeps memory for each stream that it was called on."""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.plan import Plan
from anabranch.ir.task import Kernel

HOPPER_BYTES, OTHER_BYTES = 33 << 20, 4096 * 1024 * 2 + 16 * 1024 * 8
"""Of one stream, as torch chooses: on GPUs of capability 9.x, measured on an H100, and others."""


def multiplies(kernel: Kernel) -> bool:
    """Whether it calls cuBLAS, as far as operators tell."""
    return kernel.provider == "aten" and any(
        ops.contracts(node) and "conv" not in node.op for node in kernel.body.nodes
    )


def library_streams(plan: Plan) -> list[tuple[int, bool]]:
    """The streams on which the plan calls cuBLAS, each once, and whether urgently."""
    kernels = {task.name: task.kernel for task in plan.tasks.tasks}
    calls = (
        (launch.stream, launch.urgent)
        for launch in plan.schedule.launches
        if (kernel := kernels[launch.task]) is not None and multiplies(kernel)
    )
    return list(dict.fromkeys(calls))


def library_bytes(plan: Plan) -> int:
    """What cuBLAS will keep for the plan on its GPU, by forecast."""
    if plan.spec.kind != "cuda":
        return 0
    each = HOPPER_BYTES if plan.spec.capability[0] == 9 else OTHER_BYTES
    return each * len(library_streams(plan))
