from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import fresh

import anabranch
from anabranch.cli import app, space
from anabranch.errors import TargetError


def test_version(cli: Callable[..., Any]) -> None:
    ran = cli("--version")
    assert ran.status == 0
    assert ran.out == f"anabranch {anabranch.__version__}\n"


def test_help_names_every_verb(cli: Callable[..., Any]) -> None:
    ran = cli("--help")
    assert ran.status == 0
    for verb in ("compile", "bench", "explain", "space", "record", "doctor", "cache"):
        assert verb in ran.out
        assert cli(verb, "--help").status == 0


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("compile",),
        ("compile", "zoo:sru/tiny", "--nonsense"),
        ("compile", "zoo:sru/tiny", "--batch", "none"),
        ("compile", "zoo:sru/tiny", "--batch", "0"),
        ("compile", "zoo:sru/tiny", "--dtype", "fp8"),
        ("compile", "zoo:sru/tiny", "--scheduler", "fifo", "--target", "cpu"),
        ("compile", "zoo:sru/tiny", "--target", "tpu"),
        ("compile", "zoo:sru/tiny", "--target", "cpu", "--budget", "-1"),
        ("compile", "zoo:sru/tiny", "--target", "cpu", "--seed", str(2**70)),
        ("compile", "sru", "--target", "cpu"),
        ("bench",),
        ("bench", "zoo:sru/tiny", "--rivals", "nobody"),
        ("bench", "zoo:sru/tiny", "--batch", "1,x"),
        ("bench", "zoo:sru/tiny", "--target", "tpu"),
        ("compile", "nothing.pt2", "--target", "cpu"),
        ("compile", "nothing.onnx", "--target", "cpu"),
        ("explain", "nothing.anabranch", "--target", "cpu"),
        ("cache", "ls", "nothing"),
        ("cache",),
        ("space",),
        ("space", "zoo:sru/tiny", "--dtype", "int8"),
    ],
)
def test_wrong_usage_is_2(cli: Callable[..., Any], words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert ran.status == 2, ran
    assert "Traceback" not in ran.err
    assert ran.err or ran.out


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("compile", "nothing"),
            ("bench", "zoo:sru"),
            ("explain", "nothing"),
            ("space", "nothing"),
        ),
        *(("precompile", "nothing"), ("buckets", "nothing", "--histogram", "x"), ("doctor",)),
        *(("record", "nothing"), ("fuzz", "--graphs", "1"), ("cache", "ls"), ("discover",)),
    ],
)
def test_where_json_goes_is_looked_at_before_the_work(
    cli: Callable[..., Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place, why in (
        (tmp_path / "missing" / "x.json", "there is no folder"),
        (tmp_path / "file" / "x.json", "is a file, and no folder"),
        (tmp_path, "it is a folder"),
    ):
        ran = cli(*words, "--json", place)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"error: cannot write {place}\n  why:  ") and why in ran.err


def test_json_goes_to_what_is_no_file(cli: Callable[..., Any]) -> None:
    assert cli("doctor", "--json", "/dev/null").status == 0


def test_an_error_has_three_parts(cli: Callable[..., Any]) -> None:
    ran = cli("compile", "zoo:inceptionv3", "--target", "cpu")
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.splitlines()[0] == "error: unknown network of the zoo 'inceptionv3'"
    assert "\n  why:  " in ran.err
    assert "\n  next: did you mean inception_v3" in ran.err
    assert "nasnet_mobile" in ran.err  # as the README says, a wrong name lists all


def test_failed_work_is_1_and_debug_shows_where(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise TargetError("it broke", "it was old", "buy a new one")

    monkeypatch.setattr(space, "read_dag", fail)
    ran = cli("space", "--dag", "x.json")
    assert (ran.status, ran.err) == (
        1,
        "error: it broke\n  why:  it was old\n  next: buy a new one\n",
    )
    assert "Traceback" in cli("space", "--dag", "x.json", "--debug").err
    assert "Traceback" in cli("--debug", "space", "--dag", "x.json").err


def test_unforeseen_failures_have_three_parts_too(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(space, "read_dag", fail)
    ran = cli("space", "--dag", "x.json")
    assert ran.status == 1
    assert ran.err.startswith("error: KeyError: 'secret'\n  why:  ")
    assert "--debug" in ran.err


def test_interrupt_is_130(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(space, "read_dag", stop)
    ran = cli("space", "--dag", "x.json")
    assert ran.status == app.INTERRUPTED == 130
    assert "interrupted" in ran.err


def test_a_file_that_cannot_be_written(cli: Callable[..., Any], tmp_path: Path) -> None:
    dag = tmp_path / "dag.json"
    dag.write_text('{"nodes": 1, "edges": []}')
    ran = cli("space", "--dag", dag, "--json", tmp_path / "missing" / "out.json")
    assert ran.status == 2
    assert "there is no folder" in ran.err


def test_runs_as_a_module_without_colours_in_pipes() -> None:
    as_module = "import runpy; runpy.run_module('anabranch', run_name='__main__', alter_sys=True)"
    done = fresh.run(as_module, "cache", "path", env={"ANABRANCH_CACHE_DIR": "/nowhere"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/nowhere/cache.sqlite\n"
