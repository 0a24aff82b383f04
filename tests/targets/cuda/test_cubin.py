"""Texts become cubins for GPUs that are not here; what fails costs one of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.deadline import TIME
from anabranch.targets.cuda import cubin
from anabranch.targets.cuda.cubin import (
    Cubin,
    CubinOrReason,
    CubinRecipe,
    compiling,
    read_built,
    write_built,
)
from anabranch.targets.cuda.triton import Triton

pytest.importorskip("triton", reason="compiles with Triton")


@pytest.fixture
def recipe(made: Any) -> CubinRecipe:
    text = made.programs["plain"].text
    return CubinRecipe(text, "add", ("*fp16",) * 3, (True,) * 3, 90, warps=4, stages=1)


def compiled(*recipes: CubinRecipe) -> list[CubinOrReason]:
    with compiling(recipes) as ready:
        found = dict(ready)
    return [found[recipe] for recipe in recipes]


def test_for_two_generations_of_gpus_and_one_broken_text(recipe: CubinRecipe) -> None:
    broken = replace(recipe, text=recipe.text.replace("5000", "nowhere"))
    older, newer, none = compiled(replace(recipe, capability=80), recipe, broken)
    for built in (older, newer):
        assert isinstance(built, Cubin), built
        assert built.code[:4] == b"\x7fELF" and built.entry == "add"
        assert (built.warps, built.shared, built.scratch, built.spilled) == (4, 0, 0, 0)
        assert 3 <= built.parameters <= 6 and 8 <= built.registers <= 255
    assert older != newer
    assert isinstance(none, str) and "nowhere" in none


def test_alignment_is_used_where_it_is_known(recipe: CubinRecipe) -> None:
    """Eight loads of two bytes become one of sixteen: the code is shorter."""
    unknown = replace(recipe, aligned=(False,) * 3)
    known, careful = compiled(recipe, unknown)
    assert isinstance(known, Cubin) and isinstance(careful, Cubin)
    assert len(known.code) < len(careful.code)
    assert recipe.key("3.6.0") != unknown.key("3.6.0") != unknown.key("3.7.0")


def test_shared_memory_is_told(recipe: CubinRecipe) -> None:
    text = (
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef mm(a, b, c):\n"
        "    i = tl.arange(0, 128)\n    at = i[:, None] * 128 + i[None, :]\n"
        "    total = tl.zeros((128, 128), tl.float32)\n"
        "    for k in range(8):\n"
        "        total += tl.dot(tl.load(a + at + k * 16384), tl.load(b + at + k * 16384))\n"
        "    tl.store(c + at, total.to(tl.float16))\n"
    )
    (built,) = compiled(replace(recipe, text=text, entry="mm", stages=3))
    assert isinstance(built, Cubin), built
    assert built.shared > 48 << 10


def test_other_parameters_than_the_text_has_are_refused(recipe: CubinRecipe) -> None:
    (none,) = compiled(replace(recipe, types=("*fp16",) * 2, aligned=(True,) * 2))
    assert none == "the text takes 3 parameters, the program has 2"


def test_a_dead_compiler_costs_one_text(
    recipe: CubinRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cubin, "MOST_PROCESSES", 1)
    deadly = replace(recipe, text="import os\nos.kill(os.getpid(), 11)\n")
    dead, fine = compiled(deadly, recipe)
    assert dead == "the compiler died with exit status -11"
    assert isinstance(fine, Cubin)


def test_a_text_that_takes_for_ever_is_given_up(
    recipe: CubinRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cubin, "TIME", replace(TIME, kernel_compile_limit_s=1.0))
    (late,) = compiled(replace(recipe, text="import time\ntime.sleep(60)\n"))
    assert late == "compiling took longer than 1 s"


def test_of_many_cores_some_have_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core is left for who asks, and no more compilers than memory bears; half of them ahead."""
    started: list[int] = []
    for cores, ahead, most in ((1, 1, 1), (16, 15, 15), (32, 16, 31), (128, 16, 32)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: range(n))
        assert (cubin.workers(cubin.AHEAD), cubin.workers(1000)) == (ahead, most)
        target = Triton(torch.device("cuda", 0), (9, 0))
        monkeypatch.setattr(target._crew, "start", started.append)
        target.start()
    assert started == [1, 15, 16, 16]


def test_leaving_early_leaves_no_process(
    recipe: CubinRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen: Callable[..., Any] = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    slow = [replace(recipe, text=f"import time\ntime.sleep({60 + i})\n") for i in range(4)]
    with pytest.raises(KeyboardInterrupt), compiling(slow):
        while not started:
            pass
        raise KeyboardInterrupt
    assert started and all(process.poll() is not None for process in started)


def test_cubins_and_refusals_survive_the_cache() -> None:
    for built in (Cubin(b"\x7fELF\n\x00\n", "add", 4, 0, 5, 0, 30, 8), "no such name\nat 3"):
        assert read_built(write_built(built)) == built


def test_in_turn_the_longest_of_the_next_few_is_begun_first(recipe: CubinRecipe) -> None:
    """Elsewhere the longest of all."""
    sizes = (16, 64, 32, 128, 512, 256)
    texts = [replace(recipe, text=f"tl.arange(0, {size})") for size in sizes]

    def order(window: int) -> list[int]:
        return [sizes[texts.index(one)] for one in cubin._longest_first(texts, window)]

    assert order(2) == [64, 16, 128, 32, 512, 256]
    assert order(6) == [512, 256, 128, 64, 32, 16]
