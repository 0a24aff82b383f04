"""Generated kernels as candidates: one for each variant that fits a task's body.

    relu(x + y)  ->  triton.pointwise pointwise:512.w2, triton.pointwise pointwise:1024.w4, ...

Writing needs no GPU and no Triton: a simulated GPU gets the same candidates as the one it stands
for. On a real one they are offered only where Triton is there to compile them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from anabranch.ir.state import elementwise
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.variant import Variant, parse_variant
from anabranch.kernels import sources
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.in_place import why_kernel_not_in_place
from anabranch.options import Pruning

OLDEST = (8, 0)
"""The compute capability from which on Triton's code for bfloat16 and asynchronous copies runs."""


@dataclass(frozen=True, slots=True)
class TritonProvider:
    """Every variant of every template that fits the task; `pruning`: of its many tiles, which."""

    name: str = "triton"
    pruning: Pruning = "time"

    @property
    def version(self) -> str:
        """The digest of the rooms that decide, Triton's version, and how tiles are pruned."""
        return f"{sources.digest()} {sources.installed('triton')} {self.pruning}"

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """A kernel for each variant that fits the body; none below compute capability 8.0 or
        without Triton."""
        if spec.kind != "cuda" or spec.capability < OLDEST:
            return []
        if not (spec.simulated or importlib.util.find_spec("triton")):
            return []
        if any(not elementwise(task.body, new, old) for new, old in task.overwrites.items()):
            return []
        made = [_kernel(task, variant) for variant in variants(task.body, spec, self.pruning)]
        return [kernel for kernel in made if _may_overwrite(task, kernel)]

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """The kernel of this variant, whether it is among those that are offered or not; ValueError
        for a text that is none, or where no template writes it."""
        return _kernel(task, parse_variant(variant) if isinstance(variant, str) else variant)


def _may_overwrite(task: Task, kernel: Kernel) -> bool:
    over = task.overwrites.items()
    return all(why_kernel_not_in_place(kernel, new, old) is None for new, old in over)


def _kernel(task: Task, variant: Variant) -> Kernel:
    written = program(task.body, variant)
    return Kernel(
        "triton",
        variant.template,
        task.body,
        variant,
        writes_out=True,
        workspace=written.scratch,
        source=written.text,
    )
