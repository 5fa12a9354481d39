"""Files that are replaced all at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PARTIAL: Final = ".partial"
"""How files that are being written end."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the operating system name a file: those of writing do not say which it was.

    Args:
        path: The file that the block writes.

    Yields:
        Nothing.

    Raises:
        OSError: The same, with the name of the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or _is_partial(error, path)):
            error.filename = str(path)
        raise


def _is_partial(error: OSError, path: Path) -> bool:
    name = Path(os.fsdecode(error.filename)).name if not isinstance(error.filename, int) else ""
    return name.startswith(f"{path.name}.") and name.endswith(PARTIAL)


def make_folder(path: Path) -> Path:
    """Make a folder before the work whose results it is to hold, not after.

    Args:
        path: The folder.

    Returns:
        The folder.

    Raises:
        OSError: If files cannot be made in it.
    """
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number), str(path))
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Replace a file all at once when the block ends without an error.

    Args:
        path: The file; its folder exists.

    Yields:
        Where to write what it is to hold.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    with naming(path):
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with suppress(OSError):  # what stopped the writing says more
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
