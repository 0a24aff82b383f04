"""The kernel that waits, assembled for the GPUs that there are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import triton

from anabranch.targets.cuda.device_sleep import PTX

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"


@pytest.mark.skipif(not PTXAS.exists(), reason="this Triton brings no assembler")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_it_is_what_the_assembler_takes(arch: str, tmp_path: Path) -> None:
    text = tmp_path / "sleep.ptx"
    text.write_text(PTX)
    subprocess.run([PTXAS, f"-arch={arch}", text, "-o", tmp_path / "sleep.cubin"], check=True)
