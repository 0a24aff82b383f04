"""A compiled model called while torch.fx traces Python: in a module around it, it is a leaf.

class Whole(nn.Module):                     torch.fx.symbolic_trace(whole):
    def forward(self, x):                       %stem = call_module[stem](%x)
        return self.fast(self.stem(x))          %fast = call_module[fast](%stem)
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from anabranch.errors import OptionError


def tracer_of(args: Any, kwargs: Any) -> Any:
    """The tracer whose stand-ins a call is given, None for a call with values. A trace of the
    function itself has one stand-in for all arguments."""
    values = (args, kwargs) if isinstance(args, fx.Proxy) else (*args, *kwargs.values())
    return next((value.tracer for value in values if isinstance(value, fx.Proxy)), None)


def leaf_call(module: nn.Module, tracer: Any, args: Any, kwargs: Any) -> Any:
    """The stand-in of the result. OptionError where the module is what is traced, or no part of
    that."""
    paths = (path for path, part in tracer.root.named_modules() if part is module)
    if path := next(paths, ""):
        return tracer.create_proxy("call_module", path, args, dict(kwargs))
    raise OptionError(
        "a compiled model cannot be traced by torch.fx",
        "it is a plan of kernels, and runs no Python that could be called with stand-ins",
        "trace the original model, which is at .model, and compile what comes of it; as a part of "
        "another module a compiled model is a leaf of the trace",
    )
