"""The walls of the house: who may import whom, and what only one room may do.

The layers themselves are contracts in pyproject.toml; here import-linter checks them. The rest
reads the syntax trees of the package, so no code behind a broken wall has to run to find it.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import pytest

pytestmark = pytest.mark.xdist_group("architecture")  # they share what is parsed and found
ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "anabranch"

# The only files that may import a package which need not be installed. `*` also crosses folders.
DOORS = {
    "cuda": {"targets/cuda/*"},
    "cudnn": {"targets/cuda/*"},
    "onnx": {"frontend/onnx/door.py"},
    "onnx_ir": {"frontend/onnx/door.py"},
    "ortools": {"schedule/exact/ortools_door.py"},
    "ray": {"tuning/workers/ray_door.py"},
    "triton": {"targets/cuda/*", "kernels/triton/*"},
}

UNTIMED = (
    "deadline.py",  # the table itself
    "bench/*",  # how long a benchmark measures
    "cache/store.py",  # waits for a lock, in a room beside the table's
    "compiled/progress.py",  # when something is said
    "targets/cuda/compile_pool.py",  # how long idle processes are kept
    "targets/cuda/sharing.py",  # waits for a turn among processes
)
"""Files whose seconds limit no searching, timing or scheduling: they are not in `deadline.TIME`."""
SECONDS = re.compile(r"(^|_)(S|SECONDS?|MINUTES?|BUDGET|TIMEOUT|PATIENCE|DEADLINE)$")
OF_SECONDS = re.compile(r"^(deterministic )?seconds\b", re.IGNORECASE)

VAGUE = {"base", "common", "context", "handler", "helper", "manager", "util"}
BARE = {"AGAIN", "FEW", "LARGE", "LEAST", "LONG", "MANY", "MOST", "OWN", "PLAIN", "SMALL", "WHOLE"}
"""As constants: they say neither of what, nor in which unit."""
UNNAMED = {"found", "given", "known", "made", "one"}
"""As locals, parameters, fields and functions: how a value came about, where it has a name."""
FILE_MODELS = {"RecipeModel", "Steps"}
"""Their fields are keys of files that were saved earlier."""


def test_layers() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_at_the_root_are_seven_modules() -> None:
    own = {path.stem for path in (ROOT / "src" / "anabranch").glob("*.py")}
    assert own == {"__init__", "__main__", "api", "deadline", "errors", "options", "trace"}


def test_how_long_something_may_take_stands_in_one_table() -> None:
    """A constant of seconds is known by its name's end or by its docstring's first word."""
    found = [
        (path, name)
        for path, tree in sources()
        for name, docstring in numbers(tree)
        if SECONDS.search(name) or OF_SECONDS.search(docstring)
    ]
    untimed = {path for path, _ in found if any(fnmatch(path, file) for file in UNTIMED)}
    assert [one for one in found if one[0] not in untimed] == []
    assert {"cache/store.py", "targets/cuda/sharing.py"} <= untimed, "it finds what it looks for"


def test_each_time_says_its_unit_and_its_reason() -> None:
    (table,) = (
        node
        for node in dict(sources())["deadline.py"].body
        if isinstance(node, ast.ClassDef) and node.name == "TimePolicy"
    )
    told = dict(numbers(table))
    shares = {"search_budget_share", "pdl_per_kernel_enough"}
    assert told and all(docstring for docstring in told.values())
    assert {name for name in told if not name.endswith("_s")} == shares
    assert all(told[name].startswith("Part of") for name in shares)


def numbers(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Constants with a number in them, by name, and the docstring under them, "" without one."""
    for statement, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        if not any(
            isinstance(node, ast.Constant) and type(node.value) in (int, float)
            for node in ast.walk(statement.value)
        ):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        text = ast.literal_eval(after.value) if is_text(after) else ""
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name):
                yield node.id, text


def is_text(statement: ast.stmt | None) -> TypeGuard[ast.Expr]:
    """Whether a statement is a docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def test_environment_is_read_in_options_only() -> None:
    """And by who puts back what a model's forward sets in it."""
    places = mentions("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv")
    assert outside(places, "options.py", "frontend/process_state.py") == []


def test_sqlite_is_used_in_cache_only() -> None:
    assert outside(mentions("sqlite3"), "cache/*") == []


def test_torch_cuda_is_used_in_its_target_only() -> None:
    assert outside(mentions("torch.cuda"), "targets/cuda/*") == []


def test_text_is_shown_in_cli_and_report_only() -> None:
    places = mentions("print", "rich", "typer", "click", "sys.stdout", "sys.stderr")
    assert outside(places, "cli/*", "report/*") == []


def test_a_public_class_name_means_one_class() -> None:
    """But for layers of the zoo, which are called as their papers call them."""
    places: dict[str, list[str]] = {}
    for file, tree in sources():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file)
    named_by_us = {
        name: files
        for name, found in places.items()
        if (files := [file for file in found if not file.startswith("models/zoo/")])
    }
    assert named_by_us["Graph"] == ["ir/graph.py"]
    twice = {name: files for name, files in named_by_us.items() if len(files) > 1}
    assert twice == {}
    assert [place for name, place in aliases() if name in named_by_us] == []


def aliases() -> Iterator[tuple[str, str]]:
    """Names of types that are no classes, such as `Arg = int | Ref`, and where they stand."""
    for file, tree in sources():
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(name)]) if not name.isupper():
                    if name[0].isupper():
                        yield name, f"{file}: {name}"


def test_a_refusal_is_a_value() -> None:
    """`Refused | None` answers whether something may be done, never True or a sentence."""
    wrong = [
        f"{file}:{node.lineno} {node.name}"
        for file, tree in sources()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and set(ast.unparse(node.returns).split(" | ")) == {"bool", "str"}
    ]
    assert wrong == []


def test_why_not_is_no_sentence_that_is_empty() -> None:
    """Whoever says why something may not be done, or why not "", answers `Refused | None`."""
    told = {
        f"{file} {node.name}"
        for file, tree in sources()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns) == "str"
        and (
            re.search(r'^Why\b(.|\n)*""', ast.get_docstring(node) or "")
            or re.search(r"^_?(why_|refus)", node.name)
        )
    }
    assert told == SENTENCES


SENTENCES = {
    *("cache/folder.py why_untrusted", "cache/folder.py why_shared_file"),  # below ir's `Refused`
    *("cache/folder.py _why_not",),
    *("bench/sandbox.py try_in_sandbox",),  # told by another process
    *("fuzz/training_trial.py _wrong",),  # a part of what a script prints
    *("report/search_summary.py ended",),  # nothing is refused
    *("kernels/triton/codegen.py why_none",),  # asked only where there is none
}
"""Functions that give a sentence, or "", and why."""


def test_no_generator_leaves_switches_of_torch_to_its_caller() -> None:
    """What runs between a yield and the next would inherit them, and what comes after a generator
    that nobody finished too: refitting once left gradients off."""
    switches = re.compile(r"no_grad|_grad\(|grad_enabled|inference_mode|autocast|neutral|restored")
    switching = {
        block
        for _, tree in sources()
        for block in nodes(tree)
        if isinstance(block, ast.With)
        and any(switches.search(ast.unparse(item)) for item in block.items)
    }
    assert switching
    wrong = [
        f"{file}:{block.lineno} {function.name}"
        for file, tree in sources()
        if not switching.isdisjoint(nodes(tree))
        for function in nodes(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("contextmanager" in ast.unparse(one) for one in function.decorator_list)
        for block in own_nodes(function)
        if block in switching
        and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(block))
    ]
    assert wrong == []


def test_what_is_entered_into_a_stack_lies_within_what_its_block_entered() -> None:
    """A stack that stands before another item is left after it: what was entered into it last
    restores last, and what it found was the other's. Refitting once left gradients off."""
    wrong = [
        f"{file}:{block.lineno}"
        for file, tree in sources()
        for block in nodes(tree)
        if isinstance(block, ast.With | ast.AsyncWith)
        and any("ExitStack(" in ast.unparse(item.context_expr) for item in block.items[:-1])
    ]
    assert wrong == []


def own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """What stands in it, and not in a function within."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from own_nodes(node)


def test_nothing_is_unpickled() -> None:
    """But what goes between a process and the workers that it started."""
    names = ("pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "torch.load")
    assert outside(mentions(*names), "tuning/workers/messages.py") == []


@pytest.mark.parametrize("package", DOORS)
def test_optional_packages_have_doors(package: str) -> None:
    assert outside(mentions(package), *DOORS[package]) == []


def test_zoo_knows_only_torch() -> None:
    allowed = sys.stdlib_module_names | {"torch", "networkx"}  # which torch brings along
    for file, tree in sources():
        if file.startswith("models/zoo/"):
            for _, name in imports(tree):
                known = name.split(".")[0] in allowed or name.startswith("anabranch.models.zoo")
                assert known, f"{file} imports {name}"


def test_the_architecture_is_one_page_with_the_rooms_as_they_are() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    floors = [layer.replace("(", "").replace(")", "") for layer in layers]
    drawn = re.findall(r"^([a-z]+(?: \| [a-z]+)*)  +\S", text, re.MULTILINE)
    assert drawn == [floor for floor in floors if floor != "__main__"]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {"benchmarks", "docs", "examples", "tests", "tools"}


def test_files_that_pages_name_exist() -> None:
    """Modules as `room/file`, others by their path in the repository, in code."""
    lost = []
    for page in PAGES:
        for name in re.findall(r"`([a-z_]+(?:/[\w.-]+)+)`", page.read_text(encoding="utf-8")):
            first = name.split("/")[0]
            place = ROOT / name if first in FOLDERS else PACKAGE / name
            known = place.exists() or place.with_suffix(".py").is_file()
            if first in ROOMS | FOLDERS and not known:
                lost.append(f"{page.relative_to(ROOT)}: {name}")
    assert lost == []


def test_tests_mirror_the_package() -> None:
    """`tests/ROOM/test_MODULE.py` and `tests/ROOM/test_MODULE_TOPIC.py` test `ROOM/MODULE`, a file
    or a folder of the package."""
    lost = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        path = file.relative_to(ROOT / "tests")
        words = path.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:end]) for end in range(1, len(words) + 1)]
        places = [PACKAGE / path.parent / name for name in names]
        known = any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)
        if not known and not any(fnmatch(path.as_posix(), one) for one in OF_NO_MODULE):
            lost.append(path.as_posix())
    assert lost == []
    for pattern in OF_NO_MODULE:
        assert list((ROOT / "tests").glob(pattern)), f"no test is called {pattern}"


OF_NO_MODULE = {
    "test_architecture.py": "the package as a whole",
    "test_docs.py": "the pages",
    "test_docstrings.py": "examples in docstrings",
    "test_gpu_tests.py": "tools/gpu_tests.py",
    "test_keep_run.py": "tools/keep_run.py",
    "test_main.py": "__main__.py",
    "test_mutants.py": "tools/mutants.py",
    "test_papers.py": "tools/papers.py",
    "test_replay.py": "tools/replay.py",
    "benchmarks/*.py": "scripts in benchmarks",
    "gpu/*.py": "what needs a GPU, by what is asked of it",
    "kernels/triton/test_interpreter.py": "interpreter.py beside it",
    "schedule/test_schedulers.py": "every entry of the table SCHEDULERS",
    "search/test_cell.py": "the case that docs/search.md works through",
}
"""Files of tests without a module of their name, and what they test."""


def test_names_say_something() -> None:
    """Networks are named by their authors (bert_base); everything else by us."""
    vague = []
    for file, tree in sources():
        if file.startswith("models/zoo/"):
            continue
        names = [(1, part) for part in Path(file).with_suffix("").parts]
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append((node.lineno, node.name))
        vague += [f"{file}:{line} {name}" for line, name in names if words(name) & VAGUE]
    assert vague == []


def test_constants_say_of_what() -> None:
    bare = [
        f"{file}:{node.lineno} {target.id}"
        for file, tree in sources()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store) and target.id in BARE
    ]
    assert bare == []


def test_locals_and_fields_say_what_they_hold() -> None:
    """Functions, too, but for `Compiled.known`, which users call."""
    unnamed = []
    for file, tree in sources():
        files = (n for n in nodes(tree) if isinstance(n, ast.ClassDef) and n.name in FILE_MODELS)
        keys = {
            id(line.target) for n in files for line in n.body if isinstance(line, ast.AnnAssign)
        }
        for node in nodes(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) if id(node) in keys:
                    continue
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    pass
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    pass
                case ast.FunctionDef(name=name) if not file.startswith("compiled/"):
                    pass
                case _:
                    continue
            if name in UNNAMED:
                unnamed.append(f"{file}:{node.lineno} {name}")
    for folder in ("benchmarks", "examples", "tools"):
        for path in sorted((ROOT / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                        if name in UNNAMED:
                            unnamed.append(f"{path.name}:{node.lineno} {name}")
    assert unnamed == []


def test_docstrings_name_what_there_is() -> None:
    """Names in backquotes: `room/file` is a file, the last two of `room.file.name` are a module and
    what it has or what the file itself calls so, and a single word stands somewhere in the code.
    """
    lost = []
    everywhere = members().keys() | set().union(*(read(tree).said for _, tree in sources()))
    for file, tree in sources():
        for line, text in read(tree).docstrings:
            for path in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+)`", text):
                place = PACKAGE / path
                known = place.exists() or place.with_suffix(".py").is_file()
                if path.split("/")[0] in ROOMS and not known:
                    lost.append(f"{file}:{line} {path}")
            for name in re.findall(r"`([a-z_]\w*(?:\.[A-Za-z_]\w*)+)", text):
                first, (module, what) = name.split(".")[0], name.split(".")[-2:]
                known = what in members().get(module, ()) or bool(
                    {first, module} & read(tree).names
                )
                if not known and first not in FOREIGN and not name.endswith(".py"):
                    lost.append(f"{file}:{line} {name}")
            if not file.startswith("models/zoo/"):  # there they are names of other libraries
                words = re.findall(r"`([A-Za-z]\w{3,})`", text)
                lost += [f"{file}:{line} {word}" for word in words if word not in everywhere]
    assert lost == []


def test_long_sentences_begin_with_what_they_are_about() -> None:
    """And not with "What ...", whose verb stands far behind."""
    late = [
        f"{file}:{line} {sentence}"
        for file, tree in sources()
        for line, text in read(tree).docstrings
        for sentence in re.split(r"(?<=[.:;])\s+", " ".join(text.split()))
        if re.match("(What|Whatever|Whoever) ", sentence) and len(sentence.split()) > 16
    ]
    assert late == []


def test_scripts_import_what_there_is() -> None:
    """Nobody checks the types of benchmarks, and few run them."""
    lost = []
    for file in [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/*.py"), *ROOT.glob("tools/*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anabranch"):
                place = PACKAGE.joinpath(*str(node.module).split(".")[1:])
                there = place.is_dir() or place.with_suffix(".py").is_file()
                known = members()[place.name] if there else set()
                lost += [f"{file.name} {one.name}" for one in node.names if one.name not in known]
    assert lost == []


FOREIGN = {"anabranch", "aten", "concurrent", "ortools", "str", "sys", "time", "tl", "torch"}
FOREIGN |= {"fast", "lengths", "loss", "lr", "match", "model", "optimizer", "self", "weight"}
FOREIGN |= {"a"}
"""First words of names in docstrings that are of other packages, or of a user's code."""
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}


@cache
def members() -> dict[str, set[str]]:
    """By the last part of a module's name what modules of that name define, import or hold."""
    found: dict[str, set[str]] = {}
    for file, tree in sources():
        parts = ["anabranch", *(p for p in Path(file).with_suffix("").parts if p != "__init__")]
        for folder, part in pairwise(parts):
            found.setdefault(folder, set()).add(part)
        here = found.setdefault(parts[-1], set())
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                here.add(statement.name)
            elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom):
                here |= read(statement).names
    return found


@dataclass(frozen=True, slots=True)
class Words:
    """`names`: identifiers that code uses, binds, imports, defines or asks an object for; `said`:
    these and all words in texts; `docstrings`: texts that stand alone, with their lines."""

    names: set[str]
    said: set[str]
    docstrings: list[tuple[int, str]]


@cache
def read(tree: ast.AST) -> Words:
    """The words of a file or a statement, in one walk."""
    names: set[str] = set()
    texts: list[ast.Constant] = []
    alone: dict[ast.expr, str] = {}
    for node in nodes(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)) | ast.alias(name=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Constant(value=str()):
                texts.append(node)
            case ast.Expr(value=ast.Constant(value=str(text))):
                alone[node.value] = text
    told = {word for one in texts if one not in alone for word in WORD.findall(str(one.value))}
    return Words(names, names | told, [(node.lineno, text) for node, text in alone.items()])


WORD = re.compile(r"\w+")


def test_no_tracked_file_names_a_place() -> None:
    """Neither this checkout, nor a home directory, nor where packages come from."""
    everywhere = {Path("/"), Path("/tmp"), Path("/home"), Path("/usr/src")}
    places = {str(place) for place in {ROOT, ROOT.parent, Path.home()} - everywhere}
    pattern = re.compile("|".join(f"(?<![\\w.]){re.escape(place)}(?![\\w-])" for place in places))
    found = []
    for file in tracked():
        text = file.read_text(encoding="utf-8", errors="replace")
        if any(place in text for place in places):
            lines = enumerate(text.splitlines(), 1)
            found += [f"{file.relative_to(ROOT)}:{n}" for n, line in lines if pattern.search(line)]
    assert found == []
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        hosts = set(re.findall(r"://([\w.]+)", text))
        assert hosts <= ({"doi.org", "arxiv.org"} if name == "pyproject.toml" else set()), name


def test_the_walls_are_seen() -> None:
    """The reader of syntax trees itself: aliases, from-imports and imports inside functions."""
    tree = ast.parse(
        "import torch.cuda.nvtx\n"
        "import os as system, importlib\n"
        "from torch import cuda as device, load\n"
        "import torch as t\n"
        "def f(self, rich):\n"
        "    import sqlite3\n"
        "    system.environ['A'], t.cuda.synchronize(), device.Stream()\n"
        "    print('x'), self.print('y'), t.backends.cuda.matmul, rich.text\n"
        "    importlib.import_module('triton')\n"
    )
    found = uses(tree)
    assert set(found) >= {
        (1, "torch.cuda.nvtx"),
        (3, "torch.cuda"),
        (3, "torch.load"),
        (6, "sqlite3"),
        (7, "os.environ"),
        (7, "torch.cuda.synchronize"),
        (7, "torch.cuda.Stream"),
        (8, "print"),
        (8, "torch.backends.cuda.matmul"),
        (9, "triton"),
    }
    assert not {name for _, name in found} & {"self.print", "rich", "rich.text"}
    assert matches("torch.cuda.Stream", ("torch.cuda",)) and not matches("torch.cud", ("torch.c",))
    assert words("HTTPHandlers") & words("_handler") & VAGUE
    assert not words("baseline_database_contextual") & VAGUE


def test_nothing_is_defined_that_nobody_uses() -> None:
    """What a module defines is read there, or in another file of the repository."""
    read = {name for _, tree in sources() for name in names_read(tree)}
    for file in tracked():
        if file.suffix in (".py", ".md", ".toml") and PACKAGE not in file.parents:
            read |= set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    dead = [
        f"{file} {name}"
        for file, tree in sources()
        if file not in READ_AS_TEXT
        for name in defined(tree)
        if name not in read and not name.endswith("_")  # such as __all__, or _fields_ of ctypes
    ]
    assert dead == []


READ_AS_TEXT = {"kernels/triton/functions.py", "fuzz/script_prelude.py"}
"""Files whose functions others write the names of."""


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of a module's functions, classes and constants, and of its dataclasses' fields; but not
    what a decorator takes, as a command of the command line."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            yield from (name for name, _ in numbers(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def names_read(tree: ast.Module) -> Iterator[str]:
    """Names that a module reads, imports, or writes in a text, as of a type that is only quoted."""
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value) if len(node.value) < 200 else ()


# -- reading the package -------------------------------------------------------------------------


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Every Python file of the package: its path inside the package, its syntax tree."""
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    return tuple(
        (file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text(encoding="utf-8")))
        for file in files
    )


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, which a dozen tests walk through."""
    return tuple(ast.walk(tree))


def mentions(*names: str) -> list[str]:
    """Where one of these dotted names, or something below it, is imported or used."""
    return [
        f"{file}:{line} {name}"
        for file, tree in sources()
        for line, name in uses(tree)
        if matches(name, names)
    ]


def outside(places: list[str], *allowed: str) -> list[str]:
    return [p for p in places if not any(fnmatch(p.split(":")[0], a) for a in allowed)]


def matches(name: str, names: tuple[str, ...]) -> bool:
    return any(name == wanted or name.startswith(f"{wanted}.") for wanted in names)


@cache
def uses(tree: ast.Module) -> list[tuple[int, str]]:
    """What is imported, and each use of it or of a builtin, by full dotted name, with its line."""
    meanings: dict[str, str] = {name: name for name in vars(builtins)}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                meanings[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            meanings |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    found = list(imports(tree))
    for node in nodes(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := dotted(node)):
            head, dot, rest = name.partition(".")
            if head in meanings:
                found.append((node.lineno, meanings[head] + dot + rest))
    return found


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All imports, those inside functions and those by `import_module("name")` too."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            function = dotted(node.func).rpartition(".")[2]
            if function in ("import_module", "__import__") and node.args:
                yield node.lineno, ast.unparse(node.args[0]).strip("'")


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def words(name: str) -> set[str]:
    """The lower-case words of a snake_case or CamelCase name, in the singular."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return {part.lower().removesuffix("s") for part in parts}


def tracked() -> list[Path]:
    """The files of the repository, committed or about to be."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    files = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [file for file in files if file.is_file()]
