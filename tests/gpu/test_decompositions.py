"""Operators that the front end takes apart, on a GPU, against torch's own there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch

pytestmark = pytest.mark.gpu
QUICK: dict[str, Any] = {"search": "none", "effort": "fast", "cache_dir": None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoders_under_torch_compile(
    dtype: torch.dtype, norm_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which dynamo gives the fast path of torch.nn; at places that no mask hides."""
    monkeypatch.setenv("ANABRANCH_EFFORT", "fast")
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    torch.compiler.reset()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, activation="gelu", batch_first=True, norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = model.to("cuda", dtype).eval()
    x = torch.randn(3, 10, 64, device="cuda", dtype=dtype)
    hidden = torch.arange(10, device="cuda") >= torch.tensor([10, 6, 3], device="cuda")[:, None]
    fast = torch.compile(model, backend="anabranch")
    with torch.no_grad():
        wanted = model.double()(x.double(), src_key_padding_mask=hidden)
        model.to(dtype)
        result = fast(x, src_key_padding_mask=hidden)
    few = 2e-2 if dtype == torch.float16 else 1e-3
    torch.testing.assert_close(result[~hidden].double(), wanted[~hidden], rtol=few, atol=few)
    torch.compiler.reset()


def test_a_step_with_ctc_loss() -> None:
    """Lengths are read where they are: the step is one CUDA graph."""
    torch.manual_seed(0)
    x = torch.randn(3, 8, 4, device="cuda")
    t = torch.tensor([[1, 2, 2, 3], [1, 2, 3, 4], [4, 0, 0, 0]], device="cuda")
    lengths, few = torch.tensor([8, 2, 7]).cuda(), torch.tensor([4, 4, 1]).cuda()

    def loss_fn(model: Any, x: Tensor, t: Tensor, lengths: Tensor, few: Tensor) -> Tensor:
        scores = model(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, t, lengths, few, zero_infinity=True)

    model, eager = nn.Linear(4, 5).cuda(), nn.Linear(4, 5).cuda()
    eager.load_state_dict(model.state_dict())
    step = anabranch.compile_step(
        model, loss_fn, torch.optim.SGD(model.parameters(), 0.1), (x, t, lengths, few), **QUICK
    )
    run = step.executable()
    assert run is not None and run.failure == ""
    theirs = torch.optim.SGD(eager.parameters(), 0.1)
    for told in ((lengths, few), (lengths.flip(0) * 0 + 5, few.clip(max=3))):
        theirs.zero_grad()
        wanted = loss_fn(eager, x, t, *told)
        wanted.backward()  # type: ignore[no-untyped-call]
        theirs.step()
        torch.testing.assert_close(step(x, t, *told), wanted, rtol=1e-4, atol=1e-4)
        for mine, parameter in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter, rtol=1e-4, atol=1e-4)
