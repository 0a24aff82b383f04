"""compile, call, save, load: as a user has them, on the CPU."""

from __future__ import annotations

import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import anabranch
from anabranch.cache import Cache
from anabranch.compiled.cuts import CutModel
from anabranch.errors import NumericsError, OptionError
from anabranch.kernels.triton import program_cache
from anabranch.options import Options
from anabranch.trace import Trace


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.right = nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        both = torch.cat([self.left(x), self.right(x)], 1)
        return {"logits": self.head(both.mean((2, 3))) * scale, "input": x, "view": x[:, 0]}


@torch.library.custom_op("anabranch_api::single", mutates_args=())
def single(x: torch.Tensor) -> torch.Tensor:
    assert x.dtype == torch.float32, "for float32 alone"
    return x * 2


@single.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def model() -> Branches:
    torch.manual_seed(0)
    made = Branches().eval()
    for parameter in made.buffers():
        if parameter.is_floating_point():
            parameter.uniform_(0.5, 1.5)
    return made


def image(batch: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def quick(**options: Any) -> dict[str, Any]:
    return {"target": "cpu", "cache_dir": None, **options}


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got["logits"], want["logits"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got["view"], want["view"])


def test_computes_the_same_on_fresh_inputs() -> None:
    net = model()
    fast = anabranch.compile(net, (image(),), **quick())
    for seed in range(3):
        x = image(seed=seed)
        with torch.no_grad():
            same(fast(x), net(x))
        assert fast(x)["input"] is x


def test_results_are_the_callers_own_unless_views_are_asked_for() -> None:
    first = anabranch.compile(model(), (image(),), **quick())
    a = first(image(seed=1))["logits"]
    kept = a.clone()
    first(image(seed=2))
    assert torch.equal(a, kept)
    views = anabranch.compile(model(), (image(),), **quick(outputs="view"))
    a = views(image(seed=1))["logits"]
    views(image(seed=2))
    assert not torch.equal(a, kept)


def test_a_literal_is_part_of_the_signature() -> None:
    net = model()
    fast = anabranch.compile(net, (image(),), {"scale": 2.0}, **quick())
    same(fast(image(), scale=2.0), net(image(), scale=2.0))
    with pytest.raises(anabranch.InputError, match=r"2\.0"):
        fast(image(), scale=3.0)


def test_another_shape_is_refused_with_what_there_is_or_padded_or_added() -> None:
    net = model()
    fast = anabranch.compile(net, (image(4),), **quick())
    with pytest.raises(anabranch.InputError, match="compiled:") as refused:
        fast(image(3))
    assert "[4,3,8,8]" in str(refused.value)
    padded = anabranch.compile(net, (image(4),), **quick(batch="pad"))
    with torch.no_grad():
        same(padded(image(3)), net(image(3)))
        assert padded(image(3))["logits"].shape == (3, 5)
        fast.add((image(3),))
        same(fast(image(3)), net(image(3)))
        same(fast(image(4)), net(image(4)))
        same(padded(image(5)), net(image(5)))  # four rows, and one
    with pytest.raises(anabranch.InputError, match="has 0 rows"):
        padded(image(0))


def test_padding_that_would_show_is_refused() -> None:
    def together(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.mean()

    def writes(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    for function, words in (
        (together, "mean.*along the padded axis"),
        (writes, "writes to its inputs"),
    ):
        with pytest.raises(anabranch.OptionError, match=words):
            anabranch.compile(function, (torch.ones(4, 3),), **quick(batch="pad"))


def test_saved_plans_compute_the_same_and_need_no_model(tmp_path: Path) -> None:
    net = model()
    path = tmp_path / "model.anabranch"
    anabranch.compile(net, (image(),), **quick()).save(path)
    fast = anabranch.load(path, target="cpu")
    with torch.no_grad():
        same(fast(image(seed=5)), net(image(seed=5)))
    assert fast.facts["tasks"] > 0
    with pytest.raises(anabranch.ArtifactError, match="cannot run its kernels"):
        anabranch.load(path, target="sim:h200")
    with pytest.raises(anabranch.OptionError, match="cannot be compiled for other inputs"):
        fast.add((image(7),))


def test_who_saves_a_plan_keeps_what_was_written_of_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = quick(target="sim:h200", search="none", cache_dir=tmp_path)
    fast = anabranch.compile(model(), (image(),), **options)
    fast.save(tmp_path / "model.anabranch")
    monkeypatch.setattr("anabranch.kernels.triton.codegen.LEARNED", {})
    kernels = [task.kernel for task in fast.entries[-1].plan.tasks.tasks if task.kernel]
    assert any(kernel.provider == "triton" for kernel in kernels)
    with Cache.open(tmp_path) as cache:
        assert program_cache.recall(cache, kernels) == {}


def test_results_of_any_numbers_and_of_torchs_own_tuples_are_saved(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    for name, model in (
        ("nan", lambda x: x.masked_fill(x < 0, float("nan"))),
        ("sort", lambda x: (x.sort(1), {"most": x.topk(2)})),
    ):
        fast = anabranch.compile(model, x, target="cpu", cache_dir=None)
        fast.save(tmp_path / name)
        got, want = anabranch.load(tmp_path / name, target="cpu")(x), model(x)
        torch.testing.assert_close(got, want, equal_nan=True)
        assert name != "sort" or type(got[0]) is torch.return_types.sort


Named = namedtuple("Named", "a b")


class Nameless:
    """Registered with pytree, under no name."""

    def __init__(self, a: torch.Tensor) -> None:
        self.a = a


def test_a_structure_that_nobody_else_knows_is_not_saved(tmp_path: Path) -> None:
    """Not written, to be refused when it is read."""
    pytree.register_pytree_node(
        Nameless, lambda held: ([held.a], None), lambda values, _: Nameless(*values)
    )
    fast = anabranch.compile(
        lambda x: Nameless(x + 1), torch.randn(3), target="cpu", cache_dir=None
    )
    with pytest.raises(OptionError, match="a class or a key in the model's results has no name"):
        fast.save(tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_a_named_tuple_comes_back_with_its_fields(tmp_path: Path) -> None:
    x = torch.randn(3)
    fast = anabranch.compile(lambda x: Named(x + 1, x * 2), x, target="cpu", cache_dir=None)
    fast.save(tmp_path / "plan")
    got = anabranch.load(tmp_path / "plan", target="cpu")(x)
    assert type(got).__name__ == "Named" and got._fields == ("a", "b")
    assert torch.equal(got.a, x + 1) and torch.equal(got[1], x * 2)


def test_a_damaged_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.anabranch"
    anabranch.compile(model(), (image(),), **quick()).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(anabranch.ArtifactError):
        anabranch.load(path, target="cpu")


def test_facts_say_what_was_measured() -> None:
    facts = anabranch.compile(model(), (image(),), **quick()).facts
    assert facts["latency_source"] == "measured"
    assert set(facts["baselines"]) == {"eager", "sequential"}
    assert facts["latency_ms"] <= facts["baselines"]["sequential"]
    assert all(error < 1e-5 for error in facts["max_relative_error"])
    assert facts["peak_bytes"] <= 1.25 * facts["peak_bytes_sequential"] + 4096
    assert {"name", "latency_ms", "streams", "waits"} <= set(facts["schedules"][0])


def test_explains_and_reports(tmp_path: Path) -> None:
    fast = anabranch.compile(model(), (image(),), **quick())
    text = fast.explain()
    assert repr(text) == str(text) and "Schedules" in text and "fold_batch_norm" in text
    fast.report(tmp_path / "report.html")
    assert "Branches" in (tmp_path / "report.html").read_text()


def test_explains_one_task_of_a_plan_and_of_its_file(tmp_path: Path) -> None:
    fast = anabranch.compile(model(), (image(),), **quick())
    name = fast.entries[-1].plan.tasks.tasks[0].name
    text, known = fast.explain(task=name), fast.about(name)
    assert repr(text) == str(text) and "measured" in text and "Candidates: " in text
    assert "test_api.py:" in text and known["candidates"] and known["us"] > 0
    fast.save(tmp_path / "plan.anabranch")
    loaded = anabranch.load(tmp_path / "plan.anabranch", target="cpu")
    assert loaded.about(name) == {**known, "candidates": None, "us": None, "source": None} | {
        "decided": []
    }
    assert "Candidates: not in the file" in loaded.explain(task=name)
    with pytest.raises(OptionError, match="there is no task 'nothing'"):
        loaded.explain(task="nothing")


def test_a_second_compilation_exports_and_measures_nothing(tmp_path: Path) -> None:
    net, traces = model(), (Trace(), Trace())
    for trace in traces:
        # No search: what a search finds by noise would be rewritten, and recalled, as well.
        anabranch.compile(net, (image(),), **quick(cache_dir=tmp_path, search="none"), trace=trace)
    cold, warm = ([event.what for event in trace.events] for trace in traces)
    assert "frontend.export" in cold and "frontend.export" not in warm
    recalled = [e.where for e in traces[1].events if e.why == "recalled from the cache"]
    assert recalled == ["capture", "rewrite", "recall"]
    stages = [event.what for event in traces[1].events if event.kind == "stage"]
    assert not {"fusion", "tuning", "probe", "schedule", "memory"}.intersection(stages)


def test_changed_weights_are_seen_by_a_warm_start(tmp_path: Path) -> None:
    net = model()
    anabranch.compile(net, (image(),), target="cpu", cache_dir=tmp_path)
    with torch.no_grad():
        net.head.weight.mul_(3)
        fast = anabranch.compile(net, (image(),), target="cpu", cache_dir=tmp_path)
        same(fast(image()), net(image()))


def test_concurrent_calls_do_not_mix() -> None:
    net = model()
    fast = anabranch.compile(net, (image(),), **quick())
    wrong: list[int] = []

    def call(seed: int) -> None:
        with torch.no_grad():
            want = net(image(seed=seed))["logits"]
        for _ in range(10):
            if not torch.allclose(fast(image(seed=seed))["logits"], want, atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheduler": "fifo"}, "best, sequential"),
        ({"budget": -1}, "budget"),
        ({"fast": 3}, "known options"),
        ({"schedular": "ios"}, "did you mean scheduler"),
        ({"budget": -1}, "greater than 0"),
        ({"search_alpha": float("inf")}, "search_alpha = inf is not valid(.|\n)*finite"),
        ({"search_threshold": float("inf")}, "search_threshold = inf is not valid(.|\n)*finite"),
        (
            {"search_size_l": 50, "search_size_u": 10},
            "search_size_u = 10 (.|\n)*search_size_l, .* 50",
        ),
        ({"search_size_l": 50}, "search_size_u = 40 is not valid"),
        ({"seed": 2**70}, "seed = 1180591620717411303424 is not valid"),
        ({"seed": -(2**64)}, "seed = -18446744073709551616 is not valid"),
    ],
)
def test_wrong_options_say_what_is_right(options: dict[str, Any], words: str) -> None:
    with pytest.raises(anabranch.OptionError, match=words):
        anabranch.compile(model(), (image(),), **quick(**options))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("zoo:resnet50", (image(),)), "names of models are for the command line"),
        ((model(), 3), "positional inputs are a tuple"),
        ((model(), {"x": image()}), "keyword inputs a dict"),
        ((model(), (image(),), 2.0), "keyword inputs a dict"),
    ],
)
def test_what_is_no_call_of_a_model_is_said(call: tuple[Any, ...], words: str) -> None:
    with pytest.raises(anabranch.OptionError, match=words):
        anabranch.compile(*call, **quick())


def test_an_operator_for_one_dtype_alone_is_compiled() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = single(x.relu()) + 1
            return out

    x = image()
    fast = anabranch.compile(Own().eval(), (x,), **quick())
    torch.testing.assert_close(fast(x), x.relu() * 2 + 1)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_activations_in_fp8_round_as_they_do_in_eager() -> None:
    def quantised(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax() / 448
        return (x / scale).to(torch.float8_e4m3fn).float() * scale

    x = torch.randn(8, 16)
    fast = anabranch.compile(quantised, (x,), **quick())
    torch.testing.assert_close(fast(x), quantised(x))


def test_attention_layers_with_a_fast_path_of_their_own_are_compiled_with_a_warning() -> None:
    """Eager writes zeros at padded places; all others agree."""
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    x, padded = torch.randn(1, 4, 8), torch.tensor([[False, False, False, True]])
    fast = anabranch.compile(net, (x,), {"src_key_padding_mask": padded}, **quick())
    assert any("fast path" in event.why for event in fast.trace.events if event.kind == "warning")
    with torch.no_grad():
        got, want = (f(x, src_key_padding_mask=padded)[:, :3] for f in (fast, net))
    torch.testing.assert_close(got, want[:, :3], rtol=1e-4, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_fast_path_of_attention_stays_off_and_is_what_a_model_asks_for() -> None:
    mha = torch.backends.mha

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = nn.Buffer(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x * 2 if mha.get_fastpath_enabled() else x * 3

    x = torch.ones(2, 3)
    mha.set_fastpath_enabled(False)
    try:
        fast = anabranch.compile(Counting().eval(), (x,), **quick())
        assert not mha.get_fastpath_enabled()
        assert torch.equal(fast(x), x * 3)
        mha.set_fastpath_enabled(True)
        with pytest.raises(anabranch.InputError, match="get_fastpath_enabled"):
            fast(x)
    finally:
        mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("sample", [torch.bernoulli, torch.poisson, lambda p: p.multinomial(2)])
def test_operators_of_probabilities_are_given_such_when_they_are_timed(sample: Any) -> None:
    class Sampled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() + 0.0 * torch.sum(sample(x.sigmoid()))

    x = torch.randn(3, 4)
    fast = anabranch.compile(Sampled().eval(), (x,), **quick())
    torch.testing.assert_close(fast(x), x.sum())


def test_files_that_cannot_be_written_are_errors_that_name_them(tmp_path: Path) -> None:
    fast = anabranch.compile(nn.ReLU().eval(), (image(),), **quick())
    for write in (fast.save, fast.report):
        with pytest.raises(anabranch.AnabranchError, match=r"cannot write .*missing/file"):
            write(tmp_path / "missing" / "file")
        with pytest.raises(anabranch.AnabranchError, match="cannot write"):
            write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_training_mode_is_refused() -> None:
    with pytest.raises(anabranch.CaptureError, match="training"):
        anabranch.compile(model().train(), (image(),), **quick())


def test_the_global_state_is_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_num_threads()
    net = model()
    state = torch.get_rng_state()
    anabranch.compile(net, (image(),), **quick())
    assert torch.equal(torch.get_rng_state(), state)
    assert before[1:] == (torch.is_grad_enabled(), torch.get_num_threads())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_model_that_draws_leaves_the_generator_where_it_was() -> None:
    """It is run to be timed, compared and watched: all of that draws, and nobody shall see it."""

    class Draws(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.rand(2, 4)

    model, x = Draws(4, 4).eval(), torch.ones(2, 4)
    was = torch.get_rng_state()
    fast = anabranch.compile(model, (x,), **quick())
    fast.refit(model, check=True)
    fast.explain()
    assert torch.equal(torch.get_rng_state(), was)
    y = fast(x)
    torch.set_rng_state(was)
    torch.testing.assert_close(y, model(x))


def test_what_the_model_writes_to_its_inputs_is_written() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    example = torch.zeros(4)
    fast = anabranch.compile(Writes().eval(), (example,), **quick())
    assert torch.equal(example, torch.zeros(4))
    x = torch.ones(4)
    assert torch.equal(fast(x), torch.full((4,), 4.0))
    assert torch.equal(x, torch.full((4,), 2.0))


Pair = namedtuple("Pair", "a b")


def test_calls_of_any_structure_find_their_plan() -> None:
    """Of several, by shapes, in plain structures and in one that only pytree knows."""

    def minus(pair: Any, *, scale: float) -> dict[str, Any]:
        return {"pair": pair, "minus": [(pair[0] - pair[1]) * scale]}

    x, y, long = torch.randn(3), torch.randn(3), torch.randn(5)
    fast = anabranch.compile(minus, ((x, y),), {"scale": 2.0}, **quick())
    fast.add(((long, long),), {"scale": 3.0}).add((Pair(x, y),), {"scale": 2.0})
    for pair, scale in (((x, y), 2.0), ((long, long), 3.0), (Pair(y, x), 2.0)):
        got = fast(pair, scale=scale)
        assert type(got["pair"]) is type(pair) and got["pair"][0] is pair[0]
        torch.testing.assert_close(got["minus"], minus(pair, scale=scale)["minus"])
    wrong: list[tuple[Any, float]] = [((x, y), 3.0), ([x, y], 2.0), (Pair(long, long), 3.0)]
    for pair, scale in wrong:
        with pytest.raises(anabranch.InputError, match=r"compiled: .*f32\[3\].*; .*f32\[5\]"):
            fast(pair, scale=scale)


class Gram(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) @ x.transpose(0, 1)


@pytest.mark.parametrize("strides", [(0, 1), (1, 1)])
def test_an_example_that_repeats_itself_is_not_taken_for_a_promise(
    strides: tuple[int, int],
) -> None:
    example = torch.randn(6).as_strided((3, 4), strides)
    other = torch.randn(3, 4)
    fast = anabranch.compile(Gram().eval(), (example,), **quick())
    for x in (other, example):
        torch.testing.assert_close(fast(x), Gram()(x))


def test_tasks_read_expanded_values() -> None:
    """A batch of matrices times one weight, a batch norm of an expanded image."""
    weight, norm = torch.randn(3, 4), torch.nn.BatchNorm2d(2).eval()

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return weight @ x, norm(x[:1].expand(3, -1, -1, -1))

    x = torch.randn(2, 2, 4, 4)
    fast = anabranch.compile(model, (x,), **quick())
    torch.testing.assert_close(fast(x), model(x))


def test_a_lone_tensor_is_one_argument() -> None:
    net = model()
    fast = anabranch.compile(net, image(), **quick())
    with torch.no_grad():
        same(fast(image(seed=3)), net(image(seed=3)))


def test_exported_programs_are_models() -> None:
    """With the inputs they bring or with others, by keyword too, in any batch they allow."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    program = torch.export.export(net, (), {"input": x}, dynamic_shapes={"input": {0: batch}})
    own = anabranch.compile(program, target="cpu")
    torch.testing.assert_close(own(input=x), net(x))
    torch.testing.assert_close(own.add((), {"input": y})(input=y), net(y))
    given = anabranch.compile(torch.export.export(net, (x,)), x, target="cpu")
    torch.testing.assert_close(given(x), net(x))
    holder = nn.Sequential(torch.export.export(net, (x,)).module())
    holder.training = False
    torch.testing.assert_close(anabranch.compile(holder, x, target="cpu")(x), net(x))
    with pytest.raises(anabranch.CaptureError, match="its part 1"):
        anabranch.compile(holder.append(nn.Dropout()), x, target="cpu")


class Minus(nn.Module):
    def forward(self, *, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b


def test_constants_of_exported_programs_are_their_own(tmp_path: Path) -> None:
    """The second has the code of the first, which is recalled, and other numbers in it."""
    x = torch.randn(2)
    for number in (1.0, 3.0):

        class Add(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + torch.tensor([number, 2.0])  # noqa: B023

        trace = Trace()
        program = torch.export.export(Add().eval(), (x,))
        fast = anabranch.compile(program, target="cpu", cache_dir=tmp_path, trace=trace)
        assert torch.equal(fast(x), x + torch.tensor([number, 2.0]))
    assert "recalled from the cache" in [event.why for event in trace.events]


def test_keywords_of_exported_programs_come_in_any_order() -> None:
    inputs = {"a": torch.randn(3), "b": torch.randn(3)}
    program = torch.export.export(Minus().eval(), (), inputs)
    turned = {"b": inputs["b"], "a": inputs["a"]}
    fast = anabranch.compile(program, (), turned, target="cpu")
    assert torch.equal(fast(**turned), Minus()(**inputs))


def test_a_lone_tensor_may_be_added() -> None:
    net = nn.Linear(3, 3).eval()
    x = torch.randn(1, 3)
    fast = anabranch.compile(net, torch.randn(4, 3), target="cpu").add(x)
    torch.testing.assert_close(fast(x), net(x))
    with pytest.raises(OptionError, match="the inputs are a str"):
        fast.add("x")


def test_what_is_wrong_with_a_model_is_not_held_against_another_of_its_graph(
    tmp_path: Path,
) -> None:
    class Fickle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if torch.compiler.is_compiling() else x * 3

    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    x = torch.randn(4)
    with pytest.raises(NumericsError, match="differs from the model's own"):
        anabranch.compile(Fickle().eval(), x, target="cpu", cache_dir=tmp_path)
    fast = anabranch.compile(Plain().eval(), x, target="cpu", cache_dir=tmp_path)
    assert torch.equal(fast(x), x * 2)


def test_an_empty_cache_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Options.read({"cache_dir": ""}, environment=False).cache_dir is None
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")
    assert Options.read().cache_dir is None
    assert Options.read({"cache_dir": "x"}).cache_dir == Path("x")


@pytest.mark.parametrize("name", ["stop", "trace"])
def test_what_watches_a_compilation_is_looked_at_first(name: str) -> None:
    given: Any = {name: 5}
    with pytest.raises(OptionError, match=f"^{name} is a int\n"):
        anabranch.compile(torch.relu, (torch.ones(2),), target="cpu", **given)


def test_what_names_no_file_and_no_task_is_refused_in_words() -> None:
    fast = anabranch.compile(torch.relu, (torch.ones(2),), target="cpu", search="none")
    calls: list[Any] = [fast.save, fast.report, anabranch.load, anabranch.from_onnx]
    for call in calls:
        with pytest.raises(OptionError, match=r"^the path of a file is a int: 5\n"):
            call(5)
        with pytest.raises(OptionError, match=r"^the path of a file is empty\n"):
            call("")
    with pytest.raises(OptionError, match=r"^there is no task '3'\n"):
        fast.explain(task=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^stop is a int\n"):
        fast.add((torch.ones(3),), stop=5)  # type: ignore[arg-type]


def test_sizes_among_results_stay_sizes(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"y": x.relu(), "shape": x.shape, "list": [x.size()], "nan": (x * x).shape}

    x = torch.ones(2, 3)
    fast = anabranch.compile(Model().eval(), (x,), target="cpu", search="none")
    fast.save(tmp_path / "plan")
    for one in (fast, anabranch.load(tmp_path / "plan", "cpu")):
        found = one(x)
        assert type(found["shape"]) is type(found["list"][0]) is torch.Size
        assert found["shape"] == x.shape and type(found["list"]) is list


def test_sizes_among_results_stay_sizes_in_models_that_are_cut() -> None:
    def model(x: torch.Tensor) -> Any:
        y = (x @ x).relu().softmax(0) @ x
        return y / y.max().item(), y.shape

    x = torch.ones(3, 3)
    fast = anabranch.compile(model, (x,), target="cpu", search="none")
    assert isinstance(fast, CutModel)
    assert type(fast(x)[1]) is torch.Size and fast(x)[1] == (3, 3)


def test_a_nan_among_results_is_refused_in_our_words() -> None:
    with pytest.raises(anabranch.CaptureError, match="returns a NaN that is a Python number"):
        anabranch.compile(lambda x: (x.relu(), float("nan")), (torch.ones(2),), target="cpu")
