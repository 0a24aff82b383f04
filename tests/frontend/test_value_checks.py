"""Checks that a model makes of values: a plan raises what eager raises, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import anabranch
from anabranch.errors import ArtifactError
from anabranch.frontend.from_torch import capture
from anabranch.frontend.padding_proof import padding_proof

LinAlgError: Any = vars(torch.linalg)["LinAlgError"]
INV: Callable[[Tensor], Tensor] = torch.linalg.inv
EYE, ZERO = torch.eye(3), torch.zeros(3, 3)
OPTIONS: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}


def asserts(x: Tensor) -> Tensor:
    torch._assert_async((x >= 0).all(), "negative numbers")
    return x + 1


def checks(x: Tensor) -> Tensor:
    torch._check((x.sum().item() + 1) * 2 > 3)  # type: ignore[no-untyped-call]
    torch._check(x.long().max().item() % 3 == 1)  # type: ignore[no-untyped-call]
    return x + 1


CASES: dict[str, tuple[Callable[[Tensor], Any], Tensor, Tensor]] = {
    "inv": (INV, EYE, ZERO),
    "inv, batched": (INV, torch.stack([EYE, EYE]), torch.stack([EYE, ZERO])),
    "solve": (lambda x: torch.linalg.solve(x, torch.ones(3)) + 1, EYE, ZERO),
    "cholesky": (torch.linalg.cholesky, EYE, -EYE),
    "lu_factor": (torch.linalg.lu_factor, EYE, ZERO),
    "assert": (asserts, EYE, -EYE),
    "check": (checks, EYE, ZERO),
    "check of a whole number": (checks, EYE, EYE * 3),
    "one_hot, too large": (lambda x: F.one_hot(x, 4), torch.tensor([1, 3]), torch.tensor([1, 4])),
    "one_hot, negative": (lambda x: F.one_hot(x, 4), torch.tensor([1, 3]), torch.tensor([-1, 4])),
}


def said(model: Callable[..., Any], x: Tensor) -> tuple[type[Exception], str]:
    with pytest.raises(RuntimeError) as raised:
        model(x)
    return raised.type, str(raised.value)


@pytest.fixture(params=CASES)
def case(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Callable[[Tensor], Any], Tensor, Tensor]]:
    if str(request.param).startswith("check") and torch.__version__ < "2.12":
        pytest.skip("torch.export 2.11 fails of a check of a number that it does not know")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is warned of, for nothing is left out
        yield CASES[request.param]


def test_a_plan_raises_where_eager_does(
    case: tuple[Callable[[Tensor], Any], Tensor, Tensor],
) -> None:
    model, good, bad = case
    fast = anabranch.compile(model, (good,), **OPTIONS)
    kind, text = said(model, bad)
    also, told = said(fast, bad)
    assert also is kind
    assert text in told or "a check of the model fails" in told
    made, wanted = fast(good), model(good)  # it goes on, for what is right
    for one, other in zip(tree_leaves(made), tree_leaves(wanted), strict=True):
        assert torch.equal(one, other)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Buffer(torch.zeros(3, 3))

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        inverse = INV(x)
        out.copy_(inverse)
        self.seen.add_(1)
        return inverse @ x


def test_inputs_are_not_written_to_where_a_check_fails_and_states_are_told_of() -> None:
    fast, out = anabranch.compile(Writes().eval(), (EYE, ZERO.clone()), **OPTIONS), torch.ones(3, 3)
    with pytest.raises(LinAlgError) as raised:
        fast(ZERO, out)
    assert torch.equal(out, torch.ones(3, 3))
    line, written = raised.value.__notes__
    assert "test_value_checks.py" in line and "forward" in line
    assert "reset_state()" in written


def test_an_info_that_is_asked_for_raises_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = anabranch.compile(torch.linalg.cholesky_ex, (EYE,), **OPTIONS)
    assert fast(-EYE).info == 1


def test_a_check_that_nobody_knows_how_to_make_is_warned_of() -> None:
    def model(x: Tensor) -> Tensor:
        torch._check(x.sum().item() / 7 > 0)  # type: ignore[no-untyped-call]
        return x + 1

    class Divides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x)

    with pytest.warns(
        UserWarning, match=r"the check \(test_value_checks.py:\d+ in forward\) raises"
    ):
        anabranch.compile(Divides().eval(), (EYE,), **OPTIONS)


@pytest.mark.parametrize("name", ["inv", "inv, batched", "one_hot, too large"])
@pytest.mark.parametrize("grad", [False, True])
def test_torch_compile_raises_as_eager_does(name: str, grad: bool) -> None:
    model, good, bad = CASES[name]
    torch._dynamo.reset()
    options: Any = {"cache_dir": None}
    fast = torch.compile(model, backend="anabranch", options=options)
    with torch.set_grad_enabled(grad):
        if grad and good.is_floating_point():
            good, bad = good.clone().requires_grad_(), bad.clone().requires_grad_()
        assert torch.equal(fast(good), model(good))
        kind, text = said(model, bad)
        also, told = said(fast, bad)
    assert also is kind and text in told


class Solves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = INV(x) @ self.layer(x)
        return made


def test_weights_are_weights_also_where_torch_compile_orders_checks() -> None:
    """AOTAutograd puts tokens before all inputs of a graph that checks."""
    torch._dynamo.reset()
    model = Solves().eval()
    options: Any = {"cache_dir": None, "search": "none"}
    fast: Any = torch.compile(model, backend="anabranch", options=options, dynamic=True)
    with torch.no_grad():
        anabranch.warm(fast, [(torch.stack([EYE] * n),) for n in (2, 3)])
    for grad in (False, True, True):
        x = torch.randn(2, 3, 3) + 3 * EYE
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(fast(x), model(x))
            if grad:
                mine, own = (
                    torch.autograd.grad(f(x).sum(), model.layer.weight) for f in (fast, model)
                )
                torch.testing.assert_close(mine, own)
        with torch.no_grad():
            model.layer.weight.mul_(2)


class Cut(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        classes = F.one_hot(i, 4)
        if x.sum().item() > 0:
            x = x + 1
        return INV(x) @ classes.mT[:3].float()


def test_plans_of_a_model_that_is_cut_check_too() -> None:
    model = Cut().eval()
    fast = anabranch.compile(model, (EYE, torch.tensor([1, 2, 3])), **OPTIONS)
    with pytest.raises(RuntimeError, match="Class values must be smaller"):
        fast(EYE, torch.tensor([1, 2, 4]))
    with pytest.raises(LinAlgError):
        fast(torch.ones(3, 3), torch.tensor([1, 2, 3]))


def test_a_training_step_checks() -> None:
    model = nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return INV(model(x)).mean()

    step = anabranch.compile_step(model, loss, optimizer, (EYE,), **OPTIONS)
    with pytest.raises(LinAlgError) as raised:
        step(ZERO)
    assert "checkpoint" in raised.value.__notes__[-1]


def test_a_saved_plan_checks_and_one_that_checks_what_it_has_not_is_refused(tmp_path: Path) -> None:
    model, good, bad = CASES["one_hot, too large"]
    fast = anabranch.compile(model, (good,), **OPTIONS)
    file = tmp_path / "plan.anabranch"
    fast.save(file)
    loaded = anabranch.load(file)
    assert torch.equal(loaded(good), model(good))
    assert said(loaded, bad) == said(fast, bad)

    entry = fast.entries[-1]
    signature = entry.plan.signature
    assert signature is not None
    first = signature.checks[0]
    for wrong in (replace(first, kind="linalg"), replace(first, ref=entry.plan.tasks.outputs[0])):
        spoilt = replace(entry.plan, signature=replace(signature, checks=(wrong,)))
        fast.entries[-1] = replace(entry, plan=spoilt)
        fast.save(file)
        with pytest.raises(ArtifactError, match="it checks"):
            anabranch.load(file)


def test_copies_of_a_row_are_padding_that_a_check_of_all_rows_may_read() -> None:
    def model(x: Tensor) -> Tensor:
        return F.one_hot(x, 4) * 2

    one, other = (capture(model, (torch.ones(n, dtype=torch.int64),)) for n in (2, 3))
    assert padding_proof(one, other, (2, 3), [[(0, 1, 1)]]).apart
    fast = anabranch.compile(model, (torch.tensor([1, 2, 3]),), batch="pad", **OPTIONS)
    assert torch.equal(fast(torch.tensor([3, 1])), model(torch.tensor([3, 1])))
    with pytest.raises(RuntimeError, match="Class values must be smaller"):
        fast(torch.tensor([4, 1]))
