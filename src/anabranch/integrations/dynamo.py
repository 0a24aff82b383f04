"""The torch.compile backend "anabranch", found by its entry point.

    torch.compile(model, backend="anabranch", options={"scheduler": "ios"})

Dynamo hands over a graph with fake inputs, weights among them; AOTAutograd makes it functional. The
plan is made at the first call, when the weights are real: those that AOTAutograd marks as static
become constants, so that batch norms fold. Where shapes are symbolic, each concrete set of sizes
gets a plan of its own; after `anabranch.warm` no call compiles anything, and a size between two
that have plans is padded to the larger one, if that is proved harmless.

Plans follow their weights. A call that finds some of them replaced, or written to since the last
call, refits all plans first, in their own memory (`compiled.refit`); only plans that are not right
for the new weights are made anew. Weights that were made in inference mode count no writes, and
stay inputs. Writes through `weight.data` are not counted either: after one,
`torch.compiler.reset()` has the next call read all weights.

A graph that needs gradients becomes two plans, a forward and a backward pass
(`integrations.training_pass`).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch.compiled.calls import Compiled
from anabranch.compiled.refit import refit
from anabranch.compiled.weights import stamps_of
from anabranch.errors import InputError, OptionError, WeightsError
from anabranch.frontend.backward import training_decompositions
from anabranch.frontend.captured import Captured
from anabranch.frontend.fast_attention import FAST_ATTENTION
from anabranch.frontend.from_fx import capture_fx
from anabranch.frontend.functional_calls import call_forms
from anabranch.frontend.idle_dropout import leave_out_idle_dropout
from anabranch.frontend.memory import lie_alike, sharing, storages
from anabranch.frontend.strided import STRIDED
from anabranch.frontend.surroundings import defaults, surroundings
from anabranch.frontend.trace_kernels import own_kernels, symbols_apart
from anabranch.integrations.double_backward import twice_refused
from anabranch.integrations.symbolic import SymbolicCalls
from anabranch.integrations.tokens import beside_tokens, without_first_inputs, without_tokens
from anabranch.integrations.training_pass import TrainingPass, check_numbers, kind_of
from anabranch.integrations.views import ResultViews, results_of, return_origins
from anabranch.integrations.warming import called, frame_of, is_closed, warmed_alike
from anabranch.options import Options
from anabranch.targets import resolve

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"effort": "max"},
    "max-autotune-no-cudagraphs": {"effort": "max"},
}
"""torch.compile's modes. Every plan is tuned and is one CUDA graph: they say how much is tried."""

SHARED = (
    "inputs share memory, the model writes to one of them, and it was compiled for inputs that do "
    "not (or for others that do, or that begin elsewhere in it): this call runs uncompiled; give "
    "each a tensor of its own, for example with .clone()"
)
UNSEEN = (
    "a call has a size that anabranch.warm was not given, and that is not proved to be harmless to "
    "pad"
)
ALSO = "warm the model with such a call as well"
LATER = "torch.compile made its graph after the model was warmed, for another dtype or a size of 1"
VIEWS = "its results share memory with inputs, or depend on where inputs begin in theirs"
Boxed = Callable[[list[Any]], Sequence[Any]]
VERSION = operator.attrgetter("_version")
"""How often a tensor was written to: with its address, what a plan depends on of a weight."""


def anabranch_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The callable that replaces the FX graph. `options`: fields of `anabranch.Options`."""
    if mode is not None and mode not in MODES:
        raise OptionError(
            f"unknown mode {mode!r}", "torch.compile has no such mode", f"one of {', '.join(MODES)}"
        )
    if "target" in (options or {}):
        raise OptionError(
            "target is no option of torch.compile",
            "a graph runs on the device that the model and its inputs are on",
            "move both there with .to(device), or call anabranch.compile(model, inputs, target)",
        )
    chosen = Options.read({**MODES[mode or "default"], **(options or {})})

    leave_out_idle_dropout(module.graph)
    module.recompile()
    writes, trained, closed, merged = [False], [False], [False], [False]
    shared, lie = sharing(example_inputs), storages(example_inputs)
    count_of_all = len(example_inputs) + len([*module.parameters(), *module.buffers()])

    def inference(graph: fx.GraphModule, fakes: Sequence[Any]) -> Boxed:
        writes[0] = _writes_to_inputs()
        call_forms(graph.graph)
        count, static = _without_tokens(graph)
        merged[0] = _inputs_of(graph) < count_of_all
        return beside_tokens(_Lazy(graph, static, chosen, _become(count)), count)

    def forward(graph: fx.GraphModule, fakes: Sequence[Any]) -> Boxed:
        writes[0], trained[0], closed[0] = _writes_to_inputs(), True, is_closed(frame_of())
        call_forms(graph.graph)
        count, static = _without_tokens(graph)
        merged[0] = _inputs_of(graph) < count_of_all
        written = () if count else _inputs_written_to()
        views = ResultViews.of(graph, _become(count), _results_alone(), constant=False)
        training = TrainingPass(graph, static, chosen, written, views, closed[0])
        return beside_tokens(training, count)

    def backward(graph: fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        call_forms(graph.graph)
        without_tokens(graph)
        return TrainingPass(graph, (), chosen, closed=closed[0]).boxed()

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=training_decompositions() if torch.is_grad_enabled() else FAST_ATTENTION,
        keep_inference_input_mutations=False,
    )
    # `call_forms` reads the first version.
    context = TracingContext.try_get()
    shapes = context.fake_mode.shape_env if context is not None and context.fake_mode else None
    with (
        own_kernels(),
        symbols_apart(shapes),
        inductor_config.patch(enable_auto_functionalized_v2=False),
    ):
        compiled: Callable[..., Any] = backend(module, example_inputs)
    if trained[0]:
        compiled = twice_refused(compiled)
    if not writes[0]:
        return compiled
    return _guarded(compiled, module, shared, lie if merged[0] else None)


def _guarded(
    compiled: Callable[..., Any],
    module: fx.GraphModule,
    shared: frozenset[tuple[int, int]],
    lie: Mapping[int, tuple[int, int | None]] | None,
) -> Callable[..., Any]:
    """The compiled graph of a model that writes to its inputs. It was made for inputs of which
    these pairs share memory, which nothing else asks; a call in which others do runs uncompiled.
    So does one whose inputs `lie` otherwise in their memory, where AOTAutograd made one input of
    several in one storage: it takes them from there by where the example's began."""

    def call(*inputs: Any) -> Any:
        if lie_alike(inputs, lie) if lie is not None else sharing(inputs) == shared:
            return compiled(*inputs)
        warnings.warn(SHARED, stacklevel=2)
        return module(*inputs)

    return call


def _inputs_of(graph: fx.GraphModule) -> int:
    return sum(node.op == "placeholder" for node in graph.graph.nodes)


def _writes_to_inputs() -> bool:
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return metadata is None or any(info.mutates_data for info in metadata.input_info)


def _inputs_written_to() -> tuple[int, ...]:
    """Positions of the inputs that the model writes to, in the order in which the graph returns
    what they become, before its results; () where AOTAutograd does more for one than copy it."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return ()
    places = tuple(metadata.mutated_inp_runtime_indices)
    infos = [metadata.input_info[i] for i in places]
    plain = all(info.mutates_data and not info.mutates_metadata for info in infos)
    return places if plain and not any(info.requires_grad for info in infos) else ()


def _become(tokens: int) -> tuple[int, ...]:
    """Positions of the inputs that the first results become, in a graph that has lost `tokens`."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    places = metadata.mutated_inp_runtime_indices if metadata is not None else ()
    return tuple(place - tokens for place in places)


def _results_alone() -> int | None:
    """How many results of a forward pass the backward pass does not read, at least; None where all
    are such."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return metadata.num_forward_returns if metadata is not None else None


class _Lazy:
    """Plans for one functional graph, made when inputs are real; one per set of sizes."""

    _boxed_call = True

    def __init__(
        self,
        graph: fx.GraphModule,
        static: frozenset[int],
        options: Options,
        become: Sequence[int] = (),
    ) -> None:
        """`become`: the inputs that the first results are to be copied into."""
        self.graph, self.options = graph, options
        self.frame, self.told = frame_of(), False
        self.closed = is_closed(self.frame)
        """Whether nothing is compiled any more, and whether somebody was told what that means."""
        self.form = _form(graph, static, become, options)
        self.twin: _Lazy | None = warmed_alike(self.frame, self.form)
        """What answers all calls: the same graph, which was warmed."""
        self.count = sum(node.op == "placeholder" for node in graph.graph.nodes)
        targets = {str(node.target) for node in graph.graph.nodes}
        self.names: list[str] = []
        """Of all inputs, as plans know them."""
        self.counted = not targets.isdisjoint(STRIDED)
        """Whether it asks where inputs begin in their memory, which Dynamo does not guard."""
        self.results = results_of(graph)
        return_origins(graph)
        self.views = ResultViews.of(graph, become)
        self._hold(static)

    def _hold(self, static: Collection[int]) -> None:
        """These inputs are constants of plans from now on."""
        self.static = [i for i in range(self.count) if i in static]
        self.dynamic = [i for i in range(self.count) if i not in static]
        self.plans: dict[tuple[Any, ...], Compiled] = {}
        placeholders = [node for node in self.graph.graph.nodes if node.op == "placeholder"]
        self.symbolic = SymbolicCalls([placeholders[i] for i in self.dynamic], self.graph.graph)
        self.sized: dict[tuple[int, ...], Compiled] = {}
        self.unpadded: str | None = None
        """Why calls are not padded; "" where they may be, None where nobody has asked."""
        self.read: list[int] = []
        """Where the weights were that plans have, and how often they had been written to."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self.twin is not None:
            return self.twin(inputs)
        arguments = list(inputs)
        inputs.clear()
        weights = [arguments[i] for i in self.static]
        try:
            versions = [*map(VERSION, weights)]
        except RuntimeError:  # made in inference mode: nobody knows when they are written to
            self._hold([i for i in self.static if not arguments[i].is_inference()])
            return self(arguments)
        dynamic = [arguments[i] for i in self.dynamic]
        read = [*map(Tensor.data_ptr, weights), *versions]
        if read != self.read:
            self._follow(arguments)
            self.read = read
        warmed = called(self)
        key = tuple(map(kind_of, dynamic))
        if self.counted:
            key += tuple((v.storage_offset(), v.stride()) for v in dynamic if isinstance(v, Tensor))
        plan = self.plans.get(key)
        if plan is None and self.closed:
            return self._between(arguments, dynamic)
        if plan is None:
            plan = self.plans[key] = self._compile(arguments)
            if (sizes := self.symbolic.sizes(dynamic)) is not None:
                self.sized[sizes] = plan
        if warmed and self.unpadded is None and self.sized:
            self._prove(arguments, dynamic)
        results: Sequence[Any] = plan.called_within(*dynamic)
        if not self.views.views:
            return results
        return self.views.restored(results, arguments)[: self.results]

    def _prove(self, arguments: list[Any], dynamic: list[Any]) -> None:
        """Whether calls between the sizes that have plans may be padded: asked while the model is
        warmed, so that no call has to, and said where they may not."""

        def whole(inputs: Sequence[Any]) -> list[Any]:
            values = list(arguments)
            for i, value in zip(self.dynamic, inputs, strict=True):
                values[i] = value
            return values

        reasons = (
            [VIEWS]
            if self.views.views or self.counted
            else self.symbolic.prove(
                dynamic,
                lambda inputs: self.graph(*whole(inputs)),
                lambda inputs: self._tensors_alone(whole(inputs)),
            )
        )
        self.unpadded = "; ".join(dict.fromkeys(map(str, reasons)))
        if self.unpadded:
            what = "are refused" if self.options.unseen == "refuse" else "run uncompiled"
            told = f"calls of sizes that anabranch.warm is not given {what}: {self.unpadded}"
            warnings.warn(told, stacklevel=4)

    def _between(self, arguments: list[Any], dynamic: list[Any]) -> Sequence[Any]:
        """A call that has no plan, after all that were to be made are."""
        if not self.views.views and not self.counted:
            results = self.symbolic.answer(dynamic, self.sized)
            if results is not None:
                return results
        why = LATER if self.unpadded is None else self.unpadded or "no plan is as large"
        if self.options.unseen == "refuse":
            raise InputError(UNSEEN, why, ALSO)
        if not self.told:
            self.told = True
            warnings.warn(f"{UNSEEN}: it runs uncompiled ({why}); {ALSO}", stacklevel=3)
        outputs: Sequence[Any] = self.graph(*arguments)
        return outputs

    def _tensors_alone(self, arguments: list[Any]) -> Captured:
        """The graph at these sizes, as if numbers were not among its inputs."""
        captured = self._captured(arguments)
        leaves = tuple(leaf for leaf in captured.signature.inputs if leaf.ref is not None)
        return replace(captured, signature=replace(captured.signature, inputs=leaves))

    def _follow(self, arguments: list[Any]) -> None:
        """Give all plans the weights as they are; none is kept that is not right for them."""
        if not self.plans:
            return
        plans = [*self.plans.values()]
        entries = [entry for plan in plans for entry in plan.entries]
        weights = {self.names[i]: arguments[i].detach() for i in self.static}
        for plan in plans:
            plan.fitted = stamps_of(weights)
        try:
            refit(entries, plans[0].target, weights)
        except WeightsError:
            self.plans.clear()
            self.sized.clear()

    def _captured(self, arguments: list[Any]) -> Captured:
        graph = self.graph
        if self.counted or any(not isinstance(value, Tensor) for value in arguments):
            check_numbers(arguments)
            with own_kernels():
                graph = make_fx(graph, tracing_mode="fake")(*arguments)
            _drop_unread_results(graph)
        self.names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        constants = {self.names[i]: arguments[i].detach() for i in self.static}
        return capture_fx(graph, arguments, constants)

    def _compile(self, arguments: list[Any]) -> Compiled:
        graph = self.graph
        shared = {key: value for plan in self.plans.values() for key, value in plan.owned().items()}
        captured = self._captured(arguments)
        under = defaults()

        def eager(*values: Any) -> Any:
            whole = list(arguments)
            for i, value in zip(self.dynamic, values, strict=True):
                whole[i] = value
            with under.restored():
                return graph(*whole)

        cuda = any(isinstance(value, Tensor) and value.is_cuda for value in arguments)
        target = resolve("cuda" if cuda else "cpu", self.options.tf32)
        free = [arguments[i] for i in self.dynamic]
        return Compiled(eager, target, self.options, None).add(
            free, captured=captured, shared=shared
        )


def _form(
    graph: fx.GraphModule, static: frozenset[int], become: Sequence[int], options: Options
) -> Hashable:
    """Equal for graphs that compute the same of inputs in the same order; None for one with tensors
    or graphs of its own, which are not looked into."""
    lines = list[str]()
    for node in graph.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            return None
        lines.append(f"{node.name} {node.op} {node.target} {node.args} {node.kwargs}")
        if node.op == "placeholder":
            value = node.meta.get("val")
            lines.append(str(value))
            if isinstance(value, Tensor):
                lines.append(f"{value.dtype} {value.device} {value.shape} {value.stride()}")
    return "\n".join(lines), static, tuple(become), repr(options), surroundings()


def _drop_unread_results(graph: fx.GraphModule) -> None:
    """Erase what takes a result apart that nobody reads: attention whose log-sum is taken, and not
    read, would be another operator."""
    for node in reversed(graph.graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.graph.erase_node(node)


def _without_tokens(graph: fx.GraphModule) -> tuple[int, frozenset[int]]:
    """How many tokens the graph had, which it has no more, and which of its inputs are parameters
    and buffers."""
    without_tokens(graph)
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    count = without_first_inputs(graph, len(metadata.tokens)) if metadata is not None else 0
    return count, frozenset(i - count for i in _static_inputs())


def _static_inputs() -> frozenset[int]:
    """Positions of the inputs that are parameters and buffers."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices) if metadata is not None else frozenset()
