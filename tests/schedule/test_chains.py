from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, bits
from anabranch.schedule.chains import chains, joined


def test_the_docstring() -> None:
    """Three nodes and two become one each; f has two predecessors.

    a --> b --> c --+
                    +--> f
    d --> e --------+
    """
    dag = Dag.of(tuple("abcdef"), [(0, 1), (1, 2), (3, 4), (2, 5), (4, 5)])
    found = chains(dag)
    assert ["".join(dag.names[v] for v in bits(chain)) for chain in found] == ["abc", "de", "f"]
    assert joined(dag, found) == Dag.of(("a", "d", "f"), [(0, 2), (1, 2)])


@given(st.data())
def test_chains_are_paths_that_cannot_grow(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    found = chains(dag)
    assert sum(found) == (1 << len(dag.names)) - 1
    for chain in found:
        *body, last = bits(chain)
        assert all(dag.succs[v].bit_count() == 1 and dag.succs[v] & chain for v in body)
        after = dag.succs[last]
        assert after.bit_count() != 1 or dag.preds[after.bit_length() - 1].bit_count() > 1
