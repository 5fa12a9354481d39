"""What a run is carried out with: the device, its memory, the versions of the software."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from hessalign._version import __version__


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


_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
_NEVER: Final = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the allocator of this process to keep large blocks that are freed, and use them again.

    A full-batch step frees and asks again for arrays of 80 MB each. The GNU allocator maps such
    blocks afresh every time, and the system's work of clearing their pages takes a sixth of a
    Colored MNIST step.

    Returns:
        Whether the allocator was told; others are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))


@lru_cache(maxsize=1)
def describe_software() -> dict[str, str]:
    """Versions of what the numbers depend on; in a checkout the commit, "-dirty" if changed."""
    software = {
        "hessalign": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    source = Path(__file__).parent
    commit = _git(source, "rev-parse", "HEAD")
    if commit and _git(source, "ls-files", "--error-unmatch", Path(__file__).name):
        changed = _git(source, "status", "--porcelain", "--untracked-files=no")
        software["git"] = commit + ("-dirty" if changed else "")
    return software


def _git(folder: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()
