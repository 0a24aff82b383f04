"""Campaigns: what is sound stays equal; a planted error is found, counted, shrunk and written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests import fresh

from anabranch.fuzz import campaign, trial
from anabranch.fuzz.draw import draw
from anabranch.fuzz.drawing import DrawnInput, DrawnLayer, DrawnModel, DrawnStep, model_text
from anabranch.fuzz.shrink import pruned, shrunk
from anabranch.fuzz.trial import DRAWN, TrialSetting, attempt
from anabranch.ir.graph import Graph
from anabranch.rewrite.passes import PASSES
from anabranch.trace import Trace

QUICK = {"scheduler": "sequential", "check": 1, "cache_dir": None, "budget": 0.01}
CHAIN = DrawnModel(
    3,
    (DrawnInput("x0", "normal((2, 3), 1{shift})"), DrawnInput("x1", "normal((2, 3), 2{shift})")),
    (),
    (
        DrawnStep("activation", ("v0",), "F.relu(x0)"),
        DrawnStep("activation", ("v1",), "torch.tanh(v0)"),
        DrawnStep("binary", ("v2",), "v1 + x1"),
        DrawnStep("scalar", ("v3",), "v0 * 2"),
        DrawnStep("chunk", ("v4", "v5"), "v2.split([1, 1], 0)"),
    ),
    ("v3", "v4", "v5"),
)


def wrong(graph: Graph, trace: Trace) -> Graph:
    """Takes every tanh for a sigmoid."""
    nodes = tuple(
        replace(node, op="aten.sigmoid.default") if node.op == "aten.tanh.default" else node
        for node in graph.nodes
    )
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(PASSES, "wrong", wrong)
    yield


def test_models_compute_the_same_after_compiling() -> None:
    setting = TrialSetting("cpu", torch.float32, {**QUICK, "scheduler": DRAWN})
    tally = campaign.run(40, 7, setting, Trace(), None)
    assert dict(tally.counts) == {"equal": 7}, tally.failures
    assert len({setting.told(seed)["scheduler"] for seed in range(40, 47)}) > 3


def test_plans_for_a_gpu_that_is_not_here_are_evaluated() -> None:
    tally = campaign.run(40, 4, TrialSetting("sim:h200", torch.float32, QUICK), Trace(), None)
    assert dict(tally.counts) == {"equal": 4}, tally.failures


@pytest.mark.usefixtures("planted")
def test_plans_for_a_gpu_may_be_wrong_too() -> None:
    setting = TrialSetting("sim:h200", torch.float32, QUICK)
    assert attempt(CHAIN, setting).status == "unequal"


@pytest.mark.usefixtures("planted")
def test_a_wrong_pass_is_found_shrunk_and_written(tmp_path: Path) -> None:
    setting = TrialSetting("cpu", torch.float32, {**QUICK, "verify": False})
    drawn = (s for s in range(99) if "torch.tanh(" in model_text(pruned(draw(s))))
    # Not every result depends on every tanh that is read: a softmax of one number does not.
    seed = next(s for s in drawn if attempt(draw(s), setting).status == "unequal")
    tally = campaign.run(seed, 1, setting, Trace(), tmp_path)
    (found,) = tally.failures
    assert tally.counts == {"unequal": 1} and found["seed"] == seed
    assert "is off by" in found["details"][0]
    assert found["shrunk steps"] <= 2 < found["steps"] and "tanh" in found["shrunk"]
    script, text = map(Path, found["files"])
    assert "aten.tanh.default" in text.read_text()
    # Alone, where nobody planted anything, the script has nothing to say.
    ran = fresh.run(script.read_text())
    assert ran.returncode == 0, ran.stderr


@pytest.mark.usefixtures("planted")
def test_the_compiler_s_own_comparison_counts_as_unequal() -> None:
    outcome = attempt(CHAIN, TrialSetting("cpu", torch.float32, {**QUICK, "strict": True}))
    assert (outcome.status, outcome.sort) == ("unequal", "refused plan")


def test_what_raises_is_counted_and_the_campaign_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph, trace: Trace) -> Graph:
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(PASSES, "broken", broken)
    monkeypatch.setattr(campaign, "SHRUNK_FAILURES", 0)
    tally = campaign.run(0, 3, TrialSetting("cpu", torch.float32, QUICK), Trace(), None)
    assert dict(tally.counts) == {"failed": 3}
    assert {failure["sort"] for failure in tally.failures} == {"ZeroDivisionError in broken"}


def test_an_interruption_leaves_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(drawing: DrawnModel, setting: TrialSetting) -> trial.TrialOutcome:
        if drawing.seed == 2:
            raise KeyboardInterrupt
        return trial.TrialOutcome(drawing, "equal")

    monkeypatch.setattr(campaign, "attempt", interrupted)
    setting = TrialSetting("cpu", torch.float32, QUICK)
    tally = campaign.run(0, 9, setting, Trace(), None)
    assert tally.interrupted == 2 and campaign.record(tally, 0, setting)["graphs"] == 2


def test_shrinking_keeps_what_fails_and_nothing_else() -> None:
    small = shrunk(CHAIN, lambda d: any("tanh" in step.text for step in d.steps))
    assert [step.text for step in small.steps] == ["torch.tanh(x0)"] or len(small.steps) == 1
    assert small.outputs == ("v1",) and len(small.inputs) == 1


def test_shrinking_ends_when_its_trials_are_used_up() -> None:
    tried: list[DrawnModel] = []

    def fails(drawing: DrawnModel) -> bool:
        tried.append(drawing)
        return False

    assert shrunk(CHAIN, fails, trials=5) == CHAIN
    assert len(tried) == 5


def test_what_is_not_read_is_dropped_unless_it_writes() -> None:
    texts = [step.text for step in pruned(replace(CHAIN, outputs=("v3",))).steps]
    assert texts == ["F.relu(x0)", "v0 * 2"]
    writing = DrawnStep("in_place", ("v6",), "v0.neg_()")
    drawing = replace(CHAIN, steps=(*CHAIN.steps, writing), outputs=("v0",))
    assert [step.text for step in pruned(drawing).steps] == ["F.relu(x0)", "v0.neg_()"]


def test_a_model_that_does_not_run_stays_as_it_is() -> None:
    bad = DrawnStep("reshape", ("v9",), "v0.view(1, 2, 99)")
    broken = replace(CHAIN, steps=(*CHAIN.steps, bad), outputs=("v9",))
    assert shrunk(broken, lambda drawing: bad in drawing.steps) == broken


def test_a_campaign_goes_on_from_its_log_and_in_shards(tmp_path: Path) -> None:
    setting, log = TrialSetting("cpu", torch.float32, QUICK), tmp_path / "log"
    first = campaign.run(40, 2, setting, Trace(), None, log=log)
    with log.open("a") as file:
        file.write('{"seed": 42, "cut')  # the process ended here
    lines = log.read_text().count("\n")
    again = campaign.run(40, 2, setting, Trace(), None, log=log)
    assert again.counts == first.counts and again.kinds == first.kinds
    assert log.read_text().count("\n") == lines == 2, "nothing was tried again"
    other = campaign.run(40, 5, setting, Trace(), None, shard=(2, 3), log=tmp_path / "other")
    assert sum(other.counts.values()) == 2 and '"seed": 44' in (tmp_path / "other").read_text()


def test_results_that_change_later_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an earlier call are kept while others run."""
    view = TrialSetting("cpu", torch.float32, {**QUICK, "outputs": "view"})
    found = attempt(CHAIN, view)
    assert found.status == "unequal" and "of an earlier one" in "".join(found.details)
    assert attempt(CHAIN, TrialSetting("cpu", torch.float32, QUICK)).status == "equal"


def test_exactly_no_window_is_padded_to_merge_convolutions() -> None:
    """Zeros around the smaller window times infinity are not a number."""
    steps = (
        DrawnStep("conv", ("v0",), "F.conv2d(x0, self.w0, stride=2)"),
        DrawnStep("conv", ("v1",), "F.conv2d(x0, self.w1, padding=1, stride=2)"),
    )
    layers = (
        DrawnLayer("w0", "normal((4, 3, 1, 1), 1)", 0),
        DrawnLayer("w1", "normal((4, 3, 3, 3), 2)", 0),
    )
    given = (DrawnInput("x0", "normal((1, 3, 6, 6), 3{shift})"),)
    drawing = DrawnModel(1, given, layers, steps, ("v0", "v1"))
    exact = {**QUICK, "scheduler": "ios-merge", "exact": True, "budget": 5.0}
    assert attempt(drawing, TrialSetting("cpu", torch.float32, exact)).status == "equal"
