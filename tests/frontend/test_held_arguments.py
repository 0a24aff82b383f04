"""Objects with tensors among the arguments: the model holds them, and their tensors are states."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch import CaptureError, InputError, OptionError
from anabranch.compiled.calls import Compiled
from anabranch.compiled.cuts import CutModel


class Layer:
    def __init__(self) -> None:
        self.keys = torch.zeros(1, 8, 4)
        self.count = torch.zeros((), dtype=torch.int64)

    def update(self, k: Tensor) -> Tensor:
        at = self.count + torch.arange(k.shape[1])
        self.count.add_(k.shape[1])
        return self.keys.index_copy_(1, at, k)


@dataclass
class Cache:
    """As a StaticCache of transformers is made: layers with tensors in them."""

    layers: list[Layer] = field(default_factory=lambda: [Layer(), Layer()])

    def reset(self) -> None:
        for layer in self.layers:
            layer.keys.zero_()
            layer.count.zero_()


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor, cache: Any = None, **more: Any) -> dict[str, Any]:
        for layer, proj in zip(cache.layers, self.proj, strict=True):
            x = torch.softmax(x @ layer.update(proj(x)).transpose(1, 2), -1) @ layer.keys
        return {"x": x * more.get("scale", 1.0), "cache": cache}


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder().eval()


def compiled(model: nn.Module, cache: Cache, **options: Any) -> Compiled:
    fast = anabranch.compile(
        model, (torch.randn(1, 3, 4),), {"cache": cache}, target="cpu", search="none", **options
    )
    return fast.add((torch.randn(1, 1, 4),), {"cache": cache})


def check_same(fast: Any, model: nn.Module, cache: Cache, own: Cache) -> None:
    """A prompt and two tokens: results and caches are eager's."""
    for rows in (3, 1, 1):
        x = torch.randn(1, rows, 4)
        with torch.no_grad():
            result, expected = fast(x, cache=cache), model(x, cache=own)
        torch.testing.assert_close(result["x"], expected["x"])
        assert result["cache"] is cache
    for mine, other in zip(cache.layers, own.layers, strict=True):
        torch.testing.assert_close(mine.keys, other.keys)
        assert mine.count == other.count == 5


def test_a_prompt_and_tokens_over_one_cache(model: Decoder) -> None:
    cache, own = Cache(), Cache()
    fast = compiled(model, cache)
    assert not cache.layers[0].keys.any(), "compiling writes nothing"
    check_same(fast, model, cache, own)
    cache.reset()
    check_same(fast, model, cache, Cache())
    assert fast.state_dict().keys() == model.state_dict().keys()
    fast.reset_state()
    assert not cache.layers[1].keys.any()


def test_the_cache_by_position(model: Decoder) -> None:
    cache, own, x = Cache(), Cache(), torch.randn(1, 3, 4)
    fast = anabranch.compile(model, (x, cache), target="cpu", search="none")
    with torch.no_grad():
        torch.testing.assert_close(fast(x, cache)["x"], model(x, own)["x"])
        torch.testing.assert_close(fast(x=x, cache=cache)["x"], model(x, own)["x"])


def test_another_cache_is_refused(model: Decoder) -> None:
    fast, x = compiled(model, Cache()), torch.randn(1, 1, 4)
    with pytest.raises(InputError, match="cache is a Cache, compiled for the object"):
        fast(x, cache=Cache())
    with pytest.raises(InputError, match="cache is None"):
        fast(x)


def test_a_second_cache_needs_a_compilation_of_its_own(model: Decoder) -> None:
    fast = compiled(model, Cache())
    with pytest.raises(CaptureError, match="for another object, compile the model once more"):
        fast.add((torch.randn(1, 2, 4),), {"cache": Cache()})


def test_other_tensors_in_the_cache_are_refused(model: Decoder) -> None:
    cache = Cache()
    fast = compiled(model, cache)
    cache.layers[1].keys = cache.layers[1].keys[[0]]  # as a beam search reorders it
    with pytest.raises(InputError, match=r"cache\.layers\.1\.keys is another one"):
        fast(torch.randn(1, 1, 4), cache=cache)


def test_new_weights(model: Decoder) -> None:
    cache = Cache()
    fast = compiled(model, cache)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    check_same(fast.refit(model), model, cache, Cache())


def test_caches_apart_from_the_argument(model: Decoder) -> None:
    cache, own, x = Cache(), Cache(), torch.randn(1, 3, 4)
    session = compiled(model, cache).session()
    with torch.no_grad():
        torch.testing.assert_close(session(x, cache=cache)["x"], model(x, own)["x"])
    assert not cache.layers[0].keys.any()


def test_a_file_and_a_copy_are_called_without(model: Decoder, tmp_path: Path) -> None:
    fast, x = compiled(model, Cache()), torch.randn(1, 3, 4)
    fast.save(tmp_path / "plan")
    loaded, twin = anabranch.load(tmp_path / "plan", target="cpu"), copy.deepcopy(fast)
    with torch.no_grad():
        expected = model(x, cache=Cache())["x"]
        for other in (loaded, twin):
            result = other(x, cache=None)
            torch.testing.assert_close(result["x"], expected)
            assert result["cache"] is None


def test_calls_between_sizes_run_the_model(model: Decoder) -> None:
    cache, own = Cache(), Cache()
    fast = anabranch.compile(
        model,
        (torch.randn(1, 4, 4),),
        {"cache": cache},
        dynamic_shapes={"x": {1: torch.export.Dim("n", min=1, max=4)}},
        sizes=[2, 4],
        target="cpu",
        search="none",
        unseen="eager",
    )
    for rows in (2, 3, 1):
        x = torch.randn(1, rows, 4)
        with torch.no_grad():
            result, expected = fast(x, cache=cache), model(x, cache=own)
        torch.testing.assert_close(result["x"], expected["x"])
        assert result["cache"] is cache


class Asking(Decoder):
    """Looks at a number of its result."""

    def forward(self, x: Tensor, cache: Any = None, **more: Any) -> dict[str, Any]:
        result = super().forward(x, cache, **more)
        if result["x"].sum().item() > 1e9:
            result["x"] = result["x"] - 1
        return result


def test_a_model_that_is_cut() -> None:
    torch.manual_seed(0)
    model, cache = Asking().eval(), Cache()
    check_same(compiled(model, cache), model, cache, Cache())


def test_a_copy_of_a_model_that_is_cut_is_refused() -> None:
    with pytest.raises(OptionError, match="is cut and holds the argument cache"):
        copy.deepcopy(compiled(Asking().eval(), Cache()))


def test_another_cache_of_a_model_that_is_cut() -> None:
    fast = compiled(Asking().eval(), Cache())
    with pytest.raises(InputError, match="passes another Cache than was compiled"):
        fast(torch.randn(1, 3, 4), cache=Cache())


class Growing(Decoder):
    def forward(self, x: Tensor, cache: Any = None, **more: Any) -> Tensor:  # type: ignore[override]
        first = cache.layers[0]
        first.keys = torch.cat([first.keys, self.proj[0](x)], 1)
        total: Tensor = first.keys.sum(1)
        return total


def test_a_cache_that_grows_is_refused_and_stays_as_it_is() -> None:
    cache = Cache()
    before = cache.layers[0].keys
    with pytest.raises(CaptureError, match=r"forward assigns a new tensor to cache\.layers\.0\.k"):
        compiled(Growing().eval(), cache)
    assert cache.layers[0].keys is before


class Counting(Decoder):
    """Has the place in a number of Python's that is not there before the first call."""

    def forward(self, x: Tensor, cache: Any = None, **more: Any) -> dict[str, Any]:
        cache.length = getattr(cache, "length", 0) + x.shape[1]
        result = super().forward(x, cache, **more)
        result["x"] = result["x"] * cache.length
        return result


def test_a_number_that_each_call_changes_is_refused() -> None:
    cache = Cache()
    with pytest.raises(CaptureError, match=r"changes a Python value of an argument: .*length"):
        compiled(Counting().eval(), cache)
    assert not hasattr(cache, "length")


class Window(Layer):
    """The last rows alone, counted in Python, as layers of transformers with windows do."""

    def __init__(self) -> None:
        super().__init__()
        self.length, self.begun = 0, False

    def update(self, k: Tensor) -> Tensor:
        size, rows, length = self.keys.shape[1], k.shape[1], self.length
        self.length, self.begun = length + rows, True
        if length + rows > size:
            return self.keys.copy_(torch.cat([self.keys, k], 1)[:, -size:])
        return self.keys.index_copy_(1, length + torch.arange(rows), k)


class Windowed(Decoder):
    def forward(self, x: Tensor, cache: Any = None, **more: Any) -> dict[str, Any]:
        result = super().forward(x, cache, **more)
        result["x"] = result["x"] * cache.layers[0].length
        return result


def windows() -> Cache:
    return Cache([Window(), Window()])


def check_window(fast: Any, model: nn.Module, cache: Cache, own: Cache, rows: list[int]) -> None:
    for count in rows:
        x = torch.randn(1, count, 4)
        with torch.no_grad():
            result, expected = fast(x, cache=cache), model(x, cache=own)
        torch.testing.assert_close(result["x"], expected["x"])
        assert result["cache"] is cache
        for mine, other in zip(cache.layers, own.layers, strict=True):
            assert isinstance(mine, Window) and isinstance(other, Window)
            torch.testing.assert_close(mine.keys, other.keys)
            assert (mine.length, mine.begun) == (other.length, other.begun)
            assert type(mine.length) is int and type(mine.begun) is bool


def test_numbers_that_calls_change_go_with_them() -> None:
    torch.manual_seed(0)
    model, cache, own = Windowed().eval(), windows(), windows()
    prompt, token = (torch.randn(1, n, 4) for n in (3, 1))
    fast = anabranch.compile(model, (prompt,), {"cache": cache}, target="cpu", search="none")
    assert isinstance(fast, CutModel) and vars(cache.layers[0])["length"] == 0
    check_window(fast, model, cache, own, [3])
    fast.add((token,), {"cache": cache})
    check_window(fast, model, cache, own, [1, 1, 1, 1, 1])
    fast.add((token,), {"cache": cache})  # the window is full
    check_window(fast, model, cache, own, [1, 1, 3])
    assert fast.unseen_calls == 1, "three rows that do not fit went no example's way"
    for state in (cache, own):
        state.reset()
        for layer in state.layers:
            vars(layer).update(length=0, begun=False)
    check_window(fast, model, cache, own, [3, 1, 1])
    fast.reset_state()
    assert not any(vars(layer)["length"] for layer in cache.layers)
    check_window(fast, model, cache, windows(), [3, 1])
    with torch.no_grad():  # containers may have any form, and the argument any place
        fast(x=token, cache=cache)
    with pytest.raises(InputError, match="passes another Cache than was compiled"):
        fast(token, cache=windows())
    vars(cache.layers[1])["length"] = None
    with pytest.raises(InputError, match=r"cache\.layers\.1\.length is None, compiled for 0"):
        fast(token, cache=cache)
    vars(cache.layers[0])["length"], vars(cache.layers[1])["length"] = 4, 1
    with pytest.raises(InputError, match=r"cache\.layers\.1\.length is 1, and .*0\.length is 4"):
        fast(token, cache=cache)


def test_numbers_that_calls_change_are_refused_of_one_plan() -> None:
    with pytest.raises(CaptureError, match=r"changes a Python value .*cache\.layers\.0\.length"):
        compiled(Windowed().eval(), windows(), fullgraph=True)


class Scaled(Decoder):
    def forward(self, x: Tensor, cache: Any = None, **more: Any) -> dict[str, Any]:
        return super().forward(x * cache.layers[0].scale, cache, **more)


def test_a_number_that_is_another_one_since_is_refused() -> None:
    cache = Cache()
    vars(cache.layers[0])["scale"] = 2.0
    fast = compiled(Scaled().eval(), cache)
    fast(torch.randn(1, 1, 4), cache=cache)
    vars(cache.layers[0])["scale"] = 3.0
    with pytest.raises(InputError, match=r"cache\.layers\.0\.scale is 3\.0, compiled for 2\.0"):
        fast(torch.randn(1, 1, 4), cache=cache)


def test_other_parts_of_the_cache_are_refused(model: Decoder) -> None:
    cache, x = Cache(), torch.randn(1, 1, 4)
    fast = compiled(model, cache)
    before, cache.layers = cache.layers, [Layer(), Layer()]
    with pytest.raises(InputError, match=r"cache\.layers is another one"):
        fast(x, cache=cache)
    cache.layers = before
    fast(x, cache=cache)
    cache.layers.append(Layer())
    with pytest.raises(InputError, match=r"cache\.layers is another one"):
        fast(x, cache=cache)
    cache.layers[1:] = [Layer()]
    with pytest.raises(InputError, match=r"cache\.layers\.1 is another one"):
        fast(x, cache=cache)


def test_numbers_in_a_list_that_are_others_are_refused() -> None:
    class Weighted(Decoder):
        def forward(self, x: Tensor, cache: Any = None, **more: Any) -> dict[str, Any]:
            return super().forward(x * cache.scales[1], cache, **more)

    cache = Cache()
    vars(cache)["scales"] = [1.0, 2.0]
    fast = compiled(Weighted().eval(), cache)
    vars(cache)["scales"][1] = 3.0
    with pytest.raises(InputError, match=r"cache\.scales\.1 is 3\.0, compiled for 2\.0"):
        fast(torch.randn(1, 1, 4), cache=cache)


def test_what_cannot_be_copied_is_refused_in_words_as_well() -> None:
    cache = Cache()
    vars(cache)["lock"] = threading.Lock()
    with pytest.raises(CaptureError, match=r"changes a Python value of an argument: cache\.length"):
        compiled(Counting().eval(), cache)


class Reading(nn.Module):
    def forward(self, x: Tensor, settings: Any) -> Tensor:
        total: Tensor = x * settings.layers[0].keys.sum()
        return total


def test_what_is_only_read_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"reads settings\.layers\.0\.keys and does not write"):
        anabranch.compile(Reading().eval(), (torch.randn(3), Cache()), target="cpu")


class Odd:
    """Refers to itself; its names are such as modules have; one tensor has two names."""

    def __init__(self) -> None:
        self.me, self.half, self.training = self, torch.zeros(2), torch.zeros(2)
        self.dotted = {"a.b": torch.zeros(2), "a_b": torch.zeros(2), 0: self.half}


class Writing(nn.Module):
    def forward(self, x: Tensor, odd: Any) -> Tensor:
        odd.half.add_(x)
        odd.training.add_(odd.half)
        odd.dotted["a.b"].add_(odd.training)
        odd.dotted["a_b"].add_(odd.dotted["a.b"])
        total: Tensor = odd.dotted["a_b"] * 2
        return total


def test_objects_of_any_form() -> None:
    odd, own, x, model = Odd(), Odd(), torch.ones(2), Writing().eval()
    fast = anabranch.compile(model, (x, odd), target="cpu", search="none")
    for _ in range(3):
        assert torch.equal(fast(x, odd), model(x, own))
    assert torch.equal(odd.dotted[0], own.dotted[0])


def test_a_function_holds_nothing(model: Decoder) -> None:
    with pytest.raises(CaptureError, match="cache is a Cache, and the model is a function"):
        anabranch.compile(lambda x, cache: model(x, cache)["x"], (torch.randn(1, 3, 4), Cache()))


def test_an_object_without_tensors_is_no_input(model: Decoder) -> None:
    with pytest.raises(CaptureError, match=r"the input kwargs\['cache'\] is a Cache"):
        anabranch.compile(model, (torch.randn(1, 3, 4),), {"cache": Cache([])}, target="cpu")
