"""A file of ONNX as a module: its weights are parameters and buffers, its inputs have its names.

    model = OnnxModule(...)        model(input_ids=ids, attention_mask=mask)
    model.state_dict()             by the names that the file has: "encoder.layer.0.weight"

It needs neither onnx nor Anabranch's compiler to run, can be moved, copied and pickled, and is in
eval mode. Small integers and scalars of the file are no weights: they are a part of what it does.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.errors import InputError
from anabranch.frontend.onnx.graph import OnnxFile, OnnxGraph, OnnxInput, all_nodes
from anabranch.frontend.onnx.host import MOST_HOST, host, tensors_of
from anabranch.frontend.onnx.interpret import Surface, run_graph
from anabranch.frontend.onnx.operators import OPERATORS
from anabranch.frontend.onnx.symbolic import Sizes, dynamic_shapes

WHOLE_DTYPES = (torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True, slots=True)
class OnnxProgram:
    """What a module does but for its weights, as one value: torch.export makes attributes that are
    dicts anew. `numbers`: constants that Python knows, with their dtypes; `places`: where weights
    are in the module; both by their names in the file."""

    graph: OnnxGraph
    floats: torch.dtype
    sizes: Sizes
    numbers: Mapping[str, tuple[Any, torch.dtype]]
    places: Mapping[str, str]


class OnnxModule(nn.Module):
    """What a file of ONNX computes.

    Attributes:
        names: What the arguments of a call are called, in order: the file's names of its inputs,
            as far as Python can write them ("input.1" is "input_1").
        results: The file's names of its outputs. One is returned as it is, several as a tuple.
        inputs: Name, element type and shape of each input, as the file says.
        dynamic_shapes: What `anabranch.compile` and `torch.export` call so, by argument: the axes
            that have the name of a symbol in the file. None if there are none.
    """

    names: tuple[str, ...]
    results: tuple[str, ...]
    inputs: tuple[OnnxInput, ...]

    def __init__(self, file: OnnxFile, floats: torch.dtype, sizes: Sizes) -> None:
        super().__init__()
        self.inputs, self.results = file.graph.inputs, file.graph.outputs
        self.names = tuple(written(value.name for value in self.inputs))
        numbers: dict[str, tuple[Any, torch.dtype]] = {}
        places: dict[str, str] = {}
        self.program = OnnxProgram(file.graph, floats, sizes, numbers, places)
        used = read_names(file.graph)
        asked, layers = _asked_as_numbers(file.graph), _weights_of_layers(file.graph)
        tensors = {**file.tensors, **file.scalars}
        for name, tensor in tensors.items():
            if name not in used:
                continue
            small = tensor.numel() <= MOST_HOST
            if small and (tensor.dtype in WHOLE_DTYPES or name in asked or name in file.scalars):
                # A number of 32 bits stays what it is: 1e-12 is none of 16.
                kind = floats if tensor.dtype == torch.float32 else tensor.dtype
                numbers[name] = tensor.tolist(), kind
            else:
                laid = _laid_as_layers(tensor) if name in layers else tensor
                places[name] = self._store(name, laid)
        self.eval()

    @property
    def graph(self) -> OnnxGraph:
        """The nodes that a call runs."""
        return self.program.graph

    @property
    def dynamic_shapes(self) -> dict[str, Any] | None:
        """The axes that vary, by argument, as torch.export takes them."""
        return dynamic_shapes(self.names, self.inputs, self.program.sizes)

    def forward(self, *args: Any, **named: Any) -> Any:
        """The outputs for these inputs: one tensor, or a tuple of them."""
        inputs = self._bound(args, named)
        device = self._device(inputs)
        surface = Surface(_Constants(self), device, self.program.floats, self.graph.name)
        outputs = run_graph(self.graph, inputs, surface.constants, surface)
        results = tuple(tensors_of(output, surface.device) for output in outputs)
        return results[0] if len(results) == 1 else results

    def __reduce__(self) -> Any:
        return _empty_module, (self.names,), self.__dict__

    def extra_repr(self) -> str:
        """The inputs, as the file has them."""
        return ", ".join(
            f"{name}: {'?' if value.shape is None else [size or '?' for size in value.shape]}"
            for name, value in zip(self.names, self.inputs, strict=True)
        )

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        if len(args) > len(self.names) or not set(named) <= set(self.names[len(args) :]):
            raise self._misfit()
        inputs = [*args, *(named.get(name) for name in self.names[len(args) :])]
        for declared, value in zip(self.inputs, inputs, strict=True):
            if value is None and declared.element_type:
                raise self._misfit()
        return inputs

    def _misfit(self) -> InputError:
        return InputError(
            "the inputs are not those of the ONNX file",
            f"it takes {', '.join(self.names)}",
            "give each once, in this order or by name",
        )

    def _device(self, inputs: Sequence[Any]) -> torch.device:
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        for tensor in (*tensors, *self.parameters(), *self.buffers()):
            return tensor.device
        return torch.device("cpu")

    def _store(self, name: str, tensor: Tensor) -> str:
        """Where the tensor is from now on: by its own name where modules can have it."""
        parts = name.split(".")
        owner: nn.Module = self
        if not _free(self, parts):
            plain = re.sub(r"\W", "_", name) or "weight"
            number, tried = 0, plain
            while hasattr(self, tried):
                number += 1
                tried = f"{plain}_{number}"
            parts = [tried]
        for part in parts[:-1]:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        if tensor.is_floating_point() or tensor.is_complex():
            owner.register_parameter(parts[-1], nn.Parameter(tensor, requires_grad=False))
        else:
            owner.register_buffer(parts[-1], tensor)
        return ".".join(parts)


def _weights_of_layers(graph: OnnxGraph) -> set[str]:
    """Values that products read on the right, as ONNX has the weights of linear layers: transposed
    to what torch has."""
    products = (node for node in all_nodes(graph) if len(node.inputs) > 1)
    return {
        node.inputs[1]
        for node in products
        if node.full_name == "MatMul"
        or (node.full_name == "Gemm" and not node.attributes.get("transB", 0))
    }


def _laid_as_layers(weight: Tensor) -> Tensor:
    """The matrix as it is, in memory as a linear layer of torch has it: kernels that read it are
    those of the same network from torch."""
    return weight.t().contiguous().t() if weight.dim() == 2 else weight


def onnx_module(file: OnnxFile, floats: torch.dtype, sizes: Sizes) -> OnnxModule:
    """A module of a class of its own, whose forward has the file's inputs as its signature."""
    names = tuple(written(value.name for value in file.graph.inputs))
    return _class_for(names)(file, floats, sizes)


def written(names: Iterator[str]) -> list[str]:
    """Names as Python can write them, each once.

    >>> written(iter(["input.1", "1", "lambda", "input_1"]))
    ['input_1', 'x1', 'lambda_', 'input_1_']
    """
    plain_names: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII) or "x"
        plain = f"x{plain}" if plain[0].isdigit() else plain
        while keyword.iskeyword(plain) or plain in plain_names or plain == "self":
            plain += "_"
        plain_names.append(plain)
    return plain_names


def read_names(graph: OnnxGraph) -> set[str]:
    """All names that a node, or a graph, reads."""
    names = set(graph.outputs)
    for node in all_nodes(graph):
        names.update(node.inputs)
        for value in node.attributes.values():
            if isinstance(value, OnnxGraph):
                names.update(value.outputs)
    return names


def _asked_as_numbers(graph: OnnxGraph) -> set[str]:
    """Names that operators want in Python, such as the scales of a Resize."""
    return {
        node.inputs[place]
        for node in all_nodes(graph)
        if node.full_name in OPERATORS
        for place in OPERATORS[node.full_name].numbers
        if place < len(node.inputs)
    }


def _free(module: nn.Module, parts: Sequence[str]) -> bool:
    """Whether modules can have a tensor by this path."""
    if not all(parts):
        return False
    owner: nn.Module | None = module
    for part in parts[:-1]:
        if owner is not None and part in owner._modules:
            owner = owner._modules[part]
        elif owner is not None and hasattr(owner, part):
            return False
        else:
            owner = None
    return not hasattr(owner or nn.Module(), parts[-1])


def _class_for(names: Sequence[str]) -> type[OnnxModule]:
    def forward(self: OnnxModule, *args: Any, **named: Any) -> Any:
        return OnnxModule.forward(self, *args, **named)

    by_name = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward.__signature__ = inspect.Signature([itself, *by_name])  # type: ignore[attr-defined]
    forward.__doc__ = OnnxModule.forward.__doc__
    return type("OnnxModule", (OnnxModule,), {"forward": forward, "__module__": __name__})


def _empty_module(names: Sequence[str]) -> OnnxModule:
    cls = _class_for(names)
    return cls.__new__(cls)


class _Constants(Mapping[str, Any]):
    """The module's weights, and the file's numbers, by their names in the file."""

    def __init__(self, module: OnnxModule) -> None:
        self._module = module
        self._program = module.program

    def __getitem__(self, name: str) -> Any:
        if (number := self._program.numbers.get(name)) is not None:
            return host(*number)
        path, _, last = self._program.places[name].rpartition(".")
        return getattr(self._module.get_submodule(path), last)

    def __iter__(self) -> Iterator[str]:
        yield from self._program.numbers
        yield from self._program.places

    def __len__(self) -> int:
        return len(self._program.numbers) + len(self._program.places)
