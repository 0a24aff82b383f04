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

Of lengths beyond the sizes torch's kernel raises a RuntimeError, which takes the host's knowing
them. Elsewhere the loss of such a sample is NaN, so that no call waits, and nothing is read that is
not there.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CtcTargets:
    """The labels of all samples, as the loss takes them: `targets` [n, labels] or one row,
    `input_lengths` and `target_lengths` [n], and the class that is no label."""

    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor
    blank: int

    @property
    def places(self) -> int:
        """How many places a target has at most, blanks among them."""
        return 2 * self.targets.shape[-1] + 1

    @property
    def lengths(self) -> tuple[list[int], list[int]]:
        """Both lengths, on the host."""
        return self.input_lengths.tolist(), self.target_lengths.tolist()


def forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the logarithms of the sums over all ways to each place of its
    target (blanks between labels) until each step. On a CPU RuntimeError for lengths beyond the
    sizes, elsewhere NaN for such a sample."""
    told = CtcTargets(targets, input_lengths, target_lengths, blank)
    _check(log_probs, told)
    if log_probs.device.type != "cpu" or not log_probs.numel():
        return by_steps(log_probs, told)
    loss, alpha = aten._ctc_loss(log_probs, targets.long(), *told.lengths, blank, False)
    return loss, F.pad(alpha, (0, told.places - alpha.shape[2]), value=NEVER).contiguous()


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
    told = CtcTargets(targets, input_lengths, target_lengths, blank)
    _check(log_probs, told)
    if log_probs.device.type != "cpu" or not log_probs.numel():
        return gradient_by_steps(grad, log_probs, told, loss, alpha, zero_infinity)
    longest = 2 * max(told.lengths[1], default=0) + 1
    results = loss.contiguous(), alpha[..., :longest].contiguous()
    settings = (*told.lengths, *results, blank, zero_infinity)
    gradient: Tensor = aten._ctc_loss_backward(
        grad.contiguous(), log_probs, targets.long(), *settings
    )
    return gradient.contiguous()


def by_steps(log_probs: Tensor, told: CtcTargets) -> tuple[Tensor, Tensor]:
    """As `forward`, by operators that any device has."""
    labels, possible = _labels(log_probs, told)
    probs, skips = _probs(log_probs, labels), _skips(labels, told.blank)
    first = torch.arange(labels.shape[1], device=labels.device) < (
        1 + told.target_lengths[:, None]
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
    empty = torch.where(told.target_lengths == 0, 0, torch.inf).to(log_probs.dtype)
    if not steps:
        return empty.masked_fill(~possible, torch.nan), probs
    alpha = torch.stack(steps, 1)
    last = (told.input_lengths.long() - 1).clip(min=0, max=len(steps) - 1)
    at_last = alpha.gather(1, last[:, None, None].expand(-1, 1, alpha.shape[2])).squeeze(1)
    loss = -at_last.masked_fill(~_ends(labels, told), NEVER).logsumexp(1)
    loss = torch.where(told.input_lengths == 0, empty, loss)
    return loss.masked_fill(~possible, torch.nan), alpha


def gradient_by_steps(
    grad: Tensor,
    log_probs: Tensor,
    told: CtcTargets,
    loss: Tensor,
    alpha: Tensor,
    zero_infinity: bool,
) -> Tensor:
    """As `backward`, by operators that any device has."""
    labels, _ = _labels(log_probs, told)
    probs, skips = _probs(log_probs, labels), _skips(labels, told.blank)
    ends, steps = _ends(labels, told), list[Tensor]()
    leads = F.pad(skips, (0, 2))[:, 2:]
    for step, prob in reversed(list(enumerate(probs.unbind(1)))):
        after = steps[-1] if steps else torch.full_like(prob, NEVER)
        skipped = F.pad(after, (0, 2), value=NEVER)[:, 2:].masked_fill(~leads, NEVER)
        ways = torch.stack((after, F.pad(after, (0, 1), value=NEVER)[:, 1:], skipped)).logsumexp(0)
        last = (told.input_lengths == step + 1)[:, None]
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
    within = torch.arange(log_probs.shape[0], device=labels.device) < told.input_lengths[:, None]
    kept = within & ~(loss.isinf()[:, None] & zero_infinity)
    gradient = gradient.masked_fill(~kept[..., None], 0)
    return gradient.masked_fill(loss.isnan()[:, None, None], torch.nan).transpose(0, 1).contiguous()


def _labels(log_probs: Tensor, told: CtcTargets) -> tuple[Tensor, Tensor]:
    """The class at each place of the targets, of which every second is a blank; blanks behind. And
    whether a sample's lengths are within the sizes; the classes are, whatever they are."""
    targets, lengths = told.targets, told.target_lengths
    count = targets.shape[-1]
    at = torch.arange(count, device=targets.device)
    padded, ends = targets, lengths
    if targets.dim() == 1:
        ends = lengths.cumsum(0)
        starts = (ends - lengths)[:, None]
        padded = targets.new_empty(lengths.shape[0], 0)
        if count:
            padded = targets[(starts + at).clip(min=0, max=count - 1)]
    steps = told.input_lengths
    possible = (lengths >= 0) & (ends <= count) & (steps >= 0) & (steps <= log_probs.shape[0])
    padded = padded.long().masked_fill(at >= lengths[:, None], told.blank)
    padded = padded.clip(min=0, max=log_probs.shape[2] - 1)
    blanks = torch.full_like(padded, told.blank)
    labels = F.pad(torch.stack((blanks, padded), 2).flatten(1), (0, 1), value=told.blank)
    return labels, possible


def _probs(log_probs: Tensor, labels: Tensor) -> Tensor:
    """[n, steps, places]."""
    steps = log_probs.shape[0]
    return log_probs.transpose(0, 1).gather(2, labels[:, None].expand(-1, steps, -1))


def _skips(labels: Tensor, blank: int) -> Tensor:
    """Whether a place may come right after the one two before it: another label."""
    before = F.pad(labels, (2, 0), value=blank)[:, :-2]
    return (labels != blank) & (labels != before)


def _ends(labels: Tensor, told: CtcTargets) -> Tensor:
    """The last label, and the blank behind it."""
    at, last = torch.arange(labels.shape[1], device=labels.device), 2 * told.target_lengths[:, None]
    return (at == last) | (at == last - 1)


def shape_of_forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    """The results without data. RuntimeError for sizes that the loss does not have."""
    told = CtcTargets(targets, input_lengths, target_lengths, blank)
    _check(log_probs, told)
    steps, count, _ = log_probs.shape
    return log_probs.new_empty(count), log_probs.new_empty(count, steps, told.places)


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


def _check(log_probs: Tensor, told: CtcTargets) -> None:
    """RuntimeError where kernels would read what is not there."""
    if log_probs.dim() != 3 or log_probs.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"a loss of {log_probs.dtype} {list(log_probs.shape)} is not of CTC")
    targets, count = told.targets, log_probs.shape[1]
    if targets.dim() not in (1, 2) or (targets.dim() == 2 and targets.shape[0] != count):
        raise RuntimeError(f"targets of {list(targets.shape)} are not those of {count} samples")
    if not told.input_lengths.shape == told.target_lengths.shape == (count,):
        raise RuntimeError(f"{count} samples have as many lengths")
    if not 0 <= told.blank < log_probs.shape[2]:
        raise RuntimeError(f"{told.blank} is none of {log_probs.shape[2]} classes")
