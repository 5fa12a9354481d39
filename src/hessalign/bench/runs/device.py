"""Where a run computes."""

from __future__ import annotations

import torch
from torch import nn


def find_device() -> torch.device:
    """A graphics processor if this process may use one, else the processor.

    `CUDA_VISIBLE_DEVICES` says which ones it may use, and an empty one that it may use none; Ray
    sets it for every run. The algorithms of cuDNN are restricted to those that give the same result
    each time, as in DomainBed.

    Returns:
        The device.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda")


def device_of(module: nn.Module) -> torch.device:
    """Where the parameters of a module are, all in one place."""
    return next(module.parameters()).device
