"""Losses, which a file may end with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable


def negative_log_likelihood(
    call: OnnxCall, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor:
    """NegativeLogLikelihoodLoss."""
    return _picked(call, x, target, weight)


def _picked(call: OnnxCall, x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    ignored, how = call.get("ignore_index", -100), call.get("reduction", "mean")
    return F.nll_loss(x, target.to(torch.int64), weight, ignore_index=ignored, reduction=how)


def cross_entropy(
    call: OnnxCall, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """SoftmaxCrossEntropyLoss, and the logarithms that it is made of."""
    likely = F.log_softmax(x, 1)
    loss = _picked(call, likely, target, weight)
    return (loss, likely) if len(call.node.outputs) > 1 else loss


LOSSES: OperatorTable = {
    "NegativeLogLikelihoodLoss": OnnxOperator(negative_log_likelihood),
    "SoftmaxCrossEntropyLoss": OnnxOperator(cross_entropy),
}
