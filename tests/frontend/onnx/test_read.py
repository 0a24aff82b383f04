"""Files that are damaged, or written to do harm: an error in words, and nothing else happens."""

from __future__ import annotations

import contextlib
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import SparseTensorProto
from tests.frontend.onnx.files import (
    adding,
    external,
    linear,
    make_function,
    make_graph,
    make_node,
    make_opsetid,
    model,
    value,
    weight,
    written,
)

from anabranch.errors import OnnxError, OptionError
from anabranch.frontend.onnx.importer import from_onnx

NUMBERS = np.array([1, 2, 3, 4], dtype=np.float32)
X = torch.ones(4)


def refused(path: Path, *words: str) -> None:
    """It is refused with these words, and without taking memory for what is not there."""
    tracemalloc.start()
    with pytest.raises(OnnxError) as error:
        from_onnx(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    said = str(error.value)
    assert all(word in said for word in words), said
    assert most < 64 << 20


def test_weights_in_the_file_and_beside_it_are_read(tmp_path: Path) -> None:
    inside = from_onnx(written(tmp_path, adding(weight("w", NUMBERS))))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "w.bin").write_bytes(b"12345678" + NUMBERS.tobytes())
    beside = adding(external("w", "deep/w.bin", [4], offset=8, length=16))
    outside = from_onnx(written(tmp_path, beside))
    assert inside(X).tolist() == outside(X).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("../secret.bin", "leads out"),
        ("deep/../../secret.bin", "leads out"),
        ("..\\secret.bin", "leads out"),
        ("/etc/passwd", "absolute"),
        ("C:\\secret.bin", "absolute"),
        ("link.bin", "link that leads out"),
        ("folder/secret.bin", "link that leads out"),
        ("pipe", "no plain file"),
        ("inner", "no plain file"),
        ("loop", "loop"),
        ("", "names no file"),
        ("a\0b", "names no file"),
        ("missing.bin", "missing.bin"),
        ("a" * 5000, "why:  File name too long"),
    ],
)
def test_nothing_beyond_the_folder_is_read(tmp_path: Path, location: str, why: str) -> None:
    inside = tmp_path / "model"
    (inside / "inner").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(NUMBERS.tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "loop").symlink_to("loop")
    os.mkfifo(inside / "pipe")
    path = written(inside, adding(external("w", location, [4], length=16)))
    refused(path, "w", why)


@pytest.mark.parametrize(
    ("shape", "said", "why"),
    [
        ([1 << 40], {}, "needed"),
        ([4], {"length": 1 << 50}, "do not fit"),
        ([4], {"offset": 1 << 50}, "needed"),
        ([4], {"offset": -16}, "offset"),
        ([4], {"offset": 4}, "not all there"),
        ([-4], {}, "not negative"),
        ([1 << 32, 1 << 32], {"length": 16}, "do not fit"),
    ],
)
def test_sizes_of_data_beside_the_file_fit(
    tmp_path: Path, shape: list[int], said: dict[str, int], why: str
) -> None:
    (tmp_path / "w.bin").write_bytes(NUMBERS.tobytes())
    refused(written(tmp_path, adding(external("w", "w.bin", shape, **said))), why)


@pytest.mark.parametrize("shape", [[1 << 40], [5], [3], [-1], [1 << 62, 1 << 62]])
@pytest.mark.parametrize("raw", [True, False])
def test_sizes_of_data_in_the_file_fit(tmp_path: Path, shape: list[int], raw: bool) -> None:
    tensor = weight("w", NUMBERS)
    if not raw:
        tensor.ClearField("raw_data")
        tensor.float_data.extend(NUMBERS.tolist())
    tensor.ClearField("dims")
    tensor.dims.extend(shape)
    refused(written(tmp_path, adding(tensor)), "w")


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    whole = written(tmp_path, linear()).read_bytes()
    path = tmp_path / "part.onnx"
    for size in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(OnnxError):
            from_onnx(path)


def test_what_is_no_file_of_onnx_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello, this is no model\n" * 40)
    refused(tmp_path / "text.onnx", "cannot be read as a model")
    refused(tmp_path, "no file")
    refused(tmp_path / "nowhere.onnx", "cannot read")


def _cyclic() -> Any:
    nodes = [make_node("Add", ["x", "b"], ["a"], name="first"), make_node("Relu", ["a"], ["b"])]
    return model(nodes, [value("x", 4)], [value("b", 4)])


def _missing() -> Any:
    return model([make_node("Add", ["x", "lost.weight"], ["y"])], [value("x", 4)], [value("y", 4)])


def _twice() -> Any:
    nodes = [make_node("Relu", ["x"], ["y"]), make_node("Abs", ["x"], ["y"])]
    return model(nodes, [value("x", 4)], [value("y", 4)])


def _no_output() -> Any:
    return model([make_node("Relu", ["x"], ["y"])], [value("x", 4)], [value("z", 4)])


def _calling(*bodies: tuple[str, list[str]]) -> Any:
    opsets = [make_opsetid("", 18), make_opsetid("own", 1)]
    functions = [
        make_function(
            "own",
            name,
            ["x"],
            [f"v{len(calls)}"],
            [
                make_node(call, ["x" if not at else f"v{at}"], [f"v{at + 1}"], domain=domain)
                for at, call in enumerate(calls)
                for domain in ["own" if call.startswith("f") else ""]
            ],
            opsets,
        )
        for name, calls in bodies
    ]
    nodes = [make_node("f0", ["x"], ["y"], domain="own")]
    inputs, outputs = [value("x", 4)], [value("y", 4)]
    return model(nodes, inputs, outputs, functions=functions, domains=["own"])


def _bomb() -> Any:
    """A kilobyte that would be 10**12 nodes."""
    deep = [(f"f{at}", [f"f{at + 1}"] * 10) for at in range(12)]
    return _calling(*deep, ("f12", ["Relu"]))


def _strings() -> Any:
    node = make_node("StringConcat", ["x", "x"], ["y"])
    return model([node], [value("x", 4, kind=8)], [value("y", 4, kind=8)], opset=20)


def _wrong_attribute() -> Any:
    node = make_node("Softmax", ["x"], ["y"], axis="last")
    return model([node], [value("x", 4)], [value("y", 4)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_cyclic, ("cycle", "first")),
        (_missing, ("lost.weight", "read and not there")),
        (_twice, ("'y' is redeclared",)),
        (_no_output, ("z", "read and not there")),
        (lambda: _calling(("f0", ["f1"]), ("f1", ["f0"])), ("call themselves", "f0 -> f1 -> f0")),
        (_bomb, ("more than 1000000 nodes",)),
        (lambda: linear(opset=99), ("opset 99",)),
        (_strings, ("STRING", "torch has no")),
    ],
)
def test_graphs_that_mean_nothing_are_told(
    tmp_path: Path, make: Callable[[], Any], words: tuple[str, ...]
) -> None:
    refused(written(tmp_path, make()), *words)


def test_a_node_without_an_input_that_it_needs_is_told(tmp_path: Path) -> None:
    made = model([make_node("MatMul", ["x"], ["y"])], [value("x", 4)], [value("y", 4)])
    refused(written(tmp_path, made), "MatMul y has 1 inputs")


def test_bytes_that_are_changed_anywhere_are_told_or_harmless(tmp_path: Path) -> None:
    """A file with one byte changed is read, or refused in words; nothing else is raised."""
    draw, path = random.Random(0), tmp_path / "changed.onnx"
    whole = [made.SerializeToString() for made in (linear(), _cyclic(), _calling(("f0", ["Neg"])))]
    for _ in range(150):
        data = bytearray(draw.choice(whole))
        data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(bytes(data))
        with contextlib.suppress(OnnxError):
            from_onnx(path)


def test_an_attribute_of_another_type_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, _wrong_attribute())
    with pytest.raises(OnnxError, match="the attribute axis of Softmax"):
        from_onnx(path)(X)


def test_functions_are_inlined(tmp_path: Path) -> None:
    made = from_onnx(written(tmp_path, _calling(("f0", ["Neg", "f1", "Neg"]), ("f1", ["Relu"]))))
    assert made(torch.tensor([1.0, -2, 3, -4])).tolist() == [0, -2, 0, -4]


def test_functions_of_another_opset_mean_what_they_meant(tmp_path: Path) -> None:
    """Softmax of opset 11 is over all axes from the first on, of opset 18 over the last."""
    opsets = [make_opsetid("", 11), make_opsetid("own", 1)]
    body = [make_node("Softmax", ["x"], ["y"])]
    softmax = make_function("own", "Old", ["x"], ["y"], body, opsets)
    nodes = [make_node("Old", ["x"], ["a"], domain="own"), make_node("Softmax", ["a"], ["y"])]
    shape = [value("x", 2, 3, 4)], [value("y", 2, 3, 4)]
    path = written(tmp_path, model(nodes, *shape, functions=[softmax], domains=["own"]))
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = x.reshape(2, 12).softmax(1).reshape(2, 3, 4).softmax(-1)
    torch.testing.assert_close(from_onnx(path)(x), expected)


def test_a_function_of_an_opset_that_nobody_knows_is_told(tmp_path: Path) -> None:
    opsets = [make_opsetid("", 99), make_opsetid("own", 1)]
    new = make_function("own", "New", ["x"], ["y"], [make_node("Relu", ["x"], ["y"])], opsets)
    nodes = [make_node("New", ["x"], ["y"], domain="own")]
    shape = [value("x", 4)], [value("y", 4)]
    made = model(nodes, *shape, functions=[new], domains=["own"])
    refused(written(tmp_path, made), "opset 99")


@pytest.mark.parametrize("node", [True, False])
def test_sparse_tensors_are_refused_by_name(node: bool, tmp_path: Path) -> None:
    """A hundred bytes that say a terabyte."""
    numbers, places = weight("w", NUMBERS[:1]), weight("w_places", np.array([1]))
    sparse = SparseTensorProto(values=numbers, indices=places, dims=[1 << 40])
    nodes = [make_node("Add", ["x", "w"], ["y"])]
    if node:
        nodes.insert(0, make_node("Constant", [], ["w"], sparse_value=sparse))
    made = model(nodes, [value("x", 4)], [value("y", 4)])
    if not node:
        made.graph.sparse_initializer.append(sparse)
    refused(written(tmp_path, made), "sparse tensors", "export the model with weights")


def test_nodes_in_any_order_run(tmp_path: Path) -> None:
    nodes = [make_node("Abs", ["a"], ["y"]), make_node("Neg", ["x"], ["a"])]
    made = from_onnx(written(tmp_path, model(nodes, [value("x", 4)], [value("y", 4)])))
    assert made(-X).tolist() == [1, 1, 1, 1]


def test_operators_of_our_own_are_nobody_elses(tmp_path: Path) -> None:
    """Those that patterns are found as, whose attributes no file has."""
    nodes = [make_node("Attention", ["x", "x", "x"], ["y"], domain="anabranch")]
    made = model(nodes, [value("x", 4)], [value("y", 4)], domains=["anabranch"])
    refused(written(tmp_path, made), "anabranch.Attention (1)")


def test_all_unknown_operators_are_named_with_how_often_they_occur(tmp_path: Path) -> None:
    """Those in graphs within nodes too; none is ever skipped."""
    inner = make_graph([make_node("Glow", ["x"], ["i"])], "inner", [], [value("i", 4)])
    nodes = [
        make_node("Shine", ["x"], ["a"], domain="com.lamps"),
        make_node("Shine", ["a"], ["b"], domain="com.lamps"),
        make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner),
        make_node("Add", ["b", "d"], ["y"]),
    ]
    inputs = [value("x", 4), value("c", kind=9)]
    made = model(nodes, inputs, [value("y", 4)], domains=["com.lamps"])
    refused(written(tmp_path, made), "2 operators", "com.lamps.Shine (2)", "Glow (2)")


def test_without_the_packages_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    path = written(tmp_path, linear())
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(OptionError, match=r"anabranch\[onnx\]"):
        from_onnx(path)


def test_integers_of_four_bits_are_unpacked(tmp_path: Path) -> None:
    """Their scales are for blocks of two; lowest bits come first."""
    packed = weight("q", np.zeros(2, dtype=np.int8))
    packed.data_type, packed.raw_data = 22, bytes([0x21, 0xF7])  # 1, 2, 7, -1
    packed.ClearField("dims")
    packed.dims.extend([4])
    scale = weight("s", np.array([0.5, 2], dtype=np.float32))
    node = make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=2)
    nodes = [node, make_node("Add", ["x", "w"], ["y"])]
    made = model(nodes, [value("x", 4)], [value("y", 4)], [packed, scale], opset=21)
    assert from_onnx(written(tmp_path, made))(X).tolist() == [1.5, 2, 15, -1]
