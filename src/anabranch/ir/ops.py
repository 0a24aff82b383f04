"""The op table: what rewriting, fusing and costing must know about the operators we know.

An operator that the table lacks is *opaque*: it still runs, as a library call, and its types still
come from meta tensors; it is only never rewritten, fused or counted as free.

>>> OPS["aten.relu"].kind
'pointwise'
>>> info("aten.relu.default").kind, info("mylib.secret.default").kind
('pointwise', 'opaque')
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from anabranch.ir import custom_ops, functional_forms
from anabranch.ir.graph import Arg, Node, Ref, rename
from anabranch.ir.type_cache import ANSWERS
from anabranch.ir.types import TensorType, meta, type_of

OperatorKind = Literal["pointwise", "reduce", "contract", "move", "view", "factory", "opaque"]
"""pointwise: one element in, one out (broadcasting allowed) · reduce: folds a window or an axis ·
contract: multiply-accumulate over an axis · move: copies elements · view: renames them, no launch ·
factory: reads no tensor · opaque: unknown."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """kind, and arithmetic operations per call given (input types, output types, arguments)."""

    kind: OperatorKind
    flops: Callable[[Node, Mapping[str, TensorType]], int] | None = None


@functools.cache
def packet_name(op: str) -> str:
    """The name without its overload: aten.add.Tensor -> aten.add."""
    return op.rpartition(".")[0]


PROBABILITIES = frozenset(
    f"aten.{name}"
    for name in (
        *("bernoulli", "binary_cross_entropy", "binomial", "logit", "multinomial", "poisson"),
        *("special_entr", "xlogy"),
    )
)
"""Operators whose floats are probabilities, or at least not negative. Given others they refuse to
run or answer NaN; on a GPU some end the process."""


def probabilities(nodes: Iterable[Node]) -> set[str]:
    """The values that such operators read."""
    return {name for node in nodes if packet_name(node.op) in PROBABILITIES for name in node.uses}


def _conv_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    weight = types[_ref(node.args[1])]
    transposed = "conv_transpose" in node.op or (
        node.op == "aten.convolution.default" and bool(node.args[6])
    )
    if transposed:
        return 2 * types[_ref(node.args[0])].numel * math.prod(weight.shape[1:])
    return 2 * node.type.numel * math.prod(weight.shape[1:])


def _weight_grad_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Every number of the gradient of the result with every tap that made it."""
    return 2 * types[_ref(node.args[0])].numel * math.prod(node.type.shape[1:])


UNIFORM_STEPS = 60
"""Instructions for a random number: ten rounds of two long products and two sums of bits."""


def _uniform_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    return UNIFORM_STEPS * node.type.numel


def _matmul_flops(a: int) -> Callable[[Node, Mapping[str, TensorType]], int]:
    def flops(node: Node, types: Mapping[str, TensorType]) -> int:
        return 2 * node.type.numel * types[_ref(node.args[a])].shape[-1]

    return flops


def _attention_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Every query with every key, and every weight with what stands there; masks spare nothing."""
    query, key = types[_ref(node.args[0])], types[_ref(node.args[1])]
    return 2 * (query.numel + node.type.numel) * key.shape[-2]


def _attention_backward_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Five products, of which the forward has two: the weights are computed again."""
    query, key, value = (types[_ref(arg)] for arg in node.args[1:4])
    return (
        2 * (3 * query.numel + 2 * query.numel // query.shape[-1] * value.shape[-1]) * key.shape[-2]
    )


def _recurrent_flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Every weight with every element of its sequence."""
    steps, batch = _sequence(node, types)
    weights = arguments(node)["params"]
    assert isinstance(weights, tuple)
    matrices = (types[_ref(weight)] for weight in weights)
    return 2 * steps * batch * sum(type.numel for type in matrices if len(type.shape) == 2)


def _sequence(node: Node, types: Mapping[str, TensorType]) -> tuple[int, int]:
    """The length of what a recurrent operator reads, and how many such sequences there are; of
    packed ones, of several lengths, one step of all."""
    first, second = types[_ref(node.args[0])].shape[:2]
    if not node.op.endswith(".input"):
        return 1, first
    return (second, first) if arguments(node)["batch_first"] else (first, second)


def _ref(arg: Arg) -> str:
    assert isinstance(arg, Ref)
    return arg.name


def _kind(kind: OperatorKind, names: str) -> dict[str, OpInfo]:
    return {f"aten.{name}": OpInfo(kind) for name in names.split()}


RECURRENT = ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")
LOOKUPS = frozenset({"aten.embedding", "aten.index", "aten.index_select", "aten.gather"})
"""What reads of its first operand no more than it finds there."""

OPS: dict[str, OpInfo] = {
    **_kind(
        "pointwise",
        "abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor celu ceil clamp "
        "clamp_max clamp_min cos div elu eq erf erfc exp exp2 expm1 fill floor floor_divide fmod "
        "frac ge gelu gt hardsigmoid hardswish hardtanh heaviside hypot isinf isnan le leaky_relu "
        "lerp log log10 log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or "
        "logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg pow "
        "reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin softplus "
        "special_logit special_xlogy sqrt square sub tan tanh threshold trunc where xlogy "
        "empty_like full_like ones_like zeros_like _prelu_kernel _to_copy "
        "elu_backward gelu_backward hardshrink_backward hardsigmoid_backward hardswish_backward "
        "hardtanh_backward huber_loss_backward leaky_relu_backward mish_backward sigmoid_backward "
        "silu_backward smooth_l1_loss_backward softplus_backward softshrink_backward "
        "tanh_backward threshold_backward _prelu_kernel_backward",
    ),
    **_kind(
        "reduce",
        "_adaptive_avg_pool2d _log_softmax _softmax adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d all amax "
        "amin aminmax any argmax argmin avg_pool1d avg_pool2d avg_pool3d batch_norm col2im "
        "cummax cummin cumprod cumsum glu group_norm instance_norm layer_norm linalg_vector_norm "
        "log_softmax logcumsumexp logsumexp max max_pool1d max_pool2d max_pool2d_with_indices "
        "max_pool3d max_pool3d_with_indices mean min native_batch_norm native_group_norm "
        "native_layer_norm max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
        "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "norm prod rms_norm softmax std sum var var_mean _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training",
    ),
    **_kind(
        "move",
        "cat channel_shuffle clone constant_pad_nd contiguous copy embedding flip gather "
        "grid_sampler_2d im2col index index_select native_channel_shuffle new_empty pad "
        "pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat "
        "replication_pad1d replication_pad2d replication_pad3d roll scatter select_scatter "
        "slice_scatter stack tril triu upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d "
        "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    **_kind(
        "view",
        "alias as_strided chunk detach diagonal expand expand_as lift_fresh movedim narrow permute "
        "select slice split split_with_sizes squeeze swapaxes t transpose unbind unfold unsqueeze "
        "view view_as view_as_complex view_as_real",
    ),
    **_kind("factory", "arange empty eye full ones scalar_tensor zeros"),
    packet_name(custom_ops.RECURRENCE): OpInfo("reduce"),
    packet_name(custom_ops.UNIFORM): OpInfo("pointwise", _uniform_flops),
    packet_name(custom_ops.CONV_WEIGHT_GRAD): OpInfo("contract", _weight_grad_flops),
    packet_name(custom_ops.WIDE_MM): OpInfo("contract", _matmul_flops(0)),
    packet_name(custom_ops.ATTENTION): OpInfo("contract", _attention_flops),
    packet_name(custom_ops.CUDNN_ATTENTION): OpInfo("contract", _attention_flops),
    packet_name(custom_ops.ATTENTION_BACKWARD): OpInfo("contract", _attention_backward_flops),
    "aten.reshape": OpInfo("move"),
    "aten.flatten": OpInfo("move"),
    "aten.unflatten": OpInfo("move"),
    "aten._unsafe_view": OpInfo("move"),
    "aten.convolution": OpInfo("contract", _conv_flops),
    **{
        f"aten.{name}": OpInfo("contract", _conv_flops)
        for name in (
            *("conv1d", "conv2d", "conv3d", "_convolution"),
            *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        )
    },
    "aten.cudnn_convolution": OpInfo("contract", _conv_flops),
    "aten.cudnn_convolution_relu": OpInfo("contract", _conv_flops),
    "aten.cudnn_convolution_add_relu": OpInfo("contract", _conv_flops),
    "aten.mm": OpInfo("contract", _matmul_flops(0)),
    "aten.bmm": OpInfo("contract", _matmul_flops(0)),
    "aten.addmm": OpInfo("contract", _matmul_flops(1)),
    "aten._addmm_activation": OpInfo("contract", _matmul_flops(1)),
    "aten.baddbmm": OpInfo("contract", _matmul_flops(1)),
    "aten.linear": OpInfo("contract", _matmul_flops(0)),
    "aten.matmul": OpInfo("contract", _matmul_flops(0)),
    "aten.scaled_dot_product_attention": OpInfo("contract", _attention_flops),
    **{name: OpInfo("opaque", _recurrent_flops) for name in RECURRENT},
    **{
        f"aten._scaled_dot_product_{kind}": OpInfo("contract", _attention_flops)
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
            "fused_attention_overrideable",
        )
    },
    **{
        f"aten._scaled_dot_product_{kind}_backward": OpInfo("contract", _attention_backward_flops)
        for kind in (
            *("flash_attention", "flash_attention_for_cpu", "efficient_attention"),
            *("cudnn_attention", "fused_attention_overrideable"),
        )
    },
    **{f"aten.{name}": OpInfo("factory") for name in ("rand", "randn", "randint", "randperm")},
    "aten.dropout": OpInfo("pointwise"),
    **{
        f"aten.{name}": OpInfo("opaque")
        for name in ("bernoulli", "native_dropout", "rand_like", "randn_like", "multinomial")
    },
}

OPAQUE = OpInfo("opaque")

VIEW_IF_POSSIBLE = frozenset(
    {
        *("aten.reshape.default", "aten._unsafe_view.default"),
        *("aten.flatten.using_ints", "aten.unflatten.int"),
    }
)
"""Operators that rename elements where strides allow it, and copy them where not."""


ATTENTION = "aten.scaled_dot_product_attention.default"
CONVOLUTIONS = frozenset(
    {"aten.convolution.default", "aten.conv2d.default", "aten.conv_transpose2d.input"}
)


@functools.cache
def info(op: str) -> OpInfo:
    """What the table says of the operator, overloads alike; `OPAQUE` of one that is not in it."""
    return OPS.get(packet_name(op), OPAQUE)


def kind_of(node: Node) -> OperatorKind:
    """What sort of operator the node calls."""
    return info(node.op).kind


def contracts(node: Node) -> bool:
    """Whether the node multiplies and adds up: a product of matrices, a convolution, attention."""
    return info(node.op).kind == "contract"


def resolve(op: str) -> torch._ops.OpOverload:
    """The operator overload of this name; KeyError if torch has none. One of a user's is looked up
    each time: registered anew, it is another, and the old one is gone."""
    return _of_torch(op) if op.startswith("aten.") else _resolved(op)


@functools.cache
def _of_torch(op: str) -> torch._ops.OpOverload:
    return _resolved(op)


def _resolved(op: str) -> torch._ops.OpOverload:
    try:
        namespace, name, overload = op.split(".")
        if namespace == functional_forms.NAMESPACE:
            functional_forms.functional_form(_resolved(functional_forms.original(op)))
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, ValueError) as missing:
        raise KeyError(f"torch has no operator {op}") from missing
    # torch.ops also has attributes that are no operators, and some of them load native libraries.
    if not isinstance(operator, torch._ops.OpOverload):
        raise KeyError(f"{op} is not an operator")
    return operator


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operator's schema; `keyword`: it can be given by name only."""

    name: str
    optional: bool
    default: Arg
    keyword: bool


@functools.cache
def parameters(op: str) -> tuple[Parameter, ...]:
    """The operator's parameters in the order of its schema."""
    return tuple(
        Parameter(
            argument.name,
            argument.has_default_value(),
            tuple(argument.default_value)
            if isinstance(argument.default_value, list)
            else argument.default_value,
            argument.kwarg_only,
        )
        for argument in resolve(op)._schema.arguments
    )


DROPS = frozenset(("dropout", "dropout_p", "train", "training"))
"""Arguments with which an operator that may draw random numbers draws none where they are 0."""


OF_TYPES = frozenset(
    f"aten.{name}_like" for name in ("empty", "full", "ones", "zeros", "rand", "randn", "randint")
)
"""Operators that read of a tensor how it lies and what dtype it has, and none of its numbers: their
results have no gradient."""


IN_ROWS = frozenset(
    f"aten.{name}"
    for name in (
        *("bernoulli.default", "bernoulli.p", "multinomial.default", "poisson.default"),
        *("normal.Tensor_Tensor", "normal.float_Tensor"),
    )
)
"""Operators that draw for a new tensor in the order of its shape, in which it lies, however their
operands lie: of some torch says without values that it lies as these."""


def mutates(op: str) -> bool:
    """Whether the operator writes to a tensor it is given."""
    return bool(resolve(op)._schema.is_mutable)


@functools.cache
def is_pure(op: str) -> bool:
    """Whether an operator of ATen neither writes to what it reads nor draws random numbers."""
    return not mutates(op) and torch.Tag.nondeterministic_seeded not in resolve(op).tags


def draws(node: Node) -> bool:
    """Whether it draws numbers of torch's generator: dropout does in training, attention where it
    drops something."""
    places = _seeded(node.op)
    if places is None:
        return False
    named = dict(node.kwargs)
    drops = [node.args[at] if at < len(node.args) else named.get(name, 0) for name, at in places]
    return all(value is None or isinstance(value, Ref) or bool(value) for value in drops)


def draws_like(node: Node) -> str | None:
    """The operand in the order of whose memory an operator draws whose result is like another:
    multinomial divides it by numbers that it draws, unless it draws rows with replacement."""
    if node.op != "aten.multinomial.default" or not isinstance(node.args[0], Ref):
        return None
    back = node.args[2] if len(node.args) > 2 else dict(node.kwargs).get("replacement", False)
    return None if back and node.args[1] != 1 else node.args[0].name


@functools.cache
def _seeded(op: str) -> tuple[tuple[str, int], ...] | None:
    """Of an operator that draws, the arguments that say whether it does; None for all others."""
    try:
        operator = resolve(functional_forms.original(op))
    except KeyError:  # of a graph that is planned, and runs nowhere
        return None
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return None
    arguments = enumerate(operator._schema.arguments)
    return tuple((each.name, at) for at, each in arguments if each.name in DROPS)


@functools.cache
def takes_device(op: str) -> bool:
    """Whether the operator makes tensors and must be told where."""
    return any(argument.name == "device" for argument in resolve(op)._schema.arguments)


def map_refs(arg: Arg, get: Callable[[str], Any]) -> Any:
    """The argument as torch wants it: references replaced by what `get` gives, tuples as lists."""
    if isinstance(arg, Ref):
        return get(arg.name)
    if isinstance(arg, tuple):
        return [map_refs(item, get) for item in arg]
    return arg


def call(node: Node, get: Callable[[str], Any], device: torch.device | None) -> tuple[Any, ...]:
    """Run one node on what `get` gives for each value; its results as a tuple.

    On a device a view of a tensor whose strides are not the declared ones (another backend, or
    precision, may lay a result out otherwise) copies rather than fails.
    """
    function, more = _callee(node, device)
    args = [map_refs(arg, get) for arg in node.args]
    kwargs = {key: map_refs(arg, get) for key, arg in node.kwargs}
    return _as_tuple(function(*args, **{**kwargs, **more}))


def prepared(
    node: Node, device: torch.device | None
) -> Callable[[Sequence[torch.Tensor]], tuple[Any, ...]]:
    """What runs the node as `call` does, for who runs it often: values are named by their position
    among the operands ("0", "1"), of which it takes a list."""
    function, more = _callee(node, device)
    fixed = {key: map_refs(arg, _none) for key, arg in node.kwargs}
    if any(_reads(arg) for _, arg in node.kwargs) or any(
        _reads(arg) and not isinstance(arg, Ref) for arg in node.args
    ):
        return lambda operands: call(node, lambda name: operands[int(name)], device)
    template = [None if isinstance(arg, Ref) else map_refs(arg, _none) for arg in node.args]
    places = [(i, int(arg.name)) for i, arg in enumerate(node.args) if isinstance(arg, Ref)]
    kwargs = {**fixed, **more}

    def run(operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        args = template.copy()
        for i, place in places:
            args[i] = operands[place]
        return _as_tuple(function(*args, **kwargs))

    return run


def _callee(node: Node, device: torch.device | None) -> tuple[Any, dict[str, Any]]:
    """The operator to call for a node, and what it is told beside the node's own arguments."""
    lenient = node.op == "aten.view.default" and device is not None and device.type != "meta"
    more = {"device": device} if device is not None and takes_device(node.op) else {}
    return resolve("aten.reshape.default" if lenient else node.op), more


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _reads(arg: Arg) -> bool:
    return isinstance(arg, Ref) or (isinstance(arg, tuple) and any(map(_reads, arg)))


def _none(name: str) -> None:
    """Stands where no value is looked up."""


def infer(
    op: str,
    args: tuple[Arg, ...],
    kwargs: Iterable[tuple[str, Arg]],
    types: Mapping[str, TensorType],
) -> tuple[TensorType, ...]:
    """The types of a node's results, from meta tensors of the types of what it reads. Each call
    is asked for once in a process (`ANSWERS`)."""
    probe = Node("probe", op, args, tuple(kwargs), ())
    place = {name: str(i) for i, name in enumerate(dict.fromkeys(probe.uses))}
    args = tuple(rename(arg, place) for arg in probe.args)
    named = tuple((key, rename(arg, place)) for key, arg in probe.kwargs)
    # The text tells 1 from 1.0 and True, which are equal to each other.
    asked = f"{op}{(args, named)!r} {' '.join(types[name].text for name in place)}"
    if asked not in ANSWERS:
        table = {str(i): types[name] for i, name in enumerate(place)}
        results = call(
            Node("probe", op, args, named, ()), lambda i: meta(table[i]), torch.device("meta")
        )
        ANSWERS[asked] = tuple(type_of(result) for result in results)
    inferred = ANSWERS[asked]
    if op == ATTENTION:
        return _attention_layout(probe, inferred, types)
    if packet_name(op) in RECURRENT:
        return last_states(op, probe.args, inferred, types)
    if op in IN_ROWS:
        return tuple(TensorType(each.shape, each.dtype) for each in inferred)
    return _conv_layout(probe, inferred, types) if op in CONVOLUTIONS else inferred


def last_states(
    op: str,
    args: tuple[Arg, ...],
    inferred: Sequence[TensorType],
    types: Mapping[str, TensorType],
) -> tuple[TensorType, ...]:
    """The results of a recurrence of whole tensors, its last states in the shapes of the first
    ones: torch 2.11 without data says f32[1,1,3,8] of three sequences for f32[1,3,8]."""
    if not op.endswith(".input"):
        return tuple(inferred)
    held = args[1] if isinstance(args[1], tuple) else (args[1],)
    shapes = [types[ref.name].shape for ref in held if isinstance(ref, Ref)]
    states = zip(shapes, inferred[1:], strict=True)
    return inferred[0], *(TensorType(shape, state.dtype) for shape, state in states)


def _conv_layout(
    node: Node, inferred: tuple[TensorType, ...], types: Mapping[str, TensorType]
) -> tuple[TensorType, ...]:
    """A convolution answers in channels_last if either its input or its weight is; torch's meta
    kernel, asked for no device in particular, looks at the input alone."""
    shape, dtype = inferred[0].shape, inferred[0].dtype
    like = any(channels_last(types[_ref(arg)]) for arg in node.args[:2])
    if len(shape) != 4 or not like:
        return inferred
    return (TensorType(shape, dtype, channels_last_strides(shape)),)


def _attention_layout(
    node: Node, inferred: tuple[TensorType, ...], types: Mapping[str, TensorType]
) -> tuple[TensorType, ...]:
    """Fused attention answers with its axes in the order in which they lie in the query, without
    gaps; torch's meta kernel answers in the order of the shape, from which heads would be copied
    back. It matters where queries are slices of a merged product."""
    (answer,) = inferred
    strides = types[_ref(node.args[0])].strides
    if len(strides) != len(answer.shape) or 0 in strides or strides[-1] != 1:
        return inferred
    dense, size = [0] * len(strides), 1
    for axis in sorted(range(len(strides)), key=lambda i: (strides[i], -i)):
        dense[axis] = size
        size *= max(answer.shape[axis], 1)
    return (TensorType(answer.shape, answer.dtype, tuple(dense)),)


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense N, C, H, W tensor stored in the order N, H, W, C."""
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def channels_last(type: TensorType) -> bool:
    """Whether torch would take it for channels_last. Sizes of one leave strides ambiguous: a 1x1
    weight counts only if its strides say so, (C, 1, C, C), and not (C, 1, 1, 1)."""
    if len(type.shape) != 4 or not type.strides[1]:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        size, stride = type.shape[d], type.strides[d]
        if size == 0 or stride < least or (d == 0 and least == type.strides[1]):
            return False
        least = stride * max(size, 1)
    return True


def same_layout(a: TensorType, b: TensorType) -> bool:
    """Equal types, but for the strides of axes of size one, which address nothing."""
    return (a.shape, a.dtype) == (b.shape, b.dtype) and all(
        n == 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True)
    )


def make_node(
    name: str,
    op: str,
    args: tuple[Arg, ...],
    types: Mapping[str, TensorType],
    kwargs: tuple[tuple[str, Arg], ...] = (),
    origin: str = "",
) -> Node:
    """A node whose result types are inferred."""
    return Node(name, op, args, kwargs, infer(op, args, kwargs, types), origin)


def is_view(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether the node only renames elements: its results share the memory of its first input."""
    if kind_of(node) == "view":
        return True
    if node.op in VIEW_IF_POSSIBLE:
        source = meta(types[_ref(node.args[0])])
        try:
            return type_of(source.view(node.type.shape)).strides == node.type.strides
        except RuntimeError:
            return False
    return False


def flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Arithmetic operations of one call; a multiply-add counts as two."""
    entry = info(node.op)
    if entry.flops is not None:
        return entry.flops(node, types)
    if entry.kind in ("pointwise", "reduce"):
        read = sum(types[name].numel for name in set(node.uses))
        return max(node.type.numel, read if entry.kind == "reduce" else 0)
    return 0


def serial(node: Node, types: Mapping[str, TensorType]) -> int:
    """Steps of a call of which each waits for the one before: one, but for recurrences. A layer
    follows the one below it a step behind."""
    if packet_name(node.op) not in RECURRENT:
        return 1
    layers = arguments(node)["num_layers"]
    assert isinstance(layers, int)
    return max(1, _sequence(node, types)[0] + layers - 1)


def traffic(node: Node, types: Mapping[str, TensorType]) -> int:
    """Bytes the node must at least move: what it reads of each value once, each result once."""
    return sum(reads(node, types).values()) + sum(map(_bytes, node.types))


def reads(node: Node, types: Mapping[str, TensorType]) -> dict[str, int]:
    """Bytes the node must at least read of each value: all of it, but of one in which it looks
    something up what it finds."""
    sizes = {name: _bytes(types[name]) for name in node.uses}
    if packet_name(node.op) in LOOKUPS:
        table = node.uses[0]
        sizes[table] = min(sizes[table], _bytes(node.type))
    return sizes


def _bytes(type: TensorType) -> int:
    return type.numel * type.dtype.itemsize


@functools.cache
def defaults(op: str) -> tuple[Arg, ...]:
    """What each argument is where it is not given, in schema order; None if it must be."""
    return tuple(parameter.default for parameter in parameters(op))


@functools.cache
def _position(op: str) -> dict[str, int]:
    return {parameter.name: i for i, parameter in enumerate(parameters(op))}


def in_order(node: Node) -> tuple[Arg, ...]:
    """All arguments of the node in schema order, defaults filled in."""
    args = node.args + defaults(node.op)[len(node.args) :]
    if not node.kwargs:
        return args
    place, changed = _position(node.op), list(args)
    for name, arg in node.kwargs:
        changed[place[name]] = arg
    return tuple(changed)


def arguments(node: Node) -> dict[str, Arg]:
    """The node's arguments by the names of the operator's schema, defaults filled in."""
    schema = parameters(node.op)
    by_name = dict(zip((parameter.name for parameter in schema), node.args, strict=False))
    by_name.update(node.kwargs)
    for parameter in schema:
        if parameter.optional and parameter.name not in by_name:
            by_name[parameter.name] = parameter.default
    return by_name
