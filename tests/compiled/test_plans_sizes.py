"""Sizes that vary: a few buckets, one copy of weights, one arena, and calls between them."""

from __future__ import annotations

import copy
import pickle
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.errors import InputError, OptionError
from anabranch.trace import Trace

QUICK: dict[str, Any] = {
    **{"search": "none", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}
BATCH, SEQ = Dim("batch", min=1, max=64), Dim("seq", min=1, max=32)


BY_BATCH_TO_ANY = ({0: Dim("batch", min=1)},)


def compiled(model: Any, *args: Any, **options: Any) -> Compiled:
    target = options.pop("target", "cpu")
    return anabranch.compile(model, args, target=target, cache_dir=None, **QUICK, **options)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(50, 50) for _ in range(3))

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
        return {"y": x * scale, "first": x[:, 0]}


class Attending(nn.Module):
    """A masked encoder layer: batch and sequence vary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.positions = nn.Parameter(torch.randn(32, 8))
        self.project = nn.Linear(8, 24)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        q, k, v = self.project(x).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, :])
        weights = mask[..., None].to(y.dtype)
        return y, (y * weights).sum(1) / weights.sum(1)


X = torch.randn(4, 50)
BY_BATCH = {"x": {0: BATCH}}


def net() -> Layers:
    return Layers().eval()


def test_buckets_share_weights_and_one_arena() -> None:
    model = net()
    fast = compiled(model, X, dynamic_shapes=BY_BATCH, sizes=[1, 8, 64])
    assert [entry.at for entry in fast.entries] == [(64,), (8,), (1,)]
    held = fast.memory()
    weights = 3 * 4 * (50 * 50 + 50)
    assert held.weights == weights and held.total < 1.1 * held.arena + weights + held.inputs
    assert held.arena == max(entry.plan.arena_bytes for entry in fast.entries)
    assert len({entry.run.arena.data_ptr() for entry in fast.entries if entry.run}) == 1
    assert list(held.buckets) == ["batch 64", "batch 8", "batch 1"]
    assert held.buckets["batch 8"].weights == weights
    told = fast.explain()
    assert "batch 1..64: padded, its rows stay apart" in told and "batch 8: weights" in told
    for n in (1, 2, 8, 9, 64, 65, 150):
        x = torch.randn(n, 50)
        got, want = fast(x), model(x)
        assert got.keys() == want.keys() and got["first"].shape == (n,)
        for name in want:
            torch.testing.assert_close(got[name], want[name])
    assert fast(scale=1.0, x=X)["y"].shape == X.shape  # by name, between buckets
    with pytest.raises(InputError, match=r"scale is 2\.0, compiled for 1\.0"):
        fast(X, 2.0)


def test_plans_that_come_later_share_the_arena_too() -> None:
    fast = compiled(net(), X)
    runs = [entry.run for entry in fast.entries]
    fast.add((torch.randn(32, 50),)).add((torch.randn(2, 50),))
    assert len({entry.run.arena.data_ptr() for entry in fast.entries if entry.run}) == 1
    assert fast.entries[0].run is not runs[0] and fast(X)["y"].shape == X.shape


def test_one_bucket_runs_at_a_time() -> None:
    model = net()
    fast = compiled(model, X, dynamic_shapes=BY_BATCH, sizes=[4, 16, 64])
    inputs = [torch.randn(n, 50) for n in (4, 13, 64, 16)]
    wants = [model(x)["y"].detach() for x in inputs]
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(40):
            if not torch.allclose(fast(inputs[number])["y"], wants[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_batch_and_sequence_at_once() -> None:
    model = Attending().eval()
    ids, mask = torch.randint(0, 20, (4, 8)), torch.ones(4, 8, dtype=torch.bool)
    given = {"ids": {0: BATCH, 1: SEQ}, "mask": {0: BATCH, 1: SEQ}}
    fast = compiled(model, ids, mask, dynamic_shapes=given, sizes=[(2, 8), (8, 32), (4, 16)])
    for batch, seq in ((2, 8), (1, 1), (3, 9), (8, 32), (7, 31), (20, 5)):
        ids, mask = torch.randint(0, 20, (batch, seq)), torch.rand(batch, seq) > 0.3
        mask[:, 0] = True
        got, want = fast(ids, mask), model(ids, mask)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(InputError, match="seq is 33, and the largest that was compiled is 32; its"):
        fast(torch.zeros(1, 33, dtype=torch.int64), torch.ones(1, 33, dtype=torch.bool))


def _tokens(x: Tensor) -> Tensor:
    return (x * 2).flatten(0, 1)


def _tokens_by_place(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.transpose(0, 1).flatten(0, 1), x.flatten()


def _centred_tokens(x: Tensor) -> Tensor:  # which is padded along the batch alone
    return (x - x.mean(1, keepdim=True)).flatten(0, 1)


@pytest.mark.parametrize("model", [_tokens, _tokens_by_place, _centred_tokens])
@pytest.mark.parametrize("example", [(2, 4), (1, 1), (64, 32)])
def test_results_whose_rows_share_an_axis_with_another_dimension(
    model: Any, example: tuple[int, int], tmp_path: Path
) -> None:
    x = torch.randn(*example, 3)
    fast = compiled(
        model, x, dynamic_shapes={"x": {0: BATCH, 1: SEQ}}, sizes=[(8, 12), (8, 5)], unseen="eager"
    )
    fast.save(tmp_path / "tokens.anabranch")
    for one in (fast, anabranch.load(tmp_path / "tokens.anabranch", "cpu")):
        for batch, seq in ((8, 12), (3, 12), (7, 5), (1, 5)):
            x = torch.randn(batch, seq, 3)
            torch.testing.assert_close(one(x), model(x), rtol=0, atol=0)
    for batch, seq in ((3, 4), (11, 12), (11, 5)):
        x = torch.randn(batch, seq, 3)
        torch.testing.assert_close(fast(x), model(x), rtol=0, atol=0)


def test_rows_between_those_of_two_other_dimensions_are_not_padded() -> None:
    def flat(x: Tensor) -> Tensor:
        return (x * 2).flatten()

    given = {"x": {0: BATCH, 1: SEQ, 2: Dim("width", min=1, max=9)}}
    fast = compiled(flat, torch.randn(2, 3, 4), dynamic_shapes=given, sizes=[(4, 6, 8)])
    x = torch.randn(3, 6, 5)
    torch.testing.assert_close(fast(x), flat(x), rtol=0, atol=0)
    with pytest.raises(InputError, match="has its rows between those of two other dimensions"):
        fast(torch.randn(4, 5, 8))


def test_derived_sizes() -> None:
    def pairs(x: Tensor, y: Tensor) -> Tensor:
        return x + y.view(-1, 2, 50).sum(1)

    fast = compiled(pairs, X, torch.randn(8, 50), sizes=[2, 16], **{"dynamic_shapes": DERIVED})
    for n in (1, 2, 5, 16, 20):
        x, y = torch.randn(n, 50), torch.randn(2 * n, 50)
        torch.testing.assert_close(fast(x, y), pairs(x, y))
    with pytest.raises(InputError):
        fast(X, torch.randn(7, 50))


DERIVED = ({0: BATCH}, {0: 2 * BATCH})


def test_sizes_that_contradict_each_other_or_are_none_are_told() -> None:
    def gated(x: Tensor, *, gate: dict[str, Tensor]) -> Tensor:
        return x * gate["y"]

    def call(one: int, other: int, unseen: str) -> Tensor:
        x, y = torch.randn(one, 3), torch.randn(other, 3)
        got: Tensor = fast[unseen](x, gate={"y": y})
        torch.testing.assert_close(got, x * y, rtol=0, atol=0)
        return got

    given = {"x": {0: BATCH}, "gate": {"y": {0: BATCH}}}
    x = torch.randn(4, 3)
    fast = {
        unseen: anabranch.compile(
            gated, (x,), kwargs={"gate": {"y": x}}, dynamic_shapes=given, sizes=[8], target="cpu",
            cache_dir=None, unseen=unseen, **QUICK,
        )
        for unseen in ("refuse", "eager")
    }  # fmt: skip
    with pytest.raises(InputError, match=r"batch is 5 in x, and 1 in gate\['y'\]"):
        call(5, 1, "refuse")
    with pytest.raises(InputError, match=r"axis 0 of x has 0 rows, as no size of batch 1\.\.64"):
        call(0, 0, "refuse")
    assert call(5, 1, "eager").shape == (5, 3) and call(0, 0, "eager").shape == (0, 3)


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).relu().mean((2, 3)))
        return y


class HalvedRows(Halving):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x).transpose(1, 2).flatten(0, 1)
        return y


def images(n: int, high: int, wide: int) -> Tensor:
    return torch.randn(n, 1, high, wide)


def test_a_batch_is_padded_where_images_are_halved() -> None:
    torch.manual_seed(0)
    batch, high, wide = Dim("n", max=8), Dim("high", min=4, max=32), Dim("wide", min=4, max=32)
    varies = ({0: batch, 2: high, 3: wide},)
    for model in (Halving().eval(), HalvedRows().eval()):
        sizes = [(4, 6, 9), (4, 16, 7)]
        fast = compiled(model, images(2, 6, 9), dynamic_shapes=varies, sizes=sizes)
        with torch.no_grad():
            for x in (images(4, 6, 9), images(4, 16, 7)):
                torch.testing.assert_close(fast(x), model(x))
        with pytest.raises(InputError, match=r"high is 8, and no .*a size in it is .*high - 1"):
            fast(images(4, 8, 7))
        few = images(3, 16, 7), images(1, 6, 9), images(9, 16, 7)
        for x in few:
            if isinstance(model, HalvedRows):  # how many rows each image has is not seen there
                with pytest.raises(InputError, match="rows on an axis with those of another size"):
                    fast(x)
                continue
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize("unseen", ["eager", "refuse"])
def test_what_is_not_proved_is_not_padded(unseen: Any) -> None:
    trace = Trace(quiet=True)
    fast = compiled(
        Centred().eval(), X, dynamic_shapes=BY_BATCH, sizes=[4, 16], unseen=unseen, trace=trace
    )
    told = "run the model as it is" if unseen == "eager" else "are refused"
    (warned,) = [event.why for event in trace.events if event.kind == "warning"]
    assert told in warned and "aten.mean.dim: it works along the padded axis" in warned
    assert "test_plans_sizes.py" in warned and "not padded, aten.mean.dim" in fast.explain()
    torch.testing.assert_close(fast(X), Centred()(X))
    for n in (3, 17):
        x = torch.randn(n, 50)
        if unseen == "eager":
            torch.testing.assert_close(fast(x), Centred()(x))
            continue
        with pytest.raises(InputError, match=rf"batch is {n}.*aten.mean.dim"):
            fast(x)
    with pytest.raises(InputError, match=r"compiled: \(x=f32\[16,50\]\)"):
        fast(torch.randn(4, 7))


def test_models_that_torch_export_specialises_have_a_plan_for_each_size() -> None:
    def branching(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 5 else x.relu()

    trace = Trace(quiet=True)
    fast = compiled(branching, X, dynamic_shapes=BY_BATCH, sizes=[4, 16], trace=trace)
    assert any("each size is captured alone" in event.why for event in trace.events)
    for x in (X, torch.randn(16, 50)):
        torch.testing.assert_close(fast(x), branching(x))
    with pytest.raises(InputError, match="does not keep the dimension"):
        fast(torch.randn(6, 50))


def test_exported_programs_bring_their_dimensions() -> None:
    model = net()
    program = torch.export.export(model, (X,), dynamic_shapes=BY_BATCH)
    fast = compiled(program, sizes=[8, 64])
    x = torch.randn(5, 50)
    torch.testing.assert_close(fast(x)["y"], model(x)["y"])


def test_a_range_and_a_histogram_become_buckets(tmp_path: Any) -> None:
    fast = compiled(net(), X, dynamic_shapes=BY_BATCH, target="sim:h200", buckets=3)
    assert fast.entries[0].at == (64,) and len(fast.entries) <= 3
    (tmp_path / "sizes.json").write_text('{"1": 0.9, "63": 0.1}')
    fast = compiled(net(), X, sizes=tmp_path / "sizes.json", target="sim:h200")
    assert fast.entries[0].at == (63,)
    endless = compiled(net(), X, dynamic_shapes={"x": {0: Dim("batch")}}, target="sim:h200")
    assert [entry.at for entry in endless.entries] == [(4,)]  # the example's size
    with pytest.raises(OptionError, match=r"is not among batch 1\.\.64"):
        compiled(net(), X, dynamic_shapes=BY_BATCH, sizes=[1, 65])


def test_memory_is_limited() -> None:
    whole = compiled(net(), X, dynamic_shapes=BY_BATCH, sizes=[1, 8, 64]).memory()
    trace = Trace(quiet=True)
    fewer = compiled(
        *(net(), X),
        dynamic_shapes=BY_BATCH,
        sizes=[1, 8, 64],
        trace=trace,
        memory_limit=whole.total - 1,
    )
    assert [entry.at for entry in fewer.entries] == [(64,), (8,)]
    assert fewer.memory().total < whole.total
    assert any("does not fit memory_limit" in event.why for event in trace.events)
    told = [event for event in trace.events if "beside what there is" in event.why]
    assert dict(told[0].data)["arena"] == fewer.memory().arena
    with pytest.raises(OptionError, match="does not fit memory_limit"):
        compiled(net(), X, dynamic_shapes=BY_BATCH, sizes=[64], memory_limit="10KiB")


def test_new_weights_are_those_of_all_buckets(tmp_path: Any) -> None:
    model, other = net(), net()
    fast = compiled(model, X, dynamic_shapes=BY_BATCH, sizes=[1, 8, 64])
    fast.refit(other, check=True)
    copies = [fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))]
    for one in copies:
        for n in (1, 5, 64, 70):
            x = torch.randn(n, 50)
            torch.testing.assert_close(one(x)["y"], other(x)["y"])
        torch.testing.assert_close(one.state_dict(), dict(other.state_dict()))
    fast.load_state_dict(model.state_dict())
    torch.testing.assert_close(fast(X)["y"], model(X)["y"])


def test_all_buckets_are_one_file_with_one_copy_of_weights(tmp_path: Path) -> None:
    model = net()
    fast = compiled(model, X, dynamic_shapes=BY_BATCH, sizes=[1, 8, 64])
    path = tmp_path / "all.anabranch"
    fast.save(path)
    compiled(model, X).save(tmp_path / "one.anabranch")
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "one.anabranch") as one:
        assert {"plan.json", "plans/0001.json", "plans/0002.json"} <= set(whole.namelist())
        sizes = [file.getinfo("weights.safetensors").file_size for file in (whole, one)]
        assert sizes[0] == sizes[1]
    loaded = anabranch.load(path, target="cpu")
    assert [entry.at for entry in loaded.entries] == [(64,), (8,), (1,)]
    assert loaded.memory() == fast.memory()
    for n in (1, 3, 64, 70):
        x = torch.randn(n, 50)
        torch.testing.assert_close(loaded(x)["y"], model(x)["y"])
    other = net()
    loaded.refit(other)
    torch.testing.assert_close(loaded(X)["y"], other(X)["y"])
    loaded.save(tmp_path / "again.anabranch")
    again = anabranch.load(tmp_path / "again.anabranch", target="cpu")
    torch.testing.assert_close(again(X[:3])["y"], other(X[:3])["y"])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.zeros(50))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(x.sum(0))
        return x + self.count


def test_states_are_those_of_all_sizes_and_have_no_padding() -> None:
    model = Counting().eval()
    how: dict[str, Any] = {"dynamic_shapes": BY_BATCH, "sizes": [4, 8]}
    fast = compiled(copy.deepcopy(model), X, trace=Trace(quiet=True), **how)
    for n in (4, 8, 4, 5, 3):
        x = torch.randn(n, 50)
        torch.testing.assert_close(fast(x), model(x))
        torch.testing.assert_close(fast.state_dict()["count"], model.count)
    with pytest.raises(InputError, match="is not cut in pieces"):
        fast(torch.randn(9, 50))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_sequences_that_a_recurrence_walks_are_padded(layer: Any) -> None:
    walked = layer(3, 4, 2, batch_first=True)

    def model(x: Tensor) -> Tensor:
        return walked(x)[0].relu()  # type: ignore[no-any-return]

    shapes = ({0: BATCH, 1: SEQ},)
    fast = compiled(model, torch.randn(2, 4, 3), dynamic_shapes=shapes, sizes=[(2, 4), (4, 8)])
    for batch, length in ((1, 3), (3, 2), (4, 5), (4, 1)):
        x = torch.randn(batch, length, 3)
        torch.testing.assert_close(fast(x), model(x))


def test_pieces_have_as_many_rows_as_a_call_has_at_least() -> None:
    shapes = ({0: Dim("batch", min=3, max=8)},)
    layer = nn.Linear(50, 4).eval()
    fast = compiled(layer, X, dynamic_shapes=shapes, sizes=[3, 8])
    for n in (9, 10, 17, 18):
        x = torch.randn(n, 50)
        torch.testing.assert_close(fast(x), layer(x))
    narrow = compiled(layer, X, dynamic_shapes=shapes, sizes=[3])
    with pytest.raises(InputError, match=r"batch is 4, and .* of the last piece, batch is 1"):
        narrow(X)


def test_inputs_of_a_size_are_not_made_before_they_are_known_to_fit() -> None:
    layer = nn.Linear(50, 4).eval()
    with pytest.raises(OptionError, match="so large a size cannot be made"):
        compiled(layer, X, dynamic_shapes=BY_BATCH_TO_ANY, sizes=[2**40])
    with pytest.raises(OptionError, match=r"its inputs take 200,000 B at size 1000, and 150,000"):
        compiled(layer, X, dynamic_shapes=BY_BATCH_TO_ANY, sizes=[8, 1000], memory_limit=150_000)


def test_inputs_of_the_sizes_are_not_kept() -> None:
    fast = compiled(nn.Linear(50, 4).eval(), X, dynamic_shapes=BY_BATCH_TO_ANY, sizes=[9, 17])
    jobs = [entry.job for entry in fast.entries]
    assert [job.args[0] is X for job in jobs if job is not None] == [True, True]
    assert fast.facts["inputs"] == ["input: f32[9,50]"]
    fast.refit(nn.Linear(50, 4).eval(), check=True)
