"""Compile a network for images and write the report: timelines, graph, kernels and candidates.

python examples/vision_report.py

The network is torchvision's SqueezeNet where torchvision can be imported beside the torch at hand
(its wheels are built for one build of torch each), and a small ResNet of Anabranch's zoo elsewhere.
"""

from pathlib import Path

import torch

import anabranch
from anabranch.errors import AnabranchError
from anabranch.models.load import load_model

try:
    name = "torchvision:squeezenet1_1"
    model, (x,) = load_model(name)
except AnabranchError as missing:
    print(f"{missing}\n")
    name = "zoo:resnet50/tiny"
    model, (x,) = load_model(name)

device = "cuda" if torch.cuda.is_available() else "cpu"
model, x = model.to(device), x.to(device)
print(f"compiling {name} for an input of {tuple(x.shape)}")
fast = anabranch.compile(model, (x,))
with torch.no_grad():
    torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)

path = Path("report.html")
fast.report(path)
print(f"{fast}\nwrote {path}, {path.stat().st_size / 1e3:.0f} kB: open it in a browser")
