"""Plan for a GPU that is not here: which kernels it would run, how long they would take, and why.

python examples/plan_without_gpu.py

Times are recorded or estimated, and each says which.
"""

import anabranch
from anabranch.models.load import load_model

model, args = load_model("zoo:squeezenet/tiny", dtype="fp16")
plan = anabranch.compile(model, args, target="sim:h200", search="none")

print(f"{plan}\n")
print(plan.explain())
print(plan.explain(task="convolution_1"))  # one kernel, its source, and why others lost
print(plan.memory())  # before a GPU is asked for it

# Such a plan has no results: there is nothing here that could compute them.
try:
    plan(*args)
except anabranch.TargetError as refused:
    print(f"\n{refused}")
