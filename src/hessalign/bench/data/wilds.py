"""Data sets as WILDS publishes them (Koh et al., 2021, arXiv 2012.07421): a table and its images.

Their official splits become domains and held-out parts. What WILDS trains on (`train`) and
validates on in distribution (`id_val`) are the two parts of our domains; what it keeps apart (`val`
and `test`, out of distribution) is in domains of its own, `DomainDataset.official_tests`. A part
`id_test` is left out unless it is asked for in place of `id_val`: our domains have two parts.

    camelyon17_v1.0/  metadata.csv  patches/patient_P_node_N/patch_patient_P_node_N_x_X_y_Y.png
    fmow_v1.1/        rgb_metadata.csv  country_code_mapping.csv  images/rgb_img_ROW.png
    iwildcam_v2.0/    metadata.csv  categories.csv  train/FILENAME
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import numpy as np

from hessalign._errors import InputError, UnknownNameError, check_name, some
from hessalign.bench.data.catalog import PRESETS, split_options
from hessalign.bench.data.files import read_columns
from hessalign.bench.data.images import find_root, read_exclusions
from hessalign.bench.data.samples import DomainDataset, group_samples, least_size

_TRAINED: Final = "train"
_TESTED: Final = ("val", "test")
_HELD_OUT: Final = ("id_val", "id_test")
_PARTS: Final = (_TRAINED, *_HELD_OUT, *_TESTED)

_CAMELYON_PARTS: Final = {"1": "val", "2": "test"}
"""Of the hospitals that are not trained on; the table tells the parts of the others."""

_FMOW_YEARS: Final = (2013, 2016)  # from which years on images are validated on, and tested on
_GROUPS: Final = "10"
_MOST_DIGITS: Final = 5  # of the numbers of species and cameras; every species below has a name
_MISSING_SHOWN: Final = 3


@final
@dataclass(frozen=True)
class _Rows:
    """What a table says of each image; `part` is empty for those that no split has."""

    table: Path
    file: Sequence[str]
    label: Sequence[str]
    domain: Sequence[str]
    part: Sequence[str]
    classes: Sequence[str]
    order: Sequence[str] | None = None  # of the domains; sorted if None
    number: Sequence[int] = ()  # of those that were kept, in the table; 1 is below the header

    def keep(self, wanted: Collection[str]) -> _Rows:
        """The rows of some parts; without any to train on they are refused."""
        rows = [row for row, part in enumerate(self.part) if part in wanted]
        if _TRAINED not in self.part:
            found = dict.fromkeys(self.part[row] for row in rows)
            raise InputError(
                f"Expected rows of the official split 'train' in {self.table}, found none"
                + (f", only of {', '.join(found)}." if found else " of any split.")
            )
        columns = (self.file, self.label, self.domain, self.part)
        file, label, domain, part = ([column[row] for row in rows] for column in columns)
        number = [row + 1 for row in rows]
        return replace(self, file=file, label=label, domain=domain, part=part, number=number)


def read_wilds(root: Path, preset: str) -> DomainDataset:
    """Read a data set of WILDS with its official split.

    Args:
        root: Its folder, or the one that holds its folder.
        preset: `WILDSCamelyon`, `WILDSFMoW` or `WILDSiWildCam`, with options as in
            `WILDSFMoW:domain=year`:

            - domain: what is a domain. FMoW: `region` (default; later years are the domains val and
              test) or `year`. iWildCam: `group` (default; the cameras of training in `groups`
              groups of similar size, those of validation and test as domains val and test) or
              `location`, every camera. Camelyon17: `hospital`.
            - groups: how many groups of cameras (10).
            - held_out: what is held out of the training domains, `id_val` (default) or `id_test`.
            - without: an official part to leave out, `val` or `test`.

    Returns:
        The data set, called as the preset. A table that is not as expected is refused, by an error
        that names file, row and column.
    """
    name, options = split_options(preset)
    folder = find_root(root, PRESETS[name])
    read, domains = _READERS[name]
    known = {"domain": domains, "held_out": _HELD_OUT, "without": _TESTED}
    if "group" in domains:
        known["groups"] = ()
    for key, value in options.items():
        check_name(f"option of {name}", key, known)
        if known[key]:
            check_name(f"{key} of {name}", value, known[key])
    held_out = options.get("held_out", _HELD_OUT[0])
    wanted = [part for part in _PARTS if part not in (*_HELD_OUT, options.get("without"))]
    rows = read(folder, options, {*wanted, held_out})
    _check_files(folder, rows)
    left_out, _ = read_exclusions(folder)
    parts = list(zip(rows.domain, rows.part, strict=True))
    tested = {domain for domain, part in parts if part in _TESTED}
    samples, held = [], []
    for (domain, part), label, file in zip(parts, rows.label, rows.file, strict=True):
        path = Path(f"{folder}/{file}")
        if not left_out or path not in left_out:
            samples.append((domain, label, path))
            held.append(part == held_out)
    present = {domain for domain, _, _ in samples}
    order = None if rows.order is None else [each for each in rows.order if each in present]
    return group_samples(
        preset,
        samples,
        folder,
        order,
        classes=rows.classes,
        held_out=held,
        official_tests=tested,
        variant="-".join(f"{key}={value}" for key, value in sorted(options.items())),
    )


def _camelyon(folder: Path, options: Mapping[str, str], wanted: Collection[str]) -> _Rows:
    """Patches of slides from five hospitals: is there tumor in the middle?"""
    table = folder / "metadata.csv"
    names = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
    patient, node, x, y, tumor, center, split = read_columns(table, names)
    files = [
        f"patches/patient_{p}_node_{n}/patch_patient_{p}_node_{n}_x_{i}_y_{j}.png"
        for p, n, i, j in zip(patient, node, x, y, strict=True)
    ]
    classes = PRESETS["WILDSCamelyon"].classes
    labels = _translated(table, "tumor", tumor, {"0": classes[0], "1": classes[1]})
    hospitals = {str(number): f"hospital_{number}" for number in range(5)}
    domains = _translated(table, "center", center, hospitals)
    given = _translated(table, "split", split, {"0": _TRAINED, "1": _HELD_OUT[0], "2": "", "3": ""})
    parts = [_CAMELYON_PARTS.get(c, part) for c, part in zip(center, given, strict=True)]
    return _Rows(table, files, labels, domains, parts, classes).keep(wanted)


def _fmow(folder: Path, options: Mapping[str, str], wanted: Collection[str]) -> _Rows:
    """Satellite images of 62 uses of land, by region of the world and year."""
    table, countries = folder / "rgb_metadata.csv", folder / "country_code_mapping.csv"
    names = ("split", "category", "country_code", "timestamp")
    split, category, country, timestamp = read_columns(table, names)
    known = ("train", "val", "test", "seq")  # which is for a sequestered part that nobody uses
    split = _translated(table, "split", split, dict(zip(known, known, strict=True)))
    years = [_year(table, row, value) for row, value in enumerate(timestamp)]
    parts = [_fmow_part(part, year) for part, year in zip(split, years, strict=True)]
    classes = PRESETS["WILDSFMoW"].classes
    labels = _translated(table, "category", category, {each: each for each in classes})
    files = [f"images/rgb_img_{row}.png" for row in range(len(split))]
    if options.get("domain") == "year":
        return _Rows(table, files, labels, list(map(str, years)), parts, classes).keep(wanted)
    regions = dict(zip(*read_columns(countries, ("alpha-3", "region")), strict=True))
    domains = [regions.get(code) or "Other" for code in country]
    order = [*dict.fromkeys(domains), *_TESTED]  # WILDS numbers regions as they first appear
    apart = [part if part in _TESTED else each for each, part in zip(domains, parts, strict=True)]
    return _Rows(table, files, labels, apart, parts, classes, order).keep(wanted)


def _fmow_part(split: str, year: int) -> str:
    """The official part of an image of FMoW, which goes by its year."""
    validated, tested = _FMOW_YEARS
    if year < validated:
        return {"train": _TRAINED, "val": "id_val", "test": "id_test"}.get(split, "")
    return split if split == ("val" if year < tested else "test") else ""


def _year(table: Path, row: int, timestamp: str) -> int:
    if not timestamp[:4].isdecimal() or timestamp[4:5] != "-":
        raise _wrong(table, row, "timestamp", "a date such as 2015-09-02T13:44:27Z", timestamp)
    return int(timestamp[:4])


def _iwildcam(folder: Path, options: Mapping[str, str], wanted: Collection[str]) -> _Rows:
    """Animals in photographs of 323 camera traps."""
    table = folder / "metadata.csv"
    names = ("split", "location_remapped", "filename", "y")
    split, location, filename, label = read_columns(table, names)
    parts = _translated(table, "split", split, {each: each for each in _PARTS})
    for column, values in (("y", label), ("location_remapped", location)):
        for row, value in enumerate(values):
            if not value.isdecimal() or len(value) > _MOST_DIGITS:
                expected = f"a whole number from 0, of at most {_MOST_DIGITS} digits"
                raise _wrong(table, row, column, expected, value)
    classes = _species(folder / "categories.csv", 1 + max(map(int, label)))
    rows = _Rows(
        table,
        [f"train/{each}" for each in filename],
        [classes[int(each)] for each in label],
        [f"location_{int(each)}" for each in location],
        parts,
        classes,
    ).keep(wanted)
    _check_apart(rows)
    if options.get("domain") == "location":
        return _pooled(rows)
    return _grouped(rows, options.get("groups", _GROUPS))


def _species(table: Path, count: int) -> list[str]:
    """The names of so many classes; their numbers, where not all have a name of their own."""
    numbers = [str(number) for number in range(count)]
    if not table.is_file():
        return numbers
    named = dict(zip(*read_columns(table, ("y", "name")), strict=True))
    names = [named.get(number, number) for number in numbers]
    return names if len(set(names)) == count else numbers


def _pooled(rows: _Rows) -> _Rows:
    """Cameras with too few images for a domain of their own are put together, by part."""
    kinds = [part if part in _TESTED else _TRAINED for part in rows.part]
    sizes = Counter(zip(kinds, rows.domain, strict=True))
    pools: Counter[str] = Counter()
    pool: dict[tuple[str, str], str] = {}
    for camera, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        kind = camera[0]
        if size < least_size() or 0 < pools[kind] < least_size():
            pools[kind] += size
            pool[camera] = f"few_{kind}"
    cameras = zip(kinds, rows.domain, strict=True)
    domains = [pool.get(camera, camera[1]) for camera in cameras]
    alone = sorted({*domains}.difference(pool.values()), key=lambda name: int(name.split("_")[1]))
    return replace(rows, domain=domains, order=[*alone, *sorted(set(pool.values()))])


def _grouped(rows: _Rows, groups: str) -> _Rows:
    """The cameras of training in groups of similar size; those of each other part together."""
    trained = [part not in _TESTED for part in rows.part]
    sizes = Counter(each for each, kept in zip(rows.domain, trained, strict=True) if kept)
    if not groups.isdecimal() or not 1 <= int(groups) <= len(sizes):
        raise InputError(
            f"Expected groups from 1 to {len(sizes)}, the number of cameras that are trained on, "
            f"got {groups!r}."
        )
    totals, group = np.zeros(int(groups), np.int64), {}
    for camera, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        smallest = int(totals.argmin())
        totals[smallest] += size
        group[camera] = f"group_{smallest}"
    domains = [
        group[each] if kept else part
        for each, kept, part in zip(rows.domain, trained, rows.part, strict=True)
    ]
    order = [*(f"group_{number}" for number in range(int(groups))), *_TESTED]
    return replace(rows, domain=domains, order=order)


_Reader = Callable[[Path, Mapping[str, str], Collection[str]], _Rows]

_READERS: Final[Mapping[str, tuple[_Reader, tuple[str, ...]]]] = {
    "WILDSCamelyon": (_camelyon, ("hospital",)),
    "WILDSFMoW": (_fmow, ("region", "year")),
    "WILDSiWildCam": (_iwildcam, ("group", "location")),
}
"""How the tables are read, and what can be a domain, the default first."""


def _wrong(table: Path, row: int, column: str, expected: str, found: object) -> InputError:
    """An error about a value; row 1 is the one below the header."""
    return InputError(
        f"Expected {expected} in {table}, row {row + 1}, column {column!r}; found {found!r}."
    )


def _translated(
    table: Path, column: str, values: Sequence[str], known: Mapping[str, str]
) -> list[str]:
    """What values stand for."""
    try:
        return [known[value] for value in values]
    except KeyError:
        row, value = next((row, each) for row, each in enumerate(values) if each not in known)
        where = f"value in {table}, row {row + 1}, column {column!r}:"
        raise UnknownNameError(where, value, known) from None


def _check_files(folder: Path, rows: _Rows) -> None:
    """Refuse files that are missing, lie elsewhere or are named twice; folders are listed once."""
    listed: dict[str, set[str]] = {}
    seen: dict[str, int] = {}
    missing = []
    for number, file in zip(rows.number, rows.file, strict=True):
        if ".." in file and ".." in file.split("/"):
            raise InputError(
                f"Expected images below {folder}; row {number} of {rows.table} names {file}, which "
                "climbs out of it."
            )
        if seen.setdefault(file, number) != number:
            raise InputError(
                f"Expected every image once in {rows.table}; rows {seen[file]} and {number} both "
                f"name {file}."
            )
        parent, _, leaf = file.rpartition("/")
        if parent not in listed:
            place = folder / parent
            listed[parent] = set(os.listdir(place)) if place.is_dir() else set()
        if leaf not in listed[parent]:
            missing.append(f"{file} (row {number})")
    if missing:
        raise FileNotFoundError(
            f"{rows.table} names {len(missing):,} images that are not in {folder}: "
            f"{some(missing, _MISSING_SHOWN)}. Unpack the whole archive again, or take their rows "
            "out of the table."
        )


def _check_apart(rows: _Rows) -> None:
    """Refuse a camera that is trained on and tested on."""
    kinds: dict[str, str] = {}
    for number, domain, part in zip(rows.number, rows.domain, rows.part, strict=True):
        kind = part if part in _TESTED else _TRAINED
        if kinds.setdefault(domain, kind) != kind:
            raise InputError(
                f"Expected a camera either trained on, validated on or tested on in {rows.table}; "
                f"row {number} has {domain} in '{part}', which is in '{kinds[domain]}' before."
            )
