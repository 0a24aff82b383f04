"""Where a model is cut and what that costs, as plain text: facts -> str.

Router on NVIDIA H200
  cut at 1 place, where it asks for values: 1 plan
Calls of (x: f32[32,16]), the way of example 1
  1  plan 1  addmm, softmax, topk and 5 more           14.2 us measured
  2  eager   nonzero, index, addmm and 9 more          86.0 us measured
  cut in 2   router.py:26 in forward: nonzero: the size of its result depends on values
             this way is taken where nonzero.shape[0] != 0 (router.py:27 in forward)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.report.lines import WIDTH, columns, wrapped
from anabranch.report.units import count, duration

CHECKS = 4
"""Conditions of a cut that are named, and states of a model."""
NAMED = 3
"""Operators of a step that are named."""
UNSEEN = {
    "eager": "runs the model itself",
    "refuse": "is refused with an InputError",
}


def cuts_text(facts: Mapping[str, Any]) -> str:
    """Each way through the model: its steps with what they take, and its cuts with their reason."""
    lines: list[str] = []
    paths = [(form, path) for form in facts["forms"] for path in form["paths"]]
    cuts = {cut["origin"] for _, path in paths for cut in path["cuts"]}
    plans = count(facts["plans"], "plan")
    lines += wrapped(f"{facts['model']} on {facts['device']}", "", "  ")
    places = count(len(cuts), "place")
    lines += wrapped(f"cut at {places}, where it asks for values: {plans}")
    if states := facts.get("states", []):
        more = f" and {len(states) - CHECKS} more" if len(states) > CHECKS else ""
        told = f"{', '.join(states[:CHECKS])}{more}"
        lines += wrapped(f"writes to {told}: copied there at the end of each call")
    for form in facts["forms"]:
        for number, path in enumerate(form["paths"], 1):
            which = f", the way of example {number}" if len(form["paths"]) > 1 else ""
            lines += ["", f"Calls of ({', '.join(form['inputs'])}){which}"[:WIDTH]]
            lines += _steps(path)
            lines += _cuts(path)
    lines += ["", *_costs(facts)]
    return "\n".join(lines)


def _steps(path: Mapping[str, Any]) -> list[str]:
    table = []
    for number, step in enumerate(path["steps"], 1):
        what = f"plan {step['plan']}" if step["plan"] else "eager"
        took = "" if step["us"] is None else f"{duration(step['us'])} {step['source']}"
        table.append((str(number), what, took, _operators(step["operators"])))
    return columns(table, "><<<", (4, 10, 24))


def _operators(names: list[str]) -> str:
    named = list(dict.fromkeys(names))
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{', '.join(named[:NAMED])}{more}"


def _cuts(path: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cut in path["cuts"]:
        place = cut["step"], cut["origin"], cut["operator"], cut["why"]
        groups.setdefault(place, []).append(cut)
    for (step, origin, name, why), cuts in groups.items():
        times = f", {len(cuts)} times" if len(cuts) > 1 else ""
        where = origin or "where no line is known"
        lines += wrapped(f"cut in step {step} at {where}: {name}{times}: {why}")
        told = dict.fromkeys(_check(check) for cut in cuts for check in cut["checks"])
        for condition in list(told)[:CHECKS]:
            lines += wrapped(f"this way is taken where {condition}", "    ")
        if len(told) > CHECKS:
            lines += wrapped(f"and where {len(told) - CHECKS} more conditions hold", "    ")
    return lines


def _check(check: Mapping[str, str]) -> str:
    return f"{check['holds']} ({check['origin']})" if check["origin"] else check["holds"]


def _costs(facts: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if facts["read_us"] is not None:
        told = (
            "An eager step launches its operators one by one, and waits for what it asks: to read "
            f"a number that is ready takes {duration(facts['read_us'])}. The times above include "
            "it."
        )
        lines += wrapped(told, "", "")
    policy = UNSEEN[facts["unseen"]]
    lines += wrapped(
        f"A call that goes another way {policy}: {count(facts['unseen_calls'], 'call')} so far.",
        "",
        "",
    )
    return lines
