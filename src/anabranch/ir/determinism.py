"""Determinism: which operators of torch add up, or write, in an order that differs between runs.

    aten.index_add        atomic additions on a GPU; sorted first under torch's switch
    aten.cumsum           on a GPU, of floats: torch has no other kernel
    aten.index_put        on a CPU with several threads, too

What is listed is what `torch.use_deterministic_algorithms` lists: of the first kind are operators
that do otherwise while it is on, of the second those that it refuses. Generated kernels add up in a
fixed order, and so do cuDNN's engines that are asked for by name. An operator that is not torch's
is taken for deterministic: nobody can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.ir import custom_ops, ops
from anabranch.ir.graph import Graph, Node, Ref, refs, types
from anabranch.ir.refused import Refused
from anabranch.ir.state import written_parts
from anabranch.ir.task import IN_ORDER, IN_PLACE_IN_ORDER, Task
from anabranch.ir.tiles import ScatterTile, of_template
from anabranch.ir.variant import Variant


@dataclass(frozen=True, slots=True)
class _AnyOrder:
    """An operator whose order is not fixed. `switched`: it is under torch's switch; `cpu`: on a CPU
    too; `when`: of which calls that holds."""

    switched: bool = False
    cpu: bool = False
    when: Callable[[Node], bool] = lambda node: True


def _transposed(node: Node) -> bool:
    return bool(ops.arguments(node)["transposed"])


def _accumulates(node: Node) -> bool:
    return bool(ops.arguments(node)["accumulate"])


def _of_floats(node: Node) -> bool:
    return node.type.dtype.is_floating_point or node.type.dtype.is_complex


def _of_a_tensor(node: Node) -> bool:
    return isinstance(ops.arguments(node).get("src"), Ref)


def _multiplies(node: Node) -> bool:
    return ops.arguments(node)["reduce"] == "prod"


def _takes_the_largest(node: Node) -> bool:
    return ops.arguments(node)["mode"] == 2


def _weighted(node: Node) -> bool:
    return isinstance(ops.arguments(node).get("weights"), Ref)


_SWITCHED, _REFUSED = _AnyOrder(switched=True), _AnyOrder()
_TABLE: Mapping[str, tuple[_AnyOrder, ...]] = {
    custom_ops.CONV_WEIGHT_GRAD.removesuffix(".default"): (_SWITCHED,),
    "aten.convolution": (_AnyOrder(switched=True, when=_transposed),),
    **dict.fromkeys(
        (f"aten.conv_transpose{rank}d" for rank in (1, 2, 3)),
        (_SWITCHED,),
    ),
    **dict.fromkeys(("aten.index_add", "aten.scatter_add", "aten.index_reduce"), (_SWITCHED,)),
    **dict.fromkeys(
        ("aten.index_put", "aten._unsafe_index_put", "aten.index_copy"),
        (_AnyOrder(switched=True, cpu=True),),
    ),
    "aten.put": (
        _AnyOrder(cpu=True, when=lambda node: not _accumulates(node)),
        _AnyOrder(when=_accumulates),
    ),
    "aten.scatter": (_AnyOrder(switched=True, when=_of_a_tensor),),
    "aten.scatter_reduce": (
        _AnyOrder(when=_multiplies),
        _AnyOrder(switched=True, when=lambda node: not _multiplies(node)),
    ),
    "aten.max_pool3d_with_indices_backward": (_SWITCHED,),
    **dict.fromkeys(
        (f"aten.replication_pad{rank}d_backward" for rank in (1, 2, 3)),
        (_SWITCHED,),
    ),
    **dict.fromkeys(("aten.max_unpool2d", "aten.max_unpool3d"), (_AnyOrder(cpu=True),)),
    **dict.fromkeys(("aten.cumsum", "aten.cumprod"), (_AnyOrder(when=_of_floats),)),
    "aten._embedding_bag_dense_backward": (_AnyOrder(when=_takes_the_largest),),
    "aten.bincount": (_AnyOrder(when=_weighted),),
    **dict.fromkeys(
        (
            *("aten.avg_pool3d_backward", "aten._adaptive_avg_pool2d_backward"),
            *("aten._adaptive_avg_pool3d_backward", "aten.adaptive_max_pool2d_backward"),
            *("aten.adaptive_max_pool3d_backward", "aten.fractional_max_pool2d_backward"),
            *("aten.fractional_max_pool3d_backward", "aten.upsample_linear1d_backward"),
            *("aten.upsample_bilinear2d_backward", "aten.upsample_bicubic2d_backward"),
            *("aten.upsample_trilinear3d_backward", "aten.reflection_pad1d_backward"),
            *("aten.reflection_pad2d_backward", "aten.reflection_pad3d_backward"),
            *("aten.nll_loss2d_forward", "aten._ctc_loss_backward", "aten.histc"),
            *("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward", "aten.median"),
        ),
        (_REFUSED,),
    ),
}
"""By operator the calls of torch's own kernel that give other bits in another run."""


def any_order(body: Graph, kind: str) -> Refused | None:
    """Why torch's own kernels of these nodes may give other bits in another run on such a kind of
    machine (cuda, cpu); None if they do not."""
    for node in body.nodes:
        if _entry(node, kind) is not None:
            return Refused(f"{ops.packet_name(node.op)} works in any order on {_MACHINES[kind]}")
    return None


def switched(body: Graph, kind: str) -> bool:
    """Whether all of these nodes work in one order under `ir.deterministic_switch`."""
    entries = (_entry(node, kind) for node in body.nodes)
    return all(entry is None or entry.switched for entry in entries)


def repeated_places(body: Graph) -> Refused | None:
    """Why a generated kernel that writes parts of states may give other bits in another run: of
    two elements for one place either is there afterwards."""
    table = types(body)
    for node in body.nodes:
        if node.name in written_parts(body):
            arguments = ops.arguments(node)
            listed = (arguments.get("index"), arguments.get("indices"))
            if any(table[ref.name].numel > 1 for arg in listed for ref in refs(arg)):
                return Refused(f"two indices of {ops.packet_name(node.op)} may be equal")
    return None


def unordered(task: Task, kind: str) -> Refused | None:
    """Why the kernel chosen for the task may give other bits in another run, None if it does
    not."""
    kernel = task.kernel
    if kernel is not None and isinstance(kernel.variant, Variant):
        scatters = of_template(kernel.variant.tile, ScatterTile)
        return repeated_places(kernel.body) if scatters else None
    if kernel is None or kernel.provider != "aten":
        return None
    return None if kernel.variant in (IN_ORDER, IN_PLACE_IN_ORDER) else any_order(kernel.body, kind)


_MACHINES = {"cuda": "a GPU", "cpu": "a CPU"}


def _entry(node: Node, kind: str) -> _AnyOrder | None:
    for entry in _TABLE.get(ops.packet_name(node.op), ()):
        if (kind == "cuda" or entry.cpu) and entry.when(node):
            return entry
    return None
