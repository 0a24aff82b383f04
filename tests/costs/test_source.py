"""A machine that is there is measured, a simulated one answers from its profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.costs import Measured, Recorded, costs_of
from anabranch.costs.recorded import Profile


def test_costs_of_a_target(make: Any, target: Any, prepare: Any) -> None:
    assert isinstance(costs_of(target, prepare), Measured)
    target.profile = Profile(spec=make.spec)
    target.spec = replace(make.spec, tf32=True, simulated=True)
    found = costs_of(target, prepare)
    assert isinstance(found, Recorded)
    assert found.spec.tf32
