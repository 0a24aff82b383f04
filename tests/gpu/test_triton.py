"""Generated kernels on a GPU: compiled here, loaded by the driver, captured in plans.

The programs are written by hand. Each is loaded as a plan and replayed, so that it runs as plans
run: warmed up, captured, launched again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.schedule import Launch, Schedule, sequential_launches
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton import Program
from anabranch.memory import pack
from anabranch.targets.cuda.target import CudaTarget
from anabranch.targets.cuda.triton import Triton
from anabranch.trace import Trace
from anabranch.tuning.sandbox.client import SandboxClient
from anabranch.tuning.sandbox.process import START, SandboxProcess
from anabranch.tuning.verify.kernel import verify_kernel

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="generated kernels need Triton")

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
N = 5000
ADD = HEAD + (
    "def add(x, y, out):\n"
    "    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)\n"
    "    inside = i < 5000\n"
    "    tl.store(out + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)\n"
)
WAIT = "    tl.extra.cuda.gdc_wait()\n    tl.extra.cuda.gdc_launch_dependents()\n"
WAITING = ADD.replace("    i = tl", f"{WAIT}    i = tl")
# Eight CTAs each leave a sum in scratch; the last to arrive adds them up and clears the counter.
SUM = HEAD + (
    "def total(x, out, scratch, counters):\n"
    "    parts = scratch.to(tl.pointer_type(tl.float32))\n"
    "    p = tl.program_id(0)\n"
    "    i = p * 128 + tl.arange(0, 128)\n"
    "    tl.store(parts + p, tl.sum(tl.load(x + i), 0))\n"
    "    tl.debug_barrier()\n"
    "    if tl.atomic_add(counters, 1, sem='acq_rel') == 7:\n"
    "        k = tl.arange(0, 8)\n"
    "        tl.store(out, tl.sum(tl.load(parts + k, cache_modifier='.cg'), 0))\n"
    "        tl.store(counters, 0)\n"
)
MATMUL = HEAD + (
    "def mm(a, b, out):\n"
    "    i = tl.arange(0, 128)\n"
    "    rows, columns = i[:, None], i[None, :]\n"
    "    sums = tl.zeros((128, 128), tl.float32)\n"
    "    for k in range(0, 1024, 128):\n"
    "        sums += tl.dot(tl.load(a + rows * 1024 + k + columns),\n"
    "                       tl.load(b + (rows + k) * 128 + columns))\n"
    "    tl.store(out + rows * 128 + columns, sums.to(tl.float16))\n"
)
OVERRUN = ADD.replace("i < 5000", "i < 5008")
FAULTY = ADD.replace("tl.store(out + i", "tl.store(out + (1 << 40) + i")
SHORT = ADD.replace("i < 5000", "i < 4999")

ADD_BODY = """\
graph add {
  input %x: f16[5000]
  input %y: f16[5000]
  %out: f16[5000] = aten.add.Tensor(%x, %y)
  return %out
}
"""
SUM_BODY = """\
graph total {
  input %x: f32[1024]
  %out: f32[] = aten.sum.default(%x)
  return %out
}
"""
MATMUL_BODY = """\
graph mm {
  input %a: f16[128,1024]
  input %b: f16[1024,128]
  %out: f16[128,128] = aten.mm.default(%a, %b)
  return %out
}
"""

PLAIN = Program(
    text=ADD,
    entry="add",
    pointers=("x", "y", "out"),
    dtypes=(torch.float16,) * 3,
    grid=(5, 1, 1),
)
TOTAL = Program(
    text=SUM,
    entry="total",
    pointers=("x", "out"),
    dtypes=(torch.float32,) * 2,
    grid=(8, 1, 1),
    scratch=32,
    counters=1,
)
LARGE = Program(
    text=MATMUL,
    entry="mm",
    pointers=("a", "b", "out"),
    dtypes=(torch.float16,) * 3,
    grid=(1, 1, 1),
    warps=8,
    stages=3,
)
PROGRAMS = {
    "plain": (ADD_BODY, PLAIN),
    "pdl": (ADD_BODY, replace(PLAIN, text=WAITING, pdl=True)),
    "scratch": (SUM_BODY, TOTAL),
    "large": (MATMUL_BODY, LARGE),
    "overrun": (ADD_BODY, replace(PLAIN, text=OVERRUN)),
    "faulty": (ADD_BODY, replace(PLAIN, text=FAULTY)),
    "short": (ADD_BODY, replace(PLAIN, text=SHORT)),
    "broken": (ADD_BODY, replace(PLAIN, text=ADD.replace("5000", "nowhere"))),
}


def write(body: Graph, variant: Variant | str) -> Program:
    """The program of a variant, for values of the body's own names."""
    written = PROGRAMS[str(variant)][1]
    names = (*(v.name for v in body.inputs), *(ref.name for ref in body.outputs))
    return replace(written, pointers=names)


def kernel_of(variant: str, body: Graph) -> Kernel:
    text, scratch = PROGRAMS[variant][1].text, PROGRAMS[variant][1].scratch
    return Kernel("triton", variant, body, variant, writes_out=True, workspace=scratch, source=text)


def task_of(variant: str, **names: str) -> Task:
    """A task that a program runs, with values renamed."""
    text = PROGRAMS[variant][0]
    for old, new in names.items():
        text = text.replace(f"%{old}:", f"%{new}:").replace(f"%{old}\n", f"%{new}\n")
        text = text.replace(f"%{old},", f"%{new},").replace(f"%{old})", f"%{new})")
    body = parse_graph(text)
    return Task(body.outputs[0].name, body, kernel_of(variant, body))


def graph_of(*tasks: Task) -> TaskGraph:
    written = {name for task in tasks for name in task.writes}
    read = {value.name: value for task in tasks for value in task.body.inputs}
    inputs = tuple(value for name, value in read.items() if name not in written)
    outputs = tuple(Ref(name) for task in tasks for name in task.writes)
    return TaskGraph("net", inputs, (), tasks, (), outputs)


@pytest.fixture
def target() -> Iterator[CudaTarget]:
    """A target whose writer knows our programs."""
    found = CudaTarget(torch.device("cuda", torch.cuda.current_device()))
    found._triton = Triton(found.device, found.spec.capability, write)
    found._runners["triton"] = found._triton.runner
    yield found
    torch.cuda.synchronize()


def load(target: CudaTarget, *tasks: Task, schedule: Schedule | None = None) -> Any:
    graph = graph_of(*tasks)
    order = schedule or Schedule("one", sequential_launches(dag_of(graph)))
    run = target.load(pack(graph, order, target.spec))
    assert run.failure == "", f"not captured: {run.failure}"
    return run


def halves(seed: int, *shape: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def test_captured_and_replayed_on_other_inputs(target: CudaTarget) -> None:
    run = load(target, task_of("plain"))
    for seed in range(3):
        x, y = halves(seed, N), halves(seed + 10, N)
        (out,) = run([x, y])
        assert torch.equal(out, x + y)


def test_scratch_and_counters_run_after_run(target: CudaTarget) -> None:
    """A counter that a run does not leave at 0 would break the next; 20 replays would show it."""
    run = load(target, task_of("scratch"))
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(1024, device="cuda")
        (out,) = run([x])
        assert torch.allclose(out, x.sum(), atol=1e-3), f"replay {seed}: {out} for {x.sum()}"


def test_two_kernels_of_one_text_have_counters_of_their_own(target: CudaTarget) -> None:
    tasks = task_of("scratch", out="one"), task_of("scratch", out="two")
    both = Schedule("both", (Launch("one", 0), Launch("two", 1)))
    run = load(target, *tasks, schedule=both)
    x = torch.randn(1024, device="cuda")
    for _ in range(50):
        one, two = run([x])
        assert torch.allclose(one, x.sum(), atol=1e-3) and torch.equal(one, two)


def test_more_than_48_kib_of_shared_memory(target: CudaTarget) -> None:
    task = task_of("large")
    run = load(target, task)
    a, b = halves(0, 128, 1024), halves(1, 1024, 128)
    (out,) = run([a, b])
    assert torch.allclose(out.float(), a.float() @ b.float(), atol=0.2, rtol=1e-2)
    assert task.kernel is not None
    resources = target._triton.probe(task.kernel).resources
    assert resources is not None and resources.shared > 48 << 10, resources


def chain(variant: str, length: int) -> list[Task]:
    """out0 = x + y, out1 = out0 + y, ..."""
    names = ["x", *(f"out{i}" for i in range(length))]
    return [task_of(variant, x=names[i], out=names[i + 1]) for i in range(length)]


def needs_pdl(target: CudaTarget) -> None:
    if target.spec.capability < (9, 0):
        pytest.skip("programmatic dependent launch needs compute capability 9.0")


def test_a_chain_of_dependent_launches(target: CudaTarget) -> None:
    """Each is launched before the one it reads from has ended, and waits for it by itself."""
    needs_pdl(target)
    slow, fast = load(target, *chain("plain", 20)), load(target, *chain("pdl", 20))
    for seed in range(20):
        x, y = halves(seed, N), halves(seed + 100, N)
        want, got = slow([x, y]), fast([x, y])
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            assert torch.equal(a, b), f"launch {i} of replay {seed}"


def test_dependent_launches_behind_waits_of_other_streams(target: CudaTarget) -> None:
    """The first on a stream, behind an event, and behind kernels that know nothing of it."""
    needs_pdl(target)
    tasks = [
        task_of("plain", out="a"),
        task_of("pdl", out="b"),
        task_of("pdl", x="a", y="b", out="c"),
        task_of("plain", x="b", y="c", out="d"),
        task_of("pdl", x="d", y="a", out="e"),
    ]
    launches = (
        Launch("a", 0),
        Launch("b", 1),
        Launch("c", 0, ("b",)),
        Launch("d", 1, ("c",)),
        Launch("e", 0, ("d",)),
    )
    run = load(target, *tasks, schedule=Schedule("cross", launches))
    for seed in range(20):
        x, y = halves(seed, N), halves(seed + 100, N)
        a = x + y
        c = a + a
        d = a + c
        for got, want in zip(run([x, y]), (a, a, c, d, d + a), strict=True):
            assert torch.equal(got, want), f"replay {seed}"


def test_slices_at_any_address(target: CudaTarget) -> None:
    """A kernel compiled for aligned addresses would fault on these."""
    whole = halves(0, N + 8)
    for shift in (0, 1, 3, 8):
        values = {"x": whole[shift : shift + N], "y": halves(1, N), "out": halves(2, N)}
        target._triton.runner(task_of("plain"), values, None)()
        torch.cuda.synchronize()
        assert torch.equal(values["out"], values["x"] + values["y"]), f"shift {shift}"


def test_what_is_known_of_a_cubin_is_what_its_node_says(target: CudaTarget) -> None:
    from anabranch.targets.cuda import probe

    run = load(target, task_of("large"))
    ours, seen = target.probe(run)["out"], probe.probe(run, {})["out"]
    assert ours.launches == seen.launches == 1
    assert seen.resources is not None, "the graph has no kernel"
    assert ours.resources == seen.resources
    (task,) = run.plan.tasks.tasks
    assert target._triton.taken(task.kernel) == seen.resources  # which no GPU was asked for


def test_verification_finds_what_is_wrong(target: CudaTarget) -> None:
    for variant in ("plain", "scratch", "large"):
        assert verify_kernel(task_of(variant), target, None) is None, variant
    assert "bytes are written outside all places" in str(
        verify_kernel(task_of("overrun"), target, None)
    )
    assert "element [4999] is nan and not" in str(verify_kernel(task_of("short"), target, None))
    assert "cannot be compiled" in str(verify_kernel(task_of("broken"), target, None))


def test_a_fault_costs_one_kernel_and_not_this_process(target: CudaTarget) -> None:
    """The other process faults at the second, and again when it is asked once more."""
    start = f"""{START}
import runpy
from anabranch.targets.cuda import triton
write, real = runpy.run_path({__file__!r})["write"], triton.Triton
triton.Triton = lambda device, capability: real(device, capability, write)
"""
    variants = ("plain", "faulty", "overrun", "scratch", "broken", "short")
    with (
        SandboxProcess(target, None, start) as sandbox,
        SandboxClient(target, None, Trace(), sandbox) as sandboxed,
    ):
        bad = sandboxed.refusals([task_of(variant) for variant in variants])
    assert sorted(bad) == [1, 2, 4, 5], bad
    # Whichever call finds the fault first tells it: torch, or the driver as it loads what follows.
    assert any(said in str(bad[1]) for said in ("illegal memory access", "ILLEGAL_ADDRESS")), bad[1]
    assert "bytes are written outside all places" in str(bad[2])
    assert "cannot be compiled" in str(bad[4])
    assert "element [4999] is nan and not" in str(bad[5])
    x, y = halves(0, N), halves(1, N)
    assert torch.equal(load(target, task_of("plain"))([x, y])[0], x + y)


def test_an_altered_source_is_not_run(target: CudaTarget) -> None:
    task = task_of("plain")
    assert task.kernel is not None
    altered = replace(task, kernel=replace(task.kernel, source=task.kernel.source + "# x\n"))
    with pytest.raises(TargetError, match="is not what is written here"):
        load(target, altered)


def test_cubins_are_read_back(target: CudaTarget, tmp_path: Path) -> None:
    kernel = task_of("plain").kernel
    assert kernel is not None
    with Cache.open(tmp_path) as cache:
        target.prepare([kernel], cache)
    found = Triton(target.device, target.spec.capability, write)
    with Cache.open(tmp_path) as cache, found.building([kernel], cache):
        assert list(found._built) == list(target._triton._built)
    values = {"x": halves(0, N), "y": halves(1, N), "out": halves(2, N)}
    found.runner(task_of("plain"), values, None)()
    assert torch.equal(values["out"], values["x"] + values["y"])
