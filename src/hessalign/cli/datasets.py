"""`hessalign datasets`: the benchmarks, whether a data set is complete, and its cache."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from hessalign._plugins import entry_point_names
from hessalign.bench.data import (
    PRESETS,
    DomainDataset,
    ImageFolderPreset,
    cache_folder,
    find_dataset,
    inspect_dataset,
    prepare_images,
    read_dataset,
)
from hessalign.bench.data.catalog import COLORED_MNIST, split_options, with_options
from hessalign.bench.data.heart import HEART
from hessalign.bench.data.hugging_face import HUGGING_FACE
from hessalign.bench.data.images import matching_preset
from hessalign.bench.data.source import ENTRY_POINTS
from hessalign.report.progress import Progress, warn
from hessalign.report.tables import first_notes, markdown_table

_SHOWN: Final = 10  # how many findings of a kind are shown, unless all are asked for
_FROM_MNIST: Final = (
    "made from the four MNIST files, https://ossci-datasets.s3.amazonaws.com/mnist/; licence: CC "
    "BY-SA 3.0; 12 MB"
)
_MADE: Final = {
    "ColoredMNIST": _FROM_MNIST,
    "RotatedMNIST": _FROM_MNIST,
    COLORED_MNIST: "comes with the package; licence: CC BY-SA 3.0",
    HEART: "920 patients of four hospitals, by Janosi, Steinbrunn, Pfisterer and Detrano, doi "
    "10.24432/C52P4X; comes with the package; licence: CC BY 4.0",
}
"""Where benchmarks come from that are no folders of images."""

_FEW_CLASSES: Final = 20  # up to how many classes the table has a row for each


def run_list(options: argparse.Namespace) -> None:
    """List the benchmarks."""
    rows = []
    sources: dict[str, list[str]] = {}
    for preset in PRESETS.values():
        counts = [
            f"{number:,}" if number else "–" for number in (len(preset.classes), preset.count)
        ]
        rows.append([preset.name, preset.folder, ", ".join(preset.domains), *counts])
        sources.setdefault(preset.describe(), []).append(preset.name)
    header = ["name", "folder", "domains", "classes", "images"]
    sys.stdout.write(f"{markdown_table(header, rows, text_columns=3)}\n\n")
    for name, text in _MADE.items():
        sources.setdefault(text, []).append(name)
    for text, names in sources.items():
        sys.stdout.write(f"{', '.join(names)}: {text}.\n")
    if offered := entry_point_names(ENTRY_POINTS):
        sys.stdout.write(f"Installed packages offer: {', '.join(offered)}.\n")


def run_check(options: argparse.Namespace) -> int:
    """Check a data set and say what was found."""
    return _check(*read_source(options), options.workers, everything=options.all)


def _check(
    data: DomainDataset, preset: ImageFolderPreset | None, workers: int, *, everything: bool = False
) -> int:
    """Say what a data set holds and what is wrong with it; 1 if something is."""
    sys.stdout.write(_counts_table(data, preset) + "\n\n")
    with Progress("checking", "images", bar=True) as progress:
        findings = inspect_dataset(data, preset, workers=workers, report=progress)
    shown = len(findings) if everything else _SHOWN
    for line in first_notes(findings, shown, "--all shows them."):
        sys.stdout.write(f"{line}\n")
    if all(finding.kind == "note" for finding in findings):
        files = "all readable, none twice" if data.domains[0].paths else "arrays"
        if data.table is not None:
            files = f"{len(data.table.features)} features of {len(data.table.columns)} columns"
        sys.stdout.write(f"{data.name} is fine: {len(data):,} samples, {files}.\n")
        return 0
    if preset is not None:
        note = f" ({preset.note})" if preset.note else ""
        sys.stdout.write(f"{preset.name} can be obtained from {preset.source}{note}.\n")
    return 1


def run_prepare(options: argparse.Namespace) -> int:
    """Make the cache of a data set; for the name of a benchmark, say all about it and check it."""
    name = split_options(str(options.path))[0]
    if options.path.exists() or not (name in PRESETS or name in _MADE):
        _make_cache(read_source(options)[0], options)
        return 0
    text = PRESETS[name].describe() if name in PRESETS else _MADE[name]
    sys.stdout.write(f"{name}: {text}.\n\n")
    try:
        data, preset = read_source(options)
    except FileNotFoundError as error:
        place = options.data_dir / (PRESETS[name].folder if name in PRESETS else "MNIST")
        sys.stdout.write(f"It is not there, or not all of it. {error}\n")
        sys.stdout.write(f"Unpack it to {place}, then give the same command again.\n")
        return 1
    if faulty := _check(data, preset, options.workers):
        return faulty
    if data.domains[0].paths:
        _make_cache(data, options)
    return 0


def _make_cache(data: DomainDataset, options: argparse.Namespace) -> None:
    """Decode all images."""
    folder = options.cache or cache_folder(data.root or options.path, options.size, data.variant)
    with (
        Progress("preparing", "images", bar=True) as prepared,
        Progress("verifying", "images", bar=True) as verified,
    ):
        prepare_images(
            data,
            folder,
            options.size,
            workers=options.workers,
            allow_truncated=options.allow_truncated,
            report=prepared,
            report_verified=verified,
            warn=warn,
        )
    sys.stdout.write(f"{len(data):,} images of {data.name} are in {folder}.\n")


def _counts_table(data: DomainDataset, preset: ImageFolderPreset | None) -> str:
    """Samples by domain, and by class if there are not too many."""
    rows = []
    if len(data.classes) <= _FEW_CLASSES:
        columns = [domain.counts(len(data.classes)) for domain in data.domains]
        rows = [[name, *map(str, row)] for name, *row in zip(data.classes, *columns, strict=True)]
    rows.append(["all", *(str(len(domain)) for domain in data.domains)])
    if preset is not None and preset.images:
        known = dict(zip(preset.domains, preset.images, strict=True))
        expected = [known.get(name) or "–" for name in data.domain_names]
        rows += [["expected", *map(str, expected)]] if set(expected) != {"–"} else []
    if data.official_tests:
        tested = ["test" if name in data.official_tests else "train" for name in data.domain_names]
        rows.append(["official", *tested])
    header = [f"{data.name}: {len(data.classes)} classes", *data.domain_names]
    return markdown_table(header, rows)


def read_source(options: argparse.Namespace) -> tuple[DomainDataset, ImageFolderPreset | None]:
    """The data set that a command was given, and what it should hold if it is a benchmark."""
    path, name = options.path, options.preset
    columns = {key: getattr(options, key, None) for key in ("label", "domain")}
    path = Path(with_options(str(path), **columns))
    base = split_options(str(path))[0]
    known = base in PRESETS or base in _MADE or base.startswith(HUGGING_FACE)
    if not path.exists() and known:
        return find_dataset(str(path), options.data_dir), PRESETS.get(base)
    name = name or (matching_preset(path) if path.is_dir() else None)
    return read_dataset(path, name), PRESETS.get(split_options(name or "")[0])
