"""Kernels compile for GPUs that are not there, in vectors and without spills."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from tests.kernels.dfg.test_concat_stores import recurrence
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.interpreter import load_module
from tests.kernels.triton.samples import SAMPLES

from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.program import Program

triton = pytest.importorskip("triton")
POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.bool: "*i1",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
VECTORS = r"ld\.global\.v[24]\.b32|cp\.async\.cg\.shared\.global .*, 0x10,"
SPILLED = 16
"""Bytes of stack a thread may have: CUDA 13's ptxas parks four words of what 12's keeps in
registers, for one more block on each multiprocessor. What does not fit takes hundreds."""


def compiled(written: Program, capability: int, tmp: Path) -> dict[str, str]:
    """The kernel's PTX, what `cuobjdump` tells of its cubin, and the bytes of shared memory that it
    is launched with."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(load_module(written.text), written.entry)
    pointers = [POINTERS[dtype] for dtype in written.dtypes]
    pointers += ["*u8"] * bool(written.scratch) + ["*i32"] * bool(written.counters)
    signature = dict(zip(kernel.arg_names, pointers, strict=True))
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
    source = ASTSource(kernel, signature=signature, constexprs={}, attrs=aligned)
    options = {"num_warps": written.warps, "num_stages": written.stages}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    file = tmp / "kernel.cubin"
    file.write_bytes(built.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True)
    return {"ptx": built.asm["ptx"], "usage": usage.stdout, "shared": str(built.metadata.shared)}


@pytest.mark.parametrize(
    ("name", "capability"),
    [(name, 90) for name in SAMPLES] + [(name, 80) for name in list(SAMPLES)[::3]],
)
def test_compiles_without_spills(name: str, capability: int, tmp_path: Path) -> None:
    variant, text = SAMPLES[name]
    found = compiled(program(parse_graph(text), variant), capability, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert stack <= SPILLED and not local, found["usage"]
    narrow = re.findall(r"(ld|st)\.global\.b16", found["ptx"])
    # Of one row's results and biases each thread has a single one, and of what rows reduce to.
    alone = {"gemm_chain_of_one_row": {"ld", "st"}, "rows_that_are_shared": {"st"}}
    assert alone.get(name, set()).issuperset(narrow), "not in vectors"
    assert re.search(VECTORS, found["ptx"]), "not in vectors"
    if name == "contraction":
        assert "mma" in found["ptx"] and "cp.async" in found["ptx"]
    if name == "window":
        assert "bar.sync" not in found["ptx"], "threads wait for each other"


def test_a_recurrence_reads_ahead(tmp_path: Path) -> None:
    """All that sixteen steps read is under way before the first of them writes."""
    body = parse_graph(recurrence(16, 512, "f16"))
    found = compiled(program(body, variants(body, gpu())[0]), 90, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert stack <= SPILLED and not local, found["usage"]
    order = re.findall(r"\b(ld|st)\.global", found["ptx"])
    assert order == ["ld"] * 33 + ["st"] * 17
