"""The result in a few numbers, whatever the facts leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from anabranch.ir.types import TensorType
from anabranch.report.headline import MEASURED_BY, Baseline, headline, one_line
from anabranch.report.parts import ReportParts

Build = Mapping[str, Callable[..., ReportParts]]


def test_facts_come_first(parts: Build) -> None:
    facts = {
        "latency_ms": 0.5,
        "latency_source": "measured",
        "baselines": {"eager": 1.0, "broken": None},
        "streams": 9,
        "peak_bytes": 77,
        "max_relative_error": {"out": 1e-3},
        "allowed_relative_error": [2e-3],
    }
    head = headline({**parts["small"](), "facts": facts})
    assert (head.us, head.source, head.streams, head.peak) == (500.0, "measured", 9, 77)
    assert head.baselines == (Baseline("eager", 1000.0, 2.0),)
    assert head.errors == ((1e-3, 2e-3),)
    assert head.peak_sequential is None


def test_a_line_has_the_interval_of_a_forecast(parts: Build) -> None:
    plan = parts["small"]()["plan"]
    facts = {"latency_ms": 0.0548, "latency_source": "estimated"}
    assert ": 0.0548 ms estimated, 6 kernels" in one_line(facts, plan)
    forecast = {"low_ms": 0.0493, "high_ms": 0.0604}
    line = one_line({**facts, "forecast": forecast}, plan)
    assert ": 0.0548 ms estimated (49.3 us to 60.4 us), 6 kernels" in line


def test_the_plan_answers_where_facts_are_silent(parts: Build) -> None:
    given = parts["small"]()
    head = headline({**given, "facts": {}})
    assert (head.us, head.source) == (given["timelines"][1][1].latency, "measured")
    assert head.waits == given["plan"].schedule.waits
    assert head.peak == given["plan"].peak_bytes
    predicted = headline({**given, "facts": {}, "timelines": given["timelines"][:1]})
    assert predicted.us == given["schedules"][0][1].us
    assert predicted.source == "recorded"
    nothing = headline({**given, "facts": {}, "timelines": [], "schedules": []})
    assert nothing.us is None


def test_the_batch_is_what_all_inputs_begin_with(parts: Build) -> None:
    given = parts["small"]()
    plan = given["plan"]
    (first, *_) = plan.tasks.inputs
    assert headline({**given, "facts": {}}).batch == first.type.shape[0]
    assert headline({**given, "facts": {"batch": 7}}).batch == 7
    other = replace(first, name="other", type=TensorType((99, 2), first.type.dtype))
    number = replace(first, name="number", type=TensorType((), first.type.dtype))
    for more, batch in ((number, first.type.shape[0]), (other, None)):
        tasks = replace(plan.tasks, inputs=(*plan.tasks.inputs, more))
        found = headline({**given, "facts": {}, "plan": replace(plan, tasks=tasks)})
        assert found.batch == batch


def test_calls_are_compared_with_calls(parts: Build) -> None:
    facts = {
        "latency_ms": 0.5,
        "called_ms": 0.8,
        "called_beside": ["inductor"],
        "baselines": {"inductor": 1.6, "sequential": 0.6},
    }
    inductor, sequential = headline({**parts["small"](), "facts": facts}).baselines
    assert (inductor.speedup, sequential.speedup) == (2.0, 1.2)


def test_what_nobody_timed_is_said_to_be_so(parts: Build) -> None:
    given = parts["small"]()
    facts = {"baselines": {"eager": 2.0}, "called_ms": 0.25}
    head = headline({**given, "facts": facts})
    assert head.called == 250.0
    assert head.unmeasured == (("inductor", MEASURED_BY),)
    failed = {**facts, "not_measured": {"inductor": "no compiler", "torchscript": "it broke"}}
    found = headline({**given, "facts": failed}).unmeasured
    assert found == (("inductor", "no compiler"), ("torchscript", "it broke"))
    timed = {"baselines": {"eager": 2.0, "inductor": 1.0}, "not_measured": "?"}
    assert headline({**given, "facts": timed}).unmeasured == ()
    plan = replace(given["plan"], spec=replace(given["plan"].spec, simulated=True))
    why = "nothing runs on a simulated GPU"
    simulated = headline({**given, "plan": plan, "facts": {}})
    assert simulated.unmeasured == (("eager", why), ("inductor", why)) and simulated.called is None
