"""Drawn models whose generated kernels run in Triton's interpreter: what a plan for a GPU that is
not here computes, kernel by kernel, and not only what its bodies say.

    python -m tests.fuzz.interpreted 1000 300      300 graphs from seed 1000 on, a line for each
                                                   that is not equal, then how many kernels ran

Tasks of a library's kernels are evaluated by torch, in the types that the model has.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.kernels.triton.interpreter import run
from torch import Tensor

from anabranch.fuzz import campaign, script_prelude
from anabranch.fuzz.trial import DRAWN, TrialSetting
from anabranch.ir.eval import eval_graph, run_node
from anabranch.ir.graph import Graph, types
from anabranch.ir.plan import Plan
from anabranch.ir.task import Task
from anabranch.kernels.triton.codegen import program
from anabranch.trace import Trace

CPU = torch.device("cpu")
OPTIONS = {"scheduler": DRAWN, "check": 1, "budget": 0.01, "cache_dir": None, "search": "none"}
SETTING = TrialSetting("sim:h200", torch.float32, OPTIONS)


@contextmanager
def kernels_interpreted() -> Iterator[Counter[str]]:
    """Trials of simulated targets run the generated kernels meanwhile; gives how many ran, by the
    first word of their variants."""
    ran: Counter[str] = Counter()

    def evaluated(compiled: Any, given: Sequence[Tensor]) -> list[Tensor]:
        return outputs(compiled, given, ran)

    with mock.patch.object(script_prelude, "_evaluated", evaluated):
        yield ran


def outputs(compiled: Any, given: Sequence[Tensor], ran: Counter[str]) -> list[Tensor]:
    """The plan's outputs for these inputs, in the order of the signature."""
    plan = compiled.entries[-1].plan
    values = results(plan, given, ran)
    return [values[leaf.ref.name] for leaf in plan.signature.outputs]


def results(plan: Plan, given: Sequence[Tensor], ran: Counter[str]) -> dict[str, Tensor]:
    """The plan's outputs for these inputs, states among both, by name."""
    tasks = plan.tasks
    values = dict(zip((value.name for value in tasks.inputs), given, strict=True))
    values |= {c.name: c.value for c in tasks.constants if c.value is not None}
    lazy = {name: n for n in (*tasks.aliases, *tasks.elided_concats) for name in n.results}

    def value(name: str) -> Tensor:
        if name not in values:
            node = lazy[name]
            for source in node.uses:
                value(source)
            values.update(zip(node.results, run_node(node, values, CPU), strict=True))
        found: Tensor = values[name]
        return found

    for task in tasks.tasks:
        body = task.body if task.kernel is None else task.kernel.body
        read = {declared.name: value(declared.name) for declared in body.inputs}
        values.update(zip(task.writes, _task(task, body, read, ran), strict=True))
    return {ref.name: value(ref.name) for ref in tasks.outputs}


def _task(
    task: Task, body: Graph, read: Mapping[str, Tensor], ran: Counter[str]
) -> Sequence[Tensor]:
    if task.kernel is None or task.kernel.provider != "triton":
        return eval_graph(body, list(read.values()), CPU)
    table = types(body)
    values = {i.name: _laid_out(read[i.name], i.type.shape, i.type.strides) for i in body.inputs}
    values |= {c.name: c.value for c in body.constants if c.value is not None}
    wanted = {ref.name: table[ref.name] for ref in body.outputs}
    written = program(body, task.kernel.variant)
    ran[str(task.kernel.variant).partition(":")[0]] += 1
    made = run(written, values, wanted, frozenset(read), task.overwrites)
    return [made[ref.name] for ref in body.outputs]


def _laid_out(tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The tensor in the strides that the kernel was written for."""
    if tensor.stride() == tuple(strides):
        return tensor
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    made = torch.empty(max(reach, 0), dtype=tensor.dtype).as_strided(tuple(shape), tuple(strides))
    moving = tuple(slice(None if stride else 1) for stride in strides)
    made[moving].copy_(tensor[moving])
    return made


def main(first: int, graphs: int, folder: Path) -> int:
    """Ends with 1 if any graph was not equal, or was refused."""
    with kernels_interpreted() as ran:
        tally = campaign.run(first, graphs, SETTING, Trace(), folder)
    for failure in tally.failures:
        print(failure["seed"], failure["status"], failure["details"][0].strip()[-300:])
        print(failure.get("shrunk", ""))
    print(dict(tally.counts), dict(ran))
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path("fuzz")))
