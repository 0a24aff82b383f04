"""IOS's operators: small graphs as text, then the four rows of its Table 1 from whole networks."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.networks import each, tiny, with_tiny

from anabranch.ir.dag import Dag, bits, text_dag
from anabranch.ir.key import task_text
from anabranch.ir.ops import info
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_graph
from anabranch.schedule.blocks import blocks
from anabranch.schedule.ios.operators import operators
from anabranch.schedule.ios.schedule_space import Space, space

T = "f32[1,8,6,6]"
CONSTANTS = """
const %dw: f32[8,1,3,3] = 01
const %pw: f32[8,8,1,1] = 02
const %full: f32[8,8,3,3] = 03
const %half: f32[4,8,1,1] = 04
"""


def conv(name: str, x: str, w: str = "full", t: str = T) -> str:
    pad = 0 if w in ("pw", "half") else 1
    groups = 8 if w == "dw" else 1
    return (
        f"%{name}: {t} = aten.convolution.default"
        f"(%{x}, %{w}, None, [1, 1], [{pad}, {pad}], [1, 1], False, [0, 0], {groups})\n"
    )


def relu(name: str, x: str) -> str:
    return f"%{name}: {T} = aten.relu.default(%{x})\n"


def add(name: str, x: str, y: str) -> str:
    return f"%{name}: {T} = aten.add.Tensor(%{x}, %{y})\n"


def cat(name: str, *xs: str, t: str = T) -> str:
    return f"%{name}: {t} = aten.cat.default([{', '.join('%' + x for x in xs)}], 1)\n"


def dag_text(*lines: str, returns: str) -> str:
    body = f"input %x: {T}\n{CONSTANTS}{''.join(lines)}return {returns}\n"
    used = [line for line in body.splitlines() if "const" not in line or _used(line, lines)]
    return text_dag(operators(parse_graph("graph g {\n" + "\n".join(used) + "\n}")).dag)


def _used(constant: str, lines: tuple[str, ...]) -> bool:
    name = constant.split()[1].rstrip(":")
    return any(f"{name}," in line for line in lines)


def test_relu_depthwise_pointwise_is_one() -> None:
    """And ends where the next ReLU begins, or one later: the dag is the same."""
    found = dag_text(
        *(relu("r1", "x"), conv("d1", "r1", "dw"), conv("p1", "d1", "pw")),
        *(relu("r2", "p1"), conv("d2", "r2", "dw"), conv("p2", "d2", "pw")),
        returns="%p2",
    )
    assert found == "d1 -> d2\nd2\n"


def test_a_depthwise_convolution_that_two_read_stays_alone() -> None:
    found = dag_text(
        *(conv("d", "x", "dw"), conv("p", "d", "pw"), conv("q", "d", "pw")), returns="%p, %q"
    )
    assert found == "d -> p q\np\nq\n"


def test_two_full_convolutions_are_two() -> None:
    assert dag_text(conv("a", "x"), conv("b", "a", "pw"), returns="%b") == "a -> b\nb\n"


def test_what_several_read_is_computed_by_each() -> None:
    """The ReLU of a value that others read too costs nobody a launch.

    a --> relu --> b, c        a --> d
    """
    found = dag_text(
        *(conv("a", "x"), relu("r", "a"), conv("b", "r"), conv("c", "r"), conv("d", "a")),
        returns="%b, %c, %d",
    )
    assert found == "a -> b c d\nb\nc\nd\n"


def test_an_inner_sum_is_part_of_its_reader() -> None:
    """The sum is gathered by c; b is read by another one too.

    a --> + --> relu --> c
    b ----^ --> d
    """
    found = dag_text(
        *(conv("a", "x"), conv("b", "x"), add("s", "a", "b"), relu("r", "s"), conv("c", "r")),
        conv("d", "b"),
        returns="%c, %d",
    )
    assert found == "a -> c\nb -> c d\nc\nd\n"


def test_a_sum_that_two_read_is_an_operator() -> None:
    found = dag_text(
        *(conv("a", "x"), conv("b", "x"), add("s", "a", "b"), conv("c", "s"), conv("d", "s")),
        conv("e", "b"),
        returns="%c, %d, %e",
    )
    assert found == "a -> s\nb -> s e\ns -> c d\nc\nd\ne\n"


def test_the_sum_that_ends_a_block_is_an_operator() -> None:
    found = dag_text(
        *(conv("a", "x"), conv("b", "x"), add("s", "a", "b"), relu("r", "s"), conv("c", "r")),
        returns="%c",
    )
    assert found == "a -> s\nb -> s\ns -> c\nc\n"


def test_a_concatenation_within_another_is_part_of_it() -> None:
    h, q = "f32[1,4,6,6]", "f32[1,12,6,6]"
    found = dag_text(
        *(conv("a", "x", "half", h), conv("b", "x", "half", h), conv("c", "x", "half", h)),
        *(cat("ab", "a", "b"), cat("abc", "ab", "c", t=q)),
        returns="%abc",
    )
    assert found == "a -> abc\nb -> abc\nc -> abc\nabc\n"


def test_a_concatenation_in_a_sum_is_an_operator() -> None:
    h = "f32[1,4,6,6]"
    found = dag_text(
        *(conv("a", "x", "half", h), conv("b", "x", "half", h), conv("c", "x")),
        *(cat("ab", "a", "b"), add("s", "ab", "c")),
        returns="%s",
    )
    assert found == "a -> ab\nb -> ab\nc -> s\nab -> s\ns\n"


def test_what_nobody_needs_is_no_operator() -> None:
    assert dag_text(conv("a", "x"), conv("b", "x", "pw"), returns="%b") == "b\n"


def test_an_operator_is_a_task_with_all_it_computes() -> None:
    text = f"input %x: {T}\nconst %pw: f32[8,8,1,1] = 02\n" + conv("a", "x", "pw")
    text += relu("r", "a") + conv("b", "r", "pw") + conv("c", "r", "pw") + add("s", "a", "b")
    found = operators(parse_graph(f"graph g {{\n{text}return %s, %c\n}}"))
    bodies = {task.name: [node.name for node in task.body.nodes] for task in found.tasks}
    assert bodies == {"a": ["a"], "b": ["r", "b"], "c": ["r", "c"], "s": ["s"]}
    b = next(task for task in found.tasks if task.name == "b")
    assert (b.reads, b.writes) == (("a",), ("b",)) and "aten.relu" in task_text(b)


TABLE_1 = [
    ("squeezenet_bypass", Space(6, 3, 216, 12, 51, 131)),
    ("inception_v3", Space(11, 6, 25_649, 180, 4_871, 3_757_392)),
    (
        "randwire_ios",
        Space(33, 8, 3_682_643_992, 5_420, 1_170_663, 91_973_106_270_886_052_032_664),
    ),
    ("nasnet_ios", Space(18, 8, 5_175_334, 2_200, 307_841, 7_150_961_274_600)),
]


def parts_of(name: str) -> tuple[Dag, ...]:
    """The blocks of a tiny network: those of the large one, but fewer normal cells of NASNet."""
    found = operators(tiny(name).captured.graph).dag
    parts = [found.restrict(mask) for mask in blocks(found, compound=True)]
    return tuple(part for part in parts if len(part.names) > 1)


@pytest.mark.parametrize(
    ("name", "row"), [pytest.param(*pair, marks=with_tiny(pair[0])) for pair in TABLE_1]
)
def test_table_1_from_the_network(name: str, row: Space) -> None:
    """The block with the most transitions, as in the paper."""
    rows = [space(part) for part in set(parts_of(name))]
    assert all(each.transitions is not None for each in rows)
    assert max(rows, key=lambda each: each.transitions or 0) == row


@with_tiny("nasnet_ios")
def test_parts_of_nasnet_are_its_cells() -> None:
    """Two stems, then two normal cells three times with a reduction between. The first cell after a
    reduction or stem has 18 operators, as IOS's, the second stem 21."""
    sizes = [len(part.names) for part in parts_of("nasnet_ios")]
    assert sizes == [18, 21, *(18, 16), *(19, 18, 16), *(19, 18, 16)]


@pytest.mark.parametrize("name", each(name for name, _ in TABLE_1))
def test_operators_keep_the_work_and_the_order(name: str) -> None:
    """Every contraction and pool is in exactly one operator; one operator is before another exactly
    if its result is needed there."""
    graph = tiny(name).captured.graph
    found = operators(graph)
    for task in found.tasks:
        verify_graph(task.body)
    held = Counter(node.name for task in found.tasks for node in task.body.nodes)
    assert set(held) == {node.name for node in graph.nodes}
    assert all(held[node.name] == 1 for node in graph.nodes if info(node.op).kind == "contract")
    needed: dict[str, set[str]] = {}
    for node in graph.nodes:
        reads = {use for use in node.uses if use in needed}
        needed[node.name] = reads.union(*(needed[use] for use in reads))
    last = [task.writes[0] for task in found.tasks]
    for i, (task, ancestors) in enumerate(zip(found.tasks, found.dag.ancestors(), strict=True)):
        before = needed[last[i]]
        assert {last[u] for u in bits(ancestors)} == before.intersection(last), task.name
