"""A schedule for tasks of which some are put together: legal, and otherwise as it was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ir.dag import Dag
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.local.assignment import Placing, schedule_of
from anabranch.schedule.regroup import adapted


def test_what_is_put_together_runs_where_its_first_ran() -> None:
    """Edges a -> c, b -> d, c and d -> e; {a, b} together."""
    schedule = Schedule(
        "two",
        (
            Launch("a", 0),
            Launch("b", 1),
            Launch("c", 0),
            Launch("d", 1),
            Launch("e", 0, ("d",)),
        ),
    )
    dag = Dag.of(("ab", "c", "d", "e"), [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert adapted(schedule, dag, {"ab": ("b", "a")}).launches == (
        Launch("ab", 0),
        Launch("c", 1, ("ab",)),
        Launch("d", 0),
        Launch("e", 1, ("d",)),
    )


def test_it_waits_for_the_last_of_its_parts() -> None:
    """Edge a -> b, c alone: {b, c} together cannot run before a, though c did."""
    schedule = Schedule("row", (Launch("c", 0), Launch("a", 0), Launch("b", 0)))
    dag = Dag.of(("a", "bc"), [(0, 1)])
    found = adapted(schedule, dag, {"bc": ("b", "c")})
    assert [launch.task for launch in found.launches] == ["a", "bc"]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_it_is_legal_and_without_groups_the_same(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([]))
    dag = Dag.of(tuple(f"n{i}" for i in range(count)), edges)
    streams = tuple(data.draw(st.integers(0, 3)) for _ in range(count))
    before = schedule_of("drawn", dag, Placing(tuple(range(count)), streams))
    assert adapted(before, dag, {}) == before

    levels = [0] * count
    for u, v in sorted(edges, key=lambda edge: edge[1]):
        levels[v] = max(levels[v], levels[u] + 1)
    home = [data.draw(st.integers(0, 1)) for _ in range(count)]
    keys = list(dict.fromkeys(zip(levels, home, strict=True)))
    keys.sort()
    members = {
        f"g{k}": tuple(f"n{i}" for i in range(count) if (levels[i], home[i]) == key)
        for k, key in enumerate(keys)
    }
    number = {key: k for k, key in enumerate(keys)}
    wide = [(number[levels[u], home[u]], number[levels[v], home[v]]) for u, v in edges]
    after = Dag.of(tuple(members), wide)
    found = adapted(before, after, members)
    verify_schedule(found, after)
    assert found.streams <= before.streams
