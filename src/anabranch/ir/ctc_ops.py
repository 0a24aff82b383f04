"""The loss of connectionist temporal classification (Graves and others, 2006), of fixed sizes.

    loss, alpha = anabranch.ctc_forward(log_probs, targets, input_lengths, target_lengths, blank)
    grad = anabranch.ctc_backward(of_loss, log_probs, targets, input_lengths, target_lengths, loss,
                                  alpha, blank, zero_infinity)

    log_probs: [steps, n, classes]    input_lengths, target_lengths: [n]    loss: [n]
    targets: [n, labels], or those of all samples in one row    alpha: [n, steps, 2 * labels + 1]

torch's operator has an alpha as wide as the longest target, and reads lengths on the host, which no
graph of a GPU can. Here alpha is as wide as any target may be, and lengths stay where they are. On
a CPU it is torch's own kernel that computes both; elsewhere it is a sum along each step, in logs.
As torch's, the gradient is that of the logits behind a log_softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SCHEMAS = (
    "ctc_forward(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "int blank) -> (Tensor, Tensor)",
    "ctc_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, "
    "Tensor target_lengths, Tensor loss, Tensor alpha, int blank, bool zero_infinity) -> Tensor",
)
aten: Any = torch.ops.aten
NEVER = -torch.inf
"""The logarithm of what does not happen."""


def forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the logarithms of the sums over all ways to each place of its
    target (blanks between labels) until each step. RuntimeError for lengths beyond the sizes."""
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    if log_probs.device.type != "cpu" or not log_probs.numel():
        return by_steps(log_probs, targets, input_lengths, target_lengths, blank)
    lengths = input_lengths.tolist(), target_lengths.tolist()
    loss, alpha = aten._ctc_loss(log_probs, targets.long(), *lengths, blank, False)
    return loss, F.pad(alpha, (0, _places(targets) - alpha.shape[2]), value=NEVER).contiguous()


def backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient of log_probs from the loss's; 0 where `zero_infinity` and that is infinite."""
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    if log_probs.device.type != "cpu" or not log_probs.numel():
        told: Any = (input_lengths, target_lengths, loss, alpha, blank, zero_infinity)
        return gradient_by_steps(grad, log_probs, targets, *told)
    lengths = input_lengths.tolist(), target_lengths.tolist()
    longest = 2 * max(lengths[1], default=0) + 1
    results = loss.contiguous(), alpha[..., :longest].contiguous()
    gradient: Tensor = aten._ctc_loss_backward(
        grad.contiguous(), log_probs, targets.long(), *lengths, *results, blank, zero_infinity
    )
    return gradient.contiguous()


def by_steps(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """As `forward`, by operators that any device has."""
    labels = _labels(targets, target_lengths, blank)
    probs, skips = _probs(log_probs, labels), _skips(labels, blank)
    first = torch.arange(labels.shape[1], device=labels.device) < (
        1 + target_lengths[:, None]
    ).clip(max=2)
    steps = list[Tensor]()
    for prob in probs.unbind(1):
        if not steps:
            steps.append(prob.masked_fill(~first, NEVER))
            continue
        before = steps[-1]
        skipped = F.pad(before, (2, 0), value=NEVER)[:, :-2].masked_fill(~skips, NEVER)
        ways = before, F.pad(before, (1, 0), value=NEVER)[:, :-1], skipped
        steps.append(torch.stack(ways).logsumexp(0) + prob)
    if not steps:
        alpha = probs
        return torch.where(target_lengths == 0, 0, torch.inf).to(log_probs.dtype), alpha
    alpha = torch.stack(steps, 1)
    last = (input_lengths.long() - 1).clip(min=0)[:, None, None].expand(-1, 1, alpha.shape[2])
    ends = alpha.gather(1, last).squeeze(1).masked_fill(~_ends(labels, target_lengths), NEVER)
    loss = -ends.logsumexp(1)
    empty = torch.where(target_lengths == 0, 0, torch.inf).to(loss.dtype)
    return torch.where(input_lengths == 0, empty, loss), alpha


def gradient_by_steps(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """As `backward`, by operators that any device has."""
    labels = _labels(targets, target_lengths, blank)
    probs, skips = _probs(log_probs, labels), _skips(labels, blank)
    ends, steps = _ends(labels, target_lengths), list[Tensor]()
    leads = F.pad(skips, (0, 2))[:, 2:]
    for step, prob in reversed(list(enumerate(probs.unbind(1)))):
        after = steps[-1] if steps else torch.full_like(prob, NEVER)
        skipped = F.pad(after, (0, 2), value=NEVER)[:, 2:].masked_fill(~leads, NEVER)
        ways = torch.stack((after, F.pad(after, (0, 1), value=NEVER)[:, 1:], skipped)).logsumexp(0)
        last = (input_lengths == step + 1)[:, None]
        begun = torch.where(last, torch.where(ends, 0.0, NEVER).to(prob.dtype), ways)
        steps.append(begun + prob)
    if not steps:
        return torch.zeros_like(log_probs, memory_format=torch.contiguous_format)
    beta = torch.stack(steps[::-1], 1)
    every = torch.arange(log_probs.shape[2], device=labels.device)
    classes = (labels[..., None] == every).to(probs.dtype)  # [n, places, classes]
    at_places = (alpha + beta - probs + loss[:, None, None]).exp()
    gradient = log_probs.transpose(0, 1).exp() - at_places @ classes
    gradient = gradient * grad[:, None, None]
    within = torch.arange(log_probs.shape[0], device=labels.device) < input_lengths[:, None]
    kept = within & ~(loss.isinf()[:, None] & zero_infinity)
    return gradient.masked_fill(~kept[..., None], 0).transpose(0, 1).contiguous()


def _places(targets: Tensor) -> int:
    return 2 * targets.shape[-1] + 1


def _labels(targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The class at each place of the targets, of which every second is a blank; blanks behind."""
    count = targets.shape[-1]
    at = torch.arange(count, device=targets.device)
    padded = targets
    if targets.dim() == 1 and count:
        starts = target_lengths.cumsum(0) - target_lengths
        padded = targets[(starts[:, None] + at).clip(max=count - 1)]
    elif targets.dim() == 1:
        padded = targets.new_empty(target_lengths.shape[0], 0)
    padded = padded.long().masked_fill(at >= target_lengths[:, None], blank)
    blanks = torch.full_like(padded, blank)
    return F.pad(torch.stack((blanks, padded), 2).flatten(1), (0, 1), value=blank)


def _probs(log_probs: Tensor, labels: Tensor) -> Tensor:
    """[n, steps, places]."""
    steps = log_probs.shape[0]
    return log_probs.transpose(0, 1).gather(2, labels[:, None].expand(-1, steps, -1))


def _skips(labels: Tensor, blank: int) -> Tensor:
    """Whether a place may come right after the one two before it: another label."""
    before = F.pad(labels, (2, 0), value=blank)[:, :-2]
    return (labels != blank) & (labels != before)


def _ends(labels: Tensor, target_lengths: Tensor) -> Tensor:
    """The last label, and the blank behind it."""
    at, last = torch.arange(labels.shape[1], device=labels.device), 2 * target_lengths[:, None]
    return (at == last) | (at == last - 1)


def shape_of_forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """The results without data. RuntimeError for sizes that the loss does not have."""
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    steps, count, _ = log_probs.shape
    return log_probs.new_empty(count), log_probs.new_empty(count, steps, _places(targets))


def shape_of_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient without data. RuntimeError for sizes that the loss does not have."""
    wanted = shape_of_forward(log_probs, targets, input_lengths, target_lengths, blank)
    if [grad.shape, loss.shape, alpha.shape] != [x.shape for x in (wanted[0], *wanted)]:
        raise RuntimeError(f"no loss of {list(log_probs.shape)} has {list(alpha.shape)} ways")
    return log_probs.new_empty(log_probs.shape)


def _check(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> None:
    """RuntimeError where kernels would read what is not there."""
    if log_probs.dim() != 3 or log_probs.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"a loss of {log_probs.dtype} {list(log_probs.shape)} is not of CTC")
    count = log_probs.shape[1]
    if targets.dim() not in (1, 2) or (targets.dim() == 2 and targets.shape[0] != count):
        raise RuntimeError(f"targets of {list(targets.shape)} are not those of {count} samples")
    if not input_lengths.shape == target_lengths.shape == (count,):
        raise RuntimeError(f"{count} samples have as many lengths")
    if not 0 <= blank < log_probs.shape[2]:
        raise RuntimeError(f"{blank} is none of {log_probs.shape[2]} classes")
