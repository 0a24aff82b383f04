"""Generated kernels as candidates: one for each variant that fits a task's body.

    relu(x + y)  ->  triton.pointwise pointwise:512.w2, triton.pointwise pointwise:1024.w4, ...

Writing needs no GPU and no Triton: a simulated GPU gets the same candidates as the one it stands
for. On a real one they are offered only where Triton is there to compile them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial

from anabranch.ir.determinism import repeated_places
from anabranch.ir.graph import types
from anabranch.ir.protocols import KernelOffer, offered
from anabranch.ir.state import elementwise, written_parts
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.variant import Variant, parse_variant
from anabranch.kernels import sources
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.in_place import why_not_in_place
from anabranch.options import PruningName

MOST_COPIED = 32
"""Elements of a state, at most, for whose copy to its place kernels are offered: counters, whose
copies may share a launch. Larger ones go with the kernels that compute them (`state_stores`), and
trying kernels for hundreds of shapes takes a minute."""
OLDEST = (8, 0)
"""The compute capability from which on Triton's code for bfloat16 and asynchronous copies runs."""


@dataclass(frozen=True, slots=True)
class TritonProvider:
    """Every variant of every template that fits the task; `pruning`: of its many tiles, which;
    `in_order`: only what gives the same bits in each run."""

    name: str = "triton"
    pruning: PruningName = "time"
    in_order: bool = False

    @property
    def version(self) -> str:
        """The digest of the rooms that decide, Triton's version, and how tiles are pruned."""
        order = " in order" if self.in_order else ""
        return f"{sources.digest()} {sources.installed('triton')} {self.pruning}{order}"

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """A kernel for each variant that fits the body; none below compute capability 8.0 or
        without Triton."""
        return [offer.write() for offer in self.kernel_offers(task, spec)]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels. Only where a task writes over a state their texts are needed to know
        which there are."""
        if spec.kind != "cuda" or spec.capability < OLDEST:
            return []
        if not (spec.simulated or importlib.util.find_spec("triton")):
            return []
        over, parts = task.overwrites, written_parts(task.body)
        if not all(new in parts or _is_small_copy(task, new, old) for new, old in over.items()):
            return []
        if self.in_order and repeated_places(task.body):
            return []
        each = variants(task.body, spec, self.pruning)
        if not over:
            return [_unwritten(task, variant) for variant in each]
        candidates = (_kernel(task, variant) for variant in each)
        return [offered(k) for k in candidates if why_not_in_place(k, over) is None]

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """The kernel of this variant, whether it is among those that are offered or not; ValueError
        for a text that is none, or where no template writes it."""
        return _kernel(task, parse_variant(variant) if isinstance(variant, str) else variant)


def _is_small_copy(task: Task, new: str, old: str) -> bool:
    small = types(task.body)[old].numel <= MOST_COPIED
    return small and elementwise(task.body, new, old)


def _unwritten(task: Task, variant: Variant) -> KernelOffer:
    return KernelOffer("triton", variant.template, variant, True, partial(_kernel, task, variant))


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
