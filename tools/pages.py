"""Pages of the documentation that are made from the code: options and commands.

    python tools/pages.py options         prints the page
    python tools/pages.py commands

docs/options.md is kept in the repository, for the package names it in a warning, and a golden test
compares it with the fields; the page of commands exists only in the built site (`mkdocs.yml`,
hooks).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.main
from pydantic.fields import FieldInfo

from anabranch.cli.app import app
from anabranch.deadline import EFFORTS, EffortSettings
from anabranch.options import PREFIX, SYSTEMS, Options
from anabranch.tuning.launch.pdl import EVERY
from anabranch.tuning.shortlist import FEWEST_TILES

INTRODUCTION = f"""# Options

An option is a keyword of `anabranch.compile`, a field of `anabranch.Options`, `-O NAME=VALUE` on
the command line, and an environment variable: `{PREFIX}` and its name in capitals. A program's
keyword is stronger than the environment. Variables are text: `1`, `true`, `yes` and `on` are true,
`none` is None, and an empty one says nothing, except that an empty `{PREFIX}CACHE_DIR` keeps
nothing. A value that an option cannot have is an error that names the variable, and a variable that
is no option is warned about.
"""


def options() -> str:
    """The table of options, from their fields."""
    lines = [
        INTRODUCTION,
        "| variable | values (default) | meaning |",
        "|---|---|---|",
    ]
    for name, field in Options.model_fields.items():
        variable = f"`{PREFIX}{name.upper()}`"
        meaning = _plain(field.description or "")
        lines.append(f"| {variable} | {_values(field)} ({_default(name, field)}) | {meaning} |")
    lines += [
        "",
        "## Systems",
        "",
        "What each value of `system` sets, unless it is given:",
        "",
        "| system | options |",
        "|---|---|",
    ]
    for system, chosen in SYSTEMS.items():
        told = ", ".join(f"`{name}={value}`" for name, value in chosen.items()) or "the defaults"
        lines.append(f"| `{system}` | {told} |")
    lines += [
        "",
        "## Efforts",
        "",
        "What each value of `effort` tries, and the options that it sets unless they are given, "
        "here or by a system:",
        "",
        "| effort | generated kernels | engines of libraries | cuts into launches | search | "
        "launch modes | options |",
        "|---|---|---|---|---|---|---|",
    ]
    for effort, tried in EFFORTS.items():
        lines.append(f"| `{effort}` | " + " | ".join(_tried(tried)) + " |")
    return "\n".join(lines) + "\n"


def _tried(settings: EffortSettings) -> Iterator[str]:
    """The cells of an effort."""
    few, engines = settings.generated, settings.engines
    kernels = "all that are offered" if few is None else f"{few} of a template for a structure"
    if settings.together is not None:
        kernels += f"; fewer where all are more than {settings.together}, {FEWEST_TILES} at least"
    yield kernels
    near = f"if predicted within {engines:g} times the generated kernels"
    yield "all" if engines == math.inf else near if engines else "none"
    yield "one, by prediction" if settings.one_cut else "each, by measurement"
    chosen = dict(settings.options)
    stops = f"ends where it is promised less than {settings.promise:.0%}"
    usual = stops if settings.stops else f"candidates that promise {settings.promise:.1%}"
    once = f"one candidate, if it is predicted to save {settings.foreseen or 0:.0%}"
    usual = f"begins with that; {usual}" if settings.foreseen is not None else usual
    yield once if chosen.get("search") == "at-once" else usual
    yield "all" if settings.modes is None else f"{settings.modes} of {len(EVERY)}"
    yield ", ".join(f"`{name}={value}`" for name, value in settings.options) or "-"


def _plain(text: str) -> str:
    """A description as markdown: quoted values as code."""
    return re.sub(r'"([\w-]+)"', r"`\1`", text).replace("|", "\\|")


def _values(field: FieldInfo) -> str:
    kinds = [
        kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)
    ]
    words = [kind for kind in (field.annotation, *kinds) if get_origin(kind) is Literal]
    if words:
        return ", ".join(f"`{word}`" for word in get_args(words[0]))
    if isinstance(kinds[0], type) and issubclass(kinds[0], StrEnum):
        return ", ".join(f"`{word}`" for word in kinds[0])
    names = {bool: "true or false", int: "integer", float: "number", Path: "folder", str: "name"}
    low, high = _bound(field, "ge"), _bound(field, "le")
    if low is not None and high is not None:
        return f"{low} to {high}"
    return ", ".join(names[kind] for kind in kinds)


def _bound(field: FieldInfo, name: str) -> Any:
    return next((getattr(limit, name) for limit in field.metadata if hasattr(limit, name)), None)


def _default(name: str, field: FieldInfo) -> str:
    if name == "cache_dir":
        return "the user's cache folder"
    value = field.default
    return "none" if value is None else f"`{str(value).lower()}`"


def commands() -> str:
    """Every verb of the command line with its arguments and options, from typer."""
    group: Any = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "Results go to stdout, progress and errors to stderr. Exit status: 0 done, 1 the work",
        "failed, 2 wrong usage, 130 interrupted. `--debug`, anywhere in the line, adds tracebacks.",
        "",
    ]
    for words, command in _verbs(group, ("anabranch",)):
        lines += [f"## {' '.join(words)}", "", *_command(words, command)]
    return "\n".join(lines)


def _verbs(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _verbs(command, (*words, name))
        else:
            yield (*words, name), command


def _command(words: tuple[str, ...], command: Any) -> Iterator[str]:
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join(
        f"{parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"
        for parameter in arguments
    )
    yield _sentence(command.help)
    yield ""
    yield "```text"
    yield " ".join([*words, "[OPTIONS]" if options else "", usage]).strip()
    yield "```"
    yield ""
    told = [(f"`{parameter.name.upper()}`", parameter.help) for parameter in arguments]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        told.append((names, _with_default(option)))
    if told:
        yield "| argument | meaning |"
        yield "|---|---|"
        for name, meaning in told:
            yield f"| {name} | {_cell(meaning)} |"
        yield ""


def _with_default(option: Any) -> str:
    shown = option.show_default
    default = shown if isinstance(shown, str) else option.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    return f"{option.help or ''}{f' Default: {default}.' if plain and default != '' else ''}"


def _sentence(text: str | None) -> str:
    return _cell(" ".join((text or "").split()))


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("<", "&lt;")


PAGES = {"options": options, "commands": commands}

if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
