"""The structure of arguments and results as text: pytree's TreeSpec <-> JSON that imports nothing.

    {"y": x, "s": (z, 1)}   <->   [1, {"type": "builtins.dict", "context": "[\\"y\\", \\"s\\"]",
                                       "children_spec": [leaf, {"type": "builtins.tuple", ...}]}]

The form is the one of `torch.utils._pytree.treespec_dumps`, whose reader imports the modules that a
text names (the factory of a defaultdict, the class of an enumeration). This reader builds tuples,
lists, dicts and their like, and classes that are registered with pytree in this process already.
For all others a node also says the names of its `fields`, so that it can be rebuilt as plain data:
a named tuple of the same fields, or a `Record`.
"""

from __future__ import annotations

import json
import keyword
import sys
import warnings
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from anabranch.errors import InputError

RESULTS = "torch.return_types."
"""Before the name of one of torch's own tuples, where a structure is text."""
REGISTER = (
    "register it with torch.export.register_dataclass or torch.utils._pytree."
    "register_pytree_node(..., serialized_type_name=...), or use tuples and dicts"
)
MAX_DEPTH = 64
MAX_NODES = 100_000
NAMED_TUPLE = "collections.namedtuple"
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
FACTORIES: dict[str, Callable[[], Any] | None] = {
    "": None,
    "builtins.dict": dict,
    "builtins.float": float,
    "builtins.int": int,
    "builtins.list": list,
    "builtins.set": set,
    "builtins.tuple": tuple,
    "collections.OrderedDict": OrderedDict,
}
"""What a defaultdict may be made with."""


class Record(dict[str, Any]):
    """A result of the model, by the names of its fields, in place of a class that this process has
    not imported: read by key, by attribute or by position.

    >>> output = Record({"logits": 1, "hidden": 2}, "transformers.Output", ("loss",))
    >>> output.logits, output["logits"], output[0], output.to_tuple(), output.loss
    (1, 1, 1, (1, 2), None)
    """

    def __init__(self, values: Mapping[str, Any], name: str, absent: Iterable[str] = ()) -> None:
        super().__init__(values)
        self.__dict__["_name"], self.__dict__["_absent"] = name, tuple(absent)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __getattr__(self, field: str) -> Any:
        if field in self:
            return self[field]
        if field in self.__dict__.get("_absent", ()):
            return None
        raise AttributeError(f"no field {field}: there are {', '.join(self)}")

    def __repr__(self) -> str:
        inside = ", ".join(f"{field}={value!r}" for field, value in self.items())
        return f"{self._name.rpartition('.')[2]}({inside})"

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in order."""
        return tuple(self.values())


def _flat_record(record: Record) -> tuple[list[Any], Any]:
    return list(record.values()), (record._name, tuple(record), record._absent)


def _whole_record(values: Iterable[Any], context: Any) -> Record:
    name, present, absent = context
    return Record(dict(zip(present, values, strict=True)), name, absent)


pytree.register_pytree_node(Record, _flat_record, _whole_record)


class _Shape:
    """The node of a torch.Size in the structure of a result: torch's own makes a plain tuple."""


pytree.register_pytree_node(_Shape, lambda _: ([], None), lambda sizes, _: torch.Size(sizes))


def _shape_of(sizes: Iterable[Any], _: Any) -> Any:
    """A torch.Size of numbers, and of what stands for numbers what becomes one later on."""
    numbers = tuple(sizes)
    return torch.Size(numbers) if all(type(size) is int for size in numbers) else _Sizes(numbers)


class _Sizes(tuple[Any, ...]):
    """In place of a torch.Size while torch.export has objects of its own for its numbers."""


pytree.register_pytree_node(
    _Sizes,
    lambda sizes: (list(sizes), None),
    _shape_of,
    flatten_with_keys_fn=lambda sizes: (
        [(pytree.SequenceKey(place), size) for place, size in enumerate(sizes)],
        None,
    ),
)


@contextmanager
def shapes_kept() -> Iterator[None]:
    """Within it pytree makes a torch.Size again where there was one: torch's own makes a plain
    tuple, of which a model that is given a shape cannot ask `numel()`."""
    nodes = pytree.SUPPORTED_NODES
    before = nodes[torch.Size]
    nodes[torch.Size] = before._replace(unflatten_fn=_shape_of)
    try:
        yield
    finally:
        nodes[torch.Size] = before


def of_shapes(tree: TreeSpec) -> TreeSpec:
    """The structure of arguments as the caller has them, of one that was seen `shapes_kept`; the
    same object where it is."""
    return _exchanged(tree, _Sizes, torch.Size)


def with_shapes(tree: TreeSpec) -> TreeSpec:
    """The structure whose torch.Size stay some when values are put into it; the same object where
    there are none.

    >>> tree = pytree.tree_structure([torch.Size((2, 4))])
    >>> pytree.tree_unflatten([2, 4], tree), pytree.tree_unflatten([2, 4], with_shapes(tree))
    ([(2, 4)], [torch.Size([2, 4])])
    """
    return _exchanged(tree, torch.Size, _Shape)


def _exchanged(tree: TreeSpec, kind: type, other: type) -> TreeSpec:
    """With nodes of the other type."""
    if tree.is_leaf():
        return tree
    children = tree.children()
    exchanged = [_exchanged(child, kind, other) for child in children]
    if tree.type is kind:
        return TreeSpec(other, None, exchanged)
    same = all(old is new for old, new in zip(children, exchanged, strict=True))
    return tree if same else TreeSpec(tree.type, tree.context, exchanged)


def tree_text(tree: TreeSpec) -> str:
    """The structure as text, "" if one of its classes has no name that another process knows, or a
    key of a dict is a tuple, which the text could not tell from a list."""
    with suppress(Unnamed, TypeError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return json.dumps([1, _written(tree)])
    return ""


class Unnamed(Exception):
    """A class without a name in pytree's registry, or a key that no text can say."""


def _written(tree: TreeSpec) -> dict[str, Any]:
    if tree.is_leaf():
        return LEAF
    children, context = [_written(child) for child in tree.children()], tree.context
    keys = context[1] if tree.type is defaultdict else context
    if tree.type in (dict, OrderedDict, defaultdict) and not _simple(keys):
        raise Unnamed
    if tree.type is namedtuple:
        class_name = _registered_name(context) or f"{context.__module__}.{context.__qualname__}"
        return _node(NAMED_TUPLE, class_name, children) | {"fields": list(context._fields)}
    if tree.type is defaultdict:
        factory, keys = context
        owner = "" if factory is None else f"{factory.__module__}.{factory.__qualname__}"
        if FACTORIES.get(owner, tree) is not factory:
            raise Unnamed
        module, _, name = owner.rpartition(".")
        made_by = {"default_factory_module": module, "default_factory_name": name}
        return _node("collections.defaultdict", made_by | {"dict_context": keys}, children)
    if _is_result(tree.type):
        key = json.dumps([f"{RESULTS}{tree.type.__name__}"])
        return _node("builtins.dict", key, [_node("builtins.tuple", "null", children)])
    registered = _registered_name(tree.type)
    if not registered:
        raise Unnamed
    write = pytree.SUPPORTED_SERIALIZED_TYPES[tree.type].to_dumpable_context
    told = write(context) if write else json.dumps(context, cls=pytree.EnumEncoder)
    return _node(registered, told, children) | _fields(tree)


def _node(type: str, context: Any, children: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": type, "context": context, "children_spec": children}


def _registered_name(kind: Any) -> str:
    definition = pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    name = definition.serialized_type_name if definition else ""
    return "" if name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND else str(name)


def _is_result(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__ == torch.return_types.__name__


def _fields(tree: TreeSpec) -> dict[str, Any]:
    """The names of a class's children, where they have some, and of fields that are None."""
    if tree.type in BUILDERS.values():
        return {}
    with suppress(Exception):  # code of the user's class, which may refuse numbers
        definition, count = pytree.SUPPORTED_NODES[tree.type], tree.num_children
        example = definition.unflatten_fn(list(range(count)), tree.context)
        names = {number: name for name, number in _parts(example, definition)}
        present = [names[number] for number in range(count)]
        every = [field.name for field in fields(example)] if is_dataclass(example) else []
        return {"fields": present, "absent": [name for name in every if name not in present]}
    return {}


def _parts(example: Any, definition: Any) -> Iterator[tuple[str, int]]:
    """Names and values of an instance whose children are numbers."""
    if definition.flatten_with_keys_fn is not None:
        for key, value in definition.flatten_with_keys_fn(example)[0]:
            yield str(getattr(key, "key", getattr(key, "name", ""))), value
        return
    for name, value in (example if isinstance(example, Mapping) else vars(example)).items():
        if type(value) is int:
            yield str(name), value


def read_tree(text: str, plain: bool = False) -> TreeSpec:
    """The structure that `tree_text` wrote. `plain`: a class that is not registered here becomes a
    named tuple, a Record or a tuple. InputError for a text that says no structure, and for such a
    class where plain data will not do."""
    if not text:
        raise InputError(
            "the file does not say the structure of the model's inputs or results",
            "one of their classes had no name in torch's pytree when it was saved",
            REGISTER,
        )
    try:
        _, root = json.loads(text)
        count = [0]
        return _read(root, plain, 0, count)
    except InputError:
        raise
    except Exception as broken:  # the user's own classes may refuse in any way
        raise _no_structure(f"{type(broken).__name__}: {broken}"[:200]) from None


def unregistered(text: str) -> tuple[str, ...]:
    """The classes that the text names and nobody has registered here."""
    names: dict[str, None] = {}

    def look(node: dict[str, Any]) -> None:
        name = node["type"]
        if name == NAMED_TUPLE:
            name = node["context"]
        if name is not None and name not in BUILDERS and not _registered(name):
            names[name] = None
        for child in node["children_spec"]:
            look(child)

    look(json.loads(text)[1])
    return tuple(names)


def _registered(name: str) -> Any:
    return pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)


def _read(node: Any, plain: bool, depth: int, count: list[int]) -> TreeSpec:
    count[0] += 1
    if depth > MAX_DEPTH or count[0] > MAX_NODES:
        raise _no_structure(f"it has more than {MAX_DEPTH} levels or {MAX_NODES} parts")
    name, told, below = node["type"], node["context"], node["children_spec"]
    if name is None:
        if told is not None or below:
            raise _no_structure("a leaf has parts")
        return pytree.tree_structure(0)
    children = [_read(child, plain, depth + 1, count) for child in below]
    if name == NAMED_TUPLE:
        return _named_tuple(told, node.get("fields"), children, plain)
    if name == "collections.defaultdict":
        owner = f"{told['default_factory_module']}.{told['default_factory_name']}".strip(".")
        if owner not in FACTORIES:
            raise _no_structure(f"a defaultdict is made with {owner}")
        keys = _keys(told["dict_context"], children)
        return TreeSpec(defaultdict, [FACTORIES[owner], keys], children)
    if name in BUILDERS:
        return _builtin(BUILDERS[name], _told(told), children)
    if not isinstance(name, str):
        raise _no_structure("a class has no name")
    kind = _registered(name)
    if kind is not None and name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        load = pytree.SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context
        return TreeSpec(kind, load(told) if load else _told(told), children)
    if not plain:
        raise not_imported(name)
    names, absent = node.get("fields"), node.get("absent", [])
    if names is None:
        return TreeSpec(tuple, None, children)
    _texts([*names, *absent])
    return TreeSpec(Record, (name, tuple(_keys(names, children)), tuple(absent)), children)


BUILDERS: dict[str, type] = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "collections.deque": deque,
    "torch.Size": torch.Size,
    "torch.fx.immutable_collections.immutable_list": immutable_list,
    "torch.fx.immutable_collections.immutable_dict": immutable_dict,
}
"""Containers that every process has."""


def _builtin(kind: type, context: Any, children: list[TreeSpec]) -> TreeSpec:
    if issubclass(kind, dict):
        keys = _keys(context, children)
        if len(keys) == 1 and str(keys[0]).startswith(RESULTS):
            return _result(str(keys[0]), children[0])
        return TreeSpec(kind, keys, children)
    longest = context if kind is deque and isinstance(context, int) else None
    if context != longest or (longest is not None and longest < len(children)):
        raise _no_structure(f"a {kind.__name__} has a context")
    return TreeSpec(kind, context, children)


def _result(name: str, held: TreeSpec) -> TreeSpec:
    """One of torch's own tuples (of `sort`, `topk`), for which pytree has no text."""
    kind: Any = vars(torch.return_types).get(name.removeprefix(RESULTS))
    if not (_is_result(kind) and issubclass(kind, tuple)):
        raise InputError(
            f"the file says that a result is a {name}",
            "this version of torch has no such tuple",
            "load it with the version of torch that saved it, or compile the model again",
        )
    numbers = kind(range(held.num_children))  # of the right number, or TypeError
    spec = pytree.tree_structure(numbers)
    return TreeSpec(spec.type, spec.context, held.children())


def _named_tuple(name: str, names: Any, children: list[TreeSpec], plain: bool) -> TreeSpec:
    kind: Any = _registered(name)
    if kind is None:
        if not plain:
            raise not_imported(name)
        fields = [str(field) for field in _keys(names, children)]
        legal = all(field.isidentifier() and not keyword.iskeyword(field) for field in fields)
        if not legal or any(field.startswith("_") for field in fields):
            raise _no_structure("a named tuple has fields that are no names")
        title = name.rpartition(".")[2]
        build: Any = namedtuple  # its fields are known to the file alone
        kind = build(title if title.isidentifier() else "Fields", fields)
    if not pytree.is_namedtuple_class(kind) or len(kind._fields) != len(children):
        raise _no_structure(f"{name} is no named tuple of {len(children)} fields")
    return TreeSpec(namedtuple, kind, children)


def _keys(keys: Any, children: list[TreeSpec]) -> list[Any]:
    """As many different keys as there are children."""
    simple = isinstance(keys, list) and _simple(keys)
    if not simple or len(set(keys)) != len(keys) or len(keys) != len(children):
        raise _no_structure("the keys of a dict are not one for each of its values")
    return list(keys)


def _simple(keys: Iterable[Any]) -> bool:
    """Whether JSON says what these keys are."""
    return all(isinstance(key, str | int | float | Enum) or key is None for key in keys)


def _texts(names: list[Any]) -> None:
    if not all(isinstance(name, str) for name in names):
        raise _no_structure("a field has no name")


def _told(text: Any) -> Any:
    return json.loads(text, object_hook=_member)


def _member(told: dict[str, Any]) -> Any:
    """The member of an enumeration whose module is imported already."""
    if "__enum__" not in told:
        return told
    module, _, path = str(told["fqn"]).partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = vars(value).get(part) if value is not None else None  # runs no lazy import
    if not (isinstance(value, type) and issubclass(value, Enum)):
        raise not_imported(f"{module}.{path}")
    return value.__members__[told["name"]]


def unknown_class(name: str) -> str:
    """The sentence of a warning about a class of a result that is not imported here."""
    module = name.rpartition(".")[0]
    return (
        f"results are plain data with the fields of {name}: this process has not imported it; "
        f"import {module or 'its module'} before loading to get the class"
    )


def not_imported(name: str) -> InputError:
    """The refusal of a class that this process does not know."""
    module = name.rpartition(".")[0]
    return InputError(
        f"the model's inputs or results are built of {name}",
        "this process has not imported the class, and a file never makes it do so",
        f"import {module or 'the module that defines it'}, then load the file again; a named tuple "
        "must also be registered: torch.utils._pytree._register_namedtuple",
    )


def _no_structure(why: str) -> InputError:
    return InputError(
        "the file does not say a structure of the model's inputs or results",
        why,
        "save the plan again from its model",
    )
