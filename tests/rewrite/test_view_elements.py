"""By numbers: what a chain of views and copies shows is what the cuts of the source show."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.ops import make_node
from anabranch.ir.types import TensorType
from anabranch.rewrite.view_elements import Shown, ViewSlices


def shown(source: torch.Tensor, cuts: ViewSlices) -> torch.Tensor:
    found = source.reshape(cuts.shape)
    for dim, (begin, size) in enumerate(cuts.slices):
        found = found.narrow(dim, begin, size)
    return found.permute(cuts.order)


@st.composite
def moves(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[Node, str]]]:
    """A shape, and a chain of moves of a value of it."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4)))
    table = {"v0": TensorType(shape, torch.float32)}
    chain: list[tuple[Node, str]] = []
    for i in range(draw(st.integers(1, 7))):
        name, own = f"v{i}", table[f"v{i}"].shape
        kinds = ["reshape.default", "clone.default", "unsqueeze.default"]
        if own:
            kinds += ["permute.default", "transpose.int", "slice.Tensor", "select.int"]
            kinds += ["split.Tensor", "unbind.int", "squeeze.dim"]
        kind = draw(st.sampled_from(kinds))
        dim = draw(st.integers(-len(own), len(own) - 1)) if own else 0
        size = own[dim] if own else 1
        args: dict[str, tuple[Arg, ...]] = {
            "clone": (),
            "unsqueeze": (draw(st.integers(0, len(own))),),
            "permute": (tuple(draw(st.permutations(range(len(own))))),),
            "transpose": (dim, draw(st.integers(0, max(0, len(own) - 1)))),
            "slice": (dim, draw(st.integers(0, size - 1)), size, draw(st.integers(1, 2))),
            "select": (dim, draw(st.integers(-size, size - 1))),
            "split": (max(1, size // 2), dim),
            "unbind": (dim,),
            "squeeze": (dim,),
            "reshape": (_other(draw, math.prod(own)),),
        }
        given_ = args[kind.partition(".")[0]]
        node = make_node(f"v{i + 1}", f"aten.{kind}", (Ref(name), *given_), table)
        result = draw(st.sampled_from(node.results))
        table[f"v{i + 1}"] = node.types[node.results.index(result)]
        chain.append((node, result))
    return shape, chain


def _other(draw: st.DrawFn, numel: int) -> tuple[int, ...]:
    shape: list[int] = []
    while numel > 1 and len(shape) < 4:
        shape.append(draw(st.sampled_from([n for n in range(1, numel + 1) if not numel % n])))
        numel //= shape[-1]
    return (*shape, numel)


@given(moves())
@settings(max_examples=60, deadline=None)
def test_the_source_cut_is_what_the_moves_show(
    drawn: tuple[tuple[int, ...], list[tuple[Node, str]]],
) -> None:
    shape, chain = drawn
    source = torch.arange(math.prod(shape)).reshape(shape)
    value, place = source, Shown.whole(shape)
    for node, result in chain:
        held = {node.uses[0]: value}
        value = ops.call(node, held.__getitem__, torch.device("cpu"))[node.results.index(result)]
        found = place.of(node, result)
        if found is None:
            return
        place = found
        assert place.shape == tuple(value.shape)
    cuts = place.cuts(source.numel())
    if cuts is not None:
        assert torch.equal(shown(source, cuts).reshape(value.shape), value)
    elif not any(len(axis) > 1 for axis in place.axes):
        # Every other element is no slice of a cut; nor need be what is sliced and shaped anew then.
        steps = [step for node, _ in chain for step in node.args[4:] if node.op.endswith("Tensor")]
        shaped = any("reshape" in node.op for node, _ in chain)
        assert any(step != 1 for step in steps) or (shaped and value.numel() < source.numel())


def test_what_a_reshape_loses_another_one_finds() -> None:
    """Heads of several images, as one axis and apart again."""
    place: Shown | None = Shown.whole((2, 5, 3, 8))  # images, tokens, of three, 2 heads of 4
    table = {"y": TensorType((2, 5, 3, 8), torch.float32)}
    chain = [
        ("permute.default", ((2, 1, 0, 3),)),
        ("clone.default", ()),
        ("select.int", (0, 1)),
        ("reshape.default", ((5, 4, 4),)),
        ("transpose.int", (0, 1)),
        ("reshape.default", ((2, 2, 5, 4),)),
    ]
    last = "y"
    for i, (kind, args) in enumerate(chain):
        node = make_node(f"v{i}", f"aten.{kind}", (Ref(last), *args), table)
        last, table[node.name] = node.name, node.type
        assert place is not None
        place = place.of(node, node.name)
    assert place == Shown((((2, 120),), ((2, 4),), ((5, 24),), ((4, 1),)), 8)
    cuts = place.cuts(240)
    assert cuts == ViewSlices((2, 5, 6, 4), ((0, 2), (0, 5), (2, 2), (0, 4)), (0, 2, 1, 3))
