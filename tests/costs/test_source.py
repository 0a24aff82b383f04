"""A machine that is there is measured, a simulated one answers from its profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.costs import Measured, Recorded, costs_of
from anabranch.costs.recorded import Profile, Timing
from anabranch.costs.source import name_of


def test_costs_of_a_target(make: Any, target: Any, prepare: Any) -> None:
    assert isinstance(costs_of(target, prepare), Measured)
    target.profile = Profile(spec=make.spec)
    target.spec = replace(make.spec, tf32=True, simulated=True)
    found = costs_of(target, prepare)
    assert isinstance(found, Recorded)
    assert found.spec.tf32


def test_the_name_of_a_profile_is_that_of_its_content(make: Any, target: Any) -> None:
    assert name_of(target) == "measured"
    target.profile = Profile(spec=make.spec, tasks={"a": Timing(us=1.0)})
    name = name_of(target)
    target.profile = Profile(spec=make.spec, tasks={"a": Timing(us=1.0)})
    assert name_of(target) == name
    target.profile = Profile(spec=make.spec, tasks={"a": Timing(us=2.0)})
    assert name_of(target) != name
