"""Where a model is cut, as text: golden by hand."""

from __future__ import annotations

from typing import Any

from anabranch.report.cuts import cuts_text

STEPS: list[dict[str, Any]] = [
    {
        "kind": "plan",
        "plan": 1,
        "operators": ["addmm", "relu", "addmm", "gt", "sum"],
        "us": 12.5,
        "spread_us": 0.1,
        "source": "measured",
    },
    {
        "kind": "eager",
        "plan": None,
        "operators": ["nonzero", "index"],
        "us": None,
        "spread_us": None,
        "source": None,
    },
]
CUT: dict[str, Any] = {
    "operator": "nonzero",
    "step": 2,
    "origin": "model.py:26 in forward",
    "why": "the size of its result depends on values",
    "checks": [{"holds": "nonzero.shape[0] != 0", "origin": "model.py:27 in forward"}],
}
FACTS: dict[str, Any] = {
    "model": "Router",
    "device": "NVIDIA H200",
    "forms": [{"inputs": ["x: f32[32,16]"], "paths": [{"steps": STEPS, "cuts": [CUT, CUT]}]}],
    "plans": 1,
    "read_us": 11.0,
    "unseen": "eager",
    "unseen_calls": 2,
}
TEXT = """\
Router on NVIDIA H200
  cut at 1 place, where it asks for values: 1 plan

Calls of (x: f32[32,16])
  1  plan 1  12.5 us measured  addmm, relu, gt and 1 more
  2  eager                     nonzero, index
  cut in step 2 at model.py:26 in forward: nonzero, 2 times: the size of its result depends on
      values
    this way is taken where nonzero.shape[0] != 0 (model.py:27 in forward)

An eager step launches its operators one by one, and waits for what it asks: to read a number that
is ready takes 11.0 us. The times above include it.
A call that goes another way runs the model itself: 2 calls so far."""


def test_steps_cuts_and_costs_are_told() -> None:
    assert cuts_text(FACTS) == TEXT


def test_several_ways_are_numbered_and_many_conditions_counted() -> None:
    checks = [{"holds": f"item_{i} == True", "origin": ""} for i in range(7)]
    path = {"steps": STEPS, "cuts": [{**CUT, "checks": checks}]}
    form = {"inputs": ["x: f32[4]"], "paths": [path, path]}
    told = cuts_text({**FACTS, "forms": [form], "read_us": None, "unseen": "refuse"})
    assert "the way of example 2" in told and "and where 3 more conditions hold" in told
    assert "item_3 == True" in told and "item_4" not in told
    assert "is refused with an InputError" in told and "to read a number" not in told
