"""DrawnModel: a random model as lines of Python, which can be dropped one by one.

>>> inputs = (DrawnInput("x0", "normal((2, 3), 1{shift})"),)
>>> steps = (DrawnStep("relu", ("v0",), "F.relu(x0)"), DrawnStep("linear", ("v1",), "self.w0(v0)"))
>>> drawing = DrawnModel(7, inputs, (DrawnLayer("w0", "nn.Linear(3, 4)", 5),), steps, ("v1",))
>>> print(model_text(drawing))
class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = filled(nn.Linear(3, 4), 5)
<BLANKLINE>
    def forward(self, x0):
        v0 = F.relu(x0)
        v1 = self.w0(v0)
        return (v1,)
<BLANKLINE>
<BLANKLINE>
def inputs(shift):
    return (normal((2, 3), 1 + shift),)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anabranch.fuzz import script_prelude

ReturnForm = Literal["tuple", "list", "dict", "one", "nested"]
VALUE = re.compile(r"\b[vx]\d+\b")
LAYER = re.compile(r"\bself\.(w\d+)\b")


@dataclass(frozen=True, slots=True)
class DrawnInput:
    """An input: its name, and an expression that makes it. "{shift}" stands where other inputs of
    the same kind want another seed."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class DrawnLayer:
    """What the model holds: `text` makes a module, or a tensor if it calls no `nn.`."""

    name: str
    text: str
    seed: int


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """One line of `forward`, and of which kind it was drawn."""

    kind: str
    results: tuple[str, ...]
    text: str

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of the values it reads."""
        return tuple(VALUE.findall(self.text))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers it calls."""
        return tuple(LAYER.findall(self.text))


@dataclass(frozen=True, slots=True)
class DrawnModel:
    """A model and its inputs. Several outputs are returned in a container of this form."""

    seed: int
    inputs: tuple[DrawnInput, ...]
    layers: tuple[DrawnLayer, ...]
    steps: tuple[DrawnStep, ...]
    outputs: tuple[str, ...]
    form: ReturnForm = "tuple"


def model_text(drawing: DrawnModel) -> str:
    """The class of the model, and the function of its inputs."""
    lines = ["class Drawn(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.{layer.name} = {layer_text(layer)}" for layer in drawing.layers]
    names = ", ".join(argument.name for argument in drawing.inputs)
    lines += ["", f"    def forward(self, {names}):"]
    lines += [f"        {', '.join(step.results)} = {step.text}" for step in drawing.steps]
    lines += [f"        return {_returned(drawing)}", "", "", "def inputs(shift):"]
    arguments = ", ".join(
        argument.text.replace("{shift}", " + shift") for argument in drawing.inputs
    )
    return "\n".join([*lines, f"    return ({arguments},)"])


def script(
    drawing: DrawnModel,
    dtype: torch.dtype,
    target: str,
    options: Mapping[str, Any],
    training: bool = False,
) -> str:
    """A file that compiles the model, or a training step of it, says what is wrong with it, and
    ends with 1 if anything."""
    told = "".join(f", {name}={value!r}" for name, value in options.items())
    call = f"differences(Drawn, inputs, {dtype}, {target!r}{told})"
    opening = inspect.getsource(script_prelude)
    if training:
        call = f"training_differences(Drawn, inputs, {dtype}, {target!r}, {drawing.seed}{told})"
        opening += (
            "\n\nfrom anabranch.fuzz.training_trial import training_differences  # noqa: E402\n"
        )
    end = f'if __name__ == "__main__":\n    sys.exit("\\n".join({call}) or None)'
    return f"{opening}\n\n# seed {drawing.seed}\n{model_text(drawing)}\n\n\n{end}\n"


def layer_text(layer: DrawnLayer) -> str:
    """The right side of the line that makes the layer or the weight."""
    if "nn." in layer.text:
        return f"filled({layer.text}, {layer.seed})"
    return f"nn.Parameter({layer.text}, requires_grad=False)"


def namespace() -> dict[str, Any]:
    """What the lines of a drawing may call."""
    return {
        name: getattr(script_prelude, name)
        for name in (
            *("F", "filled", "finite", "narrow", "nn", "normal", "signed", "torch"),
            "whole",
        )
    }


def built_model(drawing: DrawnModel) -> tuple[Callable[[], nn.Module], script_prelude.Inputs]:
    """The model's class and the function of its inputs."""
    space = namespace()
    exec(compile(model_text(drawing), f"<drawn {drawing.seed}>", "exec"), space)
    return space["Drawn"], space["inputs"]


def values(drawing: DrawnModel) -> dict[str, Tensor]:
    """Each value of the model as it computes them."""
    everything = dict.fromkeys(
        (
            *(argument.name for argument in drawing.inputs),
            *(n for s in drawing.steps for n in s.results),
        )
    )
    build, inputs = built_model(replace(drawing, outputs=tuple(everything), form="tuple"))
    with torch.no_grad():
        return dict(zip(everything, build().eval()(*inputs(0)), strict=True))


def _returned(drawing: DrawnModel) -> str:
    names = drawing.outputs
    every = ", ".join(names)
    match drawing.form:
        case "one" if len(names) == 1:
            return every
        case "list":
            return f"[{every}]"
        case "dict":
            return "{" + ", ".join(f'"{i}": {name}' for i, name in enumerate(names)) + "}"
        case "nested" if len(names) > 1:
            return f"{names[0]}, [{', '.join(names[1:])}]"
    return f"({every},)"
