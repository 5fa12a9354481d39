"""Files that one process at a time may use, with a word to those who wait."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

QUIET_SECONDS: Final = 3.0
"""How long to wait before saying so."""


@contextmanager
def exclusive(
    path: Path, warn: Callable[[str], None], seconds: float, *, quiet: float = QUIET_SECONDS
) -> Iterator[None]:
    """Hold a lock; it is given back when the block is left or the process ends, however it ends.

    Args:
        path: The file that stands for what is locked; who holds it is written beside it.
        warn: Called once it takes longer, with who holds the lock and how long to wait at most.
        seconds: How long to wait at most.
        quiet: How long to wait before saying so.

    Yields:
        Nothing.

    Raises:
        TimeoutError: If others had it all the time.
    """
    from filelock import FileLock, Timeout

    lock, holder = FileLock(path), path.with_name(f"{path.name}.holder")
    start = time.monotonic()
    try:
        lock.acquire(timeout=min(quiet, seconds))
    except Timeout:
        warn(f"Waiting for {path.parent}, {_held_by(holder)}, for {_duration(seconds)} at most.")
        try:
            lock.acquire(timeout=max(0.0, start + seconds - time.monotonic()))
        except Timeout as error:
            raise TimeoutError(
                f"Waited {_duration(seconds)} for {path.parent}, {_held_by(holder)}. If that is "
                "stuck, stop it, then give the same command again."
            ) from error
    try:
        with suppress(OSError):  # a full disk is told by what is written
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _held_by(holder: Path) -> str:
    with suppress(OSError):
        return f"which {holder.read_text(encoding='utf-8')} is using"
    return "which another process is using"


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} seconds"
