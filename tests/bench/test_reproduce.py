from __future__ import annotations

import pytest

from anabranch.bench import training_rivals
from anabranch.bench.batches import BatchMatrix
from anabranch.bench.jobs import ScheduleMatrix, scheduler_options
from anabranch.bench.reproduce import REPRODUCTIONS, Reproduction, asked_as, reproduction
from anabranch.bench.result_rows import BenchmarkMatrix, variant
from anabranch.bench.rivals import RIVALS
from anabranch.errors import OptionError
from anabranch.models.load import DTYPES
from anabranch.models.zoo import ZOO
from anabranch.schedule import SCHEDULERS

TABLES = [(paper, table) for paper, tables in REPRODUCTIONS.items() for table in tables]


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_table_names_what_there_is(paper: str, table: str) -> None:
    found = reproduction(paper, table)
    assert isinstance(found, Reproduction) and found.says
    matrix = found.matrix
    assert matrix.models and all(model.removeprefix("zoo:") in ZOO for model in matrix.models)
    if isinstance(matrix, BenchmarkMatrix):
        assert all(variant(system) for system in matrix.systems)
        rivals = training_rivals.RIVALS if found.training else RIVALS
        assert set(matrix.rivals or ()) <= set(rivals) and set(matrix.dtypes) <= set(DTYPES)
    elif isinstance(matrix, BatchMatrix):
        assert matrix.scheduler in SCHEDULERS and matrix.dtype in DTYPES
    else:
        named = {scheduler_options(name).scheduler for name in matrix.schedulers}
        assert named <= set(SCHEDULERS) and matrix.kernels == "library"


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_a_table_on_other_models(paper: str, table: str) -> None:
    matrix = asked_as(reproduction(paper, table).matrix, ("zoo:sru",), "bf16", "sim:h200")
    assert matrix.models == ("zoo:sru",) and matrix.target == "sim:h200"
    dtypes = [matrix.dtype] if isinstance(matrix, BatchMatrix) else list(matrix.dtypes)
    assert dtypes == ["bf16"]


def test_a_part_of_a_table() -> None:
    """By batch and by row; of a table of devices, others."""
    whole = reproduction("deepcuts", "inference").matrix
    part = asked_as(whole, (), None, "cpu", (8,), ("xla", "deepcuts"))
    assert isinstance(part, BenchmarkMatrix) and part.models == whole.models
    assert (part.batches, part.rivals, part.systems) == ((8,), ("xla",), ("deepcuts",))
    assert not part.ours
    ours = asked_as(reproduction("ios", "frameworks").matrix, (), None, "cpu", (), ("anabranch",))
    assert isinstance(ours, BenchmarkMatrix) and ours.ours and not ours.systems
    pruned = "ios-paper+max_group_size=1+max_groups=3"
    one = asked_as(reproduction("ios", "pruning").matrix, (), None, "cpu", (), (pruned,))
    assert isinstance(one, ScheduleMatrix) and one.schedulers == (pruned,) and one.apart
    profile = "sim:other.json"
    other = asked_as(reproduction("ios", "devices").matrix, (), None, "cpu", (), (profile,))
    assert isinstance(other, BatchMatrix) and other.devices == (profile,)
    with pytest.raises(OptionError, match="taso"):
        asked_as(whole, (), None, "cpu", (), ("taso",))


def test_unknown_papers_and_tables() -> None:
    with pytest.raises(OptionError, match="halide"):
        reproduction("halide", "systems")
    with pytest.raises(OptionError, match="table of ios"):
        reproduction("ios", "systems")
