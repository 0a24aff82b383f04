"""History: refusals in groups, changes added up, stages without their parts."""

from __future__ import annotations

from anabranch.report.history import changes, concerns, grouped, stages
from anabranch.trace import Event, Trace


def test_refusals_that_differ_in_names_and_numbers_are_one_group() -> None:
    trace = Trace()
    trace.add("refused", "schedule", "nimble", "the same plan as opara")
    trace.add("refused", "fusion", "conv + relu_4", "relu_4 has 3 consumers")
    trace.add("refused", "fusion", "conv + relu", "relu has 12 consumers")
    trace.add("refused", "tuning", "conv", "relu_4 has 3 consumers")
    found = grouped(trace.events, "refused")
    assert [(group.where, len(group.events)) for group in found] == [
        ("fusion", 2),
        ("schedule", 1),
        ("tuning", 1),
    ]
    assert found[0].why == "… has … consumers", "no example's sentence stands for others"
    assert found[0].alike
    assert not found[1].alike


def test_what_is_left_out_of_a_sentence_is_names_and_numbers_alone() -> None:
    trace = Trace()
    for left, right in (("(128, 128, 1, 7)", "(192, 128, 1, 7)"), ("(8,)", "(9,)")):
        trace.add("refused", "search", "x and y at %a", f"they read {left} and {right}")
    trace.add("refused", "fusion", "%a + %b", "%a is also read by %add, 2.53 us > 2.30 us apart")
    trace.add("refused", "fusion", "%c + %d", "%c is also read by %e, 1 us > 0.5 us apart")
    assert {group.why for group in grouped(trace.events, "refused")} == {
        "they read … and …",
        "… is also read by …, … us > … us apart",
    }


def test_what_several_attempts_tell_is_told_once() -> None:
    trace = Trace()
    for left, right in (("a", "b"), ("c", "d"), ("a", "b")):
        trace.add("refused", "fusion", f"{left} + {right}", f"{left} is also read by {right}")
    (group,) = grouped(trace.events, "refused")
    assert len(group.events) == 3
    assert [(event.what, times) for event, times in group.told.items()] == [
        ("a + b", 2),
        ("c + d", 1),
    ]


def test_one_refusal_is_told_whole() -> None:
    events = [Event("refused", "fusion", "a + b", "a has 3 consumers")]
    assert [group.why for group in grouped(events, "refused")] == ["a has 3 consumers"]


def test_refusals_of_the_search_come_last() -> None:
    trace = Trace()
    for node in ("a", "b"):
        trace.add("refused", "search", f"x + 0 -> x at %{node}", "it broadcasts")
    trace.add("refused", "fusion", "conv + relu", "relu has 3 consumers")
    assert [group.where for group in grouped(trace.events, "refused")] == ["fusion", "search"]


def test_fallbacks_come_before_warnings() -> None:
    events = [Event("warning", "memory", "a", "w"), Event("fallback", "frontend", "b", "f")]
    assert [group.kind for group in concerns(events)] == ["fallback", "warning"]


def test_changes_are_added_up() -> None:
    trace = Trace()
    trace.add("applied", "rewrite", "fold", "310 -> 216 nodes", ms=2.0)
    trace.add("applied", "memory", "net", "arena of 3 B")
    trace.add("applied", "rewrite", "fold", "216 -> 189 nodes", ms=0.5)
    fold, pack = changes(trace.events)
    assert (fold.times, fold.ms, fold.said) == (2, 2.5, "310 -> 189 nodes")
    assert (pack.times, pack.said) == (1, "arena of 3 B")


def test_stages_leave_out_their_parts() -> None:
    trace = Trace()
    with trace.stage("capture"), trace.stage("capture.export"):
        pass
    with trace.stage("capture"):
        pass
    assert [name for name, _ in stages(trace.events)] == ["capture"]
