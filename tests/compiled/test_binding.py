"""Calls by the model's own signature, and what is said of those that fit no plan."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import anabranch
from anabranch.compiled import arguments
from anabranch.compiled.calls import Compiled
from anabranch.errors import ArtifactError, InputError

X, M = torch.randn(2, 4), torch.randn(4)


class Net(nn.Module):
    def forward(
        self, x: Any, pair: Any = (), mask: Any = None, *, scale: float = 1.0, **more: Any
    ) -> Any:
        y = x * scale
        for part in (*pair, *more.values()):
            y = y + part
        return y if mask is None else y + mask["m"]


def compiled(model: Any, *args: Any, **kwargs: Any) -> Compiled:
    quick: dict[str, Any] = {"search": "none", "horizontal_fusion": "none", "pdl": "off"}
    return anabranch.compile(model, args, kwargs, target="cpu", cache_dir=None, **quick)


@pytest.fixture(scope="module", params=["made", "loaded"])
def fast(request: Any, tmp_path_factory: Any) -> Compiled:
    made = compiled(Net().eval(), X, [M, M], scale=2.0, last=M)
    if request.param == "made":
        return made
    path = tmp_path_factory.mktemp("plan") / "plan"
    made.save(path)
    return anabranch.load(path, target="cpu")


def test_any_form_of_a_call_is_one_call(fast: Compiled) -> None:
    want = X * 2 + M + M + M
    for args, kwargs in (
        ((X, [M, M]), {"scale": 2.0, "last": M}),
        ((X, (M, M)), {"last": M, "scale": 2.0}),
        ((X,), {"pair": [M, M], "last": M, "scale": 2.0}),
        ((), {"scale": 2.0, "mask": None, "last": M, "pair": (M, M), "x": X}),
        ((X, [M, M], None), {"scale": 2.0, "last": M}),
    ):
        assert torch.allclose(fast(*args, **kwargs), want)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((X, [M, M]), {"last": M}, r"scale is 1\.0, compiled for 2\.0"),
        ((X, [M]), {"scale": 2.0, "last": M}, "pair has 1 items, compiled for 2"),
        ((X,), {"scale": 2.0, "last": M}, "pair has 0 items, compiled for 2"),
        ((X, [M, M]), {"scale": 2.0}, r"more\['last'\] is missing"),
        ((X, [M, M]), {"scale": 2.0, "last": M, "z": M}, r"more\['z'\] is more than"),
        ((X, [M, M], {"m": M}), {"scale": 2.0, "last": M}, r"mask is {'m': f32\[4\]}.*None"),
        ((X.double(), [M, 3]), {"scale": 2.0, "last": M}, r"f64\[2,4\].*pair\[1\] is 3, comp"),
        ((X.to_sparse(), [M, M]), {"scale": 2.0, "last": M}, r"x is f32\[2,4\] \(sparse_coo\)"),
        ((X.to("meta"), [M, M]), {"scale": 2.0, "last": M}, "without values, on the meta device"),
        ((X.as_subclass(type("Own", (torch.Tensor,), {})), [M, M]), {"scale": 2.0, "last": M},
         r"x is a Own, compiled for a plain tensor f32\[2,4\]"),
        ((), {"pair": [M, M]}, "missing a required argument: 'x'"),
        ((X, [M, M], None, 3), {}, "too many positional arguments"),
    ],
)  # fmt: skip
def test_what_differs_is_said_by_name(
    fast: Compiled, args: Any, kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        fast(*args, **kwargs)
    call = r"compiled: (x=f32[2,4], pair=[f32[4], f32[4]], scale=2.0, more={'last': f32[4]})"
    assert call in str(refused.value) and "pytree" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_nested_tensors_are_refused(fast: Compiled) -> None:
    nested = torch.nested.nested_tensor([M, M])
    with pytest.raises(InputError, match="x is f32, a nested tensor of 2"):
        fast(nested, [M, M], scale=2.0, last=M)


def test_of_several_plans_the_nearest_is_compared() -> None:
    fast = compiled(lambda x, n: x * n, X, 2).add((X[:1], 3))
    with pytest.raises(InputError) as refused:
        fast(X[:1], 4)
    assert refused.value.why == "n is 4, compiled for 3"
    assert "(x=f32[2,4], n=2); (x=f32[1,4], n=3)" in refused.value.next


def test_arguments_of_any_number() -> None:
    fast = compiled(lambda *parts, factor=1: sum(parts) * factor, X, X, factor=3)
    assert torch.equal(fast(X, X, factor=3), X * 6)
    with pytest.raises(InputError, match="parts has 1 items, compiled for 2"):
        fast(X, factor=3)


@dataclass
class Given:
    x: torch.Tensor
    n: int


torch.export.register_dataclass(Given)


def test_registered_classes_are_read_by_name() -> None:
    fast = compiled(lambda given, y: given.x * given.n + y, Given(X, 2), X)
    assert torch.equal(fast(y=X, given=Given(X, 2)), X * 3)
    with pytest.raises(InputError, match=r"given\.n is 3, compiled for 2"):
        fast(Given(X, 3), X)
    with pytest.raises(InputError, match=r"given is f32.*compiled for a Given"):
        fast(X, X)


def test_models_without_a_signature_are_called_by_place() -> None:
    fast = compiled(torch.relu, X)
    with pytest.raises(InputError, match=r"args\[0\] is f32\[1,4\]"):
        fast(X[:1])


def test_signatures_survive_as_plain_data() -> None:
    def model(a: Any, /, b: Any = (1, "x"), *c: Any, d: Any = torch.relu, **e: Any) -> None: ...

    signature = arguments.model_signature(model)
    again = arguments.read_back(json.loads(json.dumps(arguments.written(signature))))
    assert signature is not None and again is not None
    assert [(p.name, p.kind) for p in again.parameters.values()] == [
        (p.name, p.kind) for p in inspect.signature(model).parameters.values()
    ]
    assert again.parameters["d"].default is arguments.DEFAULT
    assert arguments.same_default(again.parameters["b"].default, (1, "x"))
    assert not arguments.same_default(again.parameters["b"].default, (True, "x"))


@pytest.mark.parametrize(
    "wrong",
    [3, [3], [["x"]], [["not a name", 1]], [["x", 9]], [["x", 1, None, "unknown", 3]],
     [["x", 1], ["x", 1]], [["x" * 300, 1]], [["x", True]], [["x", 4], ["y", 1]]],
)  # fmt: skip
def test_a_damaged_signature_is_refused(wrong: Any) -> None:
    with pytest.raises(ArtifactError, match="names of the model's arguments"):
        arguments.read_back(wrong)


def test_older_files_say_no_names(tmp_path: Path) -> None:
    assert arguments.read_back(None) is None


def test_a_shape_may_stand_for_a_tuple_and_is_one_for_the_model() -> None:
    """Torch's pytree makes a plain tuple of it."""
    x, sizes = torch.arange(8.0).reshape(2, 4), torch.Size([8])
    fast = compiled(lambda x, sizes: x.reshape(sizes), x, sizes)
    for given in (sizes, (8,), [8], x.view(-1).shape):
        assert torch.equal(fast(x, given), x.reshape(8))
    counts = compiled(lambda x, sizes: x * sizes.numel(), x, x.shape)
    assert torch.equal(counts(x, x.shape), x * 8)
    with pytest.raises(InputError, match="is another thing, and no torch"):
        counts(x, (2, 4))
    assert type(pytree.tree_map(lambda n: n, sizes)) is tuple  # torch's again
