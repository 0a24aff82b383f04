"""Networks that torch exports agree with onnxruntime on the CPU, opsets 13 to 26."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.frontend.onnx.importer import from_onnx
from anabranch.frontend.onnx.module import OnnxModule
from anabranch.ir.tolerances import relative_error
from anabranch.models.load import load_model

ALLOWED = 1e-4
NETWORKS = {
    "squeezenet": 13,
    "densenet121": 14,
    "googlenet": 15,
    "sru": 16,
    "resnet50": 17,
    "deepfm": 18,
    "t5": 19,
    "deepspeech2": 20,
    "gpt2": 14,
    "mobilenet_v2": 17,
}
"""Of the zoo, by the exporter that torch had first, which knows opsets up to 20."""
BY_TORCH_EXPORT = {"gru": 21, "mlp": 24, "attention_rnn": 26}
"""By the one over torch.export, which is slower and knows the newest."""


def exported(model: nn.Module, args: tuple[Any, ...], path: Path, **how: Any) -> Path:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, args, path, verbose=False, external_data=False, **how)
    return path


def runtime_answers(path: Path, args: tuple[Tensor, ...]) -> list[Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    pairs = zip(session.get_inputs(), args, strict=False)
    given = {key.name: one.numpy() for key, one in pairs}
    return [torch.from_numpy(one) for one in session.run(None, given)]


def agree(net: OnnxModule, path: Path, args: tuple[Tensor, ...]) -> None:
    args = args[: len(net.names)]
    with torch.no_grad():
        ours = net(*args)
    ours = ours if isinstance(ours, tuple) else (ours,)
    for mine, theirs in zip(ours, runtime_answers(path, args), strict=True):
        assert relative_error(mine, theirs) < ALLOWED


@pytest.mark.parametrize("name", [*NETWORKS, *BY_TORCH_EXPORT])
def test_networks_of_the_zoo(name: str, tmp_path: Path) -> None:
    model, args = load_model(f"zoo:{name}/tiny")
    newer = name in BY_TORCH_EXPORT
    opset = BY_TORCH_EXPORT[name] if newer else NETWORKS[name]
    path = exported(model, args, tmp_path / "net.onnx", dynamo=newer, opset_version=opset)
    net = from_onnx(path)
    agree(net, path, args)
    own = {key for key, _ in model.named_parameters()} & set(dict(net.named_parameters()))
    assert own, "weights have their names"


class Encoder(nn.Module):
    """A small encoder of transformers, whose sentences have any length, and padding."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.model(input_ids, attention_mask).last_hidden_state
        return hidden


def test_an_encoder_of_transformers_in_any_size(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(
        dim=32, n_layers=1, n_heads=4, hidden_dim=64, vocab_size=100, max_position_embeddings=64
    )
    torch.manual_seed(0)
    model = Encoder(transformers.DistilBertModel(config)).eval()
    ids, mask = torch.randint(0, 100, (2, 16)), torch.ones(2, 16, dtype=torch.int64)
    batch, tokens = Dim("batch", min=1, max=16), Dim("tokens", min=2, max=64)
    shapes = {key: {0: batch, 1: tokens} for key in ("input_ids", "attention_mask")}
    path = tmp_path / "net.onnx"
    exported(model, (ids, mask), path, dynamo=True, opset_version=18, dynamic_shapes=shapes)
    net = from_onnx(path)
    assert set(net.dynamic_shapes or {}) == {"input_ids", "attention_mask"}
    for shape in ((2, 16), (3, 20)):
        ids, mask = torch.randint(0, 100, shape), torch.ones(shape, dtype=torch.int64)
        mask[0, 10:] = 0
        agree(net, path, (ids, mask))
    fixed = from_onnx(path, sizes={"batch": 3, "tokens": 20})
    fast = anabranch.compile(fixed, (ids, mask), target="cpu", search="none", fullgraph=True)
    (expected,) = runtime_answers(path, (ids, mask))
    kept = mask.bool()
    assert relative_error(fast(ids, mask)[kept], expected[kept]) < ALLOWED
