"""Dag files: a JSON file of nodes and edges -> Dag, or an OptionError that says what is wrong.

    {"nodes": 6, "edges": [[0, 1], [0, 2], [1, 3], [2, 3], [3, 5], [4, 5]]}

Nodes have numbers from 0, edges go from what runs first to what waits for it; an edge given twice
counts once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.errors import OptionError, ScheduleError
from anabranch.ir.dag import Dag

MOST_NODES = 5_000
"""Their bound has up to 2,400 digits; Python writes none longer than 4,300."""
EXAMPLE = 'write {"nodes": 3, "edges": [[0, 2], [1, 2]]}'


class DagFile(BaseModel):
    """What a dag file holds: nodes 0 to nodes - 1, and edges between them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    nodes: int = Field(ge=1, le=MOST_NODES)
    edges: list[tuple[int, int]]


def read_dag(path: Path) -> Dag:
    """The dag of a file; OptionError if it is unreadable, empty, cyclic or not a dag at all."""
    try:
        held = DagFile.model_validate_json(path.read_bytes())
        loop = next((u for u, v in held.edges if u == v), None)
        if loop is not None:
            raise ScheduleError(
                f"the edge {loop} -> {loop} is a self loop",
                "a node that waits for itself is a cycle of one",
                "remove the edge",
            )
        return Dag.of(tuple(map(str, range(held.nodes))), held.edges)
    except OSError as broken:
        raise OptionError(
            f"cannot read {path}", broken.strerror or str(broken), "check the path and your rights"
        ) from None
    except ValidationError as broken:
        raise OptionError(f"{path} is not a dag", _first(broken), EXAMPLE) from None
    except ScheduleError as broken:
        raise OptionError(f"{path} is not a dag: {broken.what}", broken.why, broken.next) from None


def _first(broken: ValidationError) -> str:
    error: Any = broken.errors()[0]
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])
