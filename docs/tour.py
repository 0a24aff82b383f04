"""A walk through all nouns, on the CPU, in half a minute: run it, read it.

python docs/tour.py
"""

import torch
from torch import nn

import anabranch
from anabranch.compiler.pipeline import compile_model
from anabranch.ir.eval import eval_graph
from anabranch.ir.plan import text_plan
from anabranch.ir.schedule import text_schedule
from anabranch.ir.text import text_graph, text_tasks
from anabranch.ir.verify import verify_graph
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job


class Fork(nn.Module):
    """Two branches that a GPU could run at once, and their concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.left(x), self.right(x)], 1)


model, x = Fork().eval(), torch.randn(1, 8, 14, 14)


def stop_after(stage: str):
    """Run the pipeline up to a stage and look at its noun."""
    options = Options.read({"cache_dir": None})
    return compile_model(Job(model, (x,), {}, resolve("cpu"), options, None, Trace()), stage)


print("--- A Graph, as the model was captured: ATen operators with types and source lines\n")
captured = stop_after("capture")
print(text_graph(captured.graph))

print("--- The same after rewriting: the batch norm has gone into the convolution's weights\n")
graph = stop_after("rewrite")
verify_graph(graph, infer=True)
print(text_graph(graph))
(before,), (after,) = (eval_graph(g, [x], precision=torch.float64) for g in (captured.graph, graph))
assert torch.allclose(before, after, rtol=1e-5, atol=1e-6)

print("--- Tasks: what runs as one launch\n")
print(text_tasks(stop_after("fusion")))

print("--- A Schedule: the fastest of several, measured on this CPU\n")
choice = stop_after("schedule")
for schedule, cost in choice.candidates:
    print(f"{schedule.scheduler:12} {cost.us:8.1f} us  {cost.source}")
print()
print(text_schedule(choice.schedule))

print("--- A Plan: a place for every byte\n")
print(text_plan(stop_after("memory")))

print("--- And all of it in one call\n")
fast = anabranch.compile(model, (x,), target="cpu")
with torch.no_grad():
    assert torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5)
print(fast.explain())
