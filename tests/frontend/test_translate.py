"""FX nodes as nodes of ours, where torch's own account of them is not to be trusted."""

from __future__ import annotations

import torch
from torch import fx

from anabranch.frontend.translate import Translation


def test_last_states_have_the_shapes_of_the_first_ones_whatever_a_fake_kernel_says() -> None:
    graph = fx.Graph()
    shapes: dict[str, tuple[int, ...]] = {"x": (3, 4, 6), "h": (1, 3, 3), "c": (1, 3, 5)}
    shapes |= {"ih": (20, 6), "hh": (20, 3), "b1": (20,), "b2": (20,), "hr": (3, 5)}
    given = {name: graph.placeholder(name) for name in shapes}
    weights = [given[name] for name in ("ih", "hh", "b1", "b2", "hr")]
    args = (given["x"], [given["h"], given["c"]], weights, True, 1, 0.0, False, False, True)
    node = graph.call_function(torch.ops.aten.lstm.input, args)
    wrong = torch.empty(1, 1, 3, 3, device="meta").expand(1, 3, 3, 3)
    node.meta["val"] = (
        torch.empty(4, 3, 3, device="meta").transpose(0, 1),
        wrong,
        torch.empty(1, 3, 5, device="meta"),
    )
    made = Translation({n.name for n in graph.nodes}, torch.device("cpu"))
    for name, shape in shapes.items():
        made.bind_input(given[name], torch.empty(shape, device="meta"))
    made.add(node)
    (lstm,) = made.finish("one", []).nodes
    assert [type.text for type in lstm.types] == [
        "f32[3,4,3]{3,9,1}",
        "f32[1,3,3]",
        "f32[1,3,5]",
    ]
