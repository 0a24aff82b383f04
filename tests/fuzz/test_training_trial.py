"""Drawn models trained: compiled steps are those of the loops that they take the place of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.fuzz import drawn_training
from anabranch.fuzz.draw import draw
from anabranch.fuzz.drawing import DrawnInput, DrawnLayer, DrawnModel, DrawnStep, built_model
from anabranch.fuzz.trial import TrialSetting, attempt
from anabranch.ir.graph import Graph
from anabranch.rewrite.passes import PASSES
from anabranch.trace import Trace

QUICK = {
    **{"scheduler": "sequential", "cache_dir": None, "search": "none", "verify": False},
    **{"kernels": "library", "horizontal_fusion": "none", "budget": 0.01},
}
SETTING = TrialSetting("cpu", torch.float32, QUICK, training=True)
CHAIN = DrawnModel(
    2,
    (DrawnInput("x0", "normal((2, 3), 1{shift})"),),
    tuple(DrawnLayer(f"w{i}", f"normal((3,), {i})", 0) for i in range(4)),
    (
        DrawnStep("binary", ("v0",), "torch.tanh(x0 * self.w0)"),
        DrawnStep("binary", ("v1",), "v0 + self.w1 * self.w2"),
    ),
    ("v1",),
)


@pytest.mark.parametrize("seed", [6, 8, 17, 18])
def test_steps_of_drawn_models_are_the_loop_s(seed: int) -> None:
    outcome = attempt(draw(seed), SETTING)
    assert outcome.status == "equal", outcome.details


def test_a_wrong_gradient_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Graph, trace: Trace) -> Graph:
        """Takes what a tanh's gradient is made of for the tanh's input."""
        nodes = tuple(
            replace(node, args=(node.args[0], node.args[0]))
            if node.op == "aten.tanh_backward.default"
            else node
            for node in graph.nodes
        )
        return graph if nodes == graph.nodes else replace(graph, nodes=nodes)

    assert attempt(CHAIN, SETTING).status == "equal"
    monkeypatch.setitem(PASSES, "wrong", wrong)
    outcome = attempt(CHAIN, SETTING)
    assert outcome.status == "unequal" and "w0" in "".join(outcome.details), outcome


def test_what_no_eager_step_can_do_is_refused() -> None:
    whole = replace(CHAIN, inputs=(DrawnInput("x0", "whole((2, 3), 9, 1{shift})"),))
    whole = replace(whole, steps=(DrawnStep("integers", ("v1",), "x0 + 1"),))
    outcome = attempt(whole, SETTING)
    assert outcome.status == "refused" and "eager itself" in outcome.details[0]


def test_parameters_are_drawn_by_their_names() -> None:
    build, _ = built_model(CHAIN)
    kinds = set[tuple[bool, int]]()
    for seed in range(20):
        model = drawn_training.trainable(build(), seed, False)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        trained = all(p.requires_grad for p in parameters.values())
        kinds.add((trained, len({*map(id, parameters.values())})))
    assert {trained for trained, _ in kinds} == {True, False}
    assert len({count for _, count in kinds}) > 2, "some are shared, some are not read"
