"""Ways through a cut model: values come and go, and a way goes on where one before it parted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from anabranch.compiled.cut_path import CutPath, RunStep, last_reads, run
from anabranch.frontend.cut_checks import PathCheck, Unseen
from anabranch.frontend.cut_sections import CutStep

NOTHING = fx.GraphModule(torch.nn.Module(), fx.Graph())
ONE = pytree.tree_flatten((0,))[1]


class Steps:
    """Counts how often each runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def step(self, name: str, reads: str, gives: str, wanted: bool | None = None) -> RunStep:
        """Gives what it reads, plus one; `wanted`: whether what it reads must be positive."""

        def call(values: Any) -> Any:
            self.ran.append(name)
            if wanted is not None and bool(values[0] > 0) != wanted:
                raise Unseen(PathCheck(f"positive == {wanted}", "model.py:1 in forward"))
            return [values[0] + 1]

        step = CutStep("eager", NOTHING, (), (reads,), (gives,), ())
        return RunStep(step, call, None, (), name, last=(reads,) if reads != "x" else ())


def path(*steps: RunStep) -> CutPath:
    return CutPath(("x",), {}, steps, ((steps[-1].step.gives[0], None), (None, 7)), ONE, ())


def both() -> tuple[Steps, list[CutPath]]:
    steps = Steps()
    first = steps.step("first", "x", "a")
    yes = path(first, steps.step("yes", "a", "b", True), steps.step("end", "b", "c"))
    no = path(first, steps.step("no", "a", "b", False), steps.step("other end", "b", "c"))
    return steps, [yes, no]


def test_the_way_that_is_gone_is_found() -> None:
    steps, paths = both()
    taken, results = run(paths, [torch.tensor(1.0)], {})
    assert taken is paths[0] and steps.ran == ["first", "yes", "end"]
    assert results == [torch.tensor(4.0), 7]


def test_what_two_ways_begin_with_runs_once() -> None:
    steps, paths = both()
    taken, (found, _) = run(paths, [torch.tensor(-3.0)], {})
    assert taken is paths[1] and isinstance(found, Tensor) and found == 0
    assert steps.ran == ["first", "yes", "no", "other end"]


def test_a_call_that_goes_no_way_says_which_check_failed() -> None:
    _, paths = both()
    with pytest.raises(Unseen, match="positive == True"):
        run(paths[:1], [torch.tensor(-3.0)], {})


def test_values_go_after_their_last_reader() -> None:
    made = [
        CutStep("eager", NOTHING, (), ("x",), ("a", "b"), ()),
        CutStep("section", NOTHING, (), ("a",), ("c", "unused"), ()),
        CutStep("eager", NOTHING, (), ("c", "x"), ("d",), ()),
    ]
    assert last_reads(made, [("d", None), ("b", None)]) == [(), ("a", "unused"), ("c", "x")]
