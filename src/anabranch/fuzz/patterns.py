"""What a rule looks for, written into a drawing: all rules have their places there, those too that
nobody's model happens to have.

    rule     x - x*y -> x*(1 - y)
    lines    v7 = torch.ops.aten.mul.Tensor(v2, w3)        v2 is a value of that shape, w3 a weight
             v8 = torch.ops.aten.sub.Tensor(v2, v7)        or both as one line

The rule's own instance is drawn, as its test draws it: its inputs are values of the drawing where
some have their shapes and strides, else cut out of larger ones, or new inputs; its constants are
weights, or whole numbers counted up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from anabranch.fuzz.program_builder import Sheet
from anabranch.fuzz.substitute import RULES
from anabranch.ir.graph import Arg, Graph, Input, Node, Ref, types
from anabranch.ir.rule import Rule
from anabranch.ir.types import TensorType, type_of
from anabranch.rewrite.apply import instantiate

SEEDS = 100_000
TOKENS = 3
"""Of a table, the first so many rows are looked up."""


def pattern(sheet: Sheet, rules: Sequence[Rule] = RULES) -> None:
    """The left side of one of these."""
    rule = sheet.choose(rules)
    graph = instantiate(rule, sheet.dice.randrange(SEEDS))
    names = {value.name: _value(sheet, value) for value in graph.inputs}
    names |= {constant.name: _constant(sheet, constant.type) for constant in graph.constants}
    shapes = {name: type.shape for name, type in types(graph).items()}
    inside = _read_once(graph) if sheet.perhaps(0.5) else set[str]()
    for node in graph.nodes:
        line = _line(_safely(node, shapes), names)
        results = (line,) if node.name in inside else sheet.several(line, len(node.results))
        names |= zip(node.results, results, strict=True)


def _constant(sheet: Sheet, type: TensorType) -> str:
    """A weight; of whole numbers as many as there are, which say where something is."""
    if type.dtype.is_floating_point:
        return sheet.weight(*type.shape)
    where = f", device={sheet.inputs[0].name}.device" if sheet.inputs else ""
    return sheet.add(f"torch.arange({type.numel}, dtype={type.dtype}{where}).reshape({type.shape})")


def _read_once(graph: Graph) -> set[str]:
    """What a single call reads, and nobody else: it may be written in its place."""
    read = Counter(name for node in graph.nodes for name in node.uses)
    once = {node.name for node in graph.nodes if len(node.results) == 1 and read[node.name] == 1}
    return once - {ref.name for ref in graph.outputs}


def _value(sheet: Sheet, wanted: Input) -> str:
    """A value that is like this input, as many numbers of a larger one, or a new input."""
    alike = [name for name, value in sheet.values.items() if type_of(value) == wanted.type]
    if alike and sheet.perhaps(0.8):
        return sheet.choose(alike)
    shape, seed, numel = wanted.type.shape, sheet.seed(), wanted.type.numel
    if not wanted.type.dtype.is_floating_point:
        return sheet.add_input(f"whole({shape}, {TOKENS}, {seed}{{shift}})")
    values = sheet.values.items()
    large = [name for name, v in values if v.is_floating_point() and v.numel() >= numel]
    if large and sheet.perhaps(0.5):
        name = sheet.add(f"{sheet.choose(large)}.reshape(-1)[:{numel}].reshape({shape})")
    else:
        name = sheet.add_input(f"normal({shape}, {seed}{{shift}})")
    if type_of(sheet.values[name]) == wanted.type or len(shape) != 4:
        return name
    return sheet.add(f"{name}.contiguous(memory_format=torch.channels_last)")


def _line(node: Node, names: dict[str, str]) -> str:
    arguments = [_text(arg, names) for arg in node.args]
    arguments += [f"{key}={_text(arg, names)}" for key, arg in node.kwargs]
    return f"torch.ops.{node.op}({', '.join(arguments)})"


def _safely(node: Node, kernels: dict[str, tuple[int, ...]]) -> Node:
    """A convolution without dilation where its filter has one element along an axis: the same
    numbers, and torch's own kernel for channels last ends the process at some dilated ones (an
    image of width 1, padding 1, stride 2, dilation 2; torch 2.13, oneDNN)."""
    if node.op != "aten.convolution.default":
        return node
    weight, dilation = node.args[1], node.args[5]
    assert isinstance(weight, Ref) and isinstance(dilation, tuple)
    sizes = kernels[weight.name][2:]
    once = tuple(1 if size == 1 else by for size, by in zip(sizes, dilation, strict=True))
    return replace(node, args=(*node.args[:5], once, *node.args[6:]))


def _text(arg: Arg, names: dict[str, str]) -> str:
    if isinstance(arg, Ref):
        return names[arg.name]
    if isinstance(arg, tuple):
        return f"[{', '.join(_text(item, names) for item in arg)}]"
    infinite = isinstance(arg, float) and not math.isfinite(arg)
    return f"float('{arg}')" if infinite else repr(arg)
