"""Results of fake operators that are remembered have the types that a call of its own gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from anabranch.frontend.fake_results import FakeResults, called_by_torch
from anabranch.frontend.observe import observe
from anabranch.frontend.recorder import CallRecorder
from anabranch.frontend.surroundings import surroundings

OPS = torch.ops.aten
PLAIN = [(1, True), (1, True), (0, True), (1, False)]
Call = tuple[Any, ...]


class Stages(nn.Module):
    """Calls on operands of the same types, of others in one thing only, and views between them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=p, bias=b) for p, b in PLAIN * 2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4, eps=10.0**-i) for i in (5, 5, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for conv in self.convs:
            x = conv(x)
            for norm in self.norms:
                found += [norm(x), norm(x.transpose(2, 3)), norm(x[:1]), x.relu() + 1]
                found += [*torch.var_mean(x, 1), x.max(2)[1].float(), x.flatten(1)[:, ::2]]
        return tuple(found)


class Numbers(nn.Module):
    """Numbers that are equal, and of other types; another default dtype meanwhile."""

    def forward(self, x: Tensor) -> list[Tensor]:
        made = []
        for one in (1, 1.0, True, 1 + 0j) * 2:
            made += [x + one, x * one, torch.full_like(x, one), torch.where(x > 0, x, one)]
        for dtype in (torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            made += [x / 2, x.sqrt(), torch.zeros(2) * x[:2]]
        torch.set_default_dtype(torch.float32)
        return made


class Values(nn.Module):
    """Constants whose values are asked for: a fake tensor that has lost its own has none."""

    def forward(self, x: Tensor) -> list[Tensor]:
        made = []
        for one in (2, 3, 2, 3):
            count = torch.tensor(one) + torch.tensor(1)
            made.append(x[: int(count.item())])
        return made


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Stages(), torch.randn(2, 4, 16, 12)),
        (Numbers(), torch.arange(6)),
        (Values(), torch.arange(6)),
    ],
    ids=["stages", "numbers", "values"],
)
def test_the_list_is_the_one_of_calls_that_remember_nothing(model: nn.Module, x: Tensor) -> None:
    seen = observe(model.eval(), (x,), {}, surroundings(), fake=True)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        given = x.clone()
        with CallRecorder(
            dict(model.named_parameters()) | dict(model.named_buffers()), [given]
        ) as plain:
            results = model(given)
    assert seen.digest is not None and seen.digest == plain.digest(results)


def test_a_slice_has_memory_around_it_without_numbers_too() -> None:
    """The model may count from the start of that."""

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.as_strided((24,), (1,), 0)[:5] + x[0]

    x = torch.arange(24.0).reshape(4, 6)[:, 1:]
    seen = observe(Counting(), (x,), {}, surroundings(), fake=True)
    assert seen.digest is not None and seen.results.shape == (5,)


def _calls(fake: Callable[..., Tensor]) -> dict[str, tuple[Call, Call, bool]]:
    """Two calls each, and whether the second need not be made."""
    x, y = fake(2, 8), fake(2, 8)
    laid = fake(8, 2).t()
    add, relu = OPS.add.Tensor, OPS.relu.default
    return {
        "another tensor": ((relu, x), (relu, y), True),
        "two tensors": ((add, x, y), (add, y, y), True),
        "a list": ((OPS.cat.default, [x, y]), (OPS.cat.default, [y, x]), True),
        "a longer list": ((OPS.cat.default, [x, y]), (OPS.cat.default, [x, y, x]), False),
        "other strides": ((relu, x), (relu, laid), False),
        "another dtype": ((relu, x), (relu, x.half()), False),
        "another number": ((add, x, 1), (add, x, 2), False),
        "a number of another type": ((add, x, 1), (add, x, 1.0), False),
        "a view": ((OPS.view.default, x, [16]), (OPS.view.default, x, [16]), False),
        "a view unsaid": ((OPS._unsafe_view.default, x, [16]),) * 2 + (False,),
        "a write": ((OPS.relu_.default, x), (OPS.relu_.default, y), True),
        "a write of another type": ((OPS.add_.Tensor, x, y), (OPS.add_.Tensor, x, laid), False),
        "a write to a view": ((OPS.t_.default, fake(2, 8)), (OPS.t_.default, fake(2, 8)), False),
        "a conjugate": ((relu, x), (relu, x.to(torch.complex64).conj().real), False),
    }


@pytest.mark.parametrize("name", _calls(torch.empty))
def test_which_calls_are_made(name: str) -> None:
    made: list[Any] = []

    class Counts(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made.append(func)
            return func(*args, **(kwargs or {}))

    with FakeTensorMode() as mode:
        first, second, known = _calls(lambda *sizes: torch.empty(*sizes))[name]
        results = FakeResults()
        results(first[0], first[1:], {})
        with Counts():  # type: ignore[no-untyped-call]
            again = results(second[0], second[1:], {})
        own = second[0](*second[1:])
    assert (second[0] not in made) == known
    assert isinstance(again, FakeTensor) and again.fake_mode is mode
    like = [(one.shape, one.stride(), one.dtype, one.device) for one in (again, own)]
    assert like[0] == like[1]
    memory = [one.untyped_storage()._cdata for one in (again, *filter(torch.is_tensor, second))]
    assert (memory[0] in memory[1:]) == ("view" in name or "write" in name)


def test_sizes_that_values_decide_are_found_each_time() -> None:
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True):
        results = FakeResults()
        found = [torch.ones(4).nonzero() for _ in range(2)]
        made = [results(OPS.abs.default, (one,), {}) for one in found]
        plain = results(OPS.abs.default, (torch.ones(4),), {})
        assert [str(one.shape) for one in made] == [str(one.shape) for one in found]
        assert made[0].shape[0] is not made[1].shape[0] and plain.shape == (4,)


def test_what_is_not_torchs_own_is_called() -> None:
    @torch.library.custom_op("fake_results::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    assert called_by_torch(OPS.relu.default, (FakeTensor,))
    assert not called_by_torch(OPS.relu.default, (FakeTensor, nn.Buffer))
    assert not called_by_torch(torch.ops.fake_results.twice.default, (FakeTensor,))
