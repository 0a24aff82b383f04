"""Schedule one graph as IOS, Nimble, Opara and others do, on the same kernels, and compare.

python examples/compare_schedulers.py

Without a GPU this plans for the recorded H200, so times are predicted; `anabranch bench schedulers
MODEL` measures the same on a GPU.
"""

import torch

import anabranch
from anabranch.models.load import load_model

TARGET = "cuda" if torch.cuda.is_available() else "sim:h200"
SCHEDULERS = ("sequential", "wavefront", "nimble", "opara-paper", "ios", "best")

model, args = load_model("zoo:squeezenet/tiny", dtype="fp16", device="cpu")
print(f"{'scheduler':12} {'us':>8}  {'source':10} streams  waits")
times = {}
for name in SCHEDULERS:
    plan = anabranch.compile(
        model, args, target=TARGET, scheduler=name, search="none", kernels="library"
    )
    facts = plan.known
    times[name] = facts["latency_ms"] * 1e3
    row = next(row for row in facts["schedules"] if row["name"] == facts["scheduler"])
    print(
        f"{name:12} {times[name]:8.2f}  {facts['latency_source']:10} "
        f"{row['streams']:7}  {row['waits']:5}"
    )
assert times["best"] <= min(times.values()) * 1.01
