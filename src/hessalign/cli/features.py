"""`hessalign features`: what a backbone makes of a data set, kept as a data set of its own."""

from __future__ import annotations

import argparse
import json
import os
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
from hessalign.cli.datasets import add_source, read_source
from hessalign.cli.train import warn
from hessalign.report.progress import Progress


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser("features", help="turn images into a bank of features")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    extract = actions.add_parser(
        "extract",
        help="run a backbone over all images, once; run it again to continue",
        description="Example: hessalign features extract data/PACS --backbone resnet50 --weights "
        "imagenet. The bank, PACS@resnet50.safetensors, is a data set that every algorithm takes.",
    )
    add_source(extract)
    add = extract.add_argument
    add(
        "--backbone",
        required=True,
        help="a model of torchvision or timm (timm:NAME), or package.module:name for your own",
    )
    add("--weights", help="imagenet or a file; random without it, unless it brings its own")
    add("--name", help="what the bank calls the backbone (default: its name)")
    add("--output", type=Path, metavar="BANK", help="default: DATA@BACKBONE.safetensors; or .npz")
    add("--size", type=int, default=224, metavar="N", help="height and width (default: 224)")
    add("--cache", type=Path, metavar="DIR", help="cache of the images (default: beside PATH)")
    add("--allow-truncated", action="store_true", help="fill what an image lacks with grey")
    jobs = os.cpu_count() or 1
    add("--jobs", type=int, default=jobs, metavar="N", help="processes (default: all cores)")
    extract.set_defaults(run=_run_extract, continues=True)

    show = actions.add_parser("show", help="what a bank was made with")
    show.add_argument("bank", type=Path, metavar="BANK", help="the bank")
    show.set_defaults(run=_run_show)


def _run_extract(options: argparse.Namespace) -> None:
    """Make a feature bank."""
    data, _ = read_source(options)
    bank = extract(
        data,
        BankSpec(options.backbone, options.weights, options.size, options.allow_truncated),
        options.output or bank_path(data.name, options.name or options.backbone),
        options.cache or cache_folder(data.root or options.path, options.size),
        options.jobs,
    )
    sys.stdout.write(f"The features of {len(data):,} images of {data.name} are in {bank}.\n")


def extract(data: DomainDataset, spec: BankSpec, bank: Path, cache: Path, jobs: int) -> Path:
    """Make a feature bank, or continue one, with progress.

    Args:
        data: The data set.
        spec: What to make it with.
        bank: The file of the bank.
        cache: Where a cache of the images would be.
        jobs: Processes.

    Returns:
        The file of the bank.
    """
    with Progress("extracting", "images", bar=True) as show:
        return extract_features(data, spec, bank, cache=cache, jobs=jobs, report=show, warn=warn)


def _run_show(options: argparse.Namespace) -> None:
    """Say what a bank was made with."""
    description = read_description(options.bank)
    if not description:
        raise InputError(
            f"Expected a bank made by `hessalign features extract`, got {options.bank}, which does "
            "not tell what it was made with."
        )
    sys.stdout.write(json.dumps(description, indent=2) + "\n")
