"""The door to cuDNN's graph interface (package nvidia-cudnn-frontend): convolutions with bias,
residual and activation as one launch that writes where it is told, on an engine of our choice.

    body                                      cuDNN graph
    %c = aten.convolution(%x, %w, %b, ...)    conv_fprop -> bias
    %a = aten.add.Tensor(%c, %z)              add
    %r = aten.relu.default(%a)                relu -> y (real strides of the value)

A kernel's variant "3" is the fourth engine that cuDNN's heuristics (mode A) name for the graph.
Measured on an H200: building a precompiled engine takes microseconds, a run-time fused one 0.2 s,
and reading either back from its serialised form 8 ms; so what plans use is kept in the cache.
Engines whose sums come out otherwise from run to run are left out.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anabranch.cache import RAW, Cache, Table
from anabranch.errors import TargetError
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Ref, types
from anabranch.ir.key import structure_text
from anabranch.ir.task import Kernel, Task
from anabranch.ir.threads import Pool
from anabranch.ir.types import TensorType


def available() -> bool:
    """Whether nvidia-cudnn-frontend is installed; it is not imported."""
    return importlib.util.find_spec("cudnn") is not None


@dataclass(frozen=True, slots=True)
class Engine:
    """A built cuDNN plan: its graph, its index there (None if it was read back and is the only
    one), and its workspace in bytes."""

    graph: Any
    index: int | None
    workspace: int


ALIGNMENT = 16
"""Of bytes: what graphs of cuDNN's front end expect of every tensor."""
BUILDERS = 8
"""Threads that build engines."""
ENGINES = Table("kernels", "cudnn engine 2", RAW)
UIDS = {"x": 1, "w": 2, "b": 3, "z": 4, "y": 5}
"""What each role of a convolution is called in cuDNN's graphs: image, weight, bias, residual and
result."""


@dataclass(frozen=True, slots=True)
class HandlePool:
    """Handles of a library, each lent to one thread at a time and never destroyed: as many as were
    in use at once. A handle of cuDNN has streams of its own, of which a GPU has few."""

    make: Callable[[], Any]
    free: list[Any] = field(default_factory=list)

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """A handle that nobody else has until the block ends."""
        try:
            handle = self.free.pop()
        except IndexError:
            handle = self.make()
        try:
            yield handle
        finally:
            self.free.append(handle)


@functools.cache
def handles(device: torch.device) -> HandlePool:
    """The process's handles for a device, whatever number of targets uses it."""

    def make() -> Any:
        import cudnn

        with torch.cuda.device(device):  # which a handle is made for
            return cudnn.create_handle()

    return HandlePool(make)


class Cudnn:
    """cuDNN on one device: the engines built so far, by structure."""

    def __init__(self, tf32: bool, device: torch.device) -> None:
        self._device = device
        self._handles = handles(device)
        self._tf32 = tf32
        self._engines: dict[tuple[str, str], Engine | TargetError] = {}

    @functools.cached_property
    def _cudnn(self) -> Any:
        """The front end, which takes 50 ms to import: plans without a kernel of it do not wait."""
        import cudnn

        return cudnn

    def engine(self, kernel: Kernel) -> Engine:
        """The engine a kernel names, built on first use. TargetError if cuDNN has none such."""
        key = (structure_text(kernel.body), str(kernel.variant))
        if key not in self._engines:
            self._engines[key] = self._attempt(kernel)
        engine = self._engines[key]
        if isinstance(engine, TargetError):
            raise engine
        return engine

    def build(
        self, kernels: Iterable[Kernel], cache: Cache | None = None, machine: str = ""
    ) -> None:
        """Build what these kernels name, side by side, or read it from the cache, where what is
        built is also kept; `machine` is part of its keys. They are read one by one: reading holds
        Python's lock, and each thread would make a handle. Engines that fail are heard when they
        are asked for."""
        wanted = {
            (structure_text(kernel.body), str(kernel.variant)): kernel
            for kernel in kernels
            if kernel.provider == "cudnn"
        }
        missing = {key: kernel for key, kernel in wanted.items() if key not in self._engines}
        names = {key: ENGINES.key(machine, f"{key[0]}{key[1]}") for key in wanted}
        kept = ENGINES.get_many(cache, {key: names[key] for key in missing})
        read = {key: self._read(data) for key, data in kept.items()}
        self._engines.update({key: engine for key, engine in read.items() if engine})
        missing = {key: kernel for key, kernel in missing.items() if key not in self._engines}

        # What is kept has a graph of its own: a graph is written with the last plan it built.
        graphs = _by_graph(missing, alone=cache is not None)

        def attempt(keys: Sequence[tuple[str, str]]) -> list[Engine | TargetError]:
            with torch.cuda.device(self._device):  # a new thread begins with the first GPU
                return self._attempt_all([missing[key] for key in keys])

        with Pool(BUILDERS, "anabranch-cudnn") as pool:
            built = {
                key: engine
                for keys, engines in zip(graphs, pool.map(attempt, graphs), strict=True)
                for key, engine in zip(keys, engines, strict=True)
            }
        self._engines.update(built)
        if cache is not None:
            for key, outcome in built.items():
                data = _serialised(outcome) if isinstance(outcome, Engine) else None
                if data is not None:
                    ENGINES.put(cache, names[key], data)

    def runner(
        self, task: Task, values: dict[str, Tensor], workspace: Tensor | None
    ) -> Callable[[], None]:
        """The call of a task whose kernel has provider "cudnn" (see `targets.loading.Runner`)."""
        assert task.kernel is not None
        engine, body = self.engine(task.kernel), task.kernel.body
        roles = _roles(body)
        scratch = workspace
        if scratch is None or scratch.numel() < engine.workspace:
            device = next(iter(values.values())).device
            scratch = torch.empty(engine.workspace, dtype=torch.uint8, device=device)

        def call() -> None:
            held = {role: _aligned(values[name], role == "y") for role, name in roles.items()}
            pointers = {UIDS[role]: tensor.data_ptr() for role, tensor in held.items()}
            stream = torch.cuda.current_stream(self._device).cuda_stream
            with self._handles.lend() as handle:
                self._cudnn.set_stream(handle=handle, stream=stream)
                if engine.index is None:
                    engine.graph.execute(pointers, scratch.data_ptr(), handle=handle)
                else:
                    engine.graph.execute_plan_at_index(
                        pointers, scratch.data_ptr(), engine.index, handle=handle
                    )
            out = values[roles["y"]]
            if held["y"] is not out:
                out.copy_(held["y"])

        return call

    def _attempt(self, kernel: Kernel) -> Engine | TargetError:
        """The engine, or why there is none: asked again, cuDNN would say the same, and as late."""
        try:
            return self._build(kernel)
        except TargetError as failed:
            return failed

    def _attempt_all(self, kernels: Sequence[Kernel]) -> list[Engine | TargetError]:
        """As `_attempt` for kernels of one structure, as plans of one graph: describing it and
        asking the heuristics takes as long as building. What fails there is attempted alone."""
        shared: list[Engine | None] = [None] * len(kernels)
        if len(kernels) > 1:
            with suppress(TargetError, *self._failures), self._handles.lend() as handle:
                graph = self._describe(kernels[0].body, handle)
                for at, kernel in enumerate(kernels):
                    with suppress(TargetError, *self._failures):
                        shared[at] = _planned(graph, kernel)
        return [
            engine or self._attempt(kernel) for engine, kernel in zip(shared, kernels, strict=True)
        ]

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        """What cuDNN's front end raises."""
        return RuntimeError, self._cudnn.cudnnGraphNotSupportedError

    def _build(self, kernel: Kernel) -> Engine:
        try:
            with self._handles.lend() as handle:
                return _planned(self._describe(kernel.body, handle), kernel)
        except self._failures as failed:
            raise TargetError(
                f"cuDNN cannot run {kernel.name} ({kernel.variant})",
                str(failed).splitlines()[0] if str(failed) else type(failed).__name__,
                "another kernel of the task is used",
            ) from failed

    def _read(self, data: bytes) -> Engine | None:
        """An engine from its serialised form; None if this cuDNN does not take it."""
        try:
            with self._handles.lend() as handle:
                graph = self._cudnn.pygraph(handle=handle)
                graph.deserialize(handle, list(data))  # 1.18 takes no bytes
            return Engine(graph, None, graph.get_workspace_size())
        except (TypeError, RuntimeError, self._cudnn.cudnnGraphNotSupportedError):
            return None

    def _describe(self, body: Graph, handle: Any) -> Any:
        """The cuDNN graph of a kernel's body, with its heuristics already asked."""
        cudnn, table = self._cudnn, types(body)
        io_type = self._dtype(body.nodes[0].type.dtype)
        graph = cudnn.pygraph(
            io_data_type=io_type,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=handle,
        )
        tensors: dict[str, Any] = {}
        for role, name in _roles(body).items():
            if role != "y":
                tensors[name] = self._tensor(graph, role, table[name], role == "b")
                tensors[name].set_uid(UIDS[role])
        for node in body.nodes:
            tensors[node.name] = _translate(graph, node.op, ops.arguments(node), tensors)
        out = tensors[body.outputs[0].name]
        type = table[body.outputs[0].name]
        out.set_output(True).set_data_type(io_type)
        out.set_dim(list(type.shape)).set_stride(_strides(type))
        out.set_uid(UIDS["y"])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        notes = [cudnn.numerical_note.NONDETERMINISTIC]
        if body.nodes[0].type.dtype == torch.float32 and not self._tf32:
            notes.append(cudnn.numerical_note.TENSOR_CORE)
        graph.deselect_numeric_notes(notes)
        graph.check_support()
        return graph

    def _tensor(self, graph: Any, name: str, type: TensorType, per_channel: bool) -> Any:
        if per_channel:
            k = type.shape[0]
            shape, strides = [1, k, 1, 1], [k, 1, k, k]
        else:
            shape, strides = list(type.shape), _strides(type)
        return graph.tensor(name=name, dim=shape, stride=strides, data_type=self._dtype(type.dtype))

    def _dtype(self, dtype: torch.dtype) -> Any:
        kinds = self._cudnn.data_type
        return {
            torch.float16: kinds.HALF,
            torch.bfloat16: kinds.BFLOAT16,
            torch.float32: kinds.FLOAT,
        }[dtype]


def _planned(graph: Any, kernel: Kernel) -> Engine:
    """The plan of a described graph that a kernel names, built. TargetError if there is none."""
    index, count = int(str(kernel.variant) or 0), graph.get_execution_plan_count()
    if index >= count:
        raise TargetError(
            f"cuDNN has no engine {index} for this convolution",
            f"its heuristics name {count}",
            "choose a smaller variant",
        )
    graph.build_plan_at_index(index)
    return Engine(graph, index, graph.get_workspace_size_plan_at_index(index))


def _by_graph(keys: Iterable[tuple[str, str]], alone: bool) -> list[list[tuple[str, str]]]:
    """Keys of engines whose plans one graph has: those of one structure, or each by itself."""
    if alone:
        return [[key] for key in keys]
    groups: dict[str, list[tuple[str, str]]] = {}
    for key in keys:
        groups.setdefault(key[0], []).append(key)
    return list(groups.values())


def _aligned(tensor: Tensor, written: bool) -> Tensor:
    """The tensor, or a copy of it that begins where cuDNN's engines can load pieces of 16 bytes: a
    slice of another value may begin anywhere. `written`: its content is not needed."""
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy if written else copy.copy_(tensor)


def _serialised(engine: Engine) -> bytes | None:
    """A newly built engine as bytes, compiled code included; None if it was read back itself, or
    cuDNN cannot write it."""
    if engine.index is None:
        return None
    try:
        return bytes(engine.graph.serialize())
    except RuntimeError:
        return None


def _translate(graph: Any, op: str, arguments: dict[str, Any], tensors: dict[str, Any]) -> Any:
    def use(name: str) -> Any:
        return tensors[arguments[name].name]

    match ops.packet_name(op):
        case "aten.convolution":
            result = graph.conv_fprop(
                image=use("input"),
                weight=use("weight"),
                padding=list(arguments["padding"]),
                stride=list(arguments["stride"]),
                dilation=list(arguments["dilation"]),
            )
            return graph.bias(input=result, bias=use("bias")) if arguments["bias"] else result
        case "aten.add":
            return graph.add(a=use("self"), b=use("other"))
        case "aten.relu":
            return graph.relu(input=use("self"))
    raise TargetError(
        f"cuDNN graphs of ours lack {op}", "it has no translation", "use provider aten"
    )


def _roles(body: Graph) -> dict[str, str]:
    """What each value of the body is to cuDNN: x, w, b (bias), z (residual), y."""
    conv = ops.arguments(body.nodes[0])
    roles = {"x": conv["input"], "w": conv["weight"]}
    if conv["bias"] is not None:
        roles["b"] = conv["bias"]
    for node in body.nodes[1:]:
        inner = {n.name for n in body.nodes}
        for arg in node.args:
            if isinstance(arg, Ref) and arg.name not in inner:
                roles["z"] = arg
    names = {role: ref.name for role, ref in roles.items() if isinstance(ref, Ref)}
    return {**names, "y": body.outputs[0].name}


def _strides(type: TensorType) -> list[int]:
    """The value's strides, made canonical where sizes of 1 leave them open: cuDNN takes a tensor
    for NHWC only if its strides are those of a dense NHWC tensor."""
    _, c, *space = type.shape
    dense: list[int] = []
    step = c
    for size in reversed(space):
        dense.insert(0, step)
        step *= size
    nhwc = [step, 1, *dense]
    agrees = all(
        size == 1 or have == want
        for size, have, want in zip(type.shape, type.strides, nhwc, strict=True)
    )
    return nhwc if agrees else list(type.strides)
