"""A model that asks for values -> one functional ATen graph with those questions in it.

    y = self.a(x)                        %addmm  f32[6,8]
    y = y[y.sum(-1) > 0]                 %index  f32[s0,8]    cut: its size depends on values
    if y.shape[0] == 0:                  check   Ne(s0, 0)
        return x
    n = y.max().item()                   %item   zf1          cut: Python reads a number
    return self.b(y / n)                 %addmm_1 f32[s0,8]

The model is called twice. The first call has values, and what each operator answered that depends
on values is noted. The second is traced without values, with these answers as symbols: a size or a
number that is asked for in Python is a symbol that has the noted value as its hint (a backed symbol
of torch), and what Python decides by it becomes a guard, here a *check*. A truth value is no
symbol: it is taken as noted, and checked. So the graph is that of one way through the model, and
says by itself when a call goes another way.

torch.export makes such symbols without hints, and refuses what asks for their values.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    fetch_object_proxy,
    fetch_sym_proxy,
    get_proxy_mode,
    make_fx,
    py_sym_types,
    track_tensor_tree,
)
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.errors import CaptureError
from anabranch.frontend.checks import check_results
from anabranch.frontend.contiguous_calls import LAID, LaidByCopies, copy_laid
from anabranch.frontend.cut_answers import ByNumbers, LaidTensor, ValueAnswer, answers_of, may_ask
from anabranch.frontend.cut_checks import ITEM, Cut, CutRecord, checked
from anabranch.frontend.cut_decisions import floats_by_operators
from anabranch.frontend.cut_simplify import copy_results, simplify
from anabranch.frontend.cut_writes import write_values
from anabranch.frontend.export_errors import NO_NUMBER, OF_SYMBOLS
from anabranch.frontend.export_patches import (
    as_in_eager,
    attention_by_operators,
    brief,
    keywords_as_names,
    last_states_shaped,
    numbers_kept,
    quiet,
)
from anabranch.frontend.kept_layouts import KeptLayouts
from anabranch.frontend.number_texts import texts_of_values
from anabranch.frontend.observe import unchanged
from anabranch.frontend.operators import decompositions
from anabranch.frontend.ordered_draws import DropoutByParts
from anabranch.frontend.packed_sequences import PackedSequences
from anabranch.frontend.program import in_order, name_of
from anabranch.frontend.python_numbers import python_numbers
from anabranch.frontend.running_statistics import StatisticsByWrites
from anabranch.frontend.shared_operands import SharedOperands
from anabranch.frontend.source import raised_at, running_at
from anabranch.frontend.state import state_place, unwrapped
from anabranch.frontend.surroundings import Surroundings, neutral
from anabranch.frontend.tensor_places import PlacesByOperators
from anabranch.frontend.trace_kernels import own_kernels
from anabranch.ir.types import overlaps, type_of

aten = torch.ops.aten
SYMBOLIC: Any = torch.fx.experimental._config
READ_ON_THE_HOST = "its data is not allocated yet"
"""What torch says where an operator looks into a tensor that has none."""


@dataclass(frozen=True, slots=True)
class CutTrace:
    """`graph`: functional, returns the leaves of the model's result; nodes that call a function
    named check_ and a number raise Unseen. `held`: what its get_attr nodes name. `weights`: by
    placeholder the name that the model has for it; `states`: those of what the model writes to,
    to which the graph copies the new values at its end; `inputs`: the placeholders of the call's
    tensors. `results`: what the model returned for the example, with values, `left`: by name what
    it left in states, and `left_inputs` in the call's tensors."""

    name: str
    graph: fx.Graph
    held: nn.Module
    weights: Mapping[str, str]
    states: Mapping[str, str]
    inputs: tuple[str, ...]
    cuts: tuple[Cut, ...]
    in_tree: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """Of the call, tensors among them."""
    out_tree: pytree.TreeSpec
    results: Any = field(repr=False)
    left: Mapping[str, Tensor] = field(repr=False)
    left_inputs: tuple[Tensor, ...] = field(default=(), repr=False)
    written_by_strides: str | None = None
    """The line of a write that reaches more in one layout of the inputs than in another."""

    @property
    def weights_read(self) -> tuple[str, ...]:
        """The model's names of the weights that the graph reads."""
        nodes = (node for node in self.graph.nodes if node.op == "placeholder" and node.users)
        return tuple(self.weights[node.name] for node in nodes if node.name in self.weights)

    @property
    def written_inputs(self) -> tuple[int, ...]:
        """The numbers of the call's tensors that the graph writes to."""
        copies = [node for node in self.graph.nodes if node.target is aten.copy_.default]
        written = {node.args[0].name for node in copies if isinstance(node.args[0], fx.Node)}
        return tuple(i for i, name in enumerate(self.inputs) if name in written)


def trace_cuts(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    surroundings: Surroundings,
    states: Collection[str] = (),
) -> CutTrace:
    """The way that `model(*args, **kwargs)` goes. `surroundings`: the switches of torch under which
    it is called; `states`: names of tensors of the model that another way writes to. CaptureError
    where it cannot be traced, whatever is cut: where Python works on the values of a tensor in
    other ways than by numbers (NumPy, for instance)."""
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    kwargs = in_order(model, kwargs) if isinstance(model, nn.Module) else dict(kwargs)
    with (
        neutral(),
        quiet(),
        brief(),
        keywords_as_names(),
        as_in_eager(),
        attention_by_operators(),
        last_states_shaped(),
        PlacesByOperators(),
        SharedOperands(),
        texts_of_values(),
        python_numbers(),
    ):
        answers, results, left, inputs, line = answers_of(model, args, kwargs, surroundings)
        numbers = numbers_kept(model) if isinstance(model, nn.Module) else nullcontext()
        try:
            with unchanged(model, args, kwargs), surroundings.restored(), numbers:
                trace = _SymbolicTrace(model, args, kwargs).run(answers, results, states)
            trace = replace(trace, left=left, left_inputs=tuple(inputs))
            return replace(trace, written_by_strides=line)
        except CaptureError:
            raise
        except Exception as failed:
            check_results(results)
            raise _untraced(failed) from failed


def _untraced(failed: Exception) -> CaptureError:
    first = (str(failed).strip().splitlines() or [""])[0]
    if READ_ON_THE_HOST in first:
        return CaptureError(
            "an operator reads the numbers of a tensor",
            "they say what its results are like, and are not known while the model is traced",
            "give it numbers of Python: indices.tolist(), where the model is cut",
            raised_at(failed),
        )
    error = f"{type(failed).__name__}: {first}"
    if OF_SYMBOLS.search(error):
        what, why, next = (text.format(error=error) for text in NO_NUMBER)
        return CaptureError(what, why, next, raised_at(failed))
    return CaptureError(
        "the model asks for values in a way that it cannot be cut at",
        error,
        "compile the parts before and after, as torch.compile(model, backend='anabranch') does",
        raised_at(failed),
    )


def _named(name: str) -> Any:
    """Where a symbol comes from. Torch imports its tracer when somebody asks for it: a quarter of
    what it takes to import this package."""
    return torch._dynamo.source.LocalSource(name)


class _SymbolicTrace:
    """One trace: its symbols, and where they come from."""

    def __init__(
        self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.leaves, self.tree = pytree.tree_flatten((args, dict(kwargs)))
        self.tensor_leaves = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.state: dict[str, Tensor] = {}
        if isinstance(model, nn.Module):
            self.state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.shapes = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self.fake = FakeTensorMode(
            shape_env=self.shapes, allow_non_fake_inputs=True, static_shapes=True
        )
        self.out_tree: pytree.TreeSpec | None = None

    def run(
        self, answers: Sequence[ValueAnswer], results: Any, states: Collection[str]
    ) -> CutTrace:
        """The graph, checks and common subexpressions seen to."""
        called = (_read(self.leaves[i]) for i in self.tensor_leaves)
        tensors = [*self.state.values(), *called]
        fakes = [self.fake.from_tensor(_plain(tensor), static_shapes=True) for tensor in tensors]
        cutting = _Cutting(self.fake, self.shapes, answers)

        def whole(*values: Tensor) -> Any:
            with (
                cutting,
                KeptLayouts(),
                ByNumbers(refuse=True),
                LaidByCopies(cutting.marked),
                DropoutByParts(),
                StatisticsByWrites(),
                PackedSequences(),
            ):
                return functionalize(self._call)(*values)

        with (
            self.fake,
            torch.no_grad(),
            own_kernels(),
            enable_python_dispatcher(),
            floats_by_operators(cutting.fresh, cutting.asked.symbols, cutting.asked.floats),
            # A size that nobody has looked at is not taken for 0 or 1.
            SYMBOLIC.patch(backed_size_oblivious=True),
        ):
            traced = make_fx(
                whole,
                decomposition_table=decompositions(),
                tracing_mode="real",
                record_stack_traces=True,
                _allow_non_fake_inputs=True,
            )(*fakes)
            write_values(traced.graph)
            placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
            copy_laid(traced.graph, {node.name for node in placeholders[: len(self.state)]})
        written = {
            name
            for node, name in zip(placeholders, self.state, strict=False)
            if name in states or _written(node)
        }
        for name in written:
            state_place(self.state[name], name)
        _rename(traced.graph, placeholders, [*self.state, *self._names()])
        cuts = checked(traced.graph, cutting.asked, self.shapes.guards)
        simplify(traced.graph)
        held = {node.name: name for node, name in zip(placeholders, self.state, strict=False)}
        weights = {node: name for node, name in held.items() if name not in written}
        copy_results(traced.graph, weights, held.keys() - weights.keys())
        live = set(traced.graph.nodes)
        assert self.out_tree is not None
        return CutTrace(
            name_of(self.model),
            traced.graph,
            traced,
            weights,
            {node: name for node, name in held.items() if name in written},
            tuple(node.name for node in placeholders[len(self.state) :]),
            tuple(cut for cut in cuts if cut.node in live),
            self.tree,
            tuple(self.leaves),
            self.out_tree,
            results,
            {},
        )

    def _call(self, *values: Any) -> Any:
        leaves = list(self.leaves)
        count = len(self.state)
        for place, value in zip(self.tensor_leaves, values[count:], strict=True):
            leaves[place] = value
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        if isinstance(self.model, nn.Module):
            state = dict(zip(self.state, values[:count], strict=True))
            returned = functional_call(self.model, state, args, kwargs)
        else:
            returned = self.model(*args, **kwargs)
        flat, self.out_tree = pytree.tree_flatten(returned)
        return flat

    def _names(self) -> list[str]:
        """The user's names of the tensors of the call, as far as they are known."""
        names: list[str] = []
        try:
            function = getattr(self.model, "forward", self.model)
            parameters = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            parameters = []
        example = pytree.tree_unflatten(list(range(len(self.leaves))), self.tree)
        for path, number in pytree.tree_flatten_with_path(example)[0]:
            if number not in self.tensor_leaves:
                continue
            rest = pytree.keystr(path[2:])
            side: Any = path[0]
            first: Any = path[1]
            if side.idx == 1:
                names.append(f"{first.key}{rest}")
            else:
                names.append(
                    f"{parameters[first.idx] if first.idx < len(parameters) else 'input'}{rest}"
                )
        return names


def _read(tensor: Tensor) -> Tensor:
    """A tensor of a call as a way reads it: its numbers, not what is conjugated when it is read,
    and each element in memory of its own, for those of another call may all differ."""
    tensor = tensor.resolve_conj().resolve_neg()
    return (
        tensor.clone(memory_format=torch.contiguous_format) if overlaps(type_of(tensor)) else tensor
    )


def _plain(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.detach() if not tensor.is_inference() else tensor.clone()


class _Cutting(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch annotates none of it
    """Stands below functionalisation and above the tracer. An operator that may ask for values gets
    the answer that was noted, in symbols."""

    def __init__(
        self, fake: FakeTensorMode, shapes: ShapeEnv, answers: Sequence[ValueAnswer]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.fake, self.shapes, self.answers = fake, shapes, iter(answers)
        self.asked = CutRecord()
        self._made = 0
        self.format: torch.memory_format | None = None
        """What aliases that are made now are marked with."""

    @contextmanager
    def marked(self, format: torch.memory_format) -> Iterator[None]:
        """Within it an alias is the result of a call that asks for this memory format."""
        self.format = format
        try:
            yield
        finally:
            self.format = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.alias.default and self.format is not None:
            alias = func(*args, **kwargs)
            entry: Any = fetch_object_proxy(_tracer(), alias)
            entry.proxy.node.meta[LAID] = self.format
            return alias
        if not may_ask(func, args):
            return func(*args, **kwargs)
        # With values the model may ask more, such as whether a mask hides anything.
        answer = next((candidate for candidate in self.answers if candidate.op is func), None)
        if answer is None:
            raise CaptureError(
                f"the model calls {func} without values, and something else with them",
                "it looks at tensors in a way that a trace does not see",
                "compile the part of the model that does without it",
            )
        if not isinstance(answer.result, LaidTensor | tuple | list):
            return self._number(func, args, kwargs, answer.result)
        return self._tensors(func, args, kwargs, answer.result)

    def _number(self, func: Any, args: Any, kwargs: Any, value: Any) -> Any:
        node = self._node(func, args, kwargs)
        self._cut(node.node)
        if type(value) not in (int, float):
            self.asked.taken.append((node.node, value))
            return value
        if type(value) is int:
            source, dynamic = _named(f"cut_{len(self.asked.cuts)}"), DimDynamic.DYNAMIC
            symbol = self.shapes.create_symbol(
                value, source, dynamic, None, positive=None, do_not_specialize_zero_one=True
            )
            symbolic: Any = self.shapes.create_symintnode(symbol, hint=value, source=source)
        else:
            symbolic = self.fresh(float, value)
            symbol = symbolic.node._expr
        self.asked.symbols[symbol] = node.node, None
        track_tensor_tree(symbolic, node, constant=None, tracer=_tracer())
        return symbolic

    def fresh(self, kind: type, value: Any) -> Any:
        """A number or a truth value of which nothing is known but what it is for the example."""
        self._made += 1
        source, dynamic = _named(f"number_{self._made}"), DimDynamic.DYNAMIC
        if kind is float:
            symbol = self.shapes.create_unspecified_symbol(value, source, dynamic)
            return self.shapes.create_symfloatnode(symbol, hint=value, source=source)
        symbol = self.shapes.create_symbol(
            *(int(value), source, dynamic, None), positive=None, do_not_specialize_zero_one=True
        )
        truth: Any = torch.SymBool
        return truth(SymNode(sympy.Eq(symbol, 1), self.shapes, bool, bool(value)))

    def _tensors(self, func: Any, args: Any, kwargs: Any, noted: Any) -> Any:
        declared_shapes: list[Any] | None
        try:
            with disable_proxy_modes_tracing(), self.shapes.ignore_fresh_unbacked_symbols():
                outputs = func(*args, **kwargs)
            declared_shapes = [tuple(output.shape) for output in pytree.tree_leaves(outputs)]
        except Exception:  # nobody has said what it gives without values
            declared_shapes = None
        laid, tree = pytree.tree_flatten(noted, is_leaf=lambda leaf: isinstance(leaf, LaidTensor))
        if declared_shapes is not None and not any(
            free_unbacked_symbols(size) for shape in declared_shapes for size in shape
        ):
            return func(*args, **kwargs)
        shapes, own = self._shapes([layout.shape for layout in laid], declared_shapes)
        with disable_proxy_modes_tracing():
            empties = [_empty(shape, layout) for shape, layout in zip(shapes, laid, strict=True)]
        node = self._node(func, args, kwargs)
        self._cut(node.node)
        self.asked.unknown.update([node.node] if declared_shapes is None else [])
        self.asked.symbols.update({symbol: (node.node, place) for symbol, place in own.items()})
        results = pytree.tree_unflatten(empties, tree)
        track_tensor_tree(results, node, constant=None, tracer=_tracer())
        return results

    def _shapes(
        self, noted: Sequence[tuple[int, ...]], declared_shapes: Sequence[tuple[Any, ...]] | None
    ) -> tuple[list[list[Any]], dict[sympy.Symbol, tuple[int, int]]]:
        """Sizes with a symbol for each that depends on values: all, where nobody knows which do."""
        symbols: dict[Any, Any] = {}
        own: dict[sympy.Symbol, tuple[int, int]] = {}
        shapes: list[list[Any]] = []
        for number, shape in enumerate(noted):
            sizes: list[Any] = []
            for dim, size in enumerate(shape):
                declared = declared_shapes[number][dim] if declared_shapes is not None else None
                if declared is not None and not free_unbacked_symbols(declared):
                    sizes.append(declared)
                    continue
                key = (number, dim) if declared is None else declared.node.expr
                if key not in symbols:
                    source = _named(f"cut_{len(self.asked.cuts) + 1}_{len(symbols)}")
                    symbol = self.shapes.create_symbol(
                        *(size, source, DimDynamic.DYNAMIC, None),
                        positive=None,
                        do_not_specialize_zero_one=True,
                    )
                    own[symbol] = number, dim
                    symbols[key] = self.shapes.create_symintnode(symbol, hint=size, source=source)
                sizes.append(symbols[key])
            shapes.append(sizes)
        return shapes, own

    def _cut(self, node: fx.Node) -> None:
        self.asked.cuts.append(node)
        self.asked.origins[node] = running_at()

    def _node(self, func: Any, args: Any, kwargs: Any) -> Any:
        tracer = _tracer()

        def proxy(value: Any) -> Any:
            if isinstance(value, Tensor):
                entry: Any = fetch_object_proxy(tracer, value)
                return entry.proxy if hasattr(entry, "proxy") else entry
            return fetch_sym_proxy(tracer)(value) if isinstance(value, py_sym_types) else value

        positional, named = pytree.tree_map(proxy, (args, kwargs))
        name = "item" if func is ITEM else func.overloadpacket.__name__
        return tracer.create_proxy("call_function", func, positional, named, name=name)


def _tracer() -> Any:
    mode = get_proxy_mode()
    assert mode is not None, "a trace is under way"
    return mode.tracer


def _empty(shape: Sequence[Any], like: LaidTensor) -> Tensor:
    """A tensor without values, dense, with its axes in the order in which `like` has them."""
    axes = sorted(range(len(shape)), key=lambda axis: (-like.strides[axis], axis))
    strides, step = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis] = step
        step = step * shape[axis]
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)


def _written(node: fx.Node) -> bool:
    """Whether a trace writes to what it is given here."""
    copies = (user for user in node.users if user.target is aten.copy_.default)
    return any(user.args[0] is node for user in copies)


def _rename(graph: fx.Graph, nodes: Sequence[fx.Node], names: Sequence[str]) -> None:
    for node, name in zip(nodes, names, strict=True):
        plain = re.sub(r"\W+", "_", name).strip("_")
        plain += "_" if keyword.iskeyword(plain) else ""
        node.name = graph._graph_namespace.create_name(plain, None)
