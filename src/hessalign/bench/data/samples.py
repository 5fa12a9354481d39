"""What every source of data is read into: domains, classes, an input and a label per sample.

A folder of images, a manifest, a file of arrays and the MNIST variants all become a
`DomainDataset`, so what uses data does not know where they come from.

Each domain is split into a part to train on and a part held out. As DomainBed draws it, the split
depends on the trial and on the domain's index alone, so all algorithms and hyper-parameters of a
trial see the same one. A data set may bring its own.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, UnknownNameError, check_name
from hessalign._protocol import seed_hash
from hessalign._shapes import Int
from hessalign.bench.data.columns import TableForm

HOLDOUT_FRACTION: Final = 0.2  # how much of each domain is held out, as in DomainBed


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
            short = f"{len(held_out)} from {held_out[0]} to {held_out[-1]}"
            raise InputError(
                f"Expected different places from 0 to {len(self) - 1} in held_out of the domain "
                f"{self.name!r}, and not all of them, got "
                f"{held_out if len(held_out) <= 5 else short}."
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
        official_tests: The domains that its official split does not train on, if it has one.
        variant: Which of several data sets it is that have the same root; for the cache.
        table: What the features are, if they are columns of a table; NaN is a missing value there.

    Example:
        >>> photo = DomainSamples("photo", torch.zeros(2, 1), torch.tensor([0, 1]))
        >>> sketch = DomainSamples("sketch", torch.zeros(1, 1), torch.tensor([1]))
        >>> data = DomainDataset("pets", ("cat", "dog"), (photo, sketch))
        >>> data.domain_index("sketch"), data.missing_classes()
        (1, {'sketch': ('cat',)})
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainSamples, ...]
    root: Path | None = None
    official_tests: tuple[str, ...] = ()
    variant: str = ""
    table: TableForm | None = None

    def __post_init__(self) -> None:
        if not self.domains:
            raise InputError(f"Expected at least one domain in {self.name}, found none.")
        for what, names in (("classes", self.classes), ("domains", self.domain_names)):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            if repeated:
                raise InputError(f"Expected different {what} in {self.name}, got {repeated} twice.")
        for domain in self.domains:
            if len(domain) == 0:
                raise InputError(
                    f"Expected samples in the domain {domain.name!r} of {self.name}, found none. "
                    "Add some, or leave the domain out."
                )
            least, most = int(domain.labels.min()), int(domain.labels.max())
            if least < 0 or most >= len(self.classes):
                raise InputError(
                    f"Expected labels from 0 to {len(self.classes) - 1} in the domain "
                    f"{domain.name!r} of {self.name}, found {least if least < 0 else most}."
                )
        for name in self.official_tests:
            check_name(f"official test domain of {self.name}", name, self.domain_names)

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
        missing = {}
        for domain in self.domains:
            counted = zip(self.classes, domain.counts(len(self.classes)), strict=True)
            missing[domain.name] = tuple(name for name, number in counted if number == 0)
        return {name: classes for name, classes in missing.items() if classes}


def domain_index(dataset: str, names: Sequence[str], domain: str | int) -> int:
    """The number of a domain, by its name or number; what is both, as years are, is a name."""
    if str(domain) in names:
        return names.index(str(domain))
    if str(domain).isdecimal() and int(domain) < len(names):
        return int(domain)
    raise UnknownNameError(f"domain of {dataset}", domain, names)


def group_samples(
    name: str,
    rows: Sequence[tuple[str, str, Path]],
    root: Path,
    domains: Sequence[str] | None = None,
    *,
    classes: Sequence[str] | None = None,
    held_out: Sequence[bool] | np.ndarray | None = None,
    official_tests: Collection[str] = (),
    variant: str = "",
) -> DomainDataset:
    """Images of a domain, class and path as a data set, in the order of DomainBed's."""
    # Domains and classes are sorted by name, unless they are given, and the samples of a domain by
    # class. Within a class they keep the order given. Which are held out is up to the protocol in
    # domains where none is, or where all are.
    names = sorted({row[0] for row in rows}) if domains is None else list(domains)
    labels = sorted({row[1] for row in rows}) if classes is None else list(classes)
    places = [{each: place for place, each in enumerate(known)} for known in (names, labels)]
    domain = np.fromiter((places[0][row[0]] for row in rows), np.int64, len(rows))
    label = np.fromiter((places[1][row[1]] for row in rows), np.int64, len(rows))
    held = np.zeros(len(rows), bool) if held_out is None else np.asarray(held_out, bool)
    order = np.lexsort((label, domain))  # which keeps the order of equal ones
    samples = []
    for number, each in enumerate(names):
        chosen = order[domain[order] == number]
        outer = np.flatnonzero(held[chosen])
        samples.append(
            DomainSamples(
                each,
                tuple(rows[place][2] for place in chosen.tolist()),
                torch.from_numpy(label[chosen]),
                torch.from_numpy(outer) if 0 < len(outer) < len(chosen) else None,
            )
        )
    tested = tuple(each for each in names if each in official_tests)
    return DomainDataset(name, tuple(labels), tuple(samples), root, tested, variant)


def _content(values: Tensor) -> memoryview:
    """The bytes of a tensor."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@final
@dataclass(frozen=True)
class Split:
    """Indices of the samples of one domain, in two parts.

    Attributes:
        inner: The larger part ("in"): trained on in a training domain, tested on in a test domain.
        outer: The part held out ("out"): validates a training domain, or the oracle's test domain.
    """

    inner: np.ndarray
    outer: np.ndarray


def split_domain(
    size: int, trial_seed: int, domain: int, holdout_fraction: float = HOLDOUT_FRACTION
) -> Split:
    """Split the samples of a domain, by its index; the number held out is rounded down.

    Returns:
        The split.

    Raises:
        InputError: If the size is negative or the fraction is not from 0 to 1.

    Example:
        >>> split = split_domain(10, trial_seed=0, domain=0)
        >>> split.outer.tolist(), split.inner.tolist()
        ([2, 3], [8, 1, 4, 5, 0, 9, 6, 7])
    """
    if size < 0:
        raise InputError(f"Expected a size of 0 or more samples, got {size}.")
    if not 0 <= holdout_fraction <= 1:
        raise InputError(f"Expected a holdout_fraction from 0 to 1, got {holdout_fraction}.")
    order = np.arange(size)
    np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
    held_out = int(size * holdout_fraction)
    return Split(inner=order[held_out:], outer=order[:held_out])


def split_dataset(
    data: DomainDataset, trial_seed: int, holdout_fraction: float = HOLDOUT_FRACTION
) -> tuple[Split, ...]:
    """Split all domains: as the data set says, else as DomainBed does.

    Returns:
        One split for each domain.

    Raises:
        InputError: If a domain is too small to be split.

    Example:
        >>> x, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
        >>> official = DomainSamples("photo", x, y, held_out=torch.tensor([3, 0]))
        >>> (split,) = split_dataset(DomainDataset("pets", ("cat",), (official,)), trial_seed=0)
        >>> split.inner.tolist(), split.outer.tolist()
        ([1, 2], [3, 0])
    """
    least = least_size(holdout_fraction)
    small = [
        f"{domain.name!r} has {len(domain)}"
        for domain in data.domains
        if domain.held_out is None and len(domain) < least
    ]
    if small:
        raise InputError(
            f"Expected {least} or more samples in each domain of {data.name}, of which "
            f"{holdout_fraction:.0%} are held out; {', '.join(small)}. Merge small domains with "
            "others, or leave them out."
        )
    splits = []
    for number, domain in enumerate(data.domains):
        if domain.held_out is None:
            splits.append(split_domain(len(domain), trial_seed, number, holdout_fraction))
        else:
            outer = domain.held_out.numpy().astype(np.int64)
            trained = np.ones(len(domain), bool)
            trained[outer] = False
            splits.append(Split(np.flatnonzero(trained), outer))
    return tuple(splits)


def least_size(holdout_fraction: float = HOLDOUT_FRACTION) -> int:
    """How many samples a domain needs for both of its parts to have some."""
    if not 0 < holdout_fraction < 1:
        raise InputError(
            f"Expected a holdout_fraction above 0 and below 1, got {holdout_fraction}: both parts "
            "of a domain need samples."
        )
    return next(size for size in count(2) if int(size * holdout_fraction) >= 1)
