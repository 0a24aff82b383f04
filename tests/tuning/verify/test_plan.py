"""Plans are compared on inputs that the model takes; numbers that nobody can foretell are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch
from anabranch.errors import NumericsError, OptionError, WriteError
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.trace import Trace
from anabranch.tuning.verify.plan import explained_by, fresh, returned_outputs, with_states
from anabranch.tuning.verify.rounding_spread import RoundingSpread

ROWS = torch.cat([torch.randint(0, 50, (8, 1)).float(), torch.randn(8, 1)], 1)
"""A number of a row of a table, and another number."""


def looked_up(x: Tensor) -> Tensor:
    return F.embedding(x[:, 0].long(), torch.arange(100.0).reshape(50, 2)) * x[:, 1:]


def graph(text: str) -> Graph:
    return parse_graph("graph g {" + text + "}")


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (looked_up, (ROWS,)),
        (F.binary_cross_entropy, (torch.rand(5), torch.rand(5))),
        (lambda p: F.binary_cross_entropy(p * 0.5 + 0.25, p), (torch.rand(5),)),
        (torch.bernoulli, (torch.rand(5),)),
        (lambda p: torch.multinomial(p, 2).float() * p[:2], (torch.rand(5),)),
    ],
    ids=["indices", "probabilities", "of others", "bernoulli", "multinomial"],
)
def test_models_of_a_domain_compile(model: Callable[..., Tensor], args: tuple[Tensor, ...]) -> None:
    trace = Trace()
    options: dict[str, Any] = {"search": "none", "cache_dir": None, "strict": True}
    fast = anabranch.compile(model, args, target="cpu", trace=trace, **options)
    assert fast(*args).shape == model(*args).shape
    assert not [event for event in trace.events if event.kind == "fallback"]


def test_what_the_model_refuses_is_said() -> None:
    """Where nothing tells ahead what it takes."""
    trace = Trace()

    def model(p: Tensor) -> Tensor:
        return F.binary_cross_entropy(p * 1.0, torch.ones(64))

    anabranch.compile(
        model, torch.rand(64), target="cpu", trace=trace, search="none", cache_dir=None
    )
    said = [e.why for e in trace.events if e.what == "fresh inputs" and e.kind == "refused"]
    assert said and "refuses others than the example" in said[0]


def test_what_becomes_an_index_keeps_its_numbers() -> None:
    turned = graph("""
      input %x: f32[6,2]
      input %y: f32[6]
      %row: f32[6]{2} = aten.select.int(%x, 1, 0)
      %ids: i64[6] = aten._to_copy.default(%row, dtype=torch.int64)
      %z: f32[6] = aten.relu.default(%y)
      %mask: b1[6] = aten._to_copy.default(%z, dtype=torch.bool)
      return %ids, %mask
    """)
    x, y = torch.arange(12.0).reshape(6, 2), torch.randn(6)
    again, other = fresh(turned, [x, y], 1)
    assert not torch.equal(again, x) and torch.equal(again.sort(0).values, x)
    assert torch.equal(again[:, 1], again[:, 0] + 1)
    assert not torch.isin(other, y).any()


def test_probabilities_are_drawn_from_zero_to_one() -> None:
    drawing = graph("""
      input %p: f32[64]
      %b: f32[64] = aten.bernoulli.default(%p)
      return %b
    """)
    (p,) = fresh(drawing, [torch.full((64,), 0.5)], 0)
    assert p.min() >= 0 and p.max() <= 1 and p.std() > 0.1


class Changes(nn.Module):
    """Its first call is unlike all that follow, and it has no layer with a fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = (n for n in itertools.count())  # nobody can put a generator back

    def forward(self, x: Tensor) -> Tensor:
        return x * (3.0 if next(self.calls) == 0 else 2.0)


def test_a_fast_path_explains_only_models_that_have_one() -> None:
    fast = anabranch.compile(
        Changes().eval(), (torch.ones(3),), target="cpu", search="none", cache_dir=None
    )
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert not any("fast path" in event.why for event in fast.trace.events)
    assert any("differs from the model's own" in event.why for event in fast.trace.events)


def test_a_dump_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="give `dump` a folder"):
        anabranch.compile(
            torch.relu, (torch.ones(3),), target="cpu", cache_dir=None, dump=tmp_path / "file"
        )


def test_inputs_without_an_end_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(OptionError, match="nested more deeply"):
        anabranch.compile(len, (endless,), target="cpu", cache_dir=None)


def test_a_question_that_export_answers_otherwise_is_named() -> None:
    """The model is compared without gradients, and captured as if with them."""

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if torch.is_grad_enabled() else x * 3

    with pytest.warns(UserWarning, match="is_grad_enabled"), pytest.raises(NumericsError) as raised:
        anabranch.compile(
            Asks().eval(), (torch.ones(3),), target="cpu", search="none", cache_dir=None
        )
    assert "forward asks torch.is_grad_enabled() at" in str(raised.value)


def test_averages_of_squares_are_drawn_as_they_can_be() -> None:
    """Small and special numbers are sprinkled over what is drawn, but no negative ones over these
    and no zeros, for they are zero where averages are: a plan is not judged by what it makes of
    roots of such numbers, nor by what rounding leaves of a gradient divided by its own size."""
    graph = parse_graph("""
graph moments {
  input %g: f32[4096]
  state %m: f32[4096] -> %m1
  state %v: f32[4096] -> %v1
  %m1: f32[4096] = aten.add.Tensor(%m, %g)
  %v1: f32[4096] = aten.addcmul.default(%v, %g, %g, value=0.001)
  return %m1, %v1
}""")
    example = [torch.randn(4096), torch.zeros(4096), torch.zeros(4096)]
    _, m, v = fresh(graph, example, 0)
    assert (m < 0).any() and (v >= 0).all()
    assert (m == 0).any() and v.mean() > 0.5 and v.min() > 0.1, "of a later step"
    _, _, resumed = fresh(graph, [example[0], example[0] / 9, example[0].square() / 1e9], 0)
    assert resumed.min() > 1e-11 and resumed.median() < 1e-8, "as large as those that are held"


COMPLEX: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "outer product added": (lambda x, a, b: x.clone().addr_(a, b), ((5, 7), (5,), (7,))),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), ((1, 3, 6, 6), (4, 3, 3, 3))),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_results_may_be_rounded(name: str) -> None:
    """By as much as real ones; convolutions are those of the parts, as eager has them."""
    model, shapes = COMPLEX[name]
    generator = torch.Generator().manual_seed(0)
    args = tuple(torch.randn(s, dtype=torch.complex64, generator=generator) for s in shapes)
    fast = anabranch.compile(model, args, target="cpu", cache_dir=None, search="none")
    truth = model(*(tensor.to(torch.complex128) for tensor in args))
    torch.testing.assert_close(fast(*args), truth.to(torch.complex64))


@pytest.mark.parametrize(("colour", "noise"), [(1e-3, 1e-6), (3.0, 1e-4)])
def test_what_is_zero_in_truth_may_be_as_far_off_as_its_operands_round(
    colour: float, noise: float
) -> None:
    """Of an image of one colour a batch norm leaves what its mean is off by: nothing here, 4e-9 in
    eager of 0.001, and 3e-5 of the whole number 3, which no draw of roundings moves."""
    x = torch.full((2, 3, 4, 4), colour)
    norm = nn.BatchNorm2d(3, track_running_stats=False).eval()
    fast = anabranch.compile(norm, (x,), target="cpu", cache_dir=None, search="none", strict=True)
    assert float(fast(x).abs().max()) < noise > float(norm(x).detach().abs().max())


def test_what_is_zero_in_truth_is_not_whatever_the_model_has_else() -> None:
    def model(x: Tensor) -> Tensor:
        return x - x if torch.compiler.is_exporting() else x - x + 1e-3

    with pytest.raises(NumericsError, match="differs from the model's own"):
        anabranch.compile(model, (torch.randn(8),), target="cpu", cache_dir=None, search="none")


def test_rounding_is_drawn_for_what_a_call_returns_alone() -> None:
    """A step has hundreds of states beside its loss, and each would be drawn dozens of times."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.randn(8, 4)
    step = anabranch.compile_step(
        model,
        lambda model, x: model(x).square().mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        (x,),
        target="sim:h200",
        cache_dir=None,
        search="none",
        kernels="library",
    )
    count, returned = len(step.plan.tasks.outputs), returned_outputs(step.plan)
    asked = list[int]()

    class Near:
        def allowed(self, output: int) -> float:
            asked.append(output)
            return 0.5

    wider = explained_by(cast(RoundingSpread, Near()), [0.25] * count, returned, 2.0)
    (loss,) = returned
    assert asked == [loss] and count > 4
    assert wider == [1.0 if i == loss else 0.25 for i in range(count)]


def test_the_new_value_of_a_state_is_what_lies_in_its_place() -> None:
    """Not what is returned for it, which may lie elsewhere."""

    class Counts(nn.Module):
        n: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.n += x
            return x * 2

    fast = anabranch.compile(Counts().eval(), (torch.ones(3),), target="cpu", cache_dir=None)
    run = fast.entries[0].run
    assert run is not None
    (state,) = run.plan.tasks.states
    outs = list(run([torch.ones(3)], clone=True))
    run.states[state.name].fill_(7)
    outs[state.output] = torch.ones(3)
    assert with_states(run, outs)[state.output].tolist() == [7, 7, 7]


def otherwise_while_exported(x: Tensor) -> Tensor:
    x.add_(2 if torch.compiler.is_exporting() else 1)
    return torch.zeros(3)


def test_what_is_written_to_inputs_is_compared_with_what_the_model_writes() -> None:
    with pytest.raises(NumericsError, match="written to the input args_0 differs from the"):
        anabranch.compile(
            otherwise_while_exported, (torch.randn(4, 4),), target="cpu", cache_dir=None
        )
