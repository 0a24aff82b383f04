"""Substitutions drawn at random: the same for the same seed, equal, counted; a wrong rule is named
with its step, and so is one that crashes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anabranch.frontend.from_torch import capture
from anabranch.fuzz import campaign, substitute, trial
from anabranch.fuzz.drawing import DrawnInput, DrawnModel, DrawnStep
from anabranch.fuzz.substitute import RULES, SIMPLIFY, Crash, Substitution, substituted
from anabranch.fuzz.trial import TrialOutcome, TrialSetting, attempt
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import rounding
from anabranch.ir.refused import unless
from anabranch.ir.rule import Match, Pattern, Rule, wild
from anabranch.trace import Trace

STEPS = TrialSetting("cpu", torch.float64, {"check": 1}, steps=4)
x, y, s = wild("x y s")
SUM = DrawnModel(
    3,
    (DrawnInput("x0", "normal((2, 3), 1{shift})"), DrawnInput("x1", "normal((2, 3), 2{shift})")),
    (),
    (
        DrawnStep("scalar", ("v0",), "x0 * 2"),
        DrawnStep("scalar", ("v1",), "x1 * 3"),
        DrawnStep("binary", ("v2",), "v0 + v1"),
        DrawnStep("activation", ("v3",), "torch.tanh(v2)"),
    ),
    ("v3",),
)
WRONG = Rule(
    "x + y -> x",
    find=x + y,
    replace=x,
    when=unless("y is larger", lambda m: m.x.type == m.root.type),
)
MANY = Rule("x * s -> x * 1 * s", find=x * s, replace=x * 1.0 * s)
ONE = Rule("x - y -> -(y - x)", find=x - y, replace=-(y - x))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No rules but these."""
    monkeypatch.setattr(substitute, "RULES", request.param)


def sums() -> Graph:
    def model(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ w) + torch.cat([b @ w, b @ w], 0) * 2 + a @ w

    shapes = (4, 3), (2, 3), (3, 5)
    return capture(model, tuple(torch.ones(shape) for shape in shapes)).graph


def same(graph: Graph) -> Graph:
    return graph


def test_equal_seeds_draw_equal_substitutions() -> None:
    graph = sums()
    one, two, other = (
        [(each.done, each.graph) for each in substituted(graph, 6, seed, same)]
        for seed in (1, 1, 2)
    )
    assert one == two != other
    steps = [done for done, _ in one if done.rule != SIMPLIFY]
    assert len(steps) == 6 and all(done.nodes for done in steps)


@pytest.mark.parametrize("only", [(MANY, ONE)], indirect=True)
@pytest.mark.usefixtures("only")
def test_a_rule_that_matches_once_comes_as_often_as_one_that_matches_everywhere() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a * 2 * b * 3 * b * 4 * b * 5) - b) * 6 * a

    graph, first = capture(model, (torch.ones(2), torch.ones(2))).graph, Counter[str]()
    for seed in range(40):
        steps = [each.done.rule for each in substituted(graph, 1, seed, same)]
        first.update(rule for rule in steps if rule != SIMPLIFY)
    assert first.total() == 40 and 12 < first[ONE.name] < 28


def test_rules_that_might_help_and_rules_that_always_do_are_drawn() -> None:
    names = {rule.name for rule in RULES}
    assert {"x + 0 -> x", "t(t(x)) -> x"} <= names and len(names) > 200


def test_models_stay_the_same_and_their_steps_are_counted() -> None:
    tally = campaign.run(40, 4, STEPS, Trace(), None)
    assert dict(tally.counts) == {"equal": 4}, tally.failures
    told = campaign.record(tally, 40, STEPS)
    listed = [
        step["rule"]
        for steps in told["substitutions"].values()
        for step in steps
        if step["rule"] != SIMPLIFY
    ]
    assert told["rules"] == Counter(listed) and told["steps"] == len(listed) > 8
    assert told["steps per graph"] == 4 and 0 < told["substituted"] <= told["graphs"] == 4
    assert told["cut short"] == 0


@pytest.mark.parametrize("only", [(WRONG, MANY)], indirect=True)
@pytest.mark.usefixtures("only")
def test_a_wrong_rule_is_named_with_its_step() -> None:
    outcome = attempt(SUM, STEPS)
    assert (outcome.status, outcome.sort) == ("unequal", "unequal since x + y -> x"), outcome
    assert attempt(SUM, STEPS).details == outcome.details
    steps = [done for done in outcome.done if done.rule != SIMPLIFY]
    number = 1 + next(i for i, done in enumerate(steps) if done.rule == WRONG.name)
    (said,) = outcome.details
    assert "output 0 is off by" in said
    assert said.endswith(f"first after step {number}: x + y -> x at %add")


@pytest.mark.parametrize("only", [(WRONG,)], indirect=True)
@pytest.mark.usefixtures("only")
def test_the_graphs_around_the_wrong_step_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "draw", lambda seed: SUM)
    tally = campaign.run(3, 1, STEPS, Trace(), tmp_path)
    (found,) = tally.failures
    (file,) = found["files"]
    before, after = Path(file).read_text().split("# x + y -> x at %add\n")
    assert "aten.add.Tensor" in before and "aten.add.Tensor" not in after
    assert "shrunk" not in found and tally.rules == {"x + y -> x": 1}


def broken(match: Match) -> Pattern:
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize("only", [(Rule("x + y -> ?", find=x + y, replace=broken),)], indirect=True)
@pytest.mark.usefixtures("only")
def test_a_rule_that_crashes_is_named() -> None:
    outcome = attempt(SUM, STEPS)
    assert (outcome.status, outcome.sort) == ("failed", "ZeroDivisionError in x + y -> ?")
    assert outcome.details[0].endswith("x + y -> ? at %add: ZeroDivisionError: by zero")
    with pytest.raises(Crash):
        list(substituted(sums(), 1, 0, same))


def test_what_was_compiled_tells_its_substitutions(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(drawing: DrawnModel, setting: TrialSetting) -> TrialOutcome:
        done = (Substitution("a -> b", ("n",)),) * (drawing.seed % 3)
        return TrialOutcome(drawing, "equal", done=done, cut_short=drawing.seed == 0)

    monkeypatch.setattr(campaign, "attempt", found)
    told = campaign.record(campaign.run(0, 3, TrialSetting(), Trace(), None), 0, TrialSetting())
    assert (told["substituted"], told["cut short"], told["steps"]) == (2, 1, 3)
    assert told["rules"] == {"a -> b": 3} and set(told["substitutions"]) == {"1", "2"}


def test_a_search_that_had_no_time_counts_as_cut_short() -> None:
    options = {"scheduler": "sequential", "cache_dir": None, "budget": 0.01}
    outcome = trial.attempt(SUM, TrialSetting("cpu", torch.float32, options))
    assert outcome.status == "equal" and outcome.cut_short


def test_what_is_folded_in_a_narrower_dtype_may_be_rounded() -> None:
    """A constant whose softmax the model itself takes in fp32."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(3, 5))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w.float().softmax(-1).double()

    def of(module: nn.Module) -> Graph:
        return capture(module.eval().double(), (torch.rand(3, 5).double(),)).graph

    assert rounding(of(Narrow())) == pytest.approx(4e-5)
    assert rounding(of(nn.Linear(5, 2))) == pytest.approx(4e-12)
