"""Every error a user can see. A message has three parts: what happened, why, what to do next.

>>> print(OptionError("unknown scheduler 'fifo'", "no scheduler has this name",
...                   "choose one of: greedy, ios"))
unknown scheduler 'fifo'
  why:  no scheduler has this name
  next: choose one of: greedy, ios
"""

from __future__ import annotations


class AnabranchError(Exception):
    """The root of all errors of this package.

    `source` is the user's own source line ("model.py:42 in forward"), where one is known.
    """

    def __init__(self, what: str, why: str, next: str, source: str = "") -> None:
        super().__init__(what, why, next, source)
        self.what, self.why, self.next, self.source = what, why, next, source

    def __str__(self) -> str:
        where = f"\n  at:   {self.source}" if self.source else ""
        return f"{self.what}{where}\n  why:  {self.why}\n  next: {self.next}"


class OptionError(AnabranchError, ValueError):
    """An option, a name or a command line that does not mean anything."""


class CaptureError(AnabranchError):
    """The model could not be turned into a graph."""


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
    """A saved plan cannot be read: damaged, foreign, or from a newer version."""


class WriteError(AnabranchError, OSError):
    """A file that the operating system would not have."""


class VerifyError(AssertionError):
    """A noun breaks its own invariants: a defect of this package, never of the user's model.

    The message shows the neighbourhood of the bad place with a caret, and the pass that made it.
    """


def unwritable(path: object, failed: OSError) -> WriteError:
    """The refusal in the user's terms: not the name of our temporary file."""
    return WriteError(
        f"cannot write {path}",
        failed.strerror or str(failed),
        "check that the folder exists, your rights to it, and the free space",
    )
