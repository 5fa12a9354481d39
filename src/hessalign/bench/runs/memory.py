"""Keep freed memory instead of giving it back to the system.

A full-batch step frees and asks again for arrays of 80 MB each. The GNU allocator maps such blocks
afresh every time, and the system's work of clearing their pages takes a sixth of a Colored MNIST
step.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
_NEVER: Final = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the allocator of this process to reuse large blocks.

    Returns:
        Whether the allocator is one that can be told (GNU's); others are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
