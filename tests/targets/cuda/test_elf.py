"""What a cubin says of itself is what cuobjdump says of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from anabranch.targets.cuda.cubin import Cubin, CubinRecipe, compiling, weight
from anabranch.targets.cuda.elf import facts

triton = pytest.importorskip("triton", reason="compiles with Triton")

USED = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:\d+\s+LOCAL:(\d+)")
SPILLS = """\
import triton
import triton.language as tl


@triton.jit
def spills(a, b, c):
    rows, columns = tl.arange(0, 128)[:, None], tl.arange(0, 64)[None, :]
    inner = tl.arange(0, 16)
    total = tl.zeros((128, 64), tl.float32)
    for k in range(8):
        left = tl.load(a + rows * 128 + inner[None, :] + k * 16)
        total += tl.dot(left, tl.load(b + inner[:, None] * 64 + columns + k * 1024))
    tl.store(c + rows * 64 + columns, total.to(tl.float16))
"""


def recipe(text: str, entry: str, capability: int, warps: int) -> CubinRecipe:
    return CubinRecipe(text, entry, ("*fp16",) * 3, (True,) * 3, capability, warps=warps, stages=1)


def test_the_same_numbers_as_cuobjdump(made: Any, tmp_path: Path) -> None:
    tool = getattr(getattr(triton.knobs.nvidia, "cuobjdump", None), "path", None)
    if tool is None:
        pytest.skip("no cuobjdump here")
    plain = made.programs["plain"].text
    recipes = [recipe(plain, "add", capability, 4) for capability in (80, 90)]
    recipes += [recipe(SPILLS, "spills", capability, 1) for capability in (80, 90)]
    with compiling(recipes) as ready:
        found = dict(ready)
    spilled = []
    for one in recipes:
        built = found[one]
        assert isinstance(built, Cubin), built
        file = tmp_path / "one.cubin"
        file.write_bytes(built.code)
        command = [tool, "--dump-resource-usage", str(file)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = USED.search(said)
        assert used is not None, said
        registers, stack, local = map(int, used.groups())
        assert (built.registers, built.spilled) == (registers, stack + local)
        assert built.entry == one.entry and f"Function {one.entry}:" in said
        spilled.append(built.spilled)
    assert spilled[:2] == [0, 0] and min(spilled[2:]) > 0  # both kinds were compared


def test_what_is_no_cubin_is_told() -> None:
    for data in (b"", b"MZ", b"\x7fELF\x02\x01" + bytes(20), b"\x7fELF\x02\x01" + bytes(200)):
        with pytest.raises(ValueError, match=r"not a"):
            facts(data)


def test_larger_tiles_are_heavier(made: Any) -> None:
    """What has more elements for each thread is begun before what has fewer."""
    small = recipe(made.programs["plain"].text, "add", 90, 4)
    large, shared_out = recipe(SPILLS, "spills", 90, 1), recipe(SPILLS, "spills", 90, 8)
    assert weight(large) > weight(shared_out) > weight(small)
