"""Canonical forms: of several operators that say the same, one.

    conv1d conv2d conv3d conv_transpose*  -> convolution
    view flatten unflatten _unsafe_view   -> reshape (a new layout upstream cannot break it)
    batch norms in eval mode              -> batch_norm with one result
    addmm of a bias row                   -> linear
    mm with a constant                    -> linear, which takes in what stands beside it
    to, contiguous                        -> _to_copy, clone
    full_like, zeros_like, ones_like      -> full
    op.Scalar                             -> op.Tensor with a number
    x / expand(y, the shape of x)         -> x / y
    slice_scatter(x, copy(slice(x), y))   -> slice_scatter(x, y)
    copy(x, y), of a y that nobody else reads and that lies as x  -> y

One table line a family; each function gives the new value, or None to leave the node as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, users
from anabranch.ir.state import SPARSE, STORE
from anabranch.rewrite.build import Builder, rewrite
from anabranch.trace import Trace

EXPAND = "aten.expand.default"
CanonicalForm = Callable[[Builder, Node], Ref | None]


def canonical(graph: Graph, trace: Trace) -> Graph:
    """The graph with one spelling of each computation."""
    readers = users(graph)
    returned = {ref.name for ref in graph.outputs}
    read = {*readers, *returned}
    once = {Ref(name) for name in readers if len(readers[name]) == 1 and name not in returned}

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op == STORE:
            return _stored(builder, builder.renamed(node)) if node.args[1] in once else None
        form = FORMS.get(node.op)
        if form is None and ops.kind_of(node) == "pointwise":
            form = _unexpanded
        if form is None or any(result in read for result in node.results[1:]):
            return None
        return form(builder, builder.renamed(node))

    return rewrite(graph, visit)


def _stored(builder: Builder, node: Node) -> Ref | None:
    """A value that lies where it is copied to is that copy, unless it is a view, or the place is a
    state's."""
    base, value = node.args[:2]
    types, makers = builder.facts.types, builder.facts.producers
    if not isinstance(base, Ref) or not isinstance(value, Ref) or value.name not in makers:
        return None
    if types[value.name] != node.type or ops.is_view(makers[value.name], types):
        return None
    if _root(builder, base.name) in {state.name for state in builder.source.states}:
        return None
    return value


def _unexpanded(builder: Builder, node: Node) -> Ref | None:
    """A tensor that is spread out to meet a larger operand meets it as it is: so it may be computed
    where that is read."""
    facts = builder.facts

    def source(arg: Arg) -> Arg:
        maker = facts.producers.get(arg.name) if isinstance(arg, Ref) else None
        return maker.args[0] if maker is not None and maker.op == EXPAND else arg

    args = tuple(map(source, node.args))
    if args == node.args:
        return None
    read = [facts.types[arg.name] for arg in args if isinstance(arg, Ref)]
    if len({type.dtype for type in read}) > 1 and not all(type.shape for type in read):
        return None  # a number that has no axes has no say in the type that torch computes in
    try:
        same = ops.infer(node.op, args, node.kwargs, facts.types) == node.types
    except RuntimeError:
        return None  # an operator that wants its operand spread out
    if not same:
        return None
    kwargs = dict(node.kwargs)
    return builder.instead(node, node.op, *args, **kwargs)


def _conv(spatial: int, transposed: bool = False) -> CanonicalForm:
    def form(builder: Builder, node: Node) -> Ref | None:
        arguments = ops.arguments(node)
        x, w = arguments["input"], arguments["weight"]
        x, padding = _padded(builder, arguments, spatial, node.origin)
        alone = len(_shape(builder, x)) == spatial + 1
        if alone:
            x = builder.call("aten.unsqueeze.default", x, 0, origin=node.origin)
        result = builder.instead(
            node,
            "aten.convolution.default",
            x,
            w,
            arguments["bias"],
            _spread(arguments["stride"], spatial),
            padding,
            _spread(arguments["dilation"], spatial),
            transposed,
            _spread(arguments.get("output_padding", 0), spatial),
            arguments["groups"],
        )
        if alone:
            result = builder.call("aten.squeeze.dim", result, 0, origin=node.origin)
        return result

    return form


def _padded(
    builder: Builder, arguments: dict[str, Arg], spatial: int, origin: str
) -> tuple[Arg, tuple[int, ...]]:
    """The input and its padding in numbers; "same" padding that is not symmetric goes to the
    input."""
    x, padding = arguments["input"], arguments["padding"]
    if not isinstance(padding, str):
        return x, _spread(padding, spatial)
    if padding == "valid":
        return x, (0,) * spatial
    kernel = _shape(builder, arguments["weight"])[2:]
    total = [
        d * (k - 1) for d, k in zip(_spread(arguments["dilation"], spatial), kernel, strict=True)
    ]
    if all(both % 2 == 0 for both in total):
        return x, tuple(both // 2 for both in total)
    around = tuple(end for both in reversed(total) for end in (both // 2, both - both // 2))
    return builder.call("aten.constant_pad_nd.default", x, around, origin=origin), (0,) * spatial


def _spread(arg: Arg, n: int) -> tuple[int, ...]:
    """One number for each of n axes."""
    items = arg if isinstance(arg, tuple) else (arg,)
    values = tuple(value for value in items if isinstance(value, int))
    return values * n if len(values) == 1 else values


def _underscore_convolution(builder: Builder, node: Node) -> Ref | None:
    return builder.instead(node, "aten.convolution.default", *node.args[:9])


def _reshape(builder: Builder, node: Node) -> Ref | None:
    return builder.instead(node, "aten.reshape.default", node.args[0], node.type.shape)


def _batch_norm(builder: Builder, node: Node) -> Ref | None:
    arguments = ops.arguments(node)
    if arguments.get("training") is True or arguments["running_mean"] is None:
        return None
    norm = builder.instead(
        node,
        "aten.batch_norm.default",
        *(arguments[key] for key in ("input", "weight", "bias", "running_mean", "running_var")),
        False,
        arguments["momentum"],
        arguments["eps"],
        True,
    )
    if node.types[0].contiguous and not builder.facts.types[norm.name].contiguous:
        # A CPU's norm lies in rows. Random numbers that are drawn like it depend on that.
        return builder.call("aten.clone.default", norm, memory_format=torch.contiguous_format)
    return norm


def _addmm(builder: Builder, node: Node) -> Ref | None:
    arguments = ops.arguments(node)
    bias, w = arguments["self"], arguments["mat2"]
    columns = _shape(builder, w)[1]
    if arguments["alpha"] != 1 or arguments["beta"] != 1:
        return None
    if _shape(builder, bias) == (1, columns) and _constant(builder, bias, w):
        bias = builder.call("aten.reshape.default", bias, (columns,), origin=node.origin)
    if _shape(builder, bias) != (columns,):
        return None
    transposed = builder.call("aten.t.default", w, origin=node.origin)
    return builder.instead(node, "aten.linear.default", arguments["mat1"], transposed, bias)


def _mm(builder: Builder, node: Node) -> Ref | None:
    x, w = node.args[:2]
    if not _constant(builder, w) or _constant(builder, x):
        return None
    transposed = builder.call("aten.t.default", w, origin=node.origin)
    return builder.instead(node, "aten.linear.default", x, transposed)


def _constant(builder: Builder, *args: Arg) -> bool:
    return all(isinstance(arg, Ref) and arg.name in builder.facts.constant for arg in args)


def _to(builder: Builder, node: Node) -> Ref | None:
    arguments = ops.arguments(node)
    keep = arguments.get("memory_format")
    if keep is torch.contiguous_format and not node.type.contiguous:
        keep = None  # it gives images back that are not channels_last, however they lie
    layout: dict[str, Arg] = {} if keep is None else {"memory_format": keep}
    return builder.instead(
        node, "aten._to_copy.default", node.args[0], dtype=node.type.dtype, **layout
    )


def _contiguous(builder: Builder, node: Node) -> Ref | None:
    layout = ops.arguments(node)["memory_format"]
    return builder.instead(
        node, "aten.clone.default", node.args[0], memory_format=layout or torch.contiguous_format
    )


def _filled(value: float | None = None) -> CanonicalForm:
    def form(builder: Builder, node: Node) -> Ref | None:
        if not node.type.contiguous:
            return None
        fill = node.args[1] if value is None else value
        return builder.instead(
            node, "aten.full.default", node.type.shape, fill, dtype=node.type.dtype
        )

    return form


def _with_number(builder: Builder, node: Node) -> Ref | None:
    op = f"{ops.packet_name(node.op)}.Tensor"
    named = dict(node.kwargs)
    args = node.args
    if len(args) > 2:
        args, named = args[:2], {"alpha": args[-1], **named}
    if named.get("alpha") == 1:
        del named["alpha"]
    return builder.instead(node, op, *args, **named)


def _uncopied(builder: Builder, node: Node) -> Ref | None:
    """A part of a value is what is copied over it: of what was there nothing is read. A copy of
    elements of a state stays, for these may be written over before they are read."""
    facts, source = builder.facts, node.args[1]
    maker = facts.producers.get(source.name) if isinstance(source, Ref) else None
    if maker is None or maker.op != "aten.copy.default":
        return None
    value = maker.args[1]
    if not isinstance(value, Ref) or facts.types[value.name].shape != maker.type.shape:
        return None
    if _root(builder, value.name) in {state.name for state in builder.source.states}:
        return None
    dtype = maker.type.dtype
    if facts.types[value.name].dtype != dtype:
        value = builder.call("aten._to_copy.default", value, dtype=dtype, origin=maker.origin)
    return builder.instead(node, node.op, node.args[0], value, *node.args[2:], **dict(node.kwargs))


def _root(builder: Builder, name: str) -> str:
    """The value that may come to lie in the same memory as this one."""
    facts = builder.facts
    while (maker := facts.producers.get(name)) is not None:
        if not (ops.is_view(maker, facts.types) or ops.packet_name(maker.op) in SPARSE):
            break
        name = maker.uses[0]
    return name


def _softmax(op: str) -> CanonicalForm:
    def form(builder: Builder, node: Node) -> Ref | None:
        arguments = ops.arguments(node)
        x, wanted = arguments["self"], arguments["dtype"]
        assert isinstance(x, Ref)
        if wanted is not None and wanted != builder.facts.types[x.name].dtype:
            x = builder.call("aten._to_copy.default", x, dtype=wanted, origin=node.origin)
        return builder.instead(node, op, x, arguments["dim"], False)

    return form


def _shape(builder: Builder, arg: Arg) -> tuple[int, ...]:
    assert isinstance(arg, Ref)
    return builder.facts.types[arg.name].shape


FORMS: dict[str, CanonicalForm] = {
    "aten.conv1d.default": _conv(1),
    "aten.conv2d.default": _conv(2),
    "aten.conv3d.default": _conv(3),
    "aten.conv1d.padding": _conv(1),
    "aten.conv2d.padding": _conv(2),
    "aten.conv3d.padding": _conv(3),
    "aten.conv_transpose1d.default": _conv(1, transposed=True),
    "aten.conv_transpose2d.input": _conv(2, transposed=True),
    "aten.conv_transpose3d.input": _conv(3, transposed=True),
    "aten._convolution.default": _underscore_convolution,
    "aten.view.default": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.flatten.using_ints": _reshape,
    "aten.unflatten.int": _reshape,
    "aten.view_as.default": _reshape,
    "aten.reshape_as.default": _reshape,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.addmm.default": _addmm,
    "aten.mm.default": _mm,
    "aten.to.dtype": _to,
    "aten.to.dtype_layout": _to,
    "aten.contiguous.default": _contiguous,
    "aten.full_like.default": _filled(),
    "aten.zeros_like.default": _filled(0),
    "aten.ones_like.default": _filled(1),
    "aten.add.Scalar": _with_number,
    "aten.sub.Scalar": _with_number,
    "aten.mul.Scalar": _with_number,
    "aten.div.Scalar": _with_number,
    "aten.slice_scatter.default": _uncopied,
    "aten.select_scatter.default": _uncopied,
    "aten.softmax.int": _softmax("aten._softmax.default"),
    "aten.log_softmax.int": _softmax("aten._log_softmax.default"),
}
