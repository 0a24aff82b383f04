"""Library kernels: each ATen operator as a kernel, and the fused calls that libraries have.

| provider | kernel | runs |
|---|---|---|
| aten | aten | the task's body, operator by operator; where it writes over a state, in place |
| aten | aten in_order | the same under torch's switch for deterministic algorithms |
| aten | cudnn_convolution[_add]_relu, addmm_activation | one fused ATen call |
| aten | scaled_dot_product_cudnn | cuDNN's attention, which ATen has and does not choose |
| cudnn | convolution | the body as one cuDNN graph, on one of the engines its heuristics name |

Providers write graphs and text; they touch no device. A candidate that a machine turns out not to
have is dropped when it is first tried.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.ir import ops
from anabranch.ir.attention_ops import CUDNN, WIDEST_HEAD
from anabranch.ir.determinism import any_order, switched
from anabranch.ir.graph import Arg, Graph, Node, Ref, types
from anabranch.ir.protocols import KernelOffer, Provider, offered
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import (
    IN_ORDER,
    IN_PLACE,
    IN_PLACE_IN_ORDER,
    PLAIN_VARIANT,
    Kernel,
    Task,
)
from anabranch.ir.types import TensorType
from anabranch.ir.variant import Variant
from anabranch.kernels import sources
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.kernels.writers import ROUNDABOUT, writes_there

CUDNN_ENGINES = 6
"""How many of cuDNN's engines are tried. On an H200, over ten convolution shapes, the fastest
was among the first six or within 1% of one of them."""


@dataclass(frozen=True, slots=True)
class AtenProvider:
    """The task's own body, always available; `in_order`: only if it gives the same bits in each
    run."""

    name: str = "aten"
    in_order: bool = False

    @property
    def version(self) -> str:
        """The digest of the rooms that decide: decisions kept under another one are not used."""
        return f"{sources.digest()} in order" if self.in_order else sources.digest()

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """The body itself as one kernel, and where that writes in a roundabout way also with memory
        of its own; none is refused that need not run in order."""
        if not self.in_order or any_order(task.body, spec.kind) is None:
            whole = _whole_body(task)
            roundabout = ops.packet_name(task.body.nodes[-1].op) in ROUNDABOUT
            both = spec.kind == "cuda" and roundabout and whole.writes_out and not task.overwrites
            return [whole, _plain(task)] if both else [whole]
        return [_whole_body(task, in_order=True)] if switched(task.body, spec.kind) else []

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels."""
        return list(map(offered, self.kernels(task, spec)))

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """`PLAIN_VARIANT`: as eager runs it, with memory of its own for all results."""
        if (name, variant) == ("aten", PLAIN_VARIANT) and not task.overwrites:
            return _plain(task)
        return _named([_whole_body(task), _whole_body(task, in_order=True)], name, variant)


@dataclass(frozen=True, slots=True)
class FusedAtenProvider:
    """Fused operators that ATen has beside the plain ones."""

    name: str = "aten"

    @property
    def version(self) -> str:
        """The digest of the rooms that decide."""
        return sources.digest()

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """Convolutions with bias and relu, and linears with gelu, as one call of ATen, and
        attention by cuDNN; on CUDA alone."""
        if spec.kind != "cuda" or _is_empty(task.body) or task.overwrites:
            return []
        bodies = [_fused_convolution(task.body), _fused_linear(task.body)]
        if not spec.simulated:  # of which nothing was recorded
            bodies.append(_cudnn_attention(task.body))
        return [
            aten_kernel(ops.packet_name(body.nodes[-1].op).rpartition(".")[2].strip("_"), body)
            for body in bodies
            if body is not None
        ]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels."""
        return list(map(offered, self.kernels(task, spec)))

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """That kernel of the task; ValueError if there is none of the name and variant."""
        return _named(self.kernels(task, spec), name, variant)


@dataclass(frozen=True, slots=True)
class CudnnProvider:
    """cuDNN's graph interface, if its Python package is installed."""

    name: str = "cudnn"
    engines: int = CUDNN_ENGINES

    @property
    def version(self) -> str:
        """The digest of the rooms that decide, the version of nvidia-cudnn-frontend, and how many
        engines are offered."""
        installed = sources.installed("nvidia-cudnn-frontend")
        return f"{sources.digest()} {installed}, {self.engines} engines"

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """A kernel for each of cuDNN's engines, if the package is installed and the body is a
        convolution that it runs."""
        if spec.kind != "cuda" or not (spec.simulated or importlib.util.find_spec("cudnn")):
            return []
        if not fits_cudnn(task.body):
            return []
        return [
            Kernel("cudnn", "convolution", task.body, str(engine), writes_out=True)
            for engine in range(self.engines)
        ]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels."""
        return list(map(offered, self.kernels(task, spec)))

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """That kernel of the task; ValueError if there is none of the name and variant."""
        return _named(self.kernels(task, spec), name, variant)


PROVIDERS: tuple[Provider, ...] = (AtenProvider(), FusedAtenProvider(), CudnnProvider())

ALL: tuple[Provider, ...] = (
    AtenProvider(),
    FusedAtenProvider(),
    CudnnProvider(engines=3),
    TritonProvider(),
)
"""With generated kernels. Building cuDNN's engines takes most of a library's tuning; where the
first three lose to a generated kernel, so do the others."""
LIMITED: tuple[Provider, ...] = (*ALL[:-1], TritonProvider(pruning="limit"))
"""With generated kernels, of which those are tried that may come nearest to the machine's peak."""


def with_all_engines(providers: Sequence[Provider]) -> tuple[Provider, ...]:
    """These, with as many of cuDNN's engines as where the library is alone."""
    return tuple(
        replace(provider, engines=CUDNN_ENGINES)
        if isinstance(provider, CudnnProvider)
        else provider
        for provider in providers
    )


def in_order(providers: Sequence[Provider]) -> tuple[Provider, ...]:
    """These, of which torch's operators, and kernels that write parts of states, are offered only
    if they give the same bits in each run."""
    return tuple(
        replace(provider, in_order=True)
        if isinstance(provider, AtenProvider | TritonProvider)
        else provider
        for provider in providers
    )


def _plain(task: Task) -> Kernel:
    return replace(aten_kernel("aten", task.body), variant=PLAIN_VARIANT, writes_out=False)


def _whole_body(task: Task, in_order: bool = False) -> Kernel:
    if task.overwrites:
        variant = IN_PLACE_IN_ORDER if in_order else IN_PLACE
        return replace(aten_kernel("aten", task.body), variant=variant, writes_out=True)
    kernel = aten_kernel("aten", task.body)
    return replace(kernel, variant=IN_ORDER) if in_order else kernel


def aten_kernel(name: str, body: Graph) -> Kernel:
    """The kernel that runs the body with ATen; it writes in place if its last operator can."""
    last = body.nodes[-1]
    outputs = {ref.name for ref in body.outputs}
    table = types(body)
    writes_out = outputs <= set(last.results) and writes_there(last, table)
    launches = sum(not ops.is_view(node, table) for node in body.nodes)
    return Kernel("aten", name, body, writes_out=writes_out, launches=launches)


def _named(kernels: Sequence[Kernel], name: str, variant: Variant | str) -> Kernel:
    for kernel in kernels:
        if (kernel.name, kernel.variant) == (name, variant):
            return kernel
    raise ValueError(f"no kernel {name} {variant}")


def _is_empty(body: Graph) -> bool:
    """Whether it reads or makes a value of no elements, which fused calls do not take: cuDNN's
    front end ends the process."""
    return any(type.numel == 0 for type in types(body).values())


def fits_cudnn(body: Graph) -> bool:
    """Whether it is convolution [+ add] [+ relu], two-dimensional, of types cuDNN multiplies."""
    kinds = [ops.packet_name(node.op) for node in body.nodes]
    if kinds[:1] != ["aten.convolution"] or _is_empty(body):
        return False
    if kinds[1:] not in ([], ["aten.relu"], ["aten.add"], ["aten.add", "aten.relu"]):
        return False
    if not _makes_the_last_alone(body):
        return False
    conv = ops.arguments(body.nodes[0])
    table = types(body)
    two_dimensional = len(body.nodes[0].type.shape) == 4 and not conv["transposed"]
    supported = body.nodes[0].type.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return two_dimensional and supported and _plain_add(body, table)


def _makes_the_last_alone(body: Graph) -> bool:
    """Whether nobody reads what is made on the way: a fused call makes one result."""
    return {ref.name for ref in body.outputs} <= set(body.nodes[-1].results)


def _plain_add(body: Graph, table: Mapping[str, TensorType]) -> bool:
    """Whether the residual, if there is one, is another value of the result's shape and weight."""
    for node in body.nodes:
        if ops.packet_name(node.op) == "aten.add":
            arguments = ops.arguments(node)
            if arguments["self"] == arguments["other"]:
                return False
            for side in (arguments["self"], arguments["other"]):
                if not isinstance(side, Ref) or table[side.name].shape != node.type.shape:
                    return False
            if arguments.get("alpha", 1) != 1:
                return False
    return True


def _fused_convolution(body: Graph) -> Graph | None:
    """A convolution [+ add] + relu as `cudnn_convolution[_add]_relu`."""
    if not fits_cudnn(body) or ops.packet_name(body.nodes[-1].op) != "aten.relu":
        return None
    conv, last = ops.arguments(body.nodes[0]), body.nodes[-1]
    shape: tuple[Arg, ...] = (conv["stride"], conv["padding"], conv["dilation"], conv["groups"])
    if len(body.nodes) == 2:
        op = "aten.cudnn_convolution_relu.default"
        args: tuple[Arg, ...] = (conv["input"], conv["weight"], conv["bias"], *shape)
    else:
        add = body.nodes[1]
        residual = next(
            arg for arg in add.args[:2] if isinstance(arg, Ref) and arg.name != body.nodes[0].name
        )
        op = "aten.cudnn_convolution_add_relu.default"
        args = (conv["input"], conv["weight"], residual, 1.0, conv["bias"], *shape)
    fused = Node(last.name, op, args, (), last.types, body.nodes[0].origin)
    return replace(body, nodes=(fused,))


def _fused_linear(body: Graph) -> Graph | None:
    """A linear layer and relu, or gelu by tanh, of a matrix as `_addmm_activation`, whose epilogue
    does both."""
    kinds = [ops.packet_name(node.op) for node in body.nodes]
    if kinds not in (["aten.linear", "aten.relu"], ["aten.linear", "aten.gelu"]):
        return None
    if not _makes_the_last_alone(body):
        return None
    table, (linear, last) = types(body), body.nodes
    gelu = kinds[1] == "aten.gelu"
    if gelu and ops.arguments(last)["approximate"] != "tanh":
        return None
    arguments = ops.arguments(linear)
    x, weight, bias = arguments["input"], arguments["weight"], arguments["bias"]
    if not (isinstance(x, Ref) and isinstance(weight, Ref) and isinstance(bias, Ref)):
        return None
    if len(table[x.name].shape) != 2:
        return None
    transposed = ops.make_node(f"{last.name}_t", "aten.t.default", (weight,), table)
    args: tuple[Arg, ...] = (bias, x, Ref(transposed.name))
    named: tuple[tuple[str, Arg], ...] = (("use_gelu", True),) if gelu else ()
    op = "aten._addmm_activation.default"
    fused = Node(last.name, op, args, named, last.types, linear.origin)
    return replace(body, nodes=(transposed, fused))


def _cudnn_attention(body: Graph) -> Graph | None:
    """An attention of one head size, in a half type, by cuDNN."""
    if len(body.nodes) != 1 or body.nodes[0].op != ops.ATTENTION:
        return None
    (node,), table = body.nodes, types(body)
    arguments = ops.arguments(node)
    q, k, v = (arguments[name] for name in ("query", "key", "value"))
    if not (isinstance(q, Ref) and isinstance(k, Ref) and isinstance(v, Ref)):
        return None
    sizes = [table[ref.name].shape for ref in (q, k, v)]
    half = node.type.dtype in (torch.float16, torch.bfloat16)
    plain = not arguments.get("dropout_p") and not arguments.get("enable_gqa")
    if not half or not plain or any(len(shape) != 4 for shape in sizes):
        return None
    heads = {shape[1] for shape in sizes}, {shape[-1] for shape in sizes}
    if any(len(each) > 1 for each in heads) or sizes[0][-1] % 8 or sizes[0][-1] > WIDEST_HEAD:
        return None
    mask, scale = arguments.get("attn_mask"), arguments.get("scale")
    if isinstance(mask, Ref) and table[mask.name].dtype not in (torch.bool, node.type.dtype):
        return None
    by = 1.0 / math.sqrt(sizes[0][-1]) if scale is None else scale
    args: tuple[Arg, ...] = (q, k, v, mask, bool(arguments.get("is_causal")), by)
    fused = ops.make_node(node.name, CUDNN, args, table, (), node.origin)
    return replace(body, nodes=(fused,)) if fused.types == node.types else None
