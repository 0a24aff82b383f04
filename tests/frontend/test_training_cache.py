"""A recalled training step computes what the step computes now, whatever it was that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import SGD, Adam, AdamW, Optimizer

from anabranch.cache import Cache
from anabranch.frontend.captured import Captured
from anabranch.frontend.optimizer import initialise
from anabranch.frontend.surroundings import neutral, surroundings
from anabranch.frontend.training import EagerStep, Held, Training, held_by, with_places
from anabranch.frontend.training_cache import StepRequest, capture_step
from anabranch.frontend.training_capture import capture_training
from anabranch.ir.eval import eval_graph
from anabranch.trace import RECALLED, Trace

BATCH = (torch.linspace(-1.0, 1.0, 12).view(4, 3), torch.tensor([0, 1, 1, 0]))
SCALE = 1.0
WEIGHTS = torch.tensor([1.0, 1.0])
SETTINGS = {"detached": False}


def net() -> Any:
    """No bias that batch norm takes away: its gradient is rounding alone."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2))


def loss_of(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), t)


@dataclass(frozen=True)
class Loop:
    """A training loop, under torch's switches as they are when it is compiled."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[..., Any] = loss_of
    more: tuple[tuple[str, Any], ...] = ()
    batch: tuple[Any, ...] = BATCH

    def request(self) -> StepRequest:
        initialise(self.optimizer)
        random = torch.tensor([7, 0])
        given: dict[str, Any] = dict(self.more)
        training = with_places(
            Training(self.model, self.loss, self.optimizer, random, **given), keep_grad=False
        )
        return StepRequest(training, held_by(training), self.batch, surroundings())


Loops = Iterator[Loop]


def plain(**settings: Any) -> Loop:
    model = net()
    return Loop(model, SGD(model.parameters(), lr=0.5, **settings))


def with_loss(loss: Callable[..., Any]) -> Loop:
    return replace(plain(), loss=loss)


def of_global() -> Loops:
    def scaled(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return SCALE * loss_of(model, x, t)

    yield with_loss(scaled)
    globals()["SCALE"] = 3.0
    yield with_loss(scaled)
    globals()["SCALE"] = 1.0


def of_helper() -> Loops:
    def smoothing(by: float = 0.0) -> float:
        return by

    def smoothed(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), t, label_smoothing=smoothing())

    yield with_loss(smoothed)
    smoothing.__defaults__ = (0.25,)
    yield with_loss(smoothed)


def of_closed_over_tensor() -> Loops:
    def weighed(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), t, weight=WEIGHTS)

    for second in (1.0, 4.0):
        WEIGHTS[1] = second
        yield with_loss(weighed)
    WEIGHTS[1] = 1.0


class Doubled(torch.autograd.Function):
    """The same number, whose gradient is another one."""

    by = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * Doubled.by


def of_backward_alone() -> Loops:
    def through(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        made: Tensor = Doubled.apply(loss_of(model, x, t))  # type: ignore[no-untyped-call]
        return made

    for by in (1.0, 2.0):
        Doubled.by = by
        yield with_loss(through)
    Doubled.by = 1.0


def of_gradient_hook() -> Loops:
    def hooked(by: float) -> Callable[..., Tensor]:
        def loss(model: Any, x: Tensor, t: Tensor) -> Tensor:
            hidden = model[0](x)
            hidden.register_hook(lambda gradient: gradient * by)
            return nn.functional.cross_entropy(model[2](model[1](hidden)), t)

        return loss

    yield with_loss(hooked(1.0))
    yield with_loss(hooked(2.0))


def of_detached_part() -> Loops:
    def loss(model: Any, x: Tensor, t: Tensor) -> Tensor:
        hidden = model[0](x)
        hidden = hidden.detach() if SETTINGS["detached"] else hidden
        return nn.functional.cross_entropy(model[2](model[1](hidden)), t)

    for detached in (False, True):
        SETTINGS["detached"] = detached
        yield with_loss(loss)
    SETTINGS["detached"] = False


def of_frozen_parameter() -> Loops:
    yield plain()
    loop = plain()
    next(loop.model.parameters()).requires_grad_(False)
    yield loop


def of_parameter_nobody_trains() -> Loops:
    yield plain()
    model = net()
    yield Loop(model, SGD(list(model.parameters())[1:], lr=0.5))


def of_hook() -> Loops:
    yield plain()
    loop = plain()
    loop.model.register_forward_hook(lambda part, given, out: out * 2)
    yield loop


def of_global_hook() -> Loops:
    yield plain()
    register = nn.modules.module.register_module_forward_hook
    hook = register(lambda part, _, out: out * 2 if isinstance(part, nn.Sequential) else None)
    yield plain()
    hook.remove()


def of_parametrization() -> Loops:
    for by in (1.0, 2.0):

        class Scaled(nn.Module):
            def forward(self, w: Tensor, by: float = by) -> Tensor:
                return w * by

        model = net()
        parametrize.register_parametrization(model[0], "weight", Scaled())
        yield Loop(model, SGD(model.parameters(), lr=0.5))


def of_mode() -> Loops:
    yield plain()
    loop: Any = plain()
    loop.model[1].eval()
    yield loop


def of_tied_weights() -> Loops:
    for tied in (False, True):
        loop: Any = plain()
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        if tied:
            model[1].weight = model[0].weight
        yield replace(loop, model=model, optimizer=SGD(model.parameters(), lr=0.5))


def of_groups() -> Loops:
    yield plain()
    model = net()
    first, *others = model.parameters()
    groups = [{"params": [first], "weight_decay": 0.5}, {"params": others}]
    yield Loop(model, SGD(groups, lr=0.5))


def of_counts() -> Loops:
    for count in (1.0, 4.0):
        model = net()
        optimizer = Adam(model.parameters(), lr=0.5)
        initialise(optimizer)
        for parameter, first in zip(model.parameters(), (count, 1.0), strict=False):
            optimizer.state[parameter]["step"].fill_(first)
        yield Loop(model, optimizer)


def of_optimizer() -> Loops:
    for kind in (Adam, AdamW):
        model = net()
        yield Loop(model, kind(model.parameters(), lr=0.5, weight_decay=0.25))


def of_shape() -> Loops:
    yield plain()
    yield replace(plain(), batch=(BATCH[0][:3], BATCH[1][:3]))


def of_dtype() -> Loops:
    yield plain()
    model = net().double()
    yield Loop(model, SGD(model.parameters(), lr=0.5), batch=(BATCH[0].double(), BATCH[1]))


def of_autocast() -> Loops:
    yield plain()
    with torch.autocast("cpu", torch.bfloat16):
        yield plain()


def of_default_dtype() -> Loops:
    def loss(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return loss_of(model, x, t) * torch.full((), 1 / 3)

    yield with_loss(loss)
    loop = with_loss(loss)
    torch.set_default_dtype(torch.float64)
    try:
        yield loop
    finally:
        torch.set_default_dtype(torch.float32)


def of_value_in_the_batch() -> Loops:
    def loss(model: nn.Module, x: Tensor, t: Tensor, by: float) -> Tensor:
        return loss_of(model, x, t) * by

    for by in (1.0, 2.0):
        yield replace(with_loss(loss), batch=(*BATCH, by))


def of_settings(*settings: dict[str, Any]) -> Callable[[], Loops]:
    def loops() -> Loops:
        yield from (plain(**one) for one in settings)

    return loops


def of_more(**settings: Any) -> Callable[[], Loops]:
    def loops() -> Loops:
        yield plain()
        yield replace(plain(), more=tuple(settings.items()))

    return loops


CHANGES: list[Callable[[], Loops]] = [
    *(of_global, of_helper, of_closed_over_tensor, of_backward_alone, of_gradient_hook),
    *(of_detached_part, of_frozen_parameter, of_parameter_nobody_trains, of_hook, of_global_hook),
    *(of_parametrization, of_mode, of_tied_weights, of_groups, of_counts, of_optimizer, of_shape),
    *(of_dtype, of_autocast, of_default_dtype, of_value_in_the_batch),
    of_settings({"momentum": 0.5}, {"momentum": 0.9}),
    of_settings({"weight_decay": 0.5}, {}),
    of_settings({"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}),
    of_settings({}, {"maximize": True}),
    of_more(clip_norm=0.1),
    of_more(accumulate=2),
]


def captured_step(
    asked: StepRequest, cache: Cache | None, trace: Trace | None = None
) -> tuple[Captured, EagerStep]:
    with neutral():
        return capture_step(asked, cache, trace or Trace())


def check(captured: Captured, eager: EagerStep, held: Held, batch: tuple[Any, ...]) -> None:
    """The graph leaves what the loop of eager leaves, which is run."""
    graph, states = captured.graph, {one.name: one for one in captured.graph.states}
    tensors = [one for one in batch if isinstance(one, Tensor)]
    rates = [torch.tensor(rate, dtype=torch.float32) for rate in eager.training.rates()]
    given = iter([*tensors, *rates])
    inputs = [
        states[one.name].value.clone() if one.name in states else next(given)  # type: ignore[union-attr]
        for one in graph.inputs
    ]
    found = eval_graph(graph, inputs, torch.device("cpu"))
    loss = eager(*batch, rates)
    exact: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-2} if eager.surroundings.autocast else {}
    torch.testing.assert_close(found[0], loss, **exact)
    written = {one.path: found[one.output] for one in states.values()}
    for name, tensor in zip(held.names, held.tensors, strict=True):
        if name in written and name != "random":
            torch.testing.assert_close(written[name], tensor.detach(), **exact)


@pytest.mark.parametrize("loops", CHANGES)
def test_another_step_is_not_taken_for_the_one_before(loops: Callable[[], Loops]) -> None:
    cache = Cache(None)
    for number, loop in enumerate(loops()):
        asked, trace = loop.request(), Trace()
        captured, eager = captured_step(asked, cache, trace)
        assert all(event.why != RECALLED for event in trace.events)
        if number:
            with neutral():
                check(captured, eager, asked.held, asked.batch)


def drawing() -> Loop:
    model = nn.Sequential(net(), nn.Dropout(0.5))
    return Loop(model, AdamW(model.parameters(), lr=0.5), more=(("clip_norm", 0.5),))


def weighed() -> Loop:
    """With a tensor that nobody of the step holds."""
    weights = torch.tensor([1.0, 2.0])
    loss = lambda model, x, t: nn.functional.cross_entropy(model(x), t, weights)  # noqa: E731
    return with_loss(loss)


@pytest.mark.parametrize("make", [plain, drawing, weighed])
def test_the_same_step_is_recalled_and_has_the_tensors_of_now(make: Callable[[], Loop]) -> None:
    cache = Cache(None)
    captured_step(make().request(), cache)
    trace, asked = Trace(), make().request()
    with torch.no_grad():
        for parameter in asked.training.model.parameters():
            parameter.mul_(0.5)
    captured, eager = captured_step(asked, cache, trace)
    assert [event.where for event in trace.events if event.why == RECALLED] == ["capture"]
    with neutral():
        anew = capture_training(asked.training, asked.held, asked.batch, asked.under, Trace())
    assert (captured.graph.nodes, captured.signature) == (anew[0].graph.nodes, anew[0].signature)
    assert [node.origin for node in captured.graph.nodes] == [
        node.origin for node in anew[0].graph.nodes
    ]
    assert eager == anew[1]
    places = {one.path: one.value for one in captured.graph.states if one.value is not None}
    for name, tensor in zip(asked.held.names, asked.held.tensors, strict=True):
        assert name not in places or places[name].data_ptr() == tensor.data_ptr()
    if make is not drawing:  # whose dropout the graph draws by an operator of its own
        check(captured, eager, asked.held, asked.batch)
