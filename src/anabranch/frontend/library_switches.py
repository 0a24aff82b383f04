"""cuDNN and oneDNN off while a step is recorded, whose switches tell what the user has set.

    torch.backends.cudnn.enabled      True in loss_fn, as in eager, though cuDNN is off

Code that asks for a switch is heard as one that enters these functions (`mode_queries`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cudnn, mkldnn

from anabranch.frontend.source import is_frame_of_users


def answers(with_cudnn: bool, with_mkldnn: bool) -> Mapping[str, Callable[[Any], bool]]:
    """By the name of a switch a getter of it, which tells torch itself that it is off."""

    def cudnn_enabled(_: Any) -> bool:
        return with_cudnn and is_frame_of_users(sys._getframe(1))

    def mkldnn_enabled(_: Any) -> bool:
        return with_mkldnn and is_frame_of_users(sys._getframe(1))

    return {
        "torch.backends.cudnn.enabled": cudnn_enabled,
        "torch.backends.mkldnn.enabled": mkldnn_enabled,
    }


@contextmanager
def libraries_off() -> Iterator[None]:
    """Within it operators do without cuDNN and oneDNN."""
    was = torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled()
    kinds: tuple[Any, Any] = type(cudnn), type(mkldnn)
    switches = [vars(kind)["enabled"] for kind in kinds]  # read as an attribute it is its answer
    for kind, answer in zip(kinds, answers(*was).values(), strict=True):
        kind.enabled = property(answer)
    torch._C._set_cudnn_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(was[0])
        torch._C._set_mkldnn_enabled(was[1])
        for kind, switch in zip(kinds, switches, strict=True):
            kind.enabled = switch
