"""The sandbox: every kernel is compared with what its body computes, on numbers drawn anew."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from anabranch.ir.graph import Graph
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph, text_graph
from anabranch.targets.cpu.target import CpuTarget
from anabranch.tuning.sandbox import worker as sandbox
from anabranch.tuning.sandbox.worker import Oracle, try_kernel


def graph(*lines: str) -> Graph:
    return parse_graph(
        "graph g {\n  input %x: f32[4,8]\n  const %w: f32[8] = 00\n"
        + "\n".join(f"  {line}" for line in lines)
        + "\n  return %out\n}"
    )


ADDED = graph("%out: f32[4,8] = aten.add.Tensor(%x, %w)")
SCALED = graph("%out: f32[4,8] = aten.mul.Tensor(%x, %w)")
ROOTED = graph(
    "%root: f32[8] = aten.sqrt.default(%w)", "%out: f32[4,8] = aten.div.Tensor(%x, %root)"
)
NOT_ROOTED = graph(
    "%root: f32[8] = aten.abs.default(%w)", "%out: f32[4,8] = aten.div.Tensor(%x, %root)"
)
DROPPED = graph("%out: f32[4,8] = aten.rand_like.default(%x)")
FACTORED = parse_graph("""
graph factor {
  input %x: f32[64,64]
  %out: f32[64,64] = aten.cholesky.default(%x)
  return %out
}""")


def heard(body: Graph, kernel: Graph) -> str:
    target = CpuTarget()
    task = Task("task", body, Kernel("aten", "aten", kernel))
    return str(try_kernel(task, target, Oracle(target)).refused or "")


LARGEST = graph(
    "%low: f32[4,8] = aten.relu.default(%x)",
    "%log: f32[4,8] = aten.log.default(%low)",
    "%out: f32[4,8] = aten.nan_to_num.default(%log)",
)
"""What the largest number of each precision is put for."""
QUOTIENT = parse_graph("""
graph g {
  input %x: f32[64,64]
  input %y: f32[64,64]
  %sum: f32[64,1] = aten.sum.dim_IntList(%y, [1], True)
  %out: f32[64,64] = aten.div.Tensor(%x, %sum)
  return %out
}""")
"""Of sums near zero, which outweigh all others: summed in another order they differ."""
OTHERWISE = parse_graph("""
graph g {
  input %x: f32[64,64]
  input %y: f32[64,64]
  %t: f32[64,64]{1,64} = aten.t.default(%y)
  %sum: f32[1,64] = aten.sum.dim_IntList(%t, [0], True)
  %back: f32[64,1] = aten.t.default(%sum)
  %out: f32[64,64] = aten.div.Tensor(%x, %back)
  return %out
}""")


def test_what_is_right_in_another_order_is_not_refused() -> None:
    refused = [heard(QUOTIENT, OTHERWISE) for _ in range(20)]
    assert sum(map(bool, refused)) <= 2


@pytest.mark.parametrize("body", [ADDED, SCALED, ROOTED, DROPPED, LARGEST])
def test_what_computes_its_body_passes(body: Graph) -> None:
    assert heard(body, body) == ""


@pytest.mark.parametrize(("body", "kernel"), [(ADDED, SCALED), (ROOTED, NOT_ROOTED)])
def test_what_computes_something_else_does_not(body: Graph, kernel: Graph) -> None:
    """Nor where normal numbers make none, such as roots of variances: then positive ones do."""
    assert ", of numbers of seed" in heard(body, kernel)


def test_probabilities_stay_probabilities() -> None:
    """Where positive numbers are drawn for the roots of others."""
    body = graph(
        "%odds: f32[4,8] = aten.logit.default(%x)",
        "%root: f32[8] = aten.sqrt.default(%w)",
        "%out: f32[4,8] = aten.mul.Tensor(%odds, %root)",
    )
    expected = Oracle(CpuTarget()).of(body)
    (held,) = expected.body.constants
    assert held.value is not None and held.value.min() >= 0 and expected.finite.judged
    (x,) = expected.finite.inputs
    assert 0 <= x.min() <= x.max() <= 1


def test_of_bodies_that_refuse_random_numbers_nothing_is_said() -> None:
    target = CpuTarget()
    assert not Oracle(target).of(FACTORED).finite.judged
    assert not Oracle(target).of(DROPPED).finite.judged


def test_bodies_are_computed_once_as_long_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = Oracle(CpuTarget())
    first = oracle.of(ADDED)
    assert oracle.of(ADDED) is first and oracle.of(SCALED) is not first
    other = Oracle(CpuTarget()).of(ADDED)
    assert not torch.equal(first.finite.inputs[0], other.finite.inputs[0]), (
        "drawn anew in each process"
    )
    assert oracle.of(ADDED, 1) is not first and oracle.of(ADDED, 1) is oracle.of(ADDED, 1)
    monkeypatch.setattr(sandbox, "ANSWERS", 4)
    assert oracle.of(ROOTED) is oracle.of(ROOTED)
    latest = oracle.of(DROPPED)
    assert oracle.of(ADDED) is not first and oracle.of(DROPPED) is latest, "the oldest goes first"


def test_trying_a_kernel_imports_nothing_slow() -> None:
    """Whoever starts a process to try kernels waits for its first answer."""
    code = (
        "import sys\n"
        "from anabranch.ir.task import Kernel, Task\n"
        "from anabranch.ir.text import parse_graph\n"
        "from anabranch.targets.cpu.target import CpuTarget\n"
        "from anabranch.tuning.sandbox.worker import Oracle, try_kernel\n"
        "before, body, cpu = set(sys.modules), parse_graph(sys.argv[1]), CpuTarget()\n"
        "verdict = try_kernel(Task('task', body, Kernel('aten', 'aten', body)), cpu, Oracle(cpu))\n"
        "assert verdict.reached == 'right', verdict\n"
        "print(len(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, text_graph(QUOTIENT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40, "SymPy alone has hundreds of modules"
