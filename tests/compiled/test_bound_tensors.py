"""What a loop does to model and optimizer between two calls of a compiled step."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import anabranch
from anabranch.errors import CaptureError, InputError, WeightsError
from anabranch.trace import Trace

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    "kernels": "library",
}
DICE = torch.Generator().manual_seed(0)
BATCH = torch.randn(4, 6, generator=DICE), torch.randint(5, (4,), generator=DICE)


class Loop:
    """A network, its optimizer, and the step that is compiled for them."""

    def __init__(self, only: str = "") -> None:
        torch.manual_seed(0)
        layers = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5)
        self.model: nn.Module = nn.Sequential(*layers)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name.startswith(only))
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer: Optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)

    def compiled(self) -> anabranch.TrainingStep:
        return anabranch.compile_step(
            self.model, self.loss, self.optimizer, BATCH, trace=Trace(quiet=True), **QUICK
        )

    @staticmethod
    def loss(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), t)

    def eager(self) -> float:
        loss = self.loss(self.model, *BATCH)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


class Overlapping(Loop):
    """A layer whose weight is a part of another's."""

    def __init__(self) -> None:
        super().__init__()
        large = nn.Linear(6, 16, bias=False)
        self.model.add_module("4", large)
        self.model.get_submodule("0").weight = nn.Parameter(large.weight.data[:8])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)


def test_parameters_with_a_part_of_their_memory_in_common_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"0\.weight and 4\.weight have a part of their memory"):
        Overlapping().compiled()


def weight_of(loop: Loop) -> nn.Parameter:
    return loop.model.get_parameter("0.weight")


@pytest.mark.parametrize("only", ["", "3"], ids=["trained", "frozen"])
def test_weights_that_were_given_other_memory_are_those_of_the_plan_again(only: str) -> None:
    """`weight.data = average`, as loops with averages of weights do."""
    mine, theirs = Loop(only), Loop(only)
    step = mine.compiled()
    for _ in range(2):
        step(*BATCH)
        theirs.eager()
        for loop in (mine, theirs):
            weight_of(loop).data = 0.5 * weight_of(loop).data
    assert step(*BATCH).item() == pytest.approx(theirs.eager(), abs=1e-6)
    torch.testing.assert_close(weight_of(mine), weight_of(theirs))


def test_the_other_mode_is_refused_where_modules_ask_for_it() -> None:
    loop = Loop()
    step, before = loop.compiled(), copy.deepcopy(loop.model.state_dict())
    loop.model.eval()
    with pytest.raises(InputError, match="the module 1 is in evaluation mode, and was in training"):
        step(*BATCH)
    assert all(torch.equal(x, before[name]) for name, x in loop.model.state_dict().items())
    loop.model.train()
    loop.model[2].eval()  # type: ignore[index]
    step(*BATCH)


def test_another_module_in_the_place_of_one_is_refused() -> None:
    loop = Loop()
    step, layers = loop.compiled(), loop.model
    assert isinstance(layers, nn.Sequential)
    before = layers[2]
    layers[2] = nn.GELU()
    with pytest.raises(InputError, match="the module 2 is another one than when the step was"):
        step(*BATCH)
    layers[2] = before
    step(*BATCH)


def test_gradients_that_wait_are_refused_and_zeros_go(tmp_path: Path) -> None:
    """Eager would add to them; a step is saved whatever waits."""
    mine, theirs = Loop(), Loop()
    step = mine.compiled()
    before = copy.deepcopy(mine.model.state_dict())
    mine.loss(mine.model.eval(), *BATCH).backward()  # type: ignore[no-untyped-call]
    mine.model.train()
    with pytest.raises(InputError, match="weight has a gradient already"):
        step(*BATCH)
    step.save(tmp_path / "step.anabranch")
    assert all(torch.equal(x, before[name]) for name, x in mine.model.state_dict().items())
    assert weight_of(mine).grad is not None
    mine.optimizer.zero_grad(set_to_none=False)
    assert step(*BATCH).item() == pytest.approx(theirs.eager(), abs=1e-6)
    assert weight_of(mine).grad is None
    torch.testing.assert_close(weight_of(mine), weight_of(theirs))


def test_gradients_that_a_step_keeps_do_not_wait() -> None:
    loop = Loop()
    step = anabranch.compile_step(
        loop.model, loop.loss, loop.optimizer, BATCH, keep_grad=True, **QUICK
    )
    assert step(*BATCH).item() > step(*BATCH).item()


class Unread(Loop):
    """The loss does not depend on one of the layers that the optimizer has."""

    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.model, nn.Sequential)
        self.model.append(nn.Linear(5, 5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    @staticmethod
    def loss(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        assert isinstance(model, nn.Sequential)
        return nn.functional.cross_entropy(model[:4](x), t)


def test_a_parameter_without_a_gradient_shows_none() -> None:
    """A step of the user's own would take a gradient of zeros for one, and let the weight decay."""
    loop = Unread()
    step = anabranch.compile_step(
        loop.model, loop.loss, loop.optimizer, BATCH, keep_grad=True, **QUICK
    )
    step(*BATCH)
    assert loop.model.get_parameter("3.weight").grad is not None
    assert loop.model.get_parameter("4.weight").grad is None


def cleared(optimizer: Optimizer) -> None:
    optimizer.state.clear()


def replaced(optimizer: Optimizer) -> None:
    optimizer.state = defaultdict(dict)


def deleted(optimizer: Optimizer) -> None:
    del optimizer.state[optimizer.param_groups[0]["params"][0]]


def fresh(optimizer: Optimizer) -> None:
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})


@pytest.mark.parametrize("begin_anew", [cleared, replaced, deleted, fresh])
@pytest.mark.parametrize("adam", [False, True])
def test_an_optimizer_begins_anew(begin_anew: Callable[[Optimizer], None], adam: bool) -> None:
    mine, theirs = Loop(), Loop()
    if adam:
        for loop in (mine, theirs):
            loop.optimizer = torch.optim.Adam(loop.model.parameters(), lr=0.1)
    step = mine.compiled()
    for i in range(4):
        assert step(*BATCH).item() == pytest.approx(theirs.eager(), abs=1e-5)
        if i == 1 and not (adam and begin_anew is deleted):  # counts of steps are no longer equal
            begin_anew(mine.optimizer)
            begin_anew(theirs.optimizer)
    torch.testing.assert_close(weight_of(mine), weight_of(theirs), atol=1e-5, rtol=1e-4)


def hooked(loop: Loop, said: str) -> Any:
    """A hook of what the words say."""
    weight: Any = weight_of(loop)
    added: dict[str, Callable[[Any], Any]] = {
        "a hook of a module": loop.model.register_forward_hook,
        "a hook of a module was": loop.model.register_full_backward_hook,
        "the parameter 0.weight was": weight.register_hook,
        "the parameter": weight.register_post_accumulate_grad_hook,
        "the optimizer was": loop.optimizer.register_step_post_hook,
    }
    return added[said](print)


@pytest.mark.parametrize(
    "said",
    [
        *("a hook of a module", "a hook of a module was", "the parameter 0.weight was"),
        *("the parameter", "the optimizer was"),
    ],
)
def test_a_hook_that_comes_later_is_refused(said: str) -> None:
    """Eager calls it, and a plan does not."""
    loop = Loop()
    step = loop.compiled()
    hook = hooked(loop, said)
    with pytest.raises(InputError, match=f"{said}.* (after|since) the step was compiled"):
        step(*BATCH)
    hook.remove()
    step(*BATCH)


def appended(loop: Loop) -> None:
    loop.model.add_module("4", nn.Linear(5, 5))


def removed(loop: Loop) -> None:
    del loop.model._modules["3"]


def registered(loop: Loop) -> None:
    loop.model[2].register_parameter("slope", nn.Parameter(torch.ones(8)))  # type: ignore[index]


def filled(loop: Loop) -> None:
    loop.model[0].bias = nn.Parameter(torch.ones(8))  # type: ignore[index]


def buffered(loop: Loop) -> None:
    loop.model.register_buffer("mean", torch.ones(8))


def dropped(loop: Loop) -> None:
    loop.model[3].register_parameter("bias", None)  # type: ignore[index]


def frozen(loop: Loop) -> None:
    weight_of(loop).requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (appended, InputError, "the module 4 was added since"),
        (removed, InputError, "the module 3 was removed since"),
        (registered, WeightsError, r"2\.slope was added since"),
        (filled, WeightsError, r"0\.bias was added since"),
        (buffered, WeightsError, "mean was added since"),
        (dropped, WeightsError, r"3\.bias was removed since"),
        (frozen, WeightsError, r"0\.weight requires no gradients, and did when"),
    ],
)
def test_what_modules_register_later_is_refused(
    change: Callable[[Loop], None], error: type[Exception], said: str
) -> None:
    """The model would compute something else, or the optimizer something less."""
    loop = Loop()
    step = loop.compiled()
    step(*BATCH)
    before = copy.deepcopy(loop.model.state_dict())
    change(loop)
    with pytest.raises(error, match=f"{said} the step was compiled"):
        step(*BATCH)
    now = loop.model.state_dict()
    assert all(torch.equal(now[name], x) for name, x in before.items() if name in now)


def extended(loop: Loop) -> None:
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def converted(loop: Loop) -> None:
    loop.model.double()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (extended, "the optimizer has 6 parameters in 2 groups, and had 5 parameters in 1 groups"),
        (converted, r"0\.weight is torch.float64\[8, 6\] on cpu, and was torch.float32\[8, 6\]"),
    ],
)
def test_what_a_plan_cannot_follow_is_refused(change: Callable[[Loop], None], said: str) -> None:
    loop = Loop()
    step = loop.compiled()
    change(loop)
    with pytest.raises(WeightsError, match=said):
        step(*BATCH)


class Distilled(Loop):
    """A loss that refers to a teacher, which follows the model, and to a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.last = nn.Linear(5, 5)
        trained = [*self.model.parameters(), *self.last.parameters()]
        self.optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        self.loss = self.distilling()  # type: ignore[method-assign]

    def distilling(self) -> Callable[..., Tensor]:
        teacher, last = self.teacher, self.last

        def loss(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
            y = model(x)
            apart = nn.functional.mse_loss(y, teacher(x))
            return nn.functional.cross_entropy(last(y), t) + apart

        return loss

    def follow(self) -> None:
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.model.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.lerp_(theirs, 0.5)


def test_a_loss_may_refer_to_modules_that_change() -> None:
    """What a plan only reads of them is as it is now, statistics and layers of theirs train."""
    mine, theirs = Distilled(), Distilled()
    theirs.last.load_state_dict(mine.last.state_dict())
    step = mine.compiled()
    for _ in range(4):
        assert step(*BATCH).item() == pytest.approx(theirs.eager(), abs=2e-6)
        mine.follow()
        theirs.follow()
    for part in ("model", "teacher", "last"):
        wanted = getattr(theirs, part).state_dict()
        for name, value in getattr(mine, part).state_dict().items():
            torch.testing.assert_close(value, wanted[name], atol=1e-5, rtol=1e-4)


def test_a_saved_step_is_given_the_loss_that_refers_to_modules(tmp_path: Path) -> None:
    mine, theirs = Distilled(), Distilled()
    theirs.last.load_state_dict(mine.last.state_dict())
    mine.compiled().save(tmp_path / "step.anabranch")
    path, pair = tmp_path / "step.anabranch", {"model": mine.model, "optimizer": mine.optimizer}
    with pytest.raises(WeightsError, match=r"(?s)reads loss\.last\.bias, .* as loss_fn"):
        anabranch.load_step(path, **pair, target="cpu")  # type: ignore[arg-type]
    step = anabranch.load_step(path, **pair, loss_fn=mine.loss, target="cpu")  # type: ignore[arg-type]
    for _ in range(2):
        assert step(*BATCH).item() == pytest.approx(theirs.eager(), abs=2e-6)
        mine.follow()
        theirs.follow()
    torch.testing.assert_close(mine.last.weight, theirs.last.weight)


def doubles_after(calls: int, kind: str, **settings: Any) -> tuple[Loop, Loop]:
    """A compiled loop and eager's after so many steps, both in double precision."""
    return loops_after(calls, kind, torch.float64, **settings)


def loops_after(calls: int, kind: str, dtype: torch.dtype, **settings: Any) -> tuple[Loop, Loop]:
    """A compiled loop and eager's after so many steps, both in this precision."""
    loops = Loop(), Loop()
    for loop in loops:
        loop.model.to(dtype)
        loop.optimizer = getattr(torch.optim, kind)(loop.model.parameters(), lr=0.1, **settings)
    mine, theirs = loops
    x, t = BATCH[0].to(dtype), BATCH[1]
    step = anabranch.compile_step(mine.model, mine.loss, mine.optimizer, (x, t), **QUICK)
    for _ in range(calls):
        step(x, t)
        theirs.loss(theirs.model, x, t).backward()  # type: ignore[no-untyped-call]
        theirs.optimizer.step()
        theirs.optimizer.zero_grad()
    return mine, theirs


def test_learning_rates_of_doubles_are_doubles() -> None:
    mine, theirs = doubles_after(2, "SGD", momentum=0.9)
    torch.testing.assert_close(weight_of(mine), weight_of(theirs), atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize(
    "kind", ["Adam", "AdamW", "Adamax", "NAdam", "RAdam", "ASGD", "Adagrad", "Adadelta", "Rprop"]
)
def test_counts_of_steps_of_doubles_are_doubles(kind: str) -> None:
    """Bias corrections of fp32 are off by 7e-6 of an update; eager's are Python's numbers."""
    settings = {"lr_decay": 0.1} if kind == "Adagrad" else {}
    mine, theirs = doubles_after(7, kind, **settings)
    torch.testing.assert_close(weight_of(mine), weight_of(theirs), atol=1e-11, rtol=1e-11)
    numbers = mine.optimizer.state[weight_of(mine)]
    assert numbers["step"].dtype == torch.float32 and numbers["step"].item() == 7
    if kind == "NAdam":
        right = theirs.optimizer.state[weight_of(theirs)]["mu_product"]
        assert numbers["mu_product"].dtype == torch.float32
        assert numbers["mu_product"].item() == right.item()


def test_radam_rectifies_weights_in_single_precision_as_eager_does() -> None:
    """Its terms cancel: of fp32 the update was off by 2e-2 of itself, from the sixth step on."""
    before = weight_of(loops_after(5, "RAdam", torch.float32)[1]).detach().clone()
    mine, theirs = loops_after(7, "RAdam", torch.float32)
    update = (weight_of(theirs).detach() - before).abs().max().item()
    torch.testing.assert_close(weight_of(mine), weight_of(theirs), atol=1e-4 * update, rtol=0)


@pytest.mark.filterwarnings("error")
def test_results_for_a_batch_that_requires_gradients_have_none() -> None:
    mine, theirs = Loop(), Loop()
    x = BATCH[0].clone().requires_grad_()
    step = mine.compiled()
    loss = step(x, BATCH[1])
    assert not loss.requires_grad and loss.grad_fn is None and x.grad is None
    assert loss.numpy() == pytest.approx(theirs.eager(), abs=1e-6)


@pytest.mark.parametrize("change", ["transposed", "other type"])
def test_weights_that_read_their_memory_otherwise_are_seen(change: str) -> None:
    """Their address alone does not tell."""
    layer = torch.nn.Linear(4, 4)
    theirs = copy.deepcopy(layer)
    x = torch.randn(3, 4)

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = model(x)
        return y.square().sum()

    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step = anabranch.compile_step(layer, loss, optimizer, (x,), **QUICK)
    if change == "other type":
        layer.weight.data = layer.weight.data.view(torch.float16)
        with pytest.raises(WeightsError, match=r"weight is torch\.float16"):
            step(x)
        return
    for model in (layer, theirs):
        model.weight.data = model.weight.data.t()
    assert step(x).item() == pytest.approx(loss(theirs, x).item(), rel=1e-5)
