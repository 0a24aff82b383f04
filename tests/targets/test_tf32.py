"""torch's switches of tf32, whichever of them somebody has set before: in pairs old and new, one
for all operators, one for cuDNN's, one for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.backends import cudnn, mkldnn
from torch.backends.cuda import matmul

import anabranch
from anabranch.frontend.from_torch import capture
from anabranch.targets.tf32 import convolution, precision

onednn = mkldnn.matmul  # type: ignore[attr-defined]
EVERYTHING, OPERATORS = torch.backends, (convolution, cudnn.rnn, matmul)

STATES: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "bf16 on CPUs": lambda: demand(onednn, "bf16"),
    "all in tf32": lambda: demand(EVERYTHING, "tf32"),
    "all without": lambda: demand(EVERYTHING, "ieee"),
    "cuDNN's in tf32": lambda: demand(cudnn, "tf32"),
    "cuDNN's without": lambda: demand(cudnn, "ieee"),
    "convolutions without": lambda: demand(convolution, "ieee"),
    "products in tf32": lambda: demand(matmul, "tf32"),
    "the older ones": lambda: allow(True),
    "the older ones, without": lambda: allow(False),
    "the older ones, and what cuDNN's inherit": lambda: inherited("tf32"),
}


def demand(switch: object, wanted: str) -> None:
    setattr(switch, "fp32_precision", wanted)  # noqa: B010


def allow(tf32: bool) -> None:
    cudnn.allow_tf32 = matmul.allow_tf32 = tf32


def inherited(wanted: str) -> None:
    allow(True)
    for switch, own in ((cudnn, wanted), (convolution, "none"), (cudnn.rnn, "none")):
        demand(switch, own)


def told(switch: object) -> object:
    try:
        return getattr(switch, "allow_tf32")  # noqa: B009
    except RuntimeError:
        return "refused: the other family contradicts"


def products() -> object:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "refused: the other families contradict"


def state() -> list[object]:
    demanded = [switch.fp32_precision for switch in (EVERYTHING, cudnn, *OPERATORS, onednn)]
    return [*demanded, told(cudnn), told(matmul), products()]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    for switch in (EVERYTHING, cudnn, matmul, onednn):
        demand(switch, "none")
    cudnn.allow_tf32 = True


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("name", STATES)
def test_all_switches_agree_within_and_are_as_before_afterwards(name: str, tf32: bool) -> None:
    STATES[name]()
    before = state()
    with precision(tf32):
        assert {switch.fp32_precision for switch in OPERATORS} == {"tf32" if tf32 else "ieee"}
        assert cudnn.fp32_precision == ("tf32" if tf32 else "ieee")  # inductor's templates ask this
        assert told(cudnn) == told(matmul) == tf32
        assert products() == ("high" if tf32 else "highest")
        with precision(not tf32):
            assert told(cudnn) == told(matmul) == (not tf32)
        assert told(cudnn) == told(matmul) == tf32
    assert state() == before


def test_what_was_inherited_is_inherited_again() -> None:
    demand(EVERYTHING, "tf32")
    with precision(tf32=False):
        pass
    demand(EVERYTHING, "ieee")
    assert {switch.fp32_precision for switch in OPERATORS} == {"ieee"}


def test_an_error_restores_them() -> None:
    before = state()
    with pytest.raises(KeyError), precision(tf32=True):
        raise KeyError
    assert state() == before


@pytest.mark.parametrize("name", STATES)
def test_models_are_captured_whatever_was_set(name: str) -> None:
    """torch.export reads the older switch, which refuses where newer ones differ, as they may once
    it has reset the one that they inherit from."""
    STATES[name]()
    before = state()
    assert capture(torch.nn.Linear(2, 3).eval(), (torch.ones(1, 2),)).graph.nodes
    assert state() == before


def test_they_are_set_where_torch_forbids_it_outside_of_contexts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after torch.backends.disable_global_flags(), which cannot be undone."""
    switches = torch.backends.flags_frozen.__globals__
    before, x = state(), torch.randn(2, 3)
    model = torch.nn.Linear(3, 4).eval()
    with monkeypatch.context() as patched:
        patched.setitem(switches, "__allow_nonbracketed_mutation_flag", False)
        with precision(tf32=True):
            assert told(cudnn) is told(matmul) is True
        fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
        assert state() == before
