"""Models that ask for values: cut there, equal to eager, and still one compiled model."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.cuts import CALLS, MODELS, alike, made
from tests.compiled.cut_drawings import Drawn, inputs
from tests.targets.test_cpu import in_child
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

import anabranch
from anabranch.compiled.cuts import CutModel
from anabranch.errors import CaptureError, InputError, OptionError, TargetError, WeightsError

QUICK: dict[str, Any] = {"cache_dir": None, "search": "none", "scheduler": "sequential"}
CPU = torch.device("cpu")


def compiled(
    model: Callable[..., Any], *args: Any, target: str = "cpu", **options: Any
) -> CutModel:
    found = anabranch.compile(model, args, target=target, **{**QUICK, **options})
    assert isinstance(found, CutModel)
    return found


class Masked(nn.Module):
    """What it returns has a size that depends on values: the usual end of a detector."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: Tensor, least: float = 0.0) -> Tensor:
        y: Tensor = self.layers(x)
        return y[y.sum(-1) > least]


class Branching(nn.Module):
    """Two ways, of three layers each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.yes = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.no = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        found: Tensor = self.yes(y) if x.sum() > 0 else self.no(y)
        return found


class Numbered(nn.Module):
    """A weight that a plan reads and an eager step reads too, and one that only the latter does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.late = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        (kept,) = torch.nonzero(y[:, 0] > 0, as_tuple=True)
        found: Tensor = self.layers[2](y[kept]) * self.late
        return found


def net(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    return kind().eval()


def rows(sign: float = 1.0) -> Tensor:
    return torch.full((6, 8), sign) + 0.1 * torch.randn(6, 8)


def test_equal_results_are_tensors_of_their_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masked = Masked()

        def forward(self, x: Tensor) -> Any:
            y = self.masked(x)
            return (y * 2).sin(), (z := (y * 2).sin(), z), (y * 2).sin()

    model, x = Twice().eval(), torch.randn(4, 8)
    fast = compiled(model, x)
    with torch.no_grad():
        first, (second, same), third = fast(x)
        want = model(x)[0]
    assert same is second
    first.zero_()
    second.add_(1)
    torch.testing.assert_close(second, want + 1)
    torch.testing.assert_close(third, want)


class Table(Masked):
    """Returns what it holds, views of that, and what is computed of nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.counts = nn.Parameter(torch.randn(3, 8)), torch.arange(3)

    def forward(self, x: Tensor, least: float = 0.0) -> Any:
        kept = super().forward(x, least)
        fixed = torch.arange(4), torch.zeros(2) + 1, torch.tensor([0.5]), (self.table * 2).t()
        held = self.table, self.table.t(), self.table.chunk(2), self.counts, self.table
        return kept, fixed, held, self.table[: len(kept)], x


def test_what_a_model_holds_is_returned_as_a_copy() -> None:
    model, other, x = net(Table), Table().eval(), rows()[:2]
    fast = compiled(model, x, check=1)
    for new in (model, other):
        fast.refit(new)
        want = new(x)
        for _ in range(2):
            with torch.no_grad():
                results = fast(x)
            torch.testing.assert_close(results, want)
            assert results[2][0] is results[2][-1]
            for result in torch.utils._pytree.tree_leaves(results[:-1]):
                result.zero_()


@pytest.mark.parametrize("name", MODELS)
def test_models_are_equal_to_eager_whatever_the_values(name: str) -> None:
    model, drawn = made(name, True, CPU, torch.float32)
    fast = compiled(model, *drawn(0))
    with torch.no_grad():
        for seed in range(1, CALLS + 1):
            assert alike(fast(*drawn(seed)), model(*drawn(seed))), seed
    assert fast.unseen_calls == 0


def test_models_are_planned_for_a_gpu_that_is_not_here() -> None:
    model, drawn = made("detector", True, CPU, torch.float32)
    fast = compiled(model, *drawn(0), target="sim:h200")
    assert all(step["source"] != "measured" for step in fast.known["forms"][0]["paths"][0]["steps"])
    assert fast.memory().total > 0
    with pytest.raises(TargetError, match="simulated"):
        fast(*drawn(1))


@pytest.mark.parametrize("seed", [3, 8, 20, 33])
def test_drawn_models_are_equal_to_eager(seed: int) -> None:
    model = Drawn(seed).eval()
    fast = compiled(model, *inputs(0))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of ways that the example did not go
        for number in range(CALLS):
            torch.testing.assert_close(fast(*inputs(number)), model(*inputs(number)))


def test_what_ends_in_a_mask_is_one_plan_and_one_eager_step() -> None:
    model = net(Masked)
    fast = compiled(model, rows())
    assert len(fast.sections) == 1
    (path,) = fast.known["forms"][0]["paths"]
    assert [step["kind"] for step in path["steps"]] == ["plan", "eager"]
    (cut,) = path["cuts"]
    assert cut["operator"] == "index" and "test_cuts.py" in cut["origin"]
    for sign in (1.0, -1.0):  # all rows, or none
        torch.testing.assert_close(fast(rows(sign) * 0), model(rows(sign) * 0))
        x = rows(sign)
        torch.testing.assert_close(fast(x), model(x))


def test_a_way_that_no_example_went_runs_the_model() -> None:
    model = net(Branching)
    fast = compiled(model, rows(1.0))
    x = rows(-1.0)
    with pytest.warns(UserWarning, match=r"item == True .*test_cuts.py"):
        torch.testing.assert_close(fast(x), model(x))
    assert fast.unseen_calls == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        torch.testing.assert_close(fast(rows(1.0)).shape, torch.Size((6, 4)))
        torch.testing.assert_close(fast(x), model(x))
    assert fast.unseen_calls == 2


def test_a_call_of_the_examples_form_is_not_bound_by_names(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net(Branching), rows()
    fast = compiled(model, x)

    def explained(*_: Any) -> Any:
        raise AssertionError("a call that could be read at once was bound by its names")

    monkeypatch.setattr(CutModel, "_explained", explained)
    torch.testing.assert_close(fast(x), model(x))


def test_another_example_is_another_way() -> None:
    model = net(Branching)
    fast = compiled(model, rows(1.0), unseen="refuse")
    with pytest.raises(InputError, match="item == True does not hold"):
        fast(rows(-1.0))
    fast.add((rows(-1.0),))
    fast.add((rows(-1.0),))  # known by now
    assert [len(form["paths"]) for form in fast.known["forms"]] == [2]
    with torch.no_grad():
        for sign in (-1.0, 1.0, -1.0):
            x = rows(sign)
            torch.testing.assert_close(fast(x), model(x))


def test_ways_that_differ_in_constants_alone_are_two() -> None:
    def model(x: Tensor) -> Tensor:
        y = x.sin().cos() + 1
        factors = [1.0, 2.0, 3.0] if y.sum() > 5 else [4.0, 5.0, 6.0]
        y = y * torch.tensor(factors)
        for _ in range(4):
            y = y.sin()
        return y

    first, other = torch.zeros(3), torch.ones(3)
    fast = compiled(model, first)
    fast.add((other,))
    for x in (first, other):
        torch.testing.assert_close(fast(x), model(x))
    assert not fast.unseen_calls


def test_an_element_is_written_by_its_number() -> None:
    def model(x: Tensor) -> Tensor:
        y = x.sin().cos().exp()
        row: Any = x[0].argmax().item()
        y[row, 0] = 0
        return y * 2

    first, other = torch.eye(2), torch.eye(2).flip(0)
    fast = compiled(model, first)
    for x in (first, other):
        torch.testing.assert_close(fast(x), model(x))


class Marked(nn.Module):
    """Writes rows by masks, by their numbers, and parts of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.rows = nn.Buffer(torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        y, likely = self.layers(x), x[:, 0] > 0
        (numbers,) = torch.where(likely)
        self.rows[likely] = y[likely]
        self.rows[numbers] += self.layers(x[numbers])
        parts = y.view(4, 2, 4).clone()
        parts[likely, :, 1] = parts[likely, :, 0] * 2
        parts[:, 1][numbers, 2] = parts[numbers, 1, 3]
        result: Tensor = parts.flatten(1) + self.rows
        return result


class Cached(nn.Module):
    """A cache whose place is a number of Python's, in several spellings; the first place is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.keys, self.seen = nn.Buffer(torch.zeros(2, 3, 6, 4)), nn.Buffer(torch.zeros(6, 8))
        self.at = nn.Buffer(torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        y = self.layers(x)
        at: Any = self.at.item()
        self.at.add_(1)
        self.keys[:, :, at] = y.view(2, 1, 4)
        self.keys[0, ..., at, 1:] *= 2
        self.keys[1, torch.tensor([0, 2]), at, 0] = x[:2]
        self.seen[at] += y
        self.seen[-1 - at, 0] = 1.0
        result: Tensor = y + table[at] + table[at - 3, 1] + self.seen.sum(0) + self.keys.sum()
        return result


class Halving(nn.Module):
    """Catches a division by a counter, beside states."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.sum, self.count = nn.Buffer(torch.zeros(8)), nn.Buffer(torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        self.count.add_(1)
        try:
            scale: Any = 1 / (self.count.item() - 3)
        except ZeroDivisionError:
            scale = 0.5
        self.sum.add_(y)
        result: Tensor = y * scale + self.sum
        return result


def test_an_error_that_the_model_catches_may_come_before_states_are_written() -> None:
    model = Halving().eval()
    fast = compiled(copy.deepcopy(model), torch.randn(8))
    for _ in range(5):
        x = torch.randn(8)
        torch.testing.assert_close(fast(x), model(x))
        for name in ("sum", "count"):
            torch.testing.assert_close(fast.state_dict()[name], model.get_buffer(name))
    assert fast.unseen_calls == 1


def test_a_place_that_is_a_number_of_pythons_is_no_other_way() -> None:
    model, table = Cached().eval(), torch.randn(6, 8)
    fast = compiled(copy.deepcopy(model), torch.randn(8), table)
    for _ in range(5):
        x = torch.randn(8)
        torch.testing.assert_close(fast(x, table), model(x, table))
        for name in ("keys", "seen", "at"):
            torch.testing.assert_close(fast.state_dict()[name], model.get_buffer(name))
    assert not fast.unseen_calls


def test_how_many_rows_are_written_is_no_other_way() -> None:
    model = Marked().eval()
    fast, rows = compiled(copy.deepcopy(model), torch.randn(4, 8)), torch.arange(4)
    for count in (1, 0, 4, 2):
        x = torch.randn(4, 8).abs() * torch.where(rows < count, 1, -1)[:, None]
        torch.testing.assert_close(fast(x), model(x))
        torch.testing.assert_close(fast.state_dict()["rows"], model.rows)
    assert not fast.unseen_calls


def test_an_operator_that_fails_may_be_caught_by_the_model() -> None:
    def model(x: Tensor) -> tuple[Tensor, bool]:
        y = x.sin().cos().exp()
        number = x[0].item()
        try:
            return y * number + torch.linalg.inv(x.diag()), True
        except RuntimeError:
            return y, False

    regular, singular = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    fast = compiled(model, regular)
    for x in (regular, singular):
        torch.testing.assert_close(fast(x), model(x))
    with pytest.raises(
        CaptureError, match="an operator fails for this example, and the model goes"
    ):
        compiled(model, singular)


def test_an_operator_that_fails_raises_what_it_raises_in_eager() -> None:
    def model(x: Tensor) -> tuple[Tensor, float]:
        return x.sin().cos().exp(), 1 / x[0].item()

    fast = compiled(model, torch.ones(2))
    for call in (model, fast, copy.deepcopy(fast)):
        with pytest.raises(ZeroDivisionError):
            call(torch.zeros(2))
    assert fast(torch.full((2,), 4.0))[1] == 0.25


def test_other_shapes_are_one_more_form() -> None:
    model = net(Masked)
    fast = compiled(model, rows())
    with pytest.raises(InputError, match=r"f32\[6,8\]"):
        fast(torch.randn(5, 8))
    fast.add((torch.randn(5, 8),))
    for x in (torch.randn(5, 8), rows()):
        torch.testing.assert_close(fast(x), model(x))


def test_arguments_may_be_named() -> None:
    model, x = net(Masked), rows()
    fast = compiled(model, x, 0.5)
    torch.testing.assert_close(fast(x=x, least=0.5), model(x, 0.5))
    with pytest.raises(InputError, match=r"0\.5"):
        fast(x, 0.25)


def test_a_whole_graph_may_be_asked_for() -> None:
    with pytest.raises(CaptureError, match=r"fullgraph=True") as refused:
        anabranch.compile(net(Branching), (rows(),), target="cpu", fullgraph=True, **QUICK)
    assert "test_cuts.py" in refused.value.source


def test_sizes_of_a_model_with_cuts_are_refused_and_named() -> None:
    """The refusal says to leave out what was given, and not only an option that was not."""
    with pytest.raises(CaptureError) as refused:
        anabranch.compile(net(Branching), (rows(),), target="cpu", sizes=[1, 8], **QUICK)
    assert "leave out fullgraph=True, sizes and dynamic_shapes" in refused.value.next


def test_nothing_left_to_compile_is_refused() -> None:
    def count(x: Tensor) -> Tensor:
        return x.nonzero()

    with pytest.raises(CaptureError, match="nothing of the model is left"):
        anabranch.compile(count, (rows(),), target="cpu", **QUICK)


class Coded(nn.Module):
    """As many classes as there are: one question in a trace, where eager's operator asks two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        codes: Tensor = nn.functional.one_hot(input=classes)  # type: ignore[call-arg]
        return y.unsqueeze(-1) * codes.unsqueeze(1)


def test_classes_that_are_counted_are_those_of_the_call() -> None:
    model, x, first = net(Coded), rows(), torch.tensor([2, 4, 3, 2, 2, 2])
    fast = compiled(model, x, first)
    for classes in (first, torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([7, 1, 0, 3, 0, 1])):
        torch.testing.assert_close(fast(x, classes), model(x, classes).detach())
    assert fast.unseen_calls == 0
    for one in (fast, model):
        with pytest.raises(RuntimeError, match="Class values must be non-negative"):
            one(x, torch.tensor([0, 1, -1, 1, 0, 1]))


def test_a_model_that_asks_otherwise_while_it_is_traced_is_refused_in_words() -> None:
    class Looking(Branching):
        def forward(self, x: Tensor) -> Tensor:
            number = (x.min() if get_proxy_mode() is None else x.max()).item()
            y = super().forward(x)
            return y if number < 0 else y + number

    said = "other values when it is traced .*\n.*test_cuts.py:.* in forward\n.* does not hold"
    with pytest.raises(CaptureError, match=said):
        compiled(net(Looking), torch.linspace(-1, 1, 48).view(6, 8))


def test_an_input_may_be_written_to() -> None:
    class Writing(Masked):
        def forward(self, x: Tensor, least: float = 0.0) -> Tensor:
            found = super().forward(x, least)
            x.mul_(2).add_(found.sum())
            return found + x.sum()

    model, x = net(Writing), rows()
    fast = compiled(model, x.clone())
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(fast(mine), model(theirs))
    torch.testing.assert_close(mine, theirs)
    assert not torch.equal(mine, x)


def test_calls_differ_where_the_example_repeats_itself() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = x.sum().item()
        return x.clone(), torch.sin(x.exp() * scale).relu(), torch.cos(x + 1)

    rows = torch.arange(1.0, 7).view(6, 1).expand(6, 4)
    windows = torch.arange(1.0, 10).unfold(0, 4, 1)
    other = torch.arange(24.0).view(6, 4)
    for example in (rows, windows):
        fast = anabranch.compile(model, (example,), target="cpu", unseen="refuse", **QUICK)
        for x in (example, other):
            torch.testing.assert_close(fast(x), model(x))


def test_weights_are_held_once() -> None:
    model = net(Numbered)
    fast = compiled(model, rows())
    assert fast.memory().weights == sum(p.nbytes for p in model.parameters())


def test_plans_use_one_arena() -> None:
    model, x = net(Branching), rows()
    fast = compiled(model, x)
    sizes = [entry.plan.arena_bytes for entry in fast.entries]
    assert len(sizes) == 2 and fast.memory().arena == max(sizes)
    assert copy.deepcopy(fast).memory().arena == max(sizes)
    fast.add((x[:4],))
    arenas = {entry.run.arena.data_ptr() for entry in fast.entries if entry.run is not None}
    assert len(fast.sections) == 4 and len(arenas) == 1
    with torch.no_grad():
        for given in (x, x[:4]):
            torch.testing.assert_close(fast(given), model(given))


def test_sizes_that_vary_are_refused() -> None:
    fast = compiled(net(Masked), rows())
    with pytest.raises(OptionError, match="example of each size"):
        fast.add_sizes((rows(),), dynamic_shapes={"x": {0: 8}})


def test_new_weights_reach_plans_and_eager_steps() -> None:
    model, other, x = net(Numbered), Numbered().eval(), rows()
    fast = compiled(model, x)
    assert fast.state_dict().keys() == model.state_dict().keys()
    fast.refit(other, check=True)
    torch.testing.assert_close(fast(x), other(x))
    for name, value in fast.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name])
    fast.load_state_dict(model.state_dict())
    torch.testing.assert_close(fast(x), model(x))
    with pytest.raises(WeightsError, match=r"late"):
        fast.refit({k: v for k, v in model.state_dict().items() if k != "late"})
    torch.testing.assert_close(fast(x), model(x))


def test_the_plans_own_their_weights() -> None:
    model, x = net(Numbered), rows()
    fast = compiled(model, x)
    before = fast(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    torch.testing.assert_close(fast(x), before)
    with pytest.raises(OptionError, match="refit"):
        fast.add((torch.randn(3, 8),))


def test_a_forked_process_refits_while_the_parent_was_in_a_call() -> None:
    model, other, x = net(Branching), net(Branching), rows(1.0)
    fast = compiled(model, x)
    want = other(x)

    def refitted() -> bool:
        with torch.no_grad():
            return torch.allclose(fast.refit(other)(x), want, atol=1e-6)

    with fast._lock:
        assert in_child(refitted)
    torch.testing.assert_close(fast(x), model(x))


def test_a_model_with_other_weights_does_not_stand_in() -> None:
    model = net(Branching)
    fast = compiled(model, rows(1.0))
    with torch.no_grad():
        model.yes[0].weight.add_(1)
    with pytest.raises(WeightsError, match=r"yes\.0\.weight"):
        fast(rows(-1.0))
    fast.refit(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(fast(rows(-1.0)).shape, torch.Size((6, 4)))


def test_a_copy_has_plans_and_weights_of_its_own() -> None:
    model, other, x = net(Numbered), Numbered().eval(), rows()
    fast = compiled(model, x)
    copied = copy.deepcopy(fast)
    assert copy.deepcopy(copied).state_dict().keys() == model.state_dict().keys()
    copied.refit(other)
    torch.testing.assert_close(copied(x), other(x))
    torch.testing.assert_close(fast(x), model(x))
    for one in (copied, fast):
        one.load_state_dict(other.state_dict())
        torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()))
    assert copy.copy(fast)(x).shape == model(x).shape


def test_a_function_has_no_weights() -> None:
    fast = compiled(lambda x: x.sin().cos().exp()[x > 0], torch.ones(2))
    assert not fast.state_dict() and not copy.deepcopy(fast).state_dict()


def test_a_copy_takes_arguments_by_name() -> None:
    model, x = net(Numbered), rows()
    copied = copy.deepcopy(compiled(model, x))
    torch.testing.assert_close(copied(x=x), model(x=x))


def test_a_copy_refuses_ways_that_no_example_went() -> None:
    copied = copy.deepcopy(compiled(net(Branching), rows(1.0)))
    with pytest.raises(InputError, match="another way"):
        copied(rows(-1.0))


def test_what_is_for_one_plan_says_so(tmp_path: Any) -> None:
    fast = compiled(net(Masked), rows())
    with pytest.raises(OptionError, match="cannot be saved as one plan"):
        fast.save(tmp_path / "cut.anabranch")
    with pytest.raises(OptionError, match="cannot be pickled"):
        pickle.dumps(fast)
    with pytest.raises(OptionError, match=r"sections\[0\]"):
        fast.report(tmp_path / "cut.html")
    fast.sections[0].save(tmp_path / "plan.anabranch")
    loaded = anabranch.load(tmp_path / "plan.anabranch", target="cpu")
    x = rows()
    torch.testing.assert_close(loaded(x)[0], fast.sections[0](x)[0])


def test_what_it_is_cut_into_is_explained() -> None:
    fast = compiled(net(Branching), rows(1.0))
    told = str(fast.explain())
    assert "cut in step" in told and "this way is taken where item == True" in told
    assert "To read a number" in told or "to read a number" in told
    assert "Plan 1" in told and "Held on the device" in told
    assert "CutModel(Branching" in repr(fast)
    assert fast.facts["sections"][0]["model"]


def test_gradients_are_refused() -> None:
    fast = compiled(net(Masked), rows())
    found = fast(rows())
    assert found.requires_grad
    with pytest.raises(RuntimeError, match="backward"):
        found.sum().backward()
    with torch.no_grad():
        assert not fast(rows()).requires_grad


def test_threads_get_their_own_results() -> None:
    model = net(Numbered)
    fast = compiled(model, rows())
    given = [torch.randn(6, 8) for _ in range(8)]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(fast(given[number]), model(given[number]), atol=1e-5):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.library.custom_op("cut_tests::head", mutates_args=())
def head(x: Tensor, least: float) -> Tensor:
    return x[: int((x[:, 0] > least).sum())].clone()


def test_an_operator_that_says_nothing_of_its_result_is_a_cut() -> None:
    class Headed(Masked):
        def forward(self, x: Tensor, least: float = 0.0) -> Tensor:
            found: Tensor = head(self.layers(x), least) * 2
            return found

    model = net(Headed)
    fast = compiled(model, torch.randn(6, 8))
    assert fast.known["forms"][0]["paths"][0]["cuts"][0]["operator"] == "cut_tests.head"
    for _ in range(CALLS):
        x = torch.randn(6, 8)
        torch.testing.assert_close(fast(x), model(x))


class Suppressed(nn.Module):
    """A loop that collects in a mask what is done, and noise on what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        done = y[:, 0] > 0
        done |= y[:, 1] > 0
        done &= y[:, 2] > -1
        done ^= y[:, 3] > 1
        y = y[~done]
        return y + torch.rand(y.shape)


def test_masks_are_written_to_in_place_and_compiling_draws_nothing() -> None:
    torch.manual_seed(0)
    model, x = Suppressed().eval(), torch.randn(9, 8)
    before = torch.get_rng_state()
    fast = compiled(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    found = fast(x)
    torch.set_rng_state(before)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x))


class Noisy(nn.Module):
    """Draws before it asks, and one of its ways again after that."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.last = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x + torch.rand(3, 8))
        if x.sum() > 0:
            y = y + torch.rand(8)
            if x.amax() > 5:
                y = y * 2
        result: Tensor = self.last(y)
        return result + torch.rand(8)


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_a_way_that_is_not_gone_draws_nothing(examples: int) -> None:
    torch.manual_seed(0)
    model, x = Noisy().eval(), torch.randn(3, 8).abs()
    calls = [x, x + 6, -x]
    fast = compiled(model, calls[0])
    for call in calls[1:examples]:
        fast.add(call)
    for call in (*calls, *reversed(calls)):
        before = torch.get_rng_state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fast(call)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        with torch.no_grad():
            torch.testing.assert_close(found, model(call))
        assert torch.equal(torch.get_rng_state(), after)


class Sided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return self.layers(x.tanh()) if x.sum() < 0 else y


def test_a_way_that_another_layout_of_the_inputs_was_shown() -> None:
    torch.manual_seed(0)
    model, rows = Sided().eval(), torch.randn(2, 3).abs()
    fast = anabranch.compile(model, (rows,), target="cpu", search="none", unseen="refuse")
    fast.add((-rows.t().contiguous().t(),))
    with torch.no_grad():
        for x in (rows, -rows, rows.t().contiguous().t()):
            torch.testing.assert_close(fast(x), model(x))
