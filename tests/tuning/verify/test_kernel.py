"""Acceptance: what is compared with what, and what cannot be compared alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.key import task_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Target
from anabranch.ir.samples import Samples
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.targets.cpu.target import CpuTarget
from anabranch.targets.sampled import SampledTarget
from anabranch.tuning.verify.kernel import PASSED, verify_kernel


def test_an_operator_that_refuses_random_content_is_not_a_wrong_kernel() -> None:
    """No random matrix of this size has a Cholesky factor: its diagonal holds a negative."""
    body = parse_graph("""
graph factor {
  input %x: f32[64,64]
  %factor: f32[64,64] = aten.cholesky.default(%x)
  return %factor
}""")
    assert (
        verify_kernel(Task("factor", body, Kernel("aten", "aten", body)), CpuTarget(), None) is None
    )


BAG = """
graph bag {
  input %table: f32[8,4]
  input %ids: i64[6]
  input %starts: i64[3]
  %BAG
  return %bag
}"""


def test_bags_are_judged() -> None:
    body = parse_graph(
        BAG.replace(
            "%BAG",
            "%bag: f32[3,4], %of: i64[0], %size: i64[3], %most: i64[3] = "
            "aten._embedding_bag.default(%table, %ids, %starts)",
        )
    )
    wrong = parse_graph(
        BAG.replace("%BAG", "%bag: f32[3,4] = aten.embedding.default(%table, %starts)")
    )
    assert verify_kernel(Task("bag", body, Kernel("aten", "aten", body)), CpuTarget(), None) is None
    assert verify_kernel(Task("bag", body, Kernel("aten", "wrong", wrong)), CpuTarget(), None)


def test_a_kernel_that_fails_where_its_body_does_not_is_refused() -> None:
    body = parse_graph("""
graph sum {
  input %x: f32[4]
  %sum: f32[4] = aten.add.Tensor(%x, %x)
  return %sum
}""")
    other = parse_graph("""
graph sum {
  input %x: f32[4]
  %sum: f32[4] = aten.index_select.default(%x, 0, %x)
  return %sum
}""")
    verdict = verify_kernel(Task("sum", body, Kernel("aten", "aten", other)), CpuTarget(), None)
    assert str(verdict).startswith("failed: ")


LOOKUP = """
graph rows {{
  input %ids: i64[4,8]
  const %table: f32[{rows},3] = table
  %flat: i64[32] = aten.reshape.default(%ids, [32])
  %rows: f32[32,3] = aten.embedding.default(%table, %flat)
  return %rows
}}"""


def test_indices_reach_to_the_end_of_their_table() -> None:
    """A kernel that is right for the first two rows alone is found out."""
    body = parse_graph(LOOKUP.format(rows=50))
    table = replace(body.constants[0], value=torch.randn(50, 3))
    body = replace(body, constants=(table,))
    wrong = parse_graph(
        """
graph rows {
  input %ids: i64[4,8]
  const %table: f32[50,3] = table
  %flat: i64[32] = aten.reshape.default(%ids, [32])
  %low: i64[32] = aten.clamp_max.default(%flat, 1)
  %rows: f32[32,3] = aten.embedding.default(%table, %low)
  return %rows
}"""
    )
    wrong = replace(wrong, constants=(table,))
    assert (
        verify_kernel(Task("rows", body, Kernel("aten", "aten", body)), CpuTarget(), None) is None
    )
    assert ", of inputs of seed" in str(
        verify_kernel(Task("rows", body, Kernel("aten", "a", wrong)), CpuTarget(), None)
    )


def scaled(call: str) -> Graph:
    body = parse_graph(f"""
graph scale {{
  input %x: f32[64]
  const %by: f32[64] = by
  %scale: f32[64] = {call}
  return %scale
}}""")
    return replace(body, constants=(replace(body.constants[0], value=torch.randn(64)),))


@pytest.mark.parametrize(
    ("screened", "known", "covered"),
    [
        (True, True, ("real",)),
        (True, False, ("finite",)),
        (False, True, ("finite", "real", "special")),
        (False, False, ("finite", "special")),
    ],
)
def test_what_was_right_in_the_sandbox_is_compared_once_with_the_models_own_constants(
    tmp_path: Path, screened: bool, known: bool, covered: tuple[str, ...]
) -> None:
    """On the values of the example where they are known, else on finite numbers."""
    body = scaled("aten.mul.Tensor(%x, %by)")
    target: Target = CpuTarget()
    if known:
        target = SampledTarget(target, Samples(body, [torch.randn(64)], torch.device("cpu")))
    right = replace(scaled("aten.mul.Tensor(%by, %x)"), constants=body.constants)
    kernel = Kernel("aten", "k", right, writes_out=True, source="text")
    task = Task("s", body, kernel)
    with Cache.open(tmp_path) as cache:
        assert verify_kernel(task, target, cache, screened) is None
        key = PASSED.key(target.spec.fingerprint, task_text(task))
        assert PASSED.get(cache, key) == covered
    wrong = replace(task, kernel=replace(kernel, body=scaled("aten.add.Tensor(%by, %x)")))
    assert verify_kernel(wrong, target, None, screened) is not None


def test_a_kernel_that_others_have_built_is_read_from_the_cache_and_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finalists that workers time are in the cache, and in no memory of the caller."""
    deeds = list[object]()
    load = CpuTarget.load

    def noted(self: CpuTarget, plan: Plan, *how: Any, **others: Any) -> Any:
        deeds.append("load")
        return load(self, plan, *how, **others)

    monkeypatch.setattr(CpuTarget, "prepare", lambda self, *asked: deeds.append(asked))
    monkeypatch.setattr(CpuTarget, "load", noted)
    body = scaled("aten.mul.Tensor(%x, %by)")
    kernel = Kernel("aten", "k", body, writes_out=True, source="text")
    with Cache.open(tmp_path) as cache:
        assert verify_kernel(Task("s", body, kernel), CpuTarget(), cache, True) is None
        assert deeds == [([kernel], cache), "load"]
        assert verify_kernel(Task("s", body, kernel), CpuTarget(), cache, True) is None
