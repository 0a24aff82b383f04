from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tests.frontend.onnx.files import make_node, model, value, weight, written
from tests.frontend.onnx.node_tests import (
    cases,
    imported,
    listed,
    outcomes,
    outside,
    same,
    tensor,
)

import anabranch
from anabranch.frontend.onnx.importer import from_onnx

pytestmark = pytest.mark.xdist_group("onnx_nodes")  # they share what all of them gave

COMPILED = (
    "test_gemm_all_attributes",
    "test_basic_conv_with_padding",
    "test_convtranspose",
    "test_averagepool_2d_ceil",
    "test_maxpool_2d_pads",
    "test_layer_normalization_4d_axis2",
    "test_batchnorm_epsilon",
    "test_attention_4d",
    "test_attention_4d_causal_expanded",
    "test_lstm_with_initial_bias",
    "test_gru_defaults",
    "test_reduce_log_sum_exp_default_axes_keepdims_example",
    "test_instancenorm_epsilon",
    "test_gather_elements_1",
    "test_scatter_elements_with_axis",
    "test_globalaveragepool",
    "test_qlinearmatmul_2D_uint8_float32",
    "test_quantizelinear_axis",
    "test_softmax_axis_1_expanded",
    "test_depthtospace_example",
)


def test_what_does_not_pass_is_listed_and_what_is_listed_does_not_pass() -> None:
    failing = {one.name: one.wrong for one in outcomes() if one.wrong}
    rounding = {name for name, why in listed().items() if why.startswith("differs by rounding")}
    assert {name: why for name, why in failing.items() if name not in listed()} == {}
    # Rounding is another processor's affair, so that those may pass; they never differ by more.
    assert set(listed()) - set(failing) - rounding == set()
    near = {one.name for one in outcomes() if one.by_rounding or not one.wrong}
    assert rounding <= near


def test_nineteen_of_twenty_pass() -> None:
    """Of those for inference on tensors that torch has."""
    counted = [one for one in outcomes() if one.name not in outside()]
    passing = [one for one in counted if not one.wrong and one.name not in listed()]
    assert len(counted) > 1800 and len(passing) / len(counted) >= 0.95


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, tmp_path: Path) -> None:
    (case,) = (one for one in cases() if one.name == name)
    inputs, answers = case.data_sets[0]
    model, args = imported(case, tmp_path), tuple(map(tensor, inputs))
    fast = anabranch.compile(model, args, target="cpu", search="none", fullgraph=True)
    with torch.no_grad():
        results = fast(*args)
    results = results if isinstance(results, tuple) else (results,)
    for ours, theirs in zip(results, answers, strict=True):
        same(ours, theirs, case.rtol, max(case.atol, 1e-6))


def test_slopes_that_are_not_those_of_channels_broadcast(tmp_path: Path) -> None:
    """Five rows, and as many channels."""
    slope = torch.linspace(-1, 1, 5).reshape(5, 1)
    nodes = [make_node("PRelu", ["x", "slope"], ["y"])]
    shape = [value("x", 2, 5, 5, 4)], [value("y", 2, 5, 5, 4)]
    net = from_onnx(written(tmp_path, model(nodes, *shape, [weight("slope", slope.numpy())])))
    x = -torch.rand(2, 5, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(x), x * slope)
    rows = from_onnx(
        written(tmp_path, model(nodes, *shape, [weight("slope", slope[None].numpy())]))
    )
    assert torch.equal(rows(x), x * slope)


def runtime(path: Path, x: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


@pytest.mark.parametrize("sizes", [(6, 8), (7, 7), (9, 10)])
def test_a_transposed_convolution_of_a_shape_that_is_given(
    sizes: tuple[int, int], tmp_path: Path
) -> None:
    """Less than all of it is cut from both sides, more of it stands at the end."""
    w = weight("w", np.random.default_rng(0).standard_normal((2, 3, 2, 3), dtype=np.float32))
    nodes = [make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=sizes)]
    made = model(nodes, [value("x", 1, 2, 4, 4)], [value("y", 1, 3, *sizes)], [w])
    path = written(tmp_path, made)
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(from_onnx(path)(x), runtime(path, x))


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("sides", [(0, 0, 1, 2), (0, 1, 2, 0), (0, 0, -1, 1), (0, 0, 3, 0)])
def test_padding_by_what_there_is(mode: str, sides: tuple[int, ...], tmp_path: Path) -> None:
    """Also where torch has no function for it, which does not cut."""
    pads = weight("pads", np.array([0, 0, *sides[::2], 0, 0, *sides[1::2]]))
    nodes = [make_node("Pad", ["x", "pads"], ["y"], mode=mode)]
    made = model(nodes, [value("x", 2, 3, 4, 4)], [value("y", 2, 3, None, None)], [pads])
    path = written(tmp_path, made)
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(from_onnx(path)(x), runtime(path, x))


def test_norms_in_half_precision_are_those_of_torch(tmp_path: Path) -> None:
    """What the file computes in 32 bits is computed in what these become, without casts."""
    scale = weight("scale", np.linspace(1, 2, 8, dtype=np.float32))
    nodes = [make_node("RMSNormalization", ["x", "scale"], ["y"], axis=-1)]
    made = model(nodes, [value("x", 2, 8)], [value("y", 2, 8)], [scale], opset=23)
    net = from_onnx(written(tmp_path, made), dtype=torch.float16)
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).half()
    row = torch.linspace(1, 2, 8).half()
    assert torch.equal(net(x), torch.nn.functional.rms_norm(x, [8], row, 1e-5))
    program = torch.export.export(net, (x,), strict=False)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert calls == ["aten.rms_norm.default"]


@pytest.mark.parametrize(
    ("scales", "mode", "place"),
    [
        ((1.7, 0.3), "nearest", "asymmetric"),
        ((0.6, 1.1), "nearest", "asymmetric"),
        ((0.6, 1.1), "linear", "align_corners"),
        ((1.7, 0.3), "cubic", "align_corners"),
        ((1.1, 0.3), "linear", "half_pixel"),
    ],
)
def test_scales_that_are_no_whole_numbers_are_those_of_torch(
    scales: tuple[float, float], mode: str, place: str, tmp_path: Path
) -> None:
    """As torch's exporter writes them: 17 / 1.7 in 64 bits of 1.7 in 32 bits lies below 10."""
    node = make_node(
        "Resize",
        ["x", "", "scales"],
        ["y"],
        mode=mode,
        coordinate_transformation_mode=place,
        nearest_mode="floor",
    )
    by = weight("scales", np.array([1, 1, *scales], dtype=np.float32))
    made = model([node], [value("x", 1, 2, 30, 41)], [value("y", None, None, None, None)], [by])
    x = torch.randn(1, 2, 30, 41, generator=torch.Generator().manual_seed(0))
    name = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode]
    corners = None if mode == "nearest" else place == "align_corners"
    want = torch.nn.functional.interpolate(x, scale_factor=scales, mode=name, align_corners=corners)
    torch.testing.assert_close(from_onnx(written(tmp_path, made))(x), want, atol=1e-4, rtol=1e-4)
