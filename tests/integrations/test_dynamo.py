"""torch.compile(model, backend="anabranch") for inference."""

from __future__ import annotations

import gc
import math
import warnings
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from anabranch.compiled.calls import Compiled
from anabranch.errors import OptionError, WeightsError
from anabranch.integrations import dynamo
from anabranch.integrations.dynamo import anabranch_backend


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)
    ).eval()


def test_compiles_and_folds() -> None:
    net, x = model(), torch.randn(2, 3, 8, 8)
    fast = torch.compile(net, backend=anabranch_backend)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_queries_may_have_more_heads_than_keys() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    q, k = torch.randn(2, 4, 8, 8), torch.randn(2, 2, 8, 8)
    fast = torch.compile(attend, backend=anabranch_backend)
    with torch.no_grad():
        torch.testing.assert_close(fast(q, k), attend(q, k), rtol=1e-4, atol=1e-5)


class Doubles(TorchFunctionMode):
    """Has linear layers give twice as much."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is nn.functional.linear else result


def test_a_function_mode_is_in_the_graph() -> None:
    net, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    fast = torch.compile(net, backend=anabranch_backend)
    with torch.no_grad(), Doubles():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_new_weights_are_seen() -> None:
    net, x = model(), torch.randn(2, 3, 8, 8)
    fast = torch.compile(net, backend=anabranch_backend)
    with torch.no_grad():
        fast(x)
        net[4].weight.mul_(2)  # type: ignore[operator]
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
        net[4].bias.data = torch.ones(2)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


class Counted(Compiled):
    """Counts plans that are made."""

    made = 0

    def add(self, *args: Any, **kwargs: Any) -> Any:
        Counted.made += 1
        return super().add(*args, **kwargs)


def test_plans_follow_their_weights_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "Compiled", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    net, other = model(), model()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    fast = torch.compile(net, backend=anabranch_backend, dynamic=True)
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = [torch.randn(batch, 3, 8, 8) for batch in (2, 3)]

    def agree() -> None:
        with torch.no_grad():
            for x in inputs:
                torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)

    agree()
    plans = Counted.made
    for _ in range(3):
        net(inputs[0]).sum().backward()
        step.step()
        agree()
    net.load_state_dict(other.state_dict())
    agree()
    with torch.no_grad():
        net[4].weight.add_(torch.ones(2, 1) @ torch.ones(1, 256))  # type: ignore[operator]
        net[1].running_var.mul_(4)  # type: ignore[operator]
    agree()
    assert Counted.made == plans == len(inputs)


def test_weights_that_a_plan_is_not_right_for_get_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "Compiled", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    net, x = model(), torch.randn(2, 3, 8, 8)
    fast = torch.compile(net, backend=anabranch_backend)

    def refused(*_: object) -> None:
        raise WeightsError("the plan is not right", "for a test", "none")

    with torch.no_grad():
        fast(x)
        monkeypatch.setattr(dynamo, "refit", refused)
        net[4].bias.add_(1)  # type: ignore[operator]
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert Counted.made == 2


def test_updates_take_no_more_memory() -> None:
    net, x = nn.Linear(1024, 256), torch.randn(2, 1024)
    fast = torch.compile(net, backend=anabranch_backend)

    def held() -> int:
        gc.collect()
        tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
        dense = [one for one in tensors if one.layout == torch.strided]
        return sum(one.untyped_storage().nbytes() for one in dense)

    with torch.no_grad():
        fast(x)
        net.weight.mul_(1.01)
        fast(x)
        before = held()
        for _ in range(4):
            net.weight.mul_(1.01)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
        assert held() <= before + 1024


def test_weights_that_count_no_writes_are_inputs() -> None:
    with torch.inference_mode():
        net, x = model(), torch.randn(2, 3, 8, 8)
        fast = torch.compile(net, backend=anabranch_backend)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
        net[4].weight.mul_(2)  # type: ignore[operator]
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_weights_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else batch norms could not fold: the plan has the image as its only input. A scheduler is
    named, or the model as it was captured may be handed out, where it happens to be faster."""
    made: list[Compiled] = []

    class Watched(Compiled):
        def add(self, *args: Any, **kwargs: Any) -> Any:
            made.append(super().add(*args, **kwargs))
            return made[-1]

    monkeypatch.setattr(dynamo, "Compiled", Watched)
    net, x = model(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.compile(net, backend=anabranch_backend, options={"scheduler": "critical"})(x)
    tasks = made[0].entries[0].plan.tasks
    assert len(tasks.inputs) == 1
    assert not any("batch_norm" in node.op for task in tasks.tasks for node in task.body.nodes)


def test_another_batch_size_with_symbolic_shapes() -> None:
    net = model()
    fast = torch.compile(net, backend=anabranch_backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = torch.randn(batch, 3, 8, 8)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_a_graph_break_is_two_plans() -> None:
    net = model()

    def call(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = net(x)
        torch._dynamo.graph_break()
        return y.softmax(-1) + x.sum()

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        got = torch.compile(call, backend=anabranch_backend)(x)
        torch.testing.assert_close(got, call(x), rtol=1e-4, atol=1e-5)


def test_inputs_that_are_written_to() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x, y = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        got = torch.compile(call, backend=anabranch_backend)(x)
        assert torch.equal(got, call(y)) and torch.equal(x, y)


def test_factories_give_the_default_dtype_of_the_user() -> None:
    def net(x: torch.Tensor) -> Any:
        return x * torch.ones(3, 1), x + torch.linspace(0, 1, 4), torch.arange(3.0)

    x, before = torch.randn(3, 4, dtype=torch.float32), torch.get_default_dtype()
    fast = torch.compile(net, backend="anabranch")
    try:
        for dtype in (torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            results = fast(x)
            assert results[0].dtype == dtype
            torch.testing.assert_close(results, net(x))
            first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
            fast(first)[0].relu().sum().backward()
            net(second)[0].relu().sum().backward()
            torch.testing.assert_close(first.grad, second.grad)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1, 4).expand(3, 4),
        torch.randn(3, 1).expand(3, 4),
        torch.randn(()).expand(3, 4),
        torch.randn(9).unfold(0, 4, 2),
        torch.arange(9).unfold(0, 4, 2),
    ],
    ids=["row", "column", "number", "windows", "windows of integers"],
)
def test_inputs_may_name_the_same_memory_again_and_again(x: torch.Tensor) -> None:
    def net(x: torch.Tensor) -> Any:
        return x * 2 + 1, x.contiguous(), x.sum(0)

    torch.testing.assert_close(torch.compile(net, backend="anabranch")(x), net(x))


def test_it_is_found_by_name() -> None:
    if not entry_points(group="torch_dynamo_backends", name="anabranch"):
        pytest.skip("the package is not installed here, so it has no entry point")
    net, x = model(), torch.randn(2, 3, 8, 8)
    assert "anabranch" in torch._dynamo.list_backends()
    with torch.no_grad():
        fast = torch.compile(net, backend="anabranch")
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_modes_and_options() -> None:
    net, x = model(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        fast = torch.compile(net, backend=anabranch_backend, options={"scheduler": "sequential"})
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(Exception, match="did you mean scheduler"):
            torch.compile(net, backend=anabranch_backend, options={"sched": "x"})(x)


def test_each_place_in_memory_that_as_strided_counts_from_has_a_plan() -> None:
    @torch.compile(backend="anabranch", options={"search": "none"})
    def frames(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3, 4), (2, 1), 6) * 2

    torch._dynamo.reset()
    with torch.no_grad():
        for start in (4, 5):
            x = torch.arange(24.0)[start : start + 19]
            assert torch.equal(frames(x), x.as_strided((3, 4), (2, 1), 6) * 2)


def first_column(x: torch.Tensor) -> Any:
    y = x.sin()
    first, turned = y[:, 0], y.t()[1:]
    torch._dynamo.graph_break()
    y.mul_(2)
    turned.add_(1)
    return y, first, turned


def chunks(x: torch.Tensor) -> Any:
    y = x.sin()
    one, two = y.chunk(2)
    torch._dynamo.graph_break()
    y.mul_(2)
    return one, two, y


def of_one_base(x: torch.Tensor) -> Any:
    y = x.sin()
    head, tail = y[:3], y[1:]
    torch._dynamo.graph_break()
    head.mul_(2)
    return head, tail


def twice(x: torch.Tensor) -> Any:
    y = x.sin()
    held = y, y.view(-1), y
    torch._dynamo.graph_break()
    held[0].mul_(2)
    return held


@pytest.mark.parametrize("function", [first_column, chunks, of_one_base, twice])
def test_results_that_are_views_of_each_other_are_so_behind_a_break(function: Any) -> None:
    x = torch.randn(4, 4)
    fast: Any = torch.compile(function, backend=anabranch_backend)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), function(x))


def of_an_input(x: torch.Tensor, k: int) -> Any:
    return x[:, k:], torch.split(x.view(-1), k)[1], x.sin()


def of_what_is_computed(x: torch.Tensor, k: int) -> Any:
    y = x.sin()
    return y[k:], y.t()[k:], y


def of_what_is_written(x: torch.Tensor, k: int) -> Any:
    x.add_(1)
    return x[k:], x.cos()


@pytest.mark.parametrize(
    ("function", "grad"),
    [
        (of_an_input, False),
        (of_an_input, True),
        (of_what_is_computed, False),
        (of_what_is_computed, True),
        (of_what_is_written, False),
    ],
)
def test_views_by_numbers_begin_where_they_do_in_eager(function: Any, grad: bool) -> None:
    fast: Any = torch.compile(function, backend=anabranch_backend, dynamic=True)
    for rows, k in ((3, 2), (4, 1)):
        memory = torch.arange(24.0).reshape(6, 4)
        calls = []
        for call in (fast, function):
            base = memory.clone().requires_grad_(grad)
            x = base[1 : rows + 1]  # does not begin where its memory does
            found = call(x, k)
            where = [(r.stride(), r.storage_offset()) for r in found]
            shared = [
                r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for r in found
            ]
            if grad:
                sum((result * result).sum() for result in found).backward()
            calls.append((found, where, shared, base.grad))
        torch.testing.assert_close(*(call[0] for call in calls))
        torch.testing.assert_close(*(call[3] for call in calls))
        assert calls[0][1:3] == calls[1][1:3]


def test_a_number_of_a_tensor_is_checked_behind_a_break() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        number = x[0].item()
        torch._check(number * number >= 0)  # type: ignore[no-untyped-call] # torch annotates none
        return x.sin() * number

    torch._dynamo.reset()
    fast: Any = torch.compile(model, backend=anabranch_backend)
    with torch.no_grad():
        for first in (1.0, -2.0, 3.0):
            x = torch.tensor([first, 1.0])
            torch.testing.assert_close(fast(x), model(x))
        for call in (model, fast):
            with pytest.raises(RuntimeError, match=r"Expected cond|Runtime assertion failed"):
                call(torch.tensor([math.nan, 1.0]))


def test_a_graph_that_counts_in_memory_has_a_plan_for_other_strides() -> None:
    def window(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (1, 2)) * 2

    fast = torch.compile(window, backend=anabranch_backend)
    with torch.no_grad():
        for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 4)):
            torch.testing.assert_close(fast(x), window(x))


def test_a_target_is_told_apart_from_the_options() -> None:
    with pytest.raises(OptionError, match=r"^target is no option of torch\.compile"):
        anabranch_backend(torch.fx.symbolic_trace(nn.ReLU()), [], options={"target": "cpu"})


def first_is_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    return y * 2


HALVES = (
    lambda m: (m[..., :4], m[..., 4:]),
    lambda m: (m[..., 4:], m[..., :4]),
    lambda m: (m[..., :4], m.clone()[..., :4]),
    lambda m: (m[..., :4], m[..., 4:]),
)
WINDOWS = (
    lambda m: (m[:2], m[1:3]),
    lambda m: (m[:2], m[:2]),
    lambda m: (m[1:3], m[:2]),
    lambda m: (m[:2], m[2:4]),
)


@pytest.mark.parametrize("pairs", [HALVES, WINDOWS])
def test_parts_of_one_memory_are_read_where_they_begin_in_each_call(pairs: Any) -> None:
    torch._dynamo.reset()
    fast: Any = torch.compile(first_is_written, backend=anabranch_backend)
    for number, pair in enumerate(pairs):
        calls = []
        for call in (fast, first_is_written):
            memory = torch.arange(96.0).reshape(4, 3, 8)
            x, y = pair(memory)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                calls.append((call(x, y), memory))
            if call is fast and number in (1, 2):
                assert any("begin elsewhere in it" in str(one.message) for one in told)
        torch.testing.assert_close(*calls)
