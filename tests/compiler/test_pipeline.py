"""The pipeline stops where it is told, and every tiny network comes through it."""

from __future__ import annotations

import copy
import inspect
import re
import threading
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.networks import each, fire, tiny
from torch import nn

from anabranch.artifact import compact
from anabranch.artifact import file as artifact_file
from anabranch.cache import Cache
from anabranch.compiler import pipeline
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.fallback import BY_EACH_CALL, CAREFUL, more_careful
from anabranch.compiler.pipeline import STAGES, compile_model
from anabranch.costs import costs_of as measured
from anabranch.deadline import ENDLESS, Deadline
from anabranch.errors import NumericsError, OptionError, TargetError
from anabranch.frontend.from_torch import capture
from anabranch.fuzz.script_prelude import filled, normal
from anabranch.ir.codec import Beside
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.target_text import parse_target
from anabranch.ir.task import TaskGraph
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.schedule import SCHEDULERS
from anabranch.targets import resolve
from anabranch.targets.cpu.target import CpuExecutable, CpuTarget
from anabranch.trace import Event, Trace
from anabranch.tuning import build
from anabranch.tuning.job import Job
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.tuner import Tuner
from anabranch.tuning.verify import plan as verify_plan


def job(network: str, **options: Any) -> Job:
    """As if the model had just been captured; `uncaptured` where that is looked at."""
    known = tiny(network)
    made = Job(known.model, known.inputs, {}, resolve("cpu"), _chosen(**options), None, Trace())
    return replace(made, captured=known.captured)


def _chosen(**options: Any) -> Options:
    quick = {"cache_dir": None, "search": "none", "scheduler": "critical"}
    return Options.read({**quick, **options}, environment=False)


def small(**options: Any) -> Job:
    """Of a network of a few operators, where it matters what the pipeline does, and not of what."""
    known = fire()
    made = Job(known.model, known.inputs, {}, resolve("cpu"), _chosen(**options), None, Trace())
    return replace(made, captured=known.captured)


def uncaptured(**options: Any) -> Job:
    return replace(small(**options), captured=None)


def two_layers() -> Job:
    """Where it matters in which order stages run, and not on what."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    return replace(uncaptured(), model=net, args=(torch.randn(1, 3, 8, 8),))


def test_each_stage_gives_its_noun() -> None:
    nouns = {stage: compile_model(two_layers(), stage) for stage in STAGES}
    assert isinstance(nouns["rewrite"], Graph)
    assert isinstance(nouns["fusion"], TaskGraph) and isinstance(nouns["probe"], TaskGraph)
    assert isinstance(nouns["memory"], Plan)
    assert nouns["recall"] is None and isinstance(nouns["load"], CpuExecutable)
    assert isinstance(nouns["verify"], Compilation) and isinstance(nouns["eager"], Compilation)


def test_an_unknown_stage_lists_the_known() -> None:
    with pytest.raises(OptionError, match="capture, rewrite"):
        compile_model(small(), "linking")


@pytest.mark.parametrize("network", each())
def test_the_zoo_on_the_cpu(network: str) -> None:
    """Verified against fp64 inside; here: it must come out, near, and in bounded memory, or say
    that no waits bound it under the schedule, which depends on what was measured."""
    asked = job(network, budget=1, check=1)
    made = compile_model(asked)
    assert made.errors and all(error <= allowed for error, allowed in made.errors)
    bound = max(build.MEMORY_LEAST, 1.25 * made.compiled.sequential.arena_bytes)
    told = any("however tasks wait" in event.why for event in asked.trace.events)
    assert made.plan.arena_bytes <= bound or told


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_runs_for_real(scheduler: str) -> None:
    made = compile_model(small(scheduler=scheduler, budget=1))
    assert made.plan.schedule.scheduler == scheduler
    assert any(schedule.streams == 1 for schedule, _ in made.compiled.schedules)
    assert all(error <= allowed for error, allowed in made.errors)


def test_a_wrong_plan_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folding that is off by a percent is found by the comparison, not by the user."""

    def off(graph: Graph, *rest: Any) -> Graph:
        good = simplify(graph, *rest)
        held = {c.name: c.value for c in good.constants if c.value is not None}
        first = next(c for c in good.constants if c.name in held and len(c.type.shape) == 4)
        bad = replace(first, value=held[first.name] * 1.01, digest="off")
        return replace(good, constants=tuple(bad if c is first else c for c in good.constants))

    monkeypatch.setattr("anabranch.rewrite.simplify_cache.simplify", off)
    with pytest.raises(NumericsError, match="relative error"):
        compile_model(small())


@pytest.mark.parametrize(
    ("wrong", "attempts"),
    [
        ({"folding": "all"}, 1),
        ({"kernels": "all"}, 2),
        ({"channels_last": True}, 3),
    ],
)
def test_where_an_optimisation_is_wrong_less_is_done(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], attempts: int
) -> None:
    """A pass is wrong as long as the options say so: no more than that is given up."""

    def off(graph: Graph, stepper: Any, options: Options, kind: str) -> Graph:
        good = simplify(graph, stepper, options, kind)
        if any(getattr(options, name) != value for name, value in wrong.items()):
            return good
        constants = (
            replace(c, value=None if c.value is None else c.value * 2, digest=f"off {c.digest}")
            for c in good.constants
        )
        return replace(good, constants=tuple(constants))

    monkeypatch.setattr("anabranch.rewrite.simplify_cache.simplify", off)
    asked = small()
    made: Compilation = compile_model(asked)
    assert (made.plan.schedule.scheduler == "sequential") == (attempts == 3)
    assert made.errors and all(error <= allowed for error, allowed in made.errors)
    told = [event.why for event in asked.trace.events if event.kind == "fallback"]
    assert [why.partition(": compiled ")[2] for why in told] == list(CAREFUL)[:attempts]
    assert all("relative error" in why for why in told)
    with pytest.raises(NumericsError, match="relative error"):
        compile_model(small(strict=True))


def test_the_line_is_one_function_that_names_every_stage_in_order() -> None:
    source = inspect.getsource(pipeline._stages)
    assert re.findall(r'\bstage\("(\w+)"', source) == list(STAGES)
    assert len(source.splitlines()) <= 80


class Narrow(nn.Module):
    """One channel, then a norm behind a convolution whose results nearly cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = filled(nn.Conv2d(4, 1, 3, padding=1, bias=False), 233)
        self.second = filled(nn.Conv2d(1, 4, 3, padding=1), 76)
        self.norm = filled(nn.BatchNorm2d(4), 945)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.second(torch.relu(self.first(x)))))


def test_a_norm_that_half_precision_cannot_hold_stays_beside_its_weight() -> None:
    """Rounding the folded weight once more shows here, and nothing else has to be given up."""
    x = normal((1, 4, 7, 7), 215).half()
    asked = replace(uncaptured(), model=Narrow().eval().half(), args=(x,))
    made: Compilation = compile_model(asked)
    assert made.errors and all(error <= allowed for error, allowed in made.errors)
    told = [event.why for event in asked.trace.events if event.kind == "fallback"]
    assert len(told) == 1 and told[0].endswith("no weight rounded anew")
    ops = [node.op for node in made.compiled.graph.nodes]
    assert "aten.addcmul.default" in ops and "aten.batch_norm.default" not in ops


def test_what_was_wrong_once_is_not_tried_again(tmp_path: Path) -> None:
    """For the same weights; a cache has it, and strict compilations look for themselves."""
    x, cache = normal((1, 4, 7, 7), 215).half(), Cache(tmp_path / "cache.sqlite")
    model = Narrow().eval().half()

    def stages(**options: Any) -> list[str]:
        asked = replace(uncaptured(**options), model=model, args=(x,), cache=cache)
        made: Compilation = compile_model(asked)
        assert made.errors and all(error <= allowed for error, allowed in made.errors)
        assert sum(event.kind == "fallback" for event in asked.trace.events) == 1
        return [event.where for event in asked.trace.events if event.kind == "stage"]

    assert [stages().count("load") for _ in range(2)] == [2, 1]
    with pytest.raises(NumericsError, match="relative error"):
        stages(strict=True)
    with torch.no_grad():
        model.state_dict()["norm.weight"].zero_()
    asked = replace(uncaptured(), model=model, args=(x,), cache=cache)
    compile_model(asked)
    assert not any(event.kind == "fallback" for event in asked.trace.events)


def test_where_the_capture_is_wrong_two_attempts_are_enough() -> None:
    """The graph is that of a model with other weights."""
    asked = small(budget=30)
    other = copy.deepcopy(asked.model)
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    asked = replace(asked, model=other)
    with pytest.raises(NumericsError) as wrong:
        compile_model(asked)
    assert wrong.value.why == verify_plan.WRONG_CAPTURE
    told = [event.why for event in asked.trace.events if event.kind == "fallback"]
    assert len(told) == 1 and "as captured" in told[0]


def test_seeds_of_the_caller_are_not_touched() -> None:
    asked = job("deepfm")  # who builds a network of the zoo for the first time seeds, too
    torch.manual_seed(3)
    state = torch.get_rng_state()
    compile_model(asked)
    assert torch.equal(torch.get_rng_state(), state)


def test_dumps_every_stage(tmp_path: Path) -> None:
    compile_model(small(dump=tmp_path / "out"))
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"00_capture.txt", "02_fusion.txt", "05_schedule.txt", "08_memory.txt"} <= names
    text = (tmp_path / "out" / "08_memory.txt").read_text()
    assert "arena" in text and parse_target(text[text.index("target ") :]).kind == "cpu"


def test_debug_logs_as_much_as_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    from anabranch.compiled.calls import Compiled

    wanted = small(debug=2)
    with caplog.at_level("INFO", logger="anabranch"):
        Compiled(wanted.model, wanted.target, wanted.options, None).add(wanted.args)
    said = " ".join(record.message for record in caplog.records if record.levelname == "INFO")
    assert "stage: capture" in said and "chosen: " in said and "applied" not in said


def test_a_plan_without_its_graph_is_said_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    load = CpuTarget.load

    def failing(self: CpuTarget, *args: Any, **kwargs: Any) -> CpuExecutable:
        run = load(self, *args, **kwargs)
        run.failure = "an operator synchronises"
        return run

    monkeypatch.setattr(CpuTarget, "load", failing)
    loose, strict = small(), small(strict=True)
    compile_model(loose)
    # The plan itself once; before it each kernel and schedule that was timed without a graph.
    said = [event.where for event in loose.trace.events if event.kind == "fallback"]
    assert said[-1] == "load" and set(said[:-1]) == {"costs"}
    with pytest.raises(TargetError, match="could not be captured"):
        compile_model(strict)


def test_one_budget_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, schedules and their measurements share it: nobody is given the whole twice."""
    given: list[Deadline] = []

    def costs_of(*args: Any, **named: Any) -> Any:
        given.append(args[4])
        return measured(*args, **named)

    monkeypatch.setattr(build, "costs_of", costs_of)
    asked = small(budget=60)
    begun = time.monotonic()
    compile_model(asked, "schedule")
    kernels, schedules = given
    assert kernels == schedules and 60 <= kernels.moment - begun < 61
    given.clear()
    compile_model(small(), "schedule")
    assert given == [ENDLESS, ENDLESS]


class Pressed:
    """Wants an end when a stage of this name has ended."""

    def __init__(self, stage: str) -> None:
        self.stop, self._stage = threading.Event(), stage

    def __call__(self, event: Event) -> None:
        if event.kind == "stage" and event.what == self._stage:
            self.stop.set()


@pytest.mark.parametrize("target", ["cpu", "sim:h200"])
@pytest.mark.parametrize("stage", ["capture", "tuning", "schedule"])
def test_stopped_it_returns_the_best_so_far(stage: str, target: str, tmp_path: Path) -> None:
    """A whole plan, proved like any other, that says what it is; the next one is not taken for
    done."""
    pressed = Pressed(stage)
    with Cache.open(tmp_path) as cache:
        asked = replace(
            small(search="autograph", search_prices=10),
            target=resolve(target),
            cache=cache,
            trace=Trace(pressed),
            deadline=Deadline(stop=pressed.stop),
        )
        made = compile_model(asked)
        assert made.compiled.cut_short == "stop" and made.path is not None and not made.path.rounds
        assert [e.what for e in asked.trace.events if e.kind == "stage"][-1] == "eager"
        assert all(error <= allowed for error, allowed in made.errors)
        told = [e.why for e in asked.trace.events if (e.kind, e.where) == ("refused", "search")]
        assert told == ["no time is left to search"]
        again = replace(asked, trace=Trace(), deadline=ENDLESS)
        whole = compile_model(again)
        assert whole.compiled.cut_short == ""
        assert ("applied", "recall") not in [(e.kind, e.where) for e in again.trace.events]
        if target != "cpu":  # where nothing is measured, what was stopped leaves no trace
            assert whole.cost.us <= made.cost.us


def test_an_interrupt_is_not_swallowed() -> None:
    def interrupted(event: Event) -> None:
        if event.kind == "stage" and event.what == "tuning":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_model(replace(small(), trace=Trace(interrupted)))


def test_the_process_for_first_runs_is_started_before_an_unknown_model_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the model is known: then perhaps nothing need be tried. It ends with the work."""
    told: list[str] = []

    class Noted(SandboxProcess):
        def start(self) -> None:
            told.append("started")

        def end(self) -> None:
            told.append("ended")

    def captured(*args: Any) -> Any:
        told.append("captured")
        return capture(*args)

    monkeypatch.setattr(pipeline, "SandboxProcess", Noted)
    monkeypatch.setattr(import_module("anabranch.frontend.capture_cache"), "capture", captured)
    with Cache.open(tmp_path) as cache:
        asked = replace(uncaptured(), cache=cache)
        compile_model(asked, "capture")
        assert told == ["captured", "ended"]  # no kernel is generated for this target
        told.clear()
        monkeypatch.setattr(Tuner, "generates", True)
        compile_model(asked, "capture")
        assert told == ["ended"]  # recalled
        told.clear()
        compile_model(replace(asked, cache=None), "capture")
        assert told == ["started", "captured", "ended"]


class ElsewhereTarget(CpuTarget):
    """Said to be a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(self.spec, kind="cuda")


@torch.library.custom_op("anabranch_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Foreign(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.anabranch_tests.twice(x).relu()
        return out


def test_operators_that_no_graph_captures_are_launched_by_each_call() -> None:
    asked = replace(uncaptured(), model=Foreign().eval(), args=(torch.randn(3, 4),))
    found = more_careful(
        replace(asked, target=ElsewhereTarget()),
        NumericsError("off", "by much", "report it"),
        capture(asked.model, asked.args),
    )
    assert found is not None
    how, options = found
    assert how == BY_EACH_CALL and not options.cuda_graph and options.scheduler == "sequential"
    plain = more_careful(
        replace(asked, target=ElsewhereTarget()),
        NumericsError("off", "by much", "report it"),
        capture(nn.ReLU().eval(), asked.args),
    )
    assert plain is not None and plain[0] == next(iter(CAREFUL))


def test_a_plan_that_is_launched_by_each_call_says_so_wherever_it_is_kept(tmp_path: Path) -> None:
    asked = replace(small(cuda_graph=False))
    made: Compilation = compile_model(asked)
    assert not made.plan.graph
    artifact_file.save(made.plan, tmp_path / "plan.anabranch", {})
    again, _ = artifact_file.load(tmp_path / "plan.anabranch")
    assert not again.graph
    beside = Beside.of(made.compiled.graph)
    kept = compact.BRIEFS.write(compact.write(made.plan, made.compiled.graph), beside)
    told = compact.BRIEFS.read(kept, beside)
    read = compact.read(told, made.compiled.graph, made.plan.spec, made.plan.signature)
    assert not read.graph
