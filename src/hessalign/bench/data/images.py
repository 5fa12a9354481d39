"""Images: data sets of the form `root/<domain>/<class>/<image>`, and how an image is read.

Folders are listed in DomainBed's order. An image becomes RGB and is resized to a square without
regard to its shape: what torchvision's `Resize((224, 224))` does to a Pillow image, to the byte.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, final

import numpy as np

from hessalign._errors import InputError, check_name
from hessalign._plugins import import_optional
from hessalign.bench.data.catalog import PRESETS, ImageFolderPreset
from hessalign.bench.data.files import read_utf8
from hessalign.bench.data.samples import DomainDataset, group_samples

EXTENSIONS: Final = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""What counts as an image, in any case: the list of torchvision's ImageFolder."""

EXCLUSIONS: Final = "exclude.txt"  # beside the domains: lists images to leave out

_Damage = Literal["truncated", "unreadable"]

_DEEP_MODES: Final = ("I", "F")  # Pillow's with more than 8 bits for a grey value begin so
_LEAST_BRIGHTEST: Final = 2**12  # of 16 bits: what stays below holds 12 bits or fewer, or is black


def read_image_folder(root: Path, preset: str | None = None) -> DomainDataset:
    """List the images of a folder, except those that its `exclude.txt` names.

    Domains and classes are the sorted sub-folders whose names do not begin with a dot; the images
    of a class are sorted as torchvision's ImageFolder sorts them: folder by folder below the class,
    each by name. A class need not be in every domain: labels number the classes of all together.
    (DomainBed numbers them in each anew, so that labels disagree where a class is missing.)

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
        >>> for name in ("photo/dog/1.png", "sketch/cat/1.png"):
        ...     (root / name).parent.mkdir(parents=True)
        ...     (root / name).touch()
        >>> data = read_image_folder(root)
        >>> data.name, data.classes, data.domain_names
        ('pets', ('cat', 'dog'), ('photo', 'sketch'))
    """
    if not root.is_dir():
        raise FileNotFoundError(f"Expected a folder of domains, found no folder {root}.")
    if preset is not None:
        check_name("preset", preset, PRESETS)
        root = find_root(root, PRESETS[preset])
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
            for path in list_images(root / domain / label)
            if path not in left_out
        ]
        if not found:
            raise InputError(
                f"Expected images in {root / domain}/<class>/, found none. Add images "
                f"({' '.join(EXTENSIONS)}) or remove the folder: every folder of {root} is a "
                "domain."
            )
        rows += found
    return group_samples(name, rows, root, domains)


def find_root(folder: Path, preset: ImageFolderPreset) -> Path:
    """The folder that holds the domains or files of a benchmark data set."""
    places = _places(folder, preset)
    best = max(places, key=lambda root: sum((root / part).exists() for part in preset.parts))
    missing = [part for part in preset.parts if not (best / part).exists()]
    if missing:
        raise FileNotFoundError(
            f"Expected {', '.join(preset.parts)} of {preset.name} in {best}; missing: "
            f"{', '.join(missing)}. {preset.name} can be obtained from {preset.source}."
        )
    return best


def _places(folder: Path, preset: ImageFolderPreset) -> list[Path]:
    names = dict.fromkeys((preset.folder, preset.unpacked, preset.name))
    return [folder, *(folder / name for name in names)]


def matching_preset(root: Path) -> str | None:
    """The benchmark that a folder looks like, by what it holds; None if none."""
    for preset in PRESETS.values():
        for candidate in filter(Path.is_dir, _places(root, preset)):
            if preset.layout == "folders" and _folders(candidate) == sorted(preset.domains):
                return preset.name
            there = [(candidate / part).exists() for part in preset.needs]
            if preset.layout == "wilds" and all(there):
                return preset.name
    return None  # which setting of Spawrious is meant, no folder can tell


def read_exclusions(root: Path) -> tuple[set[Path], list[str]]:
    """The images of a folder that are to be left out, and lines of its list that name no file."""
    # The list, `exclude.txt` beside the domains, has an image on each line: as
    # `domain/class/image`, or what else it is there, or with any folders before that.
    path = root / EXCLUSIONS
    lines = read_utf8(path).splitlines() if path.is_file() else []
    named = [(line, _named_image(root, line)) for line in filter(None, map(str.strip, lines))]
    found = {image for _, image in named if image is not None}
    return found, [line for line, image in named if image is None]


def _named_image(root: Path, line: str) -> Path | None:
    """The file below the folder that a line ends in, whatever stands before it."""
    path = Path(line)
    parts = [part for part in path.parts if part not in {path.anchor, os.pardir}]
    for first in range(len(parts) - 1):  # a folder or more, and a file
        image = root.joinpath(*parts[first:])
        if os.path.lexists(image) and not image.is_dir():
            return image
    return None


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def list_images(folder: Path) -> list[Path]:
    """The images below a folder, in the order of torchvision's ImageFolder, each folder once."""
    seen: set[str] = set()
    found = []
    for where, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(where)) in seen:  # links may lead in a circle
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        found.append((where, names))
    return [
        Path(where) / name
        for where, names in sorted(found)
        for name in sorted(names)
        if name.lower().endswith(EXTENSIONS)
    ]


@final
class ImageError(InputError):
    """An image that cannot be read.

    Args:
        path: The file.
        damage: "truncated" if a part of the image can be read, else "unreadable".
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, damage: _Damage, reason: str) -> None:
        remedy = (
            "Replace it, or leave it out: name it in exclude.txt in the folder of the domains, or "
            "take it off the manifest."
        )
        if damage == "truncated":
            remedy += (
                " Or let `hessalign datasets prepare --allow-truncated` fill what is missing with "
                "grey, as DomainBed does."
            )
        super().__init__(f"The image {path} is {damage}: {reason}. {remedy}")
        self.path = path
        self.damage = damage
        self.reason = reason

    def __reduce__(self) -> tuple[type[ImageError], tuple[Path, _Damage, str]]:
        return ImageError, (self.path, self.damage, self.reason)


@final
@dataclass(frozen=True, eq=False)
class ResizedImage:
    """An image at the size that networks take.

    Attributes:
        pixels: Grey values 0 to 255 as uint8, [size, size, 3].
        width: Width of the file's image in pixels.
        height: Height of the file's image in pixels.
    """

    pixels: np.ndarray
    width: int
    height: int


def read_image(path: Path, size: int, *, allow_truncated: bool = False) -> ResizedImage:
    """Read an image and resize it to a square; of grey values of 16 bits, the upper 8 are read.

    Args:
        path: The file.
        size: Height and width of the result.
        allow_truncated: Fill what is missing of a truncated image with grey.

    Returns:
        The image; a file that is not a complete one raises an `ImageError`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> path = Path(tempfile.mkdtemp()) / "red.png"
        >>> Image.new("RGB", (30, 20), "red").save(path)
        >>> read_image(path, 4).pixels[0, 0].tolist()
        [255, 0, 0]
    """
    image = _decoded(path, allow_truncated)
    resized = image.resize((size, size), import_pillow("Reading").Resampling.BILINEAR)
    return ResizedImage(np.asarray(resized), *image.size)


def find_damage(path: Path) -> ImageError | None:
    """What is wrong with an image, read to its end; None if nothing is."""
    try:
        _decoded(path, allow_truncated=False)
    except ImageError as error:
        return error
    return None


def _decoded(path: Path, allow_truncated: bool) -> Any:  # noqa: ANN401
    """A Pillow image; untyped, because Pillow is only imported where it is used."""
    pillow = import_pillow("Reading")
    try:
        return _loaded(pillow, path, allow_truncated)
    except Exception as error:  # a damaged file makes Pillow's readers stumble in any way
        damage: _Damage = "truncated"
        try:
            _loaded(pillow, path, allow_truncated=True)
        except Exception:
            damage = "unreadable"
        raise ImageError(path, damage, _reason(error)) from error


def _loaded(pillow: Any, path: Path, allow_truncated: bool) -> Any:  # noqa: ANN401
    from PIL import ImageFile

    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device has no end
        raise InputError("not a file")
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, allow_truncated
    try:
        with path.open("rb") as file, _checked(pillow, file, allow_truncated) as image:
            if image.mode.startswith(_DEEP_MODES):
                image = pillow.fromarray(_upper_byte(image))
            return image.convert("RGB")
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _upper_byte(image: Any) -> np.ndarray:  # noqa: ANN401
    """The upper 8 of 16 bits of grey values, which Pillow keeps of colours; refuses deeper ones."""
    deep = np.asarray(image)
    # What has 16 bits in the file, some versions of Pillow give as 32.
    if deep.dtype.itemsize != 2 and (image.mode != "I" or image.format not in {"PNG", "PPM"}):
        raise InputError(
            f"it has more than 16 bits for a grey value (mode {image.mode}), whose range is not "
            "known; scale it to 8 or 16 bits first"
        )
    if 0 < (brightest := int(deep.max())) < _LEAST_BRIGHTEST:
        raise InputError(
            f"it has 16 bits for a grey value, of which its brightest, {brightest}, uses 12 or "
            "fewer, and would be all but black; scale it to the full range, 0 to 65535, or to 8 "
            "bits first"
        )
    return (deep >> 8).astype(np.uint8)


def _checked(pillow: Any, file: IO[bytes], allow_truncated: bool) -> Any:  # noqa: ANN401
    """An opened image; of a PNG, the only kind that has checksums, all of them are checked."""
    image = pillow.open(file)
    if image.format != "PNG" or allow_truncated:
        return image
    image.verify()  # which leaves nothing to read
    file.seek(0)
    return pillow.open(file)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Pillow's message for what is no image names the open file object: not for people.
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image of any known kind"
    return str(error).rstrip(".") or type(error).__name__


def import_pillow(doing: str) -> Any:  # noqa: ANN401
    """Pillow's module Image, untyped; without it an error says how to install it."""
    lacking = f"{doing} images needs Pillow: pip install 'hessalign[images]'."
    import_optional("PIL", lacking)
    return import_optional("PIL.Image", lacking)
