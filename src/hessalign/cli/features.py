"""`hessalign features`: what a backbone makes of a data set, kept as a data set of its own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hessalign._errors import InputError
from hessalign.bench.data import DomainDataset, cache_folder
from hessalign.bench.runs.feature_bank import (
    BankSpec,
    bank_path,
    extract_features,
    read_description,
)
from hessalign.cli.datasets import read_source
from hessalign.report.progress import Progress, warn


def run_extract(options: argparse.Namespace) -> None:
    """Make a feature bank."""
    data, _ = read_source(options)
    bank = extract(
        data,
        BankSpec(options.backbone, options.weights, options.size, options.allow_truncated),
        options.output or bank_path(data.name, options.name or options.backbone),
        options.cache or cache_folder(data.root or options.path, options.size, data.variant),
        options.jobs,
    )
    sys.stdout.write(f"The features of {len(data):,} images of {data.name} are in {bank}.\n")


def extract(data: DomainDataset, spec: BankSpec, bank: Path, cache: Path, jobs: int) -> Path:
    """Make a feature bank, or continue one, with progress."""
    with Progress("extracting", "images", bar=True) as show:
        return extract_features(data, spec, bank, cache=cache, jobs=jobs, report=show, warn=warn)


def run_show(options: argparse.Namespace) -> None:
    """Say what a bank was made with."""
    description = read_description(options.bank)
    if not description:
        raise InputError(
            f"Expected a bank made by `hessalign features extract`, got {options.bank}, which does "
            "not tell what it was made with."
        )
    sys.stdout.write(json.dumps(description, indent=2) + "\n")
