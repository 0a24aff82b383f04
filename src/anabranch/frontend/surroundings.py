"""Surroundings: torch's global switches around a compilation, as the user has set them.

    around = surroundings()
    with neutral():                     the compiler itself: float32, CPU, neither autocast nor
        ...                             inference mode
        with around.restored():          the user's model, to be captured or called
            ...

What the compiler allocates serves later calls, whatever they are made under: buffers made in
inference mode could not be written to outside it, and tensors without a dtype or a device are
float32 and on the CPU for us. A switch that is not restored here (tf32, deterministic algorithms,
attention's and cuDNN's back ends) stays as it is: torch's own kernels read it when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from anabranch.errors import CaptureError
from anabranch.ir.ambient import (
    Ambient,
    autocast_now,
    foreign_modes,
    name_of,
    without_autocast,
)
from anabranch.targets.tf32 import precision

KINDS = ("cpu", "cuda")
"""Of devices that a model may be on."""
FLOAT = torch.float32
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`autocast`: for each kind of device under autocast, the dtype it computes in;
    `deterministic`: torch.use_deterministic_algorithms."""

    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    dtype: torch.dtype = FLOAT
    device: torch.device = CPU
    deterministic: bool = False

    @property
    def text(self) -> str:
        """What is not as torch has it at first."""
        said = [f"torch.autocast({kind!r}, {dtype})" for kind, dtype in self.autocast]
        said += [f"the default dtype {self.dtype}"] if self.dtype != FLOAT else []
        said += [f"the default device {self.device}"] if self.device != CPU else []
        said += ["torch.use_deterministic_algorithms(True)"] if self.deterministic else []
        return " and ".join(said)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within it the user's model runs as it does for the user. Casts of weights that autocast
        holds from earlier calls are not taken: they would be of weights as they were then."""
        with ExitStack() as stack:
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            stack.enter_context(_default(self.dtype, self.device))
            yield

    def ambient(self, device: torch.device, default_dtype: bool) -> Ambient:
        """The facts of these surroundings that a graph depends on, captured of a model on `device`;
        `default_dtype`: whether it makes tensors of the default dtype."""
        kind: Any = device.type if device.type in KINDS else ""
        dtype: Any = name_of(dict(self.autocast)[kind]) if kind in dict(self.autocast) else ""
        default: Any = name_of(self.dtype) if kind and default_dtype else ""
        return Ambient(kind, dtype, default, kind == "cuda" and self.deterministic)


def surroundings() -> Surroundings:
    """Those of the calling thread. CaptureError for a function mode of the user's among them."""
    if modes := foreign_modes():
        raise CaptureError(
            f"a model is compiled under a function mode (TorchFunctionMode): {', '.join(modes)}",
            "it sees, and may change, every function of torch that the model calls: what it does "
            "now would stay in the plan, and what it does later would not be seen",
            "compile outside of it; have the model itself do what the mode does",
        )
    autocast = ((kind, torch.get_autocast_dtype(kind)) for kind in KINDS if autocast_now(kind))
    return Surroundings(
        tuple(autocast),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
    )


def defaults() -> Surroundings:
    """The default dtype and device alone: those of what `torch.ones(3)` gives in a graph that torch
    traced, in which casts and function modes are operators."""
    return Surroundings((), torch.get_default_dtype(), torch.get_default_device())


@contextmanager
def neutral() -> Iterator[None]:
    """What the compiler itself runs under, whatever it is called under. Constants are computed in
    full precision: torch lets cuDNN round what convolutions multiply to tf32 unless it is told."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        without_autocast(),
        _default(FLOAT, CPU),
        precision(tf32=False),
    ):
        yield


@contextmanager
def _default(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Under this default dtype, and device: a mode, which is only entered where there is need."""
    was, elsewhere = torch.get_default_dtype(), torch.get_default_device() != device
    torch.set_default_dtype(dtype)
    try:
        with device if elsewhere else ExitStack():
            yield
    finally:
        torch.set_default_dtype(was)


def leave_alone(*functions: Callable[..., Any]) -> None:
    """Have torch.compile, of a model that calls these functions, run them and all that they call as
    they are: it would follow them, line by line, to what it cannot see. Its own `disable` does the
    same by a wrapper, which each call would pay for."""
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    for function in functions:
        # It asks for this mark where a function is called, and for the code where it runs.
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        code = function.__code__
        dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, skip))
