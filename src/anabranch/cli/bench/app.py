"""The verbs of `anabranch bench`; models without a verb are timed beside eager and inductor.

anabranch bench zoo:resnet50              as  anabranch bench speed zoo:resnet50
anabranch bench schedulers zoo:resnet50
anabranch bench zoo:resnet50 --training   as  anabranch bench training zoo:resnet50
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from anabranch.cli.bench import (
    ablate,
    batches,
    delays,
    schedulers,
    speed,
    summary,
    systems,
    training,
)
from anabranch.errors import OptionError

USUAL, TRAINING = "speed", "training"
HELP = ("-h", "--help")


class Verbs(TyperGroup):
    """Verbs of which one is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words with the usual verb before them, unless they begin with one. OptionError for a
        word that is neither a verb nor a model."""
        if args and args[0] not in (*self.commands, *HELP):
            self._check(args[0])
            args = with_verb(args)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def _check(self, word: str) -> None:
        if not word.startswith("-") and word.isidentifier():
            near = difflib.get_close_matches(word, self.commands, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise OptionError(
                f"bench has no verb {word!r}",
                f"its verbs are {', '.join(self.commands)}; models are zoo:{word} or alike",
                f"{hint}anabranch bench --help says what each does",
            )


def with_verb(words: Sequence[str]) -> list[str]:
    """Words without a verb, behind the one that they mean.

    >>> with_verb(["zoo:resnet50", "--training", "--batch", "8"])
    ['training', 'zoo:resnet50', '--batch', '8']
    """
    flag = f"--{TRAINING}"
    verb = TRAINING if flag in words else USUAL
    return [verb, *(word for word in words if word != flag)]


app = typer.Typer(
    cls=Verbs,
    help="Compare times. Without a verb (speed): those of MODELS beside eager and inductor; with "
    "--training: of whole training steps.",
    no_args_is_help=True,
)
app.command("speed")(speed.run)
app.command("systems")(systems.run)
app.command("ablate")(ablate.run)
app.command("schedulers")(schedulers.run)
app.command("batches")(batches.run)
app.command("delays")(delays.run)
app.command("training")(training.run)
app.command("summary")(summary.run)
