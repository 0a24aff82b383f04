"""Options from the environment: each by its variable, with its type, and errors that name it."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anabranch import options
from anabranch.deadline import Effort
from anabranch.errors import OptionError
from anabranch.integrations import dynamo
from anabranch.options import Options

ROOT = Path(__file__).parent.parent


def test_each_option_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **{"BUDGET": "2.5", "STRICT": "1", "SEARCH_SIZE_L": "7", "TF32": "true", "SEED": "-3"},
        **{"BATCH": "pad", "DUMP": "here", "SEARCH_ALPHA": "none", "FUEL": "", "CACHE_DIR": ""},
    }
    for name, text in given.items():
        monkeypatch.setenv(f"ANABRANCH_{name}", text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Options.read({"seed": 4})
    assert (found.budget, found.strict, found.search_size_l, found.tf32) == (2.5, True, 7, True)
    assert (found.seed, found.batch, found.dump, found.search_alpha) == (
        4,
        "pad",
        Path("here"),
        None,
    )
    assert found.fuel is None and found.cache_dir is None
    assert Options.read(environment=False) == Options()


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("ANABRANCH_BUDGET", "soon", "variable ANABRANCH_BUDGET=soon is not valid(.|\n)*number"),
        ("ANABRANCH_BATCH", "tile", "variable ANABRANCH_BATCH=tile is not valid(.|\n)*'pad'"),
        ("ANABRANCH_STRICT", "maybe", "variable ANABRANCH_STRICT=maybe"),
        ("ANABRANCH_DEBUG", "9", "variable ANABRANCH_DEBUG=9(.|\n)*equal to 3"),
        ("ANABRANCH_SYSTEM", "fastest", "ANABRANCH_SYSTEM says"),
    ],
)
def test_errors_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, words: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(OptionError, match=words):
        Options.read()


def test_what_a_program_gives_is_its_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_BUDGET", "3")
    with pytest.raises(OptionError, match="option budget = -1 is not valid"):
        Options.read({"budget": -1})


def test_unknown_variables_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_SCHEDULAR", "ios")
    with pytest.warns(UserWarning, match=r"ANABRANCH_SCHEDULAR is no .* ANABRANCH_SCHEDULER\?"):
        assert Options.read().scheduler == "best"


def test_every_option_says_what_it_does() -> None:
    for name, field in Options.model_fields.items():
        told = field.description or ""
        assert told.endswith("."), f"{name} has no sentence"


def test_the_page_of_options_is_made_of_its_fields(request: pytest.FixtureRequest) -> None:
    made = runpy.run_path(str(ROOT / "tools" / "pages.py"))["PAGES"]["options"]()
    page = ROOT / "docs" / "options.md"
    if request.config.getoption("--update-golden"):
        page.write_text(made, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == made, "docs/options.md is old; make golden writes it"


def test_options_that_were_saved_under_former_names_are_read() -> None:
    for name, (now, words) in options.FORMER.items():
        assert now in Options.model_fields and (name == now or name not in Options.model_fields)
        for word, called in words.items():
            assert Options.read(options.renamed({name: word})) == Options.read({now: called})


def test_former_names_count_and_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(FutureWarning, match="pdl='off'"):
        assert Options.read({"overlap": "none"}, environment=False).pdl == "off"
    with pytest.warns(FutureWarning, match="fusion='deepcuts'"):
        assert Options.read({"fusion": "climb"}, environment=False).fusion == "deepcuts"
    monkeypatch.setenv("ANABRANCH_ABREAST", "none")
    with pytest.warns(FutureWarning, match="horizontal_fusion='none'"):
        assert Options.read().horizontal_fusion == "none"
    with pytest.warns(FutureWarning):
        assert Options.read({"horizontal_fusion": "all"}).horizontal_fusion == "all"


def test_workers_are_a_number_or_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, read in ((2, "2"), ("auto", "auto"), ("ray", "ray"), ("ray://a:1", "ray://a:1")):
        assert Options.read({"workers": given}).workers == read
    for wrong in (0, -1, "", "ray:", "ray://", "2 3", True, 1.5):
        with pytest.raises(OptionError, match=r"ray://HOST"):
            Options.read({"workers": wrong})
    monkeypatch.setenv("ANABRANCH_WORKERS", "none")
    assert Options.read().workers is None


def test_an_effort_sets_what_neither_a_program_nor_a_system_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = Options.read({"effort": "fast"}, environment=False)
    assert (fast.effort, fast.search, fast.pdl) == (Effort.FAST, "at-once", "uniform")
    searched = Options.read({"effort": "fast", "search": "taso"}, environment=False)
    assert (searched.search, searched.horizontal_fusion) == ("taso", "none")
    published = Options.read({"system": "autograph"}, environment=False)
    assert (published.effort, published.search) == (Effort.MAX, "autograph-paper")
    monkeypatch.setenv("ANABRANCH_EFFORT", "fast")
    assert Options.read({"system": "taso"}).search == "taso-paper"
    assert Options.read({"effort": "max"}).search == "autograph"
    monkeypatch.setenv("ANABRANCH_EFFORT", "some")
    with pytest.raises(OptionError, match=r"ANABRANCH_EFFORT=some(.|\n)*'fast'"):
        Options.read()


@pytest.mark.parametrize(
    ("mode", "asked", "effort"),
    [
        ("default", {}, Effort.DEFAULT),
        ("max-autotune", {}, Effort.MAX),
        ("max-autotune", {"effort": "fast"}, Effort.FAST),
    ],
)
def test_modes_of_torch_compile_are_efforts_unless_another_is_asked_for(
    mode: str, asked: dict[str, str], effort: Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Options] = []
    monkeypatch.setattr(
        dynamo, "aot_autograd", lambda **ways: lambda *_: seen.append(options_of(ways))
    )
    dynamo.anabranch_backend(torch.fx.symbolic_trace(nn.Identity()), (), mode=mode, options=asked)
    assert [options.effort for options in seen] == [effort]


def options_of(ways: dict[str, Any]) -> Options:
    """What the backend's compilers were told, which hold it."""
    held = [cell.cell_contents for cell in ways["inference_compiler"].__closure__]
    return next(options for options in held if isinstance(options, Options))


@pytest.mark.parametrize(("text", "number"), [("4 GiB", 4 << 30), ("1.5kb", 1500), ("77", 77)])
def test_a_limit_of_memory_has_a_unit(text: str, number: int) -> None:
    assert Options.read({"memory_limit": text}, environment=False).memory_limit == number


@pytest.mark.parametrize("text", ["12 parsecs", "1.2.3 GB", "GB", "-1"])
def test_what_is_no_limit_of_memory_says_what_is(text: str) -> None:
    with pytest.raises(OptionError, match='such as "4 GiB"'):
        Options.read({"memory_limit": text}, environment=False)
