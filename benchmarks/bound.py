"""How much of the tiles the ranking prunes, and what that costs: exhaustive searches on a GPU.

    PYTHONPATH=src python3 -m benchmarks.bound --seconds 230           search, or go on, and judge
    PYTHONPATH=src python3 -m benchmarks.bound --read FILE             judge what was recorded
    PYTHONPATH=src python3 -m benchmarks.bound --layer 256x14x14       a layer, or some, by name
    PYTHONPATH=src python3 -m benchmarks.bound --of others --most 400  400 tiles of each other layer
    PYTHONPATH=src python3 -m benchmarks.bound --made-up               no GPU: times are made up

Writes bound.json into $OUT, else into benchmarks/results, after each batch, and goes on from there
when it is called again. Exit status 0 if at least 80% of all tiles are pruned and the best of the
rest is within 2% of the best of all in every search, 1 if not, 2 if no search is done yet.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from benchmarks.kernel_timing import Batch, Bench, Times
from benchmarks.layers import BATCHED, LARGE, OTHERS, SAMPLE
from benchmarks.pruning import Try, explore, holds, judge, load, read, save, table

from anabranch.bench.provenance import provenance, versions
from anabranch.costs.recorded import Provenance, load_profile
from anabranch.errors import AnabranchError
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import text_tile
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import ranked

LAYERS = {
    "sample": SAMPLE,
    "large": LARGE,
    "others": OTHERS,
    "batched": BATCHED,
    "all": {**SAMPLE, **LARGE, **OTHERS, **BATCHED},
}


def main() -> int:
    try:
        return run()
    except AnabranchError as failed:
        print(failed, file=sys.stderr)
        return 2


def run() -> int:
    parser = argparse.ArgumentParser(description="what the ranking of tiles prunes and loses")
    parser.add_argument("--seconds", type=float, default=230.0, help="for searching, at most")
    parser.add_argument("--json", type=Path, help="the record, instead of bound.json")
    parser.add_argument("--layer", action="append", default=[], help="part of a layer's name")
    parser.add_argument("--of", choices=LAYERS, default="sample", help="which layers")
    parser.add_argument("--most", type=int, help="so many tiles of each layer, and not all")
    parser.add_argument("--read", type=Path, help="judge this record, search nothing")
    parser.add_argument("--made-up", action="store_true", help="make times up, without a GPU")
    flags = parser.parse_args()
    if flags.most is not None and flags.most < 1:
        parser.error(f"--most {flags.most}: at least one tile is to be tried")
    if flags.read:
        return judged(flags.read)
    if not (flags.made_up or torch.cuda.is_available()):
        print("no CUDA GPU here", file=sys.stderr)
        return 2
    spec, attempt = made_up() if flags.made_up else measured()
    folder = Path(os.environ.get("OUT") or "benchmarks/results")
    path = flags.json or folder / ("bound-made-up.json" if flags.made_up else "bound.json")
    layers = LAYERS["all" if flags.layer else flags.of]
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {
        name: body
        for name, body in layers.items()
        if not flags.layer or any(part in name for part in flags.layer)
    }
    if not asked:
        print(f"no such layer; there are: {'; '.join(layers)}", file=sys.stderr)
        return 2
    record = load(path, spec, Provenance(**provenance(), versions=versions()))
    keep = partial(save, path=path)
    if not explore(record, asked, attempt, flags.seconds, keep, most=flags.most):
        print("out of time: call it again to go on", file=sys.stderr)
    save(record, path)
    return judged(path)


def judged(path: Path) -> int:
    record = read(path)
    judgements = [judge(record, name) for name, search in record.searches.items() if search.timed]
    print(f"{record.spec.name}, {record.provenance.date}")
    print(table(judgements))
    refused = sum(len(search.refused) for search in record.searches.values())
    if refused:
        print(f"{refused} kernels were refused: the record says why", file=sys.stderr)
    if all(judgement.left for judgement in judgements):
        return 2
    return 0 if holds(judgements) else 1


def measured() -> tuple[TargetSpec, Try]:
    bench = Bench.of()
    return bench.spec, bench.times


def made_up() -> tuple[TargetSpec, Try]:
    """Times by the model, each wrong by up to 15% either way."""
    recorded = load_profile("src/anabranch/targets/sim/profiles/h200.json").spec
    spec = replace(recorded, name="no device: these times are made up")

    def attempt(batch: Batch, soon: Batch | None, each: float) -> Times:
        body, variants = batch
        contraction = contraction_of(lower(body))
        assert isinstance(contraction, Contraction)
        us = {text_tile(tile): limit.us for tile, limit in ranked(contraction, spec)}
        wrong = {str(v): zlib.crc32(f"{body.name} {v}".encode()) / 2**32 for v in variants}
        return {v: us[v] * (0.85 + 0.3 * wrong[v]) for v in wrong}

    return spec, attempt


if __name__ == "__main__":
    sys.exit(main())
