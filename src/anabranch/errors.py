"""Every error a user can see. A message has three parts: what happened, why, what to do next.

>>> print(OptionError("unknown scheduler 'fifo'", "no scheduler has this name",
...                   "choose one of: greedy, ios"))
unknown scheduler 'fifo'
  why:  no scheduler has this name
  next: choose one of: greedy, ios
"""

from __future__ import annotations

import re

UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal obeys, or that change how a line is read, but newlines and tabs."""
MAX_TOLD = 400
MAX_LISTED = 4000


def shown(text: str) -> str:
    """The text with its control characters escaped: names in messages may come from anybody.

    >>> print(shown("a\x1b[2Jb"))
    a\\x1b[2Jb
    """
    return UNSHOWN.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


class AnabranchError(Exception):
    """The root of all errors of this package.

    `source` is the user's own source line ("model.py:42 in forward"), where one is known.
    """

    def __init__(self, what: str, why: str, next: str, source: str = "") -> None:
        what, why, next, source = map(shown, (what, why, next, source))
        super().__init__(what, why, next, source)
        self.what, self.why, self.next, self.source = what, why, next, source

    def __str__(self) -> str:
        where = f"\n  at:   {self.source}" if self.source else ""
        return f"{self.what}{where}\n  why:  {self.why}\n  next: {self.next}"


class OptionError(AnabranchError, ValueError):
    """An option, a name or a command line that does not mean anything."""


class MemoryLimitError(OptionError):
    """A plan takes more than `memory_limit` leaves. `takes`: bytes of its values; `may`: what they
    may take; `least`: the fewest bytes of a plan that was made so far, weights and inputs too;
    `counted`: bytes of values that live at once in its graph, None where nobody counted; `again`:
    what it computes again."""

    def __init__(
        self,
        what: str,
        why: str,
        next: str,
        takes: int = 0,
        may: int = 0,
        least: int = 0,
        counted: int | None = None,
        again: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, why, next)
        self.takes, self.may, self.least = takes, may, least
        self.counted, self.again = counted, again


class CaptureError(AnabranchError):
    """The model could not be turned into a graph."""


class ModelFailsError(CaptureError):
    """The model itself raises an error when it is called with the example."""


class DataDependentError(CaptureError):
    """The graph of the model depends on the values of a tensor: the model can be cut there."""


class WeightsError(AnabranchError, ValueError):
    """Weights that do not fit a plan, or that it was not made for."""


class InputError(AnabranchError, TypeError):
    """A compiled model was called with inputs it was not compiled for."""


class TargetError(AnabranchError):
    """The machine lacks what was asked of it, or failed while running."""


class ScheduleError(AnabranchError):
    """No legal schedule exists or could be found under the given limits."""


class NumericsError(AnabranchError):
    """A result differs from the reference by more than its dtype allows."""


class ArtifactError(AnabranchError):
    """A saved plan cannot be read: damaged, foreign, from a newer version, or more than a plan may
    say. What it repeats of the file is one line, and short."""

    def __init__(self, what: str, why: str, next: str, source: str = "") -> None:
        super().__init__(*map(_line, (what, why, next, source)))


class OnnxError(AnabranchError, ValueError):
    """A file of ONNX that cannot be read, that is not what it says, or that asks for more than is
    supported. What it repeats of the file is one line."""

    def __init__(self, what: str, why: str, next: str, source: str = "") -> None:
        told = _line(why, MAX_LISTED)  # all operators that are not supported
        super().__init__(_line(what), told, _line(next), _line(source))


class WorkerError(AnabranchError):
    """Workers that could not be started, or a job that they could not do."""


class WriteError(AnabranchError, OSError):
    """A file that the operating system would not have."""


class VerifyError(AssertionError):
    """A noun breaks its own invariants: a defect of this package, never of the user's model.

    The message shows the neighbourhood of the bad place with a caret, and the pass that made it.
    """


def _line(text: str, most: int = MAX_TOLD) -> str:
    line = " ".join(text.splitlines())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def unwritable(path: object, failed: OSError) -> WriteError:
    """The refusal in the user's terms: not the name of our temporary file."""
    return WriteError(
        f"cannot write {path}",
        failed.strerror or str(failed),
        "check that the folder exists, your rights to it, and the free space",
    )
