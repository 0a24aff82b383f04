"""Plans on a GPU: right for every network and scheduler, under any timing, in little memory."""

from __future__ import annotations

import ctypes
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.generated import generated
from tests.gpu.patience import patiently
from tests.gpu.shared import shared_cache
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import anabranch
from anabranch.bench import delays
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.costs import Roofline
from anabranch.deadline import Deadline
from anabranch.ir.eval import eval_graph
from anabranch.ir.protocols import Limits
from anabranch.ir.tolerances import compare, relative_error
from anabranch.kernels.library import AtenProvider, FusedAtenProvider
from anabranch.kernels.triton.l1_carveout import carveout_of
from anabranch.memory import pack
from anabranch.models.zoo import ZOO
from anabranch.schedule import BEST, SCHEDULERS
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.targets.cuda import nodes
from anabranch.targets.cuda.callables import capture_callable
from anabranch.targets.cuda.capture import WARM_UPS, CudaExecutable
from anabranch.targets.cuda.device_sleep import device_sleep
from anabranch.targets.tf32 import precision

pytestmark = pytest.mark.gpu

BUDGET_S = 20.0
"""For choosing among generated kernels: right ones are wanted here, not the fastest."""
BRANCHY = ("googlenet", "nasnet_mobile", "randwire", "sru")


DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LIKE_OTHERS = (
    *("densenet121", "mobilenet_v2", "gpt2", "mlp", "dlrm", "lstm", "gru", "attention_rnn"),
    *("nasnet_large", "nasnet_ios", "randwire_ios", "t5", "deepspeech2", "nasnet_cell"),
)
DISTINCT = tuple(name for name in ZOO if name not in LIKE_OTHERS)
"""Networks of operators, blocks or cells that no other network of the zoo has."""


def network(name: str, size: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    def moved(x: Tensor) -> Tensor:
        return x.to("cuda", dtype) if x.is_floating_point() else x.to("cuda")

    model = ZOO[name].build(size).to("cuda", dtype)
    return model, tuple(moved(x) for x in ZOO[name].inputs(size, 1))


def quick(name: str, dtype: torch.dtype = torch.float16, **options: Any) -> anabranch.Compiled:
    """With the library's kernels, which need no compiler; `kernels="all"` for the others. Graphs
    are taken as they are: searches have tests of their own. `strict`: nothing is compiled again
    with less optimisation behind our back."""
    model, args = network(name, "tiny", dtype)
    cache = shared_cache()
    given: dict[str, Any] = {"kernels": "library", "cache_dir": cache, "search": "none"}
    given["strict"] = True
    if options.get("kernels") == "all":
        given["budget"] = BUDGET_S
    options = {**given, **options}
    return anabranch.compile(model, args, target="cuda", **options)


GENERATED = [
    ("squeezenet", torch.float16),
    ("resnet50", torch.bfloat16),
    ("googlenet", torch.float32),
    ("bert_base", torch.float16),
    ("sru", torch.bfloat16),
    ("resnext50", torch.float16),
]


ALLOWED = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Of the norm of a result of some fifty layers."""


@pytest.mark.parametrize(("name", "dtype"), GENERATED)
def test_plans_of_generated_kernels_are_right(name: str, dtype: torch.dtype) -> None:
    """Those that were chosen, and generated ones wherever there are any. In bf16 a weight that has
    its norm folded in may round to more than the check allows: then the plan does without."""
    fast = quick(name, dtype, kernels="all", strict=dtype != torch.bfloat16)
    model, args = network(name, "tiny", dtype)
    with torch.no_grad(), precision(tf32=False):
        wanted = tree_leaves(model(*args))
    chosen = fast.executable()
    assert chosen is not None
    for run in (chosen, generated(fast)):
        assert not run.failure
        first = run(args, clone=True)
        for found, want in zip(first, wanted, strict=True):
            assert relative_error(found, want) < ALLOWED[dtype]
        for _ in range(20):
            assert all(torch.equal(x, y) for x, y in zip(run(args), first, strict=True))


@pytest.mark.parametrize("name", ["bert_base", "squeezenet", "sru"])
def test_plans_in_tf32_are_right(name: str) -> None:
    """Tensor cores cut fp32 off, which no library is allowed to show, and neither are we."""
    fast = quick(name, torch.float32, kernels="all", tf32=True, budget=2 * BUDGET_S)
    kernels = [task.kernel for task in fast.entries[0].plan.tasks.tasks if task.kernel]
    assert any(kernel.provider == "triton" for kernel in kernels)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *itertools.product(DISTINCT, DTYPES),
        *((name, torch.float16) for name in ZOO if name not in DISTINCT),
    ],
)
def test_the_zoo_is_right_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    """`compile` compares with the reference and raises; here also once more by hand. Of fifty tiny
    layers in fp16 two orders of sums may be further apart than the check allows: then the plan is
    the network as it was captured."""
    _, args = network(name, "tiny", dtype)
    fast = quick(name, dtype, scheduler="critical", strict=name != "mobilenet_v2")
    graph = fast.entries[0].compilation.captured.graph  # type: ignore[union-attr]
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    with fast.target.full_precision():
        reference = eval_graph(graph, list(args), precision=wide)
    own = eval_graph(graph, list(args))
    run = fast.executable()
    assert run is not None
    for error, allowed in compare(run(args), own, reference):
        assert error <= allowed


@pytest.mark.parametrize("name", DISTINCT)
def test_every_scheduler_gives_the_same_bits(name: str) -> None:
    """The same tasks with the same kernels, so results are the same: streams change when, never
    what. Schedulers that merge tasks are left out: they have others. Costs are estimated, so that
    schedules do not depend on who else uses the GPU."""
    fast = quick(name, scheduler="sequential")
    _, args = network(name, "tiny", torch.float16)
    plan, target = fast.entries[0].plan, fast.target
    wants = target.load(plan)(args, clone=True)
    for scheduler in (name for name in SCHEDULERS if name not in MERGING):
        limits = Limits(deadline=Deadline.after(5.0), spec=plan.spec)
        schedule = SCHEDULERS[scheduler](plan.tasks, Roofline(plan.spec), limits)
        run = target.load(pack(plan.tasks, schedule, plan.spec, plan.signature))
        assert not run.failure
        for _ in range(3):
            got = run(args, clone=True)
            assert all(torch.equal(x, y) for x, y in zip(got, wants, strict=True)), scheduler


@pytest.mark.parametrize("name", BRANCHY)
def test_priorities_change_no_bit(name: str) -> None:
    """The same plan with every other launch urgent, so that streams change their priority often:
    one graph as before, and the same result."""
    fast = quick(name, scheduler="local")
    _, args = network(name, "tiny", torch.float16)
    plan = fast.entries[0].plan
    launches = tuple(
        replace(launch, urgent=bool(i % 2)) for i, launch in enumerate(plan.schedule.launches)
    )
    schedule = replace(plan.schedule, launches=launches)
    rushed = fast.target.load(pack(plan.tasks, schedule, plan.spec, plan.signature))
    assert rushed.failure == ""
    run = fast.executable()
    assert run is not None
    want = [out.clone() for out in run(args)]
    for _ in range(20):
        assert all(torch.equal(x, y) for x, y in zip(rushed(args), want, strict=True))


@pytest.mark.parametrize("name", DISTINCT)
def test_random_delays_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing wait, or bytes that two unordered launches share, would show under delays."""
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    matrix = ScheduleMatrix((f"zoo:{name}/tiny",), BEST, target="cuda", kernels="library")
    record = delays.run(matrix, 30)
    assert all(row["failure"] == "" and row["runs"] == 30 for row in record["rows"])
    assert sum(row["runs"] for row in record["rows"]) >= 200
    assert record["different"] == 0


def test_an_interrupted_capture_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a capture is heard, and the next capture finds no trace of it."""
    fast = quick("googlenet", scheduler="critical")
    _, args = network("googlenet", "tiny", torch.float16)
    want, plan = fast(*args).clone(), fast.entries[0].plan
    launch_all, launched = CudaExecutable.launch_all, 0

    def interrupted(run: CudaExecutable) -> None:
        nonlocal launched
        before, launched = launched, launched + 1
        tasks = iter(range(len(plan.tasks.tasks)))

        def call_or_stop(_: str, call: Callable[[], None]) -> None:
            if before == WARM_UPS and next(tasks) == len(plan.tasks.tasks) // 2:
                raise KeyboardInterrupt
            call()

        launch_all(run, call_or_stop)

    with monkeypatch.context() as patched:
        patched.setattr(CudaExecutable, "launch_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fast.target.load(plan)
    assert launched == WARM_UPS + 1
    gc.collect()
    again = fast.target.load(plan)
    assert not again.failure and torch.equal(again(args)[0], want)
    gc.collect()
    assert torch.equal(fast(*args), want)


def test_a_target_may_go_while_somebody_captures_a_graph() -> None:
    """As garbage does. In a process of its own: torch would end it."""
    code = """
import gc, torch
import anabranch
model = torch.nn.Linear(64, 64).half().cuda().eval()
x = torch.randn(64, 64, dtype=torch.float16, device="cuda")
fast = anabranch.compile(model, (x,), kernels="library", search="none")
fast(x)
y = x + 1  # nothing may be loaded while a graph is captured
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
    del fast
    gc.collect()
graph.replay()
print(torch.equal(y, x + 1))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "True", ran.stderr[:4000]


def test_replays_are_the_same_bits() -> None:
    fast = quick("googlenet")
    _, args = network("googlenet", "tiny", torch.float16)
    first = fast(*args)
    assert all(torch.equal(fast(*args), first) for _ in range(100))


def test_profiling_does_not_move_the_results() -> None:
    """Running outside the graph makes new pool tensors; replays go on where they were captured."""
    fast = quick("bert_base")
    _, args = network("bert_base", "tiny", torch.float16)
    want = fast(*args)
    run = fast.executable()
    assert run is not None and fast.target.timeline(run) is not None
    for got, expected in zip(fast(*args), want, strict=True):
        assert torch.equal(got, expected)


def test_without_cudnn_frontend_plans_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch.tuning import tuner

    monkeypatch.setattr(tuner, "PROVIDERS", (AtenProvider(), FusedAtenProvider()))
    for name in ("squeezenet", "resnet50"):
        for last in (False, True):
            model, args = network(name, "tiny", torch.float16)
            if last:
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                args = (args[0].to(memory_format=torch.channels_last),)
            options: dict[str, Any] = {"kernels": "library", "search": "none", "cache_dir": None}
            fast = anabranch.compile(model, args, target="cuda", **options)
            with torch.no_grad():
                assert relative_error(fast(*args), model(*args)) < 5e-3


@pytest.mark.parametrize("name", ["squeezenet", "nasnet_mobile", "bert_base"])
def test_memory_is_near_that_of_one_stream(name: str) -> None:
    """Against the eager model in one sequential CUDA graph, as its allocator counts it."""
    model, args = network(name, "paper", torch.float16)
    if args[0].dim() == 4:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        args = (args[0].to(memory_format=torch.channels_last),)
    fast = anabranch.compile(model, args, target="cuda", kernels="library", search="none")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            model(*args)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            model(*args)
        eager = torch.cuda.max_memory_allocated() - before
    run = fast.executable()
    assert run is not None and run.peak_bytes() <= 1.25 * eager


def test_calls_from_two_streams_do_not_mix() -> None:
    fast = quick("googlenet")
    _, (x,) = network("googlenet", "tiny", torch.float16)
    wants = [fast(x), fast(-x)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
    for _ in range(20):
        got = []
        for stream, value in zip(streams, (x, -x), strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                got.append(fast(value))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, wants, strict=True))


def test_calls_wait_for_the_one_before_on_whatever_stream() -> None:
    """A call whose stream is asleep is overtaken by the next one, unless that one waits: its input
    would be overwritten. Calls on the default stream leave no event to wait for until then."""
    fast = quick("squeezenet")
    _, (x,) = network("squeezenet", "tiny", torch.float16)
    inputs = [x, -x, 2 * x]
    wants = [fast(value) for value in inputs]
    side = [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
    streams = [torch.cuda.default_stream(), *side]
    torch.cuda.synchronize()
    order = [0, 0, 1, 0, 2, 1, 1, 0, 0, 2, 0, 1, 2] * 4
    got = []
    for number, place in enumerate(order):
        with torch.cuda.stream(streams[place]):
            if number % 3:
                device_sleep(100.0)
            got.append(fast(inputs[number % len(inputs)]))
    torch.cuda.synchronize()
    for number, result in enumerate(got):
        assert torch.equal(result, wants[number % len(inputs)]), f"call {number}"


def test_a_stream_may_be_gone_before_the_next_call() -> None:
    """Of another library: torch's own streams stay."""
    fast = quick("squeezenet")
    _, (x,) = network("squeezenet", "tiny", torch.float16)
    want = fast(x)
    driver = ctypes.CDLL("libcuda.so.1")
    for _ in range(3):
        handle = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):  # type: ignore[no-untyped-call]
            got = fast(x)
            torch.cuda.current_stream().synchronize()
        assert driver.cuStreamDestroy_v2(handle) == 0
        assert torch.equal(got, want) and torch.equal(fast(x), want)


def test_small_inputs_are_copied_from_wherever_they_are() -> None:
    """Together where they lie as their buffers do, and one by one where not."""

    def model(a: Tensor, b: Tensor, c: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return a * i + b * j + c

    floats = [torch.randn(8, 16, device="cuda") for _ in range(3)]
    whole = [torch.randint(0, 9, (8, 16), device="cuda") for _ in range(2)]
    given: dict[str, Any] = {"kernels": "library", "cache_dir": None, "search": "none"}
    fast = anabranch.compile(model, (*floats, *whole), target="cuda", **given)
    fresh = [torch.randn_like(value) for value in floats] + [9 - value for value in whole]
    want = model(*fresh)
    turned = [value.t().contiguous().t() for value in fresh]
    mixed = [fresh[0].cpu(), turned[1], fresh[2], fresh[3].cpu(), fresh[4]]
    repeated = [fresh[0][:1].expand(8, 16), *fresh[1:]]
    run = fast.executable()  # which takes tensors of the CPU, too, where a call refuses them
    assert run is not None
    for values in (fresh, turned, [value.cpu() for value in fresh], mixed):
        torch.testing.assert_close(run(values, clone=True)[0], want)
        run([torch.zeros_like(value) for value in values])
    torch.testing.assert_close(fast(*repeated), model(*repeated))


def test_gradients_are_refused_and_leave_no_history_in_buffers() -> None:
    fast = quick("squeezenet")
    _, (x,) = network("squeezenet", "tiny", torch.float16)
    want = fast(x)
    for _ in range(2):
        got = fast(x.clone().requires_grad_())
        assert torch.equal(got, want)
        with pytest.raises(RuntimeError, match="compiled by Anabranch"):
            got.sum().backward()
    run = fast.executable()
    assert isinstance(run, CudaExecutable)
    assert not any(buffer.requires_grad for buffer in run.inputs)


def test_torch_compile_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch.integrations.dynamo import anabranch_backend

    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(shared_cache() or ""))
    monkeypatch.setenv("ANABRANCH_BUDGET", str(BUDGET_S))
    model, args = network("resnet50", "tiny", torch.float16)
    with torch.no_grad():
        got = torch.compile(model, backend=anabranch_backend)(*args)
        assert relative_error(got, model(*args)) < 5e-3


def test_a_saved_plan_runs_again(tmp_path: Any) -> None:
    fast = quick("resnet50")
    _, args = network("resnet50", "tiny", torch.float16)
    fast.save(tmp_path / "net.anabranch")
    again = anabranch.load(tmp_path / "net.anabranch")
    assert torch.equal(again(*args), fast(*args))


def test_the_users_precision_switches_stay() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    quick("squeezenet", torch.float32, tf32=True)
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


@pytest.mark.parametrize("kernels", ["library", "all"])
def test_all_kernels_ask_for_one_carve_out(kernels: str) -> None:
    """As the nodes of the graph say that is replayed, a library's among them."""
    run = quick("squeezenet", kernels=kernels).executable()
    assert isinstance(run, CudaExecutable) and run._graph is not None
    library, asked = nodes.opened(), []
    for node, kind in nodes._nodes(run._graph.raw_cuda_graph(), library):
        if kind == nodes.KERNEL:
            value = nodes.VALUE()
            what = ctypes.c_void_p(node), ctypes.c_int(nodes.CARVEOUT), value
            library.ask("cuGraphKernelNodeGetAttribute", *what)
            asked.append(value[0])
    assert len(asked) > 10 and set(asked) == {carveout_of(run.plan.tasks)}


@pytest.mark.alone
def test_compiling_leaves_launches_as_fast_as_they_were(tmp_path: Path) -> None:
    """What has been profiled once pays for it in every launch: 60 us for 70 kernels, not 5."""
    x = torch.zeros(1024, device="cuda")

    def line() -> None:
        for _ in range(100):
            x.add_(1)

    replay, _ = capture_callable(line)

    def launching() -> float:
        taken = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            replay()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    before = launching()
    model, args = network("deepfm", "tiny", torch.float16)
    for kernels in ("library", "all"):
        anabranch.compile(
            model, args, target="cuda", search="none", kernels=kernels, cache_dir=tmp_path
        )

    def as_fast() -> None:
        assert launching() < 3 * before

    patiently(as_fast)
