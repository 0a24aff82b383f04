"""A functional ATen graph, as AOTAutograd hands it to a backend, -> Captured.

Its inputs are flat: with torch.compile, weights come among them, and a caller that may treat them
as fixed says so with `constants`. Results are the tuple that the FX graph returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError
from anabranch.frontend.captured import Captured
from anabranch.frontend.checks import LITERALS
from anabranch.frontend.state import named
from anabranch.frontend.translate import Translation
from anabranch.ir.graph import Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.recipe import ModelTensor
from anabranch.ir.trees import tree_text


def capture_fx(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    constants: Mapping[str, torch.Tensor | None] | None = None,
    name: str = "compiled",
    sources: Mapping[str, str] | None = None,
    places: Mapping[str, torch.Tensor] | None = None,
    news: Mapping[str, str] | None = None,
) -> Captured:
    """The graph of an FX module of ATen operators.

    `example_inputs`: one (fake) tensor or number per placeholder. `constants`: the real tensor of
    each placeholder, by its name, whose content never changes; None or absence leaves an input.
    `sources`: by placeholder what the model calls the constant, the placeholder's name by default.
    `places`: tensors in whose memory the graph reads a placeholder, as a state. `news`: by
    placeholder of one that it writes the node of its new value; these are the last results, in
    order, which nobody gets.
    """
    constants, sources, places, news = constants or {}, sources or {}, places or {}, news or {}
    translation = Translation({node.name for node in module.graph.nodes})
    inputs: list[Leaf] = []
    outputs: list[Leaf] = []
    examples, returned = iter(example_inputs), _returned(module.graph)
    for node in module.graph.nodes:
        match node.op:
            case "placeholder":
                constant, path = constants.get(node.name), sources.get(node.name, node.name)
                if (place := places.get(node.name)) is not None:
                    next(examples)
                    if node.users or node.name in news:
                        translation.becomes(node, translation.bind_state(node, place, path))
                    continue
                inputs += _bind(translation, node, next(examples), constant, path)
            case "get_attr":
                _bind_attribute(translation, module, node)
            case "call_function":
                translation.add(node, node in returned)
            case "output":
                own = returned[: len(returned) - len(news)]
                outputs = [_leaf(translation, value) for value in own]
    nodes = {node.name: node for node in module.graph.nodes}
    for name, new in news.items():
        value = translation.value(nodes[new])
        assert isinstance(value, Ref), "the new value of a state is a tensor"
        translation.becomes(nodes[name], value)
    held = {sources.get(key, key): v for key, v in constants.items() if v is not None}
    in_tree = pytree.tree_flatten((tuple(range(len(inputs))), {}))[1]
    out_tree = pytree.tree_flatten(tuple(range(len(outputs))))[1]
    captured = Captured(
        translation.finish(name, [leaf.ref for leaf in outputs if leaf.ref is not None]),
        Signature(
            tree_text(in_tree),
            translation.placed(inputs),
            tree_text(out_tree),
            tuple(outputs),
            tuple(translation.mutations),
            checks=translation.checks,
        ),
        tuple(translation.sources),
        (in_tree, out_tree),
    )
    state = (ModelTensor(path, tuple(x.shape), x.dtype, True) for path, x in held.items())
    return named(captured, held, tuple(state))


def _returned(graph: fx.Graph) -> Sequence[Any]:
    """What the graph returns, in order."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    result = output.args[0]
    return result if isinstance(result, (tuple, list)) else (result,)


def _bind(
    translation: Translation,
    node: fx.Node,
    example: Any,
    constant: torch.Tensor | None,
    path: str,
) -> list[Leaf]:
    if constant is not None:
        translation.bind_constant(node, constant, path, source=True)
        return []
    if isinstance(example, torch.Tensor):
        return [Leaf(translation.bind_input(node, example))]
    if isinstance(example, LITERALS):
        translation.bind_literal(node, example)
        return [Leaf(None, example)]
    raise CaptureError(
        f"the input {node.name} is a {type(example).__name__}",
        "inputs are tensors and numbers; a size that varies between calls is neither",
        "use torch.compile(..., dynamic=False)",
    )


def _bind_attribute(translation: Translation, module: fx.GraphModule, node: fx.Node) -> None:
    attribute: Any = module
    for part in str(node.target).split("."):
        attribute = getattr(attribute, part)
    if isinstance(attribute, torch.Tensor):
        translation.bind_constant(node, attribute, str(node.target), source=False)


def _leaf(translation: Translation, value: Any) -> Leaf:
    arg = translation.value(value) if isinstance(value, fx.Node) else value
    if isinstance(arg, Ref):
        return Leaf(arg)
    assert isinstance(arg, LITERALS), f"a backend's graph returns {arg!r}"
    return Leaf(None, arg)
