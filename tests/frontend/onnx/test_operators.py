from __future__ import annotations

from pathlib import Path

import pytest
import torch
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
