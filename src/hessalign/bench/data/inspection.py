"""What is wrong with a data set: numbers, damaged images, images that are there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from hessalign._files import file_digest
from hessalign._processes import completed
from hessalign.bench.data.catalog import ImageFolderPreset
from hessalign.bench.data.images import EXCLUSIONS, ImageError, find_damage, read_exclusions
from hessalign.bench.data.samples import DomainDataset, least_size

_Kind = Literal["count", "class", "truncated", "unreadable", "duplicate", "note"]

_PER_JOB = 64  # images a process checks at a time


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
    """Look for what is wrong with a data set, or differs from its preset; all images are read.

    Returns:
        The findings, by kind.

    Example:
        >>> import torch
        >>> from hessalign.bench.data.samples import DomainSamples
        >>> dogs = DomainSamples("b", torch.zeros(5, 1), torch.ones(5, dtype=torch.int64))
        >>> inspect_dataset(DomainDataset("d", ("cat", "dog"), (dogs,)))[0].text
        'The domain b has no sample of the class cat.'
    """
    findings = [] if preset is None else list(_differences(data, preset))
    for domain, classes in data.missing_classes().items() if preset is None else ():
        lacks = f"the class{'es' if len(classes) > 1 else ''} {', '.join(classes)}"
        findings.append(Finding("note", f"The domain {domain} has no sample of {lacks}."))
    findings += [Finding("note", text) for text in _notes(data)]
    paths = [path for domain in data.domains for path in domain.paths]
    jobs = [tuple(paths[first : first + _PER_JOB]) for first in range(0, len(paths), _PER_JOB)]
    done, damaged = 0, []
    for count, errors in completed(_damaged, jobs, workers):
        done += count
        damaged += errors
        report(done, len(paths))
    for error in sorted(damaged, key=lambda error: error.path):
        findings.append(Finding(error.damage, f"{error.path}: {error.reason}."))
    # Nobody mends an official split that has an image twice.
    kind: _Kind = "duplicate" if preset is None or preset.layout == "folders" else "note"
    return findings + [Finding(kind, text) for text in _duplicates(paths)]


def _notes(data: DomainDataset) -> Iterator[str]:
    yield from data.table.notes if data.table is not None else ()
    for domain in data.domains:
        if len(domain) < least_size():
            yield (
                f"The domain {domain.name} has {len(domain)} of the {least_size()} samples or more "
                "that `train` and `sweep` need in each domain."
            )
    left_out, unmatched = read_exclusions(data.root) if data.root is not None else (set(), [])
    if left_out:
        images = "1 image" if len(left_out) == 1 else f"{len(left_out):,} images"
        yield f"{EXCLUSIONS} leaves out {images}."
    if unmatched:
        many = f"{len(unmatched):,} lines that name"
        lines = "1 line that names" if len(unmatched) == 1 else many
        yield f"{EXCLUSIONS} has {lines} no image, such as {unmatched[0]}."


def _differences(data: DomainDataset, preset: ImageFolderPreset) -> Iterator[Finding]:
    found = {domain.name: len(domain) for domain in data.domains}
    known = zip(preset.domains, preset.images, strict=False)  # other options make other domains
    expected = {name: count for name, count in known if count and name in found}
    if preset.total and not data.variant:
        expected, found = {**expected, "in all": preset.total}, {**found, "in all": len(data)}
    rows = dict(zip(preset.domains, preset.per_class, strict=False))
    for domain in data.domains if preset.layout == "folders" else ():
        counts = dict(zip(data.classes, domain.counts(len(data.classes)), strict=True))
        missing = [name for name in preset.classes if not counts.get(name)]
        unknown = [name for name in counts if counts[name] and name not in preset.classes]
        if missing:
            yield Finding("class", f"{domain.name} lacks the classes {', '.join(missing)}.")
        if unknown:
            yield Finding("class", f"{domain.name} has unknown classes {', '.join(unknown)}.")
        for name, count in zip(preset.classes, rows.get(domain.name, ()), strict=False):
            if name not in missing:
                expected[f"{domain.name}/{name}"] = count
                found[f"{domain.name}/{name}"] = counts[name]
    for where, count in expected.items():
        if found[where] != count:
            yield Finding("count", f"{where}: expected {count} images, found {found[where]}.")


def _damaged(paths: tuple[Path, ...]) -> tuple[int, list[ImageError]]:
    return len(paths), [error for error in map(find_damage, paths) if error is not None]


def _duplicates(paths: Sequence[Path]) -> Iterator[str]:
    """Images of the same bytes; only files of the same length are read."""
    files = [path for path in paths if path.is_file()]  # others are among the damaged already
    lengths = _grouped(files, lambda path: path.stat().st_size)
    for alike in lengths:
        for copies in _grouped(alike, file_digest):
            yield f"The same bytes: {', '.join(map(str, copies))}."


def _grouped(paths: Sequence[Path], key: Callable[[Path], object]) -> list[list[Path]]:
    """Two or more files of one kind each; a broken link is among the damaged images already."""
    groups: dict[object, list[Path]] = {}
    for path in paths:
        with suppress(OSError):
            groups.setdefault(key(path), []).append(path)
    return [group for group in groups.values() if len(group) > 1]
