from __future__ import annotations

import copy
import logging
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.frontend.models import CASES, Net, Point, f
from tests.networks import each, tiny
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import anabranch
from anabranch.cache import Cache
from anabranch.errors import CaptureError
from anabranch.frontend import Captured, capture
from anabranch.frontend.capture_cache import capture_model
from anabranch.frontend.structure import flatten_call, unflatten_result
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.trees import read_tree
from anabranch.ir.verify import verify_graph
from anabranch.trace import Trace


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def run(
    captured: Captured,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    precision: torch.dtype | None = None,
) -> Any:
    """The result of a call by the oracle, in the structure of the model's."""
    trees = captured.trees
    tensors = flatten_call(captured.signature, captured.graph.inputs, args, kwargs or {}, trees[0])
    with torch.no_grad():
        results = eval_graph(captured.graph, tensors, precision=precision)
    names = [ref.name for ref in captured.graph.outputs]
    return unflatten_result(captured.signature, dict(zip(names, results, strict=True)), trees[1])


def assert_same(captured: Captured, model: nn.Module, call: tuple[Any, Any]) -> None:
    """The graph computes what the model does, in its precision and in float64, and as text."""
    half = any("_to_copy" in node.op for node in captured.graph.nodes)
    verify_graph(captured.graph)
    assert parse_graph(text_graph(captured.graph)) == captured.graph
    for precision in (None, torch.float64):
        got = run(captured, *copy.deepcopy(call), precision)
        want = model(*copy.deepcopy(call)[0], **call[1])
        (left, tree), (right, other) = pytree.tree_flatten(got), pytree.tree_flatten(want)
        assert tree == other
        for a, b in zip(left, right, strict=True):
            if isinstance(b, Tensor):
                atol = 2e-2 if half else 1e-4
                torch.testing.assert_close(a.to(b.dtype), b, rtol=1e-5, atol=atol)
            else:
                assert a == b and type(a) is type(b)


@pytest.mark.parametrize("name", CASES)
def test_computes_what_the_model_does(name: str) -> None:
    case = CASES[name]()
    captured = capture(case.model, *case.make())
    assert_same(captured, case.model, case.make())


def test_nothing_is_left_unwritten() -> None:
    """Circular padding fills the parts of an empty tensor; no two runs of it would be equal."""
    for name in ("circular padding", "empty memory"):
        case = CASES[name]()
        graph = capture(case.model, *case.make()).graph
        assert not [node.op for node in graph.nodes if "empty" in node.op]


@pytest.mark.parametrize("name", ["conv and batch norm", "attention", "lstm", "nested inputs"])
def test_models_in_double_precision(name: str) -> None:
    case = CASES[name]()
    case.model.double()
    call = pytree.tree_map_only(Tensor, Tensor.double, case.make())
    assert_same(capture(case.model, *call), case.model, call)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_models_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("lifted tensor", "masked softmax"):
        pytest.skip("the model makes a tensor on the CPU")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    case = CASES[name]()
    case.model.cuda()
    call = pytree.tree_map_only(Tensor, lambda t: t.detach().cuda(), case.make())
    captured = capture(case.model, *call)
    assert all(c.value is None or c.value.is_cuda for c in captured.graph.constants)
    call = pytree.tree_map_only(Tensor, lambda t: t.detach().cuda(), case.make())
    assert_same(captured, case.model, call)


@pytest.mark.gpu
def test_two_devices() -> None:
    with pytest.raises(CaptureError, match=r"the weight weight is on cuda:0, the input args\[0\]"):
        capture(nn.Linear(2, 2).cuda().eval(), (f(1, 2),))


@pytest.mark.parametrize("name", each())
def test_zoo(name: str) -> None:
    known = tiny(name)
    captured = known.captured
    assert_same(captured, known.model, (known.inputs, {}))
    assert all(ref.origin for ref in captured.graph.nodes)
    assert not [op for op in ops(captured.graph) if not op.startswith("aten.")]


def test_composites_stay_whole_and_the_rest_does_not() -> None:
    assert ops(capture(CASES["attention"]().model, (f(2, 5, 8),)).graph).keys() == {
        "aten.linear.default",
        "aten.split.Tensor",
        "aten.view.default",
        "aten.transpose.int",
        "aten.scaled_dot_product_attention.default",
    }
    case = CASES["conv and batch norm"]()
    assert list(ops(capture(case.model, *case.make()).graph)) == [
        "aten.convolution.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten.relu.default",
    ]
    case = CASES["einsum"]()
    assert "aten.bmm.default" in ops(capture(case.model, *case.make()).graph)


def test_splits_that_hide_that_they_are_views_say_so() -> None:
    names = ops(
        capture(Net(lambda net, x, h: net.a(x, h), a=nn.GRUCell(3, 4)), (f(2, 3), f(2, 4))).graph
    )
    assert "aten.split.Tensor" in names
    assert not any("unsafe" in name for name in names)


def test_dropout_in_eval_vanishes() -> None:
    assert list(ops(capture(CASES["dropout in eval"]().model, (f(4),)).graph)) == [
        "aten.add.Tensor"
    ]


def test_a_returned_copy_of_an_input_stays_a_copy() -> None:
    captured = capture(Net(lambda net, x: (x.clone(), (x + 1).clone())), (f(2),))
    assert list(ops(captured.graph).elements()) == ["aten.clone.default", "aten.add.Tensor"]


def test_tied_weights_are_one_constant() -> None:
    captured = capture(CASES["tied weights"]().model, (torch.tensor([1, 2]),))
    (constant,) = captured.graph.constants
    assert captured.sources in (
        ((constant.name, "table.weight"),),
        ((constant.name, "head.weight"),),
    )


def test_constants_keep_strides_and_share_memory_with_the_model() -> None:
    model = CASES["transposed view of a weight"]().model
    w, v = capture(model, (f(2, 4),)).graph.constants
    assert (w.type.strides, v.type.strides) == ((4, 1), (1, 4))
    assert w.value is not None and w.value.data_ptr() == model.w.data_ptr()  # type: ignore[operator]
    assert not w.value.requires_grad and w.digest != v.digest


def test_sources_name_what_the_model_holds_and_no_other() -> None:
    net = Net(lambda net, x: x + net.held + net.shift + torch.tensor([1.0, 2.0]), shift=f(2))
    net.held = [None]  # type: ignore[assignment]
    net.held = f(2)
    captured = capture(net, (f(2),))
    assert {path for _, path in captured.sources} == {"held", "shift"}
    assert len(captured.graph.constants) == 3


def test_unused_weights_are_no_constants() -> None:
    captured = capture(Net(lambda net, x: x + 1, w=f(3), bn=nn.BatchNorm1d(3)), (f(3),))
    assert captured.graph.constants == ()


def test_origin_is_the_users_line_and_module() -> None:
    captured = capture(CASES["attention"]().model, (f(2, 5, 8),))
    assert captured.graph.nodes[0].origin.startswith("models.py:")
    assert captured.graph.nodes[0].origin.endswith("in forward (qkv)")
    only_torch = capture(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), (f(1, 2),))
    assert [node.origin for node in only_torch.graph.nodes] == ["(0)", "(1)"]


def test_mutated_input_is_in_the_signature() -> None:
    def write(net: Any, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        x[0] = 5
        return x * y

    captured = capture(Net(write), (f(3), f(3)))
    ((written, value),) = captured.signature.mutations
    assert written == captured.graph.inputs[0].name
    x, y = f(3), f(3)
    outputs = dict(
        zip(captured.graph.outputs, eval_graph(captured.graph, [x.clone(), y]), strict=True)
    )
    expected = Net(write)(x, y)
    torch.testing.assert_close(outputs[value], x)
    torch.testing.assert_close(outputs[captured.graph.outputs[0]], expected)


@torch.library.custom_op("anabranch_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("anabranch_test::overwrite", mutates_args=("x",))
def overwrite(x: list[Tensor]) -> None:
    x[0].zero_()


def test_custom_operator_stays_opaque() -> None:
    model = Net(lambda net, x: torch.ops.anabranch_test.twice(x + 1) * 3)
    captured = capture(model, (f(3),))
    assert "anabranch_test.twice.default" in ops(captured.graph)
    tensor = f(3)
    torch.testing.assert_close(run(captured, (tensor,)), model(tensor))
    assert parse_graph(text_graph(captured.graph)) == captured.graph


@dataclass
class Pair:
    left: Tensor
    right: Tensor


class Output(dict[str, Any]):
    """A mapping with a tree of its own, as transformers' ModelOutput is."""


def _output(net: Any, x: Tensor) -> Output:
    return Output(logits=x + 1, hidden=(x * 2, x * 3))


def test_registered_classes_as_inputs_and_outputs() -> None:
    pytree.register_dataclass(Pair, serialized_type_name="anabranch_test.Pair")
    pytree.register_pytree_node(
        Output,
        lambda out: (list(out.values()), list(out.keys())),
        lambda values, keys: Output(zip(keys, values, strict=True)),
        serialized_type_name="anabranch_test.Output",
    )
    model = Net(lambda net, pair: Pair(pair.right, pair.left * 2))
    captured = capture(model, (Pair(f(2), f(2)),))
    assert captured.signature.input_tree and captured.signature.output_tree
    pair = Pair(f(2), f(2))
    assert torch.equal(run(captured, (pair,)).right, pair.left * 2)
    captured = capture(Net(_output), (f(2),))
    assert isinstance(run(captured, (f(2),)), Output)


def test_results_of_a_named_tuple_have_a_text() -> None:
    """With its fields: where its class is not registered, it can be rebuilt as plain data."""
    captured = capture(CASES["namedtuple output"]().model, (f(3),))
    x = f(3)
    got = run(captured, (x,))
    assert isinstance(got, Point)
    torch.testing.assert_close(got.y, x * 2)
    plain = pytree.tree_unflatten([1, 2], read_tree(captured.signature.output_tree, plain=True))
    assert plain._fields == Point._fields and (plain.x, plain.y) == (1, 2)


def test_trees_without_text_work_in_this_process() -> None:
    captured = capture(CASES["namedtuple output"]().model, (f(3),))
    nameless = replace(captured, signature=replace(captured.signature, output_tree=""))
    x = f(3)
    torch.testing.assert_close(run(nameless, (x,)).y, x * 2)


def test_exported_programs() -> None:
    case = CASES["positional and keyword"]()
    args, kwargs = case.make()
    program = torch.export.export(case.model, args, kwargs)
    assert capture(program).graph.nodes == capture(case.model, args, kwargs).graph.nodes
    batch = torch.export.Dim("batch", min=1, max=64)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    dynamic = torch.export.export(net, (f(4, 3),), dynamic_shapes=({0: batch},))
    captured = capture(dynamic, (f(5, 3),))
    assert captured.graph.inputs[0].type.shape == (5, 3)
    assert captured.graph.name == capture(dynamic.module(), (f(5, 3),)).graph.name == "Sequential"
    x = f(5, 3)
    torch.testing.assert_close(run(captured, (x,)), net(x))


def test_functions_and_compiled_modules() -> None:
    captured = capture(lambda x: x.relu() + 1, (f(3),))
    x = f(3)
    torch.testing.assert_close(run(captured, (x,)), x.relu() + 1)
    model = nn.Sequential(nn.Linear(3, 3)).eval()
    compiled = torch.compile(model, backend="eager")
    assert capture(compiled, (f(1, 3),)).graph == capture(model, (f(1, 3),)).graph


def _branch(net: Any, x: Tensor) -> Tensor:
    y = x.sum()
    if y > 0:
        return x
    return -x


def _cond(net: Any, x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def _wrong_shapes(net: Any, x: Tensor) -> Tensor:
    return x @ torch.ones(7, 7)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    # name: model, arguments, what is said, and the function whose line is named
    "branch on a tensor": (Net(_branch), (f(3),), "control flow", "_branch"),
    "item": (Net(lambda net, x: x * (1 if x[0].item() > 0 else 2)), (f(3),), "control flow", "<la"),
    "nonzero": (Net(lambda net, x: x.nonzero()), (f(3),), "shape", "forward"),
    "boolean index": (Net(lambda net, x: x[x > 0] * 2), (f(3),), "shape", "forward"),
    "cond": (Net(_cond), (f(3),), "condition", "forward"),
    "training": (nn.Sequential(nn.Linear(2, 2)), (f(1, 2),), "training mode", ""),
    "training part": (Net(lambda net, x: x, a=nn.Dropout()).train(), (f(2),), "training", ""),
    "error in the model": (Net(_wrong_shapes), (f(3, 3),), "could not capture", "_wrong_shapes"),
    "sparse input": (Net(lambda net, x: x), (f(2, 2).to_sparse(),), "sparse", ""),
    "dtype": (Net(lambda net, x: x + 1), (torch.ones(2, dtype=torch.uint16),), "uint16", ""),
    "dtype inside": (Net(lambda net, x: x.to(torch.uint32)), (f(2),), "uint32", "forward"),
    "meta weights": (nn.Linear(2, 2, device="meta").eval(), (f(1, 2),), "no values", ""),
    "meta input": (nn.ReLU().eval(), (torch.ones(1, device="meta"),), "give a tensor with", ""),
    "two devices": (nn.Linear(2, 2).eval(), (torch.ones(1, 2, device="meta"),), "meta", ""),
    "object as input": (Net(lambda net, x: x), (object(),), "args[0] is a object", ""),
    "object as output": (
        Net(lambda net, x: object()),
        (f(2),),
        "returns an object of class object",
        "",
    ),
    "mutating operator": (
        Net(lambda net, x: torch.ops.anabranch_test.overwrite([x])),
        (f(2),),
        "anabranch_test.overwrite",
        "forward",
    ),
    "script": (torch.jit.script(nn.ReLU()), (f(2),), "TorchScript", ""),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_and_where(name: str) -> None:
    model, args, words, function = REFUSED[name]
    with pytest.raises(CaptureError) as caught:
        capture(model, args)
    assert words in str(caught.value)
    assert function in caught.value.source and bool(function) == bool(caught.value.source)
    if function:
        assert caught.value.source.startswith(("test_from_torch.py:", "models.py:"))


def test_which_part_is_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(CaptureError, match=r"its part 1 \(Dropout\).*(.|\n)*eval\(\)"):
        capture(model, (f(1, 2),))


def _state(model: nn.Module) -> Any:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return (
        {name: (id(t), t._version, t.requires_grad, t.clone()) for name, t in tensors.items()},
        {name: (m.training, set(vars(m))) for name, m in model.named_modules()},
    )


@pytest.mark.parametrize("name", ["lstm", "conv and batch norm", "transformer layer", "refused"])
def test_nothing_is_changed(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[name if name != "refused" else "lstm"]()
    args, kwargs = case.make()
    if name == "refused":
        case.model = Net(_branch, part=nn.Linear(3, 3))
        args = (f(3),)
    weights, modules = _state(case.model)
    expected = case.model(*args) if name != "refused" else None
    random, levels = torch.get_rng_state(), logging.getLogger("torch").level
    with warnings.catch_warnings(record=True) as caught, torch.enable_grad():
        warnings.simplefilter("always")
        try:
            capture(case.model, args, kwargs)
        except CaptureError:
            assert name == "refused"
        assert torch.is_grad_enabled()
    assert not [w for w in caught if "export" in str(w.message)]
    assert torch.equal(random, torch.get_rng_state())
    assert logging.getLogger("torch").level == levels
    after, modules_after = _state(case.model)
    assert modules_after == modules
    for key, (identity, version, grad, content) in weights.items():
        assert after[key][:3] == (identity, version, grad) and torch.equal(after[key][3], content)
    if expected is not None:
        torch.testing.assert_close(case.model(*args), expected)
    assert capfd.readouterr() == ("", "")


def test_forgotten_attributes_are_warned_of() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before: Tensor | None = None
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.before = self.last = x * 2
            self.seen.append(x + 1)
            return self.last + 1

    model, trace = Keeps().eval(), Trace()
    capture(model, (f(2),), {}, trace)
    assert not hasattr(model, "last") and model.before is None and model.seen == []
    assert [event.what for event in trace.events if event.kind == "warning"]


def test_numbers_that_only_checks_read_are_left_out() -> None:
    """Checks read tensors in their place. A number that anything else reads is refused."""

    def checked(x: Tensor, lengths: Tensor) -> Tensor:
        torch._check(lengths.max().item() <= 7)  # type: ignore[no-untyped-call]
        return x * 2

    captured = capture(checked, (f(3), torch.tensor([1, 2])))
    graph = captured.graph
    assert not any("scalar" in op for op in ops(graph))
    (check,) = captured.signature.checks
    assert check.ref == graph.outputs[1] and check.kind == "true"
    x = f(3)
    assert torch.equal(eval_graph(graph, (x, torch.tensor([3, 4])))[0], x * 2)

    def used(x: Tensor, lengths: Tensor) -> Tensor:
        return x * lengths.max().item()

    with pytest.raises(CaptureError):
        capture(used, (f(3), torch.tensor([1, 2])))


class OfComplex(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        z = x * 1j
        return z, torch.exp(z) + (1 + 2j), (x * (2 - 1j)) / 3j, torch.abs(x - 1j), z**2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_numbers_are_constants(dtype: torch.dtype) -> None:
    x, cache, device = torch.randn(4, dtype=dtype), Cache(None), torch.device("cpu")
    model = OfComplex().eval()
    for _ in range(2):  # the second one is recalled
        captured, _ = capture_model(model, (x,), {}, cache, Trace())
        for got, want in zip(eval_graph(captured.graph, [x], device), model(x), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)


def test_models_that_torch_captures_wrongly_are_told_why() -> None:
    """torch.cond runs for us as it does for the user."""
    options: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    with pytest.raises(CaptureError, match="under a condition") as refused:
        anabranch.compile(Net(_cond).eval(), (f(3),), **options)
    assert "the model itself fails" not in str(refused.value)


def _forked(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        return x + torch.randn(3)


def _seeded(seed: Any, x: torch.Tensor) -> torch.Tensor:
    seed(3)
    return x + torch.randn(3)


def _put_back(x: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    y = x + torch.randn(3)
    torch.set_rng_state(state)
    return y


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda x: (torch.manual_seed(3), x + torch.randn(3))[1], "manual_seed"),
        (
            lambda x: (torch.default_generator.manual_seed(3), x + torch.randn(3))[1],
            "default_generator.manual_seed",
        ),
        (lambda x: _seeded(torch.cuda.manual_seed, x), r"cuda\.manual_seed"),
        (lambda x: _seeded(torch.cuda.manual_seed_all, x), r"cuda\.manual_seed_all"),
        (_forked, "fork_rng"),
        (_put_back, "set_rng_state"),
    ],
)
def test_a_model_that_seeds_random_numbers_is_refused_with_its_line(model: Any, told: str) -> None:
    """Each call of it draws the same numbers; a plan would go on with the next ones."""
    with pytest.raises(CaptureError, match=rf"in forward: torch.{told}\(\)") as refused:
        anabranch.compile(model, (torch.ones(3),), target="cpu", search="none")
    assert refused.value.source.startswith("test_from_torch.py:")


def test_a_generator_of_the_model_is_named_where_it_is_refused() -> None:
    own = torch.Generator().manual_seed(3)
    with pytest.raises(CaptureError, match=r"from a torch\.Generator of its own"):
        anabranch.compile(
            lambda x: x + torch.randn(3, generator=own), (torch.ones(3),), target="cpu"
        )


@pytest.mark.parametrize(
    "write",
    [
        lambda net, x: [part.add_(1) for part in net.layer(x).chunk(2)],
        lambda net, x: [part.relu_() for part in net.layer(x).split([1, 1])],
        lambda net, x: [row.mul_(row) for row in net.layer(x).unbind(0)],
        lambda net, x: net.layer.weight[0].mul_(1.0) + x,
    ],
)
def test_views_that_autograd_lets_nobody_write_to_are_written_to_without_gradients(
    write: Any,
) -> None:
    """As eager does; torch.export has the model in grad mode, and autograd refuses it there."""
    model, x = Net(write, layer=nn.Linear(3, 3)).eval(), f(2, 3)
    with torch.no_grad():
        fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
        for made, wanted in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(made, wanted)


def _written_out(net: Any, x: Tensor) -> Tensor:
    out = torch.empty(2, 3)
    torch.mm(x, net.layer.weight, out=out)
    return out


def test_operators_that_write_to_out_are_captured_without_gradients() -> None:
    model, x = Net(_written_out, layer=nn.Linear(3, 3)).eval(), f(2, 3)
    with torch.no_grad():
        fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
        torch.testing.assert_close(fast(x), model(x))


def test_a_shape_that_comes_back_may_change_in_place() -> None:
    def model(x: Tensor) -> Tensor:
        y = x.unsqueeze_(0) + 1
        x.squeeze_(0)
        return y.t_() if y.ndim == 2 else y

    x = f(2, 3)
    fast = anabranch.compile(model, (x,), target="cpu", search="none", cache_dir=None)
    torch.testing.assert_close(fast(x), x[None] + 1)


def _given_other_memory(layer: nn.Linear, x: Tensor) -> Tensor:
    layer.weight.data = layer.weight.data * 2
    return x


SPARSE = torch.sparse_csr_tensor([0, 1, 2], [1, 0], [2.0, 3.0], size=(2, 2))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda net, x: net.layer(x) + torch.from_numpy(x.numpy()), "gives a tensor to NumPy"),
        (lambda net, x: net.layer(x) + torch.tensor([x[0, 0], x[1, 1]]).sum(), "numbers of others"),
        (lambda net, x: net.layer(_given_other_memory(net.layer, x)), "does not follow"),
        (
            lambda net, x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
            "makes a quantised tensor",
        ),
        (lambda net, x: SPARSE @ net.layer(x), "with a sparse tensor"),
        (lambda net, x: net.layer(x.unsqueeze_(0)), r"args\[0\] another shape, other strides"),
        (lambda net, x: net.layer(x).t() + x.t_(), r"args\[0\] another shape, other strides"),
        (lambda net, x: net.layer(x) + x.set_(torch.ones(3)), r"args\[0\] another shape"),
    ],
)
def test_what_goes_past_torch_export_is_refused_in_our_words(function: Any, told: str) -> None:
    model = Net(function, layer=nn.Linear(3, 3)).eval()
    with torch.no_grad(), pytest.raises(CaptureError, match=told):
        anabranch.compile(model, (f(2, 3),), target="cpu", search="none", cache_dir=None)
