"""The other systems, one function each: (model, args, machine) -> a call to time.

| name | is |
|---|---|
| eager | the module as it stands |
| torchscript | traced and frozen |
| cudagraph | eager, captured as one sequential CUDA graph |
| cudagraph-tuned | the same after cuDNN tried its convolution algorithms |
| inductor | torch.compile(mode="reduce-overhead"), weights frozen into it |
| inductor-default | torch.compile(), weights frozen |
| inductor-max | torch.compile(mode="max-autotune"), weights frozen |
| inductor-graph, inductor-max-graph | both without graphs of their own, captured as one |
| xla, tvm, tensorrt | compilers of other houses, where they are installed: `other_compilers` |

All get a copy of the model, inputs that stay where they are, and no gradients. Networks with
4-dimensional inputs run channels_last, which is the faster layout for convolutions in half
precision; anabranch chooses its own. `inductor` copies its inputs into the graph's buffers and
runs Python around the graph in every call, as its users see it; the `-graph` rows leave that out
and compare graph with graph, as `cudagraph` does. The memory of whatever is a graph includes
cuBLAS's workspace, 32 MiB on an H200, where it multiplies matrices.

To add one: a function, a line in RIVALS, and one in CAPTURED where `replayed` is true of it.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.utils import _pytree as pytree

from anabranch.bench import other_compilers
from anabranch.bench.machine import Capture, Machine, TimedCall
from anabranch.errors import TargetError

CALLS = 3
"""Before a compiled call counts as ready: it compiles, records its graph, and replays it."""

Args = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Ready to time. `peak_bytes`: what its graph holds; None: ask for that of a call. `note`: for
    whoever reads the numbers. `replayed`: `call` replays a graph on inputs that lie there."""

    call: TimedCall
    peak_bytes: int | None = None
    note: str = ""
    replayed: bool = False


Rival = Callable[[nn.Module, Args, Machine], Prepared]


def eager(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """The model as it is, operator by operator."""
    model, args, note = own_copy(model, args)
    return Prepared(warm(lambda: model(*args)), note=note)


def torchscript(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """The traced and frozen model; warmed until its fusers have compiled."""
    model, args, note = own_copy(model, args)
    with quiet():
        traced = torch.jit.trace(model, args, check_trace=False)  # type: ignore[no-untyped-call]
        frozen = torch.jit.freeze(traced)
    return Prepared(warm(lambda: frozen(*args)), note=note)


def cudagraph(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """Eager's calls, captured once as one CUDA graph."""
    model, args, note = own_copy(model, args)
    return _captured(model, args, machine, note)


def cudagraph_tuned(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """As `cudagraph`, with cuDNN's algorithms chosen by timing."""
    model, args, note = own_copy(model, args)
    with timed_algorithms():
        return _captured(model, args, machine, note)


def inductor(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """torch.compile in mode "reduce-overhead": Inductor with its own CUDA graphs."""
    return _compiled(model, args, machine, "reduce-overhead")


def inductor_default(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """torch.compile as it comes."""
    return _compiled(model, args, machine, "default")


def inductor_max(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """torch.compile in mode "max-autotune"."""
    return _compiled(model, args, machine, "max-autotune")


def inductor_graph(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """torch.compile as it comes, its calls captured as one CUDA graph."""
    ready = _compiled(model, args, machine, "default")
    return _captured(ready.call, (), machine, ready.note)


def inductor_max_graph(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """torch.compile in mode "max-autotune-no-cudagraphs", captured as one CUDA graph."""
    ready = _compiled(model, args, machine, "max-autotune-no-cudagraphs")
    return _captured(ready.call, (), machine, ready.note)


def xla(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """XLA, through jax and torchax."""
    return _other(other_compilers.xla, model, args, machine)


def tvm(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """TVM, not tuned."""
    return _other(other_compilers.tvm, model, args, machine)


def tensorrt(model: nn.Module, args: Args, machine: Machine) -> Prepared:
    """TensorRT, as a backend of torch.compile."""
    return _other(other_compilers.tensorrt, model, args, machine)


RIVALS: dict[str, Rival] = {
    "eager": eager,
    "torchscript": torchscript,
    "cudagraph": cudagraph,
    "cudagraph-tuned": cudagraph_tuned,
    "inductor": inductor,
    "inductor-default": inductor_default,
    "inductor-max": inductor_max,
    "inductor-graph": inductor_graph,
    "inductor-max-graph": inductor_max_graph,
    "xla": xla,
    "tvm": tvm,
    "tensorrt": tensorrt,
}

CAPTURED = ("cudagraph", "cudagraph-tuned", "inductor-graph", "inductor-max-graph")
"""Those of which a graph's replay is timed: records, of failures as well, tell them by name."""

USUAL = {"cuda": ("eager", "inductor"), "cpu": ("eager", "inductor")}
"""Compared with unless told otherwise, by target; nobody on a simulated one."""


def forget_compiled() -> None:
    """Drop what torch.compile holds, so that the next network starts as in a fresh process."""
    torch._dynamo.reset()


def own_copy(model: nn.Module, args: Args) -> tuple[nn.Module, Args, str]:
    """A copy in the layout that rivals run in, and the inputs in it."""
    model = copy.deepcopy(model)
    if not any(_image(leaf) for leaf in pytree.tree_leaves(args)):
        return model, args, ""
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    args = pytree.tree_map(
        lambda leaf: leaf.to(memory_format=torch.channels_last) if _image(leaf) else leaf, args
    )
    return model, args, "channels_last"


def _image(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() == 4 and leaf.dtype.is_floating_point


def _compiled(model: nn.Module, args: Args, machine: Machine, mode: str) -> Prepared:
    """Memory is that of the second and third call: the first tries kernels out, the second records
    the graph with its pool, later ones take nothing more."""
    import torch._inductor.config

    model, args, note = own_copy(model, args)
    compiled = torch.compile(model, mode=mode)

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*args)

    tuning = torch._inductor.config.patch(freezing=True, autotune_num_choices_displayed=0)
    with tuning, quiet(), in_turns(machine):
        call()
        peak = machine.peak_of(lambda: (call(), call()))
    return Prepared(call, peak, note)


@contextmanager
def in_turns(machine: Machine) -> Iterator[None]:
    """Inductor times its candidates while nobody else does on this GPU. The first call of one, that
    loads it and may compile it, is nobody's turn: others wait for no more than its trial."""
    from torch._inductor.runtime.benchmarking import benchmarker

    time = benchmarker.benchmark_gpu

    def timed(candidate: TimedCall, *args: Any, **kwargs: Any) -> float:
        candidate()
        with machine.turn():
            return time(candidate, *args, **kwargs)

    benchmarker.benchmark_gpu = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del benchmarker.benchmark_gpu  # what its class has is seen again


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of tuning, where a candidate that does not fit is nothing to report."""
    log = logging.getLogger("torch._inductor.select_algorithm")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@contextmanager
def timed_algorithms() -> Iterator[None]:
    """Convolutions of cuDNN are chosen by timing."""
    before, cudnn.benchmark = cudnn.benchmark, True
    try:
        yield
    finally:
        cudnn.benchmark = before


def _other(
    build: Callable[..., tuple[TimedCall, int | None]],
    model: nn.Module,
    args: Args,
    machine: Machine,
) -> Prepared:
    call, peak = build(copy.deepcopy(model), args, machine)
    return Prepared(warm(call), peak)


def _captured(fn: Callable[..., Any], args: Args, machine: Machine, note: str) -> Prepared:
    replay, pool = capture_of(machine)(fn, args)
    return Prepared(replay, pool, note, replayed=True)


def capture_of(machine: Machine) -> Capture:
    """How the machine makes a CUDA graph of calls. TargetError on a CPU."""
    if machine.capture is None:
        raise TargetError(
            "there are no CUDA graphs on a CPU", "nothing can be captured", "use --target cuda"
        )
    return machine.capture


def warm(call: TimedCall) -> TimedCall:
    """The call, after those that do not count."""
    for _ in range(CALLS):
        call()
    return call
