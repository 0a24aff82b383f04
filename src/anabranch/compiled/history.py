"""How a plan came about, for whoever explains it, and what must be said of it to save it."""

from __future__ import annotations

from typing import Any

from anabranch.compiled.entry import Entry
from anabranch.errors import OptionError
from anabranch.frontend.observe import generators_kept
from anabranch.ir.protocols import Target
from anabranch.ir.trees import REGISTER
from anabranch.trace import Trace


class Text(str):
    """A text that a prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def history(entry: Entry, facts: dict[str, Any], target: Target, trace: Trace) -> dict[str, Any]:
    """What `report.text.explain` and `report.page.write` take. OptionError for a loaded plan."""
    compilation = entry.compilation
    if compilation is None:
        raise OptionError(
            "a loaded plan has no history to explain",
            "the file holds the plan and its facts, not the search that led to it",
            "look at `.facts` and `explain(task)`, or compile the model again",
        )
    timelines = [("predicted", compilation.compiled.timeline)]
    run = compilation.run
    if run is not None and run.states:
        run = target.load(entry.plan)  # on states that nobody needs
    with generators_kept(target.device):
        measured = target.timeline(run) if run is not None else None
    if measured is not None:
        timelines.append(("measured", measured))
    return {
        "name": facts["model"],
        "captured": compilation.captured.graph,
        "rewritten": compilation.compiled.graph,
        "searched": compilation.path,
        "plan": entry.plan,
        "candidates": compilation.compiled.selection.candidates,
        "schedules": compilation.compiled.schedules,
        "timelines": timelines,
        "events": trace.events,
        "facts": facts,
    }


def check_saved(entry: Entry) -> None:
    """OptionError for a plan whose arguments or results another process could not name."""
    signature = entry.plan.signature
    if signature is not None and signature.input_tree and signature.output_tree:
        return
    inputs = signature is None or not signature.input_tree
    raise OptionError(
        "this plan cannot be saved",
        f"a class or a key in the model's {'inputs' if inputs else 'results'} has no name in "
        "torch's pytree that another process would know",
        REGISTER,
    )


def no_model() -> OptionError:
    """The error for more inputs of a plan that was loaded from a file."""
    return OptionError(
        "a loaded plan cannot be compiled for other inputs",
        "the file holds kernels and weights, not the model",
        "compile the model again with anabranch.compile",
    )
