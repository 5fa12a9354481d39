"""The benchmark data sets of domain generalization: their order, domains and evaluation schedule.

Names, order and abbreviations are DomainBed's, so that results of both can stand in one table. For
those that are folders of images a preset says what the folder should hold and where to get it.

A name may carry options of how its files are read, as in `WILDSFMoW:domain=year`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal, final

Family = Literal["small", "big", "DomainNet", "features"]
"""Which default hyper-parameters and search ranges a data set takes; "features" are vectors."""

COLORED_MNIST: Final = "ColoredMNIST-IRM"  # as the paper trains on it; comes with the package
DEFAULT_STEPS: Final = 5001  # steps of training where nothing else is asked for


@final
@dataclass(frozen=True)
class DatasetInfo:
    """One row of the catalog.

    Attributes:
        name: How records call it.
        domains: Abbreviations of its domains, in their order.
        family: Which hyper-parameters it takes.
        checkpoint_freq: Steps between evaluations where nothing else is asked for.
        steps: Steps of training where nothing else is asked for.
    """

    name: str
    domains: tuple[str, ...]
    family: Family = "big"
    checkpoint_freq: int = 300
    steps: int = DEFAULT_STEPS


_ROWS = (
    DatasetInfo("Debug28", ("0", "1", "2"), "small", 100),
    DatasetInfo("Debug224", ("0", "1", "2"), "big", 100),
    DatasetInfo("ColoredMNIST", ("+90%", "+80%", "-90%"), "small", 100),
    DatasetInfo(COLORED_MNIST, ("+80%", "+90%", "-90%"), "small", 10, steps=501),
    DatasetInfo("RotatedMNIST", ("0", "15", "30", "45", "60", "75"), "small", 100),
    DatasetInfo("VLCS", ("C", "L", "S", "V")),
    DatasetInfo("PACS", ("A", "C", "P", "S")),
    DatasetInfo("OfficeHome", ("A", "C", "P", "R")),
    DatasetInfo("TerraIncognita", ("L100", "L38", "L43", "L46")),
    DatasetInfo(
        "DomainNet", ("clip", "info", "paint", "quick", "real", "sketch"), "DomainNet", 1000
    ),
    DatasetInfo(
        "SVIRO",
        ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
    ),
    DatasetInfo("WILDSCamelyon", tuple(f"hospital_{i}" for i in range(5)), "big", 100),
    DatasetInfo("WILDSFMoW", tuple(f"region_{i}" for i in range(6)), "big", 100),
    DatasetInfo("WILDSiWildCam", (*(f"g{i}" for i in range(10)), "val", "test"), "big", 100),
    *(
        DatasetInfo(f"Spawrious{kind}_{level}", ("Test", "SC_group_1", "SC_group_2"), "big", 100)
        for kind in ("O2O", "M2M")
        for level in ("easy", "medium", "hard")
    ),
)

DATASETS: Mapping[str, DatasetInfo] = {row.name: row for row in _ROWS}
"""The catalog by name, in the order in which tables list data sets."""


def split_options(name: str) -> tuple[str, dict[str, str]]:
    """What a name with options after colons stands for.

    Returns:
        The name without them, and the options.

    Example:
        >>> split_options("hf:owner/birds:label=species:domain=site")
        ('hf:owner/birds', {'label': 'species', 'domain': 'site'})
    """
    base, *options = re.split(r":(?=[a-z_]+=)", name)
    return base, {key: value for key, _, value in (each.partition("=") for each in options)}


def with_options(name: str, **options: str | None) -> str:
    """A name with those options that are given, see `split_options`."""
    given = [f":{key}={value}" for key, value in options.items() if value is not None]
    return "".join([name, *given])


def catalog_entry(name: str) -> DatasetInfo | None:
    """The row of a data set, or of that from which a bank DATASET@BACKBONE was made, if any."""
    return DATASETS.get(split_options(name.partition("@")[0])[0])


def default_steps(dataset: str) -> int:
    """Steps of training on a data set where nothing else is asked for."""
    entry = catalog_entry(dataset)
    return DEFAULT_STEPS if entry is None else entry.steps


@final
@dataclass(frozen=True)
class ImageFolderPreset:
    """What the folder of a benchmark data set should hold.

    Attributes:
        name: Its name in the catalog.
        folder: What DomainBed calls its folder.
        unpacked: What the folder is called when the published archive is unpacked.
        domains: Its domains, as folders unless it has another layout; DomainBed sorts them, which
            is this order.
        classes: The classes, sorted; empty if the files tell them.
        images: Images of each domain, 0 where it is not known; empty if none is.
        source: Where the data set can be obtained.
        per_class: Images of each domain by class, in the order of the classes, where known.
        note: What else there is to know.
        licence: Under which it can be had.
        size: How large it is.
        layout: How its files are laid out: `domain/class/image`, or as WILDS or Spawrious do.
        needs: Files and folders that it must hold, if not a folder for each domain.
        total: Images in all, where it is not the sum over domains.
    """

    name: str
    folder: str
    unpacked: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    images: tuple[int, ...]
    source: str
    per_class: tuple[tuple[int, ...], ...] = ()
    note: str = ""
    licence: str = ""
    size: str = ""
    layout: Literal["folders", "wilds", "spawrious"] = "folders"
    needs: tuple[str, ...] = ()
    total: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """What its folder holds."""
        return self.needs or self.domains

    @property
    def count(self) -> int:
        """How many images it has; 0 if that is not known."""
        return self.total or (sum(self.images) if all(self.images) else 0)

    def describe(self) -> str:
        """Where it can be had, under which licence, and how large it is, in one line."""
        images = f"{self.count:,} images" if self.count else ""
        known = (f"licence: {self.licence}", images, self.size, self.note)
        return "; ".join((self.source, *(each for each in known if each)))


def _tuples(value: object) -> Any:  # noqa: ANN401
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_PRESET_ROWS = json.loads(files("hessalign.bench.data").joinpath("presets.json").read_bytes())

PRESETS: Mapping[str, ImageFolderPreset] = {
    name: ImageFolderPreset(name, **{key: _tuples(value) for key, value in row.items()})
    for row in _PRESET_ROWS
    for name in row.pop("names")
}
"""The data sets that are folders of images, by name."""
