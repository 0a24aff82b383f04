from __future__ import annotations

import time

import pytest

from anabranch.ir.dag import Dag
from anabranch.schedule.ios.schedule_space import Space, space, spaces


@pytest.mark.parametrize(
    ("block", "row"),
    [
        ("inception_e", Space(11, 6, 25649, 180, 4_871, 3_757_392)),
        ("randwire", Space(33, 8, 3682643992, 5420, 1_170_663, 91_973_106_270_886_052_032_664)),
        ("nasnet_first_cell", Space(18, 8, 5175334, 2200, 307_841, 7_150_961_274_600)),
        ("fire", Space(6, 3, 216, 12, 51, 131)),
    ],
)
def test_table_1(block: str, row: Space, request: pytest.FixtureRequest) -> None:
    """The paper's Table 1 prints 25.6e3 4.9e3 3.8e6, 3.7e9 1.2e6 9.2e22, 5.2e6 3.1e5 7.2e12, 216
    51 1.3e2."""
    dag: Dag = request.getfixturevalue(block)
    start = time.process_time()
    assert space(dag) == row
    assert time.process_time() - start < 10


def test_figure_5() -> None:
    """The paper's example: c is alone.

    a --> b
    c
    """
    found = space(Dag.of(("a", "b", "c"), [(0, 1)]))
    assert (found.states, found.transitions) == (5, 12)


def test_too_many_to_count() -> None:
    """Thirty independent nodes; and so many endings though few states."""
    dag = Dag.of(tuple(f"n{i}" for i in range(30)), [])
    assert space(dag).states is None
    few = Dag.of(tuple(f"n{i}" for i in range(12)), [])
    assert space(few, most=10_000) == Space(12, 12, 3**12, 4095, None, None)
    assert space(few).transitions == 3**12 - 2**12


def test_a_long_chain_is_counted_in_seconds() -> None:
    """A thousand nodes: half a million endings, each looked at once."""
    n = 1000
    dag = Dag.of(tuple(map(str, range(n))), [(i, i + 1) for i in range(n - 1)])
    start = time.process_time()
    assert space(dag) == Space(n, 1, (n + 2) * (n + 1) // 2, n, n * (n + 1) // 2, 2 ** (n - 1))
    assert time.process_time() - start < 10


def test_blocks_of_a_network(googlenet: Dag) -> None:
    found = spaces(googlenet)
    assert len(found) == 9 and len({row for _, row in found}) == 1
    assert found[0][1].nodes == 14 and found[0][1].width == 4
