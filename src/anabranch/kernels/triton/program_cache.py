"""Programs kept between processes, for plans that are loaded: what is written for a kernel.

    body in names of its own, variant, our own files --> cache --> Program

Every source of a saved plan is compared with what is written here for its kernel. Writing a kernel
of many taps takes 30 ms, and a network has a hundred different ones. Whoever saves a plan has
written them, and keeps that; elsewhere the first load of the plan does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress

import torch

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.key import canonical
from anabranch.ir.task import Kernel
from anabranch.ir.text import text_graph
from anabranch.kernels import sources
from anabranch.kernels.triton.l1_carveout import apart
from anabranch.kernels.triton.program import facts_of, program_of
from anabranch.kernels.triton.write import learn, unnamed

SCHEME = "program 1"


def recall(cache: Cache, kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    """Learns what earlier processes wrote for these kernels. What they did not, one kernel for each
    text to come, is for `keep`, once all are known to be what is written here."""
    wanted: dict[tuple[Graph, str], Kernel] = {}
    for kernel in kernels:
        if kernel.provider == "triton":
            same = canonical(kernel.body, content=False), apart(kernel.variant)[0]
            wanted.setdefault(same, kernel)
    begin = f"{SCHEME}\n{sources.digest(*sources.PROGRAMS)} {torch.__version__}\n"
    keys = {f"{begin}{base}\n{text_graph(body)}": k for (body, base), k in wanted.items()}
    missing = dict(keys)
    for key, text in cache.get_many("kernels", keys).items():
        with suppress(ValueError, LookupError, TypeError):
            learn(keys[key].body, keys[key].variant, program_of(json.loads(text)))
            del missing[key]
    return missing


def keep(cache: Cache, missing: Mapping[str, Kernel]) -> None:
    """Stores what was written for these."""
    if not missing:
        return
    items = {
        key: json.dumps(facts_of(unnamed(kernel.body, kernel.variant)))
        for key, kernel in missing.items()
    }
    cache.put_many("kernels", items)
