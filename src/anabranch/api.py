"""What users call: compile a model, load a saved plan.

fast = anabranch.compile(model, (x,))
y = fast(x)
fast = anabranch.load("model.anabranch")
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from anabranch.compiled.calls import Compiled
from anabranch.compiled.progress import Progress, telling
from anabranch.errors import ArtifactError, TargetError
from anabranch.frontend.checks import check_call
from anabranch.frontend.program import opened
from anabranch.frontend.surroundings import neutral
from anabranch.ir.uncollected import uncollected
from anabranch.options import Options
from anabranch.pack import artifact
from anabranch.targets import resolve
from anabranch.trace import Trace


def compile(
    model: nn.Module | ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    trace: Trace | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Compiled:
    """A callable that computes what `model` computes, faster.

    model: in eval mode, a function of tensors, or an exported program, which brings inputs where
    none are given; its weights are treated as constants. args, kwargs: example inputs, whose
    shapes, dtypes and Python values the plan is made for; a lone tensor is one argument. target:
    auto | cuda | cuda:N | cpu | sim:h200 | sim:FILE.json. options: fields of `Options`, over the
    environment's. stop: once it is set, by another thread or a signal handler, searching and
    measuring end, and the best so far is returned, as if the budget had passed;
    `facts["cut_short"]` says so. Without a trace, a compilation of more than five seconds says
    through the logger `anabranch` what it is doing: on a terminal, or as logging is configured.

    Raises CaptureError, TargetError, OptionError or NumericsError, each with what to do next.
    """
    chosen = Options.read(options)
    check_call(model, args, kwargs)
    given = (args,) if isinstance(args, Tensor) else tuple(args)
    module, given, kwargs = opened(model, given, kwargs)
    progress = Progress(type(module).__name__ if isinstance(module, nn.Module) else "a function")
    listened = trace or Trace(progress, level=chosen.debug)
    compiled = Compiled(module, resolve(target, chosen.tf32), chosen, listened)
    with telling(progress) if trace is None else nullcontext():
        compiled.add(given, kwargs, stop=stop)
    return compiled


def load(
    path: str | os.PathLike[str], target: str = "auto", *, operators: Collection[str] = ()
) -> Compiled:
    """A saved plan, ready to run: no code of the file's author runs, nothing is imported or tuned.

    operators: those of your own, and of libraries, that the plan may call: ["mylib::attend"]. A
    result of a class that this process has not imported is plain data with its fields.

    Raises ArtifactError for a damaged, foreign or newer file, and for one that says more than a
    plan may say; TargetError where it cannot run.
    """
    with uncollected(), neutral():
        plan, extra = artifact.load(path, operators=operators)
        artifact.check_signature(path, plan)
        opened = resolve(target, plan.spec.tf32)
        artifact.check_kind(path, plan, opened.spec)
        compiled = Compiled(None, opened, Options.read(), None)
        try:
            compiled.adopt(plan, extra, str(path))
        except artifact.REFUSALS as failed:
            if isinstance(failed, ArtifactError | TargetError):
                raise
            raise artifact.unloadable(path, failed) from failed
    return compiled
