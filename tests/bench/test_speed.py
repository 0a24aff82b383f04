"""The suite on the CPU, with a stand-in for our compiler: what is recorded, and what goes wrong.

one tiny network x rivals that work, fail, hang and lie  ->  one row each
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.bench.small import SMALL
from torch import Tensor, nn

from anabranch.bench import other_compilers, rivals, speed, table
from anabranch.bench.machine import Machine, machine
from anabranch.bench.provenance import commit, versions
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.bench.rivals import Prepared
from anabranch.bench.speed import run
from anabranch.errors import OptionError, TargetError
from anabranch.options import Options
from anabranch.trace import Trace


class FakeRun:
    plan = SimpleNamespace(graph=True)

    def __init__(self, call: Callable[[], Any], failure: str = "") -> None:
        self.replay, self.failure = call, failure

    def strays(self) -> str:
        return ""

    def peak_bytes(self) -> int:
        return 1024


class FakeCompiled:
    """Runs the model as it is, and remembers how it was asked for."""

    asked: list[dict[str, Any]]
    options = Options()

    def __init__(self, model: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        self.model, self.args = model, args
        self.known = {"scheduler": "sequential", "streams": 1, "kernels": 3, "peak_bytes": 1024}
        plan = options.get("search") and f"the plan of every search but {options['search']}"
        self.entries = [SimpleNamespace(plan=plan)]

    def __call__(self, *args: Tensor) -> Any:
        return self.model(*args)

    def executable(self) -> FakeRun:
        return FakeRun(lambda: self.model(*self.args))


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def compiler(asked: list[dict[str, Any]]) -> Callable[..., FakeCompiled]:
    def compile(model: nn.Module, args: tuple[Tensor, ...], **options: Any) -> FakeCompiled:
        asked.append(options)
        return FakeCompiled(model, args, options)

    return compile


def quick(**changes: Any) -> BenchmarkMatrix:
    settings: dict[str, Any] = {"dtypes": ("fp32",), "target": "cpu", "seconds": 0.0, "rivals": ()}
    return BenchmarkMatrix((SMALL,), **{**settings, **changes})


def test_calls_beside_our_call_and_replays_beside_our_replay(
    compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replayed(model: nn.Module, args: Any, machine: Machine) -> Prepared:
        return Prepared(lambda: model(*args), replayed=True)

    monkeypatch.setitem(rivals.RIVALS, "replayed", replayed)
    rows = run(quick(rivals=("eager", "replayed")), compile=compiler)["rows"]
    found = {row["system"]: row for row in rows}
    assert {name: row["beside"] for name, row in found.items()} == {
        "anabranch": "anabranch",
        "anabranch-call": "anabranch",
        "eager": "anabranch-call",
        "replayed": "anabranch",
    }
    for row in rows:
        if row["system"] != row["beside"]:
            assert row["ratio"] == row["against"][row["beside"]][0]


def test_a_plan_without_its_graph_has_no_time_beside_graphs(
    compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What users call has one: the host's part is in it in any case."""

    def launched(compiled: FakeCompiled) -> FakeRun:
        return FakeRun(lambda: None, "CUDA out of memory")

    monkeypatch.setattr(FakeCompiled, "executable", launched)
    rows = run(quick(systems=("anabranch+search=none",)), compile=compiler)["rows"]
    found = {row["system"]: row for row in rows}
    call = found.pop("anabranch-call")
    assert call["median_ms"] > 0 and not call["failure"]
    assert len(found) == 2
    for row in found.values():
        assert row["median_ms"] is None and row["ratio"] is None and not row["against"]
        assert row["failure"].endswith(
            "for want of a graph, which says nothing beside graphs: CUDA out of memory"
        )


def test_one_plan_is_timed_once(compiler: Callable[..., Any]) -> None:
    """Two captures of one plan differ by more than a search gains."""
    systems = ("anabranch+search=none", "anabranch+search=none+seed=1", "anabranch+search=taso")
    rows = run(quick(systems=systems), compile=compiler)["rows"]
    found = {row["system"].removeprefix("anabranch:"): row for row in rows}
    one, other, third = (found[name] for name in systems)
    assert other["note"].endswith(f"the plan of {one['system']}") and "the plan" not in one["note"]
    assert one["median_ms"] == other["median_ms"] and one["samples"] == other["samples"]
    assert tuple(other["against"][one["system"]]) == (1.0, 1.0, 1.0, True)
    assert "the plan" not in third["note"] and third["samples"] > 0


def test_times_are_taken_when_nobody_builds(
    compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @contextmanager
    def building() -> Iterator[None]:
        told.append("building")
        yield
        told.append("built")

    @contextmanager
    def alone(waiting: Callable[[], object]) -> Iterator[None]:
        waiting()
        yield
        told.append("timed")

    def sampled(calls: Any, seconds: float, replays: Any = ()) -> list[list[float]]:
        told.append("sampled")
        return here.sample(calls, seconds, replays)

    here = machine("cpu")
    other = replace(here, building=building, alone=alone, sample=sampled)
    monkeypatch.setattr(speed, "machine", lambda target: other)
    trace = Trace()
    run(quick(rivals=("eager",)), trace, compile=compiler)
    assert told == ["building", "built", "sampled", "timed"]
    assert any(event.why == "wait for benchmarks that build here" for event in trace.events)


def test_inductor_times_its_candidates_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.benchmarking import benchmarker

    told: list[str] = []

    @contextmanager
    def turn() -> Iterator[None]:
        told.append("taken")
        yield
        told.append("over")

    def timed(self: Any, candidate: Callable[[], None], rep: int) -> float:
        candidate()
        told.append(f"timed {rep}")
        return 1.0

    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", timed)
    with rivals.in_turns(replace(machine("cpu"), turn=turn)):
        assert benchmarker.benchmark_gpu(lambda: told.append("one"), rep=2) == 1.0
    assert benchmarker.benchmark_gpu(lambda: told.append("other"), rep=3) == 1.0
    beside = ["one", "taken", "one", "timed 2", "over"]  # the first call may compile it
    assert told == [*beside, "other", "timed 3"]


def test_a_record(compiler: Callable[..., Any]) -> None:
    record = run(quick(batches=(1, 2), rivals=("eager", "torchscript")), compile=compiler)
    record = json.loads(json.dumps(record))
    assert {"version", "date", "command", "commit", "versions", "settings"} < set(record)
    assert record["kind"] == "speed" and record["machine"]["device"]
    assert record["machine"]["target"] == "cpu" and record["versions"]["torch"]
    rows = record["rows"]
    systems = ["anabranch", "anabranch-call", "eager", "torchscript"]
    assert [(row["batch"], row["system"]) for row in rows] == [
        (batch, system) for batch in (1, 2) for system in systems
    ]
    for row in rows:
        assert row["failure"] == ""
        assert 0 < row["p10_ms"] <= row["median_ms"] <= row["p90_ms"]
        assert row["samples"] >= 3
        assert row["compile_s"] >= 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["difference"] < 1e-5
    assert rows[0]["ratio"] == 1.0 and rows[0]["tie"]
    assert rows[0]["peak_bytes"] == 1024 and rows[2]["peak_bytes"] is None
    told = {"scheduler": "sequential", "streams": 1, "kernels": 3}
    assert rows[0]["facts"] == {**told, "substitutions": [], "substitutions_refused": []}
    assert set(rows[2]["against"]) == set(systems) - {"eager"}
    ratio, low, high, tie = rows[2]["against"]["torchscript"]
    assert low <= ratio <= high and isinstance(tie, bool)


def test_what_the_compiler_is_asked(
    compiler: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    matrix = quick(dtypes=("tf32",), schedulers=("ios",), cold=True, options={"budget": 7.0})
    rows = run(matrix, compile=compiler)["rows"]
    assert [row["system"] for row in rows] == ["anabranch", "anabranch-call", "anabranch:ios"]
    assert rows[2]["note"] == "sequential was faster"
    assert [options.get("scheduler") for options in asked] == [None, "ios"]
    assert all(options["tf32"] and options["budget"] == 7.0 for options in asked)
    assert asked[0]["cache_dir"] == asked[1]["cache_dir"]


def test_published_systems_are_rows_too(
    compiler: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    matrix = quick(systems=("taso-nimble", "anabranch+search=none+search_alpha=0.5"))
    rows = run(matrix, compile=compiler)["rows"]
    names = ["taso-nimble", "anabranch+search=none+search_alpha=0.5"]
    assert [row["system"] for row in rows[2:]] == [f"anabranch:{name}" for name in names]
    assert asked[1]["system"] == "taso-nimble" and "system" not in asked[0]
    assert (asked[2]["search"], asked[2]["search_alpha"]) == ("none", "0.5")


def test_rivals_that_fail_hang_or_lie_are_rows(
    compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(model: nn.Module, args: Any, machine: Machine) -> Prepared:
        while True:
            try:
                time.sleep(5)
            except Exception:
                continue

    def fails(model: nn.Module, args: Any, machine: Machine) -> Prepared:
        raise RuntimeError("no kernel image\nis available")

    def lies(model: nn.Module, args: Any, machine: Machine) -> Prepared:
        return Prepared(lambda: model(*args) * 2)

    for name, rival in {"hangs": hangs, "fails": fails, "lies": lies}.items():
        monkeypatch.setitem(rivals.RIVALS, name, rival)
    trace = Trace()
    matrix = quick(rivals=("hangs", "fails", "lies"), rival_timeout=0.2)
    rows = {row["system"]: row for row in run(matrix, trace, compile=compiler)["rows"]}
    assert rows["hangs"]["failure"] == "not done in 0.2 s"
    assert rows["fails"]["failure"] == "RuntimeError: no kernel image"
    assert rows["fails"]["median_ms"] is None
    assert rows["lies"]["difference"] == pytest.approx(1.0)
    assert len([event for event in trace.events if event.kind == "warning"]) == 2


def test_who_is_stopped_while_rivals_are_built_has_those_that_stand(
    compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*given: Any) -> Prepared:
        raise KeyboardInterrupt

    monkeypatch.setitem(rivals.RIVALS, "pressed", pressed)
    asked = quick(rivals=("eager", "pressed", "torchscript"), batches=(1, 2))
    saved: list[dict[str, Any]] = []
    record = run(asked, compile=compiler, save=lambda record: saved.append(dict(record)))
    rows = {row["system"]: row for row in record["rows"]}
    assert {row["batch"] for row in record["rows"]} == {1}
    assert rows["eager"]["median_ms"] and rows["anabranch"]["median_ms"]
    assert rows["pressed"]["failure"] == rows["torchscript"]["failure"] == speed.STOPPED
    assert record["cut_short"] == "stop" == saved[0]["cut_short"] and len(saved) == 1
    assert run(quick(), compile=compiler)["cut_short"] == ""


def test_our_own_failure_is_a_row(compiler: Callable[..., Any]) -> None:
    def compile(*_: Any, **__: Any) -> Any:
        raise TargetError("no kernel", "it was lost", "look for it")

    rows = run(quick(rivals=("eager",)), compile=compile)["rows"]
    assert rows[0]["failure"] == "TargetError: no kernel"
    assert rows[1]["system"] == "eager" and rows[1]["median_ms"] > 0
    assert rows[1]["ratio"] is None


def test_a_fallback_is_noted(compiler: Callable[..., Any]) -> None:
    def compile(*given: Any, trace: Trace, **options: Any) -> Any:
        trace.add("fallback", "verify", "Net", "wrong by a hundredth")
        return compiler(*given, **options)

    rows = run(quick(), compile=compile)["rows"]
    assert rows[0]["note"] == "sequential; fallback: wrong by a hundredth"


def test_every_model_is_saved(compiler: Callable[..., Any]) -> None:
    saved: list[int] = []
    run(quick(batches=(1, 2)), compile=compiler, save=lambda r: saved.append(len(r["rows"])))
    assert saved == [2, 4]


@pytest.mark.parametrize(
    "change",
    [
        {"rivals": ("nobody",)},
        {"schedulers": ("fifo",)},
        {"systems": ("pytorch",)},
        {"systems": ("anabranch+search",)},
        {"systems": ("anabranch+search=deep",)},
        {"target": "sim:unknown"},
        {"dtypes": ("fp8",)},
    ],
)
def test_names_that_mean_nothing(compiler: Callable[..., Any], change: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        run(quick(**change), compile=compiler)


def test_a_model_that_cannot_run_is_a_row(compiler: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Linear(2, 2), (torch.ones(3),)\n"  # the sizes do not fit
    )
    matrix = BenchmarkMatrix((f"{path}:build",), ("fp32",), target="cpu", rivals=())
    (row,) = run(matrix, compile=compiler)["rows"]
    assert row["failure"].startswith("RuntimeError")


def test_rivals_work_on_their_own_copy() -> None:
    model = nn.Conv2d(3, 4, 3).eval()
    weight = model.weight
    args = (torch.randn(1, 3, 8, 8),)
    here = machine("cpu")
    with torch.no_grad():
        expected = model(*args)
        for name in ("eager", "torchscript"):
            ready = rivals.RIVALS[name](model, args, here)
            assert ready.note == "channels_last"
            torch.testing.assert_close(ready.call(), expected)
        with pytest.raises(TargetError):
            rivals.RIVALS["cudagraph"](model, args, here)
    assert model.weight is weight and weight.is_contiguous()


@pytest.mark.parametrize(
    ("name", "package"), [("xla", "jax"), ("tvm", "apache-tvm"), ("tensorrt", "torch-tensorrt")]
)
def test_a_compiler_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(TargetError, match=f"{package} cannot be used here") as refused:
        rivals.RIVALS[name](nn.Linear(2, 2), (torch.ones(1, 2),), machine("cpu"))
    assert f"pip install {package}" in refused.value.next


@pytest.mark.parametrize("moves", [True, False])
def test_xla_runs_on_the_device_of_its_rivals(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    """Arrays that come from tensors on a CPU stay there, and jax runs where its arguments are."""

    class Array:
        def __init__(self, place: str) -> None:
            self.place = place

        def devices(self) -> set[str]:
            return {self.place}

    class Compiled:
        def __call__(self, *inputs: Array) -> list[Array]:
            return [Array(one.place) for one in inputs]

        def memory_analysis(self) -> SimpleNamespace:
            return SimpleNamespace(temp_size_in_bytes=3, output_size_in_bytes=4)

    lowered = SimpleNamespace(compile=Compiled)
    jax = SimpleNamespace(
        devices=lambda: ["gpu:0"],
        default_backend=lambda: "gpu",
        default_matmul_precision=lambda name: nullcontext(),
        device_put=lambda x, place: Array(place) if moves else x,
        jit=lambda function: SimpleNamespace(lower=lambda *inputs: lowered),
        tree_util=SimpleNamespace(tree_leaves=list),
        block_until_ready=lambda x: x,
    )
    modules = {
        "jax": jax,
        "torchax": SimpleNamespace(extract_jax=lambda model: ([], None)),
        "torchax.ops.mappings": SimpleNamespace(t2j=lambda x: Array("cpu:0")),
    }
    monkeypatch.setattr("importlib.import_module", modules.__getitem__)
    told = nullcontext() if moves else pytest.raises(TargetError, match="runs on cpu:0")
    with told:
        _, held = other_compilers.xla(nn.Linear(2, 2), (torch.ones(1, 2),), machine("cpu"))
        assert held == 7


def test_every_usual_rival_is_known() -> None:
    for names in rivals.USUAL.values():
        assert set(names) <= set(rivals.RIVALS)


def test_versions_and_commit() -> None:
    assert {"anabranch", "python", "torch"} <= set(versions())
    assert all(c.isalnum() or c == "+" for c in commit())


def row(system: str, ms: float | None, ratio: float | None, **more: Any) -> dict[str, Any]:
    """One row of zoo:net fp16, batch 1."""
    place = {"model": "zoo:net", "dtype": "fp16", "batch": 1, "tie": False, "failure": ""}
    return {**place, "system": system, "median_ms": ms, "ratio": ratio, **more}


def test_markdown() -> None:
    rows = [
        row("anabranch", 0.31, 1.0, tie=True),
        row("anabranch:ios", 0.312, 1.006, tie=True),
        row("eager", 3.01, 9.7),
        row("inductor", 0.442, 1.426),
        row("inductor-max", None, None, failure="not done in 540 s"),
    ]
    record = {
        "rows": rows,
        "machine": {"target": "cuda", "gpu": "NVIDIA H200", "driver": "580"},
        "versions": {"torch": "2.11", "anabranch": "0.1"},
        "date": "2026-11-21T10:00:00+00:00",
        "commit": "0123456789abcdef",
    }
    assert table.markdown(record).splitlines() == [
        "| model | dtype | batch | anabranch | anabranch:ios | eager | inductor | inductor-max "
        "| best rival |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| net | fp16 | 1 | **0.310** | **0.312** | 3.01 | 0.442 | - (1) | 1.43 x |",
        "",
        "Measured on NVIDIA H200, 2026-11-21, torch 2.11, anabranch 0.1, driver 580, "
        "commit 0123456789ab.",
        "",
        "1. net fp16 1 inductor-max: not done in 540 s",
    ]


def test_markdown_of_a_forecast_says_so() -> None:
    machine = {"target": "sim:h200", "device": "NVIDIA H200"}
    base = {"machine": machine, "versions": {}, "date": "2026-11-21", "commit": ""}
    text = table.markdown({**base, "rows": [row("anabranch", 0.31, None)]})
    assert text.endswith("\nForecast on simulated NVIDIA H200, 2026-11-21.\n")


def test_markdown_of_a_tie_and_of_a_loss() -> None:
    base = {"machine": {"target": "cpu"}, "versions": {}, "date": "2026-11-21", "commit": ""}
    tie = [row("anabranch", 0.31, 1.0, tie=True), row("inductor", 0.309, 0.997, tie=True)]
    assert "| **0.310** | **0.309** | tie |" in table.markdown({**base, "rows": tie})
    loss = [row("anabranch", 0.31, 1.0, tie=True), row("inductor", 0.2, 0.645)]
    assert "| 0.310 | **0.200** | 0.65 x |" in table.markdown({**base, "rows": loss})


def test_on_a_simulated_gpu_rows_are_forecasts() -> None:
    systems = "nimble", "taso-nimble"
    matrix = BenchmarkMatrix((SMALL,), target="sim:h200", systems=systems, cold=True)
    record = json.loads(json.dumps(run(matrix)))
    rows = {row["system"]: row for row in record["rows"]}
    assert list(rows) == ["anabranch", "anabranch:nimble", "anabranch:taso-nimble"]
    for row in rows.values():
        assert row["failure"] == "" and row["source"] in ("recorded", "estimated")
        assert row["median_ms"] > 0 and row["samples"] == 0 and row["difference"] is None
        assert len(row["against"]) == 2
    assert 0 < rows["anabranch:nimble"]["facts"]["order_s"] < rows["anabranch:nimble"]["compile_s"]
    ratio = rows["anabranch:nimble"]["median_ms"] / rows["anabranch"]["median_ms"]
    assert rows["anabranch:nimble"]["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("target", ["sim:h200", "cpu"])
def test_a_published_system_stands_beside_itself_with_bounded_memory(target: str) -> None:
    """Four chains, a stream each: as published all their values are held at once."""
    fan = f"{Path(__file__).with_name('test_schedulers.py')}:small_fan"
    asked = quick(target=target, systems=("nimble", "cudagraph"), ours=False)
    rows = run(replace(asked, models=(fan,)))["rows"]
    assert [row["system"] for row in rows] == ["anabranch:nimble", "anabranch:cudagraph"]
    nimble, plain = rows
    bounded = nimble["bounded"]
    assert bounded["peak_bytes"] <= max(1.25 * plain["peak_bytes"], 16 << 10)
    assert bounded["peak_bytes"] < nimble["peak_bytes"]
    assert bounded["event_waits"] > nimble["facts"]["event_waits"] and plain["bounded"] is None
    if target != "cpu":  # where times are measured
        assert bounded["median_ms"] > nimble["median_ms"]
    assert list(nimble["against"]) == ["anabranch:cudagraph"]


def test_a_limit_for_the_searches_of_published_systems(
    compiler: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    names = ("autograph", "anabranch+search=taso")
    run(quick(systems=names, search_seconds=3.0, budget=9.0), compile=compiler)
    assert [options.get("search_seconds") for options in asked] == [None, 3.0, None]
    assert [options.get("budget") for options in asked] == [None, 9.0, None]
    asked.clear()
    rows = run(quick(systems=names, ours=False), compile=compiler)["rows"]
    assert [row["system"] for row in rows] == [f"anabranch:{name}" for name in names]
    assert len(asked) == 2 and all(row["ratio"] is None for row in rows)


def test_the_search_of_what_users_get(
    compiler: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    systems = ("nimble", "anabranch+search=taso")
    record = run(
        quick(schedulers=("ios",), systems=systems, options={"search": "none"}), compile=compiler
    )
    assert [options.get("search") for options in asked] == ["none", "none", None, "taso"]
    assert record["settings"]["options"] == {"search": "none"}
    with pytest.raises(OptionError, match="is left out"):
        run(quick(systems=systems, options={"search": "none"}, ours=False), compile=compiler)
    with pytest.raises(OptionError, match="search"):
        run(quick(options={"search": "all"}), compile=compiler)
