"""Programs of a loaded plan: written once, then recalled, and never for another kernel."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.kernels.triton.samples import SAMPLES

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.task import Kernel
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import parse_variant
from anabranch.kernels.triton import codegen, program_cache
from anabranch.kernels.triton.codegen import program


def kernel(name: str) -> Kernel:
    variant, text = SAMPLES[name]
    return kernel_of(parse_graph(text), variant)


def kernel_of(body: Graph, variant: str) -> Kernel:
    name = variant.partition(":")[0]
    return Kernel("triton", name, body, parse_variant(variant), source=program(body, variant).text)


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """One of each template."""
    return tuple(kernel(name) for name in SAMPLES)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "LEARNED", {})
    codegen._program.cache_clear()
    codegen._of_task.cache_clear()


def test_what_was_written_is_recalled_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = [replace(k, variant=parse_variant(f"{k.variant}.c50")) for k in kernels()]
    with Cache.open(tmp_path) as cache:
        missing = program_cache.recall(cache, [*kernels(), *again])
        assert len(missing) == len({(k.body, k.variant) for k in kernels()})
        program_cache.keep(cache, missing)
    want = [program(k.body, k.variant) for k in kernels()]
    codegen._program.cache_clear()
    codegen._of_task.cache_clear()
    for one in codegen.TEMPLATES:
        never = replace(codegen.TEMPLATES[one], write=lambda *_: pytest.fail("it is written anew"))
        monkeypatch.setitem(codegen.TEMPLATES, one, never)
    with Cache.open(tmp_path) as cache:
        assert program_cache.recall(cache, kernels()) == {}
    assert [program(k.body, k.variant) for k in kernels()] == want


def test_neither_variants_nor_bodies_are_taken_for_each_other(tmp_path: Path) -> None:
    """Two variants of one body, and of two bodies one variant."""
    variant, text = SAMPLES["pointwise"]
    body = parse_graph(text)
    negated = parse_graph(text.replace("aten.silu", "aten.neg"))
    some = [kernel_of(body, variant), kernel_of(body, "pointwise:1024.w8")]
    some.append(kernel_of(negated, variant))
    with Cache.open(tmp_path) as cache:
        missing = program_cache.recall(cache, some[:1])
        program_cache.keep(cache, missing)
        left = program_cache.recall(cache, some)
    assert list(left.values()) == some[1:]


def test_other_files_of_ours_write_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache.open(tmp_path) as cache:
        program_cache.keep(cache, program_cache.recall(cache, kernels()))
        monkeypatch.setattr("anabranch.kernels.sources.digest", lambda *rooms: "other")
        assert len(program_cache.recall(cache, kernels())) == len(kernels())


def test_what_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        missing = program_cache.recall(cache, kernels())
        cache.put_many("kernels", dict.fromkeys(missing, '{"text": "def wrong()"}'))
        assert program_cache.recall(cache, kernels()) == missing


def test_a_library_has_none(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        assert (
            program_cache.recall(cache, [replace(kernels()[0], provider="aten", variant="")]) == {}
        )


def test_what_is_remembered_of_a_kernel_keeps_no_weights_alive() -> None:
    """Whoever wrote a plan's kernels may be done with the plan."""
    variant, text = SAMPLES["contraction"]
    body = parse_graph(text)
    value = torch.ones(1 << 10)
    weighed = replace(body, constants=tuple(replace(c, value=value) for c in body.constants))
    assert weighed.constants
    alive = weakref.ref(value)
    program(weighed, variant)
    del weighed, value
    assert alive() is None


def test_programs_say_where_each_task_comes_from() -> None:
    """Equal bodies of other lines share a program, and not its comment."""
    variant, text = SAMPLES["pointwise"]
    body = parse_graph(text)
    for origin in ("net.py:7", "net.py:8"):
        nodes = tuple(replace(node, origin=origin) for node in body.nodes)
        assert f"# from {origin}\n" in program(replace(body, nodes=nodes), variant).text
