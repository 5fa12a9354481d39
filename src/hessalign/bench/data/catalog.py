"""The benchmark data sets of domain generalization: their order, domains and evaluation schedule.

Names, order and abbreviations are DomainBed's, so that results of both can stand in one table. For
those that are folders of images a preset says what the folder should hold and where to get it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Literal, final

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
)

DATASETS: Mapping[str, DatasetInfo] = {row.name: row for row in _ROWS}
"""The catalog by name, in the order in which tables list data sets."""


def catalog_entry(name: str) -> DatasetInfo | None:
    """The row of a data set, or of that from which a bank DATASET@BACKBONE was made, if any."""
    return DATASETS.get(name.partition("@")[0])


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
        domains: The folders of the domains; DomainBed sorts them, which is this order.
        classes: The folders of the classes, sorted.
        images: Images of each domain; empty if it depends on the version of the annotations.
        per_class: Images of each domain by class, in the order of the classes, where known.
        source: Where the data set can be obtained.
        note: What else there is to know.
    """

    name: str
    folder: str
    unpacked: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    images: tuple[int, ...]
    per_class: tuple[tuple[int, ...], ...]
    source: str
    note: str = ""


_CLASSES = json.loads(files("hessalign.bench.data").joinpath("classes.json").read_bytes())
"""The 65 folders of each domain of OfficeHome, and the 345 of DomainNet, sorted."""

_PRESET_ROWS = (
    ImageFolderPreset(
        "VLCS", "VLCS", "VLCS",
        ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
        ("bird", "car", "chair", "dog", "person"),
        (1415, 2656, 3282, 3376),
        (
            (237, 123, 118, 67, 870),
            (80, 1209, 89, 43, 1235),
            (21, 933, 1036, 31, 1261),
            (330, 699, 428, 420, 1499),
        ),
        "https://drive.google.com/uc?id=1skwblH1_okBwxWxmRsp9_qi15hyPpxg8 (VLCS.tar.gz, as "
        "DomainBed packs it)",
    ),
    ImageFolderPreset(
        "PACS", "PACS", "kfold",
        ("art_painting", "cartoon", "photo", "sketch"),
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        (2048, 2344, 1670, 3929),
        (
            (379, 255, 285, 184, 201, 295, 449),
            (389, 457, 346, 135, 324, 288, 405),
            (189, 202, 182, 186, 199, 280, 432),
            (772, 740, 753, 608, 816, 80, 160),
        ),
        "https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd (PACS.zip, which unpacks "
        "to kfold/); the data set's page is http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017",
    ),
    ImageFolderPreset(
        "OfficeHome", "office_home", "OfficeHomeDataset_10072016",
        ("Art", "Clipart", "Product", "Real World"),
        tuple(_CLASSES["OfficeHome"]),
        (2427, 4365, 4439, 4357),
        (),
        "https://drive.google.com/uc?id=1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC (office_home.zip); the "
        "data set's page is http://hemanthdv.org/OfficeHome-Dataset",
    ),
    ImageFolderPreset(
        "TerraIncognita", "terra_incognita", "terra_incognita",
        ("location_100", "location_38", "location_43", "location_46"),
        (
            "bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon",
            "squirrel",
        ),
        (), (),
        "http://lila.science/datasets/caltech-camera-traps, sorted into folders by DomainBed's "
        "domainbed/scripts/download.py",
        "about 24,800 images; the number depends on the version of the annotations",
    ),
    ImageFolderPreset(
        "DomainNet", "domain_net", "domain_net",
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        tuple(_CLASSES["DomainNet"]),
        (48_129, 51_605, 72_266, 172_500, 172_947, 69_128),
        (),
        "http://ai.bu.edu/M3SDA (one archive per domain; take the cleaned version)",
        "numbers are those without the 9,431 images of DomainBed's "
        "domainbed/misc/domain_net_duplicates.txt: put that file beside the domains as exclude.txt",
    ),
)  # fmt: skip

PRESETS: Mapping[str, ImageFolderPreset] = {row.name: row for row in _PRESET_ROWS}
"""The data sets that are folders of images, by name."""
