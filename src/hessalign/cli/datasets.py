"""`hessalign datasets`: the benchmarks, whether a data set is complete, and its cache."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from hessalign._plugins import entry_point_names
from hessalign.bench.data import (
    PRESETS,
    DomainDataset,
    ImageFolderPreset,
    cache_folder,
    inspect_dataset,
    prepare_images,
    read_dataset,
)
from hessalign.bench.data.images import matching_preset
from hessalign.bench.data.source import ENTRY_POINTS
from hessalign.report.progress import Progress, warn
from hessalign.report.tables import first_notes, markdown_table

_SHOWN: Final = 10
"""How many findings of a kind are shown, unless all are asked for."""

_FEW_CLASSES: Final = 20
"""Up to how many classes the table has a row for each."""


def run_list(options: argparse.Namespace) -> None:
    """List the benchmarks."""
    rows, sources = [], ""
    for preset in PRESETS.values():
        domains, images = ", ".join(preset.domains), sum(preset.images)
        counts = [str(len(preset.classes)), f"{images:,}" if images else "–"]
        rows.append([preset.name, preset.folder, domains, *counts])
        note = f"; {preset.note}" if preset.note else ""
        sources += f"{preset.name}: {preset.source}{note}.\n"
    header = ["name", "folder", "domains", "classes", "images"]
    sys.stdout.write(
        f"{markdown_table(header, rows, text_columns=3)}\n\n{sources}"
        "ColoredMNIST and RotatedMNIST are made from the four MNIST files: "
        "https://ossci-datasets.s3.amazonaws.com/mnist/.\n"
    )
    if offered := entry_point_names(ENTRY_POINTS):
        sys.stdout.write(f"Installed packages offer: {', '.join(offered)}.\n")


def run_check(options: argparse.Namespace) -> int:
    """Check a data set and say what was found."""
    data, preset = read_source(options)
    sys.stdout.write(_counts_table(data, preset) + "\n\n")
    with Progress("checking", "images", bar=True) as progress:
        findings = inspect_dataset(data, preset, workers=options.workers, report=progress)
    shown = len(findings) if options.all else _SHOWN
    for line in first_notes(findings, shown, "--all shows them."):
        sys.stdout.write(f"{line}\n")
    if all(finding.kind == "note" for finding in findings):
        files = "all readable, none twice" if data.domains[0].paths else "arrays"
        sys.stdout.write(f"{data.name} is fine: {len(data):,} samples, {files}.\n")
        return 0
    if preset is not None:
        note = f" ({preset.note})" if preset.note else ""
        sys.stdout.write(f"{preset.name} can be obtained from {preset.source}{note}.\n")
    return 1


def run_prepare(options: argparse.Namespace) -> None:
    """Make the cache of a data set."""
    data, _ = read_source(options)
    folder = options.cache or cache_folder(data.root or options.path, options.size)
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
        rows.append(["expected", *map(str, preset.images)])
    header = [f"{data.name}: {len(data.classes)} classes", *data.domain_names]
    return markdown_table(header, rows)


def read_source(options: argparse.Namespace) -> tuple[DomainDataset, ImageFolderPreset | None]:
    """The data set that a command was given, and what it should hold if it is a benchmark."""
    name = options.preset or (matching_preset(options.path) if options.path.is_dir() else None)
    return read_dataset(options.path, name), PRESETS.get(name or "")
