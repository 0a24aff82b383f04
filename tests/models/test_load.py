from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anabranch.errors import CaptureError, OptionError
from anabranch.models.load import load_model

SOURCE = """
import torch

def build():
    return torch.nn.Linear(3, 2), (torch.ones(1, 3),)

def one():
    return torch.nn.Linear(3, 2)

def wrong():
    return "a string"

def broken():
    raise ValueError("no luck")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "my_networks.py"
    path.write_text(SOURCE)
    return path


def test_the_zoo_in_both_sizes() -> None:
    model, args = load_model("zoo:squeezenet/tiny", batch=3)
    assert args[0].shape[0] == 3 and not model.training
    assert model(*args).shape[0] == 3
    paper, args = load_model("zoo:squeezenet")
    assert args[0].shape == (1, 3, 224, 224)
    assert sum(p.numel() for p in paper.parameters()) > 1e6


def test_dtypes_cast_floats_only() -> None:
    model, args = load_model("zoo:deepfm/tiny", dtype="bf16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert [arg.dtype for arg in args] == [torch.int64, torch.bfloat16]
    model, _ = load_model("zoo:deepfm/tiny", dtype="tf32")
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zoo:resnet5", "did you mean resnet50"),
        ("zoo:squeezenet/huge", "choose one of: paper, tiny"),
        ("resnet50", "did you mean zoo:resnet50"),
        ("nothing", "zoo:NAME"),
        ("zoo:", "zoo:NAME"),
        (":make", "zoo:NAME"),
        ("missing.pt2", "no file"),
        ("zo:resnet50", "did you mean zoo:resnet50"),
    ],
)
def test_names_that_mean_nothing(name: str, says: str) -> None:
    with pytest.raises(OptionError) as error:
        load_model(name)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("plan.anabranch", "anabranch explain"),
        ("model.pt", "a file of weights"),
        ("model.safetensors", "a file of weights"),
        ("model.py", "model.py:make"),
        ("model.txt", "a file of another kind"),
        ("", "it is a folder"),
    ],
)
def test_files_that_are_no_model_are_told_for_what_they_are(
    file: str, says: str, tmp_path: Path
) -> None:
    if file:
        (tmp_path / file).touch()
    with pytest.raises(OptionError, match="does not name a model") as error:
        load_model(str(tmp_path / file))
    assert says in str(error.value)


def test_values_that_mean_nothing() -> None:
    with pytest.raises(OptionError, match="fp8"):
        load_model("zoo:sru/tiny", dtype="fp8")
    with pytest.raises(OptionError, match="empty"):
        load_model("zoo:sru/tiny", batch=0)


def test_a_callable_of_a_file(source: Path) -> None:
    model, args = load_model(f"{source}:build", dtype="fp16")
    assert isinstance(model, nn.Linear) and not model.training
    assert args[0].dtype == torch.float16
    with pytest.raises(OptionError, match=r"a Linear and 0 inputs(.|\n)*\(module, args\)"):
        load_model(f"{source}:one")
    with pytest.raises(OptionError, match="str"):
        load_model(f"{source}:wrong")
    with pytest.raises(OptionError, match="did you mean build"):
        load_model(f"{source}:biuld".replace("biuld", "buildd"))
    with pytest.raises(CaptureError, match="no luck"):
        load_model(f"{source}:broken")
    with pytest.raises(OptionError, match="cannot import"):
        load_model(f"{source.parent}/absent.py:build")


def test_a_callable_has_its_own_batch_unless_it_asks(source: Path) -> None:
    with source.open("a") as text:
        text.write("\ndef sized(batch=2): return torch.nn.Linear(3, 2), (torch.randn(batch, 3),)\n")
    own = load_model(f"{source}:build")[1][0].shape[0]
    assert load_model(f"{source}:build", batch=own)[1][0].shape[0] == own
    with pytest.raises(OptionError, match=f"use --batch {own}"):
        load_model(f"{source}:build", batch=own + 1)
    assert [load_model(f"{source}:sized", batch=b)[1][0].shape[0] for b in (None, 5)] == [2, 5]


def test_a_callable_of_a_module_lying_here(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model, _ = load_model("my_networks:build")
    assert isinstance(model, nn.Linear)
    monkeypatch.delitem(sys.modules, "my_networks")


def test_weights_follow_the_seed_and_leave_the_generator_alone(source: Path) -> None:
    def weights(seed: int) -> torch.Tensor:
        model, _ = load_model(f"{source}:build", seed=seed)
        return next(model.parameters())

    state = torch.random.get_rng_state()
    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    assert torch.equal(state, torch.random.get_rng_state())


def test_an_archive_wants_trust(tmp_path: Path) -> None:
    path = str(tmp_path / "net.pt2")
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).eval()
    x = torch.randn(4, 3)
    torch.export.save(torch.export.export(model, (x,)), path)
    with pytest.raises(OptionError, match="--trust"):
        load_model(path)
    loaded, args = load_model(path, trust=True)
    torch.testing.assert_close(loaded(*args), model(x))
    assert not any(part.training for part in loaded.modules())
    load_model(path, batch=4, dtype="fp32", trust=True)
    with pytest.raises(OptionError, match="batch"):
        load_model(path, batch=1, trust=True)
    with pytest.raises(OptionError, match="not fp16"):
        load_model(path, dtype="fp16", trust=True)


def test_an_archive_that_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(b"garbage")
    with pytest.raises(CaptureError, match="cannot read"):
        load_model(str(path), trust=True)
    assert not caplog.records, "torch's own account of it stays off the screen"


def test_packages_that_are_missing_or_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(OptionError, match="need that package"):
        load_model("timm:resnet18")

    fake = types.ModuleType("torchvision.models")
    fake.list_models = lambda: ["resnet18", "resnet34"]  # type: ignore[attr-defined]
    fake.get_model = lambda name, weights: nn.Conv2d(3, 4, 3)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", fake)
    _, args = load_model("torchvision:resnet18", batch=2)
    assert args[0].shape == (2, 3, 224, 224)
    with pytest.raises(OptionError, match="did you mean resnet"):
        load_model("torchvision:resnet1")


class Fading(nn.Module):
    """A hundredth of what goes in comes out of each layer, and a branch begins by giving nothing.
    `pooled`: its last norm has one number for each channel."""

    def __init__(self, pooled: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(4))
        self.branch = nn.BatchNorm2d(3)
        self.pooled = pooled
        nn.init.zeros_(self.branch.weight)
        for layer in self.layers:
            nn.init.constant_(layer.weight, 0.001)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        if self.pooled:
            x = x.mean((0, 2, 3), keepdim=True)
        y: Tensor = x + self.branch(x) * 0.5
        return y


@pytest.mark.parametrize("pooled", [False, True])
def test_networks_with_random_weights_compute_something(
    monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    """Where a batch can pass; else they are as they were built, and none is left in training."""
    fake = types.ModuleType("timm")
    fake.is_model = lambda name: True  # type: ignore[attr-defined]

    def create_model(name: str, pretrained: bool) -> nn.Module:
        model = Fading(pooled)
        model.default_cfg = {"input_size": (3, 8, 8)}  # type: ignore[assignment]
        return model

    fake.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    model, (x,) = load_model("timm:fading")
    assert not any(module.training for module in model.modules())
    assert isinstance(model, Fading)
    assert {norm.momentum for norm in model.norms} == {0.1}
    weight = model.branch.weight
    with torch.no_grad():
        size = model(x).std().item()
    if pooled:
        assert size < 1e-6 and not weight.any()
    else:
        assert 0.5 < size < 2 and weight.all()
