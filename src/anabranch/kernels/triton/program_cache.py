"""Programs kept between processes, for plans that are loaded: what is written for a kernel.

    body in names of its own, variant, our own files --> cache --> Program

Every source of a saved plan is compared with what is written here for its kernel. Writing a kernel
of many taps takes 30 ms, and a network has a hundred different ones. Whoever saves a plan has
written them, and keeps that; elsewhere the first load of the plan does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from anabranch.cache import Cache, Table
from anabranch.ir.codec import nouns
from anabranch.ir.graph import Graph
from anabranch.ir.key import canonical
from anabranch.ir.task import Kernel
from anabranch.ir.text import text_graph
from anabranch.ir.variant import Variant, without_carveout
from anabranch.kernels import sources
from anabranch.kernels.triton.codegen import learn, unnamed
from anabranch.kernels.triton.program import Program

PROGRAMS: Table[Program] = Table("kernels", "program 2", nouns(Program))


def recall(cache: Cache, kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    """Learns what earlier processes wrote for these kernels. Kernels that they did not write, one
    for each text to come, are for `keep`, once all are known to be what is written here."""
    wanted: dict[tuple[Graph, Variant], Kernel] = {}
    for kernel in kernels:
        if isinstance(kernel.variant, Variant):  # else it is a library's
            same = canonical(kernel.body, content=False), without_carveout(kernel.variant)
            wanted.setdefault(same, kernel)
    ours = f"{sources.digest(*sources.PROGRAMS)} {torch.__version__}"
    missing = {
        PROGRAMS.key(ours, str(base), text_graph(body)): kernel
        for (body, base), kernel in wanted.items()
    }
    for key, program in PROGRAMS.get_many(cache, {key: key for key in missing}).items():
        kernel = missing.pop(key)
        learn(kernel.body, kernel.variant, program)
    return missing


def keep(cache: Cache, missing: Mapping[str, Kernel]) -> None:
    """Stores what was written for these."""
    written = {key: unnamed(kernel.body, kernel.variant) for key, kernel in missing.items()}
    PROGRAMS.put_many(cache, written)
