"""What a network is trained with: its name -> the module in training mode, a loss, an optimizer.

| networks | loss | optimizer |
|---|---|---|
| of images | cross entropy of the logits | SGD, momentum 0.9, weight decay 1e-4 |
| BERT | cross entropy of the tokens at 15% of the places, decoded by the embedding | AdamW |
| GPT-2 | cross entropy of the next token | AdamW |
| DLRM, DeepFM, MLP | binary cross entropy | Adam |
| SRU, LSTM, GRU, attention RNN | cross entropy of the logits | Adam |
| any other | the sum of all results | Adam |

Weights are fp32, as training keeps them. Dropout is off (p = 0): random numbers of two systems are
never the same, and their losses could not be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from anabranch.models.load import load_model

SEED = 1
"""Of targets: those of the same shape as token ids would be the same with the seed of inputs."""
MASKED = 0.15
IGNORED = -100
"""The target of a token that is not asked for, as torch's cross entropy has it."""
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

LossFunction = Callable[..., Tensor]
"""Called as `loss(model, *batch)`."""


@dataclass(frozen=True, slots=True)
class Trainable:
    """A network to train. `batch`: what the loss takes after the model. `kind` and `optimizer`: the
    keys of the loss in LOSSES and of the optimizer in OPTIMIZERS."""

    model: nn.Module
    batch: tuple[Any, ...]
    kind: str
    optimizer: str

    @property
    def loss(self) -> LossFunction:
        """The function."""
        return LOSSES[self.kind]


def classes(model: nn.Module, *batch: Any) -> Tensor:
    """Cross entropy; the last of the batch is the class of each input."""
    *inputs, target = batch
    return F.cross_entropy(model(*inputs), target)


def next_tokens(model: nn.Module, ids: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of the logits of each token."""
    return F.cross_entropy(model(ids).flatten(0, 1), target.flatten())


def masked_tokens(model: Any, ids: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of the tokens asked for, decoded by the embedding's own weight."""
    hidden = model(ids)[0]
    logits = F.linear(hidden, model.embeddings.word_embeddings.weight)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def clicks(model: nn.Module, *batch: Any) -> Tensor:
    """Binary cross entropy of logits."""
    *inputs, target = batch
    return F.binary_cross_entropy_with_logits(model(*inputs), target)


def click_probabilities(model: nn.Module, *batch: Any) -> Tensor:
    """Binary cross entropy of probabilities, which are turned back to logits: autocast refuses
    torch's own function of probabilities."""
    *inputs, target = batch
    probabilities = model(*inputs)
    probabilities = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    return F.binary_cross_entropy_with_logits(torch.logit(probabilities, 1e-6), target)


def sum_of_results(model: nn.Module, *batch: Any) -> Tensor:
    """All numbers that the model returns, added up."""
    results = [leaf for leaf in pytree.tree_leaves(model(*batch)) if _is_float(leaf)]
    sums = [leaf.to(torch.promote_types(leaf.dtype, torch.float32)).sum() for leaf in results]
    return torch.stack(sums).sum()


LOSSES: dict[str, LossFunction] = {
    "cross entropy": classes,
    "cross entropy of the next token": next_tokens,
    "cross entropy of masked tokens": masked_tokens,
    "binary cross entropy": clicks,
    "binary cross entropy of probabilities": click_probabilities,
    "the sum of all results": sum_of_results,
}

BY_NAME = {
    "bert_base": ("cross entropy of masked tokens", "adamw"),
    "gpt2": ("cross entropy of the next token", "adamw"),
    "deepfm": ("binary cross entropy of probabilities", "adam"),
    "dlrm": ("binary cross entropy", "adam"),
    "mlp": ("binary cross entropy", "adam"),
    **{name: ("cross entropy", "adam") for name in ("sru", "lstm", "gru", "attention_rnn")},
}
"""Networks of the zoo that are not told by their shapes."""


def _sgd(parameters: Iterable[Tensor], **settings: Any) -> Optimizer:
    settings.pop("capturable", None)  # it counts no steps
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, **settings)


def _adamw(parameters: Iterable[Tensor], **settings: Any) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, **settings)


def _adam(parameters: Iterable[Tensor], **settings: Any) -> Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, **settings)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": _sgd, "adamw": _adamw, "adam": _adam}
"""Called as `make(parameters, fused=..., capturable=...)`."""


def load_trainable(
    name: str, batch: int, device: torch.device | str = "cpu", trust: bool = False
) -> Trainable:
    """The network of this name on `device`. OptionError as of `load_model`."""
    model, args = load_model(name, batch, "fp32", device, trust=trust)
    for part in model.train().modules():
        if isinstance(part, DROPOUT):
            part.p = 0.0
    kind, optimizer = _recipe(name, model, args)
    target = _target(kind, model, args)
    example_batch = (*args, *(tensor.to(device) for tensor in target))
    return Trainable(model, example_batch, kind, optimizer)


def _recipe(name: str, model: nn.Module, args: tuple[Any, ...]) -> tuple[str, str]:
    source, _, network = name.partition(":")
    recipe = BY_NAME.get(network.partition("/")[0]) if source == "zoo" else None
    if recipe is not None:
        return recipe
    images = bool(args) and _is_float(args[0]) and args[0].dim() == 4
    if images and isinstance(result := _result(model, args), Tensor) and result.dim() == 2:
        return "cross entropy", "sgd"
    return "the sum of all results", "adam"


def _target(kind: str, model: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    make = torch.Generator().manual_seed(SEED)
    if kind == "the sum of all results":
        return ()
    if kind == "cross entropy of the next token":
        return (args[0].roll(-1, 1),)
    if kind == "cross entropy of masked tokens":
        asked = torch.rand(args[0].shape, generator=make) < MASKED
        asked[:, 0] = True  # of a short sentence none may be
        return (torch.where(asked, args[0].cpu(), IGNORED),)
    result = _result(model, args)
    if kind == "cross entropy":
        return (torch.randint(result.shape[-1], result.shape[:1], generator=make),)
    return (torch.randint(2, result.shape, generator=make).float(),)


def _result(model: nn.Module, args: tuple[Any, ...]) -> Any:
    """Of the shapes alone, on the meta device; the model's statistics stay as they are."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
    meta_args = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), args)
    with torch.no_grad():
        return torch.func.functional_call(model, shapes, meta_args)


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point
