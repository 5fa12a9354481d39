"""What is wrong with a data set: numbers, damaged images, images that are there twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from hessalign._processes import completed
from hessalign.bench.data.catalog import ImageFolderPreset
from hessalign.bench.data.images import EXCLUSIONS, find_damage, read_exclusions
from hessalign.bench.data.samples import DomainDataset, least_size

_Kind = Literal["count", "class", "truncated", "unreadable", "duplicate", "note"]

_PER_JOB = 64
"""Images a process checks at a time."""


@final
@dataclass(frozen=True)
class Finding:
    """Something worth knowing about a data set.

    Attributes:
        kind: "note" for what is allowed; anything else should be mended.
        text: A sentence.
    """

    kind: _Kind
    text: str


def inspect_dataset(
    data: DomainDataset,
    preset: ImageFolderPreset | None = None,
    *,
    workers: int = 1,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Finding]:
    """Look for what is wrong with a data set; all images are read to their end.

    Args:
        data: The data set.
        preset: What it should hold, if it is a benchmark.
        workers: How many processes read images.
        report: Called with the number of images read so far and in all.

    Returns:
        The findings, by kind.

    Example:
        >>> import torch
        >>> from hessalign.bench.data.samples import DomainSamples
        >>> a = DomainSamples("a", torch.zeros(5, 1), torch.tensor([0, 1, 0, 1, 0]))
        >>> b = DomainSamples("b", torch.zeros(5, 1), torch.ones(5, dtype=torch.int64))
        >>> for finding in inspect_dataset(DomainDataset("d", ("cat", "dog"), (a, b))):
        ...     print(finding.kind, "|", finding.text)
        note | The domain b has no sample of the class cat.
    """
    findings = list(_missing(data) if preset is None else _differences(data, preset))
    findings += [*_small(data), *_exclusions(data)]
    paths = [path for domain in data.domains for path in domain.paths]
    jobs = [tuple(paths[first : first + _PER_JOB]) for first in range(0, len(paths), _PER_JOB)]
    done = 0
    damaged: list[tuple[Path, Finding]] = []
    for count, found in completed(_damaged, jobs, workers):
        done += count
        damaged += found
        report(done, len(paths))
    findings += [finding for _, finding in sorted(damaged, key=lambda pair: pair[0])]
    return findings + list(_duplicates(data))


def _missing(data: DomainDataset) -> Iterator[Finding]:
    for domain, classes in data.missing_classes().items():
        what = "the class" if len(classes) == 1 else "the classes"
        yield Finding("note", f"The domain {domain} has no sample of {what} {', '.join(classes)}.")


def _small(data: DomainDataset) -> Iterator[Finding]:
    least = least_size()
    for domain in data.domains:
        if len(domain) < least:
            yield Finding(
                "note",
                f"The domain {domain.name} has {len(domain)} of the {least} samples or more that "
                "`train` and `sweep` need in each domain.",
            )


def _exclusions(data: DomainDataset) -> Iterator[Finding]:
    left_out, unmatched = read_exclusions(data.root) if data.root is not None else (set(), [])
    if left_out:
        images = "1 image" if len(left_out) == 1 else f"{len(left_out):,} images"
        yield Finding("note", f"{EXCLUSIONS} leaves out {images}.")
    if unmatched:
        lines = (
            "1 line that names" if len(unmatched) == 1 else f"{len(unmatched):,} lines that name"
        )
        text = f"{EXCLUSIONS} has {lines} no image, such as {unmatched[0]}."
        yield Finding("note", text)


def _differences(data: DomainDataset, preset: ImageFolderPreset) -> Iterator[Finding]:
    counts = [
        dict(zip(data.classes, domain.counts(len(data.classes)), strict=True))
        for domain in data.domains
    ]
    for domain, found in zip(data.domains, counts, strict=True):
        missing = [name for name in preset.classes if not found.get(name)]
        unknown = [name for name in found if found[name] and name not in preset.classes]
        if missing:
            yield Finding("class", f"{domain.name} lacks the classes {', '.join(missing)}.")
        if unknown:
            yield Finding("class", f"{domain.name} has unknown classes {', '.join(unknown)}.")
    for domain, expected in zip(data.domains, preset.images, strict=False):
        yield from _difference(domain.name, expected, len(domain))
    for domain, found, row in zip(data.domains, counts, preset.per_class, strict=False):
        for name, expected in zip(preset.classes, row, strict=True):
            if found.get(name):
                yield from _difference(f"{domain.name}/{name}", expected, found[name])


def _difference(where: str, expected: int, found: int) -> Iterator[Finding]:
    if found != expected:
        yield Finding("count", f"{where}: expected {expected} images, found {found}.")


def _damaged(paths: tuple[Path, ...]) -> tuple[int, list[tuple[Path, Finding]]]:
    found = []
    for path in paths:
        error = find_damage(path)
        if error is not None:
            found.append((path, Finding(error.damage, f"{path}: {error.reason}.")))
    return len(paths), found


def _duplicates(data: DomainDataset) -> Iterator[Finding]:
    """Images of the same bytes; only files of the same length are read."""
    lengths: dict[int, list[Path]] = {}
    for domain in data.domains:
        for path in domain.paths:
            with suppress(OSError):  # a broken link is among the damaged images already
                lengths.setdefault(path.stat().st_size, []).append(path)
    for paths in lengths.values():
        same: dict[bytes, list[Path]] = {}
        for path in paths if len(paths) > 1 else ():
            with suppress(OSError):
                same.setdefault(hashlib.sha256(path.read_bytes()).digest(), []).append(path)
        for copies in same.values():
            if len(copies) > 1:
                yield Finding("duplicate", f"The same bytes: {', '.join(map(str, copies))}.")
