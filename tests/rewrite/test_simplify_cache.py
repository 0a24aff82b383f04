"""Simplified graphs are recalled as they were, of the weights at hand, or made anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ir.test_derive import Folds
from tests.rewrite.graphs import captured

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.key import digest_tensor
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite import passes, simplify, simplify_cache
from anabranch.rewrite.simplify_cache import simplify_or_known
from anabranch.trace import Trace


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache.open(tmp_path) as opened:
        yield opened


@pytest.fixture(name="graph")
def _graph() -> Graph:
    torch.manual_seed(0)
    return captured(Folds().half(), torch.randn(1, 3, 9, 9, dtype=torch.float16))


class Asked:
    """Simplifies, and counts how often the passes ran."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.trace, self.runs = cache, Trace(), 0

    def __call__(self, graph: Graph, kind: str = "cuda", **options: Any) -> Graph:
        def run() -> None:
            self.runs += 1

        self.trace, given = Trace(), Options(**options)
        stepper = Stepper(self.trace, given.check, given.fuel, given.dump)
        return simplify_or_known(graph, stepper, given, kind, self.cache, run)


def test_what_was_simplified_is_recalled_as_it_was(cache: Cache, graph: Graph) -> None:
    asked = Asked(cache)
    first = asked(graph)
    told = asked.trace.events
    second = asked(graph)
    assert asked.runs == 1
    assert second == first == simplify(graph, Stepper(Trace()), Options(), "cuda")
    assert [node.origin for node in second.nodes] == [node.origin for node in first.nodes]
    assert asked.trace.events[1:] == told and asked.trace.events[0].why == "recalled from the cache"
    for a, b in zip(first.constants, second.constants, strict=True):
        assert a.value is not None and b.value is not None
        assert torch.equal(a.value, b.value) and a.value.stride() == b.value.stride()
    assert asked(second) is second and asked.runs == 2, "a simplified graph is another"
    assert asked(first) == first and asked.runs == 2, "and one that was recalled is the same"


def test_other_weights_options_and_files_are_simplified_anew(
    cache: Cache, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(cache)
    asked(graph)
    first, *rest = graph.constants
    assert first.value is not None
    value = first.value + 1
    other = replace(first, value=value, digest=digest_tensor(value))
    asked(replace(graph, constants=(other, *rest)))
    asked(replace(graph, name="other"))
    assert asked.runs == 3
    for options in ({"folding": "exact"}, {"channels_last": False}, {"kernels": "library"}):
        asked(graph, "cuda", **options)
    asked(graph, "cpu")
    assert asked.runs == 7
    asked(graph)
    assert asked.runs == 7
    monkeypatch.setattr("anabranch.kernels.sources.digest", lambda *rooms: "other files")
    asked(graph)
    assert asked.runs == 8


@pytest.mark.parametrize("looks", [{"check": 1}, {"fuel": 3}, {"dump": Path("x")}])
def test_who_looks_at_passes_has_them_run(
    cache: Cache, graph: Graph, tmp_path: Path, looks: dict[str, Any]
) -> None:
    asked = Asked(cache)
    asked(graph)
    looks = {name: tmp_path if name == "dump" else x for name, x in looks.items()}
    asked(graph, "cuda", **looks)
    assert asked.runs == 2


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("aten.rsqrt.default", "aten.no_such_thing.default"),
        ("aten.rsqrt.default(%0)", "aten.rsqrt.default(%7)"),
        ('"steps":[[', '"steps":[[999,0],['),
        ('"made":{', '"made":{"none":99999,'),
        ('"outputs":["', '"outputs":["no_such_'),
        ('{"graph"', '"graph"'),
    ],
)
def test_what_does_not_fit_is_made_anew(cache: Cache, graph: Graph, was: str, now: str) -> None:
    asked = Asked(cache)
    first = asked(graph)
    (key,) = (entry.key for entry in cache.ls("graphs"))
    text = cache.get("graphs", key)
    assert text is not None and was in text
    cache.put("graphs", key, text.replace(was, now))
    second = asked(graph)
    assert second == first and asked.runs == 2
    assert asked(graph) == first and asked.runs == 2


def test_all_options_that_passes_depend_on_are_in_the_key() -> None:
    """They are read in `simplify` alone, and told to passes from there."""
    module = inspect.getmodule(simplify)
    assert module is not None
    read = set(re.findall(r"\boptions\.(\w+)", inspect.getsource(module)))
    assert read == set(simplify_cache.OPTIONS)
    others = (source for source in Path(passes.__file__).parent.glob("*.py"))
    assert not any("options" in source.read_text() for source in others)
