"""`hessalign diagnose`: how different domains are, in what, and what follows."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.data import DomainDataset, cache_folder, read_dataset
from hessalign.bench.data.catalog import with_options
from hessalign.bench.runs.feature_bank import BankSpec, bank_path
from hessalign.bench.runs.model_description import DESCRIPTION
from hessalign.bench.runs.records import DONE, RESULTS
from hessalign.bench.runs.run import load_run, trained_head
from hessalign.bench.runs.run_folder import CONFIG, find_run, runs_below
from hessalign.cli.attack import domain_titles
from hessalign.cli.features import extract
from hessalign.diagnosis import diagnose
from hessalign.diagnosis.draw import TOTAL
from hessalign.diagnosis.page import render_diagnosis_page
from hessalign.diagnosis.text import render_diagnosis_json, render_diagnosis_text
from hessalign.report.progress import Progress, warn

_MANY_DOMAINS: Final = 32
_MOST_NUMBERS: Final = 8_000_000  # of a table; of more rows some are drawn

_RUN_FILES: Final = (CONFIG, DONE, RESULTS, DESCRIPTION)  # what makes a folder that of a run


def run(options: argparse.Namespace) -> None:
    """Diagnose, show, and write what was asked for."""
    asked = ((options.html, render_diagnosis_page), (options.json, render_diagnosis_json))
    files = [(file, render) for file, render in asked if file is not None]
    for file, _ in files:
        if not file.parent.is_dir():
            raise FileNotFoundError(f"Expected a folder to write to, found none at {file.parent}.")
    is_run = _is_run(options.path)
    if options.data_dir is not None and not is_run:
        raise InputError(
            f"Expected --data-dir only for the folder of a run, got it for {options.path}. Leave "
            "it out."
        )
    notes: tuple[str, ...] = ()
    if is_run:
        arguments = _run_inputs(options)
    else:
        data = _read(options)
        arguments, notes = _inputs(data), data.table.notes if data.table is not None else ()
    if options.as_is:
        arguments["scale"] = False
    with Progress("diagnosing", stages=True) as progress:
        found = diagnose(
            **arguments,
            l2=options.l2,
            tolerance=options.tolerance,
            samples=options.samples,
            seed=options.seed,
            report=lambda stage, done, total: progress(done, total, stage),
        )
    found = dataclasses.replace(found, notes=(*notes, *found.notes))
    sys.stdout.write(render_diagnosis_text(found))
    for file, render in files:
        write_atomically(file, render(found).encode())
        sys.stdout.write(f"\nWritten: {file}\n")


def _is_run(path: Path) -> bool:
    """Whether a folder is that of a run or holds some; an empty one is meant to be."""
    if not path.is_dir():
        return False
    files = any((path / name).exists() for name in _RUN_FILES)
    return files or bool(runs_below(path)) or not any(path.iterdir())


def _run_inputs(options: argparse.Namespace) -> dict[str, Any]:
    """Features, labels, domains and the head of a run."""
    run = load_run(find_run(options.path), options.data_dir)
    trained = trained_head(run, options.samples or TOTAL, options.seed)
    return {
        "z": trained.z,
        "y": trained.y.long(),
        "domain": trained.domain,
        "head": trained.head,
        "trained_on": trained.sources,
        "loss": trained.loss,
        "name": f"{trained.algorithm}, seed {trained.seed}",
        "domain_names": domain_titles(trained),
        "class_names": run.plan.data.classes,
    }


def _read(options: argparse.Namespace) -> DomainDataset:
    """The data set; of images, the features that a backbone makes of them, kept beside them."""
    path = with_options(str(options.path), label=options.label, domain=options.domain)
    most = _MOST_NUMBERS if options.samples is None else None
    data = read_dataset(Path(path), most=most, seed=options.seed)
    if options.backbone is None:
        return data
    if isinstance(data.domains[0].inputs, Tensor) or data.root is None:
        raise InputError(
            f"Expected images for the backbone {options.backbone!r}, got arrays in {options.path}. "
            "Leave --backbone out."
        )
    bank = extract(
        data,
        BankSpec(options.backbone, options.weights),
        data.root.parent / bank_path(data.name, options.backbone).name,
        cache_folder(data.root, variant=data.variant),
        os.cpu_count() or 1,
    )
    return read_dataset(bank)


def _inputs(data: DomainDataset) -> dict[str, Any]:
    """Features, labels and domains of a data set."""
    if len(data.domains) > _MANY_DOMAINS:
        warn(
            f"{data.name} has {len(data.domains)} domains, of which every two are compared: this "
            "takes long. Put domains together, or diagnose some of them."
        )
    z = torch.cat([_features(data, domain.inputs) for domain in data.domains])
    sizes = torch.tensor([len(domain) for domain in data.domains])
    return {
        "z": z,
        "y": torch.cat([domain.labels for domain in data.domains]),
        "domain": torch.arange(len(sizes)).repeat_interleave(sizes),
        "name": data.name,
        "domain_names": data.domain_names,
        "class_names": data.classes,
        "feature_names": None if data.table is None else data.table.features,
    }


def _features(data: DomainDataset, inputs: Tensor | tuple[Path, ...]) -> Tensor:
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"Expected features of the images in {data.name}, found only the images. "
            "Name a backbone with --backbone, or run `hessalign features extract` first and "
            "diagnose the file it writes."
        )
    if inputs.ndim != 2:
        raise InputError(
            f"Expected features of shape [n, d] in x of {data.name}, got {list(inputs.shape)}. "
            "Flatten them, or extract features."
        )
    return inputs if inputs.is_floating_point() else inputs.float()
