"""RandWire as IOS measures it ("randwire_large"): images -> 1280 features.

Ding et al., IOS, MLSys 2021 (arXiv 2011.01302), after Xie et al., arXiv 1904.01569. First one
convolution, then four random stages of 154, 308, 616 and 1232 channels. Unlike `randwire`, nodes
have biases and no batch norm, a stage is the sum of its nodes without successor, and there is no
linear head.

IOS drew its Watts-Strogatz graphs WS(n, 4, 0.75) without a seed. The third stage, the one of the
paper's Table 1, has the paper's own edges (ws-32-4-0.75-4), stored as data: its count of 9.2e22
schedules is a fact about them. The other stages are drawn here from the same family, with seeds 2,
4 and 5: they leave the third stage the one with the most transitions, as it was there, and seed 3
would not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.randwire import Edges, RandomStage, watts_strogatz
from anabranch.models.zoo.weights import images, seeded

# size: channels of the first stage, channels before the head, image side
SIZES = {"paper": (154, 1280, 224), "tiny": (8, 32, 64)}

# A node adds up two inputs on average: keep their sum's variance where one input's was.
GAIN = 0.7

WS_32_4 = """
    0-9 0-11 0-14 0-17 0-31 1-2 1-3 1-31 2-4 2-11 2-12 2-14 2-30 3-4 3-25 4-9 4-20 4-29 5-6 5-27
    6-7 6-21 6-27 7-30 7-31 8-10 8-25 9-10 9-14 10-11 10-16 10-22 10-28 11-16 11-24 12-13 12-14
    12-15 12-16 13-14 13-22 13-26 14-23 15-29 16-21 17-26 18-19 18-20 19-22 19-27 20-22 22-25 22-30
    23-27 24-25 24-26 25-28 26-28 27-28 27-29 28-29 29-30 29-31 30-31
"""


def build(size: str) -> nn.Module:
    """The random network that IOS measures, with seeded weights."""
    channels, head, _ = SIZES[size]
    return seeded(lambda: RandWireIOS(channels, head), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][2])


def edges(wiring: str) -> Edges:
    """The text "0-6 0-7" as ((0, 6), (0, 7)): from the lower to the higher index, in order."""
    pairs = (edge.split("-") for edge in wiring.split())
    return tuple((int(a), int(b)) for a, b in pairs)


# stage: its number of nodes and its wiring
STAGES: tuple[tuple[int, Edges], ...] = (
    (16, watts_strogatz(16, seed=2)),
    (32, watts_strogatz(32, seed=4)),
    (32, edges(WS_32_4)),
    (32, watts_strogatz(32, seed=5)),
)


class RandWireIOS(nn.Module):
    """A convolution, four random stages and a 1x1 convolution, without batch norms."""

    def __init__(self, channels: int, head: int) -> None:
        super().__init__()
        self.front = nn.Conv2d(3, channels // 2, 3, stride=2, padding=1)
        self.stages = nn.Sequential()
        before = channels // 2
        for nodes, wiring in STAGES:
            stage = RandomStage(wiring, nodes, before, channels, norm=False, mean=False)
            self.stages.append(stage)
            before, channels = channels, 2 * channels
        self.tail = nn.Conv2d(before, head, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Features, (batch, channels), the mean over space."""
        x = self.tail(F.relu(self.stages(self.front(x))))
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
