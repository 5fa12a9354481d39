"""What the measurements ran on: its names, and the rates that bound any implementation."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Run, seconds


def cpu_model() -> str:
    """The processor's name, as the operating system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_size() -> int:
    """Bytes of memory of the machine; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


def package_version(name: str) -> str | None:
    """The installed version of a package.

    Args:
        name: Its name on PyPI.

    Returns:
        The version, or None if it is not installed.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def machine_facts() -> dict[str, Any]:
    """CPU, versions, threads and date."""
    return {
        "cpu": cpu_model(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backpack-for-pytorch": package_version("backpack-for-pytorch"),
        "curvlinops-for-pytorch": package_version("curvlinops-for-pytorch"),
        "threads": torch.get_num_threads(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _best(run: Run, repeats: int = 10) -> float:
    run()
    return min(seconds(run, 1)[0] for _ in range(repeats))


def gemm_rate(dtype: torch.dtype, size: int = 1024) -> float:
    """Rate of a large square matrix product on one thread.

    Args:
        dtype: Its precision.
        size: Rows and columns.

    Returns:
        Floating-point operations per second, the best of a few.
    """
    matrix = torch.rand(size, size, dtype=dtype)
    out = torch.empty_like(matrix)

    def product() -> Tensor:
        return torch.mm(matrix, matrix, out=out)

    return 2 * size**3 / _best(product)


def copy_rate(size: int = 1 << 26) -> float:
    """Rate at which one thread moves memory that is not in a cache.

    Args:
        size: Bytes to copy.

    Returns:
        Bytes read plus bytes written per second, the best of a few.
    """
    source = torch.zeros(size, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source))
