"""Functional forms of a user's operators that write to what they are given.

    mylib::scale_(Tensor(a!) x, float by) -> ()
        anabranch_functional::mylib__scale_(Tensor x, float by) -> Tensor[]

A functional form copies what the operator writes to, calls it on the copies, and returns what the
operator returns, then the copies, in the order of the arguments. It is an operator of torch like
any other, registered when it is first asked for, under a name that tells the operator's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

NAMESPACE = "anabranch_functional"
BETWEEN = "__"
"""Stands between the namespace and the name of the operator."""
WRITTEN = re.compile(r"\(\w+!\)")
"""How a schema marks a tensor that is written to."""


def functional_form(op: OpOverload) -> OpOverload | None:
    """The functional form of an operator that writes to tensors; None if it has none: it writes to
    lists, or to what may be None, or it returns something else than new tensors."""
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    plain = all(str(a.type) == "Tensor" for a in written)
    fresh = all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)
    told = BETWEEN not in namespace and not namespace.endswith("_")
    if not (written and plain and fresh and told):
        return None
    try:
        _register(namespace, name, schema.overload_name, str(schema))
    except RuntimeError:  # the operator was registered anew, with other arguments
        return None
    form = getattr(getattr(torch.ops, NAMESPACE), namespace + BETWEEN + name)
    overload: OpOverload = getattr(form, schema.overload_name or "default")
    return overload


def original(op: str) -> str:
    """The name of the operator that a functional form is of, of any other operator its own."""
    space, _, rest = op.partition(".")
    return rest.replace(BETWEEN, ".", 1) if space == NAMESPACE and BETWEEN in rest else op


@functools.cache
def _register(namespace: str, name: str, overload: str, schema: str) -> Any:
    """The library that holds the functional form as long as the process lives."""
    library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    form = namespace + BETWEEN + name + (f".{overload}" if overload else "")
    arguments = WRITTEN.sub("", schema[schema.index("(") : schema.rindex("->")])
    library.define(f"{form}{arguments}-> Tensor[]")
    op = functools.partial(_operator, namespace, name, overload or "default")
    library.impl(form, _form_of(op), "CompositeExplicitAutograd")
    library.impl(form, _form_of(op), "Meta")
    return library


def _operator(namespace: str, name: str, overload: str) -> OpOverload:
    """Looked up in each call: registered anew, it is another."""
    op: OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return op


def _form_of(operator: Callable[[], OpOverload]) -> Callable[..., list[Tensor]]:
    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        op = operator()
        names = [argument.name for argument in op._schema.arguments]
        named: Mapping[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        copies = {
            argument.name: named[argument.name].clone()
            for argument in op._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        returned = op(**{**named, **copies})
        results = () if returned is None else returned
        results = (results,) if isinstance(results, Tensor) else results
        return [*results, *copies.values()]

    return run
