"""A training step that is saved goes on in another process as it would have here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import fresh
from torch import Tensor, nn

import anabranch
from anabranch.compiled.saved_step import KEY, SavedStep, read_back, written
from anabranch.errors import AnabranchError, ArtifactError, InputError, WeightsError
from anabranch.trace import Trace

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    **{"kernels": "library", "verify": False},
}
Made = tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]


def made(width: int = 8, beta: float = 0.9, adam: bool = True) -> Made:
    torch.manual_seed(0)
    first, last = nn.Linear(6, width), nn.Linear(width, 5)
    model = nn.Sequential(first, nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.2), last)
    first.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(trained, lr=0.05, momentum=beta)
    if adam:
        optimizer = torch.optim.AdamW(trained, lr=0.05, betas=(beta, 0.99))
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)


def batch(seed: int, rows: int = 4) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=make), torch.randint(5, (rows,), generator=make)


def loss_of(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), t)


GOES_ON = """
import sys
import torch
import anabranch
from anabranch.compiler import pipeline
from tests.compiled.test_saved_step import batch, made

pipeline.compile_model = None       # nothing is compiled
model, optimizer, scaler = made(adam=False)
step = anabranch.load_step(sys.argv[1], model, optimizer, scaler=scaler, target="cpu")
print([step(*batch(seed)).item() for seed in range(5, 10)])
torch.save([model.state_dict(), optimizer.state_dict(), scaler.state_dict()], sys.argv[2])
"""


def test_a_checkpoint_goes_on_bit_for_bit_in_another_process(tmp_path: Path) -> None:
    model, optimizer, scaler = made(adam=False)
    step = anabranch.compile_step(
        *(model, loss_of, optimizer, batch(0)),
        **{"accumulate": 2, "scaler": scaler, "seed": 3, "trace": Trace(quiet=True), **QUICK},
    )
    for seed in range(5):  # a gradient is added up, and not applied yet
        step(*batch(seed))
    path, left = tmp_path / "step.anabranch", tmp_path / "left.pt"
    step.save(path)
    done = fresh.run(GOES_ON, str(path), str(left))
    assert done.returncode == 0, done.stderr
    mine = [step(*batch(seed)).item() for seed in range(5, 10)]
    assert done.stdout.strip() == str(mine)
    theirs = torch.load(left)
    torch.testing.assert_close(theirs[0], model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(theirs[1], optimizer.state_dict(), rtol=0, atol=0)
    assert theirs[2] == scaler.state_dict()
    with pytest.raises(ArtifactError, match="holds a training step"):
        anabranch.load(path, target="cpu")


def test_what_the_step_only_reads_comes_back_too(tmp_path: Path) -> None:
    """Frozen weights, as they were when the step was saved, though no call has read them yet."""
    model, optimizer, _ = made()
    step = anabranch.compile_step(model, loss_of, optimizer, batch(0), **QUICK)
    step(*batch(1))
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(2)
    step.save(tmp_path / "step")
    other, mine, _ = made()
    with torch.no_grad():
        other.get_parameter("0.bias").fill_(7)
    again = anabranch.load_step(tmp_path / "step", other, mine, target="cpu")
    want, have = model.state_dict(), other.state_dict()
    assert all(torch.equal(have[name], want[name]) for name in want)
    assert torch.equal(again(*batch(2)), step(*batch(2)))


def test_frozen_weights_written_before_a_plan_is_added_are_those_of_all() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    model.get_submodule("0").requires_grad_(False)
    optimizer = torch.optim.SGD(model.get_submodule("2").parameters(), lr=0.1)
    step = anabranch.compile_step(model, loss_of, optimizer, batch(0), **QUICK)
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(3)
    step.add(batch(1, rows=2))
    want = loss_of(model, *batch(2)).detach()
    torch.testing.assert_close(step(*batch(2)), want)


def test_plans_alone_take_what_model_and_optimizer_have(tmp_path: Path) -> None:
    model, optimizer, _ = made()
    options = {"seed": 3, "trace": Trace(quiet=True), **QUICK}
    step = anabranch.compile_step(model, loss_of, optimizer, batch(0), **options)
    path, whole = tmp_path / "plans.anabranch", tmp_path / "whole.anabranch"
    step.save(path, state=False)
    step.save(whole)
    assert path.stat().st_size < whole.stat().st_size
    other, theirs, _ = made()
    with torch.no_grad():
        for one in (model, other):  # also what the step only reads
            one[0].weight.mul_(2.0)  # type: ignore[index]
            one[4].weight.mul_(0.5)  # type: ignore[index]
    loaded = anabranch.load_step(path, other, theirs, target="cpu")
    loaded.load_state_dict(step.state_dict())
    losses = [[one(*batch(seed)).item() for seed in range(3)] for one in (step, loaded)]
    assert losses[0] == losses[1]
    with pytest.raises(AnabranchError, match="loaded from a file"):
        loaded.phases()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    model, optimizer, _ = made()
    options = {"trace": Trace(quiet=True), **QUICK}
    step = anabranch.compile_step(model, loss_of, optimizer, batch(0), **options)
    path, plan = tmp_path / "step.anabranch", tmp_path / "plan.anabranch"
    step.save(path)
    before = [p.clone() for p in made(8, 0.5)[0].parameters()]
    other, theirs, _ = made(8, 0.5)
    with pytest.raises(InputError, match=r"betas of group 0 was \(0.9, 0.99\) .* is \(0.5, 0.99\)"):
        anabranch.load_step(path, other, theirs, target="cpu")
    assert all(map(torch.equal, other.parameters(), before)), "nothing was written"
    with pytest.raises(WeightsError, match=r"is f32\[9\] on cpu"):
        anabranch.load_step(path, *made(9)[:2], target="cpu")
    anabranch.compile(model.eval(), batch(0)[:1], **options).save(plan)
    with pytest.raises(ArtifactError, match="holds no training step"):
        anabranch.load_step(plan, *made()[:2], target="cpu")


def test_an_optimizer_of_another_class_is_refused_as_that(tmp_path: Path) -> None:
    """Whatever else differs: Adam has the settings of AdamW, and SGD others."""
    model, optimizer, _ = made()
    anabranch.compile_step(model, loss_of, optimizer, batch(0), **QUICK).save(tmp_path / "step")
    other = made()[0]
    trained = [p for p in other.parameters() if p.requires_grad]
    adam = torch.optim.Adam(trained, lr=0.05, betas=(0.9, 0.99), weight_decay=0.01)
    adam.param_groups[0].update(decoupled_weight_decay=True)
    for wrong in (torch.optim.SGD(trained, lr=0.05), adam):
        said = f"the optimizer is {type(wrong).__name__}, and the step was compiled for AdamW"
        with pytest.raises(InputError, match=said):
            anabranch.load_step(tmp_path / "step", other, wrong, target="cpu")
        assert not wrong.state, "nothing was written"


def test_what_a_stranger_wrote_is_not_shown() -> None:
    """Words of a file stand in errors, so they have to be words; numbers have limits."""
    saved = SavedStep(True, 1, False, 3, (("step", "other"),), ((("lr", "0.1"),),))
    assert read_back("file", {KEY: written(saved)}) == saved
    for damage in (
        {"settings": ((("lr", "\x1b[2J"),),)},
        {"settings": ((("l\nr", "0.1"),),)},
        {"alike": (("step", "x" * 2000),)},
        {"accumulate": 0},
        {"calls": -1},
        {"optimizer": "\x1b[2J"},
    ):
        with pytest.raises(ArtifactError, match="file is damaged"):
            read_back("file", {KEY: written(replace(saved, **damage))})
