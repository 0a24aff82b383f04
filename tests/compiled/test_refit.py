"""Refitting: a plan with new weights is the plan that the model with these weights would get."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nested import nested_tensor
from torch.nn.utils import parametrize
from torch.testing._internal.two_tensor import TwoTensor

import anabranch
from anabranch.artifact import file as artifact_file
from anabranch.artifact import reading, schema
from anabranch.artifact.refits import RecipeModel
from anabranch.errors import NumericsError, OptionError, WeightsError


class Folds(nn.Module):
    """Norms that fold into weights and one that stays pointwise, groups, a transposed convolution,
    a weight of the model's own arithmetic, and a tensor that its code makes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.deep, self.last = nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8)
        self.up, self.after = nn.ConvTranspose2d(8, 8, 2, groups=2), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.tensor([0.5, 2.0] * 4, dtype=x.dtype)[:, None, None]
        scale = scale + self.norm.weight[:, None, None].exp()
        y = torch.relu(self.last(torch.relu(self.deep(self.norm(self.conv(x))))))
        return torch.relu(self.after(self.up(y * scale)))


class Heads(nn.Module):
    """Attention that is written out: a factor of each head, a bias looked up by a buffer that no
    state dict has, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.strength = nn.Parameter(torch.zeros(2, 1, 1))
        self.table = nn.Parameter(torch.randn(7, 2))
        places = torch.arange(4)
        self.where: Tensor
        self.register_buffer("where", places[:, None] - places[None] + 3, persistent=False)
        self.register_buffer("mask", torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * self.strength.clamp(max=4.0).exp()
        scores = scores + self.table[self.where].permute(2, 0, 1) + self.mask
        y: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
        return y


class Tied(nn.Module):
    """An embedding that is the last layer's weight too, and two biases that begin alike."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.words.weight
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        for line in (self.one, self.two):
            nn.init.zeros_(line.bias)

    def forward(self, ids: Tensor) -> Tensor:
        y = self.words(ids)
        z: Tensor = self.head(torch.tanh(self.one(y)) + torch.sigmoid(self.two(y)))
        return z


def image() -> Tensor:
    return torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))


def tokens() -> Tensor:
    return torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1))


def words() -> Tensor:
    return torch.tensor([[1, 2, 3], [9, 0, 4]])


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "folds": (Folds, image),
    "heads": (Heads, tokens),
    "tied": (Tied, words),
}


def made(kind: Callable[[], nn.Module], seed: int = 0, dtype: torch.dtype | None = None) -> Any:
    torch.manual_seed(seed)
    model = kind().eval()
    if seed:
        varied(model)
    return model.to(dtype) if dtype is not None else model


def varied(model: nn.Module) -> None:
    """Other weights, in place; variances stay positive, and a mask that is added stays finite."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point():
                noise = torch.rand_like(tensor)
                tensor.copy_(noise + 0.5 if "running_var" in name else noise - 0.3)


def compiled(model: Any, x: Tensor, target: str = "cpu", **options: Any) -> anabranch.Compiled:
    told = {"search": "none", "scheduler": "sequential", "cache_dir": None, **options}
    return anabranch.compile(model, (x,), target=target, **told)


def same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


WHERE = [
    *(("folds", "cpu"), ("heads", "cpu fp16"), ("tied", "cpu"), ("folds", "cpu fp16")),
    *(("folds", "sim:h200 tf32"), ("heads", "sim:h200"), ("tied", "sim:h200 tf32")),
]
"""Each net on both targets; tf32 rounds constants, and fp16 rounds what is folded. Compiling fp16
kernels for a GPU takes seconds and derives no constant otherwise."""


@pytest.mark.parametrize(("net", "target"), WHERE)
def test_constants_are_those_of_a_plan_made_for_the_new_weights(net: str, target: str) -> None:
    kind, example = NETS[net]
    where, _, how = target.partition(" ")
    dtype = torch.float16 if how == "fp16" else None
    options: dict[str, Any] = {"tf32": how == "tf32"}
    x = example() if dtype is None or net == "tied" else example().to(dtype)
    old, new = made(kind, 0, dtype), made(kind, 1, dtype)
    fast, other = (compiled(model, x, where, **options) for model in (old, new))
    fast.refit(new)
    got, want = ({c.name: c for c in f.entries[0].plan.tasks.constants} for f in (fast, other))
    assert got.keys() == want.keys()
    for name, constant in got.items():
        assert constant.type == want[name].type
        assert torch.equal(constant.value, want[name].value), name  # type: ignore[arg-type]


def test_two_biases_that_were_equal_may_differ() -> None:
    model = made(Tied)
    fast = compiled(model, words())
    with torch.no_grad():
        model.two.bias.add_(3)
        fast.refit(model)
        same(fast(words()), model(words()))


def test_all_sizes_take_the_new_weights_and_a_model_that_is_no_module_has_none() -> None:
    model, x = made(Folds), image()
    fast = compiled(model, x)
    fast.add((x[:1],))
    varied(model)
    fast.refit(model.state_dict(), check=True)
    with torch.no_grad():
        for batch in (x, x[:1]):
            same(fast(batch), model(batch))
    held = torch.randn(3)
    function = compiled(lambda x: x * held.exp(), torch.ones(3))
    with pytest.raises(WeightsError, match="compiled from a function"):
        function.refit({})


MISFITS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "none at all": (lambda s: {}, "missing: conv.weight, norm.weight, norm.bias and"),
    "one missing": (lambda s: {k: v for k, v in s.items() if k != "up.bias"}, "missing: up.bias"),
    "one too many": (lambda s: {**s, "extra": s["up.bias"]}, "not in the model: extra"),
    "a wrapped model's": (lambda s: {f"module.{k}": v for k, v in s.items()}, "prefix 'module.'"),
    "another shape": (
        lambda s: {**s, "deep.bias": torch.ones(4)},
        r"deep.bias has the shape \(4,\), compiled was \(8,\)",
    ),
    "another dtype": (
        lambda s: {**s, "deep.bias": s["deep.bias"].double()},
        "deep.bias is of torch.float64, compiled was torch.float32",
    ),
    "no data": (lambda s: {**s, "deep.bias": torch.ones(8, device="meta")}, "without data"),
    "no tensor": (lambda s: {**s, "deep.bias": 3.0}, "'deep.bias' is a float"),
    "another model": (lambda s: made(Heads), "not in the model: strength, table, qkv.weight"),
    "no weights": (lambda s: 3, "a int holds no weights"),
}


@pytest.fixture(scope="module")
def folds() -> tuple[Any, anabranch.Compiled]:
    model = made(Folds)
    return model, compiled(model, image())


@pytest.mark.parametrize("how", MISFITS)
def test_what_does_not_fit_is_refused_in_words(
    how: str, folds: tuple[Any, anabranch.Compiled]
) -> None:
    (_, fast), (misfit, words) = folds, MISFITS[how]
    before = fast(image())
    with pytest.raises((WeightsError, OptionError), match=words):
        fast.refit(misfit(made(Folds, 1).state_dict()))
    assert torch.equal(fast(image()), before)


def test_tied_weights_must_stay_tied() -> None:
    model = made(Tied)
    fast = compiled(model, words())
    before = fast(words())
    apart = {name: value.clone() for name, value in made(Tied, 1).state_dict().items()}
    fast.refit(apart)  # two tensors of one content
    apart["words.weight"].mul_(2)
    now = fast(words())
    assert not torch.equal(now, before)
    with pytest.raises(WeightsError, match=r"head.weight.* were one tensor"):
        fast.refit(apart)
    assert torch.equal(fast(words()), now)
    alone = {name: value for name, value in apart.items() if name != "words.weight"}
    fast.refit(alone)  # one of the names is enough


def freed(weight: Tensor) -> Tensor:
    """As sharded training leaves a weight between two steps."""
    weight = weight.clone()
    weight.untyped_storage().resize_(0)
    return weight


def two(weight: Tensor) -> Tensor:
    kind: Any = TwoTensor
    made_of: Tensor = kind(weight, weight)
    return made_of


UNREADABLE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "no data": (lambda w: w.to("meta"), "a tensor without data"),
    "fake": (lambda w: FakeTensorMode().from_tensor(w), "a tensor without data"),
    "freed": (freed, "a tensor whose memory has been freed"),
    "lazy": (lambda w: nn.UninitializedParameter(), "a weight of a lazy layer"),
    "sparse": (lambda w: w.to_sparse(), "a sparse, nested or quantised tensor"),
    "rows": (lambda w: w.to_sparse_csr(), "a sparse, nested or quantised tensor"),
    "nested": (lambda w: nested_tensor(list(w)), "a sparse, nested or quantised tensor"),
    "quantised": (
        lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8),
        "a sparse, nested or quantised tensor",
    ),
    "two": (two, "a TwoTensor, which holds its numbers in a way of its own"),
}


@pytest.mark.parametrize("both", [False, True], ids=["one name", "both names"])
@pytest.mark.parametrize("how", UNREADABLE)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta state|deprecated).*:UserWarning")
def test_numbers_that_cannot_be_read_are_refused_in_words(how: str, both: bool) -> None:
    made_of, words_for = UNREADABLE[how]
    model = made(Tied)
    fast = compiled(model, words())
    before = fast(words())
    state = made(Tied, 1).state_dict()
    odd = made_of(state["words.weight"].detach())
    state.update({"words.weight": odd, **({"head.weight": odd} if both else {})})
    with pytest.raises(WeightsError, match=f"words.weight is {words_for}"):
        fast.refit(state)
    with pytest.raises(RuntimeError, match=f"words.weight is {words_for}"):
        fast.load_state_dict(state)
    assert torch.equal(fast(words()), before)


def test_a_weight_may_become_infinite_where_nothing_relies_on_it() -> None:
    model = made(Tied)
    fast = compiled(model, words())
    with torch.no_grad():
        model.one.bias[0], model.two.bias[1] = float("inf"), float("nan")
        fast.refit(model)
        torch.testing.assert_close(fast(words()), model(words()), equal_nan=True)


RELIED: dict[str, tuple[Callable[[Any], None], str]] = {
    "a mask that hides a row": (lambda m: m.mask[1].fill_(-torch.inf), "mask hides all of a row"),
    "an index that points elsewhere": (lambda m: m.where.fill_(7), "where points outside"),
}


@pytest.mark.parametrize("what", RELIED)
def test_what_a_rewrite_saw_is_checked_again(what: str) -> None:
    spoil, said = RELIED[what]
    model = made(Heads)
    fast = compiled(model, tokens(), "sim:h200")
    assert any(
        node.op.startswith("aten.scaled_dot_product")
        for task in fast.entries[0].plan.tasks.tasks
        for node in task.body.nodes
    )
    held = fast.entries[0].plan.tasks.constants
    before = [c.value.clone() for c in held]  # type: ignore[union-attr]
    varied(model)
    spoil(model)
    with pytest.raises(WeightsError, match=said):
        fast.refit(model)
    assert all(torch.equal(a, c.value) for a, c in zip(before, held, strict=True))  # type: ignore[arg-type]


def test_a_check_that_fails_leaves_the_old_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(Folds)
    fast = compiled(model, image())
    before = fast(image())
    fast.refit(made(Folds, 1), check=True)
    fast.refit(model, check=True)
    monkeypatch.setattr("anabranch.compiled.refit.tolerances.compare", lambda *_: ((1.0, 1e-3),))
    with pytest.raises(NumericsError, match="old weights are in place"):
        fast.refit(made(Folds, 1), check=True)
    assert torch.equal(fast(image()), before)


class Adapted(nn.Module):
    """A layer with an update of low rank, which is merged into the weight or runs beside it, and a
    tensor that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.merged = nn.Linear(6, 6), False
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(6, 2))
        self.scales = [torch.full((6,), 2.0)]

    def merge(self) -> None:
        self.base.weight.data += self.up.data @ self.down.data
        self.merged = True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        y = y if self.merged else y + x @ self.down.t() @ self.up.t()
        return y * self.scales[0]


def in_training_mode(model: Adapted) -> None:
    model.train()
    model.base.weight.data.mul_(2.0)


OTHERWISE: dict[str, Callable[[Adapted], Any]] = {
    "merged": Adapted.merge,
    "another layer": lambda m: setattr(m, "base", nn.Sequential(m.base, nn.ReLU())),
    "a layer's class": lambda m: setattr(m.base, "__class__", Doubled),
    "a tensor in a list": lambda m: m.scales[0].mul_(3.0),
    "a hook": lambda m: m.base.register_forward_hook(lambda _, __, y: y * 2),
}


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("what", OTHERWISE)
def test_a_model_that_goes_another_way_is_refused(what: str, check: bool) -> None:
    """Its weights alone would make a third model of the plan."""
    model = made(Adapted)
    x = torch.arange(12.0).view(2, 6)
    fast = compiled(model, x)
    before = fast(x)
    OTHERWISE[what](model)
    with pytest.raises((NumericsError, WeightsError)):
        fast.refit(model, check)
    assert torch.equal(fast(x), before)


@pytest.mark.parametrize("change", [in_training_mode, lambda m: None])
def test_what_changes_no_result_is_no_other_way(change: Callable[[Adapted], Any]) -> None:
    model, x = made(Adapted), torch.arange(12.0).view(2, 6)
    fast = compiled(model, x)
    change(model)
    mode = model.training
    for check in (False, True):
        fast.refit(model, check)
        with torch.no_grad():
            same(fast(x), model(x))
    assert model.training == mode == model.base.training


def test_weights_that_are_half_written_answer_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = made(Folds), made(Folds, 1)
    fast = compiled(model, image())

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", fails)
        with pytest.raises(WeightsError, match="could not be written"):
            fast.refit(other)
    with pytest.raises(WeightsError, match="some of its new weights"):
        fast(image())
    fast.refit(other)
    with torch.no_grad():
        same(fast(image()), other(image()))


def test_a_recalled_plan_is_refitted(tmp_path: Path) -> None:
    for _ in range(2):
        model, x = made(Heads), tokens()
        fast = anabranch.compile(model, (x,), target="cpu", cache_dir=tmp_path)
        new = made(Heads, 1)
        fast.refit(new)
        with torch.no_grad():
            same(fast(x), new(x))
    assert any(event.why == "recalled from the cache" for event in fast.trace.events)


def test_calls_from_other_threads_have_old_weights_or_new_ones() -> None:
    models, x = [made(Folds, seed) for seed in (0, 1)], image()
    fast = compiled(models[0], x)
    with torch.no_grad():
        want = [model(x) for model in models]
    found: list[Tensor] = []
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            found.append(fast(x))

    thread = threading.Thread(target=call)
    thread.start()
    for i in range(20):
        fast.refit(models[1 - i % 2])
    done.set()
    thread.join()
    assert all(any(torch.allclose(y, w, 1e-3, 1e-4) for w in want) for y in found)


@pytest.mark.parametrize("net", NETS)
def test_a_loaded_plan_is_refitted_from_a_state_dict(net: str, tmp_path: Path) -> None:
    kind, example = NETS[net]
    compiled(made(kind), example()).save(tmp_path / "plan")
    fast, new = anabranch.load(tmp_path / "plan", target="cpu"), made(kind, 1)
    fast.refit(new.state_dict(), check=True)
    with torch.no_grad():
        same(fast(example()), new(example()))
    with pytest.raises(WeightsError, match="missing"):
        fast.refit({})
    fast.save(tmp_path / "again")
    again = anabranch.load(tmp_path / "again", target="cpu")
    with torch.no_grad():
        same(again(example()), new(example()))
        newer = made(kind, 2)
        same(again.refit(newer)(example()), newer(example()))


def test_conditions_are_saved(tmp_path: Path) -> None:
    model = made(Heads)
    compiled(model, tokens(), "sim:h200").save(tmp_path / "plan")
    plan, _ = artifact_file.load(tmp_path / "plan")
    relied = {(c.kind, c.numbers) for c in plan.recipe.conditions}  # type: ignore[union-attr]
    assert {("adds_to_each_row", (4,)), ("at_most", (128.0,)), ("within", (-7, 7))} <= relied
    fast = anabranch.load(tmp_path / "plan", target="sim:h200")
    model.mask[1].fill_(-torch.inf)
    with pytest.raises(WeightsError, match="mask hides all of a row"):
        fast.refit(model)


DAMAGES: dict[str, Callable[[RecipeModel], dict[str, Any]]] = {
    "a step that is of no sort": lambda r: {"steps": ((99,), *r.steps)},
    "a step that reads on": lambda r: {"steps": ((*r.steps[0][:1], 99), *r.steps[1:])},
    "a call that draws": lambda r: {"sorts": (RAND, *r.sorts[1:])},
    "a constant of another name": lambda r: {"made": {**r.made, "more": 0}},
    "a constant of another type": lambda r: {"made": dict.fromkeys(r.made, 0)},
    "a condition of another kind": lambda r: {
        "conditions": (r.conditions[0].model_copy(update={"kind": "lucky"}), *r.conditions[1:])
    },
    "weights that nobody holds": lambda r: {
        "given": tuple(one.model_copy(update={"names": ("elsewhere",)}) for one in r.given)
    },
    "a condition without its numbers": lambda r: {
        "conditions": (r.conditions[0].model_copy(update={"numbers": ()}), *r.conditions[1:])
    },
}
RAND = "%n: f32[8] = aten.rand.default([8])"


@pytest.fixture(scope="module")
def heads() -> anabranch.Compiled:
    return compiled(made(Heads), tokens())


@pytest.mark.parametrize("how", DAMAGES)
def test_a_recipe_that_is_none_is_not_read(how: str, heads: anabranch.Compiled) -> None:
    parts = schema.write(heads.entries[0].plan, {})
    told = schema.Document.model_validate_json(parts.text)
    assert told.recipe is not None
    recipe = told.recipe.model_copy(update=DAMAGES[how](told.recipe))
    text = told.model_copy(update={"recipe": recipe}).model_dump_json().encode()
    with pytest.raises((ValueError, LookupError)):
        reading.read(text, parts.sources, parts.tensors)


class Turning(nn.Module):
    """Computes constants of weights with complex numbers, and with nothing, that it just holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.turns = torch.polar(torch.ones(2), torch.arange(2.0))
        self.none = torch.zeros(0, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = torch.view_as_real(self.turns * 2).flatten() * self.linear.weight
        return self.linear(x) @ turned, torch.cat([self.none, self.linear.weight]) * 2


def test_a_loaded_plan_has_what_no_state_dict_brings(tmp_path: Path) -> None:
    new, x = made(Turning, 1), torch.randn(2, 4)
    compiled(made(Turning), x).save(tmp_path / "plan")
    fast = anabranch.load(tmp_path / "plan", target="cpu")
    fast.refit(new.state_dict())
    for got, want in zip(fast(x), new(x), strict=True):
        same(got, want.detach())


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def test_load_state_dict_refits_and_state_dict_gives_what_plans_have(tmp_path: Path) -> None:
    model, new, x = made(plain), made(plain, 1), torch.randn(4, 6)
    fast = compiled(model, x)
    assert not fast.load_state_dict(new.state_dict()).missing_keys
    have, want = fast.state_dict(), new.state_dict()
    assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)
    fast.load_state_dict({"2.bias": torch.ones(3)}, strict=False)
    with torch.no_grad():
        new[2].bias.fill_(1)
        same(fast(x), new(x))
    fast.save(tmp_path / "plan")
    again = anabranch.load(tmp_path / "plan", target="cpu")
    have = again.state_dict()
    assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        same(again(x), model(x))
    with pytest.raises(RuntimeError, match=r"2.bias has shape"):
        again.load_state_dict({**want, "2.bias": torch.ones(5)})


def test_a_state_dict_is_in_the_models_order(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    fast = anabranch.compile(model.eval(), (torch.randn(2, 4),), target="cpu", search="none")
    fast.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    fast.save(tmp_path / "plan")
    loaded = anabranch.load(tmp_path / "plan", target="cpu")
    loaded.load_state_dict(model.state_dict())
    for compiled in (fast, copy.deepcopy(fast), loaded):
        assert list(compiled.state_dict()) == list(model.state_dict())


def test_a_state_dict_of_other_dtypes_is_cast_as_by_a_module() -> None:
    model, x = made(Folds), image()
    fast = compiled(model, x)
    half = {
        k: v.half() if v.is_floating_point() else v for k, v in made(Folds, 1).state_dict().items()
    }
    for each in (model, fast):
        each.load_state_dict(half)
    same(fast(x), model(x).detach())


def test_a_state_dict_of_nothing_changes_nothing() -> None:
    """One of the rest of a model around it, say, where weights that were folded are unknown."""
    model, x = made(Folds), image()
    fast = compiled(model, x)
    fast.load_state_dict(made(Folds, 1).state_dict())
    before = fast(x)
    head = nn.Linear(2, 2)
    around = nn.ModuleDict({"fast": fast, "head": head})
    left = around.load_state_dict({"head.bias": torch.ones(2)}, strict=False)
    assert "fast.conv.weight" in left.missing_keys
    assert torch.equal(fast(x), before) and float(head.bias.sum()) == 2


def test_what_a_state_dict_holds_of_a_models_code_is_no_weight() -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None:
            pass

    model, new = (nn.Sequential(Counting(4, 4)).eval() for _ in range(2))
    fast, x = compiled(model, torch.randn(2, 4)), torch.randn(2, 4)
    fast.load_state_dict(new.state_dict())
    same(fast(x), new(x).detach())


def test_a_weight_that_no_plan_reads_is_the_one_that_was_given_last() -> None:
    """Not the one that the model happened to have."""

    class Pooled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.pooler = nn.Linear(4, 4)

    model, new, x = Pooled().eval(), Pooled().eval(), torch.randn(2, 4)
    fast = compiled(model, x)
    fast.load_state_dict(new.state_dict())
    for held in (fast, copy.deepcopy(fast), fast.session()):
        have, want = held.state_dict(), new.state_dict()
        assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)
    fast.refit(Pooled().eval())
    with pytest.raises(OptionError, match=r"has no pooler\.weight, which no"):
        fast.state_dict()
    fast.refit(model)
    have, want = fast.state_dict(), model.state_dict()
    assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)


def test_a_part_of_folded_weights_goes_with_those_of_the_unchanged_model() -> None:
    model, new, x = made(Folds), made(Folds, 1), image()
    fast, part = compiled(model, x), {"norm.weight": new.norm.weight.detach().clone()}
    with pytest.raises(RuntimeError, match="Missing key"):
        anabranch.compile(model, (x,), target="cpu", cache_dir=None).load_state_dict(part)
    fast.load_state_dict(part, strict=False)
    whole = made(Folds)
    whole.load_state_dict(part, strict=False)
    with torch.no_grad():
        same(fast(x), whole(x))
    more = {"last.bias": new.last.bias.detach()}
    for given in (part, more):
        fast.load_state_dict(given, strict=False)
        whole.load_state_dict(given, strict=False)
        have, want = fast.state_dict(), whole.state_dict()
        assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)
        with torch.no_grad():
            same(fast(x), whole(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda fast: pickle.loads(pickle.dumps(fast))])
def test_copies_know_weights_that_were_folded(copied: Any) -> None:
    model, new, x = made(Folds), made(Folds, 1), image()
    own = copied(copied(compiled(model, x)))
    for source in (model, new):
        if source is new:
            assert not own.load_state_dict(new.state_dict()).missing_keys
        have, want = copied(own).state_dict(), source.state_dict()
        assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)
        with torch.no_grad():
            same(own(x), source(x))
    kept = sum(value.nbytes for value in own._beside.values())
    assert kept and own.memory().weights == kept + compiled(model, x).memory().weights
    own.refit(model)
    with pytest.raises(OptionError, match="not known by name"):
        own.state_dict()


def test_an_average_of_a_model_around_it_has_its_weights() -> None:
    around = nn.Sequential(compiled(made(Folds), image()), nn.Linear(2, 2))
    average = torch.optim.swa_utils.AveragedModel(around)
    average.update_parameters(around)
    have, want = average.module.state_dict(), around.state_dict()
    assert have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want)


def test_a_shallow_copy_knows_that_its_plans_were_refitted() -> None:
    model, new = made(plain), made(plain, 1)
    fast = compiled(model, torch.randn(4, 6))
    other = copy.copy(fast)
    for one, refitted in ((fast, new), (other, model)):
        one.refit(refitted)
        want = refitted.state_dict()
        for held in (fast, other):
            have = held.state_dict()
            assert all(torch.equal(have[name], want[name]) for name in want)


def test_weights_that_were_folded_are_asked_of_the_model() -> None:
    model, new = made(Folds), made(Folds, 1)
    fast = compiled(model, image())
    fast.refit(new)
    with pytest.raises(OptionError, match="has only what was computed of it"):
        fast.state_dict()
    model.load_state_dict(new.state_dict())
    fast.refit(model)
    assert all(torch.equal(value, new.state_dict()[k]) for k, value in fast.state_dict().items())
    fast.load_state_dict(made(Folds, 2).state_dict())
    with torch.no_grad():
        same(fast(image()), made(Folds, 2)(image()))


def test_plans_of_several_sizes_have_the_same_weights() -> None:
    model, x = made(Folds), image()
    fast = compiled(model, x)
    with torch.no_grad():
        model.norm.weight.mul_(2)
    with pytest.raises(OptionError, match=r"other weights than the plans.*: norm.weight"):
        fast.add((x[:1],))
    fast.refit(model).add((x[:1],))
    with torch.no_grad():
        same(fast(x[:1]), model(x[:1]))
        same(fast(x), model(x))
        fast.refit(made(Folds, 1))
        with pytest.raises(OptionError, match="other weights"):
            fast.add((x[:2, :, :8, :8],))
        fast.refit(model)  # to what the first plan was made with: nothing is taken for that
        model.norm.weight.div_(2)
        fast.refit(model).add((x[:2, :, :8, :8],))
        for y in (x, x[:1], x[:2, :, :8, :8]):
            same(fast(y), model(y))


class Set(nn.Module):
    """Attributes that are no tensors, and a tensor that no name leads to."""

    def __init__(self, eps: float = 1e-5, stride: int = 1, by: float = 2.0, p: float = 0.1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=stride), nn.BatchNorm2d(4, eps=eps)
        self.drop, self.by, self.listed = nn.Dropout(p), by, [torch.tensor(by)]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.norm(self.conv(x))) * self.by + self.listed[0]
        return y


@pytest.mark.parametrize("saved", [False, True])
@torch.no_grad()
def test_a_model_of_other_attributes_is_no_new_weights(saved: bool, tmp_path: Path) -> None:
    """Its weights alone can be taken; what changes nothing in eval mode may differ."""
    x = torch.randn(2, 3, 8, 8)
    model = Set().eval()
    fast = anabranch.compile(model, (x,), target="cpu", cache_dir=None, search="none")
    if saved:
        fast.save(tmp_path / "plan")
        fast = anabranch.load(tmp_path / "plan", target="cpu")
    before = fast(x)
    others = {"norm": Set(eps=0.1), "conv": Set(stride=2), "the model": Set(by=3.0)}
    for name, given in others.items():
        with pytest.raises(WeightsError, match=f"^{name} is another module") as said:
            fast.refit(given.eval())
        assert "state_dict()" in str(said.value)
        assert torch.equal(fast(x), before)
    fast.refit(Set(eps=0.1).state_dict())
    like = Set(p=0.5).train()
    like.norm.momentum = 0.9
    fast.refit(like)
    torch.testing.assert_close(fast(x), like.eval()(x), rtol=1e-4, atol=1e-5)
    model.by = 5.0
    with pytest.raises(WeightsError, match="the model is another module"):
        fast.refit(model)


@torch.no_grad()
def test_wrapping_a_model_for_torch_makes_no_other_of_it() -> None:
    model = made(Tied)
    fast = compiled(model, words())
    varied(model)
    fast.refit(torch.compile(model))
    torch.testing.assert_close(fast(words()), model(words()).detach())


def test_another_class_with_the_same_names_is_no_new_weights() -> None:
    x = torch.randn(3, 4)
    first = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast = anabranch.compile(first, (x,), target="cpu", cache_dir=None, search="none")
    with pytest.raises(WeightsError, match=r"^1 is another module.*GELU"):
        fast.refit(nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval())
    with pytest.raises(WeightsError, match=r"^2 is another module"):
        fast.refit(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh()).eval())


def test_refitting_leaves_the_mode_of_gradients() -> None:
    """Also where constants are computed half way, and whoever asked for them has left."""
    model, x = Folds().eval(), torch.randn(1, 3, 8, 8)
    fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
    fast.refit(model)
    assert torch.is_grad_enabled()
    (entry,) = fast.entries
    fit = entry.fit()
    assert entry.compilation is not None
    constants = entry.compilation.captured.graph.constants
    given = {one.name: one.value for one in constants if one.value is not None}
    with torch.no_grad():
        steps = fit.program.values(given, torch.device("cpu"))
        assert next(steps)
    assert torch.is_grad_enabled()
    del steps
    assert torch.is_grad_enabled()


class TwiceTheWeight(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def test_parametrized_weights_are_derived_also_where_torch_caches_them() -> None:
    layer: Any = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", TwiceTheWeight())
    model, x = nn.Sequential(layer).eval(), torch.randn(2, 3)
    with parametrize.cached():
        fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
        assert model(x).requires_grad, "the user's cache holds nothing of ours"
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(1)
    fast.refit(model)
    torch.testing.assert_close(fast(x).detach(), model(x).detach())


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_weight_that_is_taken_apart(pieces: int) -> None:
    """Also into one piece, of which torch makes a list of one."""

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(pieces, 3))

        def forward(self, x: Tensor) -> Tensor:
            for row in self.weight.unbind(0):
                x = x * row.unsqueeze(0).exp()
            return x

    model, x = Apart().eval(), torch.randn(2, 3)
    with torch.no_grad():
        fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
        model.weight.add_(0.5)
        fast.refit(model)
        torch.testing.assert_close(fast(x), model(x))
