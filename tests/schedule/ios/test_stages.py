from __future__ import annotations

from anabranch.ir.dag import Dag, parse_dag
from anabranch.ir.schedule import text_schedule
from anabranch.schedule.ios.stages import stage_schedule


def test_stages_with_and_without_barrier(diamond: Dag) -> None:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    stages = [((0,),), ((1,), (2,)), ((3,),)]
    assert text_schedule(stage_schedule("x", diamond, stages)) == (
        "schedule x {\n  a @0\n  b @0\n  c @1 after a\n  d @0 after c\n"
        "  stage a\n  stage b | c\n  stage d\n}\n"
    )


def test_a_barrier_waits_for_every_group() -> None:
    """Stages {a | c} {b | d}.

    a --> b
    c --> d
    """
    dag = parse_dag("a -> b\nc -> d")
    at = {name: i for i, name in enumerate(dag.names)}
    stages = [((at["a"],), (at["c"],)), ((at["b"],), (at["d"],))]
    free = stage_schedule("x", dag, stages)
    fenced = stage_schedule("x", dag, stages, barrier=True)
    assert [(w.task, w.stream, w.waits) for w in free.launches] == [
        ("a", 0, ()),
        ("c", 1, ()),
        ("b", 0, ()),
        ("d", 1, ()),
    ]
    assert [w.waits for w in fenced.launches] == [(), (), ("c",), ("a",)]


def test_groups_are_issued_in_turns() -> None:
    """One stage of two groups.

    a --> b --> c
    d --> e
    """
    dag = Dag.of(tuple("abcde"), [(0, 1), (1, 2), (3, 4)])
    schedule = stage_schedule("x", dag, [((0, 1, 2), (3, 4))])
    assert "".join(launch.task for launch in schedule.launches) == "adbec"
    assert schedule.streams == 2 and schedule.waits == 0
