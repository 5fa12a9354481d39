"""What a run is carried out with: the device, its memory, the versions of the software."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL

import numpy as np
import torch
from torch import nn

from hessalign._version import __version__


def find_device() -> torch.device:
    """A graphics processor if this process may use one, else the processor."""
    # CUDA_VISIBLE_DEVICES says which ones it may use, if any; Ray sets it for every run.
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cudnn.deterministic = True  # the same result each time, as in DomainBed
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on an accelerator, as far as it can be asked."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def device_of(module: nn.Module) -> torch.device:
    """Where the parameters of a module are, all in one place; the processor if it has none."""
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def keep_freed_memory() -> bool:
    """Have the allocator keep large blocks that are freed, for use again; whether it was told."""
    # A full-batch step frees and asks again for arrays of 80 MB each. The GNU allocator maps such
    # blocks afresh every time, and the system's work of clearing their pages takes a sixth of a
    # Colored MNIST step. Other allocators are left as they are.
    trim_threshold, mmap_max, never = -1, -4, 2**31 - 1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, never))


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
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.check_output(command, text=True, timeout=10, stderr=DEVNULL).strip()
    except (OSError, subprocess.SubprocessError):
        return ""
