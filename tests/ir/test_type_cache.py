"""The memo of result types: kept per graph, taken over by other processes, wrong texts ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anabranch.cache import Cache
from anabranch.ir import ops, type_cache
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.types import TensorType

TABLE = {"x": TensorType((3, 41), torch.float16), "y": TensorType((41, 5), torch.float16)}
GRAPH = Graph("g", (), (), (), ())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[TensorType, ...]]:
    fresh: dict[str, tuple[TensorType, ...]] = {}
    monkeypatch.setattr(type_cache, "ANSWERS", fresh)
    monkeypatch.setattr(ops, "ANSWERS", fresh)
    return fresh


def asked() -> tuple[TensorType, ...]:
    return ops.infer("aten.mm.default", (Ref("x"), Ref("y")), (), TABLE)


def test_another_process_does_not_ask_again(
    alone: dict[str, tuple[TensorType, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache.open(tmp_path)
    known = type_cache.recall(cache, GRAPH)
    want = asked()
    type_cache.keep(cache, GRAPH, known)
    alone.clear()
    assert type_cache.recall(cache, GRAPH) == 1
    monkeypatch.setattr(ops, "call", lambda *_: pytest.fail("asked again"))
    assert asked() == want


def test_what_is_learned_later_is_added(
    alone: dict[str, tuple[TensorType, ...]], tmp_path: Path
) -> None:
    cache = Cache.open(tmp_path)
    asked()
    type_cache.keep(cache, GRAPH, 0)
    known = type_cache.recall(cache, GRAPH)
    ops.infer("aten.relu.default", (Ref("x"),), (), TABLE)
    type_cache.keep(cache, GRAPH, known)
    alone.clear()
    assert type_cache.recall(cache, GRAPH) == 2


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"aten.mm": ["q9[1]"]}', '{"a": 3}'])
def test_a_wrong_text_is_ignored(
    alone: dict[str, tuple[TensorType, ...]], tmp_path: Path, text: str
) -> None:
    cache = Cache.open(tmp_path)
    cache.put("graphs", type_cache._key(GRAPH), text)
    assert type_cache.recall(cache, GRAPH) == 0
    asked()
    type_cache.keep(cache, GRAPH, 0)
    assert type_cache.recall(cache, GRAPH) == 1


def test_foreign_operators_stay_here(
    alone: dict[str, tuple[TensorType, ...]], tmp_path: Path
) -> None:
    cache = Cache.open(tmp_path)
    alone["theirs.secret.default ..."] = (TABLE["x"],)
    type_cache.keep(cache, GRAPH, 0)
    alone.clear()
    assert type_cache.recall(cache, GRAPH) == 0
