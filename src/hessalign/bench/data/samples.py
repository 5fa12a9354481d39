"""What every source of data is read into: domains, classes, an input and a label per sample.

A folder of images, a manifest, a file of arrays and the MNIST variants all become a
`DomainDataset`, so what uses data does not know where they come from.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign._shapes import Int

LARGEST: Final = torch.finfo(torch.float32).max
"""Larger inputs become infinite in float32, which networks compute in."""


@final
@dataclass(frozen=True, eq=False)
class DomainSamples:
    """The samples of one domain.

    Attributes:
        name: The name of the domain.
        inputs: Paths of images, or a tensor with one row per sample.
        labels: The index of each sample's class.
        held_out: The samples that are held out whatever the trial, by their places: an official
            split. None leaves it to the split of the protocol, see `split_dataset`.

    Raises:
        InputError: If labels or the samples held out do not fit the inputs.

    Example:
        >>> samples = DomainSamples("photo", torch.zeros(3, 2), torch.tensor([0, 0, 1]))
        >>> len(samples), samples.counts(3)
        (3, [2, 1, 0])
    """

    name: str
    inputs: tuple[Path, ...] | Tensor
    labels: Int[Tensor, " n"]
    held_out: Int[Tensor, " m"] | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise InputError(
                f"Expected one label per input in the domain {self.name!r}, got "
                f"{len(self.inputs)} inputs and {len(self.labels)} labels."
            )
        held_out = [] if self.held_out is None else sorted(self.held_out.tolist())
        within = not held_out or (held_out[0] >= 0 and held_out[-1] < len(self))
        if not within or len(set(held_out)) != len(held_out) or 0 < len(self) == len(held_out):
            raise InputError(
                f"Expected different places from 0 to {len(self) - 1} in held_out of the domain "
                f"{self.name!r}, and not all of them, got {_short(held_out)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The images' files; none if the inputs are rows of a tensor."""
        return () if isinstance(self.inputs, Tensor) else self.inputs

    def counts(self, classes: int) -> list[int]:
        """How many samples each of so many classes has."""
        return torch.bincount(self.labels, minlength=classes).tolist()


@final
@dataclass(frozen=True, eq=False)
class DomainDataset:
    """Labelled samples from several domains.

    Attributes:
        name: What tables and messages call it.
        classes: The names of the classes; a label is an index into them.
        domains: The domains in their order, which numbers them.
        root: The folder or file that it was read from, beside which a cache of its images is kept;
            None if it was made.

    Example:
        >>> photo = DomainSamples("photo", torch.zeros(2, 1), torch.tensor([0, 1]))
        >>> sketch = DomainSamples("sketch", torch.zeros(1, 1), torch.tensor([1]))
        >>> data = DomainDataset("pets", ("cat", "dog"), (photo, sketch))
        >>> data.domain_index("sketch"), data.missing_classes()
        (1, {'sketch': ('cat',)})
        >>> data.domain_index("sketc")
        Traceback (most recent call last):
        hessalign._names.UnknownNameError: Unknown domain of pets 'sketc'. Expected one of: \
'photo', 'sketch'. Did you mean 'sketch'?
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainSamples, ...]
    root: Path | None = None

    def __post_init__(self) -> None:
        if not self.domains:
            raise InputError(f"Expected at least one domain in {self.name}, found none.")
        for what, names in (("classes", self.classes), ("domains", self.domain_names)):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            if repeated:
                raise InputError(f"Expected different {what} in {self.name}, got {repeated} twice.")
        for domain in self.domains:
            _check_labels(self.name, domain, len(self.classes))

    def __len__(self) -> int:
        return sum(map(len, self.domains))

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The names of the domains, in their order."""
        return tuple(domain.name for domain in self.domains)

    def domain_index(self, domain: str | int) -> int:
        """The number of a domain, given by its name or number; see `domain_index`."""
        return domain_index(self.name, self.domain_names, domain)

    def fingerprint(self) -> str:
        """A checksum by which the same data are known again, wherever they are kept.

        Returns:
            The SHA-256 sum of classes, domains, labels, samples held out, and of the inputs
            themselves; of image files only of their names and lengths, which takes no time.

        Example:
            >>> photo = DomainSamples("photo", torch.zeros(2, 1), torch.tensor([0, 1]))
            >>> DomainDataset("pets", ("cat", "dog"), (photo,)).fingerprint()[:12]
            '04337c510c43'
        """
        digest = hashlib.sha256(json.dumps([self.classes, self.domain_names]).encode())
        for domain in self.domains:
            digest.update(_content(domain.labels))
            if isinstance(domain.inputs, Tensor):
                digest.update(_content(domain.inputs))
            for path in domain.paths:
                line = f"{path.parent.name}/{path.name} {path.stat().st_size}\n"
                digest.update(line.encode(errors="surrogateescape"))  # names need not be in UTF-8
            if domain.held_out is not None:
                digest.update(b"held out")
                digest.update(_content(domain.held_out.long()))
        return digest.hexdigest()

    def missing_classes(self) -> dict[str, tuple[str, ...]]:
        """Classes of which a domain has no sample, by domain: allowed, but worth knowing."""
        missing = {
            domain.name: tuple(
                name
                for name, count in zip(self.classes, domain.counts(len(self.classes)), strict=True)
                if count == 0
            )
            for domain in self.domains
        }
        return {name: classes for name, classes in missing.items() if classes}


def domain_index(dataset: str, names: Sequence[str], domain: str | int) -> int:
    """The number of a domain, given as a name or a number; what is both, as years are, is a name.

    Returns:
        The number.

    Raises:
        UnknownNameError: If there is no such domain.

    Example:
        >>> domain_index("PACS", ["art_painting", "cartoon"], "cartoon")
        1
        >>> domain_index("PACS", ["art_painting", "cartoon"], 7)
        Traceback (most recent call last):
        hessalign._names.UnknownNameError: Unknown domain of PACS 7. Expected one of: \
'art_painting', 'cartoon'.
    """
    if str(domain) in names:
        return names.index(str(domain))
    if str(domain).isdecimal() and int(domain) < len(names):
        return int(domain)
    raise UnknownNameError(f"domain of {dataset}", domain, names)


def group_samples(
    name: str, rows: Sequence[tuple[str, str, Path]], domains: Sequence[str] | None = None
) -> DomainDataset:
    """Sort images into domains and classes, in the order in which DomainBed lists them.

    Domains and classes are sorted by name, and the samples of a domain by class. Within a class
    they keep the order given.

    Returns:
        The data set; classes are those of all domains together.

    Example:
        >>> rows = [("b", "dog", Path("1")), ("a", "dog", Path("2")), ("b", "cat", Path("3"))]
        >>> data = group_samples("pets", rows)
        >>> data.classes, [(d.name, [str(p) for p in d.paths]) for d in data.domains]
        (('cat', 'dog'), [('a', ['2']), ('b', ['3', '1'])])
    """
    names = sorted({domain for domain, _, _ in rows}) if domains is None else list(domains)
    classes = tuple(sorted({label for _, label, _ in rows}))
    number = {label: index for index, label in enumerate(classes)}
    grouped: dict[str, list[tuple[int, Path]]] = {domain: [] for domain in names}
    for domain, label, path in rows:
        grouped[domain].append((number[label], path))
    return DomainDataset(name, classes, tuple(_domain(n, grouped[n]) for n in names))


def _domain(name: str, samples: list[tuple[int, Path]]) -> DomainSamples:
    ordered = sorted(samples, key=lambda sample: sample[0])
    labels = torch.tensor([label for label, _ in ordered], dtype=torch.int64)
    return DomainSamples(name, tuple(path for _, path in ordered), labels)


def _content(values: Tensor) -> memoryview:
    """The bytes of a tensor."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _short(places: Sequence[int]) -> str:
    return (
        str(list(places)) if len(places) <= 5 else f"{len(places)} from {places[0]} to {places[-1]}"
    )


def _check_labels(name: str, domain: DomainSamples, classes: int) -> None:
    if len(domain) == 0:
        raise InputError(
            f"Expected samples in the domain {domain.name!r} of {name}, found none. "
            "Add some, or leave the domain out."
        )
    least, most = int(domain.labels.min()), int(domain.labels.max())
    if least < 0 or most >= classes:
        raise InputError(
            f"Expected labels from 0 to {classes - 1} in the domain {domain.name!r} of {name}, "
            f"found {least if least < 0 else most}."
        )
