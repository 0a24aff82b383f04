"""Kernels compiled where their GPU is not: a model -> the cubins it may need, in the cache.

    zoo:resnet50, fp16, for sim:h200 --> 375 kernels, 375 compiled, 0 refused

Most of what a first compilation waits for is compilers, which ask for no GPU: a cubin depends on a
text and a compute capability, a text on the model and on what the machine is. A GPU that starts
with this cache has its candidates only to measure. What depends on measured choices is compiled
there: kernels in launch modes, those of elided concats, of what is computed again in several tasks,
of what is merged while that is faster, and of the equal graphs that a search tries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from anabranch.compiler.pipeline import compile_model
from anabranch.errors import OptionError, TargetError
from anabranch.ir.target import TargetSpec
from anabranch.targets.cuda.triton import Triton, available
from anabranch.trace import Trace
from anabranch.tuning.build import tuner_of
from anabranch.tuning.job import Job
from anabranch.tuning.select import candidates
from anabranch.tuning.shortlist import shortlist_of


@dataclass(frozen=True, slots=True)
class PrecompileCounts:
    """kernels: generated candidates of all tasks, equal ones once; compiled: those that were not
    in the cache; refused: those that cannot be compiled, which is kept as well."""

    kernels: int
    compiled: int
    refused: int


def precompile_kernels(job: Job) -> PrecompileCounts:
    """Compile what kernel selection would try for this model on the job's target, into its cache.
    OptionError where it generates no kernels or there is no cache, TargetError without Triton."""
    tuner, spec = tuner_of(job), job.target.spec
    _check(job, tuner.generates, spec)
    graph = compile_model(job, stop_after="rewrite")
    cuts = tuner.cuts(graph, Trace(quiet=True))
    # Of how many structures the cut consists that will be taken is not known here.
    shortlist = shortlist_of(job.target, replace(tuner.effort, together=None))
    offered = candidates(cuts, spec, tuner.providers, tuner.most, shortlist)
    kernels = [kernel for kernel in offered if kernel.provider == "triton"]
    triton = Triton(torch.device("cpu"), spec.capability)
    try:
        _, *compiled = map(len, triton.ready(kernels, job.cache, job.trace))
    finally:
        triton.dismiss()
    refused = sum(bool(triton.refusal(kernel)) for kernel in kernels)
    return PrecompileCounts(len(kernels), sum(compiled), refused)


def _check(job: Job, generates: bool, spec: TargetSpec) -> None:
    if not generates:
        raise OptionError(
            f"there are no kernels to compile for {spec.name}",
            "kernels are generated for GPUs, unless kernels='library' is asked for",
            "name a GPU, such as sim:h200",
        )
    if job.cache is None or job.cache.stats().path is None:
        raise OptionError(
            "there is no cache to compile into",
            "ANABRANCH_CACHE_DIR is empty, or nothing can be written there",
            "let it name a folder, which is then to be brought to the GPU",
        )
    if not available():
        raise TargetError(
            "generated kernels cannot be compiled",
            "package triton is not installed",
            "pip install triton, in the version that torch asks for on the GPU",
        )
