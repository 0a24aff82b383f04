"""Signals: Fourier transforms, windows, and the weights of a mel spectrogram."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import FLOAT, dtype_of
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable


def _complex(x: Tensor) -> Tensor:
    """Numbers whose last axis is real, or real and imaginary, as complex ones."""
    numbers: Tensor = x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    return numbers


def dft(call: OnnxCall, x: Tensor, length: Any = None, axis: Any = -2) -> Tensor:
    """DFT along an axis, forwards or back, of half the spectrum or of all."""
    count = length[0] if isinstance(length, list) else length
    at = axis[0] if isinstance(axis, list) else axis
    at = at if at < 0 else at - x.dim()
    inner, half = at + 1, bool(call.get("onesided", 0))
    signal = _complex(x)
    if call.get("inverse", 0):
        if half:
            inverse: Tensor = torch.fft.irfft(signal, count, inner).unsqueeze(-1)
            return inverse.to(x.dtype)
        return torch.view_as_real(torch.fft.ifft(signal, count, inner)).to(x.dtype)
    function = torch.fft.rfft if half else torch.fft.fft
    return torch.view_as_real(function(signal, count, inner)).to(x.dtype)


def stft(
    call: OnnxCall, x: Tensor, step: Any, window: Tensor | None = None, length: Any = None
) -> Tensor:
    """STFT: the transform of each frame, behind a window."""
    size = length or (x.shape[1] if window is None else window.shape[0])
    signal = _complex(x if x.dim() == 3 else x.unsqueeze(-1))
    frames = signal.unfold(1, size, step)
    if window is not None:
        frames = frames * window
    half = bool(call.get("onesided", 1)) and not frames.is_complex()
    spectrum = torch.fft.rfft(frames) if half else torch.fft.fft(frames)
    return torch.view_as_real(spectrum).to(x.dtype)


def window(*coefficients: float) -> OnnxOperator:
    """A window that is a sum of cosines."""

    def run(call: OnnxCall, size: Any) -> Tensor:
        count = size[0] if isinstance(size, list) else size
        steps = count if call.get("periodic", 1) else count - 1
        at = torch.arange(count, dtype=torch.float64, device=call.device) * (2 * math.pi / steps)
        weights = torch.zeros_like(at)
        for number, coefficient in enumerate(coefficients):
            weights = weights + coefficient * torch.cos(number * at)
        return weights.to(dtype_of(call.get("output_datatype", FLOAT), call.floats))

    return OnnxOperator(run, numbers=(0,))


def mel_weights(call: OnnxCall, bins: Any, length: Any, rate: Any, low: Any, high: Any) -> Tensor:
    """MelWeightMatrix: triangles over the spectrum, evenly spaced as we hear."""
    bins, length, rate, low, high = (
        value[0] if isinstance(value, list) else value for value in (bins, length, rate, low, high)
    )
    mel = [2595 * math.log10(1 + hertz / 700) for hertz in (low, high)]
    step = (mel[1] - mel[0]) / (bins + 2)
    hertz = [700 * (10 ** ((mel[0] + at * step) / 2595) - 1) for at in range(bins + 2)]
    edges = [int((length + 1) * frequency // rate) for frequency in hertz]
    weights = torch.zeros(length // 2 + 1, bins)
    for at in range(bins):
        left, centre, right = edges[at : at + 3]
        if left == centre:
            weights[centre, at] = 1
        for row in range(left, centre + 1 if centre > left else left):
            weights[row, at] = (row - left) / (centre - left)
        for row in range(centre, right):
            weights[row, at] = (right - row) / (right - centre)
    return weights.to(dtype_of(call.get("output_datatype", FLOAT), call.floats)).to(call.device)


SIGNAL: OperatorTable = {
    "BlackmanWindow": window(0.42, -0.5, 0.08),
    "DFT": OnnxOperator(dft, numbers=(1, 2)),
    "HammingWindow": window(25 / 46, -21 / 46),
    "HannWindow": window(0.5, -0.5),
    "MelWeightMatrix": OnnxOperator(mel_weights, numbers=(0, 1, 2, 3, 4)),
    "STFT": OnnxOperator(stft, numbers=(1, 3)),
}
