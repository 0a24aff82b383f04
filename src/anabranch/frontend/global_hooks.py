"""Global forward hooks while a model is captured or called for us: those of torch for all modules.

    in eager      hook(Linear), hook(ReLU), hook(Sequential)
    captured      hook(Linear), hook(ReLU): what they make of results is a part of the plan
    at a call     hook(Compiled), by which nn.Module calls it as any other, in the model's place

Modules that torch.export and we put around a model are none of the user's, and no hook sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import fx, nn
from torch.nn.modules import module as torch_module

AROUND = ("torch.export.", "torch._export.", "anabranch.frontend.")
"""Where the classes of modules are that are put around a model."""


@contextmanager
def hooks_within(model: Any) -> Iterator[None]:
    """Global forward hooks see the parts of the model, and neither itself nor what is around it."""
    kinds: Any = torch_module
    with ExitStack() as stack:
        for hooks in (kinds._global_forward_pre_hooks, kinds._global_forward_hooks):
            if hooks:
                stack.enter_context(_limited(hooks, model))
        yield


@contextmanager
def _limited(hooks: MutableMapping[int, Callable[..., Any]], model: Any) -> Iterator[None]:
    before = dict(hooks)
    hooks.update({key: _limit(hook, model) for key, hook in before.items()})
    try:
        yield
    finally:
        hooks.update({key: hook for key, hook in before.items() if key in hooks})


def _limit(hook: Callable[..., Any], model: Any) -> Callable[..., Any]:
    graphs = not isinstance(model, nn.Module)  # such as torch.compile hands over

    def limited(module: nn.Module, *rest: Any) -> Any:
        around = module is model or f"{type(module).__module__}.".startswith(AROUND)
        around |= graphs and isinstance(module, fx.GraphModule)
        return None if around else hook(module, *rest)

    return limited
