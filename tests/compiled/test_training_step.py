"""A compiled training step beside the loop that it takes the place of."""

from __future__ import annotations

import copy
import gc
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.optim import Optimizer

import anabranch
from anabranch.errors import (
    CaptureError,
    InputError,
    OptionError,
    TargetError,
    WeightsError,
)
from anabranch.trace import RECALLED, Trace

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    "kernels": "library",
}
Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Statistics that operators write, one that forward assigns, and a count in Python."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)
        self.last, self.calls = nn.Linear(8, 5), 0
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(x)))
        self.calls += 1
        self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
        y: Tensor = self.last(hidden)
        return y


class Perceptron(nn.Sequential):
    def __init__(self, drop: float = 0.0) -> None:
        layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 5)
        super().__init__(*layers)


def loss_of(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), t)


def batches(count: int, seed: int = 0) -> list[Batch]:
    make = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(4, 6, generator=make), torch.randint(5, (4,), generator=make))
        for _ in range(count)
    ]


def twins(
    make: Callable[[Any], Optimizer], kind: Callable[[], nn.Module] = Perceptron
) -> tuple[nn.Module, Optimizer, nn.Module, Optimizer]:
    """A model and its optimizer, and the same once more."""
    torch.manual_seed(0)
    model = kind()
    other = copy.deepcopy(model)
    return model, make(model.parameters()), other, make(other.parameters())


def step_of(model: nn.Module, optimizer: Optimizer, **more: Any) -> anabranch.TrainingStep:
    loss: Any = more.pop("loss_fn", loss_of)
    first = more.pop("batch", batches(1)[0])
    return anabranch.compile_step(
        model, loss, optimizer, first, trace=Trace(quiet=True), **{**QUICK, **more}
    )


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def linear() -> nn.Module:
    return nn.Linear(6, 5)


def eager(model: nn.Module, optimizer: Optimizer, batch: Batch) -> float:
    loss = loss_of(model, *batch)
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def test_a_loop_with_statistics_and_a_schedule_can_be_resumed_bit_for_bit() -> None:
    model, optimizer, other, theirs = twins(lambda p: torch.optim.AdamW(p, lr=1e-2), Net)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.3) for o in (optimizer, theirs)]
    before = copy.deepcopy(model.state_dict())
    step = step_of(model, optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.calls == 0, "compiling changes nothing"
    for batch in batches(5):
        loss = step(*batch)
        assert loss.grad_fn is None and not loss.requires_grad
        assert loss.item() == pytest.approx(eager(other, theirs, batch), abs=2e-6)
        for schedule in schedules:
            schedule.step()
    assert apart(model, other) < 1e-5
    kept = [copy.deepcopy(one.state_dict()) for one in (model, optimizer, schedules[0], step)]
    first = [step(*batch).item() for batch in batches(3, seed=1)]
    everything: tuple[Any, ...] = (model, optimizer, schedules[0], step)
    for one, state in zip(everything, kept, strict=True):
        one.load_state_dict(state)
    assert [step(*batch).item() for batch in batches(3, seed=1)] == first


def test_a_warm_start_trains_as_eager_does(tmp_path: Path) -> None:
    """With statistics that forward assigns, and sums of gradients: two graphs are recalled."""
    more: dict[str, Any] = {"cache_dir": tmp_path, "accumulate": 2}
    for number in range(2):
        model, optimizer, other, theirs = twins(lambda p: torch.optim.AdamW(p, lr=1e-2), Net)
        trace = Trace(quiet=True)
        step = anabranch.compile_step(
            model, loss_of, optimizer, batches(1)[0], trace=trace, **{**QUICK, **more}
        )
        recalled = [e for e in trace.events if e.where == "capture" and e.why == RECALLED]
        assert len(recalled) == 2 * number
    for number, batch in enumerate(batches(4)):
        loss = loss_of(other, *batch)
        backward(loss / 2)
        assert step(*batch).item() == pytest.approx(loss.item(), abs=2e-6)
        if number % 2:
            theirs.step()
            theirs.zero_grad()
    assert apart(model, other) < 1e-5


def test_other_forms_of_batches_and_other_settings() -> None:
    model, optimizer, other, _ = twins(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    step, (x, t) = step_of(model, optimizer, keep_grad=True), batches(1)[0]
    with pytest.raises(InputError, match=r"f32\[3,6\]"):
        step(x[:3], t[:3])
    step.add((x[:3], t[:3]))
    backward(loss_of(other, x[:3], t[:3]))
    step(x[:3], t[:3])
    for mine, parameter in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, parameter.grad)
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(InputError, match=r"momentum was 0.9 .* and is 0.5"):
        step(x, t)
    optimizer.param_groups[0]["momentum"] = 0.9
    model[0].weight = nn.Parameter(torch.zeros(8, 6))  # type: ignore[index]
    with pytest.raises(WeightsError, match=r"0\.weight is another tensor"):
        step(x, t)


def test_gradients_are_kept_of_what_the_optimizer_has() -> None:
    model, _, other, _ = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    first = [name for name, _ in model.named_parameters() if name.startswith("0.")]
    optimizer = torch.optim.SGD([model.get_parameter(name) for name in first], lr=0.1)
    step, (x, t) = step_of(model, optimizer, keep_grad=True), batches(1)[0]
    marked = model.get_parameter("4.bias")
    marked.grad = torch.ones_like(marked)
    backward(loss_of(other, x, t))
    step(x, t)
    for name, parameter in model.named_parameters():
        if name in first:
            torch.testing.assert_close(parameter.grad, other.get_parameter(name).grad)
        elif parameter is not marked:
            assert parameter.grad is None
    torch.testing.assert_close(marked.grad, torch.ones_like(marked))


def test_parameters_that_are_frozen_or_unfrozen_later_are_refused() -> None:
    """A plan would go on training the one, and never train the other."""
    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=1e-2))
    for one in (model, other):
        one.get_parameter("4.bias").requires_grad_(False)
    step, (batch,) = step_of(model, optimizer), batches(1, 1)
    for name, then in (("4.bias", False), ("0.weight", True)):
        model.get_parameter(name).requires_grad_(not then)
        with pytest.raises(WeightsError, match=rf"{name} requires .*gradients, and did"):
            step(*batch)
        model.get_parameter(name).requires_grad_(then)
    assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=1e-6)
    assert apart(model, other) < 1e-6


def test_what_a_step_reads_and_writes_beside_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        (tmp_path / "losses.txt").write_text("asked")
        return loss_of(model, x, t) * float(os.environ["SCALE"])

    monkeypatch.setenv("SCALE", "2")
    model, optimizer, *_ = twins(lambda p: torch.optim.SGD(p, lr=0.1), linear)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step = step_of(model, optimizer, loss_fn=loss)
    told = [str(one.message) for one in said]
    assert [one.partition(" at ")[0] for one in told] == [
        "Linear: forward changes losses.txt (written to",
        "Linear: forward reads os.environ['SCALE']",
    ]
    batch = batches(1)[0]
    wanted = 2 * loss_of(copy.deepcopy(model), *batch).item()
    assert step(*batch).item() == pytest.approx(wanted)


def images(model: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    y = model(x)
    return y.square().mean(), (y, y.flatten(2) * 2)


def test_extras_lie_as_eagers_however_inputs_lie() -> None:
    make = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 2, 1))  # noqa: E731
    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=1e-2), make)
    x = torch.randn(2, 3, 5, 5)
    step = step_of(model, optimizer, loss_fn=images, batch=(x,))
    for lay in (torch.channels_last, torch.contiguous_format):
        given = x.contiguous(memory_format=lay)
        loss, extras = step(given)
        mine, wanted = images(other, given)
        backward(mine)
        theirs.step()
        theirs.zero_grad()
        assert [one.stride() for one in extras] == [one.stride() for one in wanted]
        for one, want in zip((loss, *extras), (mine, *wanted), strict=True):
            torch.testing.assert_close(one, want.detach())


def test_a_loss_may_be_handed_out_in_a_dict_by_its_name() -> None:
    def named(model: nn.Module, *batch: Tensor) -> dict[str, Any]:
        loss = loss_of(model, *batch)
        return {"logs": {"mean": batch[0].mean()}, "loss": loss}

    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=0.5), linear)
    step = step_of(model, optimizer, loss_fn=named, accumulate=2)
    for number, batch in enumerate(batches(4), 1):
        result, wanted = step(*batch), named(other, *batch)
        backward(wanted["loss"] / 2)
        if number % 2 == 0:
            theirs.step()
            theirs.zero_grad()
        assert list(result) == ["logs", "loss"]
        torch.testing.assert_close(result["loss"], wanted["loss"].detach())
        torch.testing.assert_close(result["logs"]["mean"], batch[0].mean())
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))


def test_gradients_are_added_up_and_clipped() -> None:
    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=0.5), linear)
    step = step_of(model, optimizer, accumulate=3, clip_norm=0.1)
    for number, batch in enumerate(batches(6), 1):
        loss = loss_of(other, *batch)
        assert step(*batch).item() == pytest.approx(loss.item(), abs=1e-6)
        backward(loss / 3)
        if number % 3 == 0:
            nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            theirs.step()
            theirs.zero_grad()
    assert apart(model, other) < 1e-6


def test_a_scaler_skips_what_is_not_finite() -> None:
    model, optimizer, other, theirs = twins(lambda p: torch.optim.AdamW(p, lr=1e-2), linear)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2) for _ in "ab"]
    step = step_of(model, optimizer, scaler=scalers[0])
    for number, (x, t) in enumerate(batches(6)):
        if number == 2:
            x = x * torch.inf
        step(x, t)
        backward(scalers[1].scale(loss_of(other, x, t)))
        scalers[1].step(theirs)
        scalers[1].update()
        theirs.zero_grad()
        assert scalers[0].state_dict() == scalers[1].state_dict(), number
    assert apart(model, other) < 1e-6


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(
        p, lr=0.01, amsgrad=True, weight_decay=0.1, foreach=True, maximize=True
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_their_own_steps(name: str) -> None:
    model, optimizer, other, theirs = twins(OPTIMIZERS[name], linear)
    step = step_of(model, optimizer)
    for batch in batches(4):
        assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-6)
    assert apart(model, other) < 1e-5
    states = zip(optimizer.state.values(), theirs.state.values(), strict=True)
    for mine, wanted in states:
        assert mine.keys() == wanted.keys()
        for key, value in wanted.items():
            torch.testing.assert_close(mine[key], value, atol=1e-5, rtol=1e-4)


CYCLED: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("name", CYCLED)
def test_momenta_cycle_as_schedules_have_them(name: str, tmp_path: Path) -> None:
    model, optimizer, other, theirs = twins(CYCLED[name], linear)
    pair = [
        torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20) for o in (optimizer, theirs)
    ]
    step = step_of(model, optimizer)
    for number, batch in enumerate(batches(8)):
        if number == 5:  # in a file a plan has no numbers of what changes
            step.save(tmp_path / "step.anabranch")
            step = anabranch.load_step(tmp_path / "step.anabranch", model, optimizer, target="cpu")
        assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-6)
        for schedule in pair:
            schedule.step()
    assert apart(model, other) < 1e-5


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.Adamax])
def test_momenta_that_cannot_cycle_are_refused_when_the_step_is_compiled(kind: Any) -> None:
    model = linear()
    optimizer = kind(model.parameters())
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    with pytest.raises(CaptureError, match="cycles the momentum of"):
        step_of(model, optimizer)


def test_a_warm_up_begins_at_zero_where_weights_have_no_gradient_yet() -> None:
    model = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 5))
    other = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other)]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda i: i / 3, last_epoch=-1) for o in optimizers
    ]
    batch = torch.tensor([[0, 1], [1, 2]]), torch.tensor([3, 4])
    step = step_of(model, optimizers[0], batch=batch)
    for _ in range(3):
        step(*batch)
        eager(other, optimizers[1], batch)
        for schedule in schedules:
            schedule.step()
    assert apart(model, other) < 1e-6


@pytest.mark.parametrize("exact", [False, True])
def test_a_rate_that_is_a_tensor_is_read_anew_whatever_its_dtype(exact: bool) -> None:
    dtypes = (torch.float64, torch.float32) if exact else (torch.float32, torch.float64)
    model = linear().to(dtypes[0])
    other = copy.deepcopy(model)
    optimizers = [
        torch.optim.SGD(m.parameters(), lr=torch.tensor(0.5, dtype=dtypes[1]))
        for m in (model, other)
    ]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.25) for o in optimizers]
    x, t = batches(1)[0]
    batch = x.to(dtypes[0]), t
    step = step_of(model, optimizers[0], batch=batch)
    for _ in range(3):
        step(*batch)
        eager(other, optimizers[1], batch)
        for schedule in schedules:
            schedule.step()  # writes to the tensor in place
    assert apart(model, other) < 1e-6


def test_a_weight_decay_that_has_a_schedule_is_told_of() -> None:
    model, optimizer, other, theirs = twins(lambda p: torch.optim.AdamW(p, lr=0.1), linear)
    with pytest.raises(OptionError, match=r"AdamW can have these changed: betas, weight_decay"):
        step_of(model, optimizer, changing=("eps",))
    step = step_of(model, optimizer, changing=("weight_decay",))
    for number, batch in enumerate(batches(4)):
        for each in (optimizer, theirs):
            each.param_groups[0]["weight_decay"] = 0.5 * number
        assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-6)
    assert apart(model, other) < 1e-5
    optimizer.param_groups[0]["betas"] = (0.8, 0.9)
    with pytest.raises(InputError, match=r"(?s)betas was .* changing=\('betas',\)"):
        step(*batches(1)[0])


class Unread(nn.Module):
    """Its first parameter has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unread, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def test_steps_are_counted_of_parameters_that_have_gradients() -> None:
    """Eager keeps no count of the others; a state without one can be loaded."""
    model, optimizer, other, theirs = twins(lambda p: torch.optim.Adam(p, lr=0.05), Unread)
    step = step_of(model, optimizer)
    for number, batch in enumerate(batches(6)):
        if number == 3:
            optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
        if number == 5:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-6)
    assert apart(model, other) < 1e-5 and model.unread.eq(1).all()  # type: ignore[operator]


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm, self.apart = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.max_pool2d(nn.functional.silu(self.apart(x)), 2)
        y: Tensor = self.last(x.mean((2, 3)))
        return y


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        layer = {"dropout": 0.0, "batch_first": True, "activation": "gelu"}
        self.block = nn.TransformerEncoderLayer(8, 2, 16, **layer)  # type: ignore[arg-type]
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.block(self.table(x)).mean(1))
        return y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layer(x)[0][:, -1])
        return y


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolutional": (Convolutional, lambda: torch.randn(4, 3, 8, 8)),
    "attends": (Attends, lambda: torch.randint(11, (4, 6))),
    "recurrent": (Recurrent, lambda: torch.randn(4, 3, 6)),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_networks(name: str) -> None:
    kind, draw = KINDS[name]
    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=0.2), kind)
    examples = [(draw(), torch.randint(5, (4,))) for _ in range(5)]
    step = step_of(model, optimizer, batch=examples[0])
    for batch in examples:
        assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-6)
    assert apart(model, other) < 1e-5


def test_autocast_around_a_call_is_that_of_the_step_or_refused() -> None:
    batch = batches(1)[0]
    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    step = step_of(model, optimizer, batch=batch)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="without it"):
        step(*batch)
    assert apart(model, other) == 0
    with torch.autocast("cpu", torch.bfloat16):
        half = step_of(model, optimizer, batch=batch)
        assert half(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-3)
    with torch.autocast("cpu", torch.float16), pytest.raises(InputError, match="in bfloat16"):
        half(*batch)


def test_extras_autocast_and_a_frozen_part() -> None:
    def with_extras(model: nn.Module, x: Tensor, t: Tensor) -> tuple[Tensor, dict[str, Any]]:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        loss = nn.functional.cross_entropy(y.float(), t)
        return loss, {"right": (y.argmax(1) == t).sum(), "kind": "bf16"}

    model, _, other, _ = twins(lambda p: torch.optim.SGD(p, lr=0.1))
    optimizers = []
    for one in (model, other):
        one[0].requires_grad_(False)  # type: ignore[index]
        optimizers.append(torch.optim.SGD([p for p in one.parameters() if p.requires_grad], lr=0.1))
    step = step_of(model, optimizers[0], loss_fn=with_extras)
    for batch in batches(3):
        loss, extras = step(*batch)
        wanted, theirs = with_extras(other, *batch)
        backward(wanted)
        optimizers[1].step()
        optimizers[1].zero_grad()
        assert loss.item() == pytest.approx(wanted.item(), abs=5e-3)
        assert extras["kind"] == "bf16" and extras["right"].shape == theirs["right"].shape
    assert apart(model, other) < 1e-3 and model[0].weight.grad is None  # type: ignore[index]
    with torch.no_grad():  # what the step only reads it reads as it is
        for one in (model, other):
            one[0].weight.mul_(2.0)  # type: ignore[index]
    batch = batches(1)[0]
    assert step(*batch)[0].item() == pytest.approx(with_extras(other, *batch)[0].item(), abs=5e-3)


def test_random_numbers_are_of_the_seed_and_of_the_call() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 5))

    batch, found = batches(1)[0], []
    for seed in (3, 3, 4):
        torch.manual_seed(0)
        model = dropping()
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.0), seed=seed)
        found.append([step(*batch).item() for _ in range(4)])
    assert found[0] == found[1] and len({*found[0], *found[2]}) == 8
    kept = step.state_dict()
    following = [step(*batch).item() for _ in range(2)]
    step.load_state_dict(kept)
    assert [step(*batch).item() for _ in range(2)] == following


class Looked(nn.Module):
    """Gradients of one row come from several places: torch adds them up in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.drop = nn.Parameter(torch.randn(3, 6)), nn.Dropout(0.3)
        self.last = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[0], device=x.device) % 3
        y: Tensor = self.last(self.drop(x + self.rows[places]))
        return y


def unpooled(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    y = model(x)[None]
    pooled, places = nn.functional.max_pool2d(y, 2, return_indices=True)
    return nn.functional.max_unpool2d(pooled, places, [2, 2], output_size=[4, 5]).square().mean()


def test_equal_bits_for_equal_seeds() -> None:
    found = []
    for _ in range(2):
        model, optimizer, _, _ = twins(lambda p: torch.optim.AdamW(p, lr=0.1), Looked)
        step = step_of(model, optimizer, seed=5, deterministic=True)
        losses = [step(*batch).item() for batch in batches(6)]
        found.append((losses, [p.clone() for p in model.parameters()]))
    assert found[0][0] == found[1][0] and len(set(found[0][0])) == 6
    assert all(map(torch.equal, found[0][1], found[1][1]))
    kernels = [task.kernel for task in step.plan.tasks.tasks if "index_put" in task.name]
    assert [k.variant for k in kernels if k] == ["in_order"]


def test_what_gives_other_bits_is_named_or_refused() -> None:
    for deterministic in (False, True):
        model, optimizer, _, _ = twins(lambda p: torch.optim.SGD(p, lr=0.1), Looked)
        told = step_of(model, optimizer, deterministic=deterministic).explain()
        named = "aten.index_put works in any order on a CPU"
        assert (named in told) == (not deterministic)
    with pytest.raises(TargetError, match=r"no kernel of task .* gives the same bits") as refused:
        step_of(model, optimizer, loss_fn=unpooled, deterministic=True)
    assert "aten.max_unpool2d works in any order on a CPU" in str(refused.value)


def checkpointed(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    return nn.functional.cross_entropy(y, t)


def reentering(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    y = torch.utils.checkpoint.checkpoint(model, x.detach().requires_grad_(), use_reentrant=True)
    return nn.functional.cross_entropy(y, t)


def penalised(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    loss = loss_of(model, x, t)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + gradient.square().sum()


def doubled(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    y = model(x)
    y.register_hook(lambda gradient: 2 * gradient)
    return nn.functional.cross_entropy(y, t)


@pytest.mark.parametrize("loss_fn", [checkpointed, reentering, penalised, doubled])
def test_what_losses_do_with_autograd(loss_fn: Callable[..., Tensor]) -> None:
    model, optimizer, other, theirs = twins(lambda p: torch.optim.SGD(p, lr=0.1), linear)
    step = step_of(model, optimizer, loss_fn=loss_fn, verify=False)
    for batch in batches(3):
        loss = loss_fn(other, *batch)
        assert step(*batch).item() == pytest.approx(loss.item(), abs=2e-6)
        backward(loss)
        theirs.step()
        theirs.zero_grad()
    assert apart(model, other) < 1e-5


class Scaled(nn.Module):
    """Two scalars, whose moments are scalars and equal at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.by, self.shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return torch.tanh(self.by * y + self.shift)


def test_moments_of_scalars_are_each_their_own() -> None:
    model, optimizer, other, theirs = twins(lambda p: torch.optim.AdamW(p, lr=0.05), Scaled)
    step = step_of(model, optimizer)
    for batch in batches(4):
        assert step(*batch).item() == pytest.approx(eager(other, theirs, batch), abs=5e-6)
    assert apart(model, other) < 1e-5


def test_a_gradient_of_rounding_alone_is_no_fault() -> None:
    """The bias before a norm has none but for rounding, and Adam goes by its sign."""

    def biased() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5))

    for seed in range(2):
        torch.manual_seed(seed)
        model = biased()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step_of(model, optimizer, batch=batches(1, seed)[0], strict=True)


def test_nobody_looks_for_garbage_while_a_step_is_captured() -> None:
    """Of a large one that was a seventh of the time."""

    def watched(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        assert not gc.isenabled()
        return loss_of(model, x, t)

    model, optimizer, _, _ = twins(lambda p: torch.optim.SGD(p, lr=0.1), linear)
    assert step_of(model, optimizer, loss_fn=watched, verify=False).plan.tasks.tasks
    assert gc.isenabled()


def test_phases_are_told() -> None:
    model, optimizer, _, _ = twins(lambda p: torch.optim.SGD(p, lr=0.1), linear)
    step = step_of(model, optimizer, clip_norm=1.0)  # else an update may be a part of the backward
    told = step.explain(whole=True)
    assert "weight" in told and "the model's own tensor" in told
    for phase in ("forward", "backward", "update"):
        assert re.search(rf"\b{phase}\)?$", told, re.MULTILINE), phase


def decides(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    loss = loss_of(model, x, t)
    return 2 * loss if loss > 1 else loss


def reads(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    loss = loss_of(model, x, t)
    return loss * float(loss.detach().item() > 1)


def picks(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x)[t > 1], t[t > 1])


MAKERS: Any = torch.library
LIBRARY: Any = MAKERS.Library("steps", "FRAGMENT")
LIBRARY.define("sifted(Tensor x) -> Tensor", tags=(torch.Tag.dynamic_output_shape,))
LIBRARY.impl("sifted", lambda x: x[x > 0], "CompositeExplicitAutograd")


def sifts(model: nn.Module, x: Tensor, t: Tensor) -> Any:
    return loss_of(model, x, t) * torch.ops.steps.sifted(x).sum()


def packs(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(model(x)[None], torch.ones(4).long())
    return nn.utils.rnn.pad_packed_sequence(packed)[0].sum()


def lazy() -> nn.Module:
    return nn.LazyLinear(5)


class Wrapper(nn.Module):
    """Named as torch's, which needs several processes to be made."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Perceptron()


Wrapper.__name__ = "DistributedDataParallel"


def hooked() -> nn.Module:
    model = Perceptron()
    model.get_parameter("0.weight").register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    return model


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 5, sparse=True))


def cumulative() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5, momentum=None))


def of_another(_: Any, lr: float) -> Optimizer:
    return torch.optim.SGD(Perceptron().parameters(), lr)


class Slowing(torch.optim.SGD):
    """It counts its steps in Python."""

    def step(self, closure: Any = None) -> Any:
        for values in self.state.values():
            values["count"] = values.get("count", 0) + 1
        return super().step(closure)


def slowing(parameters: Any, lr: float) -> Optimizer:
    optimizer = Slowing(parameters, lr)
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {"count": 1, "momentum_buffer": None}
    return optimizer


@pytest.mark.parametrize(
    ("make", "optimizer", "more", "told"),
    [
        (hooked, torch.optim.SGD, {}, "0.weight has a hook"),
        (sparse, torch.optim.SGD, {}, "has sparse gradients"),
        (cumulative, torch.optim.SGD, {}, "(?s)module 1 averages.*give it a momentum"),
        (lazy, torch.optim.SGD, {}, "(?s)weight has no shape yet.*call the model once"),
        (Perceptron, torch.optim.SGD, {"loss_fn": sifts}, "(?s)steps.sifted.*torch.compile"),
        (Perceptron, torch.optim.SGD, {"loss_fn": packs}, "asks for the value of a tensor"),
        (Wrapper, torch.optim.SGD, {}, "is a DistributedDataParallel"),
        (Perceptron, torch.optim.LBFGS, {}, "the optimizer is LBFGS"),
        (Perceptron, torch.optim.Adafactor, {}, "(?s)torch's Adafactor.*norms.*in a loop"),
        (Perceptron, of_another, {}, "no trainable parameter of the model"),
        (Perceptron, slowing, {}, "a step of Slowing changes 'count', a number of Python's"),
        (
            *(Perceptron, torch.optim.SGD, {"loss_fn": nn.CrossEntropyLoss()}),
            r"(?s)cannot be called with the model and 2 parts .* lambda model, x, t: criterion",
        ),
        (Perceptron, torch.optim.SGD, {"accumulate": 0}, "accumulate is 0"),
        (Perceptron, torch.optim.SGD, {"loss_fn": 3}, "loss_fn is a int"),
        (Perceptron, torch.optim.SGD, {"loss_fn": decides}, "(?s)asks for the value.*torch.where"),
        (Perceptron, torch.optim.SGD, {"loss_fn": reads}, "(?s)asks for the value.* in reads"),
        (Perceptron, torch.optim.SGD, {"loss_fn": picks}, "(?s)weigh by a mask"),
        (
            *(Perceptron, torch.optim.SGD),
            *({"loss_fn": lambda m, x, t: m(x)}, r"the loss is a tensor of shape \[4, 5\]"),
        ),
        (
            *(Perceptron, torch.optim.SGD),
            *({"loss_fn": lambda m, x, t: m(x).sum().detach()}, "that requires no gradient"),
        ),
    ],
)
def test_what_is_refused(
    make: Callable[[], nn.Module], optimizer: Any, more: dict[str, Any], told: str
) -> None:
    model = make()
    with pytest.raises((CaptureError, OptionError), match=told):
        step_of(model, optimizer(model.parameters(), lr=0.1), **more)
