"""What a saved plan says of the sizes of its calls: SizedCalls <-> plain data, from anybody.

{"dimensions": [{"name": "batch", "most": 64}], "extents": [[{"axis": 0, "dimension": 0}]],
"proofs": [{"zeros": [false], "results": [[[0, 1, 1]]], "apart": true}], "at": [8]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.cache.codec import from_plain, to_plain, values
from anabranch.compiled.sized import SizedCalls
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.frontend.padding_proof import PaddingProof
from anabranch.ir.refused import Refused

KEY = "sizes"
"""Under which name facts of a saved plan have them."""
LARGEST_SIZE = 1 << 40
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class SavedSizes:
    """`SizedCalls`, with the sizes of one bucket."""

    dimensions: tuple[Dimension, ...]
    extents: tuple[tuple[Extent, ...], ...]
    proofs: tuple[PaddingProof | Refused, ...]
    at: tuple[int, ...]


CODEC = values(SavedSizes, strict=True)


def written(sized: SizedCalls | None, at: Sequence[int]) -> Any:
    """As JSON has it, with the sizes of one bucket."""
    if sized is None:
        return None
    saved = SavedSizes(sized.shapes.dimensions, sized.shapes.extents, sized.proofs, tuple(at))
    return to_plain(CODEC, saved)


def read_back(
    plain: Any, ranks: Sequence[int], results: int
) -> tuple[SizedCalls | None, tuple[int, ...]]:
    """Reads back what `written` wrote of a plan whose tensors have so many axes, and which has so
    many leaves of results; nothing where it says something else."""
    try:
        saved = from_plain(CODEC, plain)
    except ValueError:
        return None, ()
    if not _fits(saved, ranks, results):
        return None, ()
    return SizedCalls(DynamicShapes(saved.dimensions, saved.extents), saved.proofs), saved.at


def of_facts(
    facts: Mapping[str, Any], ranks: Sequence[int], results: int
) -> tuple[SizedCalls | None, tuple[int, ...]]:
    """What facts of a saved plan say of sizes."""
    return read_back(facts.get(KEY), ranks, results)


def _fits(saved: SavedSizes, ranks: Sequence[int], results: int) -> bool:
    """Whether all that it says may be, of such a plan."""
    count = len(saved.dimensions)
    if not 0 < count == len(saved.proofs) == len(saved.at) or len(saved.extents) != len(ranks):
        return False
    sizes = [*saved.at, *(dimension.least for dimension in saved.dimensions)]
    sizes += [dimension.most for dimension in saved.dimensions if dimension.most is not None]
    for rank, extents in zip(ranks, saved.extents, strict=True):
        if not all(0 <= e.axis < rank and 0 <= e.dimension < count for e in extents):
            return False
        sizes += [size for e in extents for size in (e.times, abs(e.plus) + 1)]
    for proof in saved.proofs:
        if isinstance(proof, Refused):
            continue
        rows = [row for at in proof.results for row in at]
        if (len(proof.zeros), len(proof.results)) != (len(ranks), results):
            return False
        if any(outer == inner == 0 for _, outer, inner in rows):
            return False
        if not all(0 <= place < len(ranks) for place, _ in proof.picked):
            return False
        sizes += [abs(more) + 1 for _, more in proof.picked]
        if proof.marked is not None:
            if not 0 <= proof.marked.place < len(ranks):
                return False
            sizes += [proof.marked.axis + 1, *(hidden.node + 1 for hidden in proof.marked.hidden)]
        sizes += [] if proof.most is None else [proof.most]
        sizes += [proof.least, *(size + 1 for row in rows for size in row)]
    named = all(len(dimension.name) <= LONGEST_NAME for dimension in saved.dimensions)
    return named and all(1 <= size <= LARGEST_SIZE for size in sizes)
