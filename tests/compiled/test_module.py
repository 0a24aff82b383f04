"""A Compiled as an nn.Module: each thing asked of it works, changes nothing, or is refused."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.errors import OptionError, TargetError

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}
X = torch.randn(2, 4)
TRACE: Any = torch.jit.trace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.config = {"layers": 1}

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.linear(x)) * scale
        return y


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def made(net: Net) -> Compiled:
    return anabranch.compile(net, (X,), **QUICK)


@pytest.fixture
def fast(made: Compiled) -> Compiled:
    return copy.copy(made)


def test_it_is_a_part_of_a_module_with_a_line_of_its_own(fast: Compiled, net: Net) -> None:
    parent = nn.Sequential(fast, nn.ReLU())
    assert torch.allclose(parent(X), net(X).relu(), atol=1e-6)
    assert [name for name, _ in parent.named_modules()] == ["", "0", "1"]
    line = repr(parent).splitlines()[1]
    for part in ("Compiled(Net on cpu", "x=f32[2,4]", "ms measured", "1 kernel,", "weights", " B"):
        assert part in line


def test_weights_have_the_models_own_names(fast: Compiled, net: Net) -> None:
    got, want = fast.state_dict(), net.state_dict()
    assert list(got) == list(want) and all(torch.equal(got[k], want[k]) for k in want)
    assert list(nn.Sequential(fast).state_dict()) == [f"0.{name}" for name in want]
    named = dict(fast.named_parameters())
    assert list(named) == [name for name, _ in net.named_parameters()]
    assert torch.equal(named["linear.weight"], net.linear.weight)
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert next(fast.parameters()).device == X.device
    before = fast(X)
    with torch.no_grad():
        named["linear.weight"].zero_()
    assert torch.equal(fast(X), before)
    assert not list(nn.Sequential(fast).parameters())


@pytest.mark.parametrize("refitted", [False, True])
def test_what_is_written_to_a_state_dict_reaches_nobody(refitted: bool) -> None:
    """Neither constants that the plan has, of which others were computed, nor the user's model."""
    torch.manual_seed(0)
    net, new = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).eval() for _ in range(2))
    for one in (net, new):
        one[2].weight = one[0].weight
    fast = anabranch.compile(net, (X,), **QUICK)
    if refitted:
        fast.refit(new)
    want = new if refitted else net
    with torch.no_grad():
        before = want(X)
    state = fast.state_dict()
    assert state["0.weight"] is state["2.weight"]  # tied, as they are in the model
    for tensor in state.values():
        tensor.mul_(3)
    with torch.no_grad():
        assert torch.allclose(fast(X), before, atol=1e-6) and torch.equal(want(X), before)
    if refitted:
        held = fast.state_dict()
        assert all(torch.equal(held[name], new.state_dict()[name]) for name in held)


def test_weights_that_the_plan_does_not_have_are_not_handed_out() -> None:
    net = Net().eval()
    fast = anabranch.compile(net, (X,), **QUICK)
    with torch.no_grad():
        net.linear.bias.add_(1)
    with pytest.raises(OptionError, match=r"changed after compiling: linear\.bias"):
        fast.state_dict()
    with pytest.raises(OptionError, match="not known by name"):
        list(pickle.loads(pickle.dumps(fast)).parameters())


def test_modes(fast: Compiled) -> None:
    parent = nn.Sequential(fast, nn.Dropout())
    assert fast.eval() is fast and not fast.training
    with pytest.warns(UserWarning, match="stays in eval mode"):
        parent.train()
    assert parent[1].training and not fast.training
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parent.eval()
        fast.zero_grad()
        fast.requires_grad_(False)
        fast.apply(lambda module: None)


def test_devices_and_dtypes_stay(fast: Compiled) -> None:
    parent = nn.Sequential(fast)
    assert fast.to("cpu") is fast and fast.float() is fast and parent.cpu() is parent
    assert fast.to(memory_format=torch.channels_last) is fast  # type: ignore[call-overload]
    changes: tuple[Callable[[], Any], ...] = (
        *(fast.half, parent.double, lambda: fast.to(torch.bfloat16)),
        lambda: fast.to("meta"),
    )
    for change in changes:
        with pytest.raises(TargetError, match="stays what it is: float32 on cpu"):
            change()
    whole = anabranch.compile(lambda x: x + 1, (torch.ones(2, dtype=torch.int64),), **QUICK)
    assert whole.half() is whole


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda fast: setattr(fast, "head", nn.Linear(2, 2)), "given a part 'head'"),
        (lambda fast: setattr(fast, "scale", X), "'scale' was assigned"),
        (lambda fast: setattr(fast, "config", {}), "'config' was assigned"),
        (
            lambda fast: torch.func.functional_call(fast, {"weight": X, "bias": X}, (X,)),
            "functional_call was asked to give",
        ),
        (lambda fast: torch.optim.swa_utils.AveragedModel(fast), "AveragedModel was given"),
        (lambda fast: make_fx(fast)(X), "while a graph is recorded"),
        (lambda fast: fast.register_buffer("b", X), "given a part 'b'"),
        (lambda fast: fast.add_module("m", nn.ReLU()), "given a part 'm'"),
        (lambda fast: fast.requires_grad_(), "no backward pass"),
        (lambda fast: fast.register_full_backward_hook(lambda *_: None), "backward hook"),
        (lambda fast: fast.compile(), "torch.compile has nothing to work on"),
        (lambda fast: fast.share_memory(), "belong to this process"),
        (lambda fast: fast._replicate_for_data_parallel(), "DataParallel"),
        (lambda fast: TRACE(fast, (X,)), "TorchScript"),
        (lambda fast: torch.export.export(fast, (X,)), "cannot be exported"),
        (lambda fast: torch.jit.script(fast), "TorchScript"),
        (lambda fast: fast.load_state_dict({}, assign=True), "leave assign=True out"),
        (lambda fast: anabranch.compile(fast, (X,), **QUICK), "the model is compiled"),
        (lambda fast: anabranch.compile(nn.Sequential(fast).eval(), (X,), **QUICK), "the part 0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    fast: Compiled, what: Callable[[Compiled], Any], words: str
) -> None:
    with pytest.raises(anabranch.AnabranchError, match=words):
        what(fast)


def test_a_default_device_hides_no_parameters(fast: Compiled, net: Net) -> None:
    with torch.device("cpu"):
        assert [name for name, _ in fast.named_parameters()] == [
            name for name, _ in net.named_parameters()
        ]


def test_hooks_run(fast: Compiled) -> None:
    plain = fast(X)
    own = copy.deepcopy(fast)
    seen: list[Any] = []
    own.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    own.register_forward_hook(lambda module, args, result: seen.append(result))
    assert not torch.equal(own(X), plain) and len(seen) == 1
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(None))
    try:
        fast(X)
    finally:
        handle.remove()
    assert len(seen) == 2
    fast(X)
    assert len(seen) == 2


def test_hooks_of_state_dicts_run(net: Net) -> None:
    fast: Any = anabranch.compile(net, (X,), **QUICK)
    seen: list[str] = []
    fast.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    fast._register_load_state_dict_pre_hook(lambda given, prefix, *_: seen.append(prefix))
    fast.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    fast.register_state_dict_pre_hook(lambda *_: seen.append("save"))
    fast.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    around = nn.Sequential(fast)
    around.load_state_dict(around.state_dict())
    assert seen == ["save", "saved", "load", "0.", "loaded"]

    def renamed(module: nn.Module, given: dict[str, Any], *_: Any) -> None:
        given["linear.bias"] = given.pop("bias")

    fast.register_load_state_dict_pre_hook(renamed)
    state = net.state_dict()
    fast.load_state_dict({**state, "bias": state.pop("linear.bias")})


def test_global_backward_hooks_see_a_gradient_come_before_it_is_refused(net: Net) -> None:
    fast, seen = anabranch.compile(net, (X,), **QUICK), list[nn.Module]()
    hooks: Any = nn.modules.module
    handle = hooks.register_module_full_backward_pre_hook(lambda module, _: seen.append(module))
    try:
        result = fast(X)
        with pytest.raises(RuntimeError, match="compiled by Anabranch"):
            result.sum().backward()
    finally:
        handle.remove()
    assert seen == [fast]


@pytest.mark.parametrize("name", ["weight", "linear.weight", "0.linear.weight"])
def test_functional_call_is_refused(fast: Compiled, name: str) -> None:
    module = nn.Sequential(fast) if name.startswith("0.") else fast
    with pytest.raises(OptionError, match="give it other weights with load_state_dict"):
        torch.func.functional_call(module, {name: torch.zeros(3, 4)}, (X,))
    assert not hasattr(fast, "linear")


def test_copies_are_plans_of_their_own(fast: Compiled) -> None:
    want = fast(X)
    stream = io.BytesIO()
    torch.save(fast, stream)
    stream.seek(0)
    for other in (
        copy.deepcopy(fast),
        pickle.loads(pickle.dumps(fast)),
        torch.load(stream, weights_only=False),
    ):
        assert torch.equal(other(x=X, scale=1.0), want)
        with pytest.raises(anabranch.InputError, match=r"scale is 2.0, compiled for 1.0"):
            other(X, scale=2.0)
    assert torch.equal(copy.copy(fast)(X), want)


def test_copies_answer_calls_as_the_original() -> None:
    fast = anabranch.compile(lambda x: x + 1, (X,), **QUICK, outputs="view").add((X[:1],))
    other = copy.deepcopy(fast)
    first = other(X)
    assert torch.equal(first, X + 1) and torch.equal(other(X[:1]), X[:1] + 1)
    other(X * 2)
    assert torch.equal(first, X * 2 + 1)


def test_a_plan_that_runs_nowhere_is_not_copied(net: Net) -> None:
    fast = anabranch.compile(net, (X,), **{**QUICK, "target": "sim:h200", "kernels": "library"})
    with pytest.raises(OptionError, match="simulated GPU cannot be copied"):
        copy.deepcopy(fast)
    assert "simulated NVIDIA H200" in repr(fast)


def test_plain_data_of_the_model_is_at_hand(fast: Compiled) -> None:
    assert fast.config == {"layers": 1} and hasattr(fast, "config")
    for name in ("linear", "get_extra_state_of", "_private"):
        assert not hasattr(fast, name)
    with pytest.raises(AttributeError, match=r"at \.model\.linear"):
        _ = fast.linear
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pickle.loads(pickle.dumps(fast)).nothing


def test_torch_compile_runs_it_as_it_is(fast: Compiled, net: Net) -> None:
    around = torch.compile(nn.Sequential(fast, nn.ReLU()), backend="eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.allclose(around(X), net(X).relu(), atol=1e-6)


def test_torch_fx_has_it_as_a_leaf_and_refuses_to_trace_it_alone(fast: Compiled, net: Net) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.fast = nn.Linear(4, 4), fast

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fast(self.stem(x), scale=1.0) + 1
            return y

    whole = Whole()
    traced = torch.fx.symbolic_trace(whole)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["stem", "fast"]
    torch.testing.assert_close(traced(X), net(whole.stem(X)) + 1)
    for alone in (fast, lambda x: fast(x)):
        with pytest.raises(OptionError, match=r"cannot be traced by torch\.fx") as refused:
            torch.fx.symbolic_trace(alone)
        assert ".model" in refused.value.next
