"""Who does a job: claims on its folder that several launchers, on several machines, respect.

A claim is a file in the job's folder, `claim.0`, that names machine, process and time; creating it
fails if it exists, so of several processes one gets it. It is written under another name and gets
its own when it is complete, so nobody sees half of it. The process renews the file's time while it
works. If it dies, the next one does not remove the claim (two that remove and create would take the
job twice) but creates `claim.1`, which again only one can do: the highest number holds the job. A
claim that is given up says so; claims are removed only once the job is done, when nobody wants it.

A claim is stale

- if it cannot be read: the disk was full when it was written or given up, or the machine crashed;
- on the same machine, as soon as its process is gone, told from a later process with the same
  number by the time at which it started;
- on another machine, when it was not renewed for `_STALE_SECONDS`, by the clock of the file system;
- if it was made on behalf of the same launcher in an earlier attempt: a launcher tries a job again
  only when it knows that the worker is lost.

A process that is stopped for longer than that on another machine, and then goes on, is not noticed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

from hessalign._files import parse_json
from hessalign._numbers import is_whole
from hessalign.bench.runs.records import DONE

_STALE_SECONDS: Final = 300.0
"""After this long without renewal a claim of another machine counts for nothing."""

_RENEWAL_SECONDS: Final = 15.0

_CLAIM: Final = re.compile(r"claim\.(\d+)")
_GIVEN_UP: Final = "given up"  # what such a claim says: no claimant
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems say that cannot give a file a second name."""


@final
@dataclass(frozen=True)
class _Claimant:
    """Who claims a job, on behalf of which launcher, in which of its attempts."""

    machine: str  # its name, and the space in which its process numbers are unique
    process: int
    started: str  # when it did, so that its number alone does not stand for a process
    launcher: str
    attempt: int


def this_claimant(launcher: str = "", attempt: int = 0) -> _Claimant:
    """This process as a claimant."""
    process = os.getpid()
    return _Claimant(_machine(), process, _started(process) or "", launcher, attempt)


@final
class _Claim:
    """The right to do a job, renewed while it is held. Leaving it gives the job up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._finished = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="claim", daemon=True)
        self._renewal.start()

    def _renew(self) -> None:
        while not self._finished.wait(_RENEWAL_SECONDS):
            # If the folder was removed, or is out of reach, others decide by its age.
            with suppress(OSError):
                os.utime(self.path)

    def __enter__(self) -> _Claim:
        return self

    def __exit__(self, *error: object) -> None:
        self._finished.set()
        self._renewal.join()
        folder = self.path.parent
        with suppress(OSError):  # as above
            if not (folder / DONE).exists():
                self.path.write_text(_GIVEN_UP, encoding="utf-8")
                return
            for path in folder.glob("claim.*"):
                path.unlink(missing_ok=True)


def claim_job(folder: Path, claimant: _Claimant) -> _Claim | None:
    """Claim a job whose folder exists; None if somebody else holds it."""
    found = _claims(folder)
    if found and not _is_stale(found[-1][1], claimant):
        return None
    number = found[-1][0] + 1 if found else 0
    path = folder / f"claim.{number}"
    return _Claim(path) if _create(path, json.dumps(asdict(claimant))) else None


def is_claimed(folder: Path) -> bool:
    """Whether somebody is doing a job: there is a claim on its folder that is not stale."""
    found = _claims(folder) if folder.is_dir() else []
    return bool(found) and not _is_stale(found[-1][1], this_claimant())


def _create(path: Path, text: str) -> bool:
    """Make a file, complete from its first moment; False if somebody else has made it."""
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_text(text, encoding="utf-8")
        try:
            os.link(draft, path)
        except FileNotFoundError:  # the job is done, and all was removed
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("x", encoding="utf-8") as file:  # for a moment others see it empty
                file.write(text)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _claims(folder: Path) -> list[tuple[int, Path]]:
    """Claims by ascending number."""
    with os.scandir(folder) as entries:
        return sorted(
            (int(match[1]), Path(entry.path))
            for entry in entries
            if (match := _CLAIM.fullmatch(entry.name))
        )


def _is_stale(path: Path, claimant: _Claimant) -> bool:
    try:
        renewed = path.stat().st_mtime
        holder = _Claimant(**parse_json(path.read_text(encoding="utf-8")))
        if not is_whole(holder.process) or not is_whole(holder.attempt):
            return True
    except (FileNotFoundError, ValueError, TypeError):  # done in the meantime, or not a claim
        return True
    if holder.launcher == claimant.launcher and holder.attempt < claimant.attempt:
        return True
    if holder.machine == claimant.machine:
        return _started(holder.process) != holder.started
    return _now(path.parent) - renewed > _STALE_SECONDS


def _now(folder: Path) -> float:
    """The time by the clock that dates files: that of a server may differ from ours."""
    probe = folder / f"clock.{os.getpid()}.{threading.get_ident()}"
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:  # a folder that can only be read
        return time.time()
    return now


@cache
def _machine() -> str:
    try:
        space = os.readlink("/proc/self/ns/pid")  # containers may share a name
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()


def _started(process: int) -> str | None:
    """When a process of this machine started, in the machine's words; None if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _signalled(process)
    except ProcessLookupError:
        return None
    # The name, in brackets, may contain spaces and brackets; the state follows it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _signalled(process: int) -> str | None:
    """Whether a process exists, where no /proc tells when it started."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return ""
