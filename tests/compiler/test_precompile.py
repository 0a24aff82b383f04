"""Kernels are compiled for a GPU that is not here, and a target that is there finds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from anabranch.cache import Cache
from anabranch.compiler import precompile
from anabranch.compiler.pipeline import compile_model
from anabranch.compiler.precompile import PrecompileCounts, precompile_kernels
from anabranch.errors import OptionError, TargetError
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.targets.cuda.triton import Triton
from anabranch.trace import Trace
from anabranch.tuning.build import tuner_of
from anabranch.tuning.job import Job
from anabranch.tuning.select import candidates


def job(cache: Cache | None, target: str = "sim:h200", **given: object) -> Job:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.LayerNorm(32)).half().eval()
    options = Options.read({"search": "none", **given}, environment=False)
    args = (torch.zeros(8, 64, dtype=torch.float16),)
    return Job(model, args, {}, resolve(target), options, cache, Trace(quiet=True))


def test_what_selection_tries_is_in_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles kernels")
    with Cache.open(tmp_path) as cache:
        asked = job(cache)
        found = precompile_kernels(asked)
        assert found.kernels == found.compiled > 4 and found.refused == 0
        again = precompile_kernels(job(cache))
        assert again == replace(found, compiled=0)
        # As the target will ask that does run them.
        tuner, trace = tuner_of(asked), Trace(quiet=True)
        cuts = tuner.cuts(compile_model(asked, stop_after="rewrite"), trace)
        tried = tuner.providers, tuner.most, tuner.shortlist
        kernels = candidates(cuts, asked.target.spec, *tried)
        assert sum(kernel.provider == "triton" for kernel in kernels) == found.kernels
        steps = Triton(torch.device("cpu"), asked.target.spec.capability).ready(kernels, cache)
        assert next(steps) == list(range(len(kernels)))  # nobody need compile any of them
        assert list(steps) == []


def test_what_cannot_be_compiled_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Triton):
        def ready(self, kernels, cache=None, trace=None, in_turn=False):  # type: ignore[no-untyped-def]
            self._built |= {self._recipe(self.program(kernel)): "too large" for kernel in kernels}
            yield []
            yield list(range(len(kernels)))

    monkeypatch.setattr(precompile, "Triton", Refusing)
    monkeypatch.setattr(precompile, "available", lambda: True)
    with Cache.open(tmp_path) as cache:
        found = precompile_kernels(job(cache))
    assert (
        found == PrecompileCounts(found.kernels, found.kernels, found.kernels) and found.kernels > 4
    )


def test_where_nothing_can_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    with Cache.open(tmp_path) as cache:
        for asked in (job(cache, "cpu"), job(cache, kernels="library")):
            with pytest.raises(OptionError, match="no kernels to compile for"):
                precompile_kernels(asked)
        with pytest.raises(OptionError, match="no cache to compile into"):
            precompile_kernels(job(None))
        with (
            pytest.warns(RuntimeWarning, match="cannot be used"),
            Cache.open(tmp_path / "file" / "below") as nowhere,
            pytest.raises(OptionError, match="no cache to compile into"),
        ):
            precompile_kernels(job(nowhere))
        monkeypatch.setattr(precompile, "available", lambda: False)
        with pytest.raises(TargetError, match="cannot be compiled"):
            precompile_kernels(job(cache))
