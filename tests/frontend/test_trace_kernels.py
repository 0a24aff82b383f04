"""Our traces take a few operators apart otherwise than torch; torch itself is as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch.nn import functional as F

import anabranch
from anabranch.frontend.trace_kernels import own_kernels

UNCHANGED = """
import torch, torch._dynamo, torch._decomp, torch._refs, torch._inductor.decomposition, torch.export
from torch._C import DispatchKey
from torch.nn import functional as F

def kernels():
    operators = (op for name in dir(torch.ops.aten) for op in overloads(name))
    return {op: {key: id(by) for key, by in op.py_kernels.items()} for op in operators}

def overloads(name):
    packet = getattr(torch.ops.aten, name)
    return [getattr(packet, name) for name in getattr(packet, "overloads", list)()]

def tables():
    registry = torch._decomp.global_decomposition_table
    return {kind: {op: id(by) for op, by in table.items()} for kind, table in registry.items()}

def unlike():
    for op, was in before.items():
        now = {key: id(by) for key, by in op.py_kernels.items()}
        if any(now.get(key) != by for key, by in was.items()):
            yield op
        yield from (by for by in op.py_kernels.values() if by.__module__.startswith("anabranch"))
    if tables() != registered:
        yield "tables"
    if F.handle_torch_function is not torch.overrides.handle_torch_function:
        yield "functions"

before, registered = kernels(), tables()
import anabranch
x = torch.randn(3, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softshrink()).eval()

def images(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear"), F.prelu(x, torch.tensor([0.3]))

fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
anabranch.compile(images, (x.view(1, 1, 3, 4),), target="cpu", search="none", cache_dir=None)
torch.compile(model, backend="anabranch")(x).sum().backward()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
anabranch.compile_step(
    model.train(), lambda model, x: model(x).sum(), optimizer, (x,), target="cpu", cache_dir=None
)
print(list(unlike()))
"""


def test_operators_and_tables_of_torch_are_as_they_were() -> None:
    process = subprocess.run(
        [sys.executable, "-c", UNCHANGED], capture_output=True, text=True, timeout=300, check=False
    )
    assert process.stdout.strip() == "[]", process.stderr


def test_torchs_kernels_are_back_when_the_last_trace_ends() -> None:
    operator = torch.ops.aten.softshrink.default
    torchs = operator.py_kernels[DispatchKey.Autograd]
    with pytest.raises(ZeroDivisionError), own_kernels():
        with own_kernels():
            assert DispatchKey.Autograd not in operator.py_kernels
        assert DispatchKey.Autograd not in operator.py_kernels
        _ = 1 / 0
    assert operator.py_kernels[DispatchKey.Autograd] is torchs


BESIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": torch.neg,
    "prelu, which is taken apart": lambda x: F.prelu(x, torch.tensor([0.3])),
    "a write": lambda x: x.clone().view(-1)[3:].fill_(1),
    "a question": lambda x: x.tanh() * x.sin().cos().sum().item(),
}
NUMBERS = [0.0, -0.0, 1e-45, -1e-39, -0.1, 0.5, -0.5, 0.7, -0.7, 3.0, -3.0]
ENDS = [float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("shrink", [F.softshrink, F.hardshrink])
def test_zeros_have_the_sign_of_eager_whatever_stands_beside(
    shrink: Callable[[Tensor], Tensor], beside: str
) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return shrink(x), BESIDE[beside](x)

    x = torch.tensor(NUMBERS if "question" in beside else NUMBERS + ENDS).repeat(16).view(8, -1)
    options: dict[str, Any] = {"target": "cpu", "effort": "fast", "cache_dir": None}
    with torch.no_grad():
        for fast in (
            anabranch.compile(function, (x.clone(),), exact=True, **options),
            torch.compile(function, backend="anabranch"),
        ):
            result, wanted = fast(x)[0], shrink(x)
            torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)
            number = ~wanted.isnan()
            assert torch.equal(result.signbit()[number], wanted.signbit()[number])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_shrunk_activation_is_trained(dynamic: bool) -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Softshrink(0.1), nn.Linear(4, 4), nn.Hardshrink(0.2))
    fast = torch.compile(model, backend="anabranch", dynamic=dynamic)
    for count in (3, 5) if dynamic else (3,):
        x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
        wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        result = torch.autograd.grad(fast(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(result, wanted)
    torch.compiler.reset()


def test_the_weight_of_an_l1_loss_is_kept() -> None:
    """Torch leaves it out wherever a mode sees the call."""

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.l1_loss(x, torch.ones(3, 4), weight=weight)  # type: ignore[call-arg]

    torch.compiler.reset()
    x, weight = torch.randn(3, 4), torch.rand(3, 4)
    options: dict[str, Any] = {"target": "cpu", "effort": "fast", "cache_dir": None}
    for fast in (
        torch.compile(loss, backend="anabranch"),
        anabranch.compile(loss, (x, weight), **options),
    ):
        torch.testing.assert_close(fast(x, weight), loss(x, weight))
    torch.compiler.reset()
