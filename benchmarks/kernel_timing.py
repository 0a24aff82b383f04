"""Many kernels of one body on a GPU: compiled together, compared, timed side by side.

    body, ["contraction:64x32x64.k1.w4.s3", ...]  -->  {variant: 3.17 us, or why it was refused}

A time is that of one call in a CUDA graph of a chain of them, so that launches cost what they cost
in a plan. Every result is compared with the body in fp64, and two runs must give the same bits: a
counter that is not 0 again, or a sum whose order changes, would show there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anabranch.costs.samples import summarised
from anabranch.deadline import TIME
from anabranch.errors import AnabranchError
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import random_tensor
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.tolerances import compare
from anabranch.ir.types import TensorType
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.targets.cuda.callables import capture_callable
from anabranch.targets.cuda.device import read_spec
from anabranch.targets.cuda.timing import interleaved
from anabranch.targets.cuda.triton import Triton
from anabranch.targets.tf32 import choose, convolution

CHAIN = 20
"""Calls in one graph."""
LONGEST = 64
"""The same where each reads weights of its own."""
WHY = 200
"""Characters of a refusal that are kept."""

Times = dict[str, float | str]
"""Microseconds by the text of each variant, or why there are none."""
Batch = tuple[Graph, Sequence[Variant | str]]
"""A body, and variants of its kernel, or their texts."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A GPU and what was compiled for it."""

    spec: TargetSpec
    device: torch.device
    triton: Triton

    @staticmethod
    def of(tf32: bool = False) -> Bench:
        """The first CUDA GPU. `tf32`: fp32 may be multiplied as tf32, by whoever is compared."""
        device = torch.device("cuda", 0)
        spec = read_spec(device, tf32)
        choose(tf32)
        return Bench(spec, device, Triton(device, spec.capability))

    def times(
        self,
        batch: Batch,
        soon: Batch | None = None,
        each: float = TIME.kernel_alone_s,
        cold: bool = False,
    ) -> Times:
        """The times of these kernels; those of `soon` are compiled meanwhile. `cold`: with weights
        that memory sends, as in a network that has more of them than L2 holds."""
        with self.triton.building(self._kernels(batch)):
            pass
        with self.triton.building(self._kernels(soon)) if soon else contextlib.nullcontext():
            return self._timed(batch, each, cold)

    def copies(self, body: Graph, values: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The values, each time with constants of their own, together twice as large as L2."""
        held = sum(constant.type.nbytes for constant in body.constants)
        count = min(LONGEST, -(-2 * self.spec.l2_bytes // max(held, 1)))
        own = [constant.name for constant in body.constants]
        fresh = [{name: values[name].clone() for name in own} for _ in range(count - 1)]
        return [dict(values), *({**values, **constants} for constants in fresh)]

    def _kernels(self, batch: Batch) -> list[Kernel]:
        body, variants = batch
        task, provider = Task("tried", body), TritonProvider()
        return [provider.kernel(task, self.spec, "", variant) for variant in variants]

    def _timed(self, batch: Batch, each: float, cold: bool) -> Times:
        body, _ = batch
        values = tensors_of(body, self.device)
        wanted, task = expected(body, values), Task("tried", body)
        placed = self.copies(body, values) if cold else [dict(values)]
        times: Times = {}
        ready: dict[str, Callable[[], object]] = {}
        for kernel in self._kernels(batch):
            try:
                own = replace(task, kernel=kernel)
                calls = [self.triton.runner(own, place, None) for place in placed]
                why = wrong(body, values, calls[0], wanted)
                if why:
                    times[str(kernel.variant)] = why
                else:
                    ready[str(kernel.variant)] = chain(*calls)
            except (AnabranchError, RuntimeError) as failed:
                times[str(kernel.variant)] = " ".join(str(failed).split())[:WHY]
                torch.cuda.synchronize()  # raises where the GPU is lost to this process
        samples = interleaved(list(ready.values()), each * len(ready))
        for variant, taken in zip(ready, samples, strict=True):
            times[variant] = summarised(taken, max(CHAIN, len(placed))).us
        return times


def tensors_of(body: Graph, device: torch.device) -> dict[str, Tensor]:
    """Random inputs and constants, and memory for the results. Constants of several dimensions are
    small enough that results stay near 1."""
    declared = [(value.name, value.type) for value in body.inputs]
    declared += [(constant.name, constant.type) for constant in body.constants]
    values = {
        name: laid(type, random_tensor(type, k), device) for k, (name, type) in enumerate(declared)
    }
    for constant in body.constants:
        if len(constant.type.shape) > 1:
            values[constant.name] /= values[constant.name][0].numel() ** 0.5
    table = types(body)
    for ref in body.outputs:
        values[ref.name] = laid(table[ref.name], torch.zeros(()), device)
    return values


def laid(type: TensorType, content: Tensor, device: torch.device) -> Tensor:
    """The content in memory of this type."""
    place = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=device)
    return place.copy_(content)


def chain(*calls: Callable[[], object]) -> Callable[[], object]:
    """A CUDA graph of `CHAIN` calls, one after the other, by turns; of more, if they are more."""

    def in_turn() -> None:
        for number in range(max(CHAIN, len(calls))):
            calls[number % len(calls)]()

    return capture_callable(in_turn)[0]


def expected(body: Graph, values: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What the plain operators give, and what they give in fp64."""
    held = tuple(replace(constant, value=values[constant.name]) for constant in body.constants)
    graph, inputs = replace(body, constants=held), [values[value.name] for value in body.inputs]
    own, truth = eval_graph(graph, inputs), eval_graph(graph, inputs, precision=torch.float64)
    return list(own), list(truth)


def wrong(
    body: Graph,
    values: Mapping[str, Tensor],
    call: Callable[[], object],
    wanted: tuple[Sequence[Tensor], Sequence[Tensor]],
) -> str:
    """Why a kernel's results are not accepted, "" if they are."""
    outs = [values[ref.name] for ref in body.outputs]
    runs: list[list[Tensor]] = []
    for _ in range(2):
        for out in outs:
            out.fill_(_unlikely(out.dtype))
        call()
        runs.append([out.clone() for out in outs])
    torch.cuda.synchronize()
    if not all(map(torch.equal, *runs)):
        return "two runs gave different bits"
    pairs = compare(runs[0], *wanted, convolution.fp32_precision == "tf32")
    return next((f"error {e:.3g} > {limit:.3g}" for e, limit in pairs if not e <= limit), "")


def _unlikely(dtype: torch.dtype) -> float:
    """What is seldom right where nothing was written."""
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).min
