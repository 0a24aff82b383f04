"""Models that write to their buffers: five calls in a row against the model itself, all results and
all states compared after each; whose memory they lie in, sessions, files, copies, weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch
from anabranch.errors import CaptureError, InputError, OptionError
from anabranch.ir.task import IN_PLACE

FAST: dict[str, Any] = {
    **{"target": "cpu", "search": "none", "cache_dir": None, "strict": True},
    "scheduler": "nimble",  # several streams, without a comparison of schedules
}
Forward = Callable[..., Any]


class Holds(nn.Module):
    """A layer and some buffers; `forward` is a function of both."""

    def __init__(self, run: Forward, buffers: dict[str, Tensor]) -> None:
        super().__init__()
        self.run, self.lin = run, nn.Linear(4, 4)
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    def forward(self, *given: Tensor) -> Any:
        return self.run(self, *given)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape)


def counter(m: Any, x: Tensor) -> Tensor:
    m.n += 1
    y: Tensor = x * m.n
    return y


def average(m: Any, x: Tensor) -> Any:
    m.a.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - m.a


def exchange(m: Any, x: Tensor) -> Any:
    kept = m.a.clone()
    m.a.copy_(m.b)
    m.b.copy_(kept)
    return x + m.a


def old_and_new(m: Any, x: Tensor) -> Any:
    was = m.n.clone()
    m.n += 1
    return was, x + m.n


def returned(m: Any, x: Tensor) -> Any:
    return m.rows.add_(x)


def returned_copy(m: Any, x: Tensor) -> Any:
    return m.rows.add_(x).clone()


def returned_view(m: Any, x: Tensor) -> Any:
    m.wide[:, :2] = x[:, :2]
    return m.wide[:, 1:3]


def sliced(m: Any, x: Tensor) -> Any:
    m.wide[:, 2:4] = m.lin(x)[:, 2:4]
    return m.wide.sum(1)


def window(m: Any, x: Tensor) -> Any:
    m.k.copy_(torch.roll(m.k, 1, 0))
    m.k[0] = x[0]
    return m.k.mean(0)


def indexed(m: Any, x: Tensor, at: Tensor) -> Any:
    m.k[at] = x[0]
    return m.k.sum(0)


def indexed_within(m: Any, x: Tensor, at: Tensor) -> Any:
    m.heads[:, :, at] = m.lin(x)[None, :, None]
    return m.heads.sum(2)


def scattered(m: Any, x: Tensor, at: Tensor) -> Any:
    m.k.scatter_(0, at.view(1, 1).expand(1, 4), x[:1])
    return m.k * 2


def accumulated(m: Any, x: Tensor, at: Tensor) -> Any:
    m.k.index_put_((at,), x[:1], accumulate=True)
    return m.k.sum(0)


def layers(m: Any, x: Tensor, at: Tensor) -> Any:
    for i in range(3):
        m.deep[i].index_copy_(0, at, m.lin(x)[:1])
        x = x + m.deep[i].sum(0)
    return x


def twice(m: Any, x: Tensor, at: Tensor) -> Any:
    m.k.index_copy_(0, at, x[:1])
    between = m.k.sum()
    m.k.index_copy_(0, at + 1, x[1:2])
    return m.k.sum(0) + between


def read_before(m: Any, x: Tensor, at: Tensor) -> Any:
    before = m.k.sum(0)
    m.k.index_copy_(0, at, x[:1] * before)
    return before, m.k.sum(0)


def one_for_two(m: Any, x: Tensor) -> Any:
    y = m.lin(x)
    m.a.copy_(y[0])
    m.b.copy_(y[0])
    return y


def zeroed(m: Any, x: Tensor) -> Any:
    m.a.add_(x[0])
    seen = m.a.clone()
    m.a.zero_()
    m.b.fill_(3)
    return seen + m.b


def becomes_the_input(m: Any, x: Tensor) -> Any:
    m.a.copy_(x[0])
    return x + 1


def written_for_two(m: Any, x: Tensor) -> Any:
    """Both end as what is written in the place of one of them."""
    m.k[1] = x[0]
    m.b.copy_(m.k)
    return x + m.b[1:3]


def copied_on(m: Any, x: Tensor) -> Any:
    """All end as one value, each copied from the one before."""
    m.k[1] = x[0]
    m.b.copy_(m.k * 2)
    m.c.copy_(m.b)
    m.d.copy_(m.c)
    m.a.copy_(m.d)
    return x + m.a[1:3]


def flag(m: Any, x: Tensor) -> Any:
    y = torch.where(m.seen, x, x * 2)
    m.seen.fill_(True)
    return y


def position(m: Any, x: Tensor) -> Any:
    m.k.index_copy_(0, m.at, x[:1])
    m.at += 1
    return m.k.sum(0)


def half(m: Any, x: Tensor) -> Any:
    m.h.add_(x[0].half())
    return m.h.float() + x


def masked(m: Any, x: Tensor) -> Any:
    m.k.masked_fill_(x[:1].expand(8, 4) > 0, 0.0)
    return m.k.sum(0)


def old_after_new(m: Any, x: Tensor) -> Any:
    old = m.k + 0
    m.k[0] = x[0]
    return old * m.k.sum()


def within_views(m: Any, x: Tensor) -> Any:
    m.deep[1][2:4][0] = x[0]
    return m.deep.sum(0)


def other_strides(m: Any, x: Tensor) -> Any:
    m.turned.mul_(0.5).add_(x)
    return m.turned @ x.t()


def parameter(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        m.lin.bias.mul_(0.9)
    return m.lin(x)


def nothing_read(m: Any, x: Tensor) -> Any:
    m.n += 1
    return x


def by_batch(m: Any, x: Tensor) -> Any:
    y = F.batch_norm(m.lin(x), m.a, m.b, training=True, momentum=0.3)
    return y + m.a


def by_batch_twice(m: Any, x: Tensor) -> Any:
    y = F.batch_norm(m.lin(x), m.a, m.b, training=True)
    return torch.batch_norm(y + m.b, None, None, m.a, m.b, True, 0.4, 1e-3, False)


def by_instance(m: Any, x: Tensor) -> Any:
    y = F.instance_norm(m.lin(x)[:, :, None] * x[:, None], m.a, m.b, momentum=0.3)
    return y.sum(2) + m.a


def native(m: Any, x: Tensor) -> Any:
    y, mean, _ = torch.native_batch_norm(m.lin(x), None, None, m.a, m.b, True, 0.2, 1e-5)
    return y + mean


LONG = torch.zeros(1, dtype=torch.long)
CASES: dict[str, tuple[Forward, dict[str, Tensor], bool]] = {
    "a counter": (counter, {"n": torch.zeros(())}, False),
    "a whole counter": (counter, {"n": torch.zeros((), dtype=torch.long)}, False),
    "a running mean": (average, {"a": torch.zeros(4)}, False),
    "an exchange": (exchange, {"a": torch.ones(4), "b": torch.zeros(4)}, False),
    "old and new returned": (old_and_new, {"n": torch.zeros(4)}, False),
    "the state returned": (returned, {"rows": torch.zeros(2, 4)}, False),
    "a copy of it returned": (returned_copy, {"rows": torch.zeros(2, 4)}, False),
    "a view of it returned": (returned_view, {"wide": torch.ones(2, 8)}, False),
    "a slice written": (sliced, {"wide": torch.ones(2, 8)}, False),
    "a sliding window": (window, {"k": torch.ones(8, 4)}, False),
    "an index": (indexed, {"k": torch.ones(8, 4)}, True),
    "an index within": (indexed_within, {"heads": torch.ones(3, 2, 8, 4)}, True),
    "a scatter": (scattered, {"k": torch.ones(8, 4)}, True),
    "an accumulation": (accumulated, {"k": torch.ones(8, 4)}, True),
    "layers in one buffer": (layers, {"deep": torch.ones(3, 8, 4)}, True),
    "two writes": (twice, {"k": torch.ones(8, 4)}, True),
    "read before": (read_before, {"k": torch.ones(8, 4)}, True),
    "one value for two": (one_for_two, {"a": torch.zeros(4), "b": torch.zeros(4)}, False),
    "a part of one for two": (
        written_for_two,
        {"k": torch.ones(8, 4), "b": torch.zeros(8, 4)},
        False,
    ),
    "one copied on": (
        copied_on,
        {"k": torch.ones(8, 4), **{name: torch.zeros(8, 4) for name in "abcd"}},
        False,
    ),
    "zeroed": (zeroed, {"a": torch.zeros(4), "b": torch.zeros(4)}, False),
    "the input kept": (becomes_the_input, {"a": torch.zeros(4)}, False),
    "a flag": (flag, {"seen": torch.tensor(False)}, False),
    "a cache and its position": (position, {"k": torch.ones(8, 4), "at": LONG}, False),
    "half": (half, {"h": torch.zeros(4, dtype=torch.half)}, False),
    "a mask": (masked, {"k": torch.ones(8, 4)}, False),
    "the old one read after": (old_after_new, {"k": torch.ones(8, 4)}, False),
    "views of views": (within_views, {"deep": torch.ones(3, 8, 4)}, False),
    "other strides": (other_strides, {"turned": torch.ones(4, 2).t()}, False),
    "a parameter": (parameter, {}, False),
    "a batch norm": (by_batch, {"a": torch.zeros(4), "b": torch.ones(4)}, False),
    "two batch norms": (by_batch_twice, {"a": torch.zeros(4), "b": torch.ones(4)}, False),
    "an instance norm": (by_instance, {"a": torch.zeros(4), "b": torch.ones(4)}, False),
    "a norm of ATen's": (native, {"a": torch.zeros(4), "b": torch.ones(4)}, False),
    "nothing read": (nothing_read, {"n": torch.zeros(())}, False),
}


def made(name: str) -> tuple[Any, Callable[[int], tuple[Tensor, ...]]]:
    torch.manual_seed(7)
    run, buffers, indexed = CASES[name]

    def given(number: int) -> tuple[Tensor, ...]:
        torch.manual_seed(number)
        at = (torch.randint(0, 6, (1,)),) if indexed else ()
        return (draw(2, 4), *at)

    return Holds(run, buffers).eval(), given


def same(model: nn.Module, other: nn.Module) -> None:
    mine, theirs = model.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", CASES)
def test_five_calls_are_the_models(name: str) -> None:
    model, given = made(name)
    own: Any = copy.deepcopy(model)
    fast = anabranch.compile(model, given(0), **FAST)
    assert all(torch.equal(model.state_dict()[n], v) for n, v in own.state_dict().items())
    with torch.no_grad():
        for number in range(5):
            x = given(number)
            torch.testing.assert_close(fast(*x), own(*x))
            same(model, own)
            same(fast, own)


def test_what_writes_one_position_writes_nothing_else() -> None:
    """The kernels: a store where the new value is computed whole, else a write of few elements."""
    written = {}
    for name in ("an index", "a slice written", "a cache and its position", "a running mean"):
        model, given = made(name)
        plan = anabranch.compile(model, given(0), **FAST).entries[-1].plan
        kernels = [task.kernel for task in plan.tasks.tasks if task.overwrites]
        assert all(kernel is not None and kernel.variant == IN_PLACE for kernel in kernels)
        written[name] = [kernel.body.nodes[0].op for kernel in kernels if kernel]
    assert written == {
        "an index": ["aten.index_put.default"],
        "a slice written": ["aten.slice_scatter.default"],
        "a cache and its position": ["aten.index_copy.default", "aten.copy.default"],
        "a running mean": ["aten.copy.default"],
    }


def test_the_rest_of_the_cache_is_not_touched() -> None:
    """Bits that no arithmetic keeps stay where nobody writes, and are not read either."""
    model, given = made("an index")
    fast = anabranch.compile(model, given(0), **FAST)
    with torch.no_grad():
        model.k.view(torch.int32).fill_(0x7FC01234)  # a NaN with a payload
    fast(draw(2, 4), torch.tensor([3]))
    rest = [i for i in range(8) if i != 3]
    assert (model.k.view(torch.int32)[rest] == 0x7FC01234).all()
    assert model.k[3].isfinite().all()


def test_plans_of_one_model_share_the_states() -> None:
    class Decoder(nn.Module):
        k: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("k", torch.zeros(8, 4))

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            self.k.index_copy_(0, at, x)
            return self.k.cumsum(0)

    model: Any = Decoder().eval()
    own: Any = copy.deepcopy(model)
    fast = anabranch.compile(model, (draw(5, 4), torch.arange(5)), **FAST)
    fast.add((draw(1, 4), torch.tensor([5])))
    for x, at in ((draw(5, 4), torch.arange(5)), (draw(1, 4), torch.tensor([5]))):
        torch.testing.assert_close(fast(x, at), own(x, at))
    assert fast.memory().states == own.k.nbytes


def test_sessions_have_states_of_their_own_and_one_copy_of_the_weights() -> None:
    model, given = made("a cache and its position")
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    fast = anabranch.compile(model, given(0), **FAST)
    session = fast.session()
    with torch.no_grad():
        for number in range(3):
            torch.testing.assert_close(fast(*given(number)), one(*given(number)))
        for number in range(2):
            torch.testing.assert_close(session(*given(9 + number)), other(*given(9 + number)))
        torch.testing.assert_close(fast(*given(3)), one(*given(3)))
    same(fast, one)
    same(session, other)
    mine, theirs = ({id(x) for x in _constants(made)} for made in (fast, session))
    assert mine == theirs


def _constants(fast: anabranch.Compiled) -> list[Any]:
    return [constant.value for constant in fast.entries[-1].plan.tasks.constants]


def test_new_weights_are_those_of_all_sessions() -> None:
    model, given = made("one value for two")
    fast = anabranch.compile(model, given(0), **FAST)
    session: Any = fast.session()
    other: Any = Holds(*CASES["one value for two"][:2]).eval()
    fast.refit(other)
    with torch.no_grad():
        torch.testing.assert_close(session(*given(1)), other(*given(1)))


def test_reset_gives_the_values_at_compile_time() -> None:
    model, given = made("a counter")
    model.n.fill_(5.0)
    fast = anabranch.compile(model, given(0), **FAST)
    fast(*given(0))
    assert model.n == 6
    assert fast.reset_state() is fast
    assert model.n == 5


@pytest.mark.parametrize("state", [True, False])
def test_files_have_the_state_or_not(state: bool, tmp_path: Path) -> None:
    model, given = made("a cache and its position")
    first = copy.deepcopy(model)
    fast = anabranch.compile(model, given(0), **FAST)
    fast(*given(0))
    fast.save(tmp_path / "fast", state=state)
    loaded = anabranch.load(tmp_path / "fast", target="cpu")
    own = model if state else first
    held = loaded.state_dict()
    assert torch.equal(held["at"], own.at) and torch.equal(held["k"], own.k)
    before = own.k.clone()
    with torch.no_grad():
        torch.testing.assert_close(loaded(*given(1)), copy.deepcopy(own)(*given(1)))
    assert torch.equal(own.k, before), "a loaded plan has memory of its own"
    loaded.reset_state()
    assert torch.equal(loaded.state_dict()["k"], before)


def test_copies_begin_as_the_states_are() -> None:
    model, given = made("a counter")
    fast = anabranch.compile(model, given(0), **FAST)
    fast(*given(0))
    twin = copy.deepcopy(fast)
    twin(*given(0))
    assert (model.n, twin.state_dict()["n"]) == (1, 2)


def test_loading_a_state_dict_sets_states_and_refitting_leaves_them() -> None:
    model, given = made("one value for two")
    fast = anabranch.compile(model, given(0), **FAST)
    other: Any = Holds(*CASES["one value for two"][:2]).eval()
    other.a.fill_(9.0)
    fast.refit(other)
    assert torch.equal(model.a, torch.zeros(4))
    fast.load_state_dict(other.state_dict())
    assert torch.equal(model.a, torch.full((4,), 9.0))
    with torch.no_grad():
        torch.testing.assert_close(fast(*given(1)), other(*given(1)))
    same(fast, other)


def test_checking_a_refit_begins_with_the_states_of_the_model() -> None:
    """Which are others than those of the plan, and stay as they are."""
    model, given = made("a cache and its position")
    fast = anabranch.compile(model, given(0), **FAST)
    other, _ = made("a cache and its position")
    other.k.fill_(5)
    for _ in range(2):
        fast(*given(1))
    fast.refit(other, check=True)
    fast.refit(model, check=True)
    assert model.at.item() == 2 and model.k[2:].eq(1).all() and not model.k[:2].eq(1).any()
    assert other.at.item() == 0 and other.k.eq(5).all()


def test_plans_are_added_after_refitting_and_calling() -> None:
    """A state that was written to is no other weight."""
    model, given = made("one value for two")
    fast = anabranch.compile(model, given(0), **FAST)
    fast.refit(model)
    fast(*given(0))
    fast.add((draw(3, 4),))
    fast(draw(3, 4))


def test_explain_tells_whose_memory_it_is() -> None:
    model, given = made("a counter")
    fast = anabranch.compile(model, given(0), **FAST)
    assert "n: f32[], 4 B in the model's own tensor; written by n_next (aten.copy)" in (
        " ".join(fast.explain().split())
    )
    assert fast.facts["states"] == ["n: f32[]"]
    assert fast.memory().states == 4
    own = " ".join(fast.session().explain().split())
    assert "n: f32[], 4 B in memory of the session; written by" in own
    planned = anabranch.compile(model, given(0), **{**FAST, "target": "sim:h200"}).explain()
    assert "n: f32[], 4 B, in no memory until it is loaded" in " ".join(planned.split())


def test_a_view_of_odd_bytes_is_kept_in_other_memory() -> None:
    """Kernels take addresses for aligned: such a state is the compiled model's."""
    model, given = made("a counter")
    model.n = torch.zeros(3)[1]
    fast = anabranch.compile(model, given(0), **FAST)
    fast(*given(0))
    assert "memory of the compiled model" in " ".join(fast.explain().split())
    assert (model.n, fast.state_dict()["n"]) == (0, 1)


@pytest.mark.parametrize("name", ["the state returned", "a view of it returned"])
def test_states_in_other_memory_are_returned(name: str) -> None:
    """What the model returned of its own tensor is compared with what was there then."""
    model, given = made(name)
    for key, value in dict(model.named_buffers()).items():
        memory = torch.zeros(value.numel() + 1)
        setattr(model, key, memory[1:].view_as(value).copy_(value))
    own = copy.deepcopy(model)
    fast = anabranch.compile(model, given(0), **FAST)
    with torch.no_grad():
        for number in range(3):
            torch.testing.assert_close(fast(*given(number)), own(*given(number)))
            same(fast, own)


def test_a_returned_state_is_a_copy(tmp_path: Path) -> None:
    """Later calls leave the result alone, and who writes to it leaves the state alone: also in a
    session, and of a plan from a file."""
    model, given = made("the state returned")
    fast = anabranch.compile(model, given(0), **FAST)
    fast.save(tmp_path / "plan")
    for one in (fast.session(), anabranch.load(tmp_path / "plan", target="cpu"), fast):
        rows = [given(number)[0] for number in range(3)]
        first, second = one(rows[0]), one(rows[1])
        torch.testing.assert_close(first, rows[0])
        torch.testing.assert_close(second, rows[0] + rows[1])
        second.fill_(7)
        torch.testing.assert_close(one(rows[2]), sum(rows))
        torch.testing.assert_close(one.state_dict()["rows"], sum(rows))


def test_a_buffer_that_is_assigned_is_refused_in_words() -> None:
    class Mean(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    model = Mean().eval()
    with pytest.raises(CaptureError, match=r"(?s)assigns another .* mean .*self\.mean\.copy_"):
        anabranch.compile(model, (draw(2, 4),), **FAST)
    assert not model.mean.any()


def test_a_tensor_that_is_written_to_and_has_two_names_is_refused_in_words() -> None:
    class Twins(nn.Module):
        a: Tensor
        twin: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(4))
            self.register_buffer("twin", self.a)

        def forward(self, x: Tensor) -> Tensor:
            self.a += x
            return self.twin * 2

    with pytest.raises(CaptureError, match="writes to a, which it also holds as twin"):
        anabranch.compile(Twins().eval(), (draw(4),), **FAST)


def test_a_buffer_that_shares_memory_with_another_is_refused() -> None:
    model, given = made("a running mean")
    model.register_buffer("part", model.a[1:])
    with pytest.raises(CaptureError, match="writes to a, which shares memory with part"):
        anabranch.compile(model, given(0), **FAST)


def test_a_part_that_is_in_the_model_twice_has_one_state() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = Holds(counter, {"n": torch.zeros(4)})
            self.other = self.one

        def forward(self, x: Tensor) -> Any:
            return self.other(self.one(x))

    model = Twice().eval()
    own: Any = copy.deepcopy(model)
    fast = anabranch.compile(model, (draw(2, 4),), **FAST)
    x = draw(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), own(x))
    same(fast, own)


def test_an_expanded_buffer_is_refused() -> None:
    model, given = made("one value for two")
    model.a = torch.zeros(1).expand(4)
    with pytest.raises(CaptureError):
        anabranch.compile(model, given(0), **FAST)


def test_an_input_in_the_memory_of_a_state_is_refused() -> None:
    """The model reads what it has just written there; a plan what was there before."""
    model, given = made("the state returned")
    fast = anabranch.compile(model, given(0), **FAST)
    with pytest.raises(InputError, match="shares memory with rows, and the model writes"):
        fast(model.rows)
    x, before = draw(2, 4), model.rows.clone()
    torch.testing.assert_close(fast(x), before + x)


def test_padding_is_refused() -> None:
    model, given = made("a running mean")
    with pytest.raises(OptionError, match=r"mean.* works along the padded axis"):
        anabranch.compile(model, given(0), batch="pad", **FAST)


def test_results_do_not_require_gradients_of_what_is_written_to() -> None:
    model, given = made("one value for two")
    fast = anabranch.compile(model, given(0), **FAST)
    y = fast(*given(1))
    assert y.requires_grad and not model.a.requires_grad


def test_a_warm_start_writes_to_the_model_at_hand(tmp_path: Path) -> None:
    options = {**FAST, "cache_dir": tmp_path}
    for _ in range(2):
        model, given = made("a cache and its position")
        own: Any = copy.deepcopy(model)
        fast = anabranch.compile(model, given(0), **options)
        with torch.no_grad():
            torch.testing.assert_close(fast(*given(1)), own(*given(1)))
        same(model, own)


@pytest.mark.parametrize("search", ["none", "autograph"])
def test_on_a_simulated_gpu_plans_are_made(search: str) -> None:
    """With generated kernels beside, on several streams; the proof of the plan is the check."""
    for name in ("an index within", "two writes", "an exchange", "read before"):
        model, given = made(name)
        options = {**FAST, "target": "sim:h200", "search": search}
        fast = anabranch.compile(model, given(0), **options)
        assert fast.memory().states == sum(value.nbytes for value in CASES[name][1].values())


class Copies(nn.Module):
    """Copies into buffers what has another dtype, what is no whole number into integers, and one
    number into several places."""

    mean: Tensor
    rounded: Tensor
    whole: Tensor
    spread: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("rounded", torch.zeros(4, dtype=torch.float16))
        self.register_buffer("whole", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("spread", torch.zeros(2, 4, dtype=torch.float16))

    def forward(self, x: Tensor) -> Any:
        self.spread.copy_(x[1, 2])
        self.mean.lerp_(x.mean(0), 0.5)
        self.rounded.copy_(self.mean)
        self.whole.copy_(x[0] * 10)
        self.mean.copy_(self.rounded)
        return self.rounded, self.whole, x - self.mean, self.spread + 1


def test_what_is_copied_into_a_buffer_is_cast_and_expanded() -> None:
    x = torch.randn(3, 4)
    model, eager = Copies().eval(), Copies().eval()
    fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            torch.testing.assert_close(fast(x), eager(x), rtol=0, atol=0)


class Rows:
    """A cache as transformers has it: a plain object with tensors that it writes to."""

    def __init__(self) -> None:
        self.rows, self.count = torch.zeros(12, 4), torch.tensor(0)

    def add(self, x: Tensor) -> Tensor:
        self.rows.index_copy_(0, torch.arange(x.shape[0]) + self.count, x)
        self.count.add_(x.shape[0])
        return self.rows


def test_buffers_that_a_plain_object_holds_too_are_states() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.cache = nn.Linear(4, 4), Rows()
            self.register_buffer("rows", self.cache.rows)
            self.register_buffer("count", self.cache.count)

        def forward(self, x: Tensor) -> Tensor:
            return self.cache.add(self.linear(x)).sum(0)

    model = Model().eval()
    twin = copy.deepcopy(model)
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    fast = anabranch.compile(model, (torch.randn(5, 4),), **quick)
    fast.add((torch.randn(1, 4),))
    assert model.count == 0 and not model.rows.any()  # type: ignore[operator] # buffers
    for x in (torch.randn(5, 4), torch.randn(1, 4), torch.randn(1, 4)):
        torch.testing.assert_close(fast(x), twin(x))
        torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert model.cache.count == 7


def test_calls_between_sizes_run_a_model_whose_own_tensors_are_the_states() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += x.exp().sum()
            y: Tensor = self.linear(x)
            return y

    model = Counting().eval()
    shapes = ({0: torch.export.Dim("batch", max=8)},)
    fast = anabranch.compile(
        model, (torch.randn(4, 4),), dynamic_shapes=shapes, sizes=[4, 8], unseen="eager", **FAST
    )
    count = torch.zeros(())
    for rows in (4, 3, 8, 1):
        x = torch.randn(rows, 4)
        count += x.exp().sum()
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model.linear(x))
    torch.testing.assert_close(model.count, count)
    with pytest.raises(InputError, match="it reduces the padded axis"):
        fast.session()(torch.randn(3, 4))
