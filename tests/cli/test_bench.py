from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.bench import rivals, speed
from anabranch.bench.machine import Machine
from anabranch.costs.observed import load_observations
from anabranch.costs.recorded import Profile, load_profile
from anabranch.report.forecast import interval_text


def test_rows_on_screen_and_in_files(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.md"
    words = ("--dtype", "fp32", "--target", "cpu", "--rivals", "eager,cudagraph")
    more = ("-O", "scheduler=opara", "--seconds", "0.01")
    ran = cli("bench", model, *words, *more, "--json", out, "--markdown", page)
    assert ran.status == 0, ran.err
    record = json.loads(out.read_text())
    systems = [row["system"] for row in record["rows"]]
    assert systems == ["anabranch", "anabranch-call", "eager", "cudagraph"]
    assert record["rows"][0]["facts"]["scheduler"] == "opara"
    failed = record["rows"][-1]
    assert failed["median_ms"] is None and "no CUDA graphs" in failed["failure"]
    assert "no CUDA graphs" in ran.out
    assert page.read_text().startswith("| model | dtype | batch | anabranch |")


def test_json_on_stdout_is_json_alone(cli: Callable[..., Any], model: str) -> None:
    words = ("--dtype", "fp32", "--target", "cpu", "--rivals", "none", "--seconds", "0.01")
    ran = cli("bench", model, *words, "--json", "-")
    assert ran.status == 0
    assert [row["system"] for row in ran.json["rows"]] == ["anabranch", "anabranch-call"]


def test_a_matrix_of_nothing_is_wrong_usage(cli: Callable[..., Any], model: str) -> None:
    ran = cli("bench", "systems", model, "--systems", "none", "--without-ours")
    assert ran.status == 2 and not ran.out
    assert "there is nothing to run" in ran.err and "--systems published" in ran.err


def test_seconds_of_searches_that_nobody_makes_are_wrong_usage(
    cli: Callable[..., Any], model: str
) -> None:
    words = ("--systems", "anabranch+search=none", "--search-seconds", "5")
    ran = cli("bench", "systems", model, "--target", "sim:h200", *words)
    assert ran.status == 2 and not ran.out
    assert "--search-seconds limits nothing here" in ran.err and "-O search_seconds" in ran.err


def test_a_word_that_is_neither_a_verb_nor_a_model(cli: Callable[..., Any]) -> None:
    ran = cli("bench", "scheduler", "zoo:deepfm")
    assert ran.status == 2 and not ran.out
    assert "no verb 'scheduler'" in ran.err and "did you mean schedulers?" in ran.err
    assert cli("bench").status == 2
    assert cli("bench", "-h").status == 0
    for verb in (
        "speed",
        "systems",
        "ablate",
        "schedulers",
        "batches",
        "delays",
        "training",
        "summary",
    ):
        shown = cli("bench", verb, "-h")
        assert shown.status == 0
        assert shown.out.count(" --") < 16  # few enough to read
        assert cli("bench", verb).status == 2


def test_without_a_verb_models_are_timed_beside_eager_and_inductor() -> None:
    assert rivals.USUAL["cuda"] == ("eager", "inductor")


def test_what_was_done_before_an_interrupt_is_kept(
    cli: Callable[..., Any], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(model: object, args: object, machine: Machine) -> rivals.Prepared:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return rivals.Prepared(lambda: ())

    calls: list[int] = []
    monkeypatch.setitem(rivals.RIVALS, "eager", stop)
    out = tmp_path / "out.json"
    words = (
        "--dtype",
        "fp32,bf16,fp16",
        "--target",
        "cpu",
        "--rivals",
        "eager",
        "--seconds",
        "0.01",
    )
    assert cli("bench", model, *words, "--json", out).status == 130
    record = json.loads(out.read_text())
    found = {(row["dtype"], row["system"]): row for row in record["rows"]}
    assert record["cut_short"] and {dtype for dtype, _ in found} == {"fp32", "bf16"}
    assert found["bf16", "anabranch"]["median_ms"] and found["fp32", "eager"]["median_ms"]
    assert found["bf16", "eager"]["failure"] == speed.STOPPED


def test_a_folder_that_went_meanwhile(
    cli: Callable[..., Any], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured for hours is not lost with it; one that never was is told of at once."""
    out = tmp_path / "results" / "out.json"
    words = ("--dtype", "fp32", "--target", "cpu", "--rivals", "eager", "--seconds", "0.01")
    assert cli("bench", model, *words, "--json", out).status == 2
    out.parent.mkdir()

    def removed(model: object, args: object, machine: Machine) -> rivals.Prepared:
        out.parent.rmdir()
        return rivals.Prepared(lambda: ())

    monkeypatch.setitem(rivals.RIVALS, "eager", removed)
    assert cli("bench", model, *words, "--json", out).status == 0
    assert json.loads(out.read_text())["rows"]


def test_record(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    words = ("--target", "cpu", "--dtype", "fp32", "-o", out)
    ran = cli("record", model, *words)
    assert ran.status == 0, ran.err
    first = load_profile(out)
    assert first.tasks and first.kernels
    again = cli("record", model, *words, "--json", "-").json
    assert again["tasks"] == len(first.tasks)


def test_record_needs_a_readable_profile(
    cli: Callable[..., Any], model: str, tmp_path: Path
) -> None:
    out = tmp_path / "bad.json"
    out.write_text("{}")
    assert cli("record", model, "--target", "cpu", "-o", out).status == 1
    assert out.read_text() == "{}"


def test_record_schedules_and_what_calibrating_needs(
    cli: Callable[..., Any], model: str, tmp_path: Path
) -> None:
    out = tmp_path / "cpu.json.gz"
    words = ("--schedules", "--seconds", "0.2", "--target", "cpu", "--dtype", "fp32", "-o", out)
    ran = cli("record", model, *words, "--json", "-")
    assert ran.status == 0, ran.err
    found = load_observations(out)
    assert ran.json["schedules"] == sum(len(graph.runs) for graph in found.graphs) > 10
    assert cli("record", model, *words).status == 0
    assert load_observations(out) == found
    ran = cli("record", "--calibrate", out, "-o", tmp_path / "fit.json")
    assert ran.status == 2 and "held out" in ran.err
    assert cli("record", "--calibrate", tmp_path / "none.json").status == 1


def test_delays_change_no_bit(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ("--schedulers", "sequential,nimble", "--target", "cpu", "--dtype", "fp32")
    ran = cli("bench", "delays", model, *words, "--runs", "3", "--json", out)
    assert ran.status == 0, ran.err
    assert "no bit differed in 6 runs" in ran.out
    assert [row["runs"] for row in json.loads(out.read_text())["rows"]] == [3, 3]
    assert cli("bench", "delays", model, "--target", "sim:h200").status == 2


def test_records_of_schedulers_are_summed_up(
    cli: Callable[..., Any], model: str, tmp_path: Path
) -> None:
    words = ("--schedulers", "sequential,local", "--target", "cpu", "--kernels", "library")
    files = [tmp_path / f"{dtype}.json" for dtype in ("fp32", "bf16")]
    for file in files:
        more = ("--budget", "5", "--dtype", file.stem, "--json", file)
        ran = cli("bench", "schedulers", model, *words, *more)
        assert ran.status == 0, ran.err
    ran = cli("bench", "summary", *files, "--json", "-")
    assert ran.status == 0, ran.err
    assert [found["dtype"] for found in ran.json["verdicts"]] == ["fp32", "bf16"]
    assert "geometric means over 2" in cli("bench", "summary", *files).out
    assert cli("bench", "summary", files[0], files[0]).status == 2
    assert cli("bench", "summary", tmp_path / "none.json").status == 2
    assert cli("bench", "summary", *files, "--markdown", tmp_path / "table.md").status == 2


def test_schedulers_side_by_side(cli: Callable[..., Any], model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ("--schedulers", "sequential,nimble,local", "--target", "cpu", "--dtype", "fp32")
    ran = cli("bench", "schedulers", model, *words, "--batch", "1", "--json", out)
    assert ran.status == 0, ran.err
    assert "geometric means over 1" in ran.out and "us packed" in ran.out
    record = json.loads(out.read_text())
    assert record["kind"] == "schedulers" and record["machine"]["target"] == "cpu"
    assert [row["scheduler"] for row in record["rows"]] == ["sequential", "nimble", "local"]
    assert set(record["means"]["local"]) == {"sequential", "nimble"}
    for unknown in ("fifo", "", " , "):
        assert cli("bench", "schedulers", model, "--schedulers", unknown).status == 2


def test_systems_side_by_side_and_their_summary(
    cli: Callable[..., Any], model: str, tmp_path: Path
) -> None:
    record, table = tmp_path / "net.json", tmp_path / "table.md"
    asked = ("bench", "systems", model, "--systems", "nimble", "--target", "sim:h200")
    ran = cli(*asked, "--search-seconds", "1", "--json", record)
    held = json.loads(record.read_text())
    assert ran.status == 0
    for row in held["rows"]:
        between = interval_text(row["facts"])
        assert between and f"{row['source']}, {between} in eight of ten" in ran.out
    assert [row["system"] for row in held["rows"]] == ["anabranch", "anabranch:nimble"]
    assert held["settings"]["search_seconds"] == 1.0
    shown = cli("bench", "summary", record, "--markdown", table)
    assert shown.status == 0 and "| ms | nimble | anabranch |" in shown.out
    assert "| ms | nimble | anabranch |" in table.read_text()
    assert cli("bench", "summary", record, "--json", "-").status == 2


def test_schedules_of_one_batch_at_another(cli: Callable[..., Any]) -> None:
    words = ("--batch", "1,8", "--scheduler", "critical", "--target", "sim:h200", "--json", "-")
    ran = cli("bench", "batches", "zoo:deepfm/tiny", *words)
    assert ran.status == 0, ran.err
    assert [(row["batch"], row["made_for"]) for row in ran.json["rows"]] == [
        *((1, 1), (1, 8), (8, 1), (8, 8))
    ]
    assert cli("bench", "batches", "zoo:deepfm/tiny", "--batch", "4").status == 2


def test_an_unknown_group_of_ablations(cli: Callable[..., Any]) -> None:
    ran = cli("bench", "ablate", "zoo:deepfm/tiny", "--of", "colours")
    assert ran.status == 2 and "parts, settings" in ran.err


def test_whole_training_steps(cli: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ("zoo:mlp/tiny", "--training", "--target", "cpu", "--dtype", "fp32")
    quick = ("-O", "search=none", "-O", "kernels=library", "-O", "budget=0.02")
    ran = cli("bench", *words, *quick, "--seconds", "0.01", "--json", out)
    assert ran.status == 0, ran.err
    record = json.loads(out.read_text())
    found = {row["system"]: row for row in record["rows"]}
    assert record["kind"] == "training" and record["commit"] is not None
    assert list(found) == ["anabranch", "anabranch-call", "eager"]
    assert all(row["median_ms"] and row["model"] == "zoo:mlp/tiny" for row in found.values())
    assert "tasks one by one: forward" in ran.out and "best rival" in ran.out


def test_training_steps_of_a_gpu_that_is_not_here(
    cli: Callable[..., Any], model: str, simulated: Profile
) -> None:
    words = ("--training", "--target", "sim:h200", "-O", "search=none", "-O", "kernels=library")
    ran = cli("bench", model, *words, "-O", "scheduler=sequential", "--batch", "4", "--json", "-")
    assert ran.status == 0, ran.err
    (row,) = ran.json["rows"]
    assert row["median_ms"] > 0 and row["source"] != "measured"
    assert sum(row["facts"]["phases"].values()) > 0


def test_workers_that_mean_nothing_are_wrong_usage(cli: Callable[..., Any], model: str) -> None:
    for words in (
        ("bench", model),
        ("bench", "schedulers", model),
        ("fuzz",),
        ("reproduce", "ios", "warps"),
    ):
        ran = cli(*words, "--target", "sim:h200", "--workers", "many")
        assert ran.status == 2 and not ran.out
        assert "workers = 'many' is not valid" in ran.err and "ray://HOST" in ran.err
