"""What the newer methods do with colour: `python -m benchmarks.methods`.

Colored MNIST by the IRM setup with fewer images and units. Penalties that have a `penalty_weight`
get that of the setup, low before its jump, all else is each method's default. Runs that are
missing are done, seed by seed, then a table is made of those there are; that of PACS features is
made by `hessalign sweep run` and `hessalign report` (docs/findings.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.output import write_result
from benchmarks.study import train_missing
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.runs import Job, load_run
from hessalign.bench.runs.irm import irm_job
from hessalign.paper.changed_images import profile
from hessalign.paper.experiment import FinishedRun, cached_runs
from hessalign.report.tables import markdown_table

REFERENCES = ("erm", "hgp", "full")
METHODS = {
    10_000: (
        *("sd", "eqrm", "ib_erm", "ib_irm", "causirl_coral", "ddc", "mdan", "urm", "selfreg"),
        *("trm", "transfer", "ermplusplus", "agrsum", "agrrand", "cma", "miro", "sagm"),
    ),
    2_000: ("rdm", "cad", "condcad", "causirl_mmd", "adrmx"),
}
"""By the number of training images; the last ones compare all pairs of samples of a batch, which
is all images here."""

RESTARTS = 3


def jobs(method: str, images: int, **options: object) -> list[Job]:
    """The runs of a method, seed by seed."""
    size = {"train_images": images, "width": 64, "evaluate_every": 100}
    return [irm_job(method, seed, {**size, **options}) for seed in range(RESTARTS)]


def measure(run: FinishedRun) -> dict[str, float]:
    """Accuracies of a run, in percent, and how much it uses colour."""
    ends = profile(load_run(run.folder))
    found = {part: 100 * run.final[f"{part}_accuracy"] for part in ("train", "test")}
    middle, rise = (ends["agree"] + ends["oppose"]) / 2, (ends["agree"] - ends["oppose"]) / 2
    return {**found, "at 0": middle, "slope": rise}


def main() -> None:
    """Do the runs, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.methods")
    parser.add_argument("--cache", type=Path, default=Path("outputs/methods"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--finished", action="store_true", help="report on what is there")
    parser.add_argument("--output", type=Path, default=Path("results/methods"), metavar="DIR")
    parser.add_argument(
        "--images", type=int, nargs="+", choices=METHODS, default=list(METHODS), metavar="N",
        help="numbers of training images, each a table of its own; all by default",
    )  # fmt: skip
    options = parser.parse_args()
    for images in options.images:
        methods = (*REFERENCES, *METHODS[images])
        if not options.finished:
            wanted = [job for method in methods for job in jobs(method, images)]
            train_missing(wanted, options.cache, options.jobs)
        values = {
            find_algorithm(method).title: [
                measure(run) for run in cached_runs(options.cache, jobs(method, images))
            ]
            for method in methods
        }
        found = {title: runs for title, runs in values.items() if runs}
        text = (
            "# Newer methods on Colored MNIST\n\nMade by `python -m benchmarks.methods --images "
            f"{images}`: the IRM setup with {images:,} training images and 2 × 64 units, its "
            "schedule of the penalty, the defaults of each method else. Percent, mean ± standard "
            "deviation over restarts; *at 0* is accuracy where colour says nothing, *slope* what "
            "it changes per unit of correlation of colour and label.\n\n"
        )
        record = {"runs": found}
        write_result(options.output, f"colored_mnist_{images}", record, text + describe(found))


def describe(found: dict[str, list[dict[str, float]]]) -> str:
    """A Markdown table, a row for each method."""
    rows = []
    for title, values in found.items():
        columns = [[each[name] for each in values] for name in values[0]]
        spread = [stdev(each) if len(each) > 1 else 0.0 for each in columns]
        cells = [f"{fmean(x):.1f} ± {s:.1f}" for x, s in zip(columns, spread, strict=True)]
        rows.append([title, str(len(values)), *cells])
    return markdown_table(["method", "runs", "train", "OOD test", "at 0", "slope"], rows)


if __name__ == "__main__":
    main()
