"""`hessalign predict`: what a trained model says of images or arrays, as a table."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from hessalign._errors import InputError
from hessalign._files import atomic_file
from hessalign.bench.runs.given_inputs import count_given
from hessalign.bench.runs.sampling import EVALUATION_BATCH
from hessalign.bench.runs.trained import Outputs, TrainedModel, load
from hessalign.bench.sweep.selection.collection import best_run
from hessalign.cli.arguments import given_flags
from hessalign.report.progress import Progress, warn

_Add = Callable[[Outputs], None]  # takes what a model made of a batch


def run(options: argparse.Namespace) -> int:
    """Predict, show progress, and write the table."""
    output: Path | None = options.output
    if output is not None and output.suffix not in _WRITERS:
        raise InputError(f"Expected --output as *.csv or *.npz, got {output}.")
    model = load(_chosen(options))
    total, done, failed = count_given(options.inputs), 0, 0
    show = Progress("predicting", "samples", bar=True)

    def unreadable(error: InputError) -> None:
        nonlocal failed
        failed += 1
        show.close()  # it gets a line of its own
        warn(str(error))

    batch_size = EVALUATION_BATCH if options.batch_size is None else options.batch_size
    with show, _writer(output, model) as add:
        show(0, total)
        for batch in model.outputs(options.inputs, batch_size, unreadable):
            add(batch)
            done += len(batch.names)
            show(done + failed, total)
    if output is not None:
        sys.stdout.write(f"Written: {output}\n")
    if failed:
        sys.stderr.write(f"{failed} of {total} could not be read and are left out.\n")
    return int(failed > 0)


def _chosen(options: argparse.Namespace) -> Path:
    """The folder of the run, said or selected."""
    folder: Path = options.run_folder
    if options.select is None:
        if flags := given_flags(options, "--dataset", "--algorithm", "--test-domain"):
            raise InputError(f"Expected {flags} with --select, to choose a run of a sweep.")
        return folder
    which = (options.dataset, options.algorithm, options.test_domain)
    chosen = best_run(folder, options.select, *which)
    path = Path(chosen.run.path).parent
    last = chosen.run.records[-1].step
    note = "" if last == chosen.step else f"; its model is that of the last step, {last}"
    sys.stderr.write(
        f"{options.select} chooses {path}: {chosen.run.key}, validation {chosen.validation:.1%} at "
        f"step {chosen.step}{note}.\n"
    )
    return path


@contextmanager
def _writer(output: Path | None, model: TrainedModel) -> Iterator[_Add]:
    """What takes batches; a file is there, whole, once the block ends."""
    if output is None:
        rows: list[_Add] = []

        def show(batch: Outputs) -> None:  # the header with the first: an error needs none
            if not rows:
                rows.append(_csv_rows(sys.stdout, model, errors="backslashreplace"))
            rows[0](batch)

        yield show
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(output) as partial, _WRITERS[output.suffix](partial, model) as add:
        yield add


@contextmanager
def _csv_file(partial: Path, model: TrainedModel) -> Iterator[_Add]:
    # Names of files may be any bytes; what is not UTF-8 comes out as it was.
    with partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield _csv_rows(file, model)


def _csv_rows(file: TextIO, model: TrainedModel, errors: str = "surrogatepass") -> _Add:
    """Write the header; what takes batches, and what to do with names that are not text."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["path", "class", *(f"probability_{name}" for name in model.classes_)])

    def add(batch: Outputs) -> None:
        for name, predicted, row in zip(
            batch.names, batch.predicted, batch.probabilities, strict=True
        ):
            text = name.encode("utf-8", errors).decode("utf-8", "surrogatepass")
            writer.writerow([text, model.classes_[predicted], *map(str, row)])

    return add


@contextmanager
def _npz_file(partial: Path, model: TrainedModel) -> Iterator[_Add]:
    """Arrays path, class, probabilities, features and classes, written at the end."""
    batches: list[Outputs] = []
    yield batches.append
    if not batches:
        raise InputError("Expected something that can be read, found nothing: no file is written.")
    predicted = np.concatenate([batch.predicted for batch in batches])
    arrays = {
        "path": np.array([name for batch in batches for name in batch.names]),
        "class": model.classes_[predicted],
        "probabilities": np.concatenate([batch.probabilities for batch in batches]),
        "features": np.concatenate([batch.features for batch in batches]),
        "classes": model.classes_,
    }
    with partial.open("wb") as file:
        np.savez(file, **arrays)


_WRITERS = {".csv": _csv_file, ".npz": _npz_file}
