"""A while in which Python does not look for garbage: for what must not be interrupted, or would be
interrupted in vain.

    capturing a CUDA graph    a graph that nobody holds any more is freed when it is found, which
                              CUDA forbids while another is captured: the process aborts
    reading and rewriting     makes a hundred thousand nodes that all live on; looking through them
                              again and again took a fifth of the time; of texts of kernels, ways
                              to cut and placings, a third
    loading what was read     comes behind them: the first thing to be interrupted, by a look at
                              all that lives, for a fifth of a second

Objects that free memory of a device by being found (exported programs, plans that were timed) must
not be made within it in numbers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it there is no collection; one that was switched off before stays so."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Within it a process that is the package's own imports what it needs: there is no collection,
    and later ones look at nothing that is there in the end, which stays as long as the process."""
    with uncollected():
        yield
        gc.freeze()
