"""Files that are replaced all at once, and files that one process at a time may use."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from hessalign._errors import InputError, Warn

PARTIAL: Final = ".partial"  # how files that are being written end


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system name the file that is written: they do not say which it was."""
    try:
        yield
    except OSError as error:
        named = error.filename
        name = "" if named is None or isinstance(named, int) else Path(os.fsdecode(named)).name
        partial = name.startswith(f"{path.name}.") and name.endswith(PARTIAL)
        if error.errno is not None and (named is None or partial):
            error.filename = str(path)
        raise


def make_folder(path: Path) -> Path:
    """Make a folder before the work whose results it is to hold; an OSError if it is read-only."""
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number), str(path))
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Replace a file all at once when the block, which writes another, ends without an error."""
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
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:  # the rename survives a power failure
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file all at once: a reader, or a crash, sees the old content or the new."""
    with atomic_file(path) as partial:
        partial.write_bytes(content)


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """A value of JSON; what cannot be read is a ValueError, also for its depth."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError("it is nested too deeply") from error


def file_digest(path: Path) -> str:
    """The SHA-256 sum of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def exclusive(path: Path, warn: Warn, seconds: float, *, quiet: float = 3.0) -> Iterator[None]:
    """Hold a lock, given back when the block or the process ends; `warn` of a wait of `quiet`."""
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
