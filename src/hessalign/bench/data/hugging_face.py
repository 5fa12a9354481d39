"""Data sets of Hugging Face's package `datasets`: by name, from a folder, parquet or arrow files.

Their images lie inside of tables. They are written out once, as files beside a manifest, which from
then on is the data set: nothing else needs to know where they came from.

    data/hf-OWNER--NAME/               or PATH.hessalign-images/ beside a local folder or file
        manifest.csv manifest.json     paths, classes, domains; which are not trained on
        images/SPLIT/ROW.jpg
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hessalign._errors import InputError, check_name
from hessalign._files import exclusive, parse_json, write_atomically
from hessalign._plugins import import_optional
from hessalign.bench.data.catalog import split_options
from hessalign.bench.data.files import read_manifest
from hessalign.bench.data.samples import DomainDataset

HUGGING_FACE: Final = "hf:"  # before the name or path of a data set
DATA_DIR: Final = "data"  # where images are written to unless another place is chosen

_OPTIONS: Final = ("image", "label", "domain", "config", "train", "held_out")
_NAMES: Final = {
    "image": ("image", "img", "picture", "file", "path"),
    "label": ("label", "labels", "class", "category", "target", "y"),
    "domain": ("domain", "environment", "env", "site", "hospital", "center", "location", "source"),
}
_TYPES: Final = {"image": "Image", "label": "ClassLabel"}
"""What columns may be called, and what they may be, that nobody names."""

_SPLIT: Final = "split"  # as the domain: every split is one
_HELD_OUT: Final = ("validation", "val", "valid", "dev", "test")
"""The split that is held out, the first of these that there is."""

_FILES: Final = ("parquet", "arrow", "csv", "json", "jsonl")
"""How the names of single files may end; others the package would look for on the hub."""

_WAIT_SECONDS: Final = 6 * 3600.0
_JPEG: Final = b"\xff\xd8"


def read_hugging_face(name: str, data_dir: Path) -> DomainDataset:
    """Read a data set of Hugging Face.

    Rows of the split `train` are trained on, those of the split `validation` (else `test`) are the
    held-out parts of their domains. Domains that `train` does not have are kept whole, from any
    split, as `official_tests`; all other rows are left out.

    Args:
        name: `hf:NAME`, or `hf:PATH` of a folder (that `save_to_disk` wrote, or that `load_dataset`
            takes) or a file, with options as in `hf:owner/birds:label=species:domain=site`: the
            columns `image`, `label` and `domain` (`domain=split` makes every split a domain), the
            configuration `config`, and the splits `train` and `held_out`.
        data_dir: Where images of a data set by name are written to.

    Returns:
        The data set, called by the last part of its name.

    Raises:
        InputError: If there is no name, or what it stands for cannot be read.
    """
    base, options = split_options(name)
    for key in options:
        check_name("option of a data set of Hugging Face", key, _OPTIONS)
    source = base.removeprefix(HUGGING_FACE)
    if not source:
        raise InputError(f"Expected a name, a folder or a file after {HUGGING_FACE}, got none.")
    local = next((p.absolute() for p in (Path(source), data_dir / source) if p.exists()), None)
    folder = data_dir / f"hf-{source.replace('/', '--')}"
    if local is not None:
        folder = local.with_name(f"{local.name}.hessalign-images")
    given = [f"{key}={value}" for key, value in sorted(options.items())]
    manifest = folder / ".".join(["manifest", *given, "csv"]).replace("/", "-")
    if not _is_fresh(manifest, local):
        splits = _load(source, local, options.get("config"))
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / "lock", lambda message: None, _WAIT_SECONDS):
            if not _is_fresh(manifest, local):  # another process may have written it
                _export(splits, name, options, folder, manifest)
    return _read_once(manifest, manifest.stat().st_mtime_ns, Path(source).name)


@lru_cache(maxsize=4)
def _read_once(manifest: Path, changed: int, name: str) -> DomainDataset:
    """What was written, read once per process as long as it does not change."""
    note = manifest.with_suffix(".json")
    try:
        tests = tuple(map(str, parse_json(note.read_text(encoding="utf-8"))["official_tests"]))
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"Expected what was exported beside {manifest} in {note}: {error!r}. Remove {manifest} "
            "to have both written again."
        ) from error
    return replace(read_manifest(manifest), name=name, official_tests=tests)


def _is_fresh(manifest: Path, local: Path | None) -> bool:
    """Whether a manifest is there and newer than the files it was made from."""
    if not manifest.exists():
        return False
    files = [] if local is None else [local, *local.rglob("*")] if local.is_dir() else [local]
    written = manifest.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= written for path in files)


def _load(source: str, local: Path | None, config: str | None) -> Mapping[str, Any]:
    """The tables by split; untyped, because the package is only imported where it is used."""
    datasets = import_optional(
        "datasets",
        f"Reading {HUGGING_FACE}{source} needs Hugging Face's package datasets: pip install "
        "'hessalign[hf]'.",
    )
    file = local is not None and local.is_file()
    kind = "" if local is None else local.suffix.removeprefix(".").lower()
    if file:
        check_name(f"kind of file {local}:", kind, _FILES)
    try:
        if local is None:
            found = datasets.load_dataset(source, config)
        elif file:
            found = datasets.load_dataset(kind.replace("jsonl", "json"), data_files=str(local))
        elif (local / "dataset_dict.json").exists() or (local / "state.json").exists():
            found = datasets.load_from_disk(str(local))
        else:
            found = datasets.load_dataset(str(local), config)
    except Exception as error:  # of files or of the net: the package may raise anything
        reason = " ".join(str(error).split())
        raise InputError(
            f"Cannot load {HUGGING_FACE}{source} ({type(error).__name__}: {reason}). Expected the "
            "name of a data set on the hub, or a folder or file of one."
        ) from error
    return found if isinstance(found, Mapping) else {"train": found}


def _export(
    splits: Mapping[str, Any], name: str, options: Mapping[str, str], folder: Path, manifest: Path
) -> None:
    """Write images and then the manifest."""
    trained = options.get("train") or ("train" if "train" in splits else next(iter(splits)))
    held_out = options.get("held_out") or next((s for s in _HELD_OUT if s in splits), None)
    for chosen in filter(None, (trained, held_out)):
        check_name(f"split of {name}", chosen, splits)
    features = splits[trained].features
    image, label, domain = _columns(name, features, options)
    known = set(splits)
    if domain in features:
        known = set(
            map(_texts(name, trained, splits[trained], domain), range(len(splits[trained])))
        )
    rows, tests = [], set()
    for split, table in splits.items():
        label_of, image_of = _texts(name, split, table, label), _images(name, table, image)
        place_of = _texts(name, split, table, domain) if domain in features else None
        for number in range(len(table)):
            place = split if place_of is None else place_of(number)
            if place not in known:
                tests.add(place)
            elif domain in features and split not in {trained, held_out}:
                continue
            held = domain in features and place in known and split == held_out != trained
            where = f"row {number} of the split {split!r} of {name}, column {image!r}"
            path = _write(folder / "images" / split / f"{number:07d}", image_of(number), where)
            rows.append((path.relative_to(folder).as_posix(), label_of(number), place, int(held)))
    text = io.StringIO()
    csv.writer(text).writerows([("path", "class", "domain", "held_out"), *rows])
    described = {"made_from": name, "official_tests": sorted(tests)}
    write_atomically(manifest.with_suffix(".json"), json.dumps(described).encode())
    write_atomically(manifest, text.getvalue().encode())


def _columns(name: str, features: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    """The columns of images, labels and domains: those given, else of a fitting type or name."""
    types = {column: type(feature).__name__ for column, feature in features.items()}
    found: list[str] = []
    for what, aliases in _NAMES.items():
        if what in options:
            extra = (_SPLIT,) if what == "domain" else ()
            check_name(f"column of {name} for {what}", options[what], (*types, *extra))
            found.append(options[what])
            continue
        free = [each for each in types if each not in (*found, *options.values())]
        named = [each for alias in aliases for each in free if each.lower() == alias]
        typed = [each for each in free if types[each] == _TYPES.get(what)]
        if not named and not typed:
            or_splits = ", or take every split as a domain by domain=split"
            raise InputError(
                f"Expected a column of {what}s in {name}, found {', '.join(types)}. Name it, as in "
                f"{name}:{what}=COLUMN{or_splits if what == 'domain' else ''}."
            )
        found.append((named + typed)[0])
    return found


def _texts(name: str, split: str, table: Any, column: str) -> Callable[[int], str]:  # noqa: ANN401
    """What gives a value of a column by its row, as text: the name of its class if it has one."""
    check_name(f"column of the split {split!r} of {name}", column, table.features)
    names = getattr(table.features[column], "names", None)
    values = table[column][:]

    def text(row: int) -> str:
        value = values[row]
        if value is None or isinstance(value, dict | list) or (names and value < 0):
            raise InputError(
                f"Expected a name or number in row {row} of the split {split!r} of {name}, column "
                f"{column!r}; found {value!r:.60}."
            )
        return names[value] if names else str(value)

    return text


def _images(name: str, table: Any, column: str) -> Callable[[int], Any]:  # noqa: ANN401
    """What gives the bytes and path of an image by its row."""
    from datasets import Image

    try:
        encoded = table.select_columns(column).cast_column(column, Image(decode=False))
    except Exception as error:  # of values that are no images: the package may raise anything
        raise InputError(
            f"Expected images in the column {column!r} of {name}, found {table.features[column]}. "
            f"Name the column of images, as in {split_options(name)[0]}:image=COLUMN."
        ) from error
    return lambda row: encoded[row][column]


def _write(stem: Path, image: Any, where: str) -> Path:  # noqa: ANN401
    """Write an image as it is encoded."""
    content = None if image is None else image["bytes"]
    if content is None and image is not None and image["path"]:
        path = Path(image["path"])
        content = path.read_bytes() if path.is_file() else None
    if not content:
        raise InputError(f"Expected an image in {where}; found none.")
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_suffix(".jpg" if content.startswith(_JPEG) else ".png")
    path.write_bytes(content)
    return path
