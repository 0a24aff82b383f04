from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, bits
from anabranch.schedule.blocks import blocks
from anabranch.schedule.chains import chains


def test_cut_where_nothing_else_can_run() -> None:
    """
                  +--> b --+
    x --> conv -->|        +--> concat --> pool
                  +--> c --+
    """
    dag = Dag.of(
        ("x", "conv", "b", "c", "concat", "pool"), [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]
    )
    found = ["".join(dag.names[v] + " " for v in bits(mask)) for mask in blocks(dag)]
    assert found == ["x ", "conv ", "b c concat ", "pool "]


def test_inside_a_skip_connection() -> None:
    """Each node runs alone although the value of a passes b and c by.

    a --> b --> c --> add
    +-----------------^
    """
    dag = Dag.of(("a", "b", "c", "add"), [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert blocks(dag) == (1, 2, 4, 8)


def test_googlenet_has_nine_modules(googlenet: Dag) -> None:
    """Each module ends with its concat."""
    wide = [mask for mask in blocks(googlenet) if mask.bit_count() > 1]
    assert [mask.bit_count() for mask in wide] == [14] * 9


def test_cells_that_read_two_cells_before() -> None:
    """As in NASNet a cell reads the two before it; each is two nodes and a concat.

    c0 --> c1 --> c2 --> c3 ...      c1 reads c0 and c-1, c2 reads c1 and c0, ...
    """
    edges: list[tuple[int, int]] = []
    before, last = 0, 1
    for cell in range(30):
        left, right, concat = 2 + 3 * cell, 3 + 3 * cell, 4 + 3 * cell
        edges += [(before, left), (last, right), (left, concat), (right, concat)]
        before, last = last, concat
    dag = Dag.of(tuple(f"n{i}" for i in range(92)), edges)
    assert len(blocks(dag, max_nodes=None)) == 1
    parts = blocks(dag, max_nodes=50)
    assert {mask.bit_count() for mask in parts} <= {1, 2, 3, 4}


@given(st.data())
def test_blocks_partition_the_dag_in_order(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    max_nodes = data.draw(st.none() | st.integers(1, 5))
    done = 0
    for block in blocks(dag, max_nodes):
        assert block and not block & done
        done |= block
        assert all(not dag.preds[v] & ~done for v in bits(block))
        assert max_nodes is None or len(chains(dag.restrict(block))) <= max_nodes
    assert done == (1 << len(dag.names)) - 1
