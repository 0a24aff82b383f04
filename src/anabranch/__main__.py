"""The command `anabranch`, and `python -m anabranch`, installed or not.

    ^C   while modules are imported     interrupted, exit status 130
    ^C   afterwards                     as the command says (`cli`)

Importing takes seconds, in which there is nothing yet that could be left half done.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Run the command line and return its exit status."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:  # else somebody ignores it, as a shell does for what runs in the background
        signal.signal(signal.SIGINT, _leave)
    from anabranch.ir.gc_pause import importing  # not before Ctrl-C is heard

    with importing():
        from anabranch import cli

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def _leave(signum: int, frame: FrameType | None) -> None:
    """At once: what is raised while a module is imported may be taken for a fault of it."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
