"""Files of ONNX on a GPU: right, and moved there with their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.shared import shared_cache

import anabranch
from anabranch.ir.tolerances import relative_error

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_file_of_onnx_compiled(dtype: torch.dtype, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    files: Any = pytest.importorskip("tests.frontend.onnx.files")
    path = files.written(tmp_path, files.images())
    x = torch.randn(4, 3, 16, 16)
    expected = anabranch.from_onnx(path)(x)
    net = anabranch.from_onnx(path, sizes={"batch": 4}, dtype=dtype).cuda()
    given = x.to("cuda", dtype)
    fast = anabranch.compile(net, (given,), cache_dir=shared_cache(), budget=8.0, search="none")
    allowed = 1e-4 if dtype == torch.float32 else 1e-2
    assert relative_error(fast(given).cpu().float(), expected) < allowed
