"""Unpacking an archive that somebody else made: nothing may land outside the folder asked for."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath


def extract_archive(archive: Path, folder: Path) -> list[Path]:
    """Unpack a zip or tar file.

    All names are checked before anything is written. Refused are absolute paths, paths that climb
    out of the folder with `..`, links, and devices: data sets need none of them.

    Args:
        archive: A `.zip`, `.tar`, `.tar.gz`, `.tgz`, `.tar.bz2` or `.tar.xz` file.
        folder: Where to unpack; made if it does not exist.

    Returns:
        The files, in the order of the archive.

    Raises:
        FileNotFoundError: If there is no such archive.
        ValueError: If it is no archive, is damaged, or holds something that is refused.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with zipfile.ZipFile(folder / "a.zip", "w") as file:
        ...     file.writestr("../evil.txt", "")
        >>> extract_archive(folder / "a.zip", folder / "a")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: Refused to unpack ...a.zip: '../evil.txt' leads out of the folder. Nothing was \
written.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"Expected an archive, found no file {archive}.")
    try:
        if zipfile.is_zipfile(archive):
            return _extract_zip(archive, folder)
        if tarfile.is_tarfile(archive):
            return _extract_tar(archive, folder)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise ValueError(f"{archive} is damaged: {error}. Obtain it again.") from error
    raise ValueError(f"Expected a zip or tar file, {archive} is neither.")


def _extract_zip(archive: Path, folder: Path) -> list[Path]:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            _check_entry(archive, entry.filename, kind in {0, stat.S_IFREG, stat.S_IFDIR})
        entries = [entry for entry in file.infolist() if not entry.is_dir()]
        for entry in entries:
            file.extract(entry, folder)
    return [folder / entry.filename for entry in entries]


def _extract_tar(archive: Path, folder: Path) -> list[Path]:
    with tarfile.open(archive) as file:
        members = file.getmembers()
        for member in members:
            _check_entry(archive, member.name, member.isfile() or member.isdir())
        files = [member for member in members if member.isfile()]
        for member in files:
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = file.extractfile(member)
            if content is None:
                raise ValueError(f"{archive} is damaged: {member.name!r} has no content.")
            with content, target.open("wb") as output:
                while block := content.read(1 << 20):
                    output.write(block)
    return [folder / member.name for member in files]


def _check_entry(archive: Path, name: str, plain: bool) -> None:
    parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor
    if absolute or os.pardir in parts:
        raise ValueError(
            f"Refused to unpack {archive}: {name!r} leads out of the folder. Nothing was written."
        )
    if not plain:
        raise ValueError(
            f"Refused to unpack {archive}: {name!r} is a link or a device. Nothing was written."
        )
