"""Random models with shared launches wherever they can be: what they compute stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from anabranch.compiler import pipeline
from anabranch.costs import Recorded
from anabranch.fuzz import campaign
from anabranch.fuzz.trial import TrialSetting
from anabranch.ir.protocols import Cost
from anabranch.ir.verify import verify_tasks
from anabranch.trace import Trace
from anabranch.tuning.build import BuiltPlan
from anabranch.tuning.horizontal import propose
from anabranch.tuning.horizontal.decide import horizontal_fusion
from anabranch.tuning.job import Job


def test_whatever_shares_a_launch_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs under which fewer launches are always faster; plans are verified as everywhere, and
    their tasks evaluated one by one."""
    changed: list[bool] = []

    def fewest(self: Recorded, plans: Sequence[Any]) -> list[Cost]:
        return [Cost(float(len(tasks.tasks)), "recorded") for tasks, _ in plans]

    def noted(job: Job, made: BuiltPlan) -> BuiltPlan:
        found = horizontal_fusion(job, made)
        verify_tasks(found.tasks)
        changed.append(found is not made)
        assert len(found.tasks.tasks) <= len(made.tasks.tasks)
        return found

    monkeypatch.setattr(Recorded, "race", fewest)
    monkeypatch.setattr(propose, "UNTOLD", 1e6)
    monkeypatch.setattr(pipeline, "horizontal_fusion", noted)
    options = {"scheduler": "critical", "search": "none", "cache_dir": None, "check": 1}
    setting = TrialSetting("sim:h200", torch.float16, options)
    tally = campaign.run(7, 5, setting, Trace(), None)
    assert dict(tally.counts) == {"equal": 5}, tally.failures
    assert sum(changed) >= 3, "most drawings have something to put together"
