"""Global forward hooks: compiled models compute with them what eager does, and they see no module
that is none of the user's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import anabranch
from anabranch.integrations.dynamo import anabranch_backend

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}
X = torch.randn(2, 4)
SEEN: list[str] = []


class Cut(nn.Module):
    """Asks for a value, between two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if y.sum().item() > 1e9:
            y = y + 1
        z: Tensor = self.second(y)
        return z


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh()).eval()


def _looks(module: nn.Module, args: Any, result: Any) -> None:
    assert isinstance(result, Tensor), f"{type(module)} returns a {type(result)}"
    SEEN.append(type(module).__name__)


def _doubles(module: nn.Module, args: Any, result: Any) -> Any:
    return result * 2


def _adds_before(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


@pytest.fixture(params=[_looks, _doubles, _adds_before])
def hooked(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    hook = request.param
    before = hook is _adds_before
    handle = (register_module_forward_pre_hook if before else register_module_forward_hook)(hook)
    SEEN.clear()
    yield hook
    handle.remove()


@pytest.mark.parametrize("kind", [mlp, Cut])
def test_results_are_eagers(hooked: Callable[..., Any], kind: Callable[[], nn.Module]) -> None:
    model = kind().eval()
    wanted = model(X)
    fast = anabranch.compile(model, (X,), **QUICK)
    SEEN.clear()
    torch.testing.assert_close(fast(X), wanted)
    assert SEEN == []
    with register_module_forward_hook(_looks):  # one that came later sees what is called
        torch.testing.assert_close(fast(X), wanted)
    assert [type(fast).__name__] == SEEN
    with fast.register_forward_hook(_doubles):
        torch.testing.assert_close(fast(X), 2 * wanted)


@pytest.mark.parametrize("kind", [mlp, Cut])
def test_a_hook_may_know_the_model_itself(kind: Callable[[], nn.Module]) -> None:
    model = kind().eval()
    with register_module_forward_hook(lambda part, _, out: out + 1 if part is model else None):
        wanted = model(X)
        fast = anabranch.compile(model, (X,), **QUICK)
        torch.testing.assert_close(fast(X), wanted)
        torch.testing.assert_close(fast(X), wanted)


@pytest.mark.parametrize("again", ["load", "pickle", "deepcopy", "session"])
def test_copies_and_loaded_plans_are_not_hooked_twice(
    hooked: Callable[..., Any], again: str, tmp_path: Path
) -> None:
    """What the hooks made of results is in the plan; others, and a second one of the same name,
    see the loaded plan as any module."""
    model = mlp()
    wanted = model(X)
    fast = anabranch.compile(model, (X,), **QUICK)
    other = {
        "load": lambda: _reloaded(fast, tmp_path),
        "pickle": lambda: pickle.loads(pickle.dumps(fast)),
        "deepcopy": lambda: copy.deepcopy(fast),
        "session": fast.session,
    }[again]()
    torch.testing.assert_close(other(X), wanted)
    torch.testing.assert_close(_reloaded(other, tmp_path)(X), wanted)
    with register_module_forward_hook(_doubles):
        torch.testing.assert_close(other(X), 2 * wanted)
        # Only as many hooks of a name are in the plan as there were.
        torch.testing.assert_close(_reloaded(other, tmp_path)(X), 2 * wanted)


def _reloaded(fast: anabranch.Compiled, folder: Path) -> anabranch.Compiled:
    fast.save(folder / "plan")
    return anabranch.load(folder / "plan", target="cpu")


def test_a_plan_without_hooks_is_seen_by_all_where_it_is_loaded(tmp_path: Path) -> None:
    model = mlp()
    wanted = model(X)
    fast = anabranch.compile(model, (X,), **QUICK)
    with register_module_forward_hook(_doubles):
        torch.testing.assert_close(_reloaded(fast, tmp_path)(X), 2 * wanted)


@pytest.mark.parametrize("kind", [mlp, Cut])
def test_hooks_that_came_later_are_no_part_of_an_added_plan(kind: Callable[[], nn.Module]) -> None:
    """They see the compiled model: its plans for all inputs alike."""
    model, more = kind().eval(), torch.randn(3, 4)
    wanted = model(X), model(more)
    fast = anabranch.compile(model, (X,), **QUICK)
    with register_module_forward_hook(_doubles):
        fast.add((more,))
        torch.testing.assert_close((fast(X), fast(more)), (2 * wanted[0], 2 * wanted[1]))
    torch.testing.assert_close((fast(X), fast(more)), wanted)


def test_hooks_are_as_they_were_afterwards() -> None:
    with register_module_forward_hook(_looks):
        anabranch.compile(mlp(), (X,), **QUICK)
        SEEN.clear()
        mlp()(X)
        assert SEEN == ["Linear", "ReLU", "Linear", "Tanh", "Sequential"]


def test_a_training_step_has_no_module_of_its_own(hooked: Callable[..., Any]) -> None:
    model = mlp()
    wanted = copy.deepcopy(model)(X).sum()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = anabranch.compile_step(model, lambda model, x: model(x).sum(), optimizer, (X,), **QUICK)
    torch.testing.assert_close(step(X), wanted.detach())


@pytest.mark.parametrize("grad", [True, False])
def test_graphs_of_torch_compile_are_no_modules_either(
    hooked: Callable[..., Any], grad: bool
) -> None:
    torch._dynamo.reset()
    model = mlp()
    options = {name: QUICK[name] for name in ("cache_dir", "search", "kernels")}
    with torch.set_grad_enabled(grad):
        fast = torch.compile(model, backend=anabranch_backend, options=options)(X)
        torch._dynamo.reset()
        torch.testing.assert_close(fast, torch.compile(model, backend="eager")(X))
