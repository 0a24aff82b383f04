"""Which of several selections for one graph are run to see which is the fastest."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from anabranch.fuse import partition
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.kernels.select import Selection
from anabranch.line import Job, _in_sight
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tune import Way

TWO = parse_graph("""
graph two {
  input %x: f16[4,64]
  %a: f16[4,64] = aten.sigmoid.default(%x)
  %b: f16[4,64] = aten.tanh.default(%x)
  return %a, %b
}""")


@pytest.mark.parametrize(
    ("options", "apart"),
    [({}, True), ({"scheduler": "sequential"}, False), ({"max_streams": 1}, False)],
)
def test_selections_are_foreseen_on_as_many_streams_as_there_will_be(
    options: dict[str, Any], apart: bool
) -> None:
    """Two launches side by side are faster than one for both; one after the other they are not."""
    target = resolve("sim:h200", False)
    cuts = [partition(TWO, Trace(), target.spec, True, several) for several in (True, False)]
    ways = [Way(Selection(cut, {}), Trace()) for cut in cuts]
    assert [len(cut.tasks) for cut in cuts] == [1, 2]
    chosen = Options.read({"cache_dir": None, **options}, environment=False)
    job = Job(nn.Identity(), (), {}, target, chosen, None, Trace())

    def us(task: Task) -> float:
        return 30.0 if len(task.body.nodes) > 1 else 20.0

    assert _in_sight(job, ways, us) == [ways[apart]]
