"""What a result was made with: versions, and the state of the source code."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from hessalign._version import __version__


@lru_cache(maxsize=1)
def describe_software() -> dict[str, str]:
    """Versions of what the numbers depend on, and the commit if this is a checkout.

    Returns:
        Text by name; "git" ends in "-dirty" if tracked files were changed.
    """
    software = {
        "hessalign": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    source = Path(__file__).parent
    commit = _git(source, "rev-parse", "HEAD")
    if commit and _git(source, "ls-files", "--error-unmatch", "provenance.py"):
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
