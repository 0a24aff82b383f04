"""The documentation is true: its code runs, its commands parse, the site builds, examples work."""

from __future__ import annotations

import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from tests import fresh
from tests.pages import BLOCK, blocks, run_page

import anabranch
from anabranch.bench.reproduce import REPRODUCTIONS
from anabranch.bench.result_rows import ABLATIONS
from anabranch.bench.rivals import RIVALS
from anabranch.cli.app import app
from anabranch.cli.bench.app import with_verb
from anabranch.models.load import DTYPES
from anabranch.options import SEARCHES, SYSTEMS
from anabranch.schedule import SCHEDULERS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"serve": ("fastapi", "httpx"), "transformers_model": ("transformers",)}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to write to, and no cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    torch.manual_seed(0)
    yield tmp_path
    torch.compiler.reset()


def test_the_tour_runs(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs" / "tour.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "--- A Plan" in told and "Schedules" in told


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(
    example: Path,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where an example does not say how long to search, it is searched briefly."""
    monkeypatch.setenv("ANABRANCH_SEARCH_SECONDS", "1")
    for package in NEEDS.get(example.stem, ()):
        pytest.importorskip(package)
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip(), "an example says what it did"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6


WITH_CODE = [page for page in PAGES if blocks(page, "python")]
EXTENDING = [page for page in WITH_CODE if page.stem.startswith("add-")]
"""How to add something to a table: their code does so, in a process of its own."""


@pytest.mark.parametrize(
    "page",
    [page for page in WITH_CODE if page not in EXTENDING],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_in_pages_runs(page: Path, elsewhere: Path) -> None:
    run_page(page)


def test_what_pages_add_to_tables_works(elsewhere: Path) -> None:
    """One process for all of them; their additions are gone with it."""
    assert len(EXTENDING) >= 5
    # Anew: what other tests asked before is remembered, and knows nothing of the additions.
    code = "import sys; from tests.pages import run_pages; run_pages(sys.argv[1:])"
    done = fresh.run(code, *map(str, EXTENDING))
    assert done.returncode == 0, done.stderr


def commands() -> list[tuple[str, str]]:
    """Every command of ours that a page shows."""
    found = []
    for page in PAGES:
        for line, body in blocks(page, "console"):
            for number, text in enumerate(body.splitlines(), line):
                if text.startswith("anabranch "):
                    found.append((f"{page.relative_to(ROOT)}:{number}", text))
    return found


def test_pages_show_commands() -> None:
    assert commands()


@pytest.mark.parametrize(("place", "text"), commands(), ids=[text for _, text in commands()])
def test_commands_in_pages_parse(place: str, text: str) -> None:
    """Verb, arguments and options are what the command line has; nothing is run."""
    name, *words = shlex.split(text, comments=True)
    assert list(wrong_flags(words)) == []
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if name == "bench":  # which means a verb where none is named
            words = words if words[0] in command.commands else with_verb(words)
        name, *words = words
        command = command.commands[name]
    command.make_context(name, words)


def test_flags_that_pages_name_exist() -> None:
    """Of code in a line: `verb --flag` with or without `anabranch` before it, and `--flag` alone,
    which some verb has. Where what a flag takes is a list of known names, the names are known."""
    lost, seen = [], 0
    for page in [*PAGES, ROOT / "SECURITY.md"]:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for span in re.findall(r"`([^`\n]+)`", text):
            words = shlex.split(span) if " --" in f" {span}" else []
            words = words[1:] if words[:1] == ["anabranch"] else words
            if words and (words[0].startswith("-") or words[0] in VERBS.commands):
                seen += 1
                lost += [f"{page.name}: {span}: {why}" for why in wrong_flags(words)]
    assert seen >= 10 and lost == []


def test_a_flag_that_nothing_has_is_seen() -> None:
    assert list(wrong_flags(["explain", "--all"])) == []
    assert list(wrong_flags(["bench", "ablate", "--of", "parts,settings"])) == []
    assert list(wrong_flags(["bench", "zoo:resnet50", "--training"])) == []
    assert list(wrong_flags(["--systems", "ablations"])) == ["--systems takes no ablations"]
    assert list(wrong_flags(["explain", "--every"])) == ["no --every"]
    assert list(wrong_flags(["explain", "--of", "parts"])) == ["no --of"]


VERBS: Any = typer.main.get_command(app)
NAMES = {
    "--of": set(ABLATIONS),
    "--systems": {"all", "published", "none", *SYSTEMS},
    "--schedulers": {"all", *SCHEDULERS},
    "--scheduler": set(SCHEDULERS),
    "--rivals": {"all", "none", *RIVALS},
    "--dtype": set(DTYPES),
    "--search": {"all", *SEARCHES},
}
"""What flags take that have names, or lists of them, for values."""


def wrong_flags(words: list[str]) -> Iterator[str]:
    """What of these words, with or without a verb before them, the command line does not have."""
    command = VERBS
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    known = {flag for one in leaves(command) for p in one.params for flag in p.opts}
    known |= {"--help", "--debug", "--training"}
    for word, value in pairwise([*words, ""]):
        if word.startswith("--"):
            if word not in known:
                yield f"no {word}"
            names = [name.partition("+")[0] for name in value.split(",")]
            if word in NAMES and value.islower() and not NAMES[word].issuperset(names):
                yield f"{word} takes no {value}"


def leaves(command: Any) -> Iterator[Any]:
    """The verbs of a group of commands, or the command itself."""
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from leaves(one)


def test_links_between_pages_lead_somewhere() -> None:
    lost = []
    for page in [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#]+)", text):
            made = page.parent / target
            if "://" not in target and not made.exists() and made.name not in MADE:
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert lost == []


MADE = {"commands.md", "changelog.md"}
"""Pages that the site makes as it is built."""


def test_the_readme_is_short_and_its_tables_too() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 150
    assert all(line.count("|") <= 5 for line in text.splitlines() if line.startswith("|"))


def test_the_glossary_defines_at_most_sixty_terms_once_each() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| \*\*([^*]+)\*\*", text, re.MULTILINE)
    terms += re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text)  # within a definition
    assert 0 < len(terms) <= 60 and len(set(terms)) == len(terms)


def test_targets_of_make_that_pages_name_exist() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", rules, re.MULTILINE), f"{page.name}: make {target}"


def test_the_page_of_the_api_has_every_fact(elsewhere: Path) -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    table = page.split("## Facts")[1].split("## Errors")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    fast = anabranch.compile(torch.nn.ReLU().eval(), (torch.ones(4),), target="cpu", search="none")
    assert told == set(fast.known)


def test_the_packaged_readme_names_files_instead_of_linking_to_them() -> None:
    """As the package's metadata has it: there is no repository around it for a link to lead into.
    The files it names are in the source distribution."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hatch = settings["tool"]["hatch"]
    hook = hatch["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!\w+:|#)([^)]+)\)", text)
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert len(links) > 5 and not re.findall(r"\]\((?!\w+:|#)", text)
    packed = {name.strip("/") for name in hatch["build"]["targets"]["sdist"]["include"]}
    for link in links:
        assert f"(`{link}`)" in text
        assert (ROOT / link).exists()
        assert link.partition("/")[0] in packed or (link.endswith(".md") and "*.md" in packed)


def test_tables_are_made_from_the_records() -> None:
    tables = runpy.run_path(str(ROOT / "tools" / "tables.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert page == tables["page"](), "docs/benchmarks.md is old: make benchmarks"
    assert readme == tables["with_table"](readme), "the README's table is old: make benchmarks"


def test_numbers_of_papers_stand_beside_the_records() -> None:
    papers = runpy.run_path(str(ROOT / "tools" / "papers.py"))
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert page == papers["page"](), "docs/papers.md is old: make benchmarks"
    commands = set(re.findall(r"`anabranch reproduce (\w+) (\w+)(?: --dtype \w+)?`", page))
    assert commands == {(paper, table) for paper, own in REPRODUCTIONS.items() for table in own}


def test_rule_families_are_those_of_the_tables_and_the_records() -> None:
    families = runpy.run_path(str(ROOT / "tools" / "rule_families.py"))
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    assert page == families["with_table"](page), "docs/search.md is old: make benchmarks"


def test_the_site_builds(tmp_path: Path) -> None:
    """As `make docs` builds it: a warning is an error."""
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    site = tmp_path / "site"
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(site)))
    made = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "anabranch precompile" in made
    # Nothing is loaded from elsewhere, and the search works in a site that is opened from a folder.
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?:", text), page.name
    assert "iframe-worker.js" in made and (site / "javascripts" / "iframe-worker.js").exists()
