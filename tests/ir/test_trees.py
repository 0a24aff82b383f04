"""Structures as text: back as they were, or plain data, and nothing is imported for them."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from anabranch.errors import InputError
from anabranch.ir.trees import Record, read_tree, tree_text, unregistered

Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = 1


@dataclass
class Output(OrderedDict[str, Any]):
    """As Hugging Face writes the results of models: a dict with attributes, None left out."""

    logits: Any = None
    hidden: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for name in ("logits", "hidden", "loss"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


NAME = "elsewhere.models.Output"
pytree.register_pytree_node(
    Output,
    lambda output: (list(output.values()), list(output.keys())),
    lambda values, keys: Output(**dict(zip(keys, values, strict=True))),
    serialized_type_name=NAME,
)


def spec(tree: Any) -> pytree.TreeSpec:
    return pytree.tree_structure(tree)


@pytest.mark.parametrize(
    "tree",
    [
        ((0, [0, ()]), {"a": 0, "b": OrderedDict(z=0)}),
        [deque([0, 0], 3), torch.Size([1, 2]), defaultdict(int, {"k": 0}), {Colour.RED: 0, 7: 0}],
        torch.tensor([2.0, 1.0]).sort(),
        Output(logits=0, hidden=(0, 0)),
    ],
)
def test_structures_read_back_as_they_were(tree: Any) -> None:
    assert read_tree(tree_text(spec(tree))) == spec(tree)


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda pairs: defaultdict(int, pairs)])
def test_a_key_that_is_a_tuple_has_no_text(kind: Any) -> None:
    """A reader would find a list."""
    assert tree_text(spec([kind([(("k", 1), 0)])])) == ""


def unknown(text: str) -> str:
    return text.replace(NAME, "nowhere.models.Output")


def test_a_class_that_is_not_imported_is_a_record_with_its_fields() -> None:
    text = unknown(tree_text(spec([Output(logits=0, hidden=(0, 0))])))
    assert unregistered(text) == ("nowhere.models.Output",)
    (found,) = pytree.tree_unflatten([1, 2, 3], read_tree(text, plain=True))
    assert type(found) is Record and repr(found) == "Output(logits=1, hidden=(2, 3))"
    assert found.logits == found["logits"] == found[0] == 1 and found.loss is None
    assert found.to_tuple() == (1, (2, 3)) and found[1:] == ((2, 3),)
    with pytest.raises(AttributeError, match="no field other: there are logits, hidden"):
        _ = found.other
    with pytest.raises(InputError, match=r"built of nowhere\.models\.Output") as refused:
        read_tree(text)
    assert "import nowhere.models," in refused.value.next
    assert "nowhere" not in sys.modules


def test_a_named_tuple_is_made_of_its_fields() -> None:
    found = pytree.tree_unflatten([1, 2], read_tree(tree_text(spec(Point(0, 0))), plain=True))
    assert type(found) is not Point and found._fields == ("x", "y") and found.y == 2


def node(type: str | None, context: Any, *children: Any, **more: Any) -> dict[str, Any]:
    return {"type": type, "context": context, "children_spec": list(children), **more}


LEAF = node(None, None)
DEEP = '{"type":"builtins.list","context":"null","children_spec":[' * 200 + json.dumps(LEAF)
FACTORY = {"default_factory_module": "evil", "default_factory_name": "f", "dict_context": ["a"]}
ENUM = '[{"__enum__": true, "fqn": "evil:Colour", "name": "RED"}]'
LAZY = '[{"__enum__": true, "fqn": "torch:onnx.Colour", "name": "RED"}]'
TRICKS: dict[str, Any] = {
    "a factory to import": node("collections.defaultdict", FACTORY, LEAF),
    "an enumeration to import": node("builtins.dict", ENUM, LEAF),
    "an enumeration in a lazy module": node("builtins.dict", LAZY, LEAF),
    "fields that are code": node("collections.namedtuple", "n.T", LEAF, fields=["x=f()"]),
    "fields of a dunder": node("collections.namedtuple", "n.T", LEAF, fields=["__class__"]),
    "fewer fields": node("collections.namedtuple", "n.T", LEAF, LEAF, fields=["x"]),
    "a named tuple that is none": node("collections.namedtuple", "torch.Size", LEAF),
    "one key twice": node("builtins.dict", '["a", "a"]', LEAF, LEAF),
    "a key that is a list": node("builtins.dict", "[[]]", LEAF),
    "more keys than values": node("builtins.dict", '["a", "b"]', LEAF),
    "a deque that loses some": node("collections.deque", "1", LEAF, LEAF),
    "a leaf with parts": node(None, None, LEAF),
    "a class without a name": node("NO_SERIALIZED_TYPE_NAME_FOUND", "null", LEAF),
    "a result that is a function": node(
        "builtins.dict", '["torch.return_types.pytree_register_structseq"]', LEAF
    ),
    "no structure": [1, 2],
    "a number": 3,
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_refused_in_words_and_import_nothing(
    trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as refused:
        read_tree(json.dumps([1, TRICKS[trick]]), plain=trick != "a class without a name")
    assert refused.value.why and refused.value.next
    assert "evil" not in sys.modules


def test_depth_and_size_are_bounded() -> None:
    with pytest.raises(InputError, match="64 levels"):
        read_tree("[1, " + DEEP + "]}" * 200 + "]")
    wide = node("builtins.list", "null", *[LEAF] * 100_001)
    with pytest.raises(InputError, match="100000 parts"):
        read_tree(json.dumps([1, wide]))
    with pytest.raises(InputError, match="RecursionError"):
        read_tree("[1, " + "[" * 100_000)
