"""Networks that fail one by one are warnings, as long as one of them does not.

    with failing.told("zoo:vit fp16 batch 1"):   AnabranchError -> a warning; OptionError is raised
        ...
    failing.check(done)                          raises the last failure if nothing was done

Whoever records many networks uses it, in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.errors import AnabranchError, OptionError
from anabranch.trace import Trace


class FailingNetworks:
    """What became of networks that are recorded one after another; `trace` hears who failed."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._last: AnabranchError | None = None

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Go on after the block if the network fails in it. OptionError: no other would fare
        better."""
        try:
            yield
        except OptionError:
            raise
        except AnabranchError as error:
            self._last = error
            self._trace.add("warning", "record", what, str(error))

    def check(self, done: bool) -> None:
        """Raise the last failure unless something was done."""
        if self._last is not None and not done:
            raise self._last
