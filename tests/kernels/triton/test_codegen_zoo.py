"""Every kind of kernel that the zoo's networks have compiles for GPUs that are not there, and fits
into them: of the bodies with the same operators, however often, the longest of a network, with the
tile that ranks first, and of networks that have it with the same tile one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kernels.triton.test_codegen_compiled import compiled
from tests.networks import ALIKE

from anabranch.compiler.pipeline import compile_model
from anabranch.frontend.from_torch import capture
from anabranch.ir.graph import Graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program, variants
from anabranch.models.load import load_model
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

pytest.importorskip("triton")
REGISTERS, SHARED = 255, {80: 163 << 10, 90: 227 << 10}
"""Of a thread, and bytes of a block, at most."""
ON_TENSOR_CORES = ("contraction", "gemm_chain", "attention")
"""Templates of which Triton makes other programs for either capability: for the older one a third
of them, which still are dozens."""
STACK = 64
"""Bytes of stack that a thread may have: of what ranks first in a forecast, six words may be parked
in a prologue of three sums. What does not fit takes hundreds."""
Known = set[tuple[str, ...]]


@pytest.fixture(name="known", scope="module")
def _known() -> Known:
    """What networks before have had compiled: most kinds are of several."""
    return set()


@pytest.mark.xdist_group("kernels of the zoo")  # what one has compiled, the next need not
@pytest.mark.parametrize("name", sorted(set(ZOO) - set(ALIKE) - {"googlenet"}))  # as Inception
def test_kernels_of_the_zoo_compile(name: str, known: Known, tmp_path: Path) -> None:
    found = dict(kinds(name))
    assert found
    for kind, (body, variant) in found.items():
        if (str(variant), *kind) in known:
            continue
        known.add((str(variant), *kind))
        written = program(body, variant)
        older = variant.template in ON_TENSOR_CORES and len(known) % 3 == 0
        for capability in [90] + [80] * older:
            most = SHARED[capability]
            made = compiled(written, capability, tmp_path)
            said = f"{body.name} {variant} for sm_{capability}: {made['usage']}"
            stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", made["usage"]))
            (registers,) = map(int, re.findall(r"REG:(\d+)", made["usage"]))
            assert stack <= STACK and not local, said
            assert registers <= REGISTERS and int(made["shared"]) <= most, said


def kinds(name: str) -> Iterator[tuple[tuple[str, ...], tuple[Graph, Variant]]]:
    """Of each sequence of operators a body that a template writes, and its first variant."""
    target = resolve("sim:h200", False)
    model, args = load_model(f"zoo:{name}/tiny", 1, "fp16", "cpu")
    options = Options.read({"search": "none"}, environment=False)
    job = Job(model, args, {}, target, options, None, Trace(quiet=True))
    tasks = compile_model(replace(job, captured=capture(model, args)), "fusion")
    for task in sorted(tasks.tasks, key=lambda task: len(task.body.nodes)):
        offers = variants(task.body, target.spec)
        if offers:
            yield (
                (offers[0].template, *sorted({node.op for node in task.body.nodes})),
                (task.body, offers[0]),
            )
