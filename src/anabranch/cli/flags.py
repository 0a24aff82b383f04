"""Arguments and options that several verbs share, and the lists in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from anabranch.cli.screen import file_of
from anabranch.deadline import Effort
from anabranch.errors import OptionError
from anabranch.models.load import DTYPES, FORMS
from anabranch.options import SEEDS, SYSTEMS, Options
from anabranch.tuning.workers.chosen import open_workers
from anabranch.tuning.workers.pool import WorkerPool

T = TypeVar("T")

Model = Annotated[str, typer.Argument(help=f"{FORMS}.", show_default=False, metavar="MODEL")]
BatchOption = Annotated[int | None, typer.Option(help="Inputs per call.", show_default="1", min=1)]
Dtype = Annotated[str | None, typer.Option(help="fp32, tf32, fp16 or bf16.", show_default="fp32")]
TargetOption = Annotated[
    str,
    typer.Option(
        help="auto, cuda, cpu, sim:h200 or sim:FILE.json; auto is the GPU, and where there is none "
        "a plan for the recorded H200."
    ),
]
SchedulerOption = Annotated[
    str | None, typer.Option(help="best, or the name of one.", show_default="best")
]
SystemOption = Annotated[
    str, typer.Option(help=f"Whom to decide as, ours or published: {', '.join(SYSTEMS)}.")
]
SearchOption = Annotated[
    str | None,
    typer.Option(
        help="For an equal graph: autograph, autograph-paper, taso, taso-paper, none.",
        show_default="autograph",
    ),
]
EffortOption = Annotated[
    Effort | None,
    typer.Option(
        help="How much is tried: fast is ready in seconds, max tries all that may be faster.",
        show_default="default",
    ),
]
BudgetOption = Annotated[
    float | None, typer.Option(help="Seconds that search and measurement may take.")
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        help="Write what the screen says; - is stdout.",
        metavar="FILE",
        callback=lambda file: _writable(file),
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Read torch.export archives, which may run code.")
]
Seed = Annotated[
    int,
    typer.Option(
        help="For random weights and inputs, and for the order in which a search tries rules: "
        "another seed may find another graph.",
        min=-SEEDS,
        max=SEEDS - 1,
    ),
]
OptionFields = Annotated[
    list[str] | None,
    typer.Option(
        "-O",
        "--option",
        help="Any field of anabranch.Options, search_alpha=8 for one; over the other flags, and "
        "as often as there are options to give.",
        metavar="NAME=VALUE",
    ),
]


WorkersOption = Annotated[
    str | None,
    typer.Option(
        help="Over which processes work is spread: auto (one a GPU), a number, ray, ray://HOST.",
        show_default="this process alone",
        metavar="WORKERS",
    ),
]


def _writable(json: str | None) -> str | None:
    """The file that --json names, looked at before any work is done."""
    check_folders(file_of(json))
    return json


def check_folders(*files: Path | None) -> None:
    """OptionError for a file that cannot be written: before the work, not after it."""
    for file in files:
        if file is None or (file.exists() and not (file.is_file() or file.is_dir())):
            continue  # a pipe, or /dev/stdout
        if file.is_dir():
            raise OptionError(f"cannot write {file}", "it is a folder", "name a file in it")
        check_folder(file.parent, f"cannot write {file}")


def check_folder(folder: Path, what: str) -> None:
    """OptionError that says `what`, for a folder that is not there or cannot be written to."""
    if not folder.exists():
        raise OptionError(what, f"there is no folder {folder}", "make it first")
    if not folder.is_dir():
        raise OptionError(what, f"{folder} is a file, and no folder", "name another place")
    if not os.access(folder, os.W_OK):
        raise OptionError(what, f"{folder} is not yours to write", "name another place")


@contextmanager
def opened_workers(
    workers: str | None, target: str, options: Mapping[str, Any] | None = None
) -> Iterator[WorkerPool | None]:
    """The workers that were asked for, here or by ANABRANCH_WORKERS, while the block runs; None for
    this process alone. `options`: of a compilation, whose cache they read. OptionError for what
    means nothing, or for more than there are."""
    chosen = Options.read({**(options or {}), **({} if workers is None else {"workers": workers})})
    with open_workers(chosen.workers, target, chosen.cache_dir) as pool:
        yield pool


def compile_options(settings: Sequence[str] | None, **flags: Any) -> dict[str, Any]:
    """What a compilation is told: the flags that were given, None for those that were not, and over
    them each NAME=VALUE. OptionError for what `anabranch.Options` does not take.

    >>> compile_options(["search_alpha=8", "budget=none"], scheduler="ios", search=None, budget=3.0)
    {'scheduler': 'ios', 'budget': None, 'search_alpha': '8'}
    """
    options = {name: value for name, value in flags.items() if value is not None}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(
                f"-O cannot be {text!r}",
                "it takes the name of an option and its value",
                "for example -O search_alpha=8; help(anabranch.Options) names all",
            )
        options[name.strip()] = None if value == "none" and may_be_none(name.strip()) else value
    Options.read(options)
    return options


def may_be_none(option: str) -> bool:
    """Whether the word none stands for no value of this option, and is not one of its words.

    >>> may_be_none("budget"), may_be_none("search")
    (True, False)
    """
    field = Options.model_fields.get(option)
    return field is not None and type(None) in get_args(field.annotation)


def check_dtype(name: str | None) -> str | None:
    """The name itself; OptionError if it is none."""
    if name is not None and name not in DTYPES:
        raise OptionError(
            f"unknown dtype {name!r}", "no dtype has this name", f"choose from: {', '.join(DTYPES)}"
        )
    return name


def dtypes(text: str) -> tuple[str, ...]:
    """The dtypes in "fp16,tf32", at least one.

    >>> dtypes("fp16, tf32")
    ('fp16', 'tf32')
    """
    names = words(text)
    for name in names or ("",):
        check_dtype(name)
    return names


def words(
    text: str | None, choices: Collection[str] | None = None, flag: str = ""
) -> tuple[str, ...]:
    """The names in "a,b"; with `choices`, "all" is all of them, and none and others are refused."""
    if text is None:
        return ()
    if choices is not None and text.strip() == "all":
        return tuple(choices)
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in names or ("",):
        if choices is not None and word not in choices:
            raise OptionError(
                f"{flag} does not know {word!r}",
                f"{text!r} was given",
                f"choose from: all, {', '.join(choices)}",
            )
    return names


def numbers(text: str, of: Callable[[str], T], flag: str) -> tuple[T, ...]:
    """The positive numbers in "1,8".

    >>> numbers("1, 8", int, "--batch")
    (1, 8)
    """
    try:
        values = tuple(of(word) for word in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(number > 0 for number in values):  # type: ignore[operator]
        raise OptionError(
            f"{flag} cannot be {text!r}",
            "it takes positive numbers with commas between them",
            f"for example {flag} 1,16",
        )
    return values
