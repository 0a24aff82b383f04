"""The arguments of a model by name: its own signature, kept with its plans.

    def forward(self, x, mask=None, *, scale=1.0)
    model_signature(model)   (x, mask=None, *, scale=1.0)     None where Python knows of none
    written(signature)       [["x", 1], ["mask", 1, None], ["scale", 3, 1.0]]     plain data

A default that is no plain value (a tensor, an object of some class) is known to exist, and no more.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError
from torch import nn
from torch.utils import _pytree as pytree

from anabranch.cache.codec import Codec, from_plain, values
from anabranch.errors import ArtifactError, InputError
from anabranch.frontend.checks import LITERALS
from anabranch.frontend.structure import same_literal

KEY = "arguments"
"""Under which name facts of a saved plan have them."""
KINDS = (
    *(Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL),
    *(Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD),
)
MOST_ARGUMENTS = 1000
"""Arguments that a saved plan may name."""


Name = Annotated[str, Field(max_length=200)]
KindNumber = Annotated[int, Field(ge=0, lt=len(KINDS))]
SavedArgument = (
    tuple[Name, KindNumber]
    | tuple[Name, KindNumber, JsonValue]
    | tuple[Name, KindNumber, None, Literal["unknown"]]
)
"""An argument without a default, with one, or with one that only the model knows."""
CODEC: Codec[tuple[SavedArgument, ...]] = values(tuple[SavedArgument, ...], strict=True)


class _Default:
    """A default that is no plain value."""

    def __repr__(self) -> str:
        return "its default"


DEFAULT = _Default()


def model_signature(model: Any) -> inspect.Signature | None:
    """The names that calls of the model may use."""
    if isinstance(model, nn.Module):
        original = getattr(model, "_orig_mod", model)  # of torch.compile
        model = original.forward
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return None
    kept = [p.replace(annotation=Parameter.empty, default=_plain(p)) for p in _all(signature)]
    return inspect.Signature(kept)


def written(signature: inspect.Signature | None) -> list[list[Any]] | None:
    """The signature as JSON has it: name, kind and default; null for a default unknown here."""
    if signature is None:
        return None
    return [[p.name, int(p.kind), *_written(p.default)] for p in _all(signature)]


def read_back(plain: Any) -> inspect.Signature | None:
    """What `written` wrote. ArtifactError for anything else."""
    if plain is None:
        return None
    try:
        saved = from_plain(CODEC, plain)
        if len(saved) > MOST_ARGUMENTS:
            raise ValueError(f"there are no more than {MOST_ARGUMENTS} arguments")
        return inspect.Signature(list(map(_read, saved)))
    except (TypeError, ValueError) as wrong:
        why = wrong.errors()[0]["msg"] if isinstance(wrong, ValidationError) else str(wrong)
        raise ArtifactError(
            "the file does not say the names of the model's arguments as a saved plan does",
            why,
            "save the plan again",
        ) from None


def by_name(
    signature: inspect.Signature | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by their names; without a signature by their places. InputError,
    in Python's words, for a call that the model's own signature refuses."""
    if signature is None:
        return {f"args[{place}]": value for place, value in enumerate(args)} | kwargs
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as refused:
        raise InputError(
            f"the model cannot be called so: {refused}",
            f"its arguments are {signature}",
            "call it as the model is called",
        ) from None


def default_of(signature: inspect.Signature | None, name: str) -> Any:
    """What the model takes for an argument that is left out; `Parameter.empty` if it must not be,
    DEFAULT if only the model knows."""
    if signature is None or name not in signature.parameters:
        return Parameter.empty
    parameter = signature.parameters[name]
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return ()
    return {} if parameter.kind is Parameter.VAR_KEYWORD else parameter.default


def same_default(default: Any, value: Any) -> bool:
    """Whether what was given is what the model would have taken."""
    if default is value:
        return True
    if not (_is_plain(default) and _is_plain(value)):
        return False
    mine, own = pytree.tree_flatten(_as_lists(default))
    theirs, other = pytree.tree_flatten(_as_lists(value))
    return own == other and all(map(same_literal, theirs, mine))


def _all(signature: inspect.Signature) -> list[Parameter]:
    return list(signature.parameters.values())


def _plain(parameter: Parameter) -> Any:
    default = parameter.default
    if default is Parameter.empty or default is DEFAULT:
        return default
    return default if _is_plain(default) else DEFAULT


def _written(default: Any) -> list[Any]:
    """A default as JSON has it: none, itself, or that there is one."""
    if default is Parameter.empty:
        return []
    return [None, "unknown"] if default is DEFAULT else [_as_lists(default)]


def _as_lists(value: Any) -> Any:
    """Tuples as lists, as JSON has them: a call may give either."""
    if type(value) is dict:
        return {key: _as_lists(part) for key, part in value.items()}
    return list(map(_as_lists, value)) if type(value) in (tuple, list) else value


def _is_plain(value: Any) -> bool:
    """Numbers, strings and None in tuples, lists and dicts, as JSON can hold them."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    return type(value) in LITERALS and not (type(value) is float and not math.isfinite(value))


def _read(saved: SavedArgument) -> Parameter:
    name, kind, *default = saved
    value = DEFAULT if len(default) == 2 else default[0] if default else Parameter.empty
    if not (value is DEFAULT or value is Parameter.empty or _is_plain(value)):
        raise ValueError("a default is not plain")
    return Parameter(name, KINDS[kind], default=value)
