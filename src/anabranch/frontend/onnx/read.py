"""A file of ONNX -> its graph and weights, checked: nothing is read beyond the file's folder.

    bytes --protobuf--> onnx-ir --functions inlined--> names, nodes, tensors (OnnxFile)

Whoever wrote the file decides about none of ours: lengths are compared with what is there before
memory is taken, functions that call each other a million times are refused before they are inlined,
and everything that onnx or onnx-ir raises is told as an OnnxError.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from anabranch.cache.whole_file import path_of
from anabranch.errors import OnnxError
from anabranch.frontend.onnx.check_graph import checked
from anabranch.frontend.onnx.door import onnx_packages
from anabranch.frontend.onnx.element_types import SMALL_BITS, dtype_of, shortest
from anabranch.frontend.onnx.graph import OnnxFile, OnnxGraph, OnnxInput, OnnxNode
from anabranch.frontend.onnx.opset import check_opset
from anabranch.frontend.onnx.tensors import tensor_of

MOST_BYTES = 1 << 31
"""Of a file: no message of protobuf is longer. Weights beyond it lie in files beside it."""
MOST_NODES = 1_000_000
"""Of a graph after its functions are inlined: a file of a kilobyte can call for 2**60."""
MOST_NUMBERS = 16
"""Of a node Constant that is no weight."""
ONNX_DOMAIN = ("", "ai.onnx")


def read_onnx(path: str | os.PathLike[str], floats: torch.dtype = torch.float32) -> OnnxFile:
    """The graph and the weights of a file, those in files beside it too.

    floats: what 32-bit floats of the file become. OptionError without the packages that read it,
    OnnxError for a file that cannot be read, or is not what it says.
    """
    onnx, ir = onnx_packages()
    place = path_of(path)
    proto = _parsed(onnx, place)
    if not proto.graph.ByteSize():
        raise OnnxError(
            f"{place.name} has no graph",
            "it is empty, cut off, or no file of ONNX",
            "export or copy the model again",
        )
    if proto.graph.sparse_initializer:
        _refuse_sparse(place.name, proto.graph.sparse_initializer[0].values.name)
    model = _told(place.name, lambda: ir.from_proto(proto))
    _told(place.name, lambda: _check_functions(place.name, model))
    if model.functions:
        _told(place.name, lambda: _keep_versions(place.name, model))
        inline = ir.passes.common.InlinePass()
        _told(place.name, lambda: inline(model))
    for domain, version in model.opset_imports.items():
        if domain in ONNX_DOMAIN:
            check_opset(place.name, version)
    reading = _Reading(place.absolute().parent, floats, dict(model.opset_imports))
    graph = _told(place.name, lambda: reading.graph(model.graph, {}))
    graph = replace(graph, name=place.name)
    return OnnxFile(checked(graph), reading.tensors, reading.scalars)


def _parsed(onnx: Any, place: Path) -> Any:
    try:
        size = place.stat().st_size
        if not place.is_file():
            raise OnnxError(f"{place} is no file", "a model of ONNX is one", "check the path")
        if size > MOST_BYTES:
            raise OnnxError(
                f"{place.name} has {size} bytes",
                "a file of ONNX has less than 2 GiB: larger weights lie in files beside it",
                "export it with external data",
            )
        data = place.read_bytes()
    except OSError as failed:
        raise OnnxError(
            f"cannot read {place}", failed.strerror or str(failed), "check the path"
        ) from failed
    return _told(place.name, lambda: onnx.ModelProto.FromString(data))


def _told(name: str, work: Callable[[], Any]) -> Any:
    """What the work returns; what onnx or onnx-ir raise is told in our words, and what they log of
    a wrong file is not heard."""
    logger = logging.getLogger("onnx_ir")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return work()
    except OnnxError:
        raise
    except Exception as failed:  # a file may be wrong in any way
        cause: BaseException = failed
        while (deeper := cause.__cause__ or cause.__context__) is not None:
            cause = deeper
        if isinstance(cause, NotImplementedError) and "parse" in str(cause):
            _refuse_sparse(name, "a constant")
        raise OnnxError(
            f"{name} cannot be read as a model of ONNX",
            f"{type(cause).__name__}: {str(cause).strip() or 'it is no message of protobuf'}",
            "it is cut off, damaged or no such file: export or copy the model again",
        ) from failed
    finally:
        logger.setLevel(before)


def _refuse_sparse(name: str, which: str) -> NoReturn:
    raise OnnxError(
        f"{name} has sparse tensors, {which} for one",
        "they are not supported, and a few numbers of them say a shape of any size",
        "export the model with weights that hold all their numbers",
    )


def _keep_versions(name: str, model: Any) -> None:
    """Note the set of operators in each node of a function that is meant in another than the model:
    in the model's place they would be taken for its own."""
    together = dict(model.opset_imports)
    for function in model.functions.values():
        own = dict(function.opset_imports)
        for node in function.all_nodes():
            node.version = node.version or own.get(node.domain)
        for domain, version in own.items():
            if domain in ONNX_DOMAIN:
                check_opset(name, version)
            function.opset_imports[domain] = together.setdefault(domain, version)


def _check_functions(name: str, model: Any) -> None:
    """OnnxError for functions that call themselves, or make a million nodes when inlined."""
    sizes: dict[Any, int] = {}
    calling: list[Any] = []

    def size(nodes: Iterator[Any]) -> int:
        total = 0
        for node in nodes:
            key = node.op_identifier()
            total += of_function(key) if key in model.functions else 1
            if total > MOST_NODES:
                raise OnnxError(
                    f"{name} has more than {MOST_NODES} nodes",
                    "its functions call each other that often",
                    "export the model without them",
                )
        return total

    def of_function(key: Any) -> int:
        if key in calling:
            names = " -> ".join(str(called[1]) for called in [*calling, key])
            raise OnnxError(
                f"{name} has functions that call themselves",
                names,
                "a function of ONNX may not: export the model again",
            )
        if key not in sizes:
            calling.append(key)
            sizes[key] = size(model.functions[key].all_nodes())
            calling.pop()
        return sizes[key]

    size(model.graph.all_nodes())


@dataclass
class _Reading:
    """What is collected while graphs are read: `tensors` and `scalars` by name."""

    folder: Path
    floats: torch.dtype
    versions: Mapping[str, int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, Tensor] = field(default_factory=dict)
    small: dict[str, int] = field(default_factory=dict)
    """Codes of values that are smaller than a byte, which their tensors do not show."""

    def graph(self, graph: Any, renamed: Mapping[str, str]) -> OnnxGraph:
        """`renamed`: names of constants around it that another graph's had before them."""
        renamed = dict(renamed)
        constants = []
        for key, value in graph.initializers.items():
            name = _text(key)
            if value.const_value is None:
                raise OnnxError(f"{name} has no data", "it is a weight", "export the model again")
            weight = len(value.const_value.shape) > 0
            floats = self.floats if weight else torch.float32
            tensor = tensor_of(value.const_value, self.folder, floats, name)
            self._note(name, int(value.const_value.dtype))
            constants.append(self._kept(name, tensor, renamed, weight))
        nodes = []
        for declared in graph.inputs:
            if type(declared.type).__name__ == "TensorType":
                self._note(declared.name, int(declared.type.dtype))
        for node in graph:
            plain = node.op_type == "Constant" and node.domain in ONNX_DOMAIN
            data = self._constant(node) if plain else None
            if data is None:
                nodes.append(self._node(node, renamed))
                continue
            name = _text(node.outputs[0].name)
            weight = data.numel() > MOST_NUMBERS  # few numbers in a node are a part of what it does
            if weight and data.dtype == torch.float32:
                data = data.to(self.floats)
            constants.append(self._kept(name, data, renamed, weight))
        inputs = tuple(_input(v) for v in graph.inputs if v.name not in graph.initializers)
        outputs = tuple(renamed.get(_text(v.name), _text(v.name)) for v in graph.outputs)
        return OnnxGraph(_text(graph.name), inputs, outputs, tuple(nodes), tuple(constants))

    def _kept(self, name: str, tensor: Tensor, renamed: dict[str, str], weight: bool) -> str:
        own, number = name, 0
        while own in self.tensors or own in self.scalars:
            number += 1
            own = f"{name}_{number}"
        if own != name:
            renamed[name] = own
        else:
            renamed.pop(name, None)
        (self.tensors if weight else self.scalars)[own] = tensor
        return own

    def _constant(self, node: Any) -> Tensor | None:
        """The tensor of a node Constant, with floats as the file has them; None for strings, which
        nothing here computes with."""
        for key, attribute in node.attributes.items():
            value = attribute.value
            if key == "value":
                self._note(node.outputs[0].name, int(value.dtype))
                return tensor_of(value, self.folder, torch.float32, node.outputs[0].name)
            if key in ("value_float", "value_floats"):
                return torch.tensor(value, dtype=torch.float32)
            if key in ("value_int", "value_ints"):
                return torch.tensor(value, dtype=torch.int64)
        return None

    def _node(self, node: Any, renamed: Mapping[str, str]) -> OnnxNode:
        domain = "" if node.domain in ONNX_DOMAIN else node.domain
        versions = (self.versions.get(key) for key in (domain, domain or "ai.onnx"))
        version = node.version or next((candidate for candidate in versions if candidate), 1)

        def named(value: Any) -> str:
            name = "" if value is None else _text(value.name)
            return renamed.get(name, name)

        onnx_node = OnnxNode(
            _text(node.op_type),
            _text(domain),
            tuple(map(named, node.inputs)),
            tuple(_text(value.name) for value in node.outputs),
            {_text(k): self._attribute(k, value, renamed) for k, value in node.attributes.items()},
            version,
            _text(node.name),
        )
        return onnx_node if domain else self._typed(onnx_node)

    def _note(self, name: str, code: int) -> None:
        if code in SMALL_BITS:
            self.small[name] = code

    def _typed(self, node: OnnxNode) -> OnnxNode:
        """The node with the type that a value of 2 or 4 bits gives it, said as an attribute."""
        if node.op == "Cast" and node.attributes.get("to") in SMALL_BITS:
            self.small[node.outputs[0]] = node.attributes["to"]
        elif node.op == "CastLike" and node.inputs[-1] in self.small:
            code = self.small[node.inputs[-1]]
            return replace(node, op="Cast", inputs=node.inputs[:1], attributes={"to": code})
        elif node.op == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[2] in self.small:
            said = {"output_dtype": self.small[node.inputs[2]], **node.attributes}
            return replace(node, attributes=said)
        return node

    def _attribute(self, key: str, attribute: Any, renamed: Mapping[str, str]) -> Any:
        """Numbers, texts and tuples of them; tensors, graphs, and dtypes of a type's code."""
        value = attribute.value
        kind = attribute.type.name
        if kind == "GRAPH":
            return self.graph(value, renamed)
        if kind == "TENSOR":
            return tensor_of(value, self.folder, self.floats, key)
        if kind in ("TYPE_PROTO", "TYPE_PROTOS", "SPARSE_TENSOR", "SPARSE_TENSORS", "GRAPHS"):
            return None
        if kind == "FLOATS":
            return tuple(map(shortest, value))
        if kind in ("INTS", "STRINGS"):
            return tuple(value)
        return shortest(value) if kind == "FLOAT" else value


def _text(name: Any) -> str:
    """A name; bytes that are no text, which onnx-ir passes on, with their numbers."""
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name or "")


def _input(value: Any) -> OnnxInput:
    kind = type(value.type).__name__ if value.type is not None else ""
    code = int(value.type.dtype) if kind == "TensorType" else 0
    if code:
        dtype_of(code)
    shape = None
    if value.shape is not None and code:
        shape = tuple(_size(size) for size in value.shape)
    return OnnxInput(_text(value.name), code, shape)


def _size(size: Any) -> int | str | None:
    if isinstance(size, int):
        return size if size >= 0 else None
    return _text(size.value) or None if getattr(size, "value", None) else None
