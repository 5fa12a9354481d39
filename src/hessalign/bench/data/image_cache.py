"""Images decoded and resized once, and kept in files.

    00-00000.bin   pixels of the first 128 images of domain 0: uint8, [n, size, size, 3]
    00-00000.json  written after it: checksum, fingerprint of the image files, their sizes
    lock           held by the process that writes; lock.holder says which one

A part is complete if its `.json` is there, so work that was killed continues with the parts that
are missing. The fingerprint covers class, name, length and time of change of every image file, in
their order: a part made from other files is made again.

What is stored is the image resized to `size` × `size` pixels, 224 by default, without regard to its
shape: the evaluation image of the protocol, to the byte, at 150 kB each. Training crops, 70 to
100 % of the area, are taken from the same pixels rather than from the file. So they are resized
twice and enlarged by 1.1 on average, where DomainBed shrinks a crop of a large original, and begin
and end at whole pixels of what is stored: on photos of PACS, 227 pixels wide, the grey values of a
crop differ by 2.4 of 255 on average. (DomainBed itself resizes first for its WILDS data.) The
original's width and height are kept, so that a crop has the shape it would have had there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, Warn
from hessalign._files import PARTIAL, exclusive, file_digest, parse_json, write_atomically
from hessalign._processes import completed
from hessalign._shapes import Int
from hessalign.bench.data.images import ImageError, read_image
from hessalign.bench.data.samples import DomainDataset

_FORMAT: Final = 2  # 2: the channels of a pixel are together; 1 had one channel after the other

_PER_PART: Final = 128
SIZE: Final = 224

_FAULTS: Final = {
    "old": "was made by another version of hessalign",
    "other files": "was made from other files than those of now",
    "damaged": "is damaged",
}

_WAIT_SECONDS: Final = 6 * 3600.0  # at most, for another process that prepares the same cache

_Report = Callable[[int, int], None]
_Stamp = tuple[int, int, int]


@final
class ImageCacheError(OSError):
    """A cache that cannot be written."""


@final
@dataclass(frozen=True)
class _Part:
    """Up to 128 images of one domain, and the files that keep them."""

    stem: Path
    domain: str
    paths: tuple[Path, ...]
    fingerprint: str
    size: int
    allow_truncated: bool

    @property
    def pixels(self) -> Path:
        return self.stem.with_suffix(".bin")

    @property
    def description(self) -> Path:
        return self.stem.with_suffix(".json")

    @property
    def length(self) -> int:
        return len(self.paths) * self.size * self.size * 3

    def described(self) -> Any:  # noqa: ANN401
        """What is written of it."""
        return parse_json(self.description.read_text(encoding="utf-8"))

    def original_sizes(self) -> Any:  # noqa: ANN401
        """Widths and heights of the images before they were resized."""
        found = self.described()
        if found["fingerprint"] != self.fingerprint:
            raise _changed(self.pixels)
        return found["sizes"]

    def read(self, number: int, pixels: np.ndarray, stamp: _Stamp) -> None:
        """Copy the pixels of an image, if the file is still the one that had this stamp."""
        # Open only while an image is read, so that a cache may have any number of parts.
        with open(self.pixels, "rb", buffering=0) as file:
            same = _stamp(os.fstat(file.fileno())) == stamp
            file.seek(number * pixels.nbytes)
            if not same or file.readinto(pixels.data) != pixels.nbytes:
                raise _changed(self.pixels)

    def fault(self, *, verify: bool) -> str | None:
        """Why it cannot be used: a key of `_FAULTS`, or "missing"."""
        try:
            found = self.described()
            if found["format"] != _FORMAT:
                return "old"
            if found["size"] != self.size or found["fingerprint"] != self.fingerprint:
                return "other files"
            sizes = np.asarray(found["sizes"])
            described = sizes.shape == (len(self.paths), 2) and sizes.dtype.kind == "i"
            whole = described and self.pixels.stat().st_size == self.length
            if not whole or (verify and file_digest(self.pixels) != found["sha256"]):
                return "damaged"
        except FileNotFoundError:
            return "missing"
        except (ValueError, KeyError, TypeError):
            return "damaged"
        return None


def _changed(pixels: Path) -> ImageCacheError:
    return ImageCacheError(
        f"The cache {pixels} was changed while it was in use. Run the same command again."
    )


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


@final
@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Images as they are stored.

    Attributes:
        pixels: Grey values 0 to 255 as uint8, [n, 3, size, size]; in memory, the channels of a
            pixel are together.
        original_sizes: Width and height of each image before it was resized.
    """

    pixels: Tensor
    original_sizes: Int[Tensor, "n 2"]


@final
class ImageReader:
    """Images of a data set, from its cache if there is one, else from their files: the same pixels.

    `open_images` and `prepare_images` make it; without parts of a cache it reads files.
    """

    def __init__(
        self,
        data: DomainDataset,
        size: int,
        parts: Sequence[Sequence[_Part]] | None,
        allow_truncated: bool,
    ) -> None:
        self.data = data
        self.size = size
        self.cached = parts is not None
        self._parts = parts
        self._allow_truncated = allow_truncated
        self._stamps = [[_stamp(os.stat(p.pixels)) for p in domain] for domain in parts or ()]
        self._sizes = [np.concatenate([p.original_sizes() for p in d]) for d in parts or ()]

    def __reduce__(self) -> tuple[type[ImageReader], tuple[object, ...]]:
        """Another process looks at the files anew."""
        return ImageReader, (self.data, self.size, self._parts, self._allow_truncated)

    def read(self, domain: int, indices: Sequence[int] | np.ndarray) -> ImageBatch:
        """Some samples of a domain, both by number, as images in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        count = len(self.data.domains[domain])
        wrong = chosen[(chosen < 0) | (chosen >= count)]
        if len(wrong) > 0:
            raise IndexError(
                f"Expected samples from 0 to {count - 1} of the domain "
                f"{self.data.domains[domain].name!r}, got {wrong[0]}."
            )
        pixels = np.empty((len(chosen), self.size, self.size, 3), np.uint8)
        sizes = np.empty((len(chosen), 2), np.int64)
        for place, index in enumerate(chosen.tolist()):
            if self._parts is None:
                path = self.data.domains[domain].paths[index]
                image = read_image(path, self.size, allow_truncated=self._allow_truncated)
                pixels[place], sizes[place] = image.pixels, (image.width, image.height)
            else:
                number, within = divmod(index, _PER_PART)
                stamp = self._stamps[domain][number]
                self._parts[domain][number].read(within, pixels[place], stamp)
                sizes[place] = self._sizes[domain][index]
        channels_second = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return ImageBatch(channels_second, torch.from_numpy(sizes))


def cache_folder(source: Path, size: int = SIZE, variant: str = "") -> Path:
    """Where the cache of a data set, or of a variant, is kept unless a place is chosen: beside it.

    Returns:
        A folder.

    Example:
        >>> print(cache_folder(Path("data/PACS")))
        data/PACS.hessalign-224
    """
    source = Path(os.path.abspath(source))
    folder = source.with_name(".".join(filter(None, (source.name, variant, f"hessalign-{size}"))))
    return Path(os.path.relpath(folder)) if folder.is_relative_to(Path.cwd()) else folder


def open_images(
    data: DomainDataset,
    folder: Path,
    size: int = SIZE,
    *,
    allow_truncated: bool = False,
    warn: Warn = lambda message: None,
) -> ImageReader:
    """The images of a data set, from its cache where there is one.

    A cache that was made from other files, or was not finished, is brought up to date after saying
    so, or after another process has done it; where there is none at all, images are read from their
    files. Where truncated images are allowed, what they lack is filled with grey.

    Returns:
        A reader.
    """
    parts = _parts(data, folder, size, allow_truncated)
    if not folder.is_dir():
        return ImageReader(data, size, None, allow_truncated)

    def stale() -> bool:
        return any(part.fault(verify=False) for domain in parts for part in domain)

    if stale():
        with _writing(folder, warn):
            still = stale()  # another process may just have brought it up to date
        if still:
            return prepare_images(data, folder, size, allow_truncated=allow_truncated, warn=warn)
    return ImageReader(data, size, parts, allow_truncated)


def prepare_images(
    data: DomainDataset,
    folder: Path,
    size: int = SIZE,
    *,
    workers: int = 1,
    allow_truncated: bool = False,
    report: _Report = lambda done, total: None,
    report_verified: _Report = lambda done, total: None,
    warn: Warn = lambda message: None,
) -> ImageReader:
    """Decode and resize all images, and keep them.

    What is there already is checked and kept; the rest is made. It may be interrupted at any time
    and continued by calling it again. If another process prepares it, it waits for that one, and
    says so. First come the checksums of what is there, of which `report_verified` is told, then the
    images, of which `report` is. Where truncated ones are allowed, what they lack is filled with
    grey.

    Returns:
        A reader of the cache.

    Raises:
        ImageCacheError: If there is no room for it, or the folder cannot be written.
    """
    parts = _parts(data, folder, size, allow_truncated)
    every = [part for domain in parts for part in domain]
    with _writing(folder, warn):
        missing = _faulty(every, report_verified, warn)
        wanted = {file for part in every for file in (part.pixels, part.description)}
        for path in folder.iterdir():  # what other files, or a process that was killed, left
            left = path.suffix in {".bin", ".json"} and path not in wanted
            if left or path.suffix == PARTIAL:
                path.unlink(missing_ok=True)
        needed, free = sum(part.length for part in missing), shutil.disk_usage(folder).free
        if needed > free:
            raise ImageCacheError(
                f"The cache needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are "
                "free. Make room, or choose another place with --cache DIR."
            )
        total = len(data)
        done = total - sum(len(part.paths) for part in missing)
        report(done, total)
        for count in completed(_make, missing, workers):
            done += count
            report(done, total)
    return ImageReader(data, size, parts, allow_truncated)


def _parts(
    data: DomainDataset, folder: Path, size: int, allow_truncated: bool
) -> list[list[_Part]]:
    if size < 1:
        raise InputError(f"Expected a size of 1 or more pixels, got {size}.")
    parts: list[list[_Part]] = []
    for number, domain in enumerate(data.domains):
        if not domain.paths:
            raise InputError(
                f"Expected image files in {data.name}; the domain {domain.name!r} holds arrays, "
                "which need no preparation."
            )
        parts.append([])
        for first in range(0, len(domain), _PER_PART):
            stem = folder / f"{number:02d}-{first // _PER_PART:05d}"
            paths = domain.paths[first : first + _PER_PART]
            fingerprint = _fingerprint(domain.name, paths)
            parts[-1].append(_Part(stem, domain.name, paths, fingerprint, size, allow_truncated))
    return parts


def _fingerprint(domain: str, paths: Sequence[Path]) -> str:
    lines = [f"{_FORMAT} {domain}"]
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise ImageError(path, "unreadable", error.strerror or str(error)) from error
        lines.append(f"{path.parent.name}/{path.name} {status.st_size} {status.st_mtime_ns}")
    # Names of files need not be in UTF-8.
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _faulty(parts: Sequence[_Part], report: _Report, warn: Warn) -> list[_Part]:
    """The parts to be made, by checksums of what is there too, after saying which and why."""
    there = {part.stem: len(part.paths) for part in parts if part.description.exists()}
    faults, done = [], 0
    for part in parts:
        faults.append((part, part.fault(verify=True)))
        if part.stem in there:
            done += there[part.stem]
            report(done, sum(there.values()))
    for kind, meaning in _FAULTS.items():  # what was never made needs no words
        domains = [part.domain for part, fault in faults if fault == kind]
        if domains:
            warn(
                f"The cache {parts[0].stem.parent} {meaning}: {len(domains)} of {len(parts)} "
                f"parts, in {', '.join(dict.fromkeys(domains))}. They are made again."
            )
    return [part for part, fault in faults if fault is not None]


def _make(part: _Part) -> int:
    """Make a part and write it down, pixels first; the number of its images."""
    images = [
        read_image(path, part.size, allow_truncated=part.allow_truncated) for path in part.paths
    ]
    pixels = np.stack([image.pixels for image in images]).tobytes()
    description = {
        "format": _FORMAT,
        "domain": part.domain,
        "size": part.size,
        "fingerprint": part.fingerprint,
        "sha256": hashlib.sha256(pixels).hexdigest(),
        "sizes": [(image.width, image.height) for image in images],
    }
    try:
        part.description.unlink(missing_ok=True)
        write_atomically(part.pixels, pixels)
        write_atomically(part.description, json.dumps(description).encode())
    except OSError as error:
        raise _cannot_write(part.stem.parent, error) from error
    return len(images)


def _cannot_write(folder: Path, error: OSError) -> ImageCacheError:
    return ImageCacheError(
        f"Cannot write the cache {folder}: {error.strerror or error}. What was made is kept. Make "
        "room or make it writable, or choose another place with --cache DIR."
    )


@contextmanager
def _writing(folder: Path, warn: Warn) -> Iterator[None]:
    """Exclusive use of the cache's folder."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(folder / "lock", warn, _WAIT_SECONDS))
        except TimeoutError as error:
            raise ImageCacheError(str(error)) from error
        except OSError as error:
            raise _cannot_write(folder, error) from error
        yield
