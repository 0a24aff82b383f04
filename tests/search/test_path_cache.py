"""What a search found is found again: for the same question, with the weights at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as File

import torch
from tests.rewrite.graphs import read

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.options import Options
from anabranch.search.engine.backtracking import Ran, RewriteStep
from anabranch.search.path_cache import find, store
from anabranch.search.path_cache import key as question
from anabranch.search.result import Allowed, Path, Round
from anabranch.targets import resolve

BEGIN = """graph g {
  input %x: f32[3]
  const %w: f32[3] = w
  const %v: f32[3] = v
  %a: f32[3] = aten.mul.Tensor(%x, %w)
  %b: f32[3] = aten.mul.Tensor(%x, %v)
  %out: f32[3] = aten.add.Tensor(%a, %b)
  return %out
}"""
FOUND = """graph g {
  input %x: f32[3]
  const %w: f32[3] = w
  const %v: f32[3] = v
  %add: f32[3] = aten.add.Tensor(%w, %v)
  %out: f32[3] = aten.mul.Tensor(%x, %add)
  return %out
}"""
OPTIONS = Options.read({}, environment=False)
TARGET = resolve("sim:h200")


def path(begin: Graph) -> Path:
    found = read(FOUND)
    bound = replace(found, constants=begin.constants)
    ran = Ran(Cost(4.0, "measured", 0.5), Cost(3.0, "measured", 0.25), 2)
    step = RewriteStep(
        "x*s + x*t -> x*(s + t)", ("out", "a", "b"), Price(9.0, 8.0), Price(6.0, 8.0), ran
    )
    return Path(
        begin, bound, (Round((step,), Cost(9, "measured", 0.1), Cost(6, "measured"), bound),)
    )


def test_a_path_comes_back_equal_and_bound_to_the_weights_at_hand(tmp_path: File) -> None:
    begin = read(BEGIN)
    key = question(begin, OPTIONS, TARGET)
    with Cache.open(tmp_path) as cache:
        assert find(cache, key, begin) is None
        store(cache, key, path(begin))
        assert find(cache, key, begin) == path(begin)
        one = path(begin)
        two = replace(one, rounds=(replace(one.rounds[0], graph=begin), *one.rounds))
        store(cache, "two", two)
        assert find(cache, "two", begin) == two, "each round with the graph after it"
        trained = tuple(
            replace(c, value=torch.zeros(3), digest=c.name * 2) for c in begin.constants
        )
        later = replace(begin, constants=trained)
        assert question(later, OPTIONS, TARGET) == key
        again = find(cache, key, later)
        short = replace(path(begin), cut_short="budget", undone=0.5, unfinished=True)
        short = replace(short, allowed=Allowed(60.0, None))
        store(cache, key, short)
        assert find(cache, key, begin) == short
    assert again is not None and again.begin is later
    assert [c.digest for c in again.graph.constants] == ["ww", "vv"]
    assert find(None, key, begin) is None


def test_other_questions() -> None:
    begin = read(BEGIN)
    key = question(begin, OPTIONS, TARGET)
    same = tuple(replace(c, digest="same") for c in begin.constants)
    others = [
        question(replace(begin, constants=same), OPTIONS, TARGET),  # a search may use that
        question(begin, OPTIONS.model_copy(update={"search": "taso"}), TARGET),
        question(begin, OPTIONS, resolve("cpu")),
        question(read(FOUND), OPTIONS, TARGET),
    ]
    assert len({key, *others}) == 5
    hasty = OPTIONS.model_copy(update={"search_seconds": 1.0})
    assert question(begin, hasty, TARGET) == key, "what is kept says how long it took"
    published = [one.model_copy(update={"search": "taso-paper"}) for one in (OPTIONS, hasty)]
    assert len({question(begin, one, TARGET) for one in published}) == 2
    loud = OPTIONS.model_copy(update={"debug": 2, "check": 1})
    assert question(begin, loud, TARGET) == key


def test_a_search_by_the_sum_does_not_ask_how_its_graph_will_be_scheduled() -> None:
    begin = read(BEGIN)
    for search, same in (("taso-paper", True), ("taso", False)):
        asked = OPTIONS.model_copy(update={"search": search})
        key = question(begin, asked, TARGET)
        for change in ({"scheduler": "nimble"}, {"search_alpha": 4.0}, {"max_streams": 2}):
            other = question(begin, asked.model_copy(update=change), TARGET)
            assert (other == key) is same
        assert question(begin, asked.model_copy(update={"search_dp": False}), TARGET) != key


def test_what_does_not_fit_is_no_answer(tmp_path: File) -> None:
    begin = read(BEGIN)
    with Cache.open(tmp_path) as cache:
        for text in ("", "{", '{"graph": "graph g {}", "rounds": []}'):
            cache.put("graphs", "key", text)
            assert find(cache, "key", begin) is None
        store(cache, "key", path(begin))
        fewer = replace(begin, constants=begin.constants[:1])
        assert find(cache, "key", fewer) is None
