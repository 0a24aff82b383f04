"""What a training step asks of its batch, beside its numbers, is asked of each call, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frontend.laid_otherwise import later, marked, turned, with_channels_last
from torch import Tensor, nn

import anabranch
from anabranch.errors import CaptureError, InputError

QUICK: dict[str, Any] = {"target": "cpu", "search": "none", "scheduler": "sequential"}


ASKED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], str]] = {
    "contiguous": (lambda x: x * (2 if x.is_contiguous() else 3), turned, "is_contiguous"),
    "strides": (lambda x: x * int(x.stride(0)), turned, r"stride\(\)"),
    "offset": (lambda x: x + int(x.storage_offset()), later, "storage_offset"),
    "gradients": (
        lambda x: x * (2 if x.requires_grad else 3),
        lambda x: x.clone().requires_grad_(),
        "requires_grad",
    ),
    "class": (
        lambda x: x * (2 if isinstance(x, nn.Parameter) else 3),
        lambda x: nn.Parameter(x, requires_grad=False),
        "the class",
    ),
    "attributes": (lambda x: x * getattr(x, "factor", 1), marked, "attributes"),
}


def first_steps(
    part: Callable[[Tensor], Tensor], x: Tensor, cache: Path | None
) -> tuple[nn.Module, Callable[[Tensor], Any]]:
    """A model, and its step on a batch like x."""
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = model(part(x)).square().mean()
        return result

    return model, anabranch.compile_step(model, loss, optimizer, (x,), cache_dir=cache, **QUICK)


@pytest.mark.parametrize("name", ASKED)
def test_a_batch_that_answers_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    part, other, refused = ASKED[name]
    x = torch.randn(4, 6)
    for _ in range(2):  # the second step comes from the cache
        model, step = first_steps(part, x.clone(), tmp_path)
        want = model(part(x)).square().mean().detach()
        torch.testing.assert_close(step(x), want)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(InputError, match=refused):
            step(other(x))
        assert all(map(torch.equal, before, model.parameters()))


def test_a_batch_that_lies_otherwise_is_taken_where_nothing_is_asked() -> None:
    x = torch.randn(4, 6)
    model, step = first_steps(lambda x: x * 2, x.clone(), None)
    want = model(turned(x) * 2).square().mean().detach()
    torch.testing.assert_close(step(turned(x)), want)


def looks_at_lists(model: nn.Module, pair: Any) -> Tensor:
    loss: Tensor = model(pair[0]).square().mean()
    return loss * 2 if isinstance(pair, tuple) else loss * 3


def looks_at_order(model: nn.Module, named: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(next(iter(named.values()))).square().mean()
    return loss


def looks_at_names(model: nn.Module, named: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(named["x"] + named["y"]).square().mean()
    return loss


def looks_at_identity(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss * 2 if x is y else loss * 3


def compiled(loss: Callable[..., Tensor], batch: tuple[Any, ...]) -> Callable[..., Any]:
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return anabranch.compile_step(model, loss, optimizer, batch, cache_dir=None, **QUICK)


def test_containers_and_tensors_that_a_step_tells_apart_are_refused_in_another_form() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    with pytest.raises(InputError, match="than was compiled"):
        compiled(looks_at_lists, ((x, y),))([x, y])
    with pytest.raises(InputError, match="than was compiled"):
        compiled(looks_at_order, ({"x": x, "y": y},))({"y": y, "x": x})
    with pytest.raises(InputError, match="one tensor"):
        compiled(looks_at_identity, (x, y))(x, x)
    first, other = (compiled(looks_at_names, ({"x": x, "y": y},)) for _ in range(2))
    assert first({"x": x, "y": y}).shape == other({"y": y, "x": x}).shape == ()


class Keeping(nn.Linear):
    """Has a buffer, which the loss writes to."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("kept", torch.zeros(4, 6))


Loss = Callable[[Any, Tensor], Tensor]


def written_by_rows(x: Tensor) -> Tensor:
    y = x * 1
    y.t().reshape(-1).add_(1)
    return y


def of_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(written_by_rows(x)).square().mean()
    return loss


def of_gradients(model: nn.Module, x: Tensor) -> Tensor:
    y = model(written_by_rows(x))
    loss: Tensor = (y - y.detach() + model(x).detach()).square().mean()
    return loss


def of_buffers(model: Any, x: Tensor) -> Tensor:
    model.kept.copy_(written_by_rows(x))
    loss: Tensor = model(x).square().mean()
    return loss


def of_images(model: nn.Module, x: Tensor) -> Tensor:
    y = x * 1
    z = y.contiguous(memory_format=torch.channels_last)
    z.add_(1)
    loss: Tensor = model(y * 2 + z).square().mean()
    return loss


def of_rows(model: nn.Module, x: Tensor) -> Tensor:
    x.contiguous().add_(1)
    loss: Tensor = model(x).square().mean()
    return loss


X, IMAGE, ROW = torch.randn(4, 6), torch.randn(2, 3, 4, 6), torch.randn(6, 2)[:, 0]
WRITTEN: dict[str, tuple[Loss, Tensor, Callable[[Tensor], Tensor]]] = {
    "loss": (of_loss, X, turned),
    "loss of a transposed example": (of_loss, turned(X), Tensor.contiguous),
    "gradients": (of_gradients, X, turned),
    "buffers": (of_buffers, X, turned),
    "images": (of_images, IMAGE, with_channels_last),
}


def step_of(loss: Loss, x: Tensor, model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return anabranch.compile_step(model, loss, optimizer, (x,), cache_dir=None, **QUICK)


def check_as_eager(step: Any, model: nn.Module, loss: Loss, x: Tensor) -> None:
    """A call, beside eager's from the same state."""
    eager = Keeping()
    eager.load_state_dict(model.state_dict())
    want = loss(eager, x)
    torch.autograd.backward(want)
    torch.optim.SGD(eager.parameters(), lr=0.1).step()
    torch.testing.assert_close(step(x), want.detach())
    torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_write_that_reaches_more_in_one_layout_asks_for_that_of_the_example(name: str) -> None:
    loss, x, other = WRITTEN[name]
    model = Keeping()
    step = step_of(loss, x, model)
    check_as_eager(step, model, loss, x)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InputError, match="the strides of"):
        step(other(x))
    assert all(map(torch.equal, before, model.parameters()))
    step.add((other(x),))
    for each in (x, other(x)):
        check_as_eager(step, model, loss, each)


def test_a_write_to_the_batch_in_another_layout_is_refused() -> None:
    step = step_of(of_rows, ROW, nn.Linear(6, 6))  # a copy, as the example lies
    with pytest.raises(InputError, match="the strides of"):
        step(ROW.clone())


def test_writes_that_reach_the_same_in_each_layout_ask_for_none() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x).t().contiguous()
        z = y.flatten().relu_()
        result: Tensor = z.square().mean()
        return result

    model = Keeping()
    step = step_of(loss, X, model)
    check_as_eager(step, model, loss, turned(X))


class Asking(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * (2 if self.weight.is_contiguous() else 3)


def test_how_weights_lie_asks_for_nothing_of_the_batch() -> None:
    model = Asking(6, 6)
    step = step_of(lambda model, x: model(x).square().mean(), X, model)
    want = model(turned(X)).square().mean().detach()
    torch.testing.assert_close(step(turned(X)), want)


@contextmanager
def switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    was = get()
    put(value)
    try:
        yield
    finally:
        put(was)


def deterministic() -> AbstractContextManager[None]:
    asked = torch.are_deterministic_algorithms_enabled
    return switched(asked, torch.use_deterministic_algorithms, True)


def float64() -> AbstractContextManager[None]:
    return switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64)


def benchmarked() -> AbstractContextManager[None]:
    flags = torch.backends.cudnn
    return switched(
        lambda: flags.benchmark, lambda on: setattr(flags, "benchmark", on), not flags.benchmark
    )


def without(library: str) -> AbstractContextManager[None]:
    flags = getattr(torch.backends, library)
    return switched(lambda: flags.enabled, lambda on: setattr(flags, "enabled", on), False)


def threaded() -> AbstractContextManager[None]:
    return switched(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1)


SWITCHES: dict[str, tuple[Callable[[], int], Callable[[], AbstractContextManager[Any]], str]] = {
    "deterministic": (
        lambda: 2 if torch.are_deterministic_algorithms_enabled() else 3,
        deterministic,
        "use_deterministic_algorithms is on",
    ),
    "debug mode": (torch.get_deterministic_debug_mode, deterministic, "debug_mode"),
    "default dtype": (
        lambda: torch.finfo(torch.get_default_dtype()).bits,
        float64,
        "default dtype is float64",
    ),
    "a made tensor's dtype": (
        lambda: torch.finfo(torch.ones(1).dtype).bits,
        float64,
        "default dtype is float64",
    ),
    "a made tensor's device": (
        lambda: 2 if torch.ones(1).device.type == "cpu" else 3,
        lambda: torch.device("meta"),
        "get_default_device",
    ),
    "cudnn": (lambda: 2 + torch.backends.cudnn.benchmark, benchmarked, "cudnn.benchmark"),
    "cudnn enabled": (
        lambda: 2 + bool(torch.backends.cudnn.enabled),
        lambda: without("cudnn"),
        "cudnn.enabled is False",
    ),
    "mkldnn enabled": (
        lambda: 2 + bool(torch.backends.mkldnn.enabled),
        lambda: without("mkldnn"),
        "mkldnn.enabled is False",
    ),
    "threads": (torch.get_num_threads, threaded, "get_num_threads"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_the_loss_asks_for_is_as_it_was(name: str, tmp_path: Path) -> None:
    factor, around, refused = SWITCHES[name]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = model(x).square().mean() * (1 + factor())
        return result

    for _ in range(2):  # the second step comes from the cache
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = anabranch.compile_step(model, loss, optimizer, (X,), cache_dir=tmp_path, **QUICK)
        want = loss(model, X).detach()
        torch.testing.assert_close(step(X), want)
        with around(), pytest.raises(InputError, match=refused):
            step(X)
        want = loss(model, X).detach()
        torch.testing.assert_close(step(X), want)


def test_a_step_that_has_asked_can_be_compiled_under_the_other_switch() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        factor = 2 if torch.are_deterministic_algorithms_enabled() else 3
        result: Tensor = model(x).square().mean() * factor
        return result

    model = Keeping()
    step = step_of(loss, X, model)
    with deterministic():
        step.add((X,))
    for around in (nullcontext, deterministic):
        with around():
            check_as_eager(step, model, loss, X)


def test_defaults_count_where_tensors_are_made_by_them_alone() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        made = torch.ones(6, dtype=x.dtype, device=x.device)
        result: Tensor = model(x + made).square().mean()
        return result

    model = Keeping()
    step, want = step_of(loss, X, model), loss(model, X).detach()
    with float64(), torch.device("meta"):
        got = step(X)
    torch.testing.assert_close(got, want)


def test_autocast_of_compile_time_holds_for_a_step_that_asks_for_switches() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        factor = 2 if torch.are_deterministic_algorithms_enabled() else 3
        result: Tensor = model(x).square().mean() * factor
        return result

    model = nn.Linear(6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        step = step_of(loss, X, model)
        want = loss(model, X).detach()
    got = step(X)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want)


class Chosen(torch.optim.SGD):
    """Asks for a switch in each step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rate = 0.1 if torch.are_deterministic_algorithms_enabled() else 0.2
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-rate)


def test_a_switch_that_the_optimizer_asks_for_is_as_it_was() -> None:
    model = nn.Linear(6, 6)
    optimizer = Chosen(model.parameters(), lr=0.1)
    step = anabranch.compile_step(
        *(model, lambda model, x: model(x).square().mean(), optimizer, (X,)),
        cache_dir=None,
        **QUICK,
    )
    with deterministic(), pytest.raises(InputError, match="use_deterministic_algorithms"):
        step(X)


def test_a_loss_that_seeds_the_numbers_that_it_draws_is_refused() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        result: Tensor = model(x + torch.rand_like(x)).square().mean()
        return result

    with pytest.raises(CaptureError, match="sets torch's random numbers"):
        step_of(loss, X, nn.Linear(6, 6))


class Listening(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_step_is_not_called_under_a_function_mode() -> None:
    step = step_of(lambda model, x: model(x).square().mean(), X, nn.Linear(6, 6))
    with Listening(), pytest.raises(InputError, match="function mode"):
        step(X)


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        (lambda x: torch.backends.cuda.matmul.allow_tf32, "allow_tf32"),
        (lambda x: x._version > 5, "_version"),
    ],
    ids=["a precision", "a count of writes"],
)
def test_what_no_call_can_be_checked_against_is_said(
    asks: Callable[[Tensor], bool], said: str
) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = model(x).square().mean() * (2 if asks(x) else 3)
        return result

    with pytest.warns(UserWarning, match=said):
        step_of(loss, X, nn.Linear(6, 6))
