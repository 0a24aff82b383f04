from __future__ import annotations

import pytest

from anabranch.bench.batches import BatchMatrix
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
        assert set(matrix.rivals or ()) <= set(RIVALS) and set(matrix.dtypes) <= set(DTYPES)
    elif isinstance(matrix, BatchMatrix):
        assert matrix.scheduler in SCHEDULERS and matrix.dtype in DTYPES
    else:
        assert set(matrix.schedulers) <= set(SCHEDULERS) and matrix.kernels == "library"


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_a_table_on_other_models(paper: str, table: str) -> None:
    matrix = asked_as(reproduction(paper, table).matrix, ("zoo:sru",), "bf16", "sim:h200")
    assert matrix.models == ("zoo:sru",) and matrix.target == "sim:h200"
    dtypes = [matrix.dtype] if isinstance(matrix, BatchMatrix) else list(matrix.dtypes)
    assert dtypes == ["bf16"]


def test_unknown_papers_and_tables() -> None:
    with pytest.raises(OptionError, match="halide"):
        reproduction("halide", "systems")
    with pytest.raises(OptionError, match="table of ios"):
        reproduction("ios", "systems")
