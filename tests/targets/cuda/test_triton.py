"""Generated kernels up to the launch, with a driver that takes notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests import fresh

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.targets.cuda.driver import LaunchConfig, refused
from anabranch.targets.cuda.triton import Triton
from anabranch.trace import Trace

pytest.importorskip("triton", reason="compiles with Triton")


@pytest.fixture
def triton(made: Any, driver: Any, monkeypatch: pytest.MonkeyPatch) -> Triton:
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    return Triton(torch.device("cpu"), (9, 0), made.write, lambda: driver)


def test_a_launch(made: Any, triton: Triton, driver: Any) -> None:
    values = made.values()
    call = triton.runner(made.task("pdl"), values, None)
    assert driver.loaded == ["add"] and driver.launches == []  # loaded before any capture
    call()
    call()
    first, second = driver.launches
    assert first == second and first.stream == 77
    assert first.launch == LaunchConfig((5, 1, 1), 128, 0, pdl=True)
    pointers = tuple(values[name].data_ptr() for name in ("x", "y", "out"))
    assert first.addresses[:3] == pointers and set(first.addresses[3:]) <= {0}


def test_scratch_and_counters_come_last(made: Any, triton: Triton, driver: Any) -> None:
    workspace = torch.zeros(4096 + 16, dtype=torch.uint8)
    values = made.values()
    calls = [triton.runner(made.task("scratch"), values, workspace) for _ in range(2)]
    for call in calls:
        call()
    one, other = driver.launches
    assert one.addresses[3] == other.addresses[3] == workspace.data_ptr()
    assert one.addresses[4] != other.addresses[4]  # counters belong to one kernel alone
    triton.runner(made.task("scratch"), values, workspace[:100])()
    assert driver.launches[2].addresses[3] != workspace.data_ptr()


def test_an_address_that_is_not_aligned_gets_code_that_does_not_assume_it(
    made: Any, triton: Triton, driver: Any
) -> None:
    triton.runner(made.task("plain"), made.values(), None)()
    triton.runner(made.task("plain"), made.values(shift=1), None)()
    triton.runner(made.task("plain"), made.values(shift=8), None)()
    functions = [launch.function for launch in driver.launches]
    assert functions[0] == functions[2] != functions[1]
    known, careful = triton._loaded.values()
    assert len(known.cubin.code) < len(careful.cubin.code)


def test_a_described_pointer_that_is_not_aligned_gets_the_kernel_without_descriptors(
    made: Any, triton: Triton, driver: Any
) -> None:
    task = made.task("contraction:64x32x32.k1.w4.s2.g3")
    for shift in (0, 1, 8):
        triton.runner(task, made.values(shift=shift), None)()
    assert [launch.function for launch in driver.launches] == ["add 1", "plain 2", "add 1"]
    moved = made.values()
    moved["y"] = made.values(shift=1)["x"]  # is not described
    triton.runner(task, moved, None)()
    assert driver.launches[-1].function == "add 3"


def test_a_value_that_moves_is_followed(made: Any, triton: Triton, driver: Any) -> None:
    """Results of kernels that allocate appear late and lie elsewhere in each run."""
    values = made.values()
    x = values.pop("x")
    call = triton.runner(made.task("plain"), values, None)
    assert driver.loaded == ["add"]
    for tensor in (x, made.values()["x"], made.values(shift=3)["x"]):
        values["x"] = tensor
        call()
        assert driver.launches[-1].addresses[0] == tensor.data_ptr()
    assert [launch.function for launch in driver.launches] == ["add 1", "add 1", "add 2"]


def test_other_strides_are_refused(made: Any, triton: Triton) -> None:
    values = made.values()
    values["y"] = torch.zeros(10000, dtype=torch.float16)[::2]
    with pytest.raises(TargetError, match=r"%y of task add is f16\[5000\]\{2\}"):
        triton.runner(made.task("plain"), values, None)


def test_another_source_is_refused(made: Any, triton: Triton, driver: Any) -> None:
    task = made.task("plain")
    altered = replace(task.kernel, source=task.kernel.source + "\nimport os\n")
    with triton.building([altered]):
        assert triton._built == {}
    with pytest.raises(TargetError, match="is not what is written here") as failed:
        triton.runner(replace(task, kernel=altered), made.values(), None)
    assert "compile the model again" in failed.value.next
    assert driver.loaded == []


@pytest.mark.parametrize(
    "variant", ["later:512.w2", "pointwise:512.w2.q7", "pointwise:512.w2.c50.pe"]
)
def test_a_variant_that_nobody_writes_is_refused(made: Any, driver: Any, variant: str) -> None:
    """A plan of a later version may hold one, or one with its parts in another order."""
    triton, task = Triton(torch.device("cpu"), (9, 0), driver=lambda: driver), made.task("plain")
    kernel = replace(task.kernel, variant=variant)
    with triton.building([kernel]):
        assert triton._built == {}
    with pytest.raises(TargetError, match="none that is written here") as failed:
        triton.runner(replace(task, kernel=kernel), made.values(), None)
    assert "compile the model again" in failed.value.next


def test_what_fails_is_told_and_heard_when_loaded(made: Any, triton: Triton) -> None:
    trace = Trace()
    kernels = [made.kernel("broken"), made.kernel("plain"), made.kernel("short")]
    with triton.building(kernels, None, trace):
        pass
    refused = [event for event in trace.events if event.kind == "refused"]
    assert sorted(event.what for event in refused) == ["add broken", "add short"]
    progress = [dict(event.data) for event in trace.events if event.kind == "progress"]
    assert [p["done"] for p in progress] == [1, 2, 3]
    with pytest.raises(TargetError, match="cannot be compiled"):
        triton.runner(made.task("broken"), made.values(), None)
    triton.runner(made.task("plain"), made.values(), None)


def test_shared_memory_that_no_cta_may_have(
    made: Any, triton: Triton, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel is compiled without knowing what a GPU has; its driver knows."""
    with triton.building([made.kernel("plain")]):
        pass
    large = {recipe: replace(cubin, shared=300 << 10) for recipe, cubin in triton._built.items()}  # type: ignore[type-var]
    triton._built.update(large)

    def too_much(*_: Any) -> None:
        raise refused("cuFuncSetAttribute", "CUDA_ERROR_INVALID_VALUE")

    with monkeypatch.context() as patched:
        patched.setattr(driver, "set", too_much)
        with pytest.raises(TargetError, match="takes 300 KiB of shared memory: CUDA_ERROR"):
            triton.runner(made.task("plain"), made.values(), None)
    triton.runner(made.task("plain"), made.values(), None)
    assert driver.shared == [300 << 10]


def test_what_is_known_is_ready_while_others_are_compiled(made: Any, triton: Triton) -> None:
    """The first step waits for no compiler; what cannot be written is heard when it is loaded."""
    with triton.building([made.kernel("plain")]):
        pass
    unwritten = replace(made.kernel("plain"), variant="unknown")
    kernels = [made.kernel("broken"), made.kernel("plain"), unwritten, made.kernel("plain")]
    steps = triton.ready(kernels)
    assert next(steps) == [1, 2, 3]
    assert list(steps) == [[0]]
    assert list(triton.ready(kernels)) == [[0, 1, 2, 3]]


def test_a_probe_runs_nothing(made: Any, triton: Triton, driver: Any) -> None:
    probe = triton.probe(made.kernel("scratch"))
    assert (probe.workspace, probe.temporary, probe.launches) == (4096, 0, 1)
    assert probe.resources is not None
    assert (probe.resources.ctas, probe.resources.threads) == (5, 128)
    assert (probe.resources.registers, probe.resources.shared) == (30, 16)
    assert driver.launches == []


def test_a_warm_process_has_no_use_for_triton(made: Any, triton: Triton, tmp_path: Path) -> None:
    """Neither imported nor run: in the second process every compiler is a file that fails."""
    with (
        Cache.open(tmp_path) as cache,
        triton.building([made.kernel("plain"), made.kernel("broken")], cache),
    ):
        pass
    conftest = Path(__file__).with_name("conftest.py")
    script = f"""
import runpy, sys, torch
from types import SimpleNamespace
from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.targets.cuda import cubin
from anabranch.targets.cuda.triton import Triton
cubin.compile_worker = SimpleNamespace(__file__="/nowhere")
made = runpy.run_path({str(conftest)!r}, run_name="conftest")
driver = made["FakeDriver"]()
triton = Triton(torch.device("cpu"), (9, 0), made["write"], lambda: driver)
with Cache.open({str(tmp_path)!r}) as cache:
    with triton.building([made["kernel"]("plain"), made["kernel"]("broken")], cache):
        pass
triton.runner(made["task"]("plain"), made["values"](), None)
try:
    triton.runner(made["task"]("broken"), made["values"](), None)
except TargetError as error:
    assert "nowhere" in error.why and "died" not in error.why, error
assert driver.loaded == ["add"]
assert not [name for name in sys.modules if name.split(".")[0] == "triton"]
"""
    done = fresh.run(script)
    assert done.returncode == 0, done.stderr
