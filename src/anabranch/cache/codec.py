"""Values <-> the bytes that are kept of them, by their types.

    Cost(11.7, "measured", 0.2)  <-->  {"us":11.7,"source":"measured","spread":0.2}

A type may be anything that pydantic knows: dataclasses, tuples, unions, literals, numbers, texts.
Types of which something else is to be told, or which pydantic does not know, have a `Form`: the
type of what is told in their place, and the way there and back. A form may rest on what whoever
reads has at hand anyway (`beside`: a graph, of which nodes are told by name).

>>> pairs = values(tuple[tuple[str, float], ...])
>>> pairs.write((("a", 1.5),), None)
b'[["a",1.5]]'
>>> pairs.read(b'[["a",1.5]]', None)
(('a', 1.5),)
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import CoreConfig, CoreSchema, SchemaSerializer, SchemaValidator, core_schema

T = TypeVar("T")
_CONFIG = CoreConfig(ser_json_inf_nan="constants", extra_fields_behavior="forbid")
_STRICT = CoreConfig(**_CONFIG, strict=True)


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How values of one type are written and read; both get what the reader has at hand. Reading
    raises whatever it likes for bytes that are no such value."""

    write: Callable[[T, Any], bytes]
    read: Callable[[bytes, Any], T]


@dataclass(frozen=True, slots=True)
class Form:
    """What is told of a type: a value of the type `told`, or of another one with a form."""

    told: Any
    write: Callable[[Any, Any], Any]
    read: Callable[[Any, Any], Any]


Forms = Mapping[Any, Form]

RAW: Codec[bytes] = Codec(lambda value, beside: value, lambda data, beside: data)
"""Bytes as they are."""


def values(kind: Any, forms: Forms | None = None, strict: bool = False) -> Codec[Any]:
    """JSON of values of this type. What has its default is left out. `strict`: numbers, texts and
    truth values are read as what they are alone, for what strangers send: else ValueError."""

    @functools.cache
    def tools() -> tuple[SchemaSerializer, SchemaValidator]:
        config = _STRICT if strict else _CONFIG
        schema = _schema(kind, forms or {}, config)
        return SchemaSerializer(schema, config), SchemaValidator(schema, config)

    def write(value: Any, beside: Any) -> bytes:
        return tools()[0].to_json(value, context=beside, exclude_defaults=True)

    def read(data: bytes, beside: Any) -> Any:
        return tools()[1].validate_json(data, context=beside)

    return Codec(write, read)


def to_plain(codec: Codec[T], value: T) -> Any:
    """The value as plain data of JSON, for a place among other facts."""
    return json.loads(codec.write(value, None))


def from_plain(codec: Codec[T], plain: Any) -> T:
    """What `to_plain` made. ValueError for what a strict codec does not read."""
    return codec.read(json.dumps(plain).encode(), None)


def _schema(kind: Any, forms: Forms, config: CoreConfig) -> CoreSchema:
    if kind in forms:
        return _formed(forms[kind], forms, config)
    if is_dataclass(kind):
        return _dataclass(kind, forms, config)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return core_schema.union_schema([_schema(arg, forms, config) for arg in args])
    if origin is tuple:
        whole = args[-1] is Ellipsis
        items = [_schema(arg, forms, config) for arg in (args[:-1] if whole else args)]
        return core_schema.tuple_schema(items, variadic_item_index=0 if whole else None)
    if origin is list:
        return core_schema.list_schema(_schema(args[0], forms, config))
    if origin in (dict, Mapping):
        return core_schema.dict_schema(*(_schema(arg, forms, config) for arg in args))
    return TypeAdapter(kind).core_schema


def _formed(form: Form, forms: Forms, config: CoreConfig) -> CoreSchema:
    told = _schema(form.told, forms, config)
    return core_schema.with_info_after_validator_function(
        lambda value, info: form.read(value, info.context),
        told,
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda value, info: form.write(value, info.context), info_arg=True, return_schema=told
        ),
    )


def _dataclass(kind: Any, forms: Forms, config: CoreConfig) -> CoreSchema:
    hints, told = get_type_hints(kind), []
    for field in fields(kind):
        if not field.init:
            continue
        schema = _schema(hints[field.name], forms, config)
        if field.default is not MISSING:
            schema = core_schema.with_default_schema(schema, default=field.default)
        elif field.default_factory is not MISSING:
            factory = field.default_factory
            schema = core_schema.with_default_schema(schema, default_factory=factory)
        told.append(core_schema.dataclass_field(field.name, schema))
    return core_schema.dataclass_schema(
        kind,
        core_schema.dataclass_args_schema(kind.__name__, told),
        [field["name"] for field in told],
        slots=hasattr(kind, "__slots__"),
        post_init=hasattr(kind, "__post_init__"),
        config=config,
    )
