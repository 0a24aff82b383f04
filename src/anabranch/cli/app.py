"""The app: its verbs, and how a run of it ends.

    main(["compile", "zoo:resnet50"])   0 done, 1 the work failed, 2 wrong usage, 130 interrupted

Every failure is printed as what happened, why, and what to do next; `--debug`, anywhere in the
line, adds the traceback.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import anabranch
from anabranch.cli import (
    bench,
    buckets,
    cache,
    compile,
    discover,
    doctor,
    explain,
    fuzz,
    precompile,
    record,
    reproduce,
    screen,
    space,
)
from anabranch.errors import AnabranchError, OptionError

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="anabranch",
    help="Compile PyTorch models to one multi-stream CUDA graph each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile.run)
app.add_typer(bench.app, name="bench")
app.command("reproduce")(reproduce.run)
app.command("explain")(explain.run)
app.command("space")(space.run)
app.command("precompile")(precompile.run)
app.command("buckets")(buckets.run)
app.command("record")(record.run)
app.command("discover")(discover.run)
app.command("fuzz")(fuzz.run)
app.command("doctor")(doctor.run)
app.add_typer(cache.app, name="cache")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"anabranch {anabranch.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks of errors.")] = False,
) -> None:
    """What goes before the verb."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv's by default) and return its exit status."""
    arguments = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in arguments
    events = logging.getLogger("anabranch")  # `watch` shows them; without a handler so does Python
    if not events.handlers:
        events.addHandler(logging.NullHandler())
    arguments = [word for word in arguments if word != "--debug"]
    try:
        with warnings.catch_warnings():  # of a model: `watch` shows these, too
            warnings.filterwarnings("ignore", category=UserWarning, module=r"anabranch\.frontend")
            status = _run(arguments)
        if status == INTERRUPTED:  # some versions of the parser catch Ctrl-C and say only this
            raise KeyboardInterrupt
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        screen.complain("interrupted")
        return INTERRUPTED
    except AnabranchError as error:
        if debug:
            traceback.print_exc()
        screen.complain(f"error: {error}")
        return USAGE if isinstance(error, OptionError) else FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        screen.complain(f"error: {_unforeseen(error)}")
        return FAILED


def _run(words: list[str]) -> int:
    try:
        status = _command().main(args=words, prog_name="anabranch", standalone_mode=False)
    except Exception as error:
        # Errors of the parser know how to show themselves; their class moves between versions.
        if not (hasattr(error, "show") and hasattr(error, "exit_code")):
            raise
        error.show()
        return USAGE
    return status if isinstance(status, int) else DONE


@functools.cache
def _command() -> Any:
    """Made of the annotations of all verbs, which takes a tenth of a second."""
    return typer.main.get_command(app)


def _unforeseen(error: Exception) -> AnabranchError:
    """A failure nobody translated: a disk that is full, or a defect of ours."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return AnabranchError(
            f"{place}{error.strerror or text}",
            "the operating system refused",
            "check the path, your rights to it, and the free space",
        )
    return AnabranchError(
        f"{type(error).__name__}: {text}",
        "this failure was not foreseen",
        "run the command again with --debug, and report what it prints",
    )
