"""Training steps with operators that write to their arguments: what eager computes and writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import CaptureError

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}


@torch.library.custom_op("calls::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: float = 2.0) -> None:
    x.mul_(by)


@torch.library.custom_op("calls::split_into", mutates_args=("out", "count"))
def split_into(x: Tensor, out: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    out.copy_(x * 3)
    count.add_(1)
    return x + 1, x - 1


@split_into.register_fake
def _(x: Tensor, out: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("calls::plus_into", mutates_args=("out",))
def plus_into(x: Tensor, out: Tensor) -> Tensor:
    out.copy_(x * 3)
    return x + 1


@plus_into.register_fake
def _(x: Tensor, out: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("calls::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("calls::all_", mutates_args=("xs",))
def all_(xs: list[Tensor]) -> None:
    for x in xs:
        x.add_(1)


class Net(nn.Module):
    total: Tensor

    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), forward
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.what(self, x)


def to_a_buffer(net: Net, x: Tensor) -> Tensor:
    torch.ops.calls.scale_(net.total, by=1.5)
    y: Tensor = net.linear(x) * net.total
    return y


def to_an_activation(net: Net, x: Tensor) -> Tensor:
    """Of which autograd does not know."""
    y: Tensor = net.linear(x)
    torch.ops.calls.scale_(y)
    return y


def to_a_slice(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.linear(x)
    other = y.detach().clone()
    torch.ops.calls.scale_(other[1:, :2], 3.0)
    return y * other


def to_a_weight(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        torch.ops.calls.scale_(net.linear.weight, 0.9)
    y: Tensor = net.linear(x)
    return y


def to_several(net: Net, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    more, less = torch.ops.calls.split_into(x, out, count=net.total)
    y: Tensor = net.linear(more) + out * less
    return y


def to_a_result(net: Net, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    y: Tensor = net.linear(torch.ops.calls.plus_into(x, out))
    return y + out


def squared(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return (y**2).mean()


def step_of(net: Net, x: Tensor) -> anabranch.TrainingStep:
    return anabranch.compile_step(
        *(net, squared, torch.optim.SGD(net.parameters(), 0.1), (x,)),
        **QUICK,
    )


@pytest.mark.parametrize(
    "forward",
    [to_a_buffer, to_an_activation, to_a_slice, to_a_weight, to_several, to_a_result],
)
def test_steps_write_what_eager_writes(forward: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    theirs, x = Net(forward), torch.randn(4, 4)
    ours = copy.deepcopy(theirs)
    optimizer, step = torch.optim.SGD(theirs.parameters(), 0.1), step_of(ours, x)
    for _ in range(3):
        loss = squared(theirs, x)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(step(x), loss.detach())
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)


def test_what_has_no_gradient_is_said_by_name() -> None:
    def through_a_write(net: Net, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.calls.plus_into(net.linear(x), torch.empty_like(x))
        return y

    def through_a_call(net: Net, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.calls.doubled(net.linear(x))
        return y

    x = torch.randn(4, 4)
    with pytest.raises(CaptureError, match="through calls::plus_into, which has no grad") as writes:
        step_of(Net(through_a_write), x)
    assert "writes to its arguments" in writes.value.why and "mutates_args=()" in writes.value.next
    with pytest.raises(CaptureError, match="through calls::doubled, which has no grad") as calls:
        step_of(Net(through_a_call), x)
    assert "nobody registered one" in calls.value.why and "mutates" not in calls.value.next


def test_writes_to_lists_are_refused() -> None:
    def to_a_list(net: Net, x: Tensor) -> Tensor:
        torch.ops.calls.all_([net.total])
        y: Tensor = net.linear(x) * net.total
        return y

    with pytest.raises(CaptureError, match=r"calls\.all_\.default writes into a tensor") as refused:
        step_of(Net(to_a_list), torch.randn(4, 4))
    assert "writes to a list" in refused.value.why
