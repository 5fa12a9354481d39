"""Data sets of the form `root/<domain>/<class>/<image>`, listed in DomainBed's order."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Final

from hessalign._errors import InputError
from hessalign._names import check_name
from hessalign.bench.data.catalog import PRESETS, ImageFolderPreset
from hessalign.bench.data.samples import DomainDataset, group_samples
from hessalign.bench.data.tables import not_utf8

EXTENSIONS: Final = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""What counts as an image, in any case: the list of torchvision's ImageFolder."""


EXCLUSIONS: Final = "exclude.txt"
"""The file in the folder of the domains that lists images to leave out."""


def read_image_folder(root: Path, preset: str | None = None) -> DomainDataset:
    """List the images of a folder, except those that its `exclude.txt` names.

    Domains and classes are the sorted sub-folders, those whose names begin with a dot left out;
    the images of a class are sorted as torchvision's ImageFolder sorts them: folder by folder
    below the class, each sorted by name. A class need not be in every domain: labels number the
    classes of all domains together. (DomainBed numbers them in each domain anew, which makes
    labels disagree where a class is missing.)

    Args:
        root: The folder; with a preset, also the folder that holds the data set's folder.
        preset: A name in `PRESETS`: only its domains are read, in its order.

    Returns:
        The data set, called as the preset or the folder.

    Raises:
        FileNotFoundError: If there is no such folder, or a domain of the preset is missing.
        InputError: If it has no domains, a domain has no images, or the preset is unknown.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp()) / "pets"
        >>> for name in ("photo/dog/2.png", "photo/dog/1.png", "sketch/cat/1.png"):
        ...     (root / name).parent.mkdir(parents=True, exist_ok=True)
        ...     (root / name).touch()
        >>> data = read_image_folder(root)
        >>> data.name, data.classes, data.domain_names
        ('pets', ('cat', 'dog'), ('photo', 'sketch'))
        >>> [str(path.relative_to(root)) for path in data.domains[0].paths]
        ['photo/dog/1.png', 'photo/dog/2.png']
    """
    if not root.is_dir():
        raise FileNotFoundError(f"Expected a folder of domains, found no folder {root}.")
    if preset is not None:
        check_name("preset", preset, PRESETS)
        root = _find_root(root, PRESETS[preset])
    name = root.resolve().name if preset is None else preset
    domains = _folders(root) if preset is None else list(PRESETS[preset].domains)
    if not domains:
        raise InputError(
            f"Expected {root} to hold a folder for each domain (domain/class/image), found none."
        )
    left_out, _ = read_exclusions(root)
    rows = []
    for domain in domains:
        found = [
            (domain, label, path)
            for label in _folders(root / domain)
            for path in _images(root / domain / label)
            if path not in left_out
        ]
        if not found:
            raise InputError(
                f"Expected images in {root / domain}/<class>/, found none. Add images "
                f"({' '.join(EXTENSIONS)}) or remove the folder: every folder of {root} is a "
                "domain."
            )
        rows += found
    return dataclasses.replace(group_samples(name, rows, domains), root=root)


def _find_root(folder: Path, preset: ImageFolderPreset) -> Path:
    """The folder that holds the domains of a benchmark data set."""
    candidates = _places(folder, preset)
    best = max(candidates, key=lambda root: sum((root / d).is_dir() for d in preset.domains))
    missing = [domain for domain in preset.domains if not (best / domain).is_dir()]
    if missing:
        raise FileNotFoundError(
            f"Expected the domains {', '.join(preset.domains)} of {preset.name} as folders of "
            f"{best}; missing: {', '.join(missing)}. {preset.name} can be obtained from "
            f"{preset.source}."
        )
    return best


def _places(folder: Path, preset: ImageFolderPreset) -> list[Path]:
    names = dict.fromkeys((preset.folder, preset.unpacked, preset.name))
    return [folder, *(folder / name for name in names)]


def matching_preset(root: Path) -> str | None:
    """The benchmark that a folder looks like, by the names of its domains; None if none."""
    for preset in PRESETS.values():
        for candidate in _places(root, preset):
            if candidate.is_dir() and _folders(candidate) == sorted(preset.domains):
                return preset.name
    return None


def read_exclusions(root: Path) -> tuple[set[Path], list[str]]:
    """The images of a folder that are to be left out, and lines of its list that name no file.

    The list, `exclude.txt` beside the domains, has an image on each line: as `domain/class/image`,
    or with any folders before that.

    Returns:
        Paths, and lines.

    Raises:
        InputError: If the list is not text in UTF-8.
    """
    path = root / EXCLUSIONS
    if not path.is_file():
        return set(), []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(not_utf8(path, error)) from error
    found, unmatched = set(), []
    for line in filter(None, map(str.strip, lines)):
        image = _named_image(root, line)
        if image is None:
            unmatched.append(line)
        else:
            found.add(image)
    return found, unmatched


def _named_image(root: Path, line: str) -> Path | None:
    """The file below the folder that a line ends in, whatever stands before it."""
    path = Path(line)
    parts = [part for part in path.parts if part not in {path.anchor, os.pardir}]
    for first in range(len(parts) - 2):  # a domain, a class and a file
        image = root.joinpath(*parts[first:])
        if os.path.lexists(image) and not image.is_dir():
            return image
    return None


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return [
        Path(where) / name
        for where, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(EXTENSIONS)
    ]
