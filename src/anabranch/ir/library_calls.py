"""Which kernels call cuBLAS, which keeps memory for each stream that it was called on."""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.task import Kernel


def multiplies(kernel: Kernel) -> bool:
    """Whether it calls cuBLAS, as far as operators tell."""
    return kernel.provider == "aten" and any(
        ops.info(node.op).kind == "contract" and "conv" not in node.op for node in kernel.body.nodes
    )
