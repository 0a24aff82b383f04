from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tests.frontend.onnx.files import (
    images,
    linear,
    make_graph,
    make_node,
    model,
    value,
    weight,
    written,
)
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.errors import InputError, OptionError
from anabranch.frontend.onnx.importer import from_onnx


def answers(path: Path, *inputs: Tensor) -> list[Tensor]:
    """What onnxruntime computes on the CPU."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    given = {name: one.numpy() for name, one in zip(names, inputs, strict=True)}
    return [torch.from_numpy(one) for one in session.run(None, given)]


def test_weights_have_the_names_of_the_file_and_inputs_too(tmp_path: Path) -> None:
    path = written(tmp_path, linear())
    net = from_onnx(path)
    assert dict(net.named_parameters()).keys() == {"fc.weight", "fc.bias"}
    assert not net.training and "batch" in repr(net)
    assert list(inspect.signature(net.forward).parameters) == ["x_1"] == list(net.names)
    x = torch.randn(5, 3)
    torch.testing.assert_close(net(x_1=x), answers(path, x)[0])
    with pytest.raises(InputError, match="x_1"):
        net()
    with pytest.raises(InputError, match="x_1"):
        net(x, x)


def test_it_is_a_module_like_any(tmp_path: Path) -> None:
    """Copied, pickled, moved to another type, and loaded with a model's own weights."""
    net = from_onnx(written(tmp_path, linear()))
    x = torch.randn(5, 3)
    expected = net(x)
    for same in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(same(x), expected) and same.names == net.names
    assert net.double()(x.double()).dtype == torch.float64
    theirs = nn.Sequential()
    theirs.add_module("fc", nn.Linear(3, 2))
    net.float().load_state_dict(theirs.state_dict())
    torch.testing.assert_close(net(x), theirs(x).relu())


@pytest.mark.parametrize("name", ["program", "forward", "a.b", "a", "1", "x y", "_parameters.w"])
def test_weights_may_be_called_anything(tmp_path: Path, name: str) -> None:
    """What modules cannot call so, because of a dot, a name of their own or another weight, has
    another name there."""
    weights = [weight(one, np.array([1, 2], dtype=np.float32)) for one in {name, "a.b"}]
    nodes = [make_node("Add", ["x", name], ["h"]), make_node("Mul", ["h", "a.b"], ["y"])]
    made = model(nodes, [value("x", 2)], [value("y", 2)], weights)
    net = from_onnx(written(tmp_path, made))
    assert net(torch.ones(2)).tolist() == [2, 6]
    assert sum(one.numel() for one in net.parameters()) == 2 * len(weights)


def test_floats_of_the_file_become_what_is_asked(tmp_path: Path) -> None:
    nodes = [
        make_node("Cast", ["n"], ["f"], to=1),
        make_node("Mul", ["f", "w"], ["y"]),
    ]
    weights = [weight("w", np.array([1, 2], dtype=np.float32))]
    made = model(nodes, [value("n", 2, kind=7)], [value("y", 2)], weights)
    net = from_onnx(written(tmp_path, made), dtype=torch.bfloat16)
    assert net(torch.tensor([3, 4])).tolist() == [3, 8]
    assert net(torch.tensor([3, 4])).dtype == torch.bfloat16
    with pytest.raises(OptionError, match="int8"):
        from_onnx(written(tmp_path, made), dtype=torch.int8)


def _resizing() -> Any:
    """Shapes that are computed of the input's: a reshape and twice the size, dynamic axes."""
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "zero"], ["n"]),
        make_node("Slice", ["s", "two", "four"], ["hw"]),
        make_node("Mul", ["hw", "two"], ["wide"]),
        make_node("Slice", ["s", "none", "two"], ["nc"]),
        make_node("Concat", ["nc", "wide"], ["sizes"], axis=0),
        make_node("Resize", ["x", "", "", "sizes"], ["r"], mode="nearest"),
        make_node("Unsqueeze", ["n", "none"], ["n1"]),
        make_node("Concat", ["n1", "rest"], ["flat"], axis=0),
        make_node("Reshape", ["r", "flat"], ["y"]),
    ]
    numbers = {"zero": 0, "none": [0], "two": [2], "four": [4], "rest": [-1]}
    weights = [weight(key, np.array(one, dtype=np.int64)) for key, one in numbers.items()]
    inputs = [value("x", "batch", 3, "height", 8)]
    return model(nodes, inputs, [value("y", "batch", "n")], weights)


def test_shapes_that_are_computed_stay_symbols(tmp_path: Path) -> None:
    """torch.export keeps batch and height as dimensions, and no tensor is asked for its values."""
    path = written(tmp_path, _resizing())
    net = from_onnx(path, sizes={"batch": (1, 16)})
    assert net.dynamic_shapes is not None
    assert [dim.__name__ for dim in net.dynamic_shapes["x"].values()] == ["batch", "height"]
    x = torch.randn(4, 3, 6, 8)
    program = torch.export.export(net, (x,), dynamic_shapes=net.dynamic_shapes)
    for sizes in ((4, 6), (9, 11)):
        x = torch.randn(sizes[0], 3, sizes[1], 8)
        torch.testing.assert_close(program.module()(x), answers(path, x)[0])


def _twice() -> Any:
    """Twice x, end to end, and y, which is as long and one more; x is at least two."""
    nodes = [
        make_node("Concat", ["x", "x", "one"], ["xx"], axis=0),
        make_node("Add", ["xx", "y"], ["a"]),
        make_node("Slice", ["z", "zero", "one_axis"], ["row"]),
        make_node("Add", ["a", "row"], ["out"]),
    ]
    inputs = [value("x", "n", 3), value("y", "2*n + 1", 3), value("z", "n - 1", 3)]
    numbers = {"zero": [0], "one_axis": [1]}
    weights = [weight(key, np.array(number)) for key, number in numbers.items()]
    weights.append(weight("one", np.ones((1, 3), np.float32)))
    return model(nodes, inputs, [value("out", "2*n + 1", 3)], weights)


def test_sizes_that_are_made_of_others_are_theirs(tmp_path: Path) -> None:
    """As torch exports them: 2*n + 1 and n - 1 are no sizes of their own."""
    path = written(tmp_path, _twice())
    net = from_onnx(path, sizes={"n": (1, 8)})
    shapes = net.dynamic_shapes
    assert shapes is not None
    assert [str(dims[0]) for dims in shapes.values()] == [
        "Dim('n', max=8)",
        "2*n + 1",
        "n - 1",
    ]
    args = torch.randn(3, 3), torch.randn(7, 3), torch.randn(2, 3)
    program = torch.export.export(net, args, dynamic_shapes=shapes)
    for n in (3, 5):
        args = torch.randn(n, 3), torch.randn(2 * n + 1, 3), torch.randn(n - 1, 3)
        torch.testing.assert_close(program.module()(*args), answers(path, *args)[0])
    assert shapes["x"][0].min == 2, "n - 1 is a size, too"
    assert from_onnx(path, sizes={"n": 4}).dynamic_shapes is None
    with pytest.raises(OptionError, match=r"those that it leaves open are n\n"):
        from_onnx(path, sizes={"2*n + 1": 4})


def test_sizes_that_are_left_open_become_dimensions(tmp_path: Path) -> None:
    path = written(tmp_path, linear())
    net = from_onnx(path, sizes={"batch": (1, 8)})
    fast = anabranch.compile(
        net,
        (torch.randn(4, 3),),
        sizes=[1, 8],
        target="cpu",
        search="none",
    )
    for rows in (1, 3, 8, 20):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(fast(x), answers(path, x)[0])
    assert from_onnx(path, sizes={"batch": 4}).dynamic_shapes is None
    assert isinstance((from_onnx(path).dynamic_shapes or {})["x_1"][0], Dim)
    for wrong in ({"rows": 4}, {"batch": 0}, {"batch": (9, 8)}):
        with pytest.raises(OptionError):
            from_onnx(path, sizes=wrong)


def _branching(condition: str, *more: Any) -> Any:
    def branch(op: str) -> Any:
        return make_graph([make_node(op, ["x"], [f"{op}_x"])], op, [], [value(f"{op}_x", 4)])

    choose = make_node(
        "If", [condition], ["c"], then_branch=branch("Neg"), else_branch=branch("Abs")
    )
    layers = [
        make_node("MatMul", ["c", "w"], ["h"]),
        make_node("Relu", ["h"], ["r"]),
        make_node("MatMul", ["r", "w"], ["y"]),
    ]
    ones = np.eye(4, dtype=np.float32)
    weights = [weight("yes", np.array(True)), weight("w", ones), weight("zero", ones[0, 1])]
    return model([*more, choose, *layers], [value("x", 1, 4)], [value("y", 1, 4)], weights)


def test_numbers_of_the_file_are_not_rounded_to_halves(tmp_path: Path) -> None:
    """1e-12 would be nothing and a million endless, which as numbers of a model they are not."""
    nodes = [
        make_node("Mul", ["x", "small"], ["a"]),
        make_node("Cast", ["thousand"], ["k"], to=1),
        make_node("Mul", ["k", "k"], ["million"]),
        make_node("Mul", ["a", "million"], ["b"]),
        make_node("LayerNormalization", ["b", "one", "zero"], ["y"], epsilon=1e-12),
    ]
    numbers = [weight("small", np.float32(1e-6)), weight("thousand", np.int64(1000))]
    rows = [weight("one", np.ones(4, np.float32)), weight("zero", np.zeros(4, np.float32))]
    path = written(tmp_path, model(nodes, [value("x", 2, 4)], [value("y", 2, 4)], numbers + rows))
    half = from_onnx(path, dtype=torch.float16)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(half(x.half()).float(), answers(path, x)[0], rtol=0.02, atol=0.02)


def test_a_branch_whose_condition_is_constant_is_taken(tmp_path: Path) -> None:
    net = from_onnx(written(tmp_path, _branching("yes")))
    x = -torch.ones(1, 4)
    fast = anabranch.compile(net, (x,), target="cpu", search="none", fullgraph=True)
    assert fast(x).tolist() == [[1] * 4] and fast(-x).tolist() == [[0] * 4]


def test_a_branch_that_values_decide_is_a_cut(tmp_path: Path) -> None:
    asking = [
        make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        make_node("Greater", ["sum", "zero"], ["positive"]),
    ]
    net = from_onnx(written(tmp_path, _branching("positive", *asking)))
    x = torch.ones(1, 4)
    with pytest.raises(anabranch.DataDependentError):
        anabranch.compile(net, (x,), target="cpu", search="none", fullgraph=True)
    fast = anabranch.compile(net, (x,), target="cpu", search="none")
    fast.add((-x,))
    assert fast(x).tolist() == [[0] * 4] and fast(-x).tolist() == [[1] * 4]


def test_a_loop_of_known_length_is_its_turns(tmp_path: Path) -> None:
    """Seven times x + its number; the sum of 0 to 6 is 21."""
    body = make_graph(
        [
            make_node("Cast", ["i"], ["f"], to=1),
            make_node("Add", ["a", "f"], ["b"]),
            make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [value("i", kind=7), value("go", kind=9), value("a", 4)],
        [value("on", kind=9), value("b", 4)],
    )
    made = model(
        [make_node("Loop", ["seven", "", "x"], ["y"], body=body)],
        [value("x", 4)],
        [value("y", 4)],
        [weight("seven", np.array(7, dtype=np.int64))],
    )
    net = from_onnx(written(tmp_path, made))
    fast = anabranch.compile(net, (torch.ones(4),), target="cpu", search="none", fullgraph=True)
    assert fast(torch.ones(4)).tolist() == [22, 22, 22, 22]


def test_a_loop_that_values_end_is_a_cut(tmp_path: Path) -> None:
    """Doubled until the sum of four is ten at least: 1 to 4; from 3, once."""
    body = make_graph(
        [
            make_node("MatMul", ["a", "w"], ["h"]),
            make_node("Relu", ["h"], ["b"]),
            make_node("ReduceSum", ["b"], ["s"], keepdims=0),
            make_node("Less", ["s", "ten"], ["on"]),
        ],
        "body",
        [value("i", kind=7), value("go", kind=9), value("a", 1, 4)],
        [value("on", kind=9), value("b", 1, 4)],
    )
    numbers = {"w": 2 * np.eye(4, dtype=np.float32), "ten": np.float32(10), "yes": np.array(True)}
    weights = [weight(name, one) for name, one in numbers.items()]
    loop = make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    net = from_onnx(
        written(tmp_path, model([loop], [value("x", 1, 4)], [value("y", 1, 4)], weights))
    )
    fast = anabranch.compile(net, (torch.ones(1, 4),), target="cpu", search="none")
    for start, end in ((1, 4), (3, 6)):
        x = torch.full((1, 4), float(start))
        assert net(x).tolist() == fast(x).tolist() == [[end] * 4]


@pytest.mark.parametrize("opset", [13, 18])
def test_what_older_opsets_have_as_attributes_are_inputs(tmp_path: Path, opset: int) -> None:
    """The axes of a mean are an attribute before opset 18, and an input since."""
    weights = [weight("axes", np.array([1], dtype=np.int64))] if opset >= 18 else []
    given: dict[str, Any] = {} if weights else {"axes": [1]}
    node = make_node("ReduceMean", ["x", *(["axes"] if weights else [])], ["y"], **given)
    made = model([node], [value("x", 2, 3)], [value("y", 2, 1)], weights, opset)
    net = from_onnx(written(tmp_path, made))
    assert net(torch.tensor([[1.0, 2, 3], [4, 5, 9]])).tolist() == [[2], [6]]


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_a_choice_between_two_numbers_has_their_type(kind: torch.dtype, tmp_path: Path) -> None:
    code, array = (10, np.float16) if kind == torch.float16 else (11, np.float64)
    weights = [weight("no", np.array(0, dtype=array)), weight("low", np.array(-7, dtype=array))]
    node = make_node("Where", ["c", "no", "low"], ["y"])
    made = model([node], [value("c", 2, kind=9)], [value("y", 2, kind=code)], weights)
    y = from_onnx(written(tmp_path, made))(torch.tensor([True, False]))
    assert y.dtype == kind and y.tolist() == [0, -7]


def test_images_of_any_batch(tmp_path: Path) -> None:
    path = written(tmp_path, images())
    x = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(from_onnx(path)(x), answers(path, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_products_read_weights_as_layers_of_torch_do(tmp_path: Path, op: str) -> None:
    """ONNX has them transposed: a plan would read another layout, by other kernels."""
    matrix = np.random.default_rng(0).standard_normal((12, 5), dtype=np.float32)
    nodes = [make_node(op, ["x", "w"], ["out"])]
    ends = [value("x", 4, 12)], [value("out", 4, 5)]
    path = written(tmp_path, model(nodes, *ends, [weight("w", matrix)]))
    net, x = from_onnx(path), torch.randn(4, 12)
    (held,) = net.parameters()
    assert held.shape == (12, 5) and held.t().is_contiguous()
    assert torch.equal(held, torch.from_numpy(matrix))
    torch.testing.assert_close(net(x), answers(path, x)[0])
    run = anabranch.compile(net, (x,), target="cpu").executable()
    assert run is not None
    (constant,) = run.plan.tasks.constants
    assert constant.type.shape == (5, 12) and constant.type.contiguous
