"""Torch's switches at compile time and at a call: honoured as eager would, or refused in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.default_dtype import default_dtype
from torch import Tensor, nn

import anabranch
from anabranch.errors import InputError
from anabranch.frontend import capture
from anabranch.frontend.surroundings import neutral, surroundings
from anabranch.ir.ambient import Ambient, differs, holds

FAST: dict[str, Any] = {"search": "none", "horizontal_fusion": "none", "target": "cpu"}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    """Products, which autocast rounds, and a softmax, which it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        return y @ y.t(), y.softmax(-1)


class Defaults(nn.Module):
    """Tensors of the default dtype, made in each of the ways that torch has."""

    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        scale = torch.tensor(0.1)
        return x + torch.ones(8), i / 3, i.sqrt() * scale, torch.linspace(0, 1, 8), i * 1.5


class AsksForTheDefault(nn.Module):
    """Makes nothing of the default dtype: it asks for its name."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.get_default_dtype()) * 2


class AsksForDeterministic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3


class Regions(nn.Module):
    """Autocast in a part of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
        return y, self.linear(x)


class Switches(nn.Module):
    """Each switch of torch, on or off in a part of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", enabled=False):
            exact = self.linear(x.float())
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            inner = self.linear(x)
        with torch.device("cpu"), torch.no_grad():
            made = self.linear(x) + torch.ones(8)
        return exact, inner, made


def same(found: Any, wanted: Any) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        rounding = 1e-2 if got.dtype in (torch.bfloat16, torch.float16) else 1e-6
        torch.testing.assert_close(got, want, rtol=rounding, atol=rounding)


@torch.no_grad()
def test_under_autocast_the_plan_is_that_of_autocast_and_answers_no_other_call(
    tmp_path: Path,
) -> None:
    model = Layer().eval()
    plain = anabranch.compile(model, (X,), cache_dir=tmp_path, **FAST)
    with torch.autocast("cpu", torch.bfloat16):
        model(X)  # autocast keeps the weights that it has cast
        cast = anabranch.compile(model, (X,), cache_dir=tmp_path, **FAST)
        same(cast(X), model(X))
        assert cast(X)[0].dtype == torch.bfloat16
        with pytest.raises(InputError, match=r"torch\.bfloat16\) is on.*without autocast"):
            plain(X)
        plain.add((X,))
        same(plain(X), model(X))  # one plan for each
    same(plain(X), model(X))
    with pytest.raises(InputError, match=r"autocast is off.*under torch\.autocast\('cpu'"):
        cast(X)


@torch.no_grad()
def test_a_saved_plan_keeps_what_it_was_compiled_under(tmp_path: Path) -> None:
    model = Layer().eval()
    with torch.autocast("cpu", torch.bfloat16):
        anabranch.compile(model, (X,), cache_dir=None, **FAST).save(tmp_path / "cast")
    loaded = anabranch.load(tmp_path / "cast", target="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        same(loaded(X), model(X))
    with pytest.raises(InputError, match="autocast is off"):
        loaded(X)


@torch.no_grad()
def test_autocast_in_forward_is_part_of_the_graph() -> None:
    model = Regions().eval()
    fast = anabranch.compile(model, (X,), cache_dir=None, **FAST)
    same(fast(X), model(X))
    assert fast(X)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_default_dtype_is_the_models_and_not_the_compilers(dtype: torch.dtype) -> None:
    model, args = Defaults().eval(), (X, torch.arange(8))
    with torch.no_grad(), default_dtype(dtype):
        fast = anabranch.compile(model, args, cache_dir=None, **FAST)
        same(fast(*args), model(*args))
    with (
        default_dtype(torch.float64 if dtype == torch.float32 else torch.float32),
        pytest.raises(InputError, match="default dtype is"),
    ):
        fast(*args)


def test_who_makes_no_tensors_does_not_ask_for_the_default_dtype() -> None:
    fast = anabranch.compile(Layer().eval(), (X,), cache_dir=None, **FAST)
    with default_dtype(torch.float64), torch.no_grad():
        assert fast(X)[0].dtype == torch.float32


@pytest.mark.parametrize("cast", [False, True])
@torch.no_grad()
def test_switches_inside_forward_are_part_of_the_graph(cast: bool) -> None:
    model = Switches().eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        fast = anabranch.compile(model, (X,), cache_dir=None, **FAST)
        same(fast(X), model(X))
    if cast:
        with pytest.raises(InputError, match="autocast is off"):
            fast(X)


@torch.no_grad()
def test_inference_mode_at_either_moment(tmp_path: Path) -> None:
    model = Layer().eval()
    with torch.inference_mode():
        fast = anabranch.compile(model, (X,), cache_dir=None, **FAST)
        same(fast(X), model(X))
        fast.save(tmp_path / "plan")
        loaded = anabranch.load(tmp_path / "plan", target="cpu")
    for one in (fast, loaded):
        same(one(X), model(X))
        assert not one(X)[0].is_inference()
    plain = anabranch.compile(model, (X,), cache_dir=None, **FAST)
    with torch.inference_mode():
        same(plain(X), model(X))


def test_weights_and_inputs_of_inference_mode() -> None:
    with torch.inference_mode():
        model, x = Layer().eval(), torch.ones(4, 8)
    fast = anabranch.compile(model, (x,), cache_dir=None, **FAST)
    with torch.no_grad():
        same(fast(x), model(x))


def test_another_default_device_is_not_the_compilers() -> None:
    with torch.device("meta"):
        fast = anabranch.compile(
            Layer().to_empty(device="cpu").eval(), (X,), cache_dir=None, **FAST
        )
        assert fast(X)[0].device.type == "cpu"


def test_nothing_stays_changed() -> None:
    with torch.autocast("cpu", torch.bfloat16), default_dtype(torch.float64):
        found = surroundings()
        with neutral():
            assert surroundings() != found and not torch.is_grad_enabled()
            with found.restored():
                assert surroundings() == found
        assert surroundings() == found and torch.is_grad_enabled()


def test_what_a_graph_depends_on() -> None:
    assert capture(Layer().eval(), (X,)).signature.ambient == Ambient("cpu")
    made = capture(Defaults().eval(), (X, torch.arange(8))).signature.ambient
    assert made == Ambient("cpu", "", "float32")


def test_an_ambient_says_what_differs() -> None:
    assert not differs(Ambient()) and not differs(Ambient("cpu")) and holds(Ambient("cpu"))()
    with torch.autocast("cpu", torch.bfloat16):
        assert holds(Ambient())() and not holds(Ambient("cpu"))()
        assert holds(Ambient("cuda"))()  # autocast of another kind of device
        assert holds(Ambient("cpu", "bfloat16"))() and not differs(Ambient("cpu", "bfloat16"))
        assert not holds(Ambient("cpu", "float16"))()
    assert "float64" in str(differs(Ambient("cpu", "", "float64")))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_plan_on_a_gpu_says_that_its_kernels_were_chosen_without_determinism() -> None:
    """One that was made under the switch answers with it and without."""
    for ambient in (Ambient("cuda"), Ambient("cuda", "", "float32")):
        assert holds(ambient)() and not differs(ambient)
        with deterministic():
            assert not holds(ambient)()
            assert "use_deterministic_algorithms(True) is on" in str(differs(ambient))
    with deterministic():
        made = surroundings().ambient(torch.device("cuda"), False)
        assert holds(made)() and not differs(made)
        assert not differs(Ambient("cpu")) and not differs(Ambient())
    assert holds(made)() and not differs(made)


class Adds(nn.Module):
    """Sums in an order that threads decide."""

    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(4, 8).index_add(0, i, x), torch.zeros(4).scatter_add(0, i, x[:, 0])


@torch.no_grad()
def test_on_a_cpu_operators_look_at_determinism_in_each_call() -> None:
    model, args = Adds().eval(), (X, torch.tensor([1, 1, 2, 0]))
    fast = anabranch.compile(model, args, cache_dir=None, **FAST)
    with deterministic():
        same(fast(*args), model(*args))
        same(anabranch.compile(model, args, cache_dir=None, **FAST)(*args), model(*args))


@pytest.mark.parametrize("warm", [False, True])
def test_a_default_dtype_that_is_asked_for_is_depended_on(warm: bool, tmp_path: Path) -> None:
    given, model = (X.double(),), AsksForTheDefault().eval()
    for _ in range(1 + warm):
        fast = anabranch.compile(model, given, cache_dir=tmp_path if warm else None, **FAST)
    assert torch.equal(fast(*given), model(*given)) and fast(*given).dtype == torch.float32
    with default_dtype(torch.float64):
        with pytest.raises(InputError, match="default dtype is float64"):
            fast(*given)
        wide = anabranch.compile(model, given, cache_dir=None, **FAST)
        assert wide(*given).dtype == torch.float64 and torch.equal(wide(*given), model(*given))


def test_a_switch_that_is_asked_for_is_depended_on(tmp_path: Path) -> None:
    model = AsksForDeterministic().eval()
    fast = anabranch.compile(model, (X,), cache_dir=None, **FAST)
    assert torch.equal(fast(X), X * 3)
    with deterministic():
        with pytest.raises(InputError, match="algorithms is on: the model asks for it"):
            fast(X)
        other = anabranch.compile(model, (X,), cache_dir=None, **FAST)
        assert torch.equal(other(X), X * 2)
        other.save(tmp_path / "other.anabranch")
    loaded = anabranch.load(tmp_path / "other.anabranch", target="cpu")
    for one in (other, loaded):
        with pytest.raises(InputError, match="algorithms is off: the model asks for it"):
            one(X)
