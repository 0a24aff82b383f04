"""Training steps on the CPU: rows of ours and of rivals that work, lie and fail, and the check of
losses that decides which of them are timed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.bench.small import SMALL

from anabranch.bench import training, training_rivals
from anabranch.bench.machine import Machine, machine
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.bench.training_rivals import Loop
from anabranch.errors import OptionError
from anabranch.models.training_recipes import OPTIMIZERS, Trainable, load_trainable

QUICK = {"search": "none", "kernels": "library", "budget": 0.02, "cache_dir": None}


def quick(**changes: Any) -> BenchmarkMatrix:
    settings = {"dtypes": ("fp32",), "batches": (4,), "target": "cpu", "seconds": 0.0}
    return BenchmarkMatrix((SMALL,), **{**settings, "options": QUICK, **changes})


def idle(case: Trainable, dtype: str, machine: Machine) -> Loop:
    """A step that computes the loss and updates nothing."""
    model = copy.deepcopy(case.model)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    return Loop(model, optimizer, lambda: case.loss(model, *case.batch).detach())


def test_steps_of_ours_and_of_rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training_rivals.RIVALS, "idle", idle)
    options = {**QUICK, "scheduler": "opara"}
    record = training.run(
        quick(rivals=("eager", "idle", "eager-graph"), schedulers=("sequential",), options=options)
    )
    rows = {row["system"]: row for row in record["rows"]}
    ours = ["anabranch", "anabranch-call", "anabranch:sequential"]
    assert list(rows) == [*ours, "eager", "idle", "eager-graph"]
    assert rows["anabranch:sequential"]["facts"]["scheduler"] == "sequential"
    for name in (*ours, "eager"):
        assert rows[name]["median_ms"] > 0 and rows[name]["difference"] <= 1e-4, name
    assert rows["eager"]["beside"] == "anabranch-call"
    lied, failed = rows["idle"], rows["eager-graph"]
    assert lied["median_ms"] is None and lied["failure"].startswith("wrong: losses of 5 steps")
    assert failed["median_ms"] is None and "no CUDA graphs" in failed["failure"]
    facts = rows["anabranch"]["facts"]
    assert set(facts["phases"]) >= {"forward", "backward", "update"}
    assert facts["loss"] == "the sum of all results" and facts["memory"]["states"] > 0
    assert len(facts["reference"]) == training.STEPS and not record["cut_short"]


def test_published_systems_train_too() -> None:
    """Each with options of its own, and networks with batches of their own."""
    asked = quick(
        rivals=(),
        ours=False,
        systems=("cudagraph", "nimble"),
        budget=0.02,
        own_batches={SMALL: (2,)},
        options={"scheduler": "opara"},
    )
    rows = training.run(asked)["rows"]
    found = [(row["system"], row["batch"], row["facts"]["scheduler"]) for row in rows]
    assert found == [
        ("anabranch:cudagraph", 2, "sequential"),
        ("anabranch:nimble", 2, "nimble"),
    ]
    assert all(row["median_ms"] > 0 for row in rows)
    with pytest.raises(OptionError, match="deepcats"):
        training.run(replace(asked, systems=("deepcats",)))


def test_another_order_of_the_batch_changes_nothing_but_roundings() -> None:
    here = machine("cpu")
    network = load_trainable("zoo:resnet50/tiny", 4, here.device, False)
    (x, labels), (other, turned) = network.batch, training.turned(network, 4, 2).batch
    assert not torch.equal(other, x) and torch.equal(other[2:], x[:-2])
    assert torch.equal(turned.roll(-2), labels)
    losses = (network.loss(network.model, x, labels), network.loss(network.model, other, turned))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=0)


def test_who_stops_keeps_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(case: Trainable, dtype: str, machine: Machine) -> Loop:
        raise KeyboardInterrupt

    monkeypatch.setitem(training_rivals.RIVALS, "eager-graph", stop)
    record = training.run(quick(rivals=("eager", "eager-graph", "inductor"), ours=False))
    times = {row["system"]: row["median_ms"] for row in record["rows"]}
    assert times["eager"] and times["eager-graph"] is None and times["inductor"] is None
    assert record["cut_short"] and record["rows"][-1]["failure"] == training.STOPPED


def test_a_network_that_does_not_load_is_a_row() -> None:
    place = SMALL.replace(":two", ":nothing")
    with pytest.raises(OptionError, match="nothing"):
        training.run(replace(quick(), models=(place,)))
    with pytest.raises(OptionError, match="scaler"):
        training.run(quick(dtypes=("fp16",)))
    with pytest.raises(OptionError, match="torchscript"):
        training.run(quick(rivals=("torchscript",)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_losses_again_from_the_start(dtype: str) -> None:
    """However long somebody trained in between; the reference is a telling one."""
    here = machine("cpu")
    case = training.load_case("zoo:mlp/tiny", dtype, 4, here, False)
    loop = training_rivals.eager(case.network, dtype, here)

    def again() -> None:
        training_rivals.rewind(case.network, loop.model, loop.optimizer)

    first, second = training.losses(loop.step, again), training.losses(loop.step, again)
    assert first == second and len(set(first)) == training.STEPS
    assert training.compared(first, case).excess <= 1.0 and case.telling
    assert training.compared(first[:1] * training.STEPS, case).excess > 1.0


@pytest.mark.parametrize(
    ("name", "kind", "optimizer"),
    [
        ("mobilenet_v2", "cross entropy", "SGD"),
        ("bert_base", "cross entropy of masked tokens", "AdamW"),
        ("gpt2", "cross entropy of the next token", "AdamW"),
        ("gru", "cross entropy", "Adam"),
        ("dlrm", "binary cross entropy", "Adam"),
        ("deepfm", "binary cross entropy of probabilities", "Adam"),
    ],
)
def test_what_networks_are_trained_with(name: str, kind: str, optimizer: str) -> None:
    found = load_trainable(f"zoo:{name}/tiny", 2)
    made = OPTIMIZERS[found.optimizer](found.model.parameters())
    assert (found.kind, type(made).__name__) == (kind, optimizer) and found.model.training
    loss = found.loss(found.model, *found.batch)
    loss.backward()  # type: ignore[no-untyped-call]
    read = [p.grad for p in found.model.parameters() if p.grad is not None]
    assert torch.isfinite(loss) and loss > 0 and any(g.abs().max() > 0 for g in read)
