from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.frontend.onnx.files import linear, written

from anabranch.cli import compile as verb
from anabranch.costs.recorded import Profile
from anabranch.report.forecast import interval_text
from anabranch.targets import cuda, table


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "available", lambda: False)


def test_on_the_cpu(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    saved, page, out = tmp_path / "two.anabranch", tmp_path / "two.html", tmp_path / "two.json"
    words = ("-o", saved, "--report", page, "--json", out)
    ran = cli("compile", model, "--target", "cpu", *words)
    assert ran.status == 0, ran.err
    assert "measured" in ran.out and "sequential" in ran.out and "slowest tasks" in ran.out
    for stage in ("capture", "schedule", "verify"):
        assert stage in ran.err
    facts = json.loads(out.read_text())
    assert facts["name"] == model
    assert facts["target"] == "cpu" and facts["latency_source"] == "measured"
    assert facts["latency_ms"] > 0
    assert facts["baselines"]["eager"] > 0
    assert {row["name"] for row in facts["schedules"]} >= {"sequential"}
    assert {"task", "kernel", "us", "source", "count"} <= set(facts["top_kernels"][0])
    assert (facts["saved"], facts["report"]) == (str(saved), str(page))
    assert "cpu_check" not in facts
    assert saved.stat().st_size > 0
    assert page.read_text().lstrip().lower().startswith("<!doctype html")
    told = cli("explain", saved)
    assert told.status == 0, told.err
    assert "schedule " in told.out and "aten.aten" in told.out


def test_rivals_are_timed_beside_it(
    cli: Callable[..., Any], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "two.html"
    monkeypatch.setattr("sys.argv", ["anabranch", "compile", model])
    words = ("--rivals", "eager,cudagraph", "--report", page, "--json", "-")
    ran = cli("compile", model, "--target", "cpu", *words)
    assert ran.status == 0, ran.err
    facts = ran.json
    assert facts["called_ms"] > 0 and facts["baselines"]["eager"] > 0
    assert "cudagraph not measured: TargetError" in ran.err
    text = page.read_text()
    assert "as it is called" in text and "not measured: TargetError" in text
    assert facts["command"].startswith("anabranch ")
    assert html.escape(facts["command"]) in text and facts["compiled_at"][:4] in text


def test_rivals_of_a_plan_that_cannot_run_are_refused(
    cli: Callable[..., Any], model: str, simulated: Profile, no_gpu: None
) -> None:
    for words in ((), ("--target", "sim:h200")):
        ran = cli("compile", model, *words, "--rivals", "eager")
        assert ran.status != 0 and "nothing runs there" in ran.err


def test_without_a_gpu_it_plans_for_the_recorded_one_and_checks_here(
    cli: Callable[..., Any], model: str, simulated: Profile, no_gpu: None
) -> None:
    ran = cli("compile", model, "--json", "-")
    assert ran.status == 0, ran.err
    facts = ran.json
    assert facts["device"] == "NVIDIA H200" and facts["latency_source"] == "estimated"
    check = facts["cpu_check"]
    assert check["agrees"] is True and check["target"] == "cpu"
    assert check["latency_source"] == "measured" and check["baselines"]["eager"] > 0
    assert max(check["error_to_eager"]) <= max(check["allowed_error_to_eager"])
    assert "simulated NVIDIA H200" in ran.err
    assert "There is no GPU here" in ran.err and "agrees with eager" in ran.err


def test_half_precision_is_checked_in_single(
    cli: Callable[..., Any], model: str, simulated: Profile, no_gpu: None
) -> None:
    facts = cli("compile", model, "--dtype", "fp16", "--json", "-").json
    assert (facts["dtype"], facts["cpu_check"]["dtype"]) == ("f16", "f32")


def test_a_wrong_result_is_a_failure(
    cli: Callable[..., Any],
    model: str,
    simulated: Profile,
    no_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(verb, "relative_error", lambda out, own: 0.5)
    out = tmp_path / "out.json"
    ran = cli("compile", model, "--json", out)
    assert ran.status == 1
    assert "DIFFERS" in ran.out and "differs from eager" in ran.err
    assert json.loads(out.read_text())["cpu_check"]["agrees"] is False


@pytest.mark.parametrize("verb", ["compile", "explain", "bench", "space", "record"])
def test_a_gpu_that_is_not_there(
    cli: Callable[..., Any], model: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(cuda, "available", lambda: False)
    monkeypatch.setattr(table, "available", lambda: False)
    ran = cli(verb, model, "--target", "cuda")
    assert ran.status == 1
    assert "needs a CUDA GPU" in ran.err and "\n  next: " in ran.err


def test_the_model_fails(cli: Callable[..., Any], model: str) -> None:
    place = model.removesuffix(":build")
    ran = cli("compile", f"{place}:bare", "--target", "cpu")
    assert ran.status == 2 and "return a pair (module, args)" in ran.err
    ran = cli("compile", f"{place}:broken", "--target", "cpu")
    assert ran.status == 1 and "no weights here" in ran.err
    assert cli("compile", f"{place}:wrong", "--target", "cpu").status == 2


@pytest.mark.parametrize("flag", ["-o", "--report", "--json"])
def test_folders_are_looked_for_first(cli: Callable[..., Any], flag: str, tmp_path: Path) -> None:
    ran = cli("compile", "zoo:nasnet_large", flag, tmp_path / "missing" / "file")
    assert ran.status == 2
    assert "make it first" in ran.err
    ran = cli("compile", "zoo:nasnet_large", flag, tmp_path)
    assert ran.status == 2 and "it is a folder" in ran.err


def test_options_reach_the_compiler(cli: Callable[..., Any], model: str) -> None:
    words = ["--scheduler", "ios", "--budget", "20", "--max-groups", "2", "--max-group-size", "1"]
    words += ["--effort", "fast"]
    facts: dict[str, Any] = cli("compile", model, "--target", "cpu", *words, "--json", "-").json
    assert facts["options"]["scheduler"] == "ios" and facts["options"]["budget"] == 20
    assert (facts["options"]["effort"], facts["options"]["search"]) == ("fast", "at-once")
    assert facts["options"]["max_groups"] == 2 and facts["options"]["max_group_size"] == 1


def test_any_option_can_be_given(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    words = ("-O", "search_alpha=8", "-O", "pdl=off", "--budget", "20", "-O", "budget=none")
    more = ("--option", "search_dp=false", "-O", f"dump={tmp_path}", "-O", "seed=3")
    for command in ("compile", "explain"):
        ran = cli(command, model, "--target", "cpu", *words, *more, "--json", "-")
        assert ran.status == 0, ran.err
        said = ran.json["facts"] if command == "explain" else ran.json
        options = dict(said["options"])
        assert options.pop("cache_dir", None) is None and options.pop("dump") == str(tmp_path)
        expected = {"search_alpha": 8.0, "pdl": "off", "search_dp": False, "seed": 3}
        assert options == expected


def test_a_level_that_is_given_is_shown(cli: Callable[..., Any], model: str) -> None:
    quiet, loud = (
        cli("compile", model, "--target", "cpu", *words) for words in ((), ("-O", "debug=2"))
    )
    assert "chosen" not in quiet.err and "chosen" in loud.err


def test_what_is_rounded_on_the_gpu_is_compared_on_the_cpu_as_it_is(
    cli: Callable[..., Any], model: str, simulated: Profile, no_gpu: None
) -> None:
    facts = cli("compile", model, "-O", "tf32=true", "--json", "-").json
    assert facts["dtype"] == "tf32" and facts["cpu_check"]["dtype"] == "f32"


@pytest.mark.parametrize("verb", ["compile", "explain"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("search_alfa=8", "did you mean search_alpha?"),
        ("search_alpha=many", "option search_alpha = 'many' is not valid"),
        ("search=never", "option search = 'never' is not valid"),
        ("strict=none", "option strict = 'none' is not valid"),
        ("search_alpha", "-O cannot be 'search_alpha'"),
        ("=8", "-O cannot be '=8'"),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_the_model_is_made(
    cli: Callable[..., Any], verb: str, setting: str, said: str
) -> None:
    ran = cli(verb, "no_such_module:build", "--target", "cpu", "-O", setting)
    assert ran.status == 2 and said in ran.err


@pytest.mark.parametrize("verb", ["compile", "explain"])
def test_help_says_all_that_a_seed_decides(cli: Callable[..., Any], verb: str) -> None:
    said = " ".join(cli(verb, "--help").out.replace("│", " ").split())
    assert "rules: another seed may find another graph" in said and "NAME=VALUE" in said


def test_explain_a_model(cli: Callable[..., Any], model: str) -> None:
    ran = cli("explain", model, "--target", "cpu", "--all", "--json", "-")
    assert ran.status == 0, ran.err
    told = ran.json
    assert set(told) == {"name", "facts", "searched", "events", "text"}
    assert any(event["kind"] == "chosen" for event in told["events"])
    assert told["text"] in ran.err


def test_explain_one_task_of_a_simulated_gpu(cli: Callable[..., Any], tmp_path: Path) -> None:
    saved, model = tmp_path / "squeezenet.anabranch", "zoo:squeezenet/tiny"
    there = ("--target", "sim:h200", "--dtype", "fp16", "--search", "none")
    made = cli("compile", model, *there, "-o", saved, "--json", "-")
    facts = made.json
    between = interval_text(facts)
    assert between and f"estimated ({between} in eight of ten)" in " ".join(made.err.split())
    of_file = " ".join(cli("explain", saved).out.split())
    assert f"a forecast: {between} in eight of ten; none of its tasks' time is recorded" in of_file
    name = facts["top_kernels"][0]["task"]
    ran = cli("explain", model, *there, "--task", name, "--json", "-")
    assert ran.status == 0, ran.err
    told = ran.json
    assert set(told) == {"name", "task", "text"} and told["text"] in ran.err
    tried = told["task"]["candidates"]
    assert {one["source"] for one in tried if one["us"]} == {"estimated"}
    limited = [one["limit"] for one in tried if one["kernel"].startswith("triton.contraction")]
    assert limited and all(0 < limit["part_of_peak"] <= 1 for limit in limited)
    assert [bool(one["why_not"]) for one in tried].count(False) == 1
    again = cli("explain", saved, "--task", name)
    assert again.status == 0 and "Candidates: not in the file" in again.out
    assert "squeezenet.py:" in again.out and "aten.convolution" in again.out
    wrong = cli("explain", saved, "--task", f"{name}x")
    assert wrong.status == 2 and f"did you mean {name}" in wrong.err


def test_explain_what_is_no_plan(cli: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "plan.anabranch"
    path.write_bytes(b"garbage")
    ran = cli("explain", path)
    assert ran.status == 1 and "\n  next: " in ran.err


def test_a_file_of_onnx(cli: Callable[..., Any], tmp_path: Path) -> None:
    """Compiled and run on the CPU, and explained; what is wrong with one is told in words."""
    path = written(tmp_path, linear())
    ran = cli("compile", path, "--batch", "4", "--target", "cpu", "--json", "-")
    assert ran.status == 0, ran.err
    assert ran.json["batch"] == 4 and ran.json["inputs"] == ["x_1: f32[4,3]"]
    told = cli("explain", path, "--target", "cpu", "--search", "none")
    assert told.status == 0 and "aten." in told.out
    path.write_bytes(path.read_bytes()[:40])
    ran = cli("compile", path, "--target", "cpu")
    assert ran.status == 1 and "cannot be read as a model of ONNX" in ran.err
    assert "Traceback" not in ran.err
