"""RandWire, three random stages: images -> 1000 logits. Xie et al., arXiv 1904.01569.

The small regime of the paper: two convolutions, then three stages, each wired by a Watts-Strogatz
graph WS(32, 4, 0.75) from networkx with seeds 1, 2, 3, its edges directed from the lower to the
higher index. A node adds up its inputs, then ReLU, depthwise 3x3, pointwise, batch norm. Nodes
without predecessor read the stage's input and halve the image; a stage's output is the mean of the
nodes without successor.

          +--> 0 --+--> 2 --+
    x --> |        |        +--> mean -->
          +--> 1 --+--> 3 --+
"""

from functools import reduce

import networkx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

Edges = tuple[tuple[int, int], ...]

# size: channels of the first stage, channels before the head, nodes per stage, classes, image side
SIZES = {"paper": (78, 1280, 32, 1000, 224), "tiny": (8, 32, 32, 10, 64)}

SEEDS = (1, 2, 3)

# A node adds up two inputs on average: keep their sum's variance where one input's was.
GAIN = 0.8


def build(size: str) -> nn.Module:
    """The small regime of Xie et al., three stages of fixed wiring, with seeded weights."""
    channels, head, nodes, classes, _ = SIZES[size]
    return seeded(lambda: RandWire(channels, head, nodes, classes), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][4])


def watts_strogatz(nodes: int, seed: int) -> Edges:
    """The edges of one stage, each from the lower to the higher index, in order."""
    graph = networkx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=seed)
    return tuple(sorted((min(edge), max(edge)) for edge in graph.edges))


class RandWire(nn.Module):
    """Two convolutions, three random stages, a 1x1 convolution and a linear classifier."""

    def __init__(self, channels: int, head: int, nodes: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels // 2, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels // 2)
        self.conv2 = RandomNode(channels // 2, channels, stride=2)
        self.stages = nn.Sequential()
        before = channels
        for seed in SEEDS:
            edges = watts_strogatz(nodes, seed)
            self.stages.append(RandomStage(edges, nodes, before, channels))
            before, channels = channels, 2 * channels
        self.conv3 = nn.Conv2d(before, head, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(head)
        self.fc = nn.Linear(head, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        x = self.stages(self.conv2(self.bn1(self.conv1(x))))
        x = F.relu(self.bn3(self.conv3(F.relu(x))))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        x = self.fc(x)
        return x


class RandomStage(nn.Module):
    """Nodes wired by a DAG given as edges from lower to higher index."""

    def __init__(
        self,
        edges: Edges,
        nodes: int,
        before: int,
        channels: int,
        norm: bool = True,
        mean: bool = True,
    ) -> None:
        super().__init__()
        self.sources = [tuple(a for a, b in edges if b == node) for node in range(nodes)]
        with_successor = {a for a, _ in edges}
        self.sinks = [node for node in range(nodes) if node not in with_successor]
        self.mean = mean
        self.nodes = nn.ModuleList(
            RandomNode(channels if sources else before, channels, 1 if sources else 2, norm)
            for sources in self.sources
        )

    def forward(self, x: Tensor) -> Tensor:
        """The mean or the sum of all nodes that no other reads."""
        outputs: list[Tensor] = []
        for node, sources in zip(self.nodes, self.sources, strict=True):
            outputs.append(node(_add([outputs[i] for i in sources] or [x])))
        total = _add([outputs[i] for i in self.sinks])
        return total / len(self.sinks) if self.mean else total


class RandomNode(nn.Module):
    """ReLU, depthwise 3x3, pointwise, and batch norm where `norm` says so (biases where not)."""

    def __init__(self, channels: int, out: int, stride: int, norm: bool = True) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            channels, channels, 3, stride, padding=1, groups=channels, bias=not norm
        )
        self.pointwise = nn.Conv2d(channels, out, 1, bias=not norm)
        self.bn = nn.BatchNorm2d(out) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        """The separable convolution of the rectified sum of inputs."""
        x = self.pointwise(self.depthwise(F.relu(x)))
        return x if self.bn is None else self.bn(x)


def _add(tensors: list[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)
