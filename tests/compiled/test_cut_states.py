"""Models that are cut and write to their buffers: call by call as eager, states and all."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import anabranch
from anabranch.compiled import cut_path, cut_plans
from anabranch.compiled.cuts import CutModel
from anabranch.errors import CaptureError, InputError, NumericsError

QUICK: dict[str, Any] = {"cache_dir": None, "search": "none", "scheduler": "sequential"}


class Layers(nn.Module):
    """Two layers, enough for a plan, and two buffers."""

    rows: Tensor
    at: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.register_buffer("rows", torch.zeros(3, 8))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))


class Ring(Layers):
    """A place that is counted, and results that see old and new values."""

    def forward(self, x: Tensor) -> Any:
        before = self.rows.clone()
        place: Any = self.at.item()
        self.rows[place % 3] = self.layers(x)[0]
        self.at += 1
        return before.sum(0), self.rows, self.rows[1:]


class Chosen(Layers):
    """A state of which as much is written as values say."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        likely = y[:, 0] > 0
        self.rows[likely] = y[likely] + self.rows[likely]
        return y * self.rows


class Twofold(Layers):
    """One way writes, the other reads; a branch on a state, too."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        if x.sum() > 0:
            self.at += 1
            self.rows.copy_(y)
            return y.exp() * self.at
        added: Tensor = self.layers(y.tanh()) + self.rows * self.at
        return added


class Counted(Layers):
    def forward(self, x: Tensor) -> Tensor:
        self.at += 1
        y: Tensor = self.layers(x)
        return self.layers(y.tanh()) if self.at < 3 else y.exp().neg().sin()


def compiled(model: nn.Module, *args: Any, **options: Any) -> CutModel:
    cut_model = anabranch.compile(model.eval(), args, target="cpu", **{**QUICK, **options})
    assert isinstance(cut_model, CutModel)
    return cut_model


def rows(sign: float = 1.0) -> Tensor:
    return torch.full((3, 8), sign) + 0.1 * torch.randn(3, 8)


def follow(fast: CutModel, model: nn.Module, inputs: list[Tensor]) -> None:
    """Call both, and compare results and all that they hold."""
    for x in inputs:
        with torch.no_grad():
            torch.testing.assert_close(fast(x.clone()), model(x.clone()))
        torch.testing.assert_close(dict(fast.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("kind", [Ring, Chosen])
def test_states_are_those_of_the_model_after_each_call(kind: type[Layers]) -> None:
    model = kind()
    twin, first = copy.deepcopy(model), copy.deepcopy(model)
    fast = compiled(model, rows(), unseen="refuse")
    torch.testing.assert_close(dict(model.state_dict()), dict(first.state_dict()))
    follow(fast, twin, [torch.randn(3, 8) for _ in range(4)])
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert fast.memory().states == sum(x.nbytes for x in fast.states.places.values()) > 0
    fast.reset_state()
    follow(fast, first, [torch.randn(3, 8) for _ in range(2)])


def test_ways_share_states_and_copies_have_their_own() -> None:
    model = Twofold()
    twin = copy.deepcopy(model).eval()
    fast = compiled(model, rows(), unseen="refuse")
    fast.add((rows(-1.0),))
    follow(fast, twin, [rows(), rows(-1.0), rows(), rows(-1.0)])
    other, before = copy.deepcopy(fast), copy.deepcopy(twin)
    follow(other, copy.deepcopy(twin), [rows(), rows(-1.0)])
    follow(fast, before, [rows(-1.0)])
    weights = {**Twofold().state_dict(), "at": torch.tensor(7)}
    fast.load_state_dict(weights)
    before.load_state_dict(weights)
    follow(fast, before, [rows(-1.0), rows()])
    assert "writes to" in str(fast.explain())


class Attending(nn.Module):
    """A cache that is written behind a question, and read in the same section."""

    k: Tensor
    at: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.register_buffer("k", torch.zeros(100, 8))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x * x.abs().max().item())
        self.k.index_copy_(0, self.at[None], y[:1])
        self.at += 1
        return self.layers((y @ self.k.T).softmax(-1) @ self.k)


class AskingLater(Attending):
    """What is asked behind the write decides nothing."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return self.layers(y / y.abs().max().item()).tanh()


class ReadLater(Attending):
    """A later section reads what the first one has written, and its results are the caller's."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        scaled = y / y.abs().max().item()
        return self.layers(scaled @ self.k[:8] + self.at), self.k[50:].exp().sin() + 1


class Numbered(Attending):
    """The place is a number of Python's: what writes there runs as eager does."""

    def forward(self, x: Tensor) -> Any:
        place: Any = self.at.item()
        y = self.layers(x)
        self.k[place : place + 1] = y[:1] + self.k[:1]
        self.at += 1
        return self.layers((y @ self.k.T).softmax(-1) @ self.k)


class NumberedRow(Numbered):
    def forward(self, x: Tensor) -> Any:
        place: Any = self.at.item()
        y = self.layers(x)
        self.k[place] = y[0]
        self.at += 1
        return self.layers((y @ self.k.T).softmax(-1) @ self.k) * self.at


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch annotates none of it
    """Counts the operators that write all of a tensor of this size."""

    def __init__(self, elements: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.elements, self.whole = elements, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if isinstance(result, Tensor) and result.numel() == self.elements:
            views = func._schema.arguments and func._schema.arguments[0].alias_info is not None
            if name == "aten::copy_" or not views:
                self.whole.append(name)
        return result


@pytest.mark.parametrize("kind", [Attending, AskingLater, ReadLater, Numbered, NumberedRow])
def test_sections_write_states_where_they_lie(kind: type[Attending]) -> None:
    """One position a call: no operator writes, copies or returns all of the cache."""
    model = kind().eval()
    own = copy.deepcopy(model)
    fast = compiled(model, rows(), unseen="refuse")
    with torch.no_grad():
        for number in range(4):
            x = torch.randn(3, 8) + number
            with Traffic(model.k.numel()) as traffic:
                results = fast(x)
            assert traffic.whole == []
            torch.testing.assert_close(results, own(x))
            torch.testing.assert_close(model.state_dict(), own.state_dict())
    steps = fast._forms[0].paths[0].steps
    assert any("k" in step.step.news for step in steps) == (not issubclass(kind, Numbered))
    for plan in fast.sections:
        entry = plan.entries[-1]
        assert entry.run is not None
        lie = {state.path: entry.run.states[state.name] for state in entry.plan.tasks.states}
        for path, place in lie.items():
            assert place.data_ptr() == model.get_buffer(path).data_ptr()
    twin = copy.deepcopy(fast)
    follow(twin, copy.deepcopy(own), [rows(), rows(-1.0)])
    torch.testing.assert_close(model.state_dict(), own.state_dict())  # the copy has its own
    follow(fast, own, [rows()])
    fast.reset_state()
    follow(fast, kind().eval(), [rows(), rows()])
    fast.load_state_dict({**kind().state_dict(), "at": torch.tensor(9)})
    other = kind().eval()
    other.at.fill_(9)
    follow(fast, other, [rows(), rows()])


def test_what_fails_has_written_as_little_as_the_model() -> None:
    """The counter behind the write of a row that is not there is as it was."""
    model = Attending().eval()
    own = copy.deepcopy(model)
    fast = compiled(model, rows(), unseen="refuse")
    for one in (model, own):
        one.at.fill_(100)
    for call in (fast, own):
        with pytest.raises(IndexError), torch.no_grad():
            call(rows())
    torch.testing.assert_close(model.state_dict(), own.state_dict())
    for one in (model, own):
        one.at.fill_(3)
    follow(fast, own, [rows(), rows()])


class Turned(Attending):
    """One way writes, the other one has nothing to do with states."""

    def forward(self, x: Tensor) -> Any:
        if x.sum() < 0:
            return self.layers(self.layers(x).tanh())
        return super().forward(x)


def test_an_example_that_cannot_be_compiled_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Turned().eval()
    own = copy.deepcopy(model)
    fast = compiled(model, rows(-1.0), unseen="refuse")

    def refused(*args: Any) -> None:
        raise NumericsError("no", "it is a test", "none")

    with monkeypatch.context() as patched:
        patched.setattr(cut_plans, "compare", refused)
        with pytest.raises(NumericsError):
            fast.add((rows(),))
    torch.testing.assert_close(model.state_dict(), own.state_dict())
    fast.add((rows(),))
    follow(fast, own, [rows(), rows(-1.0), rows()])


class CheckedLater(Attending):
    """A call is found to go another way behind the section that could write."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return self.layers(y) if y.sum().item() < 1e6 else self.layers(y.exp().sin())


class OldLater(Attending):
    """Who reads what the state was, and views of it, comes behind the section."""

    def forward(self, x: Tensor) -> Any:
        before, count = self.k[: x.abs().max().int().item() + 1], self.at.clone()
        y = super().forward(x)
        return self.layers(y / y.abs().max().item()) + before.sum(0), count, before


class NumberedOld(Attending):
    """What a row was is read behind the step that writes it, and so is all of the new value."""

    def forward(self, x: Tensor) -> Any:
        place: Any = self.at.item()
        y = self.layers(x)
        before = self.k[place : place + 1]
        self.k[place : place + 1] = y[:1] + 1
        self.at += 1
        return self.layers(y.tanh()) + self.k[:3], before.clone(), self.k * 2


class NumberedChecked(Attending):
    def forward(self, x: Tensor) -> Any:
        place: Any = self.at.item()
        y = self.layers(x)
        self.k[place] = y[0]
        self.at += 1
        z = self.layers((y @ self.k.T).softmax(-1) @ self.k)
        return z if z.sum().item() < 0.5 else z.exp().sin().cos()


class Exchanged(Attending):
    """Two states, each of which becomes what the other one was."""

    other: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("other", torch.ones(100, 8))

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x * x.abs().max().item())
        was: Any = self.k.clone()
        self.k.copy_(self.other)
        self.other.copy_(was)
        self.k[0] += y[0]
        return self.layers(y) + self.k[1] - self.other[0]


class Twice(Attending):
    """One value for two states, which is returned, too."""

    other: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("other", torch.ones(100, 8))

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        self.other.copy_(self.k * 2)
        self.k.copy_(self.other)
        return y / y.abs().max().item(), self.k, self.other[2:]


@pytest.mark.parametrize(
    "kind", [CheckedLater, OldLater, NumberedOld, NumberedChecked, Exchanged, Twice]
)
def test_states_that_others_see_are_right(kind: type[Attending]) -> None:
    model = kind().eval()
    own = copy.deepcopy(model)
    fast = compiled(model, rows())
    kept: list[Any] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ways that no example went
        for number in range(4):
            x = torch.randn(3, 8) + number
            kept.append((fast(x), own(x)))
            torch.testing.assert_close(model.state_dict(), own.state_dict())
    if kind is not OldLater:  # of which eager's results are views
        for ours, theirs in kept:
            torch.testing.assert_close(ours[0], theirs[0])
    if kind is NumberedOld:
        torch.testing.assert_close(kept[-1][0], kept[-1][1])
    paths = [path for form in fast._forms for path in form.paths]
    written = [step.step.news for path in paths for step in path.steps]
    assert any(written) == (kind in (Exchanged, Twice))


@pytest.mark.parametrize("kind", [Twofold, Counted])
def test_a_call_of_another_way_goes_on_with_the_states(kind: type[Layers]) -> None:
    model = kind()
    twin = copy.deepcopy(model).eval()
    fast = compiled(model, rows())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        follow(fast, twin, [rows(), rows(-1.0), rows(), rows(-1.0)])
    assert fast.unseen_calls
    model.at = torch.zeros((), dtype=torch.long)
    with pytest.raises(InputError, match="another tensor as its state at"):
        fast(rows(-1.0))


def test_what_plans_have_as_a_constant_is_not_written_to_unseen() -> None:
    model = Twofold()
    twin = copy.deepcopy(model).eval()
    fast = compiled(model, rows(-1.0))  # this way writes to nothing
    with pytest.raises(CaptureError, match=r"writes to .* on this way"):
        fast.add((rows(),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        follow(fast, twin, [rows(-1.0), rows(), rows(-1.0)])
    assert fast.unseen_calls == 1


def test_changes_in_python_are_told() -> None:
    class Counting(Layers):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.layers(x)
            return y[y[:, 0] > 0] + self.calls

    with pytest.warns(UserWarning, match="forward changes calls"):
        compiled(Counting(), rows())

    class Assigning(Layers):
        def forward(self, x: Tensor) -> Tensor:
            self.rows = self.rows + 1
            y: Tensor = self.layers(x) * self.rows
            return y[y[:, 0] > 0]

    with pytest.raises(CaptureError, match=r"write the new value into it: self\.rows\.copy_"):
        compiled(Assigning(), rows())


class Filled(Layers):
    """A cache that one call fills to two thirds: a second one would go past its end."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x[:2])
        self.rows.index_copy_(0, self.at + torch.arange(2), y)
        self.at += 2
        total: Tensor = self.rows.sum(0)
        shown: Tensor = self.layers(total / total.abs().max().item())
        return shown


class FilledInput(Layers):
    """The same of a cache and a counter that are given."""

    def forward(self, x: Tensor, rows: Tensor, at: Tensor) -> Tensor:
        y: Tensor = self.layers(x[:2])
        rows.index_copy_(0, at + torch.arange(2), y)
        at += 2
        shown: Tensor = self.layers(rows.sum(0) / rows.abs().max().item())
        return shown


def test_plans_are_timed_on_the_example_as_it_was() -> None:
    given = torch.zeros(3, 8), torch.zeros((), dtype=torch.long)
    for model, more in ((Filled().eval(), ()), (FilledInput().eval(), given)):
        fast = compiled(model, rows(), *more)
        assert "as eager" in fast.explain()  # times the eager steps of each plan, many times over
        own, theirs, x = copy.deepcopy(model), copy.deepcopy(more), rows()
        with torch.no_grad():
            torch.testing.assert_close(fast(x, *more), own(x, *theirs))
        for mine, other in zip(more, theirs, strict=True):
            torch.testing.assert_close(mine, other)


class Capitals(nn.Module):
    """Names as T5 has them, SelfAttention among them."""

    Count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.FirstLayer = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.register_buffer("Count", torch.zeros((), dtype=torch.long))

    def forward(self, InputIds: Tensor) -> Tensor:
        y = self.FirstLayer(InputIds)
        self.Count += 1
        shown: Tensor = self.FirstLayer(y / y.abs().max().item()) * self.Count
        return shown


def test_names_with_capitals() -> None:
    torch.manual_seed(0)
    model = Capitals()
    fast = compiled(model, rows())
    follow(fast, copy.deepcopy(model), [rows(), rows(-1), rows()])


class Keywords(nn.Module):
    """Parts that are called as keywords of Python are, of which torch.fx writes no code."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"in": nn.Linear(8, 8), "class": nn.Linear(8, 8)})
        self.register_parameter("None", nn.Parameter(torch.randn(8)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers["in"](x).relu() + getattr(self, "None")
        y = self.layers["class"](y / y.abs().max().item()) * getattr(self, "None")
        return y


def test_names_that_are_keywords() -> None:
    torch.manual_seed(0)
    model = Keywords()
    fast = compiled(model, rows())
    follow(fast, copy.deepcopy(model), [rows(), rows(-1), rows()])


class Averaging(Layers):
    """A norm that averages all batches: how many there were is a number of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.layers(x))
        return y * y.max().item()


def test_the_average_of_all_batches_is_one_way() -> None:
    model = Averaging().eval()
    model.norm.train()
    fast = anabranch.compile(copy.deepcopy(model), (torch.randn(4, 8),), target="cpu", **QUICK)
    assert isinstance(fast, CutModel)
    for _ in range(4):
        x = torch.randn(4, 8)
        torch.testing.assert_close(fast(x), model(x))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            ours = fast.state_dict()[f"norm.{name}"]
            torch.testing.assert_close(ours, model.norm.get_buffer(name))
    assert not fast.unseen_calls


class Centered(nn.Module):
    """The second norm averages what the first has made zero on average, up to rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.first = nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None)
        self.second = nn.BatchNorm1d(8, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(self.layer(x)))
        return y * y.max().item()


def centered() -> Centered:
    torch.manual_seed(0)
    model = Centered().eval()
    model.first.train(), model.second.train()
    return model


def test_a_state_of_nothing_but_rounding_may_be_another() -> None:
    model, x = centered(), torch.randn(64, 8)
    fast = anabranch.compile(copy.deepcopy(model), (x,), target="cpu", **QUICK)
    assert isinstance(fast, CutModel)
    for _ in range(4):
        x = torch.randn(64, 8)
        torch.testing.assert_close(fast(x), model(x))
        ours, mean = fast.state_dict()["second.running_mean"], model.second.running_mean
        assert mean is not None and mean.abs().max() < 1e-7
        torch.testing.assert_close(ours, mean, rtol=0, atol=1e-7)


def test_a_state_that_is_off_by_more_than_rounding_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def otherwise(trace: Any, path: Any, values: Any, *rest: Any) -> None:
        (name,) = (n for n, state in trace.states.items() if state == "second.running_mean")
        cut_path.compare(trace, path, {**values, name: values[name] + 1e-5}, *rest)

    monkeypatch.setattr(cut_plans, "compare", otherwise)
    with pytest.raises(NumericsError, match=r"second\.running_mean has the relative error"):
        anabranch.compile(centered(), (torch.randn(64, 8),), target="cpu", **QUICK)
