"""Whether torch's own operators multiply fp32 as tf32: its switches, old and new, told as one.

torch has two families of them: `allow_tf32`, and `fp32_precision`, which there is for each kind of
operator and, to inherit from, for all of cuDNN's and for all. A reader of one family while the
other says otherwise gets a RuntimeError, or an answer that is not what runs: inductor's templates
of convolutions ask for cuDNN's `fp32_precision` alone, and multiply without tf32 where only
`allow_tf32` was set. So both are set here, and say the same.

`torch.set_float32_matmul_precision("medium")` is a third one: it says tf32 to cuBLAS and bf16 to
oneDNN, and a switch of the others that is written to makes "high" or "highest" of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.backends import cudnn, mkldnn
from torch.backends.cuda import matmul

convolution: Any = cudnn.conv  # type: ignore[attr-defined]
onednn: Any = mkldnn.matmul  # type: ignore[attr-defined]
SWITCHES = (
    *((cudnn, torch.backends), (convolution, cudnn), (cudnn.rnn, cudnn), (matmul, cudnn)),
    (onednn, mkldnn),
)
"""Each with what it inherits from, which is set first."""


def choose(tf32: bool) -> None:
    """From here on, in this process."""
    wanted = "tf32" if tf32 else "ieee"
    with settable():
        _allow(tf32, tf32)
        _demand(["ieee" if switch is onednn else wanted for switch, _ in SWITCHES])


def settable() -> AbstractContextManager[None]:
    """Within it switches of `torch.backends` can be set, also after `disable_global_flags()`, which
    forbids that to all but context managers that put them back; torch's test suites call it."""
    allows: Any = getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)
    context: AbstractContextManager[None] = allows()
    return context


@contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Within it; afterwards everything runs as it did before, and inherits what it inherited."""
    with kept():
        choose(tf32)
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards the switches are as they were, whoever set them meanwhile."""
    demanded = [
        "none" if switch.fp32_precision == above.fp32_precision else switch.fp32_precision
        for switch, above in SWITCHES
    ]
    allowed = _allowed(cudnn, convolution), _allowed(matmul, matmul)
    products = _products()
    try:
        yield
    finally:
        with settable():
            _allow(*allowed)
            if products == "medium":
                torch.set_float32_matmul_precision(products)
            _demand(demanded)


def _allow(convolutions: bool, products: bool) -> None:
    cudnn.allow_tf32, matmul.allow_tf32 = convolutions, products


def _demand(precisions: Sequence[str]) -> None:
    for (switch, _), wanted in zip(SWITCHES, precisions, strict=True):
        switch.fp32_precision = wanted


def _products() -> str:
    """What torch.set_float32_matmul_precision was told; "" where other switches contradict it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _allowed(older: Any, newer: Any) -> bool:
    """What the older switch says; where it refuses to, it contradicts the newer one."""
    try:
        return bool(older.allow_tf32)
    except RuntimeError:
        return bool(newer.fp32_precision != "tf32")
