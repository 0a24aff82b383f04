"""Sizes as users ask for them: which dimensions vary, which sizes are compiled, what must fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anabranch.compiled.size_proofs import proved, tensors_of
from anabranch.compiled.sized import SizedCalls
from anabranch.compiler.buckets import buckets
from anabranch.errors import OptionError
from anabranch.frontend.dynamic_shapes import (
    leading_batch,
)
from anabranch.frontend.padding_proof import PaddingProof
from anabranch.frontend.program import name_of
from anabranch.frontend.symbolic_shapes import read_dynamic_shapes
from anabranch.ir.refused import Refused
from anabranch.trace import Trace
from anabranch.tuning.job import Job


def check_listed(sizes: Any) -> None:
    """OptionError for what is to be warmed and is not in a list, or where there is nothing: a
    tensor alone would be taken for one size after another."""
    if not isinstance(sizes, (list, tuple)):
        raise OptionError(
            f"the sizes to warm are a {type(sizes).__name__}",
            "each is a call of its own, and there may be several",
            "give them in a list, of one size too: [8], [x] or [(x, y)]",
        )
    if not sizes:
        raise OptionError(
            "there is nothing to warm", "no sizes were given", "give the inputs of each size"
        )
    for size in sizes:
        if isinstance(size, (str, bytes, float)):
            raise OptionError(
                f"{size!r} is no size",
                "a size is a number, or several in a tuple, or the inputs of a call of that size",
                "give numbers: [8] or [(8, 128)]; or inputs: [x] or [(x, y)]",
            )


def chosen(job: Job, dynamic_shapes: Any, sizes: Any) -> tuple[SizedCalls, list[tuple[int, ...]]]:
    """The dimensions that vary in calls of the job's model, and the sizes to compile, largest
    first. Where calls between them are not padded, it is said why."""
    shapes = dynamic_shapes
    if shapes is None:
        shapes = leading_batch(job.args, job.kwargs)
        if shapes is None:
            raise OptionError(
                "sizes were given, and nobody says of what",
                "the inputs have no first axis of one size, which would be the batch",
                "give dynamic_shapes, as torch.export takes it",
            )
    example = job.args, job.kwargs
    shapes = read_dynamic_shapes(job.model, *example, shapes, job.surroundings, job.trace)
    calls = proved(job, shapes)
    paddable = [isinstance(proof, PaddingProof) for proof in calls.proofs]
    positional, named = calls.inside(*example, [each.least for each in shapes.dimensions])
    at = buckets(replace(job, args=positional, kwargs=named), shapes, sizes, paddable)
    told = "run the model as it is" if job.options.unseen == "eager" else "are refused"
    for dimension, proof in zip(shapes.dimensions, calls.proofs, strict=True):
        if isinstance(proof, Refused):
            why = f"calls with another {dimension.name} than was compiled {told}: {proof}"
            job.trace.add("warning", "capture", dimension.name, why)
    return calls, at


def check_limit(job: Job, calls: SizedCalls, sizes: Sequence[Sequence[int]]) -> None:
    """OptionError where inputs of one of these sizes take more than memory_limit, before any is
    made."""
    limit, example = job.options.memory_limit, (job.args, job.kwargs)
    taken, largest = max((calls.shapes.bytes_of(*example, at), tuple(at)) for at in sizes)
    if limit is not None and taken > limit:
        raise OptionError(
            f"{name_of(job.model)} does not fit memory_limit",
            f"its inputs take {taken:,} B at size {', '.join(map(str, largest))}, and {limit:,} B "
            "are allowed",
            "raise memory_limit, or compile for smaller inputs",
        )


def batched(
    job: Job, earlier: tuple[SizedCalls, tuple[int, ...]] | None
) -> tuple[SizedCalls, tuple[int, ...]]:
    """What `batch="pad"` says: the first axis of all inputs varies. `earlier`: what is known of
    such calls, and the size of this one. OptionError where padding is not proved harmless."""
    if earlier is not None:
        return earlier
    shapes, why = leading_batch(job.args, job.kwargs), ""
    if job.captured is not None:
        why = "torch.compile hands over a graph for one batch, and compiles others itself"
    elif shapes is None:
        why = "its inputs have no first axis of one size, which would be the batch"
    else:
        example = job.args, job.kwargs
        shapes = read_dynamic_shapes(
            job.model, *example, shapes, job.surroundings, Trace(quiet=True)
        )
        calls = proved(job, shapes)
        at = shapes.sizes_of(tensors_of(job.args, job.kwargs))
        if at is not None and isinstance(calls.proofs[0], PaddingProof):
            return calls, at
        why = str(calls.proofs[0])
    raise OptionError(
        'the model cannot be compiled with batch="pad"',
        why,
        'compile it with batch="refuse", and add a plan for each batch with .add(...)',
    )
