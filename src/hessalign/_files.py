"""Files that are replaced all at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Replace a file all at once when the block ends without an error.

    Args:
        path: The file; its folder exists.

    Yields:
        Where to write what it is to hold.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file all at once: a reader, or a crash, sees the old content or the new.

    Args:
        path: The file; its folder exists.
        content: What it is to hold.
    """
    with atomic_file(path) as partial:
        partial.write_bytes(content)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
