"""as_strided becomes views that need no memory to be explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from anabranch import api
from anabranch.errors import CaptureError, InputError
from anabranch.frontend.from_torch import capture
from anabranch.frontend.strided import StridedWindow, numbers, views
from anabranch.ir import ops
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Node
from anabranch.ir.types import type_of

Forward = Callable[[Tensor], object]


class Model(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.function = forward
        self.taps = nn.Parameter(torch.arange(20.0)[2:14])
        self.eval()

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def slice_of(start: int, size: int = 20) -> Tensor:
    return torch.arange(100.0, 130.0)[start : start + size]


def written_to(x: Tensor) -> object:
    y = x * 2
    z = y[2:]
    z.add_(1)
    return z.as_strided((3, 4), (2, 1), 3), y[2:].as_strided((2, 2), (3, 1), 1)


def through_a_view(x: Tensor) -> object:
    y = x + 0.5
    y.as_strided((3, 3), (4, 1), 2).mul_(2)
    return y


CASES: dict[str, Forward] = {
    "an input": lambda x: x.as_strided((3, 4), (2, 1), 6) * 2,
    "no offset": lambda x: x[3:].as_strided((3, 4), (2, 1)) * 2,
    "an intermediate": written_to,
    "written through": through_a_view,
    "of its base": lambda x: (x * 1).view(4, 5)[:, 1:3].as_strided((2, 2, 2), (5, 0, 1), 3),
    "transposed": lambda x: (x * 1).view(4, 5).t().as_strided((2, 3), (1, 4), 8),
    "a part": lambda x: torch.split(x * 1, 7)[1].as_strided((3, 2), (1, 1), 4),
    "a copy": lambda x: torch.as_strided_copy(x, (2, 2), (1, 1), 7),
    "a scatter": lambda x: torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (5, 2), 6),
    "unfolded": lambda x: x.unfold(0, 4, 3) + 1,
    "between elements": lambda x: (x * 1).view(4, 5).t()[1:].as_strided((2, 2), (10, 1), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_offsets_count_from_the_start_of_the_memory(name: str) -> None:
    model, x = Model(CASES[name]), slice_of(4)
    found = capture(model, (x,)).graph
    assert not any("as_strided" in node.op for node in found.nodes)
    alone = x.clone()  # a graph's value has no memory around it
    wanted = model(slice_of(4))
    for got, want in zip(
        eval_graph(found, (alone,)), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        assert torch.equal(got, want)


def test_a_sliced_weight_is_its_own_memory() -> None:
    model = Model(lambda x: x)
    model.function = lambda x: x[:4] * model.taps.as_strided((4,), (2,), 3)
    x = slice_of(0)
    (got,) = eval_graph(capture(model, (x,)).graph, (x,))
    assert torch.equal(got, x[:4] * torch.tensor([3.0, 5.0, 7.0, 9.0]))


def test_calls_begin_where_the_example_did() -> None:
    model = Model(lambda x: x.as_strided((3, 4), (2, 1), 6) * 2)
    fast = api.compile(model, (slice_of(4),), target="cpu", search="none")
    assert torch.equal(fast(slice_of(4)), model(slice_of(4)))
    with pytest.raises(InputError, match=r"x begins at element 0 of its memory"):
        fast(slice_of(4).clone())


@pytest.mark.parametrize("offset", [(), (0,), (1,)])
def test_calls_have_the_strides_of_the_example(offset: tuple[int, ...]) -> None:
    model = Model(lambda x: x.as_strided((2, 3), (1, 2), *offset) * 2)
    like, other = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(4, 3).t()
    fast = api.compile(model, (like,), target="cpu", search="none")
    assert torch.equal(fast(like + 1), model(like + 1))
    with pytest.raises(InputError, match=r"with strides \(1, 3\), compiled for .* \(4, 1\)"):
        fast(other)
    assert torch.equal(fast.add((other,))(other), model(other))


@pytest.mark.parametrize(
    "lazy", [lambda z: z[1:4].conj(), lambda z: z.conj().imag[1:3], lambda z: z.conj().imag]
)
def test_slices_may_be_read_as_conjugate_or_negative(lazy: Callable[[Tensor], Tensor]) -> None:
    """The memory of such a view has other signs, for the example as for calls."""
    example, other = (lazy(torch.randn(5, dtype=torch.complex64)) for _ in range(2))
    fast = api.compile(
        lambda x: x * 2 + 1, (example,), target="cpu", cache_dir=None, search="none", strict=True
    )
    for x in (example, other):
        assert x.is_conj() or x.is_neg()
        torch.testing.assert_close(fast(x), x.resolve_conj().resolve_neg() * 2 + 1)


def test_strides_of_one_element_do_not_count() -> None:
    model = Model(lambda x: x.as_strided((4,), (1,)) * 2)
    fast = api.compile(model, (torch.ones(1, 4),), target="cpu", search="none")
    row = torch.arange(8.0).view(2, 4)[:1].as_strided((1, 4), (7, 1))
    assert torch.equal(fast(row), model(row))


def test_what_reads_beyond_its_operand_is_refused() -> None:
    with pytest.raises(CaptureError, match="belongs to no value of the model"):
        capture(Model(lambda x: x.as_strided((3,), (1,), 0) * 2), (slice_of(4),))


@pytest.mark.parametrize(
    ("value", "shape", "strides", "start"),
    [
        (torch.arange(24.0).view(4, 6), (3, 2), (6, 4), 1),
        (torch.arange(24.0).view(4, 6).t(), (2, 3, 2), (7, 0, 3), 2),
        (torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), (5,), (3,), 4),
        (torch.arange(24.0).view(1, 24), (), (), 7),
        (torch.arange(24.0), (2, 1, 3), (1, 9, 2), 0),
    ],
)
def test_views_and_numbers_agree_with_torch(
    value: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> None:
    window = StridedWindow(type_of(value), shape, strides, start)
    want = value.as_strided(shape, strides, start)
    steps, places = views(window), numbers(window)
    assert steps is not None and places is not None
    got = value
    for op, args in steps:
        (got,) = ops.call(Node("n", op, (got, *args), (), ()), lambda name: name, None)  # type: ignore[arg-type]
    assert torch.equal(got, want) and got.stride() == want.stride()
    assert torch.equal(value.reshape(-1)[places], want)


def test_elements_that_are_none_of_the_value_have_no_number() -> None:
    holes = torch.arange(20.0).view(2, 10)[:, :5]
    assert numbers(StridedWindow(type_of(holes), (2,), (5,), 2)) is None
    assert views(StridedWindow(type_of(holes), (2,), (10,), 2)) is None
    assert numbers(StridedWindow(type_of(holes), (2,), (10,), 2)).tolist() == [2, 7]  # type: ignore[union-attr]
