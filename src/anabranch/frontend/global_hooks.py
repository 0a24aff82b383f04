"""Global forward hooks while a model is captured or called for us: those of torch for all modules.

    in eager      hook(Linear), hook(ReLU), hook(Sequential)
    captured      the same: what they make of results is a part of the plan
    at a call     hooks that came later see the compiled model, and those of before do not: what
                  they would make of its result is in the plan

Numbers mean nothing in another process. So a saved plan has the names of its hooks, and a loaded
one is not seen by as many of these names as are registered then.

Modules that torch.export and we put around a model are none of the user's, and no hook sees them.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from torch import fx, nn
from torch.nn.modules import module as torch_module

from anabranch.cache.codec import Codec, from_plain, values

KEY = "hooks"
"""Under which name facts of a saved plan have the names of hooks."""
CODEC: Codec[tuple[str, ...]] = values(tuple[str, ...], strict=True)

AROUND = ("torch.export.", "torch._export.", "anabranch.frontend.")
"""Where the classes of modules are that are put around a model."""


_turn = threading.RLock()
"""One thread at a time puts others in the place of hooks, and these back."""


def registered() -> dict[int, str]:
    """The global forward hooks that there are: their names by torch's numbers of them."""
    kinds = zip(("before", "after"), _tables(), strict=True)
    return {key: f"{kind} {_name(hook)}" for kind, hooks in kinds for key, hook in hooks.items()}


def recognised(names: Collection[str]) -> dict[int, str]:
    """Those of the hooks that there are which have these names, the first ones of each name.

    >>> recognised(["after tracing.log"])
    {}
    """
    left, same = Counter(names), {}
    for key, name in registered().items():
        if left[name]:
            left[name] -= 1
            same[key] = name
    return same


def read_names(plain: Any) -> tuple[str, ...]:
    """The names that facts of a saved plan have; none where they are damaged, or older."""
    try:
        return from_plain(CODEC, plain) if plain is not None else ()
    except ValueError:
        return ()


@contextmanager
def hooks_within(model: Any) -> Iterator[None]:
    """Global forward hooks see the model and its parts, and nothing that is around it."""
    graphs = not isinstance(model, nn.Module)  # such as torch.compile hands over

    def around(module: nn.Module) -> bool:
        ours = f"{type(module).__module__}.".startswith(AROUND)
        return ours or (graphs and isinstance(module, fx.GraphModule))

    with _blind(registered(), around):
        yield


@contextmanager
def as_before(within: Mapping[int, str]) -> Iterator[None]:
    """Hooks that came later than these see no module: of one more plan they are no part either."""
    with _blind(registered().keys() - within.keys(), lambda module: True):
        yield


@contextmanager
def left_out(keys: Collection[int], module: nn.Module) -> Iterator[None]:
    """These hooks do not see the module."""
    with _blind(keys, lambda other: other is module):
        yield


def _tables() -> tuple[MutableMapping[int, Callable[..., Any]], ...]:
    kinds: Any = torch_module
    return kinds._global_forward_pre_hooks, kinds._global_forward_hooks


@contextmanager
def _blind(keys: Collection[int], to: Callable[[nn.Module], bool]) -> Iterator[None]:
    """These hooks see no module for which that holds."""
    before = [{key: hook for key, hook in hooks.items() if key in keys} for hooks in _tables()]
    if not any(before):
        yield
        return
    with _turn:
        for hooks, own in zip(_tables(), before, strict=True):
            hooks.update({key: _but(hook, to) for key, hook in own.items()})
        try:
            yield
        finally:
            for hooks, own in zip(_tables(), before, strict=True):
                hooks.update({key: hook for key, hook in own.items() if key in hooks})


def _name(hook: Callable[..., Any]) -> str:
    hook = getattr(hook, "__wrapped__", hook)
    kind = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{kind.__module__}.{kind.__qualname__}"


def _but(hook: Callable[..., Any], to: Callable[[nn.Module], bool]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def limited(module: nn.Module, *rest: Any) -> Any:
        return None if to(module) else hook(module, *rest)

    return limited
