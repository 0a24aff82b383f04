"""Loops over a model of torch.compile: its forward and its backward pass are plans."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, fx, nn

from anabranch.errors import CaptureError
from anabranch.integrations.dynamo import anabranch_backend
from anabranch.integrations.training_pass import TrainingPass
from anabranch.options import Options

OPTIONS: dict[str, Any] = {"search": "none", "scheduler": "sequential", "cache_dir": None}


class Net(nn.Module):
    """With statistics, a weight that is read as it is and turned, and one that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.table = nn.Parameter(torch.randn(5, 4))
        self.unread = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.stem(x))).mean((2, 3))
        return hidden @ self.table.t()


def loss_of(model: Any, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), t)


def apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


@pytest.fixture
def twins() -> tuple[nn.Module, Any, nn.Module]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    return (
        model,
        torch.compile(model, backend=anabranch_backend, options=OPTIONS),
        copy.deepcopy(model),
    )


def test_a_loop_is_the_models(twins: tuple[nn.Module, Any, nn.Module]) -> None:
    model, fast, other = twins
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (model, other)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            batch = torch.randn(6, 3, 6, 6), torch.randint(5, (6,))
            found, wanted = loss_of(fast, *batch), loss_of(other, *batch)
            for loss in (found, wanted):
                loss.backward()  # type: ignore[no-untyped-call]
            torch.testing.assert_close(found, wanted)
            for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    # The bias before a norm has gradients of rounding alone, by whose sign AdamW goes.
    assert apart(model.norm, other.norm) < 2e-3  # type: ignore[arg-type]
    torch.testing.assert_close(model.table, other.table, atol=1e-5, rtol=1e-4)


def test_two_forwards_before_a_backward(twins: tuple[nn.Module, Any, nn.Module]) -> None:
    model, fast, other = twins
    first, second = ((torch.randn(6, 3, 6, 6), torch.randint(5, (6,))) for _ in range(2))
    for one in (fast, other):
        losses = [loss_of(one, *first), loss_of(one, *second)]
        losses[0].backward()  # type: ignore[no-untyped-call]
        losses[1].backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("training", [False, True])
def test_a_copy_of_an_input_is_no_input(training: bool) -> None:
    torch._dynamo.reset()

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), x * 2

    x = torch.ones(3, requires_grad=training)
    copied, _ = torch.compile(model, backend=anabranch_backend, options=OPTIONS)(x)
    assert copied.data_ptr() != x.data_ptr()
    copied.detach().mul_(3)
    assert torch.equal(x.detach(), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_rows_are_wide_under_autocast(dtype: torch.dtype) -> None:
    """Torch's own kernel of a layer norm keeps them as its weights are."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 5))
    other = copy.deepcopy(model)
    fast = torch.compile(model, backend=anabranch_backend, options=OPTIONS)
    x, t = torch.randn(4, 6), torch.randint(5, (4,))
    for net in (fast, other):
        with torch.autocast("cpu", dtype):
            loss = loss_of(net, x, t)
        loss.backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert float((mine.grad - theirs.grad).norm() / theirs.grad.norm()) < 0.02


def test_a_tensor_of_numbers_in_forward_is_the_same_in_both_passes() -> None:
    """Such a tensor is a constant with numbers, where all others have none yet."""

    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.linear(x), torch.tensor([0, 2, 1]))

    torch._dynamo.reset()
    model, x = Labelled(), torch.randn(3, 4)
    other = copy.deepcopy(model)
    fast: Any = torch.compile(model, backend=anabranch_backend, options=OPTIONS)
    for _ in range(2):
        loss, wanted = fast(x), other(x)
        torch.testing.assert_close(loss, wanted)
        loss.backward()
        wanted.backward()
        torch.testing.assert_close(model.linear.weight.grad, other.linear.weight.grad)


@torch.library.custom_op("passes::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: float = 2.0) -> None:
    x.mul_(by)


class Scaling(nn.Module):
    """Writes to a buffer, and to an activation, by a user's operator."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        torch.ops.passes.scale_(self.total, by=1.5)
        y: Tensor = self.linear(x) * self.total
        torch.ops.passes.scale_(y)
        return y


@pytest.mark.parametrize("grad", [True, False])
def test_operators_that_write_are_called_by_their_functional_forms(grad: bool) -> None:
    torch._dynamo.reset()
    model, x = Scaling(), torch.randn(3, 4)
    other = copy.deepcopy(model)
    fast = torch.compile(model, backend=anabranch_backend, options=OPTIONS)
    for _ in range(2):
        with torch.set_grad_enabled(grad):
            ours, theirs = fast(x), other(x)
        torch.testing.assert_close(ours, theirs)
        if grad:
            ours.sum().backward()
            theirs.sum().backward()
            torch.testing.assert_close(model.linear.weight.grad, other.linear.weight.grad)
    torch.testing.assert_close(model.total, other.total)


def test_another_plan_may_be_made_before_the_backward_pass(
    twins: tuple[nn.Module, Any, nn.Module],
) -> None:
    """The first pass has saved weights, which the second plan is verified with."""
    model, fast, other = twins
    batches = torch.randn(2, 3, 6, 6), torch.randn(5, 3, 6, 6)
    for net in (fast, other):
        first, second = (net(x).square().sum() for x in batches)
        (first + second).backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_a_model_writes_statistics_again(
    reentrant: bool, twins: tuple[nn.Module, Any, nn.Module]
) -> None:
    model, fast, other = twins
    x = torch.randn(4, 3, 6, 6, requires_grad=True)
    for net in (fast, other):
        y = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant)
        y.square().sum().backward()
    assert model.get_buffer("norm.num_batches_tracked") == 2
    assert apart(model, other) < 1e-5


def test_a_pass_has_a_plan_for_each_sign_of_zero_and_one_for_nan() -> None:
    graph = fx.Graph()
    x, scale = graph.placeholder("x"), graph.placeholder("scale")
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, scale)),))
    module = fx.GraphModule(nn.Module(), graph)
    one_pass = TrainingPass(module, (), Options.read(OPTIONS, environment=False))
    for number in (0.0, -0.0, float("nan"), float("nan")):
        (result,) = one_pass([torch.ones(3), number])
        want = torch.ones(3) * number
        assert torch.equal(result.signbit(), want.signbit()) or number != number
        torch.testing.assert_close(result, want, equal_nan=True)
    assert len(one_pass.plans) == 3


def turned(x: Tensor) -> Tensor:
    return x.transpose(2, 3)


LAID_BY_THEIR_KERNELS: dict[str, Any] = {
    "logsigmoid": lambda x: nn.functional.logsigmoid(turned(x)),
    "losses of images": lambda x: nn.functional.cross_entropy(
        turned(x), torch.zeros(2, 5, 4, dtype=torch.int64).mT, reduction="none"
    ),
    "losses beside targets in rows": lambda x: nn.functional.binary_cross_entropy(
        turned(x).sigmoid(), torch.full((2, 3, 4, 5), 0.25), reduction="none"
    ),
    "a mean of losses": lambda x: nn.functional.binary_cross_entropy(
        turned(x).sigmoid(), torch.full((2, 3, 4, 5), 0.25)
    ),
    "a norm by its batch": lambda x: nn.functional.batch_norm(turned(x), None, None, training=True),
    "a norm that writes": lambda x: nn.functional.batch_norm(
        turned(x), torch.zeros(3), torch.ones(3), training=True
    ),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", LAID_BY_THEIR_KERNELS)
def test_what_is_taken_apart_lies_as_its_kernel_lays_it(name: str, gradients: bool) -> None:
    """So that what draws in the order of memory draws as in eager."""

    def model(x: Tensor) -> Tensor:
        y: Tensor = LAID_BY_THEIR_KERNELS[name](x)
        return y + torch.rand_like(y)

    torch._dynamo.reset()
    fast = torch.compile(model, backend=anabranch_backend, options=OPTIONS)
    x = torch.randn(2, 3, 5, 4, requires_grad=gradients)
    results = list[Tensor]()
    for run in (model, fast):
        torch.manual_seed(0)
        results.append(run(x).detach())
    assert results[0].stride() == results[1].stride()
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("gradients", [True, False])
def test_a_nested_tensor_is_refused_in_words(gradients: bool) -> None:
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=gradients)
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x * 2, backend=anabranch_backend, options=OPTIONS)
    with pytest.raises(CaptureError, match="a nested tensor"):
        fast(x)
